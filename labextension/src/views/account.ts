/** The form for key, chat and campaign, which are checked before they are saved. */

import type { ITranslate } from '../format';
import type { IAccount, IAccountInput } from '../protocol';
import { type Problem, problemSentence } from '../source';
import { make, setAttribute, setShown, setText } from './dom';

/** The fields by the names of the settings that they become. */
export const ACCOUNT_FIELDS = [
  'api_key',
  'chat_id',
  'campaign_id',
  'recoup_api_key',
  'recoup_session_id'
] as const;

export type AccountField = (typeof ACCOUNT_FIELDS)[number];

/** What is never shown again once it has been sent. */
const SECRETS: readonly AccountField[] = ['api_key', 'recoup_api_key'];

const OPTIONAL: readonly AccountField[] = [
  'recoup_api_key',
  'recoup_session_id'
];

export type SaveAccount = (
  input: IAccountInput
) => Promise<{ readonly account: IAccount } | { readonly problem: Problem }>;

export interface IAccountFormOptions {
  readonly trans: ITranslate;
  /** Makes the ids of the fields: there may be two forms in a page. */
  readonly idPrefix: string;
  readonly save: SaveAccount;
  readonly onSaved: (account: IAccount) => void;
  /** Called by the button that closes the form; without it there is no such button. */
  readonly onCancel?: () => void;
}

/**
 * The field that an error is about; null for the form as a whole.
 *
 * @param sent - What was sent: an error about Recoup is about a field of Recoup's only then.
 */
export function fieldOf(
  problem: Problem,
  sent: IAccountInput
): AccountField | null {
  if (problem.kind !== 'refused') {
    return null;
  }
  const { errorKind = '', message } = problem;
  if (/recoup/i.test(message)) {
    const isSession = /session/i.test(message) && !/key|401/i.test(message);
    if (isSession && sent.recoup_session_id !== undefined) {
      return 'recoup_session_id';
    }
    if (sent.recoup_api_key !== undefined) {
      return 'recoup_api_key';
    }
  }
  switch (errorKind) {
    case 'CredentialsError':
      return 'api_key';
    case 'ForbiddenError':
    case 'NotFoundError':
      return 'chat_id';
    case 'BadRequestError':
    case 'SettingError':
    case 'MissingSettingError':
    case 'UsageError': {
      // These name the setting, often beside others that are in order: the first one is it.
      const places = ACCOUNT_FIELDS.map(field => ({
        field,
        at: message.search(new RegExp(`(?<![a-z_])${field}(?![a-z_])`))
      })).filter(one => one.at >= 0);
      places.sort((a, b) => a.at - b.at);
      return places[0]?.field ?? null;
    }
    default:
      return null;
  }
}

/**
 * What to say of a key that was typed and refused; null when it is something else.
 *
 * The server's own sentence names the setting in the config file, which is of no use here.
 */
function refusedKey(
  problem: Problem,
  field: AccountField,
  sent: IAccountInput,
  trans: ITranslate
): string | null {
  if (
    problem.kind !== 'refused' ||
    problem.errorKind !== 'CredentialsError' ||
    sent[field] === undefined
  ) {
    return null;
  }
  switch (field) {
    case 'api_key':
      return trans.__(
        'The platform does not accept this key, so nothing was saved. Check it, or make a new one.'
      );
    case 'recoup_api_key':
      return trans.__(
        'Recoup does not accept this key, so nothing was saved. Check it, or make a new one.'
      );
    default:
      return null;
  }
}

interface IField {
  readonly input: HTMLInputElement;
  readonly hint: HTMLElement;
  readonly error: HTMLElement;
}

export class AccountForm {
  constructor(options: IAccountFormOptions) {
    this._options = options;
    const { trans } = options;
    const optional = make('details', 'jp-ivy-form-optional', {}, [
      make('summary', '', {}, [trans.__('Countdowns (optional)')]),
      make('p', 'jp-ivy-form-hint', {}, [
        trans.__(
          'With a key and a session of Recoup the panel knows when the sandbox hibernates and expires.'
        )
      ]),
      ...OPTIONAL.map(field => this._makeField(field))
    ]);
    this._optional = optional;
    setText(this._save, trans.__('Check and save'));
    this.node = make(
      'form',
      'jp-ivy-form',
      // No action and no method: nothing of it can ever get into an address.
      { autocomplete: 'off', novalidate: '' },
      [
        ...ACCOUNT_FIELDS.filter(one => !OPTIONAL.includes(one)).map(field =>
          this._makeField(field)
        ),
        optional,
        this._problem,
        make('div', 'jp-ivy-actions', {}, [this._save])
      ]
    );
    const { onCancel } = options;
    if (onCancel) {
      const cancel = make('button', 'jp-ivy-button', { type: 'button' }, [
        trans.__('Cancel')
      ]);
      cancel.addEventListener('click', () => {
        this.clear();
        onCancel();
      });
      this._save.after(cancel);
    }
    setShown(this._problem, false);
    this.node.addEventListener('submit', event => {
      event.preventDefault();
      void this._submit();
    });
    // What is typed here is nobody's shortcut.
    this.node.addEventListener('keydown', event => {
      event.stopPropagation();
      if (event.key === 'Escape' && onCancel) {
        this.clear();
        onCancel();
      }
    });
    this.update(null);
  }

  readonly node: HTMLFormElement;

  /** Fill in what is known, except where the person has typed something; keys are never known. */
  update(account: IAccount | null): void {
    const { trans } = this._options;
    const fill = (field: AccountField, value: string | null): void => {
      const { input } = this._field(field);
      if (input.value === this._filled.get(field)) {
        input.value = value ?? '';
        this._filled.set(field, input.value);
      }
    };
    fill('chat_id', account?.chatId ?? null);
    fill('campaign_id', account?.campaignId ?? null);
    fill('recoup_session_id', account?.recoupSessionId ?? null);
    setText(
      this._field('api_key').hint,
      account?.hasKey === true
        ? trans.__(
            'There is one (%1). Leave this empty to keep it.',
            account.keySource ?? trans.__('from the settings')
          )
        : trans.__('From your account on the platform; it begins with “ivy_”.')
    );
    setText(
      this._field('recoup_api_key').hint,
      account?.hasRecoupKey === true
        ? trans.__('There is one. Leave this empty to keep it.')
        : ''
    );
  }

  /** Put the keyboard focus where the first thing is to be typed. */
  focus(): void {
    this._field('api_key').input.focus();
  }

  /** Forget what was typed, and what was said of it. */
  clear(): void {
    for (const [field, { input }] of this._fields) {
      input.value = this._filled.get(field) ?? '';
    }
    this._showProblem(null, {});
  }

  private async _submit(): Promise<void> {
    if (this._isBusy) {
      return;
    }
    const input = this._take();
    this._showProblem(null, {});
    if (this._isEmpty(input)) {
      return;
    }
    this._setBusy(true);
    const answer = await this._options.save(input);
    this._setBusy(false);
    if ('problem' in answer) {
      this._showProblem(answer.problem, input);
    } else {
      this.update(answer.account);
      this._options.onSaved(answer.account);
    }
  }

  /** Take what was typed out of the fields; the keys are not in the page after it. */
  private _take(): IAccountInput {
    const input: Partial<Record<AccountField, string>> = {};
    for (const [field, one] of this._fields) {
      const value = one.input.value.trim();
      // What was not changed is not sent: the environment may have set it.
      if (value !== this._filled.get(field)) {
        input[field] = value;
      }
      if (SECRETS.includes(field)) {
        one.input.value = '';
      }
    }
    return input;
  }

  /** Whether nothing was typed, which needs no platform to be told. */
  private _isEmpty(input: IAccountInput): boolean {
    if (Object.keys(input).length > 0) {
      return false;
    }
    const { trans } = this._options;
    this._showError(
      'api_key',
      trans.__('Nothing was changed: type a key, or change an id.')
    );
    this.focus();
    return true;
  }

  private _showProblem(problem: Problem | null, sent: IAccountInput): void {
    const { trans } = this._options;
    for (const field of ACCOUNT_FIELDS) {
      this._showError(field, null);
    }
    const sentence = problem === null ? null : problemSentence(problem, trans);
    const field = problem === null ? null : fieldOf(problem, sent);
    setText(this._problem, field === null ? (sentence ?? '') : '');
    setShown(this._problem, sentence !== null && field === null);
    if (problem !== null && field !== null) {
      this._showError(
        field,
        refusedKey(problem, field, sent, trans) ?? sentence
      );
      if (OPTIONAL.includes(field)) {
        this._optional.open = true;
      }
      this._field(field).input.focus();
    }
  }

  private _showError(field: AccountField, sentence: string | null): void {
    const { input, error, hint } = this._field(field);
    setText(error, sentence ?? '');
    setShown(error, sentence !== null);
    setAttribute(input, 'aria-invalid', sentence === null ? null : 'true');
    setAttribute(
      input,
      'aria-describedby',
      sentence === null ? hint.id : `${error.id} ${hint.id}`
    );
  }

  private _setBusy(isBusy: boolean): void {
    const { trans } = this._options;
    this._isBusy = isBusy;
    // Not `disabled`, which would drop the keyboard focus.
    setAttribute(this._save, 'aria-disabled', isBusy ? 'true' : null);
    this._save.classList.toggle('jp-mod-busy', isBusy);
    setText(
      this._save,
      isBusy ? trans.__('Checking…') : trans.__('Check and save')
    );
  }

  private _field(field: AccountField): IField {
    const found = this._fields.get(field);
    if (!found) {
      throw new Error(`no field ${field}`);
    }
    return found;
  }

  private _makeField(field: AccountField): HTMLElement {
    const { idPrefix } = this._options;
    const id = `${idPrefix}-${field}`;
    const input = make('input', 'jp-ivy-input', {
      id,
      // A name would make it a candidate for the browser's own form history.
      type: SECRETS.includes(field) ? 'password' : 'text',
      autocomplete: 'off',
      autocapitalize: 'off',
      spellcheck: 'false',
      'aria-describedby': `${id}-hint`,
      // Password managers ask to keep what they see in such a field.
      'data-1p-ignore': '',
      'data-lpignore': 'true'
    });
    const hint = make('div', 'jp-ivy-form-hint', { id: `${id}-hint` });
    const error = make('div', 'jp-ivy-form-error', {
      id: `${id}-error`,
      role: 'alert'
    });
    setShown(error, false);
    this._fields.set(field, { input, hint, error });
    this._filled.set(field, '');
    return make('div', 'jp-ivy-form-field', {}, [
      make('label', '', { for: id }, [this._label(field)]),
      input,
      error,
      hint
    ]);
  }

  private _label(field: AccountField): string {
    const { trans } = this._options;
    switch (field) {
      case 'api_key':
        return trans.__('Key');
      case 'chat_id':
        return trans.__('Chat id');
      case 'campaign_id':
        return trans.__('Campaign id');
      case 'recoup_api_key':
        return trans.__('Recoup key');
      case 'recoup_session_id':
        return trans.__('Recoup session id');
    }
  }

  private readonly _options: IAccountFormOptions;
  private readonly _fields = new Map<AccountField, IField>();
  /** What was filled in by us, as long as the person has not changed it. */
  private readonly _filled = new Map<AccountField, string>();
  private readonly _optional: HTMLDetailsElement;
  private readonly _problem = make('div', 'jp-ivy-form-error', {
    role: 'alert'
  });
  private readonly _save = make('button', 'jp-ivy-button jp-mod-primary', {
    type: 'submit'
  });
  private _isBusy = false;
}
