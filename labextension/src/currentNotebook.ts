/** Which sandbox the notebook in front runs in. */

import type { ISessionContext } from '@jupyterlab/apputils';
import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import type { Kernel } from '@jupyterlab/services';
import type { IDisposable } from '@lumino/disposable';
import { type ISignal, Signal } from '@lumino/signaling';

import type { ISandbox } from './protocol';

export class CurrentNotebook implements IDisposable {
  /**
   * @param tracker - The notebooks; null in an application without any.
   */
  constructor(tracker: INotebookTracker | null) {
    this._tracker = tracker;
    tracker?.currentChanged.connect(this._onCurrentChanged, this);
    this._follow(tracker?.currentWidget ?? null);
  }

  /** Emitted when another notebook comes to the front, or its kernel changes. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  /** Whether the notebook in front runs in this sandbox. */
  isIn(sandbox: ISandbox): boolean {
    const kernelId = this.kernelId;
    return (
      kernelId !== null &&
      sandbox.sessions.some(session => session.kernelId === kernelId)
    );
  }

  /** The kernel of the notebook in front. */
  get kernelId(): string | null {
    return this._context?.session?.kernel?.id ?? null;
  }

  /** The connection to it. */
  get kernel(): Kernel.IKernelConnection | null {
    return this._context?.session?.kernel ?? null;
  }

  /** The name of the notebook in front; empty without one. */
  get name(): string {
    return this._context?.name ?? '';
  }

  /** The open notebook that a kernel belongs to. */
  find(kernelId: string): NotebookPanel | null {
    return (
      this._tracker?.find(
        panel => panel.sessionContext.session?.kernel?.id === kernelId
      ) ?? null
    );
  }

  dispose(): void {
    if (this._isDisposed) {
      return;
    }
    this._isDisposed = true;
    this._tracker?.currentChanged.disconnect(this._onCurrentChanged, this);
    this._follow(null);
    Signal.clearData(this);
  }

  private _onCurrentChanged(
    _: INotebookTracker,
    panel: NotebookPanel | null
  ): void {
    this._follow(panel);
    this._changed.emit();
  }

  private _onKernelChanged(): void {
    this._changed.emit();
  }

  private _follow(panel: NotebookPanel | null): void {
    this._context?.kernelChanged.disconnect(this._onKernelChanged, this);
    this._context = panel?.sessionContext ?? null;
    this._context?.kernelChanged.connect(this._onKernelChanged, this);
  }

  private readonly _tracker: INotebookTracker | null;
  private readonly _changed = new Signal<this, void>(this);
  private _context: ISessionContext | null = null;
  private _isDisposed = false;
}
