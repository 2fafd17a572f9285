/** Deadlines, failed starts and memory that fills up as JupyterLab notifications. */

import { Notification } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { IDisposable } from '@lumino/disposable';

import type { IThresholds } from './countdown';
import {
  deadlineSentence,
  keepsAwake,
  memorySentence,
  shortName
} from './format';
import type { SandboxModel } from './model';
import { isCreatable, type ISandbox, type SandboxState } from './protocol';
import type { Ticker } from './views/ticker';
import {
  type IWarning,
  type IWarningChange,
  MemoryTracker,
  type WarningLevel,
  WarningTracker
} from './warnings';

export interface INotifierOptions {
  readonly model: SandboxModel;
  readonly ticker: Ticker;
  readonly trans: TranslationBundle;
  readonly openPanel: () => void;
  /** Whether the panel is seen, which tells of a failure itself. */
  readonly isPanelVisible: () => boolean;
  readonly openNotebook: (path: string) => void;
  /** Start a sandbox anew. */
  readonly create: (sandboxId: string) => void;
}

/**
 * Raises a notification for each deadline that comes near and for each start that fails, and takes
 * it back when it holds no longer.
 */
export class SandboxNotifier implements IDisposable {
  constructor(options: INotifierOptions) {
    this._options = options;
    options.model.changed.connect(this._look, this);
    options.ticker.ticked.connect(this._look, this);
  }

  /** The thresholds to warn of deadlines at; null for no such notifications. */
  set thresholds(thresholds: IThresholds | null) {
    this._thresholds = thresholds;
    if (thresholds === null) {
      this._apply(this._tracker.keepOnly([]), []);
    }
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    if (this._isDisposed) {
      return;
    }
    this._isDisposed = true;
    this._options.model.changed.disconnect(this._look, this);
    this._options.ticker.ticked.disconnect(this._look, this);
  }

  private _look(): void {
    const { knowledge } = this._options.model;
    // What is not fresh may be wrong by now, and a hidden page gets nothing fresh.
    if (
      document.hidden ||
      knowledge.kind !== 'sandboxes' ||
      knowledge.problem !== null
    ) {
      return;
    }
    const { sandboxes } = knowledge;
    const fresh = sandboxes.filter(one => !one.status.stale);
    this._lookForFailures(sandboxes, fresh);
    if (this._thresholds !== null) {
      this._lookForDeadlines(sandboxes, fresh, this._thresholds);
      this._lookAtMemory(sandboxes, fresh);
    }
  }

  private _lookAtMemory(
    sandboxes: readonly ISandbox[],
    fresh: readonly ISandbox[]
  ): void {
    const { model } = this._options;
    for (const id of this._memory.keepOnly(sandboxes.map(one => one.id))) {
      this._dismiss(`memory:${id}`);
    }
    for (const sandbox of fresh) {
      const resources = model.freshResources(sandbox);
      const isUp = model.read(sandbox).state === 'active';
      if (isUp && resources === null) {
        continue; // nothing new is known, so that what was said holds
      }
      const change = this._memory.observe(sandbox.id, isUp ? resources : null);
      if (change.clear) {
        this._dismiss(`memory:${sandbox.id}`);
      }
      if (change.raise) {
        this._raiseMemory(sandbox, change.raise);
      }
    }
  }

  private _raiseMemory(sandbox: ISandbox, level: WarningLevel): void {
    const memory = sandbox.resources?.memory;
    if (memory) {
      const { trans } = this._options;
      const sentence = memorySentence(memory, trans);
      const name = shortName(sandbox.name);
      this._warn(
        `memory:${sandbox.id}`,
        trans.__('%1: %2', name, sentence),
        level,
        sandbox
      );
    }
  }

  private _lookForFailures(
    sandboxes: readonly ISandbox[],
    fresh: readonly ISandbox[]
  ): void {
    for (const id of [...this._states.keys()]) {
      if (!sandboxes.some(one => one.id === id)) {
        this._states.delete(id);
        this._dismiss(`failure:${id}`);
      }
    }
    for (const sandbox of fresh) {
      const { id } = sandbox;
      const before = this._states.get(id);
      const { state } = this._options.model.read(sandbox);
      this._states.set(id, state);
      if (state !== 'failed') {
        this._dismiss(`failure:${id}`);
      } else if (
        // One that had failed before the page was opened is no news.
        before !== undefined &&
        before !== 'failed' &&
        !this._options.isPanelVisible()
      ) {
        this._raiseFailure(sandbox, before);
      }
    }
  }

  private _raiseFailure(sandbox: ISandbox, before: SandboxState): void {
    const { create, openPanel, trans } = this._options;
    const name = shortName(sandbox.name);
    const reason =
      sandbox.status.error ?? trans.__('the platform gave no reason');
    const message =
      before === 'active'
        ? trans.__('%1 has failed: %2', name, reason)
        : trans.__('%1 could not start: %2', name, reason);
    // JupyterLab cuts a long message off at its end: what to do stands on the buttons.
    const actions: Notification.IAction[] = [
      { label: trans.__('Open panel'), callback: openPanel }
    ];
    if (sandbox.canCreate && isCreatable(sandbox.status.state)) {
      actions.unshift({
        label: trans.__('Try again'),
        displayType: 'accent',
        callback: () => {
          create(sandbox.id);
        }
      });
    }
    const key = `failure:${sandbox.id}`;
    this._dismiss(key);
    const id = Notification.error(message, { autoClose: false, actions });
    this._shown.set(key, id);
  }

  private _lookForDeadlines(
    sandboxes: readonly ISandbox[],
    fresh: readonly ISandbox[],
    thresholds: IThresholds
  ): void {
    this._apply(this._tracker.keepOnly(sandboxes.map(one => one.id)), []);
    for (const sandbox of fresh) {
      const reading = this._options.model.read(sandbox);
      const change = this._tracker.observe(sandbox.id, reading, thresholds);
      this._apply(change, sandboxes);
    }
  }

  private _apply(change: IWarningChange, sandboxes: readonly ISandbox[]): void {
    for (const { kind, sandboxId } of change.clear) {
      this._dismiss(`${kind}:${sandboxId}`);
    }
    for (const warning of change.raise) {
      const sandbox = sandboxes.find(one => one.id === warning.sandboxId);
      if (sandbox) {
        this._raiseWarning(warning, sandbox);
      }
    }
  }

  private _raiseWarning(warning: IWarning, sandbox: ISandbox): void {
    const { trans } = this._options;
    const message = trans.__(
      '%1: %2',
      shortName(sandbox.name),
      deadlineSentence(
        warning.kind,
        warning.remainingMs,
        keepsAwake(sandbox.status),
        trans
      )
    );
    const key = `${warning.kind}:${warning.sandboxId}`;
    this._warn(key, message, warning.level, sandbox);
  }

  private _warn(
    key: string,
    message: string,
    level: WarningLevel,
    sandbox: ISandbox
  ): void {
    const { openNotebook, openPanel, trans } = this._options;
    this._dismiss(key);
    const path = sandbox.sessions.find(one => one.notebookPath)?.notebookPath;
    const actions: Notification.IAction[] = [
      { label: trans.__('Open panel'), callback: openPanel }
    ];
    if (path) {
      actions.unshift({
        label: trans.__('Open notebook'),
        displayType: 'accent',
        callback: () => {
          openNotebook(path);
        }
      });
    }
    const autoClose = level === 'urgent' ? false : 15_000;
    const id = Notification.warning(message, { autoClose, actions });
    this._shown.set(key, id);
  }

  private _dismiss(key: string): void {
    const id = this._shown.get(key);
    if (id !== undefined) {
      this._shown.delete(key);
      Notification.dismiss(id);
    }
  }

  private readonly _options: INotifierOptions;
  private readonly _tracker = new WarningTracker();
  private readonly _memory = new MemoryTracker();
  private readonly _shown = new Map<string, string>();
  /** The state of each sandbox when it was last looked at. */
  private readonly _states = new Map<string, SandboxState>();
  private _thresholds: IThresholds | null = null;
  private _isDisposed = false;
}
