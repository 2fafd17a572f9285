/** Brings the outputs that came while nobody looked into the cells that said them. */

import type { CodeCell } from '@jupyterlab/cells';
import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import type { IDisposable } from '@lumino/disposable';

import {
  type INotebookOutputsOptions,
  NotebookOutputs
} from './notebookOutputs';

export interface IOutputsLoaderOptions extends INotebookOutputsOptions {
  /** The notebooks; null in an application without any. */
  readonly notebooks: INotebookTracker | null;
}

/** Looks after all notebooks that are open. */
export class OutputsLoader implements IDisposable {
  constructor(options: IOutputsLoaderOptions) {
    this._options = options;
    options.notebooks?.widgetAdded.connect(this._onAdded, this);
    options.notebooks?.forEach(panel => {
      this._onAdded(null, panel);
    });
    document.addEventListener('visibilitychange', this._onVisibility);
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  /** Await the outputs of cells that have been handed over to the sandbox. */
  expect(panel: NotebookPanel, cells: readonly CodeCell[]): void {
    this._followers.get(panel)?.expect(cells);
  }

  dispose(): void {
    if (this._isDisposed) {
      return;
    }
    this._isDisposed = true;
    this._options.notebooks?.widgetAdded.disconnect(this._onAdded, this);
    document.removeEventListener('visibilitychange', this._onVisibility);
    for (const one of [...this._followers.values()]) {
      one.dispose();
    }
  }

  private _onAdded(_: unknown, panel: NotebookPanel): void {
    if (panel.isDisposed || this._followers.has(panel)) {
      return;
    }
    this._followers.set(panel, new NotebookOutputs(panel, this._options));
    panel.disposed.connect(() => {
      this._followers.get(panel)?.dispose();
      this._followers.delete(panel);
    });
  }

  private readonly _onVisibility = (): void => {
    if (!document.hidden) {
      for (const one of this._followers.values()) {
        one.look();
      }
    }
  };

  private readonly _options: IOutputsLoaderOptions;
  private readonly _followers = new Map<NotebookPanel, NotebookOutputs>();
  private _isDisposed = false;
}
