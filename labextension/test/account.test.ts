// @vitest-environment jsdom

import { afterEach, describe, expect, it, vi } from 'vitest';

import { english } from '../src/format';
import type { IAccount, IAccountInput } from '../src/protocol';
import type { Problem } from '../src/source';
import {
  AccountForm,
  fieldOf,
  type IAccountFormOptions
} from '../src/views/account';
import { NO_ACCOUNT } from './samples';

const KEY = 'ivy_typed0key';

afterEach(() => {
  document.body.replaceChildren();
});

function show(answer: { account: IAccount } | { problem: Problem }): {
  form: AccountForm;
  sent: IAccountInput[];
  onSaved: IAccountFormOptions['onSaved'];
} {
  const sent: IAccountInput[] = [];
  const onSaved = vi.fn<IAccountFormOptions['onSaved']>();
  const form = new AccountForm({
    trans: english,
    idPrefix: 'f',
    save: input => {
      sent.push(input);
      return Promise.resolve(answer);
    },
    onSaved
  });
  document.body.append(form.node);
  return { form, sent, onSaved };
}

function field(name: string): HTMLInputElement {
  const found = document.querySelector<HTMLInputElement>(`#f-${name}`);
  if (!found) {
    throw new Error(`no field ${name}`);
  }
  return found;
}

function type(name: string, value: string): void {
  field(name).value = value;
}

function refused(errorKind: string, message: string): { problem: Problem } {
  return { problem: { kind: 'refused', errorKind, message } };
}

describe('the form for the account', () => {
  it('sends what was typed, and the keys are gone from the page before the answer', async () => {
    const account = { ...NO_ACCOUNT, hasKey: true, keySource: 'config file' };
    const { form, sent, onSaved } = show({ account });
    type('api_key', ` ${KEY} `);
    type('chat_id', 'chat-1');
    type('recoup_api_key', 'recoup-key');
    form.node.requestSubmit();
    expect(sent).toEqual([
      { api_key: KEY, chat_id: 'chat-1', recoup_api_key: 'recoup-key' }
    ]);
    expect(field('api_key').value).toBe('');
    expect(field('recoup_api_key').value).toBe('');
    await vi.waitFor(() => {
      expect(onSaved).toHaveBeenCalledWith(account);
    });
    expect(document.body.textContent).toContain(
      'There is one (config file). Leave this empty to keep it.'
    );
  });

  it('has a password field that nobody fills in', () => {
    show({ account: NO_ACCOUNT });
    expect(field('api_key').type).toBe('password');
    expect(field('api_key').autocomplete).toBe('off');
    expect(field('api_key').name).toBe('');
  });

  it('fills in what is known, but never over what was typed', () => {
    const { form } = show({ account: NO_ACCOUNT });
    form.update({ ...NO_ACCOUNT, chatId: 'chat-1', campaignId: 'c-1' });
    expect(field('chat_id').value).toBe('chat-1');
    type('chat_id', 'chat-2');
    form.update({ ...NO_ACCOUNT, chatId: 'chat-3', campaignId: 'c-3' });
    expect(field('chat_id').value).toBe('chat-2');
    expect(field('campaign_id').value).toBe('c-3');
  });

  it('sends that an id was removed', () => {
    const { form, sent } = show({ account: NO_ACCOUNT });
    form.update({ ...NO_ACCOUNT, chatId: 'chat-1', campaignId: 'c-1' });
    type('campaign_id', '');
    form.node.requestSubmit();
    expect(sent).toEqual([{ campaign_id: '' }]);
  });

  it('shows an error at its field, which is focused and described by it', async () => {
    const message = 'HTTP 401; correct the setting api_key.';
    const { form } = show(refused('CredentialsError', message));
    type('api_key', KEY);
    form.node.requestSubmit();
    await vi.waitFor(() => {
      expect(field('api_key').getAttribute('aria-invalid')).toBe('true');
    });
    expect(document.activeElement).toBe(field('api_key'));
    const [described] = (
      field('api_key').getAttribute('aria-describedby') ?? ''
    ).split(' ');
    expect(document.getElementById(described ?? '')?.textContent).toBe(
      'The platform does not accept this key, so nothing was saved. Check it, or make a new one.'
    );
    const page = new XMLSerializer().serializeToString(document);
    expect(page).not.toContain(KEY);
  });

  it('says of a saved key that is refused what the server says', async () => {
    const message = 'HTTP 401; correct the setting api_key.';
    const { form } = show(refused('CredentialsError', message));
    type('chat_id', 'chat-1');
    form.node.requestSubmit();
    await vi.waitFor(() => {
      expect(document.body.textContent).toContain(message);
    });
  });

  it('shows an error about no field below all of them', async () => {
    const { form } = show({ problem: { kind: 'server-unreachable' } });
    type('chat_id', 'chat-1');
    form.node.requestSubmit();
    await vi.waitFor(() => {
      expect(document.body.textContent).toContain(
        'The Jupyter server does not answer.'
      );
    });
    expect(document.querySelector('[aria-invalid]')).toBeNull();
  });

  it('sends nothing when nothing is typed', () => {
    const { form, sent } = show({ account: NO_ACCOUNT });
    form.node.requestSubmit();
    expect(sent).toEqual([]);
    expect(document.body.textContent).toContain('Nothing was changed');
  });
});

describe('fieldOf', () => {
  const RECOUP: IAccountInput = {
    recoup_api_key: 'k',
    recoup_session_id: 's'
  };
  it.each([
    ['CredentialsError', 'The key was refused.', {}, 'api_key'],
    ['CredentialsError', 'Recoup refused the key.', {}, 'api_key'],
    ['CredentialsError', 'Recoup refused it.', RECOUP, 'recoup_api_key'],
    ['NotFoundError', 'Recoup has no session s.', RECOUP, 'recoup_session_id'],
    ['ForbiddenError', "It is somebody else's chat.", {}, 'chat_id'],
    ['NotFoundError', 'There is no such chat.', {}, 'chat_id'],
    ['MissingSettingError', 'Set campaign_id.', {}, 'campaign_id'],
    ['SettingError', 'chat_id cannot be "a b".', {}, 'chat_id'],
    ['SettingError', 'api_url is no address.', {}, null],
    ['NotSentError', 'The platform cannot be reached.', {}, null]
  ])('%s: %s', (errorKind, message, sent, expected) => {
    const problem: Problem = { kind: 'refused', errorKind, message };
    expect(fieldOf(problem, sent)).toBe(expected);
  });
});
