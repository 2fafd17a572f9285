/** One clock for all views: a signal a second while the page is visible. */

import type { IDisposable } from '@lumino/disposable';
import { type ISignal, Signal } from '@lumino/signaling';

const TICK_MS = 1000;

export class Ticker implements IDisposable {
  constructor() {
    document.addEventListener('visibilitychange', this._onVisibility);
    this._onVisibility();
  }

  get ticked(): ISignal<this, void> {
    return this._ticked;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    if (this._isDisposed) {
      return;
    }
    this._isDisposed = true;
    document.removeEventListener('visibilitychange', this._onVisibility);
    window.clearInterval(this._timer);
    Signal.clearData(this);
  }

  private readonly _onVisibility = (): void => {
    window.clearInterval(this._timer);
    if (!document.hidden) {
      this._ticked.emit();
      this._timer = window.setInterval(() => {
        this._ticked.emit();
      }, TICK_MS);
    }
  };

  private readonly _ticked = new Signal<this, void>(this);
  private _timer = 0;
  private _isDisposed = false;
}
