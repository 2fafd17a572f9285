/** Keeps the time that cells take, and tells of the end of long runs that nobody looked at. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import { Notification } from '@jupyterlab/apputils';
import { type Cell, CodeCell, type ICodeCellModel } from '@jupyterlab/cells';
import {
  type INotebookTracker,
  type Notebook,
  NotebookActions,
  type NotebookPanel
} from '@jupyterlab/notebook';
import type { KernelMessage } from '@jupyterlab/services';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { IDisposable } from '@lumino/disposable';

import {
  addTime,
  type CellEnd,
  decisiveResult,
  type IRun,
  isIvyCell,
  isWorthTelling,
  RunTracker,
  runSentence,
  type Timing
} from './cells';
import { ivyIcon } from './icons';
import { DEFAULT_PREFERENCES, type ICellPreferences } from './preferences';

export const CellCommandIDs = {
  allowNotifications: 'ivy:allow-system-notifications'
} as const;

export interface ICellNotifierOptions {
  readonly app: JupyterFrontEnd;
  /** The notebooks; null in an application without any. */
  readonly notebooks: INotebookTracker | null;
  readonly trans: TranslationBundle;
  /** Whether a kernel is known to use a sandbox. */
  readonly isOurs: (kernelId: string) => boolean;
  /** The kernelspec whose kernel is ours. */
  readonly kernelName: string;
}

/** Where JupyterLab, nbclient and papermill keep the times of a cell. */
const TIMING_KEY = 'execution';

type Future = CodeCell['outputArea']['future'];

export class CellNotifier implements IDisposable {
  constructor(options: ICellNotifierOptions) {
    this._options = options;
    NotebookActions.executionScheduled.connect(this._onScheduled, this);
    this._command = this._addCommand();
  }

  set preferences(preferences: ICellPreferences) {
    this._preferences = preferences;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    if (this._isDisposed) {
      return;
    }
    this._isDisposed = true;
    this._command.dispose();
    NotebookActions.executionScheduled.disconnect(this._onScheduled, this);
  }

  private _onScheduled(
    _: unknown,
    { notebook, cell }: { notebook: Notebook; cell: Cell }
  ): void {
    const panel = this._options.notebooks?.find(
      one => one.content === notebook
    );
    if (!panel || !(cell instanceof CodeCell)) {
      return;
    }
    const before = futureOf(cell);
    // The signal comes right before the request is sent, in the same turn of the event loop.
    queueMicrotask(() => {
      const future = futureOf(cell);
      if (future && future !== before && this._isOurs(panel, cell)) {
        this._follow(panel, cell, future);
      }
    });
  }

  /** Whether the cells of a notebook run in a sandbox. */
  private _isOurs(panel: NotebookPanel, cell: CodeCell): boolean {
    const kernel = panel.sessionContext.session?.kernel;
    if (!kernel) {
      return false;
    }
    if (isIvyCell(cell.model.sharedModel.getSource())) {
      this._ivyKernels.add(kernel.id);
    }
    return (
      kernel.name === this._options.kernelName ||
      this._ivyKernels.has(kernel.id) ||
      this._options.isOurs(kernel.id)
    );
  }

  private _follow(panel: NotebookPanel, cell: CodeCell, future: Future): void {
    const { model } = cell;
    let runs = this._runs.get(panel);
    if (!runs) {
      runs = new RunTracker();
      this._runs.set(panel, runs);
    }
    const tracker = runs;
    tracker.schedule(model);
    // JupyterLab keeps the times itself when the user has asked for it.
    const records =
      this._preferences.recordsTiming &&
      !panel.content.notebookConfig.recordTiming;
    const note = (message: KernelMessage.IMessage): void => {
      if (records && !cell.isDisposed) {
        keepTime(model, timing =>
          addTime(timing, message, new Date().toISOString())
        );
      }
    };
    future.registerMessageHook(message => {
      const { content } = message;
      if ('execution_state' in content && content.execution_state === 'busy') {
        tracker.begin(performance.now());
      }
      note(message);
      return true;
    });
    const end = (how: CellEnd): void => {
      const run = tracker.end(model, how, performance.now());
      if (run) {
        // The notebook, which waits for the same reply, numbers the cell in this turn too.
        setTimeout(() => {
          if (!panel.isDisposed) {
            this._tell(panel, run);
          }
        });
      }
    };
    future.done.then(
      reply => {
        note(reply);
        const { status } = reply.content;
        const isExpected =
          status === 'error' && tagsOf(model).includes('raises-exception');
        end(
          status === 'ok' || isExpected
            ? 'ok'
            : status === 'error'
              ? 'error'
              : 'aborted'
        );
      },
      () => {
        if (records && !cell.isDisposed) {
          keepTime(model, timing => ({
            ...timing,
            execution_failed: new Date().toISOString()
          }));
        }
        end('lost');
      }
    );
  }

  private _tell(panel: NotebookPanel, run: IRun<ICodeCellModel>): void {
    const { notifyAfterMs, usesSystem } = this._preferences;
    const isUnseen = document.hidden || !document.hasFocus();
    const looksElsewhere =
      isUnseen || this._options.app.shell.currentWidget !== panel;
    if (!isWorthTelling(run, notifyAfterMs, looksElsewhere)) {
      return;
    }
    const { trans } = this._options;
    const decisive = decisiveResult(run);
    const name = panel.sessionContext.name;
    const sentence = runSentence(
      run,
      name,
      model => this._nameOf(panel, model),
      trans
    );
    const show = (): void => {
      Notification.dismiss(id);
      void this._show(panel, decisive?.cell.id ?? null);
    };
    const raise =
      decisive?.end === 'ok' ? Notification.success : Notification.error;
    const id = raise(sentence, {
      // Whoever looks elsewhere sees it when they come back.
      autoClose: false,
      actions: [
        {
          label: trans.__('Show cell'),
          displayType: 'accent',
          callback: show
        }
      ]
    });
    if (usesSystem && isUnseen) {
      this._tellSystem(sentence, name, show);
    }
  }

  /** Let the operating system tell it, if the browser has been allowed to; never asks. */
  private _tellSystem(
    sentence: string,
    notebook: string,
    show: () => void
  ): void {
    if (systemPermission() !== 'granted') {
      return;
    }
    try {
      const shown = new window.Notification(sentence, {
        tag: `ivy-kernel:${notebook}`
      });
      shown.onclick = (): void => {
        window.focus();
        shown.close();
        show();
      };
    } catch {
      // Some browsers on telephones have the permission and no constructor.
    }
  }

  private _nameOf(panel: NotebookPanel, model: ICodeCellModel): string {
    const { trans } = this._options;
    const count = model.executionCount;
    if (count !== null) {
      return trans.__('cell [%1]', count);
    }
    const position = panel.content.widgets.findIndex(
      one => one.model.id === model.id
    );
    return position < 0
      ? trans.__('a deleted cell')
      : trans.__('cell number %1', position + 1);
  }

  /** Bring a cell into sight. */
  private async _show(
    panel: NotebookPanel,
    cellId: string | null
  ): Promise<void> {
    const { shell } = this._options.app;
    if (panel.isDisposed) {
      return;
    }
    shell.activateById(panel.id);
    const notebook = panel.content;
    const position = notebook.widgets.findIndex(one => one.model.id === cellId);
    const cell = notebook.widgets[position];
    if (cell) {
      notebook.deselectAll();
      notebook.activeCellIndex = position;
      await notebook.scrollToCell(cell);
    }
  }

  private _addCommand(): IDisposable {
    const { app, trans } = this._options;
    const id = CellCommandIDs.allowNotifications;
    return app.commands.addCommand(id, {
      label: trans.__('Allow System Notifications of Long Ivy Cells'),
      caption: trans.__(
        'Let the browser ask whether this page may show notifications'
      ),
      icon: ivyIcon,
      describedBy: { args: { type: 'object', properties: {} } },
      isEnabled: () => systemPermission() === 'default',
      execute: async () => {
        const answer = await window.Notification.requestPermission();
        app.commands.notifyCommandChanged(id);
        if (answer === 'granted') {
          Notification.success(
            trans.__(
              'The end of a long cell is told by the system while this page is not seen.'
            ),
            { autoClose: 4000 }
          );
        } else {
          Notification.warning(
            trans.__(
              'The browser does not allow it: its settings for this page can change that.'
            ),
            { autoClose: 8000 }
          );
        }
      }
    });
  }

  private readonly _options: ICellNotifierOptions;
  private readonly _command: IDisposable;
  private readonly _runs = new WeakMap<
    NotebookPanel,
    RunTracker<ICodeCellModel>
  >();
  /** Kernels that have run a `%%ivy` cell. */
  private readonly _ivyKernels = new Set<string>();
  private _preferences: ICellPreferences = DEFAULT_PREFERENCES.cells;
  private _isDisposed = false;
}

/** The future of a cell's last request; JupyterLab's type does not say that there may be none. */
function futureOf(cell: CodeCell): Future | undefined {
  return cell.outputArea.future;
}

function tagsOf(model: ICodeCellModel): readonly unknown[] {
  const tags: unknown = model.getMetadata('tags');
  return Array.isArray(tags) ? (tags as unknown[]) : [];
}

function keepTime(
  model: ICodeCellModel,
  change: (timing: Timing) => Timing
): void {
  const before = (model.getMetadata(TIMING_KEY) ?? {}) as Timing;
  const after = change(before);
  if (after !== before) {
    model.setMetadata(TIMING_KEY, after);
  }
}

/** Whether the browser lets this page show notifications; it has none at all over plain http. */
function systemPermission(): NotificationPermission {
  return 'Notification' in window ? window.Notification.permission : 'denied';
}
