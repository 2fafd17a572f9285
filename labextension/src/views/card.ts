/**
 * One sandbox, as the side panel and the notebook widget show it.
 *
 * Plain DOM, so that the widget, whose code travels in the notebook's comm, needs no framework. The
 * nodes are made once and afterwards only changed: focus, selection and screen reader stay put.
 */

import {
  DEFAULT_THRESHOLDS,
  type IReading,
  isOverdue,
  type IThresholds,
  readStatus,
  statusNow
} from '../countdown';
import {
  adviceIn,
  type ITranslate,
  keepsAwake,
  remedyFirst,
  staleAdvice,
  stateHint,
  stateLabel
} from '../format';
import { ALL_FACTS, type IFactsShown } from '../preferences';
import type {
  Action,
  ICheckpoint,
  IResources,
  ISandbox,
  IStatus
} from '../protocol';
import { ActionsView } from './actions';
import { Banner, FOLD_AT_CHARACTERS, FoldedText } from './banner';
import { StateChip } from './chip';
import { announcementOf, DeadlinesView } from './deadlines';
import { make, setAttribute, setShown, setText } from './dom';
import { FactsView } from './facts';
import { MetersView } from './meters';
import { StartView } from './start';

/** What a card shows. */
export interface ICardContent {
  readonly sandbox: Pick<
    ISandbox,
    'name' | 'local' | 'chatId' | 'missing' | 'canCreate' | 'canTerminate'
  >;
  readonly status: IStatus;
  /** When the status arrived, on the monotonic clock. */
  readonly receivedMs: number;
  readonly busyAction: Action | null;
  /** The sentence with which the last action failed. */
  readonly actionError: string | null;
  /** Why no fresh status arrives in this browser. */
  readonly disconnected: string | null;
  /** Whether the notebook in front runs in this sandbox. */
  readonly current: boolean;
  readonly thresholds?: IThresholds;
  readonly facts?: IFactsShown;
  /** What the sandbox uses, which arrived with the status. */
  readonly resources?: IResources | null;
  /** The newest checkpoint, which arrived with the status. */
  readonly checkpoint?: ICheckpoint | null;
  /** Whether a notebook could get back what it had in the sandbox. */
  readonly canRestore?: boolean;
  readonly isRestoring?: boolean;
}

export interface ICardOptions {
  readonly trans: ITranslate;
  readonly onAction: (action: Action) => void;
  readonly onCopy?: () => void;
  /** Called when a notebook shall get back what it had in the sandbox. */
  readonly onRestore?: () => void;
  /** Called once for a status of which a countdown has run out: the truth must be asked for. */
  readonly onOverdue?: () => void;
  /** Whether the card tells a screen reader of deadlines; not where notifications do. */
  readonly announcesDeadlines: boolean;
}

export class SandboxCard {
  constructor(options: ICardOptions) {
    const { trans } = options;
    this._options = options;
    this._trans = trans;
    this._start = new StartView(trans);
    this._deadlines = new DeadlinesView(trans);
    this._meters = new MetersView(trans);
    this._facts = new FactsView(trans, options.onCopy ?? null);
    this._actions = new ActionsView(
      trans,
      options.onAction,
      options.onRestore ?? null
    );
    this._stale = new Banner(trans, 'warning', 'stale');
    this._error = new Banner(trans, 'failed', 'error');
    this._missing = new Banner(trans, 'info', 'missing');
    this._actionError = new Banner(trans, 'failed', 'error', 'alert');
    setText(this._currentBadge, trans.__('This notebook'));
    setText(this._localBadge, trans.__('Local'));
    const badges = make('div', 'jp-ivy-badges', {}, [
      this._chip.node,
      this._currentBadge,
      this._localBadge
    ]);
    this.node = make('div', 'jp-ivy-card', { role: 'group' }, [
      make('div', 'jp-ivy-card-header', {}, [this._name, badges]),
      this._stale.node,
      this._error.node,
      this._missing.node,
      this._start.node,
      this._deadlines.node,
      this._hint,
      this._unknown,
      this._meters.node,
      this._facts.node,
      this.extra,
      this._actionError.node,
      this._actions.node,
      this._live
    ]);
  }

  readonly node: HTMLDivElement;

  /** A place for what only one of the views shows, above the buttons. */
  readonly extra = make('div', 'jp-ivy-extra');

  /** Show other content. */
  update(content: ICardContent, nowMs: number): void {
    if (content.status !== this._content?.status) {
      this._askedWhenOverdue = false;
    }
    this._content = content;
    const { sandbox } = content;
    setText(this._name, sandbox.name);
    setAttribute(this._name, 'title', sandbox.name);
    setAttribute(this.node, 'aria-label', sandbox.name);
    this.node.classList.toggle('jp-mod-current', content.current);
    setShown(this._currentBadge, content.current);
    setShown(this._localBadge, sandbox.local);
    this._missing.show(
      sandbox.missing === null ? null : adviceIn(sandbox.missing)
    );
    const { actionError } = content;
    this._actionError.show(actionError === null ? null : adviceIn(actionError));
    this._showUnknown(content.status.unknown);
    this.tick(nowMs);
  }

  /** Let the time go on. */
  tick(nowMs: number): void {
    const content = this._content;
    if (!content) {
      return;
    }
    const trans = this._trans;
    const reading = readStatus(content.status, nowMs - content.receivedMs);
    const status = statusNow(content.status, reading);
    const thresholds = content.thresholds ?? DEFAULT_THRESHOLDS;
    const stale = status.stale || content.disconnected !== null;
    const label = stateLabel(status, trans);
    this._chip.update(reading.state, label, stale);
    this._start.update(status, reading, nowMs);
    this._deadlines.update(status, reading, thresholds, stale);
    this._meters.update(
      reading.state === 'active' ? (content.resources ?? null) : null,
      nowMs - content.receivedMs
    );
    const where = content.sandbox;
    this._facts.update(status, reading, where, content.facts ?? ALL_FACTS);
    this._facts.showCheckpoint(
      content.checkpoint ?? null,
      nowMs - content.receivedMs
    );
    this._actions.update(status, {
      canCreate: where.canCreate,
      canTerminate: where.canTerminate,
      busyAction: content.busyAction,
      canRestore: content.canRestore ?? false,
      isRestoring: content.isRestoring ?? false
    });
    const hint =
      where.missing === null ? stateHint(status, where.canCreate, trans) : '';
    // What to do about a failure comes before what the platform says of it.
    this._error.show(
      status.error === null ? null : { remedy: hint, cause: status.error }
    );
    setShown(this._hint, hint !== '' && status.error === null);
    setText(this._hint, hint);
    const staleReason = content.disconnected ?? status.staleReason;
    this._stale.show(
      stale ? staleAdvice({ ...status, staleReason }, reading, trans) : null
    );
    this._announce(label, status, reading, thresholds, stale);
    if (!this._askedWhenOverdue && isOverdue(reading)) {
      this._askedWhenOverdue = true;
      this._options.onOverdue?.();
    }
  }

  /** Put the keyboard focus on an action's button. */
  focusAction(action: Action): void {
    this._actions.focus(action);
  }

  private _showUnknown(sentences: readonly string[]): void {
    while (this._unknownTexts.length < sentences.length) {
      const text = new FoldedText(this._trans, 'jp-ivy-unknown-sentence');
      this._unknownTexts.push(text);
      this._unknown.append(text.node);
    }
    this._unknownTexts.forEach((text, position) => {
      const sentence = sentences[position] ?? '';
      // The end of a long one is folded away, and what helps stands there.
      text.show(
        sentence.length > FOLD_AT_CHARACTERS
          ? remedyFirst(adviceIn(sentence))
          : sentence
      );
    });
    setShown(this._unknown, sentences.length > 0);
  }

  /** Tell a screen reader what has changed, and nothing that merely counts. */
  private _announce(
    label: string,
    status: IStatus,
    reading: IReading,
    thresholds: IThresholds,
    stale: boolean
  ): void {
    const name = this._content?.sandbox.name ?? '';
    const deadline = this._options.announcesDeadlines
      ? announcementOf(reading, thresholds, keepsAwake(status), this._trans)
      : null;
    if (this._announcedLabel === null) {
      // The first content is there to be read, it is no change.
      this._announcedLabel = label;
      this._announcedDeadline = deadline?.key ?? null;
      return;
    }
    if (label !== this._announcedLabel) {
      this._announcedLabel = label;
      setText(this._live, `${name}: ${label}`);
    } else if (deadline && !stale && deadline.key !== this._announcedDeadline) {
      setText(this._live, `${name}: ${deadline.sentence}`);
    }
    this._announcedDeadline = deadline?.key ?? null;
  }

  private readonly _options: ICardOptions;
  private readonly _trans: ITranslate;
  private readonly _name = make('span', 'jp-ivy-card-name', {
    role: 'heading',
    'aria-level': '3'
  });
  private readonly _chip = new StateChip();
  private readonly _currentBadge = make('span', 'jp-ivy-badge jp-mod-current');
  private readonly _localBadge = make('span', 'jp-ivy-badge');
  private readonly _stale: Banner;
  private readonly _error: Banner;
  private readonly _missing: Banner;
  private readonly _actionError: Banner;
  private readonly _start: StartView;
  private readonly _deadlines: DeadlinesView;
  private readonly _hint = make('div', 'jp-ivy-hint');
  private readonly _unknown = make('div', 'jp-ivy-unknown');
  private readonly _unknownTexts: FoldedText[] = [];
  private readonly _meters: MetersView;
  private readonly _facts: FactsView;
  private readonly _actions: ActionsView;
  private readonly _live = make('div', 'jp-ivy-sr-only', {
    'aria-live': 'polite'
  });
  private _content: ICardContent | null = null;
  private _askedWhenOverdue = false;
  private _announcedLabel: string | null = null;
  private _announcedDeadline: string | null = null;
}
