/** The side panel: a card for each sandbox, the one of the notebook in front first. */

import type { TranslationBundle } from '@jupyterlab/translation';
import type { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';

import type { ChatsModel } from '../chatsModel';
import { adviceIn } from '../format';
import type { SandboxModel } from '../model';
import type { IPreferences } from '../preferences';
import { type Action, isOffer, type ISandbox } from '../protocol';
import { problemSentence } from '../source';
import { AccountForm } from './account';
import { RESTORE } from './actions';
import { Banner } from './banner';
import { SandboxCard } from './card';
import { ChatsView, type IChatActions } from './chats';
import { keepFocus, make, makeIcon, setShown, setText } from './dom';
import { SessionsView } from './sessions';
import type { Ticker } from './ticker';
import { type LocalSandbox, WelcomeView } from './welcome';

export const PANEL_ID = 'ivy-sandbox-panel';

/** Showing the panel and activating it are one act of the user, which asks once. */
const ASK_AGAIN_AFTER_MS = 1000;

/** What the panel asks of the application. */
export interface IPanelActions {
  readonly act: (id: string, action: Action | typeof RESTORE) => void;
  readonly copyId: (id: string) => void;
  readonly copyText: (text: string) => void;
  readonly openNotebook: (path: string) => void;
  readonly newNotebook: () => void;
  readonly restartSession: (id: string, kernelId: string) => void;
  readonly chats: IChatActions;
}

export interface IPanelOptions {
  readonly model: SandboxModel;
  readonly ticker: Ticker;
  readonly trans: TranslationBundle;
  readonly actions: IPanelActions;
  /** Whether the notebook in front runs in this sandbox. */
  readonly isCurrent: (sandbox: ISandbox) => boolean;
  /** Whether an open notebook could get back what it had in this sandbox, or is about to. */
  readonly restoring: (sandbox: ISandbox) => 'possible' | 'busy' | null;
  readonly chats: ChatsModel;
  /** Whether the notebook in front can use another chat. */
  readonly canUseChat: () => boolean;
  /** The name of the chat that the notebook in front is being switched to. */
  readonly switchingTo: () => string | null;
}

interface IEntry {
  readonly card: SandboxCard;
  readonly sessions: SessionsView;
}

export class SandboxPanel extends Widget {
  constructor(options: IPanelOptions, preferences: IPreferences) {
    super();
    this._options = options;
    this._preferences = preferences;
    const { trans, model, ticker, actions } = options;
    this.id = PANEL_ID;
    this.addClass('jp-ivy-panel');
    this._problem = new Banner(trans, 'warning', 'stale');
    const label = trans.__('Ask for a fresh status');
    const refresh = make(
      'button',
      'jp-ivy-icon-button',
      { type: 'button', title: label, 'aria-label': label },
      [makeIcon('refresh')]
    );
    refresh.addEventListener('click', () => {
      void model.refresh(true);
      this._askedFor = null;
      this._askForChats();
    });
    const account = make(
      'button',
      'jp-ivy-link jp-ivy-account-link',
      {
        type: 'button',
        title: trans.__('Key, chat and campaign that notebooks use')
      },
      [trans.__('Account…')]
    );
    account.addEventListener('click', () => {
      this.openAccount();
      this._isActivated = true;
      this._focusAsked();
    });
    const header = make('div', 'jp-ivy-panel-header', {}, [
      make('h2', 'jp-ivy-panel-title', {}, [trans.__('Ivy Sandbox')]),
      account,
      refresh
    ]);
    this._account = this._makeAccountForm('jp-ivy-account', () => {
      setShown(this._accountSection, false);
      account.focus();
    });
    this._firstAccount = this._makeAccountForm('jp-ivy-first-account');
    this._accountSection.append(
      make('h3', 'jp-ivy-section-title', {}, [trans.__('Account')]),
      this._account.node
    );
    setShown(this._accountSection, false);
    setShown(this._saved, false);
    this._chats = new ChatsView(trans, actions.chats);
    this._welcome = new WelcomeView(
      trans,
      {
        newNotebook: actions.newNotebook,
        copy: actions.copyText,
        useLocal: () => {
          if (this._offeredId !== null) {
            actions.act(this._offeredId, 'create');
          }
        }
      },
      this._firstAccount.node
    );
    this.node.append(
      header,
      make('div', 'jp-ivy-panel-body', {}, [
        this._saved,
        this._accountSection,
        this._problem.node,
        this._placeholder,
        this._list,
        this._welcome.node,
        this._chats.node
      ])
    );
    this.node.tabIndex = -1;
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', trans.__('Ivy Sandbox'));
    model.changed.connect(this.refresh, this);
    options.chats.changed.connect(this._drawChats, this);
    ticker.ticked.connect(this._onTick, this);
    this.refresh();
  }

  set preferences(preferences: IPreferences) {
    this._preferences = preferences;
    this.refresh();
  }

  /** Show the form for the account; the panel gives it the focus when it is activated. */
  openAccount(): void {
    setShown(this._saved, false);
    if (!this._welcome.hasAccountForm) {
      this._account.clear();
      setShown(this._accountSection, true);
    }
    this._askedFocus = 'account';
    this._isActivated = false;
  }

  /** Let a chat be looked for by keyboard, once the panel is activated and the chats are known. */
  openChats(): void {
    this._askedFocus = 'chats';
    this._isActivated = false;
  }

  /** Draw what the model knows. */
  refresh(): void {
    this._drawSandboxes();
    this._drawChats();
    this._askForChats();
  }

  private _drawSandboxes(): void {
    const { model, trans } = this._options;
    const { knowledge } = model;
    const now = performance.now();
    if (knowledge.kind !== 'sandboxes') {
      this._drawCards([]);
      const nothing = knowledge.kind === 'nothing' ? knowledge.problem : null;
      this._problem.show(nothing && adviceIn(problemSentence(nothing, trans)));
      setText(this._placeholder, trans.__('Asking for the sandboxes…'));
      setShown(this._placeholder, knowledge.kind === 'loading');
      this._offeredId = null;
      this._welcome.update(null);
      return;
    }
    const offered = this._offered();
    // What is only offered is no sandbox in use.
    const sandboxes = this._sorted(
      knowledge.sandboxes.filter(one => one !== offered)
    );
    this._problem.show(
      knowledge.problem && sandboxes.length === 0
        ? adviceIn(problemSentence(knowledge.problem, trans))
        : null
    );
    setText(this._placeholder, trans.__('No sandbox is in use.'));
    setShown(this._placeholder, sandboxes.length === 0);
    this._drawCards(sandboxes);
    for (const sandbox of sandboxes) {
      const entry = this._entries.get(sandbox.id);
      const failure = model.actionProblem(sandbox.id);
      const restoring = this._options.restoring(sandbox);
      entry?.sessions.update(sandbox.sessions);
      entry?.card.update(
        {
          sandbox,
          status: sandbox.status,
          receivedMs: knowledge.receivedMs,
          busyAction: model.busyAction(sandbox.id),
          actionError: failure && problemSentence(failure, trans),
          disconnected:
            knowledge.problem && problemSentence(knowledge.problem, trans),
          current: this._options.isCurrent(sandbox),
          thresholds: this._preferences.thresholds,
          facts: this._preferences.facts,
          resources: sandbox.resources,
          checkpoint: sandbox.checkpoint,
          canRestore: restoring === 'possible',
          isRestoring: restoring === 'busy'
        },
        now
      );
    }
    const accepted =
      this._welcome.hasFocusOnOffer && offered === null
        ? this._offeredId
        : null;
    this._offeredId = offered?.id ?? null;
    this._welcome.update(this._localSandbox(offered));
    if (accepted !== null) {
      // The button that had the keyboard focus has become the one on the card.
      this._entries.get(accepted)?.card.focusAction('create');
    }
  }

  override dispose(): void {
    if (this.isDisposed) {
      return;
    }
    this._options.model.changed.disconnect(this.refresh, this);
    this._options.chats.changed.disconnect(this._drawChats, this);
    this._options.ticker.ticked.disconnect(this._onTick, this);
    super.dispose();
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this._askedFor = null;
    this._askForChats();
    this._onTick();
  }

  protected override onActivateRequest(): void {
    this.node.focus();
    if (performance.now() - this._askedMs > ASK_AGAIN_AFTER_MS) {
      // It was in sight already, and the list may have been changed elsewhere.
      this._askedFor = null;
      this._askForChats();
    }
    this._isActivated = true;
    this._focusAsked();
  }

  /** Put the keyboard focus where it was asked for, as soon as that can take it. */
  private _focusAsked(): void {
    const asked = this._askedFocus;
    if (asked === null || !this.isVisible || !this._isActivated) {
      return;
    }
    if (asked === 'account') {
      (this._welcome.hasAccountForm
        ? this._firstAccount
        : this._account
      ).focus();
    } else if (this._options.chats.isKnown) {
      this._chats.focus();
    } else {
      return;
    }
    // What cannot take the focus yet is asked again with the next news.
    const { activeElement } = document;
    if (activeElement !== this.node && this.node.contains(activeElement)) {
      this._askedFocus = null;
      keepFocus(activeElement as HTMLElement);
    }
  }

  private _onTick(): void {
    if (this.isVisible) {
      const now = performance.now();
      for (const { card } of this._entries.values()) {
        card.tick(now);
      }
    }
  }

  private _drawChats(): void {
    const { chats, model, trans } = this._options;
    const current = model.sandboxes.find(one => this._options.isCurrent(one));
    this._account.update(chats.account);
    this._firstAccount.update(chats.account);
    this._chats.update({
      chats: chats.chats,
      isKnown: chats.isKnown,
      problem: chats.problem && problemSentence(chats.problem, trans),
      notes: chats.notes,
      currentChatId: current?.chatId ?? null,
      canUse: this._options.canUseChat(),
      switchingTo: this._options.switchingTo()
    });
    // Without an account and without a chat there is nothing to pick from.
    setShown(
      this._chats.node,
      chats.isKnown && (chats.chats.length > 0 || !this._welcome.hasAccountForm)
    );
  }

  /** Ask for the chats when the panel is seen, and what is in use has changed. */
  private _askForChats(): void {
    if (!this.isVisible) {
      return;
    }
    const inUse = JSON.stringify(
      this._options.model.sandboxes.map(one => [
        one.chatId,
        one.isDefault,
        one.hasAccount,
        one.sessions.length
      ])
    );
    if (inUse !== this._askedFor) {
      this._askedFor = inUse;
      this._askedMs = performance.now();
      void this._options.chats.refresh().then(isDone => {
        if (!isDone) {
          // Asked again with the next news.
          this._askedFor = null;
        }
      });
    }
  }

  private _makeAccountForm(
    idPrefix: string,
    onCancel?: () => void
  ): AccountForm {
    const { chats, model, trans } = this._options;
    return new AccountForm({
      trans,
      idPrefix,
      save: input => chats.saveAccount(input),
      onSaved: account => {
        const where = account.configFile;
        const saved =
          where === null ? trans.__('Saved.') : trans.__('Saved in %1.', where);
        setText(
          this._saved,
          [account.checked, saved, ...account.notes].filter(Boolean).join(' ')
        );
        setShown(this._saved, true);
        setShown(this._accountSection, false);
        // The form that had the focus is gone.
        this.node.focus();
        void model.refresh(true);
      },
      ...(onCancel ? { onCancel } : {})
    });
  }

  /** The local sandbox while it is offered: an attempt, also one that failed, is shown as a card. */
  private _offered(): ISandbox | null {
    const { model } = this._options;
    const found = model.sandboxes.find(isOffer);
    return found &&
      model.busyAction(found.id) === null &&
      model.actionProblem(found.id) === null
      ? found
      : null;
  }

  /** What to say of the local sandbox; null when somebody uses a sandbox, and needs no welcome. */
  private _localSandbox(offered: ISandbox | null): LocalSandbox | null {
    const { sandboxes } = this._options.model;
    if (sandboxes.some(one => one.sessions.length > 0)) {
      return null;
    }
    if (offered) {
      return 'offered';
    }
    const local = sandboxes.find(one => one.local);
    if (local && local.status.state !== 'none') {
      return 'there';
    }
    return local || sandboxes.some(one => one.hasAccount)
      ? 'unmentioned'
      : 'explained';
  }

  private _sorted(sandboxes: readonly ISandbox[]): ISandbox[] {
    const rank = (one: ISandbox): number =>
      this._options.isCurrent(one) ? 0 : one.isDefault ? 1 : 2;
    // A stable sort: within a rank the server's order stays.
    return [...sandboxes].sort((a, b) => rank(a) - rank(b));
  }

  /** Make and drop cards, and put them in order without moving those in place. */
  private _drawCards(sandboxes: readonly ISandbox[]): void {
    for (const [id, { card }] of [...this._entries]) {
      if (!sandboxes.some(one => one.id === id)) {
        card.node.remove();
        this._entries.delete(id);
      }
    }
    sandboxes.forEach(({ id }, position) => {
      let entry = this._entries.get(id);
      if (!entry) {
        entry = this._makeEntry(id);
        this._entries.set(id, entry);
      }
      const there = this._list.children.item(position);
      if (there !== entry.card.node) {
        this._list.insertBefore(entry.card.node, there);
      }
    });
  }

  private _makeEntry(id: string): IEntry {
    const { actions, model, trans } = this._options;
    const card = new SandboxCard({
      trans,
      announcesDeadlines: !this._preferences.notifies,
      onAction: action => {
        actions.act(id, action);
      },
      onCopy: () => {
        actions.copyId(id);
      },
      onRestore: () => {
        actions.act(id, RESTORE);
      },
      onOverdue: () => {
        void model.refresh();
      }
    });
    const sessions = new SessionsView(trans, {
      open: actions.openNotebook,
      restart: kernelId => {
        actions.restartSession(id, kernelId);
      }
    });
    card.extra.append(sessions.node);
    return { card, sessions };
  }

  private readonly _options: IPanelOptions;
  private readonly _entries = new Map<string, IEntry>();
  private readonly _problem: Banner;
  private readonly _placeholder = make('p', 'jp-ivy-placeholder');
  private readonly _list = make('div', 'jp-ivy-cards');
  private readonly _welcome: WelcomeView;
  private readonly _chats: ChatsView;
  private readonly _account: AccountForm;
  /** The form in the welcome of somebody who has no account yet. */
  private readonly _firstAccount: AccountForm;
  private readonly _accountSection = make('section', 'jp-ivy-account');
  private readonly _saved = make('div', 'jp-ivy-saved', { role: 'status' });
  /** Where the keyboard focus is to go. */
  private _askedFocus: 'account' | 'chats' | null = null;
  /** Whether the panel has been activated since then, which takes the focus itself. */
  private _isActivated = false;
  /** What was in use when the chats were asked for. */
  private _askedFor: string | null = null;
  private _askedMs = 0;
  private _offeredId: string | null = null;
  private _preferences: IPreferences;
}
