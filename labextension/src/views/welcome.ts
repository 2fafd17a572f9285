/** What to do first: shown while no notebook uses a sandbox. */

import type { ITranslate } from '../format';
import { make, setShown, setText } from './dom';

export interface IWelcomeActions {
  readonly newNotebook: () => void;
  readonly copy: (text: string) => void;
  /** Start the local sandbox. */
  readonly useLocal: () => void;
}

/**
 * What there is to say of the local sandbox: a button starts it; it is there; it takes a setting
 * first; or nothing, because there is an account.
 */
export type LocalSandbox = 'offered' | 'there' | 'explained' | 'unmentioned';

/** The setting that makes everything use the local sandbox. */
const LOCAL_SETTING = 'IVY_API_URL=local';

export class WelcomeView {
  /**
   * @param accountForm - Where key, chat and campaign are typed.
   */
  constructor(
    trans: ITranslate,
    actions: IWelcomeActions,
    accountForm: HTMLElement
  ) {
    this._trans = trans;
    this._useLocal = button(trans.__('Use the local sandbox'));
    this._useLocal.classList.add('jp-mod-primary');
    this._useLocal.addEventListener('click', actions.useLocal);
    this._newNotebook = button(trans.__('New notebook'));
    this._newNotebook.addEventListener('click', actions.newNotebook);
    const copySetting = button(trans.__('Copy setting'));
    copySetting.addEventListener('click', () => {
      actions.copy(LOCAL_SETTING);
    });
    this._offer = part(trans.__('Try it without an account'), [
      trans.__(
        'The local sandbox runs on this computer and behaves like one on the platform. It costs nothing and starts in a few seconds.'
      ),
      this._useLocal
    ]);
    this._explanation = part(trans.__('Try it without an account'), [
      trans.__(
        'The local sandbox runs on this computer and behaves like one on the platform. Set this in the environment of the Jupyter server, and restart the server:'
      ),
      make('pre', 'jp-ivy-setting', {}, [LOCAL_SETTING]),
      copySetting
    ]);
    this._account = part(trans.__('Use your account'), [
      trans.__(
        'Key, chat and campaign are checked with the platform, and kept in a file on the Jupyter server that only you can read. No restart is needed.'
      ),
      accountForm
    ]);
    this.node = make('section', 'jp-ivy-welcome', {}, [
      this._offer,
      this._account,
      part(trans.__('Use it from a notebook'), [
        this._where,
        this._newNotebook
      ]),
      this._explanation
    ]);
  }

  readonly node: HTMLElement;

  /** Whether the button that starts the local sandbox has the keyboard focus. */
  get hasFocusOnOffer(): boolean {
    return document.activeElement === this._useLocal;
  }

  /** Whether the form for the account is shown here. */
  get hasAccountForm(): boolean {
    return !this._account.hidden && !this.node.hidden;
  }

  /**
   * @param local - What there is to say of the local sandbox; null hides everything.
   */
  update(local: LocalSandbox | null): void {
    const trans = this._trans;
    setText(
      this._where,
      local === 'there'
        ? trans.__(
            'Cells of a notebook with the kernel “Ivy Sandbox” run in this local sandbox.'
          )
        : trans.__(
            'Cells of a notebook with the kernel “Ivy Sandbox” run in the sandbox. It starts with the first cell, never before.'
          )
    );
    this._newNotebook.classList.toggle('jp-mod-primary', local === 'there');
    setShown(this._offer, local === 'offered');
    setShown(this._account, local === 'offered');
    setShown(this._explanation, local === 'explained');
    setShown(this.node, local !== null);
  }

  private readonly _trans: ITranslate;
  private readonly _where = make('p');
  private readonly _useLocal: HTMLButtonElement;
  private readonly _newNotebook: HTMLButtonElement;
  private readonly _offer: HTMLElement;
  private readonly _explanation: HTMLElement;
  private readonly _account: HTMLElement;
}

function button(label: string): HTMLButtonElement {
  return make('button', 'jp-ivy-button', { type: 'button' }, [label]);
}

/** A heading, and what stands below it; a text becomes a paragraph. */
function part(
  title: string,
  content: readonly (HTMLElement | string)[]
): HTMLElement {
  return make('div', 'jp-ivy-welcome-part', {}, [
    make('h3', 'jp-ivy-section-title', {}, [title]),
    ...content.map(one =>
      typeof one === 'string' ? make('p', '', {}, [one]) : one
    )
  ]);
}
