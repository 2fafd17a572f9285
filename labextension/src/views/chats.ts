/** The chats that this person has used, to be picked from by mouse or keyboard. */

import { formatAgo, type ITranslate } from '../format';
import type { IChat } from '../protocol';
import { make, setAttribute, setShown, setText } from './dom';

export interface IChatActions {
  /** Let the current notebook use a chat. */
  readonly use: (chat: IChat) => void;
  readonly useAnother: () => void;
  readonly rename: (chat: IChat) => void;
  readonly makeDefault: (chat: IChat) => void;
  readonly forget: (chat: IChat) => void;
}

export interface IChatsContent {
  readonly chats: readonly IChat[];
  readonly isKnown: boolean;
  /** Why the list may be out of date, or what did not work. */
  readonly problem: string | null;
  /** What the person has to know of the last change. */
  readonly notes: readonly string[];
  /** The chat of the notebook in front. */
  readonly currentChatId: string | null;
  /** Whether there is a notebook in front that can use another chat. */
  readonly canUse: boolean;
  /** The name of the chat that a notebook is being switched to. */
  readonly switchingTo: string | null;
}

/** The chats that match what was typed: every word is in the name, the id or the campaign. */
export function matchingChats(
  chats: readonly IChat[],
  typed: string
): readonly IChat[] {
  const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
  return chats.filter(chat => {
    const text =
      `${chat.name} ${chat.chatId} ${chat.campaignId ?? ''}`.toLowerCase();
    return words.every(word => text.includes(word));
  });
}

const OPTION_ID = 'jp-ivy-chat-option-';

export class ChatsView {
  constructor(trans: ITranslate, actions: IChatActions) {
    this._trans = trans;
    this._actions = actions;
    const title = make('h3', 'jp-ivy-section-title', { id: 'jp-ivy-chats' }, [
      trans.__('Chats')
    ]);
    this._filter = make('input', 'jp-ivy-input', {
      type: 'search',
      autocomplete: 'off',
      spellcheck: 'false',
      placeholder: trans.__('Name, id or campaign'),
      'aria-label': trans.__('Filter the chats'),
      'aria-controls': 'jp-ivy-chat-list'
    });
    this._list = make('div', 'jp-ivy-chat-list', {
      id: 'jp-ivy-chat-list',
      role: 'listbox',
      tabindex: '0',
      'aria-labelledby': 'jp-ivy-chats'
    });
    const act = (action: (chat: IChat) => void) => (): void => {
      const chat = this._selected();
      if (chat) {
        action(chat);
      }
    };
    this._another = this._button(trans.__('Another chat…'), actions.useAnother);
    this._use = this._button(trans.__('Use in this notebook'), () => {
      this._useSelected();
    });
    this._use.classList.add('jp-mod-primary');
    this._ofSelected = make(
      'div',
      'jp-ivy-actions',
      { role: 'group', 'aria-label': trans.__('Selected chat') },
      [
        this._use,
        this._button(trans.__('Rename…'), act(actions.rename)),
        (this._default = this._button(
          trans.__('Make default'),
          act(actions.makeDefault)
        )),
        this._button(trans.__('Forget…'), act(actions.forget))
      ]
    );
    this.node = make(
      'section',
      'jp-ivy-chats',
      { 'aria-labelledby': 'jp-ivy-chats' },
      [
        title,
        this._problem,
        this._filter,
        this._list,
        this._nothing,
        this._ofSelected,
        make('div', 'jp-ivy-actions', {}, [this._another]),
        this._progress
      ]
    );
    this._filter.addEventListener('input', () => {
      this._draw();
    });
    this._filter.addEventListener('keydown', event => {
      this._onKey(event);
    });
    this._list.addEventListener('keydown', event => {
      this._onKey(event);
    });
    this._list.addEventListener('click', event => {
      this._selectAt(event);
    });
    this._list.addEventListener('dblclick', event => {
      if (this._selectAt(event)) {
        this._useSelected();
      }
    });
  }

  readonly node: HTMLElement;

  update(content: IChatsContent): void {
    const before = this._content;
    this._content = content;
    if (before?.currentChatId !== content.currentChatId && !this._hasFocus) {
      // Another notebook is in front: its chat is the one to look at.
      this._selectedId = content.currentChatId;
    }
    this._draw();
  }

  /** Put the keyboard focus where a chat can be looked for. */
  focus(): void {
    this.node.scrollIntoView({ block: 'nearest' });
    const places = [this._filter, this._list, this._another];
    places.find(one => !one.hidden)?.focus();
  }

  private get _hasFocus(): boolean {
    return this.node.contains(document.activeElement);
  }

  private _draw(): void {
    const content = this._content;
    if (!content) {
      return;
    }
    const trans = this._trans;
    const { chats } = content;
    this._shown = matchingChats(chats, this._filter.value);
    if (!this._shown.some(one => one.chatId === this._selectedId)) {
      this._selectedId = this._shown[0]?.chatId ?? null;
    }
    const drawn = JSON.stringify([this._shown, content.currentChatId]);
    if (drawn !== this._drawn) {
      this._drawn = drawn;
      this._list.replaceChildren(
        ...this._shown.map((chat, position) => this._option(chat, position))
      );
    }
    this._markSelected();
    setShown(this._filter, chats.length > 1);
    setShown(this._list, this._shown.length > 0);
    setShown(this._nothing, content.isKnown && this._shown.length === 0);
    setText(
      this._nothing,
      chats.length === 0
        ? trans.__('A chat is listed here once it has been used.')
        : trans.__('No chat matches.')
    );
    setShown(this._problem, content.problem !== null);
    setText(this._problem, content.problem ?? '');
    const selected = this._selected();
    setShown(this._ofSelected, selected !== null);
    const isBusy = content.switchingTo !== null;
    setAttribute(this._use, 'aria-disabled', this._canUse() ? null : 'true');
    this._use.classList.toggle('jp-mod-busy', isBusy);
    setAttribute(
      this._use,
      'title',
      content.canUse
        ? null
        : trans.__('Open a Python notebook first: this lets it use the chat.')
    );
    setShown(this._default, selected !== null && !selected.isDefault);
    setText(
      this._progress,
      content.switchingTo === null
        ? content.notes.join(' ')
        : trans.__('Switching to %1…', content.switchingTo)
    );
  }

  private _selected(): IChat | null {
    return this._shown.find(one => one.chatId === this._selectedId) ?? null;
  }

  private _canUse(): boolean {
    const content = this._content;
    const selected = this._selected();
    return (
      content !== null &&
      content.canUse &&
      content.switchingTo === null &&
      selected !== null &&
      selected.chatId !== content.currentChatId
    );
  }

  private _useSelected(): void {
    const chat = this._selected();
    if (chat && this._canUse()) {
      this._actions.use(chat);
    }
  }

  private _onKey(event: KeyboardEvent): void {
    const last = this._shown.length - 1;
    const now = this._shown.findIndex(one => one.chatId === this._selectedId);
    const inList = event.currentTarget === this._list;
    let next: number;
    switch (event.key) {
      case 'ArrowDown':
        next = Math.min(last, now + 1);
        break;
      case 'ArrowUp':
        next = Math.max(0, now - 1);
        break;
      case 'Home':
      case 'End':
        if (!inList) {
          return; // there it moves the cursor
        }
        next = event.key === 'Home' ? 0 : last;
        break;
      case 'Enter':
        next = now;
        this._useSelected();
        break;
      case 'Escape':
        if (this._filter.value === '') {
          return;
        }
        this._filter.value = '';
        next = -1;
        this._draw();
        break;
      default:
        if (inList && !this._filter.hidden && isTyped(event)) {
          // The letter itself goes into the filter, because the focus is there by then.
          this._filter.focus();
        }
        event.stopPropagation();
        return;
    }
    event.preventDefault();
    event.stopPropagation();
    const chat = this._shown[next];
    if (chat) {
      this._selectedId = chat.chatId;
      this._draw();
      this._list.children.item(next)?.scrollIntoView({ block: 'nearest' });
    }
  }

  private _selectAt(event: Event): boolean {
    const option = (event.target as Element).closest('[role=option]');
    const position = option ? [...this._list.children].indexOf(option) : -1;
    const chat = this._shown[position];
    if (!chat) {
      return false;
    }
    this._selectedId = chat.chatId;
    this._draw();
    return true;
  }

  private _markSelected(): void {
    let active: string | null = null;
    this._shown.forEach((chat, position) => {
      const option = this._list.children.item(position);
      const isSelected = chat.chatId === this._selectedId;
      option?.setAttribute('aria-selected', String(isSelected));
      if (isSelected) {
        active = `${OPTION_ID}${position}`;
      }
    });
    setAttribute(this._list, 'aria-activedescendant', active);
  }

  private _option(chat: IChat, position: number): HTMLElement {
    const trans = this._trans;
    const badge = (label: string, className = ''): HTMLElement =>
      make('span', `jp-ivy-badge ${className}`.trim(), {}, [label]);
    const badges: HTMLElement[] = [];
    if (chat.chatId === this._content?.currentChatId) {
      badges.push(badge(trans.__('This notebook'), 'jp-mod-current'));
    }
    if (chat.isDefault) {
      badges.push(badge(trans.__('Default')));
    }
    if (chat.isLocal) {
      badges.push(badge(trans.__('Local')));
    }
    const facts = [];
    if (chat.name !== chat.chatId) {
      facts.push(chat.chatId);
    }
    if (chat.campaignId !== null) {
      facts.push(trans.__('campaign %1', chat.campaignId));
    }
    if (chat.lastUsedMs !== null) {
      const ago = formatAgo(Date.now() - chat.lastUsedMs, trans);
      facts.push(trans.__('used %1', ago));
    }
    return make(
      'div',
      'jp-ivy-chat',
      {
        id: `${OPTION_ID}${position}`,
        role: 'option',
        'aria-selected': 'false',
        title: chat.chatId
      },
      [
        make('div', 'jp-ivy-chat-head', {}, [
          make('span', 'jp-ivy-chat-name', {}, [chat.name]),
          ...badges
        ]),
        make('div', 'jp-ivy-chat-facts', {}, [facts.join(' · ')])
      ]
    );
  }

  private _button(label: string, onClick: () => void): HTMLButtonElement {
    const node = make('button', 'jp-ivy-button', { type: 'button' }, [label]);
    node.addEventListener('click', () => {
      if (node.getAttribute('aria-disabled') !== 'true') {
        onClick();
      }
    });
    return node;
  }

  private readonly _trans: ITranslate;
  private readonly _actions: IChatActions;
  private readonly _filter: HTMLInputElement;
  private readonly _list: HTMLDivElement;
  private readonly _another: HTMLButtonElement;
  private readonly _use: HTMLButtonElement;
  private readonly _default: HTMLButtonElement;
  private readonly _ofSelected: HTMLDivElement;
  private readonly _nothing = make('p', 'jp-ivy-form-hint');
  private readonly _problem = make('div', 'jp-ivy-form-error', {
    role: 'alert'
  });
  private readonly _progress = make('div', 'jp-ivy-form-hint', {
    role: 'status'
  });
  private _content: IChatsContent | null = null;
  private _shown: readonly IChat[] = [];
  private _selectedId: string | null = null;
  private _drawn = '';
}

function isTyped(event: KeyboardEvent): boolean {
  return (
    event.key.length === 1 && !event.ctrlKey && !event.metaKey && !event.altKey
  );
}
