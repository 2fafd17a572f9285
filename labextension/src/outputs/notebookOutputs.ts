/** One notebook, and the outputs that wait for its cells. */

import { Notification } from '@jupyterlab/apputils';
import { CodeCell, type ICodeCellModel } from '@jupyterlab/cells';
import type { NotebookPanel } from '@jupyterlab/notebook';
import type { Kernel, KernelMessage } from '@jupyterlab/services';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { IDisposable } from '@lumino/disposable';

import { asRecord, type JSONRecord, text } from '../protocol';
import { type IOutputsSource, problemOf } from '../source';
import {
  changedSentence,
  changeOf,
  decide,
  ExpectedCells,
  type IWaitingCell,
  type IWaitingOutputs,
  type Output,
  parseReceipt
} from './outputsModel';

/** Between two looks while a cell runs whose outputs the page does not receive itself. */
const LOOK_AGAIN_MS = 1000;

/** So many more looks after the last such cell: the next of a queue may be about to begin. */
const LAST_LOOKS = 5;

/** So many for a cell whose kernel has ended before it: the next one looks for the rest. */
const LOOKS_FOR_REST = 30;

/** The fate of such a cell. */
const UNKNOWN = 'unknown';

/** How often a look that failed is made again, at growing intervals, before the next occasion. */
const ATTEMPTS = 5;

/** Where a cell's metadata say which run its outputs are of. */
const METADATA_KEY = 'ivy';

/** What JupyterLab says of a kernel whose requests are lost. */
const GONE = new Set<Kernel.Status>(['restarting', 'autorestarting', 'dead']);

/** An output, as JupyterLab's model takes it. */
type Taken = Parameters<ICodeCellModel['outputs']['add']>[0];

type Future = CodeCell['outputArea']['future'];

export interface INotebookOutputsOptions {
  readonly source: IOutputsSource;
  readonly trans: TranslationBundle;
  /** The kernelspec whose kernel is ours. */
  readonly kernelName: string;
}

export class NotebookOutputs implements IDisposable {
  constructor(panel: NotebookPanel, options: INotebookOutputsOptions) {
    this._panel = panel;
    this._options = options;
    const { context, sessionContext } = panel;
    sessionContext.kernelChanged.connect(this._onKernel, this);
    sessionContext.connectionStatusChanged.connect(this._onConnection, this);
    sessionContext.statusChanged.connect(this._onStatus, this);
    void Promise.all([context.ready, sessionContext.ready]).then(() => {
      this._isReady = true;
      this._onKernel();
    });
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  /** Look for what waits, beginning at once. */
  look(): void {
    if (this._ourKernel() === null) {
      return;
    }
    if (this._isLooking) {
      this._looksAgain = true;
      return;
    }
    clearTimeout(this._timer);
    void this._look();
  }

  expect(cells: readonly CodeCell[]): void {
    const runs = new Map<string, string | null>();
    const allowed = new Set<string>();
    for (const cell of cells) {
      const { model } = cell;
      runs.set(model.id, runOf(model));
      const tags: unknown = model.getMetadata('tags');
      if (Array.isArray(tags) && tags.includes('raises-exception')) {
        allowed.add(model.id);
      }
      this._shown.delete(model.id);
      dropOutputs(model);
      setRunning(cell, true);
      this._running.add(model.id);
    }
    this._expected = new ExpectedCells(runs, allowed);
    this.look();
  }

  dispose(): void {
    if (this._isDisposed) {
      return;
    }
    this._isDisposed = true;
    clearTimeout(this._timer);
    const { sessionContext } = this._panel;
    sessionContext.kernelChanged.disconnect(this._onKernel, this);
    sessionContext.connectionStatusChanged.disconnect(this._onConnection, this);
    sessionContext.statusChanged.disconnect(this._onStatus, this);
    this._kernel?.anyMessage.disconnect(this._onMessage, this);
  }

  /** The kernel, if it is ours, and nothing else keeps the document up to date. */
  private _ourKernel(): Kernel.IKernelConnection | null {
    if (this._isDisposed || !this._isReady || this._panel.isDisposed) {
      return null;
    }
    // Where several people share the document, the server puts the outputs into what they share:
    // each of their pages would do it again.
    if (this._panel.model?.collaborative) {
      return null;
    }
    const kernel = this._panel.sessionContext.session?.kernel ?? null;
    return kernel?.name === this._options.kernelName ? kernel : null;
  }

  private _onKernel(): void {
    const kernel = this._ourKernel();
    if (kernel === this._kernel) {
      return;
    }
    this._kernel?.anyMessage.disconnect(this._onMessage, this);
    this._kernel = kernel;
    kernel?.anyMessage.connect(this._onMessage, this);
    this._offset = 0;
    this._sent.clear();
    this._expected = null;
    this._stopWaiting([...this._running]);
    this.look();
  }

  private _onConnection(_: unknown, status: Kernel.ConnectionStatus): void {
    if (status === 'connected' && this._wasConnected === false) {
      this._offset = 0;
      this.look();
    }
    this._wasConnected = status === 'connected';
  }

  /** A kernel that is started anew has nothing more to say of what ran before. */
  private _onStatus(_: unknown, status: Kernel.Status): void {
    if (GONE.has(status) && this._running.size > 0) {
      this._expected = null;
      this._stopWaiting([...this._running]);
      this.look();
    }
  }

  private async _look(): Promise<void> {
    const kernel = this._ourKernel();
    if (kernel === null) {
      return;
    }
    this._isLooking = true;
    this._looksAgain = false;
    this._begunMeanwhile.clear();
    for (const cell of this._cells().values()) {
      this._isAwaited(cell);
    }
    const { path } = this._panel.sessionContext;
    let waitMs: number | null = null;
    try {
      const began = performance.now();
      const answer = await this._options.source.outputs(
        kernel.id,
        path,
        this._offset
      );
      const tookMs = performance.now() - began;
      this._failures = 0;
      if (this._ourKernel() === kernel) {
        this._take(answer);
        // Outputs may be large: asking for them must not be all that the server does.
        waitMs = this._goesOn() ? Math.max(LOOK_AGAIN_MS, 2 * tookMs) : null;
      }
    } catch (error) {
      this._failures += 1;
      const isHopeless = problemOf(error).kind === 'no-extension';
      if (isHopeless || this._failures >= ATTEMPTS) {
        this._failures = 0;
        this._stopWaiting([...this._running]);
      } else {
        waitMs = LOOK_AGAIN_MS * 2 ** this._failures;
      }
    }
    this._isLooking = false;
    if (this._wasAskedToLook()) {
      this.look();
    } else if (waitMs !== null && !this._isDisposed) {
      this._timer = window.setTimeout(() => {
        this.look();
      }, waitMs);
    }
  }

  /** Whether another occasion has come during a look. */
  private _wasAskedToLook(): boolean {
    return this._looksAgain;
  }

  /** Whether more is to come. */
  private _goesOn(): boolean {
    this._looksLeft =
      this._running.size > 0
        ? Math.max(LAST_LOOKS, this._looksLeft)
        : Math.max(0, this._looksLeft - 1);
    return this._looksLeft > 0;
  }

  private _take(answer: IWaitingOutputs): void {
    const cells = this._cells();
    let changed = 0;
    let isComplete = true;
    for (const [id, waiting] of answer.cells) {
      const cell = cells.get(id);
      if (!cell) {
        continue;
      }
      const { model } = cell;
      const decision = decide(
        {
          source: model.sharedModel.getSource(),
          run: runOf(model),
          isAwaited: this._begunMeanwhile.has(id) || this._isAwaited(cell)
        },
        waiting
      );
      if (decision === 'take') {
        this._put(cell, waiting);
        continue;
      }
      if (decision === 'own') {
        // Should the page lose it after all, then it is asked for again.
        isComplete = false;
        this._running.delete(id);
        continue;
      }
      if (this._running.has(id) && this._expected?.isStillAt(id, waiting.run)) {
        continue;
      }
      this._stopWaiting([id]);
      if (decision === 'changed' && waiting.isRunning) {
        // It is told when it has ended.
        this._looksLeft = Math.max(this._looksLeft, LOOKS_FOR_REST);
      } else if (decision === 'changed' && this._told.get(id) !== waiting.run) {
        this._told.set(id, waiting.run);
        changed += 1;
      }
    }
    if (isComplete) {
      this._offset = answer.offset;
    }
    if (this._expected) {
      this._stopWaiting(this._expected.note(answer.cells));
      if (this._expected.ids.length === 0) {
        this._expected = null;
      }
    }
    if (changed > 0) {
      const { trans } = this._options;
      const { name } = this._panel.sessionContext;
      Notification.warning(changedSentence(changed, name, trans), {
        autoClose: 15_000
      });
    }
  }

  /** Put outputs into their cell, as if the page had received them. */
  private _put(cell: CodeCell, waiting: IWaitingCell): void {
    const { model } = cell;
    const { id } = model;
    const shown = this._shown.get(id);
    const before = shown?.run === waiting.run ? shown.outputs : null;
    // The user's own kernel has run the cell's own text: JupyterLab trusts that too.
    model.trusted = true;
    change(model, before, waiting.outputs);
    this._shown.set(id, { run: waiting.run, outputs: waiting.outputs });
    if (waiting.isRunning) {
      if (!this._running.has(id)) {
        model.executionCount = null;
        this._running.add(id);
      }
      setRunning(cell, true);
      return;
    }
    this._running.delete(id);
    if (model.executionCount !== waiting.number) {
      model.executionCount = waiting.number;
    }
    setRunning(cell, false);
    if (waiting.fate === UNKNOWN) {
      // The notebook's new kernel may be about to find the rest: then all is asked for again.
      this._looksLeft = Math.max(this._looksLeft, LOOKS_FOR_REST);
      return;
    }
    this._shown.delete(id);
    keepRun(model, waiting.run, waiting.receipt);
  }

  /** Take the sign that they run from cells of which nothing more is expected. */
  private _stopWaiting(ids: readonly string[]): void {
    const cells = this._cells();
    for (const id of ids) {
      const cell = cells.get(id);
      if (this._running.delete(id) && cell && !this._isAwaited(cell)) {
        setRunning(cell, false);
      }
    }
  }

  /** Remember which cell a request is of, and note in the cell which run its outputs are of. */
  private _onMessage(_: unknown, args: Kernel.IAnyMessageArgs): void {
    const { direction, msg } = args;
    if (direction === 'send' && msg.header.msg_type === 'execute_request') {
      const id = text((msg.metadata as JSONRecord)['cellId']);
      if (id !== null) {
        this._sent.set(msg.header.msg_id, id);
        this._begunMeanwhile.add(id);
        this._running.delete(id);
        this._shown.delete(id);
      }
      return;
    }
    if (direction !== 'recv' || msg.header.msg_type !== 'execute_reply') {
      return;
    }
    const reply = msg as KernelMessage.IExecuteReplyMsg;
    const run =
      'msg_id' in reply.parent_header ? reply.parent_header.msg_id : '';
    const id = this._sent.get(run);
    this._sent.delete(run);
    const model = id === undefined ? null : this._cells().get(id)?.model;
    if (!model) {
      return;
    }
    if (reply.content.status === 'ok' || reply.content.status === 'error') {
      keepRun(model, run, parseReceipt(reply.metadata));
    } else {
      dropReceipt(model);
    }
  }

  private _cells(): Map<string, CodeCell> {
    const found = new Map<string, CodeCell>();
    if (!this._panel.isDisposed) {
      for (const cell of this._panel.content.widgets) {
        if (cell instanceof CodeCell) {
          found.set(cell.model.id, cell);
        }
      }
    }
    return found;
  }

  /** Whether the page awaits outputs of a request of its own for the cell. */
  private _isAwaited(cell: CodeCell): boolean {
    // JupyterLab's type does not say that there may be none.
    const future = cell.outputArea.future as Future | null | undefined;
    if (!future || future.isDisposed) {
      return false;
    }
    const isDone = this._futures.get(future);
    if (isDone === undefined) {
      this._futures.set(future, false);
      const done = (): void => {
        this._futures.set(future, true);
      };
      future.done.then(done, done);
    }
    return isDone !== true;
  }

  private readonly _panel: NotebookPanel;
  private readonly _options: INotebookOutputsOptions;
  private _kernel: Kernel.IKernelConnection | null = null;
  /** Whether requests have been answered to their end. */
  private readonly _futures = new WeakMap<Future, boolean>();
  /** The page's own requests → the ids of their cells. */
  private readonly _sent = new Map<string, string>();
  /** Cells that the page has run while a look was under way. */
  private readonly _begunMeanwhile = new Set<string>();
  /** Cells that run, as far as is known here, and whose outputs the page does not receive. */
  private readonly _running = new Set<string>();
  /** What has been put into the cells that run. */
  private readonly _shown = new Map<
    string,
    { readonly run: string; readonly outputs: readonly Output[] }
  >();
  /** Runs of cells whose text has changed, which has been told. */
  private readonly _told = new Map<string, string>();
  private _expected: ExpectedCells | null = null;
  private _offset = 0;
  private _failures = 0;
  private _looksLeft = 0;
  private _timer = 0;
  private _isReady = false;
  private _isLooking = false;
  private _looksAgain = false;
  private _wasConnected: boolean | null = null;
  private _isDisposed = false;
}

/** The run whose outputs a cell has. */
function runOf(model: ICodeCellModel): string | null {
  return text(asRecord(model.getMetadata(METADATA_KEY))?.['run']);
}

/** Note in a cell which run its outputs are of; another program's digest of older ones goes. */
function keepRun(
  model: ICodeCellModel,
  run: string,
  receipt: JSONRecord | null
): void {
  model.setMetadata(METADATA_KEY, receipt ? { run, receipt } : { run });
}

/** Note that a cell's outputs are gone: there is no receipt for none. */
function dropReceipt(model: ICodeCellModel): void {
  const run = runOf(model);
  if (run !== null) {
    keepRun(model, run, null);
  }
}

function dropOutputs(model: ICodeCellModel): void {
  model.clearExecution();
  dropReceipt(model);
}

function setRunning(cell: CodeCell, isRunning: boolean): void {
  const { model } = cell;
  if ((model as Partial<ICodeCellModel>).executionState !== undefined) {
    model.executionState = isRunning ? 'running' : 'idle';
  } else {
    // JupyterLab before 4.3 has the sign in the prompt alone.
    // eslint-disable-next-line @typescript-eslint/no-deprecated -- those versions have nothing else
    cell.setPrompt(isRunning ? '*' : String(model.executionCount ?? ''));
  }
}

/**
 * Change a cell's outputs.
 *
 * Each step is one of JupyterLab's own, which it keeps out of the history of undo. They are not
 * bundled: within a transaction of the document each would be made a second time at its end.
 */
function change(
  model: ICodeCellModel,
  before: readonly Output[] | null,
  after: readonly Output[]
): void {
  const { outputs } = model;
  const found = changeOf(before, after);
  switch (found.kind) {
    case 'none':
      return;
    case 'replace':
      outputs.fromJSON(after as Taken[]);
      return;
    case 'grow':
      for (const [index, output] of found.changed) {
        outputs.set(index, output as Taken);
      }
      for (const output of found.added) {
        outputs.add(output as Taken);
      }
  }
}
