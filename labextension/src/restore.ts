/** Brings packages and variables of a notebook back: by the panel, a command, and an output's buttons. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import { Notification } from '@jupyterlab/apputils';
import { type INotebookTracker, NotebookActions } from '@jupyterlab/notebook';
import type { NotebookPanel } from '@jupyterlab/notebook';
import type { IRenderMime, IRenderMimeRegistry } from '@jupyterlab/rendermime';
import type { Kernel } from '@jupyterlab/services';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';
import { DisposableSet, type IDisposable } from '@lumino/disposable';
import { type ISignal, Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';

import type { CurrentNotebook } from './currentNotebook';
import { shortName } from './format';
import { ivyIcon } from './icons';
import { runLine } from './kernelLine';
import type { SandboxModel } from './model';
import { isCreatable, type ISandbox } from './protocol';
import { setText } from './views/dom';
import {
  drawRestored,
  type IRestored,
  parseRestored,
  possibleActions,
  type RestoreAction,
  restoreLabel
} from './views/restoreView';

export const RestoreCommandIDs = {
  resumeAndRestore: 'ivy:resume-and-restore'
} as const;

export const RESTORE_MIME = 'application/vnd.ivy.restore+json';

export interface IRestoreOptions {
  readonly app: JupyterFrontEnd;
  /** The notebooks; null in an application without any. */
  readonly notebooks: INotebookTracker | null;
  readonly current: CurrentNotebook;
  readonly model: SandboxModel;
  readonly trans: TranslationBundle;
  /** The kernelspec whose kernel is ours. */
  readonly kernelName: string;
  /** The sandbox that a command without arguments is about. */
  readonly pick: () => ISandbox | null;
}

/** Restores one notebook at a time in each sandbox. */
export class Restorer {
  constructor(options: IRestoreOptions) {
    this._options = options;
  }

  /** Emitted when a restoration begins or ends. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Whether an open notebook could get back what it had in a sandbox, or is about to. */
  stateOf(sandbox: ISandbox): 'possible' | 'busy' | null {
    if (this._busy.has(sandbox.id)) {
      return 'busy';
    }
    return this.notebookIn(sandbox) === null ? null : 'possible';
  }

  /** The open notebook of ours in a sandbox: the one in front, else the first. */
  notebookIn(sandbox: ISandbox): NotebookPanel | null {
    const { current, kernelName } = this._options;
    const ids = sandbox.sessions
      .filter(one => one.kind === 'kernel')
      .map(one => one.kernelId);
    const found = ids
      .map(id => current.find(id))
      .filter((one): one is NotebookPanel => one !== null)
      .filter(one => {
        const kernel = kernelOf(one);
        return kernel?.name === kernelName && kernel.status !== 'dead';
      });
    return (
      found.find(one => kernelOf(one)?.id === current.kernelId) ??
      found[0] ??
      null
    );
  }

  /** Resume or create the sandbox, then bring back what the notebook had in it. */
  async resumeAndRestore(sandbox: ISandbox): Promise<void> {
    const { model } = this._options;
    const panel = this.notebookIn(sandbox);
    if (panel === null || this._busy.has(sandbox.id)) {
      return;
    }
    this._busy.add(sandbox.id);
    this._changed.emit();
    try {
      await model.act(sandbox.id, 'create');
      if (model.actionProblem(sandbox.id) === null) {
        await this.run(panel, '%ivy restore');
      }
    } finally {
      this._busy.delete(sandbox.id);
      this._changed.emit();
    }
    void model.refresh();
  }

  /** Run a line of ours in a notebook's kernel, in no cell, and tell what it says. */
  async run(panel: NotebookPanel, line: string): Promise<void> {
    const { trans } = this._options;
    const kernel = kernelOf(panel);
    const name = shortName(panel.sessionContext.name);
    if (kernel === null) {
      Notification.error(trans.__('%1 has no kernel: start one first.', name));
      return;
    }
    try {
      const { displays, text } = await runLine(kernel, line, trans);
      const restored = displays
        .map(data => parseRestored(data[RESTORE_MIME]))
        .find(one => one !== null);
      const said = text === '' ? trans.__('done.') : text;
      Notification.info(`${name}: ${said}`, {
        autoClose:
          restored && possibleActions(restored).length > 0 ? false : 12_000,
        actions: restored
          ? possibleActions(restored).map(action => ({
              label: restoreLabel(action, restored, trans),
              callback: () => {
                void this.act(panel, restored, action);
              }
            }))
          : []
      });
    } catch (error) {
      Notification.error(
        `${name}: ${error instanceof Error ? error.message : String(error)}`,
        { autoClose: false }
      );
    }
  }

  /** Do what the user has asked for by a button. */
  async act(
    panel: NotebookPanel,
    restored: IRestored,
    action: RestoreAction
  ): Promise<void> {
    if (panel.isDisposed) {
      return;
    }
    if (action === 'install') {
      // The button was the question, and a line in no cell can ask nothing.
      await this.run(panel, '%ivy packages --install --yes');
      return;
    }
    const { trans } = this._options;
    const { content, sessionContext } = panel;
    const wanted = new Set(restored.cells);
    const cells = content.widgets.filter(one => wanted.has(one.model.id));
    if (cells.length < wanted.size) {
      Notification.warning(
        trans.__(
          '%1: %2 of these cells are not in the notebook any more.',
          shortName(sessionContext.name),
          wanted.size - cells.length
        ),
        { autoClose: 8000 }
      );
    }
    if (cells.length > 0) {
      await NotebookActions.runCells(content, cells, sessionContext);
    }
  }

  /** The notebook that something in the page belongs to. */
  panelOf(node: Node): NotebookPanel | null {
    return (
      this._options.notebooks?.find(one => one.node.contains(node)) ?? null
    );
  }

  private readonly _options: IRestoreOptions;
  private readonly _changed = new Signal<this, void>(this);
  private readonly _busy = new Set<string>();
}

function kernelOf(panel: NotebookPanel): Kernel.IKernelConnection | null {
  return panel.sessionContext.session?.kernel ?? null;
}

/** Add the command and the renderer; disposing of the result removes the command. */
export function addRestore(
  options: IRestoreOptions,
  restorer: Restorer,
  renderMime: IRenderMimeRegistry | null
): IDisposable {
  const { app, trans } = options;
  renderMime?.addFactory(
    {
      // What it shows is text, so that an untrusted notebook may have it too.
      safe: true,
      mimeTypes: [RESTORE_MIME],
      defaultRank: 50,
      createRenderer: () => new RestoreRenderer(restorer, trans)
    },
    50
  );
  const added = new DisposableSet();
  added.add(
    app.commands.addCommand(RestoreCommandIDs.resumeAndRestore, {
      label: trans.__('Resume Ivy Sandbox and Restore Variables'),
      caption: trans.__(
        'Start the sandbox, then bring back packages and variables of the notebook'
      ),
      icon: ivyIcon,
      describedBy: {
        args: {
          type: 'object',
          properties: {
            id: {
              type: 'string',
              description: trans.__(
                'The key of the sandbox; by default the one of the current notebook'
              )
            }
          }
        }
      },
      isEnabled: args => {
        const sandbox = sandboxOf(options, args);
        return (
          sandbox !== null &&
          sandbox.canCreate &&
          isCreatable(options.model.read(sandbox).state) &&
          restorer.stateOf(sandbox) === 'possible'
        );
      },
      execute: async args => {
        const sandbox = sandboxOf(options, args);
        if (sandbox) {
          await restorer.resumeAndRestore(sandbox);
        }
      }
    })
  );
  return added;
}

function sandboxOf(
  { model, pick }: IRestoreOptions,
  { id }: ReadonlyPartialJSONObject
): ISandbox | null {
  return typeof id === 'string'
    ? (model.sandboxes.find(one => one.id === id) ?? null)
    : pick();
}

/** Shows what a restoration says, in the output of a cell. */
class RestoreRenderer extends Widget implements IRenderMime.IRenderer {
  constructor(restorer: Restorer, trans: TranslationBundle) {
    super();
    this._restorer = restorer;
    this._trans = trans;
    this.addClass('jp-ivy-restore');
  }

  renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    const restored = parseRestored(model.data[RESTORE_MIME]);
    if (restored === null) {
      const plain = model.data['text/plain'];
      setText(this.node, typeof plain === 'string' ? plain : '');
      return Promise.resolve();
    }
    const act = (action: RestoreAction): void => {
      const panel = this._restorer.panelOf(this.node);
      if (panel) {
        void this._restorer.act(panel, restored, action);
      }
    };
    drawRestored(this.node, restored, this._trans, model.trusted ? act : null);
    return Promise.resolve();
  }

  private readonly _restorer: Restorer;
  private readonly _trans: TranslationBundle;
}
