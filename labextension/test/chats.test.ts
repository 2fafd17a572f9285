// @vitest-environment jsdom

import { afterEach, describe, expect, it, vi } from 'vitest';

import { ChatsModel } from '../src/chatsModel';
import { english } from '../src/format';
import { type IChat, parseAccount, parseChats } from '../src/protocol';
import { type IChatsSource, SourceError } from '../src/source';
import {
  ChatsView,
  type IChatsContent,
  matchingChats
} from '../src/views/chats';
import { chat, NO_ACCOUNT } from './samples';

const CHATS = [
  chat('c-1', { name: 'Proteins', campaignId: 'lab', isDefault: true }),
  chat('c-2', { name: 'Genomes', campaignId: 'lab' }),
  chat('local', { isLocal: true })
];

afterEach(() => {
  document.body.replaceChildren();
});

describe('parseChats', () => {
  it('reads what the server says, and a chat without a name by its id', () => {
    expect(
      parseChats({
        chats: [
          {
            chat_id: 'c-1',
            name: 'Proteins',
            campaign_id: 'lab',
            last_used: '2026-01-01T00:00:00Z',
            is_default: true,
            is_local: false
          },
          { chat_id: 'c-2', name: '', last_used: null },
          { name: 'no id' },
          'nonsense'
        ]
      })
    ).toEqual([
      chat('c-1', {
        name: 'Proteins',
        campaignId: 'lab',
        lastUsedMs: Date.UTC(2026, 0, 1),
        isDefault: true
      }),
      chat('c-2')
    ]);
  });

  it('takes no other document for a list', () => {
    expect(parseChats({ sandboxes: [] })).toBeNull();
    expect(parseAccount({ chat_id: 'c-1' })).toBeNull();
  });
});

describe('matchingChats', () => {
  it.each([
    ['', ['c-1', 'c-2', 'local']],
    ['LAB prot', ['c-1']],
    ['c-2', ['c-2']],
    ['nothing', []]
  ])('%j', (typed, ids) => {
    expect(matchingChats(CHATS, typed).map(one => one.chatId)).toEqual(ids);
  });
});

function show(fields: Partial<IChatsContent> = {}): {
  view: ChatsView;
  use: (chat: IChat) => void;
  selected: () => string;
  press: (key: string, inFilter?: boolean) => void;
} {
  const use = vi.fn<(chat: IChat) => void>();
  const view = new ChatsView(english, {
    use,
    useAnother: vi.fn<() => void>(),
    rename: vi.fn<(chat: IChat) => void>(),
    makeDefault: vi.fn<(chat: IChat) => void>(),
    forget: vi.fn<(chat: IChat) => void>()
  });
  // jsdom has no layout.
  Element.prototype.scrollIntoView = vi.fn<() => void>();
  document.body.append(view.node);
  view.update({
    chats: CHATS,
    isKnown: true,
    problem: null,
    notes: [],
    currentChatId: 'c-1',
    canUse: true,
    switchingTo: null,
    ...fields
  });
  return {
    view,
    use,
    selected: () =>
      view.node.querySelector('[aria-selected=true] .jp-ivy-chat-name')
        ?.textContent ?? '',
    press: (key, inFilter = false) => {
      view.node
        .querySelector(inFilter ? 'input' : '[role=listbox]')
        ?.dispatchEvent(
          new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true })
        );
    }
  };
}

describe('the list of chats', () => {
  it('says which one is whose', () => {
    const { view } = show();
    const rows = [...view.node.querySelectorAll('[role=option]')].map(row =>
      [...row.querySelectorAll('.jp-ivy-badge')].map(one => one.textContent)
    );
    expect(rows).toEqual([['This notebook', 'Default'], [], ['Local']]);
    expect(view.node.textContent).toContain('c-2 · campaign lab');
  });

  it('is picked from by arrow keys and Enter', () => {
    const { press, selected, use } = show();
    expect(selected()).toBe('Proteins');
    press('Enter');
    expect(use).not.toHaveBeenCalled(); // the notebook uses it already
    press('ArrowDown');
    expect(selected()).toBe('Genomes');
    press('Enter');
    expect(use).toHaveBeenCalledWith(CHATS[1]);
    press('End');
    press('ArrowDown');
    expect(selected()).toBe('local');
  });

  it('is filtered by what is typed, and keeps a selection', () => {
    const { press, selected, use, view } = show();
    const filter = view.node.querySelector('input');
    if (filter) {
      filter.value = 'geno';
      filter.dispatchEvent(new Event('input'));
    }
    expect(selected()).toBe('Genomes');
    press('Enter', true);
    expect(use).toHaveBeenCalledWith(CHATS[1]);
    press('Escape', true);
    expect(filter?.value).toBe('');
    expect(view.node.querySelectorAll('[role=option]')).toHaveLength(3);
  });

  it.each([
    ['there is no notebook', { canUse: false }],
    ['another switch is under way', { switchingTo: 'Genomes' }]
  ])('switches nothing while %s', (_, fields) => {
    const { press, use } = show(fields);
    press('ArrowDown');
    press('Enter');
    expect(use).not.toHaveBeenCalled();
  });

  it('keeps the selected chat when the list comes again', () => {
    const { press, selected, view } = show();
    press('ArrowDown');
    view.update({
      chats: [...CHATS].reverse(),
      isKnown: true,
      problem: null,
      notes: [],
      currentChatId: 'c-1',
      canUse: true,
      switchingTo: null
    });
    expect(selected()).toBe('Genomes');
  });
});

describe('ChatsModel', () => {
  let model: ChatsModel;

  afterEach(() => {
    model.dispose();
  });

  function source(fields: Partial<IChatsSource> = {}): IChatsSource {
    return {
      chats: () => Promise.resolve(CHATS),
      account: () => Promise.resolve(NO_ACCOUNT),
      putChat: () => Promise.resolve(),
      forgetChat: () => Promise.resolve(),
      makeDefault: () => Promise.resolve([]),
      saveAccount: () => Promise.resolve(NO_ACCOUNT),
      ...fields
    };
  }
  const refusal = new SourceError({ kind: 'refused', message: 'No.' });

  it('asks anew after each change', async () => {
    const putChat = vi.fn<IChatsSource['putChat']>(() => Promise.resolve());
    model = new ChatsModel(source({ putChat }));
    expect(await model.rename('c-1', 'New')).toBe(true);
    expect(putChat).toHaveBeenCalledWith('c-1', { name: 'New' });
    expect(model.chats).toEqual(CHATS);
    expect(model.account).toEqual(NO_ACCOUNT);
  });

  it('keeps the list and says why when a change is refused', async () => {
    const forgetChat = (): Promise<void> => Promise.reject(refusal);
    model = new ChatsModel(source({ forgetChat }));
    await model.refresh();
    expect(await model.forget('c-1')).toBe(false);
    expect(model.problem).toEqual({ kind: 'refused', message: 'No.' });
    expect(model.chats).toEqual(CHATS);
  });

  it('gives the reason for which an account was not saved', async () => {
    const saveAccount = (): Promise<never> => Promise.reject(refusal);
    model = new ChatsModel(source({ saveAccount }));
    expect(await model.saveAccount({ api_key: 'k' })).toEqual({
      problem: { kind: 'refused', message: 'No.' }
    });
  });
});
