/** Hands the remaining cells of a notebook over to its sandbox, which runs them without this page. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import { Dialog, Notification, showDialog } from '@jupyterlab/apputils';
import { CodeCell } from '@jupyterlab/cells';
import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import type { Kernel } from '@jupyterlab/services';
import type { TranslationBundle } from '@jupyterlab/translation';
import {
  DisposableDelegate,
  DisposableSet,
  type IDisposable
} from '@lumino/disposable';
import { Widget } from '@lumino/widgets';

import type { IReading } from './countdown';
import type { CurrentNotebook } from './currentNotebook';
import { type ITranslate, shortName } from './format';
import { deadlineSentences, detachLine } from './handedCells';
import { ivyIcon } from './icons';
import { runLine } from './kernelLine';
import type { SandboxModel } from './model';
import type { OutputsLoader } from './outputs/outputsLoader';
import { make } from './views/dom';

export const DetachCommandIDs = {
  runRemaining: 'ivy:run-remaining'
} as const;

export interface IDetachOptions {
  readonly app: JupyterFrontEnd;
  /** The notebooks; null in an application without any. */
  readonly notebooks: INotebookTracker | null;
  readonly current: CurrentNotebook;
  readonly model: SandboxModel;
  readonly outputs: OutputsLoader;
  readonly trans: TranslationBundle;
  /** The kernelspec whose kernel is ours. */
  readonly kernelName: string;
}

/** Add the command; disposing of the result removes it. */
export function addDetach(options: IDetachOptions): IDisposable {
  const { app, current, notebooks, trans } = options;
  const { commands } = app;
  const id = DetachCommandIDs.runRemaining;
  const added = new DisposableSet();
  added.add(
    commands.addCommand(id, {
      label: trans.__('Run Remaining Cells in the Sandbox…'),
      caption: trans.__(
        'The selected cell and those below run in the sandbox, also when this page is closed'
      ),
      icon: args => (args['toolbar'] === true ? ivyIcon : undefined),
      describedBy: {
        args: {
          type: 'object',
          properties: {
            toolbar: {
              type: 'boolean',
              description: trans.__('Whether it is shown in a toolbar')
            }
          }
        }
      },
      isVisible: () => ourKernel(options) !== null,
      isEnabled: () => ourKernel(options) !== null,
      execute: async () => {
        const panel = notebooks?.currentWidget ?? null;
        const kernel = ourKernel(options);
        if (panel && kernel) {
          await runRemaining(options, panel, kernel);
        }
      }
    })
  );
  const onChange = (): void => {
    commands.notifyCommandChanged(id);
  };
  current.changed.connect(onChange);
  added.add(
    new DisposableDelegate(() => {
      current.changed.disconnect(onChange);
    })
  );
  return added;
}

/** The kernel of the notebook in front, if it is ours and lives. */
function ourKernel(options: IDetachOptions): Kernel.IKernelConnection | null {
  const { kernel } = options.current;
  return kernel?.name === options.kernelName && kernel.status !== 'dead'
    ? kernel
    : null;
}

/** The code cells with some text, from the selected one on. */
function remainingCells(panel: NotebookPanel): CodeCell[] {
  const { activeCellIndex, widgets } = panel.content;
  return widgets
    .slice(Math.max(0, activeCellIndex))
    .filter((cell): cell is CodeCell => cell instanceof CodeCell)
    .filter(cell => cell.model.sharedModel.getSource().trim() !== '');
}

function allowsError(cell: CodeCell): boolean {
  const tags: unknown = cell.model.getMetadata('tags');
  return Array.isArray(tags) && tags.includes('raises-exception');
}

async function runRemaining(
  options: IDetachOptions,
  panel: NotebookPanel,
  kernel: Kernel.IKernelConnection
): Promise<void> {
  const { model, outputs, trans } = options;
  const { name } = panel.sessionContext;
  const cells = remainingCells(panel);
  if (cells.length === 0) {
    Notification.info(
      trans.__('%1 has no code from the selected cell on.', shortName(name)),
      { autoClose: 4000 }
    );
    return;
  }
  const sandbox = model.sandboxes.find(one =>
    one.sessions.some(session => session.kernelId === kernel.id)
  );
  const reading = sandbox ? model.read(sandbox) : null;
  if (!(await confirmed(cells.length, name, reading, trans))) {
    return;
  }
  const line = detachLine(
    cells.map(cell => [
      cell.model.id,
      cell.model.sharedModel.getSource(),
      allowsError(cell)
    ]),
    name
  );
  try {
    await runLine(kernel, line, trans);
  } catch (error) {
    Notification.error(
      trans.__(
        '%1 still runs nothing in the sandbox by itself: %2',
        shortName(name),
        error instanceof Error ? error.message : String(error)
      ),
      { autoClose: false }
    );
    return;
  }
  if (!panel.isDisposed) {
    outputs.expect(
      panel,
      cells.filter(cell => !cell.isDisposed)
    );
  }
  Notification.success(
    trans.__(
      '%1: the sandbox now runs %2. You may close this page; “jupyter ivy runs” tells how far they are.',
      shortName(name),
      countOf(cells.length, trans)
    ),
    { autoClose: 8000 }
  );
}

function countOf(cells: number, trans: ITranslate): string {
  return cells === 1 ? trans.__('1 cell') : trans.__('%1 cells', cells);
}

async function confirmed(
  count: number,
  notebook: string,
  reading: IReading | null,
  trans: TranslationBundle
): Promise<boolean> {
  const body = new Widget();
  body.addClass('jp-ivy-question');
  const sentences = [
    count === 1
      ? trans.__('1 cell of %1 is handed over.', notebook)
      : trans.__(
          '%1 cells of %2 are handed over, from the selected one to the end.',
          count,
          notebook
        ),
    trans.__(
      'The sandbox runs them by itself, also when this page, JupyterLab and this computer are shut. It stops at the first error. The outputs come into the cells when the notebook is open.'
    ),
    ...deadlineSentences(reading, trans)
  ];
  body.node.append(...sentences.map(one => make('p', '', {}, [one])));
  const answer = await showDialog({
    title: trans.__('Run the remaining cells in the sandbox?'),
    body,
    buttons: [
      Dialog.cancelButton({ label: trans.__('Cancel') }),
      Dialog.okButton({ label: trans.__('Run') })
    ]
  });
  return answer.button.accept;
}
