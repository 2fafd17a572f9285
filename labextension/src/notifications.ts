/** Deadlines as JupyterLab notifications. */

import { Notification } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { IDisposable } from '@lumino/disposable';

import type { IThresholds } from './countdown';
import { deadlineSentence } from './format';
import type { SandboxModel } from './model';
import type { ISandbox } from './protocol';
import type { Ticker } from './views/ticker';
import { type IWarning, type IWarningChange, WarningTracker } from './warnings';

export interface INotifierOptions {
  readonly model: SandboxModel;
  readonly ticker: Ticker;
  readonly trans: TranslationBundle;
  readonly openPanel: () => void;
  readonly openNotebook: (path: string) => void;
}

/** Raises a notification for each deadline that comes near, and takes it back when it moves. */
export class DeadlineNotifier implements IDisposable {
  constructor(options: INotifierOptions) {
    this._options = options;
    options.model.changed.connect(this._look, this);
    options.ticker.ticked.connect(this._look, this);
  }

  /** The thresholds to warn at; null for no notifications. */
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
      this._thresholds === null ||
      document.hidden ||
      knowledge.kind !== 'sandboxes' ||
      knowledge.problem !== null
    ) {
      return;
    }
    const { sandboxes } = knowledge;
    this._apply(this._tracker.keepOnly(sandboxes.map(one => one.id)), []);
    for (const sandbox of sandboxes) {
      if (!sandbox.status.stale) {
        const reading = this._options.model.read(sandbox);
        const change = this._tracker.observe(
          sandbox.id,
          reading,
          this._thresholds
        );
        this._apply(change, sandboxes);
      }
    }
  }

  private _apply(change: IWarningChange, sandboxes: readonly ISandbox[]): void {
    for (const { kind, sandboxId } of change.clear) {
      this._dismiss(`${kind}:${sandboxId}`);
    }
    for (const warning of change.raise) {
      const sandbox = sandboxes.find(one => one.id === warning.sandboxId);
      if (sandbox) {
        this._raise(warning, sandbox);
      }
    }
  }

  private _raise(warning: IWarning, sandbox: ISandbox): void {
    const { openNotebook, openPanel, trans } = this._options;
    const key = `${warning.kind}:${warning.sandboxId}`;
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
    const message = trans.__(
      '%1: %2',
      sandbox.name,
      deadlineSentence(warning.kind, warning.remainingMs, trans)
    );
    const autoClose = warning.level === 'urgent' ? false : 15_000;
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
  private readonly _shown = new Map<string, string>();
  private _thresholds: IThresholds | null = null;
  private _isDisposed = false;
}
