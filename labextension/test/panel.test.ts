// @vitest-environment jsdom

import { nullTranslator } from '@jupyterlab/translation';
import { MessageLoop } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';
import { afterEach, describe, expect, it, vi } from 'vitest';

import { ChatsModel } from '../src/chatsModel';
import { SandboxModel } from '../src/model';
import { DEFAULT_PREFERENCES } from '../src/preferences';
import { type Action, type ISandbox, parseSandbox } from '../src/protocol';
import {
  type IChatsSource,
  type ISandboxSource,
  SourceError
} from '../src/source';
import { type IPanelActions, SandboxPanel } from '../src/views/panel';
import { Ticker } from '../src/views/ticker';
import { NO_ACCOUNT, sandbox, sandboxBody, STARTING } from './samples';

vi.hoisted(() => {
  // Lumino looks for it when it is loaded, and jsdom has none.
  vi.stubGlobal('DragEvent', MouseEvent);
});

const NOT_STARTED = { state: 'none', raw_state: 'none', phase: null };
const OFFERED = { account: false };

/** A server that knows these sandboxes, and whose answer to an action is awaited by hand. */
class FakeSource implements ISandboxSource {
  readonly key = 'http://server/';
  readonly acts: [string, Action][] = [];
  answerAct: (answer: ISandbox | SourceError) => void = () => undefined;

  constructor(public answer: ISandbox[]) {}

  list(): Promise<ISandbox[]> {
    return Promise.resolve(this.answer);
  }

  act(id: string, action: Action): Promise<ISandbox> {
    this.acts.push([id, action]);
    return new Promise((resolve, reject) => {
      this.answerAct = answer => {
        if (answer instanceof SourceError) {
          reject(answer);
        } else {
          this.answer = [answer];
          resolve(answer);
        }
      };
    });
  }

  // No event stream here: the poll brings all.
  async *events(): AsyncGenerator<string> {
    await Promise.reject(new SourceError({ kind: 'no-extension' }));
  }
}

const actions = {
  act: vi.fn<IPanelActions['act']>(),
  copyId: vi.fn<IPanelActions['copyId']>(),
  copyText: vi.fn<IPanelActions['copyText']>(),
  openNotebook: vi.fn<IPanelActions['openNotebook']>(),
  newNotebook: vi.fn<IPanelActions['newNotebook']>(),
  restartSession: vi.fn<IPanelActions['restartSession']>(),
  chats: {
    use: vi.fn<IPanelActions['chats']['use']>(),
    useAnother: vi.fn<IPanelActions['chats']['useAnother']>(),
    rename: vi.fn<IPanelActions['chats']['rename']>(),
    makeDefault: vi.fn<IPanelActions['chats']['makeDefault']>(),
    forget: vi.fn<IPanelActions['chats']['forget']>()
  }
};

/** A server that has not said which chats there are. */
const chatsSource: IChatsSource = {
  chats: () => new Promise(() => undefined),
  account: () => Promise.resolve(NO_ACCOUNT),
  putChat: () => Promise.resolve(),
  forgetChat: () => Promise.resolve(),
  makeDefault: () => Promise.resolve([]),
  saveAccount: () => Promise.resolve(NO_ACCOUNT)
};

let open: { panel: SandboxPanel; model: SandboxModel } | null = null;

afterEach(() => {
  open?.panel.dispose();
  open?.model.dispose();
  open = null;
  restoring = null;
  vi.clearAllMocks();
});

/** What an open notebook could get back. */
let restoring: 'possible' | 'busy' | null = null;

/** An open panel that shows what the server knows. */
async function show(
  ...sandboxes: ISandbox[]
): Promise<{ panel: SandboxPanel; source: FakeSource }> {
  const source = new FakeSource(sandboxes);
  const model = new SandboxModel({
    source,
    platform: { locks: null, openChannel: null }
  });
  actions.act.mockImplementation((id, action) => {
    if (action !== 'resume-and-restore') {
      void model.act(id, action);
    }
  });
  const panel = new SandboxPanel(
    {
      model,
      ticker: new Ticker(),
      trans: nullTranslator.load('ivy-kernel'),
      actions,
      isCurrent: () => false,
      restoring: () => restoring,
      chats: new ChatsModel(chatsSource),
      canUseChat: () => true,
      switchingTo: () => null
    },
    DEFAULT_PREFERENCES
  );
  open = { panel, model };
  Widget.attach(panel, document.body);
  MessageLoop.flush();
  model.start();
  await vi.waitFor(() => {
    expect(model.knowledge.kind).toBe('sandboxes');
  });
  return { panel, source };
}

describe('the focus', () => {
  /** Open the account's form by command, while another element is there to take the focus. */
  async function openAccount(): Promise<{ key: Element; other: HTMLElement }> {
    const { panel } = await show(sandbox());
    panel.openAccount();
    MessageLoop.sendMessage(panel, Widget.Msg.ActivateRequest);
    const key = panel.node.querySelector('input[type=password]:focus');
    const other = document.body.appendChild(document.createElement('button'));
    expect(key).not.toBeNull();
    return { key: key ?? other, other };
  }

  it('is taken back from a notebook that takes it unasked, once', async () => {
    const { key, other } = await openAccount();
    other.focus();
    await vi.waitFor(() => {
      expect(document.activeElement).toBe(key);
    });
    other.focus();
    await new Promise(resolve => setTimeout(resolve, 20));
    expect(document.activeElement).toBe(other);
  });

  it('is left where the user puts it', async () => {
    const { key, other } = await openAccount();
    key.dispatchEvent(new KeyboardEvent('keydown', { bubbles: true }));
    other.focus();
    await new Promise(resolve => setTimeout(resolve, 20));
    expect(document.activeElement).toBe(other);
  });
});

describe('the chats', () => {
  it('are asked for again after a failure, which the panel tells of, with the next news', async () => {
    const asked = vi.spyOn(chatsSource, 'chats');
    asked.mockRejectedValue(new SourceError({ kind: 'server-unreachable' }));
    const { panel } = await show(sandbox());
    await vi.waitFor(() => {
      panel.refresh();
      expect(asked.mock.calls.length).toBeGreaterThan(1);
    });
    const error = panel.node.querySelector('.jp-ivy-chats .jp-ivy-form-error');
    expect(error?.textContent).toBe('');
    asked.mockRestore();
  });

  it('are asked for once when the panel is opened, and when it is activated later', async () => {
    const asked = vi.spyOn(chatsSource, 'chats');
    const { panel } = await show(sandbox());
    asked.mockClear();
    const now = vi.spyOn(performance, 'now');
    const opened = performance.now();
    MessageLoop.sendMessage(panel, Widget.Msg.ActivateRequest);
    expect(asked).not.toHaveBeenCalled();
    now.mockReturnValue(opened + 60_000);
    MessageLoop.sendMessage(panel, Widget.Msg.ActivateRequest);
    expect(asked).toHaveBeenCalledOnce();
    now.mockRestore();
    asked.mockRestore();
  });
});

function isSeen(node: Element): boolean {
  return node.closest('[hidden]') === null;
}

/** The titles of what can be seen: cards, and parts of the welcome. */
function titles(panel: SandboxPanel): string[] {
  return [...panel.node.querySelectorAll('[role=heading], h3')]
    .filter(isSeen)
    .map(one => one.textContent);
}

function button(panel: SandboxPanel, label: string): HTMLButtonElement | null {
  return (
    [...panel.node.querySelectorAll('button')].find(
      one => isSeen(one) && one.textContent === label
    ) ?? null
  );
}

describe('the empty state', () => {
  it('offers the local sandbox to who has no account, and acts by the click only', async () => {
    const { panel, source } = await show(sandbox(OFFERED, NOT_STARTED));
    expect(titles(panel)).toEqual([
      'Try it without an account',
      'Use your account',
      'Use it from a notebook'
    ]);
    expect(panel.node.textContent).toContain('No sandbox is in use.');
    expect(source.acts).toEqual([]);
    button(panel, 'Use the local sandbox')?.click();
    expect(source.acts).toEqual([['key-1', 'create']]);
  });

  it('becomes the card of the sandbox, with the focus and a way to a notebook', async () => {
    const { panel, source } = await show(sandbox(OFFERED, NOT_STARTED));
    const offer = button(panel, 'Use the local sandbox');
    offer?.focus();
    offer?.click();
    expect(titles(panel)).toEqual(['Local sandbox', 'Use it from a notebook']);
    expect(document.activeElement?.getAttribute('data-action')).toBe('create');
    source.answerAct(sandbox(OFFERED, STARTING));
    await vi.waitFor(() => {
      expect(panel.node.textContent).toContain('run in this local sandbox');
    });
    expect(titles(panel)).toEqual(['Local sandbox', 'Use it from a notebook']);
    button(panel, 'New notebook')?.click();
    expect(actions.newNotebook).toHaveBeenCalledOnce();
  });

  it('says why the local sandbox did not start, and lets it be tried again', async () => {
    const { panel, source } = await show(sandbox(OFFERED, NOT_STARTED));
    button(panel, 'Use the local sandbox')?.click();
    const message = 'The local sandbox did not start; its log is here.';
    source.answerAct(new SourceError({ kind: 'refused', message }));
    await vi.waitFor(() => {
      const alerts = [...panel.node.querySelectorAll('[role=alert]')];
      expect(alerts.find(isSeen)?.textContent).toBe(message);
    });
    button(panel, 'Create')?.click();
    expect(source.acts).toHaveLength(2);
  });

  it.each([
    ['there is an account', { account: true }, NOT_STARTED],
    ['the server does not say so', {}, NOT_STARTED],
    ['it is there', OFFERED, {}],
    [
      'a notebook uses it',
      { ...OFFERED, sessions: [{ kernel_id: 'k', notebook_path: 'a.ipynb' }] },
      NOT_STARTED
    ],
    ['it is not the default one', { ...OFFERED, default: false }, NOT_STARTED],
    ['it cannot be created', { ...OFFERED, can_create: false }, NOT_STARTED]
  ])('shows the card and makes no offer when %s', async (_, fields, state) => {
    const { panel } = await show(sandbox(fields, state));
    expect(titles(panel)).toContain('Local sandbox');
    expect(button(panel, 'Use the local sandbox')).toBeNull();
  });

  it('tells who lacks a key for the platform which setting means the local sandbox', async () => {
    const unset = {
      local: false,
      can_create: false,
      missing: 'Set the key.',
      account: false
    };
    const { panel } = await show(sandbox(unset, NOT_STARTED));
    button(panel, 'Copy setting')?.click();
    expect(actions.copyText).toHaveBeenCalledWith('IVY_API_URL=local');
    expect(button(panel, 'Use the local sandbox')).toBeNull();
  });

  it('says nothing of the local sandbox to who has an account', async () => {
    const cloud = { local: false, name: 'Chat 7', account: true };
    const { panel } = await show(sandbox(cloud, NOT_STARTED));
    expect(titles(panel)).toEqual(['Chat 7', 'Use it from a notebook']);
  });
});

describe('parseSandbox', () => {
  it('takes it that there is an account unless it is told that there is none', () => {
    const read = (account: unknown): boolean | undefined =>
      parseSandbox(sandboxBody({ account }))?.hasAccount;
    expect([read(undefined), read(null), read(true)]).toEqual([
      true,
      true,
      true
    ]);
    expect(read(false)).toBe(false);
  });
});
