/** Which ends of cells are worth telling, and in which words. Pure. */

import { formatElapsed, type ITranslate, shortName } from './format';

/**
 * How a cell ended: well; with an error; not begun, because one before it failed; or not at all,
 * because its kernel was restarted or died.
 */
export type CellEnd = 'ok' | 'error' | 'aborted' | 'lost';

export interface ICellResult<Cell> {
  readonly cell: Cell;
  readonly end: CellEnd;
}

/** Cells of one notebook that were run together, or one while another was still running. */
export interface IRun<Cell> {
  readonly durationMs: number;
  /** In the order of their ends. */
  readonly results: readonly ICellResult<Cell>[];
}

/** Whether a cell runs in a sandbox wherever its notebook's kernel runs. */
export function isIvyCell(source: string): boolean {
  return /^\s*%%ivy(\s|$)/.test(source);
}

/** Puts the cells of one notebook together to runs. */
export class RunTracker<Cell> {
  /** Note that a cell waits for its turn. */
  schedule(cell: Cell): void {
    this._pending.add(cell);
  }

  /** Note that the kernel has begun a cell. */
  begin(nowMs: number): void {
    this._beganMs ??= nowMs;
  }

  /**
   * Note the end of a cell.
   *
   * @returns The run, when this was the last cell of it.
   */
  end(cell: Cell, end: CellEnd, nowMs: number): IRun<Cell> | null {
    if (!this._pending.delete(cell)) {
      return null;
    }
    this._results.push({ cell, end });
    if (this._pending.size > 0) {
      return null;
    }
    const run = {
      durationMs: nowMs - (this._beganMs ?? nowMs),
      results: this._results
    };
    this._results = [];
    this._beganMs = null;
    return run;
  }

  private readonly _pending = new Set<Cell>();
  private _results: ICellResult<Cell>[] = [];
  private _beganMs: number | null = null;
}

/** The cell that a run is about: the one that failed, else the last one. */
export function decisiveResult<Cell>(
  run: IRun<Cell>
): ICellResult<Cell> | null {
  const { results } = run;
  return (
    results.find(one => one.end === 'error') ??
    results.find(one => one.end === 'lost') ??
    results[results.length - 1] ??
    null
  );
}

/**
 * Whether the end of a run is to be told.
 *
 * @param afterMs - From which duration on; null for never.
 */
export function isWorthTelling(
  run: IRun<unknown>,
  afterMs: number | null,
  looksElsewhere: boolean
): boolean {
  return afterMs !== null && looksElsewhere && run.durationMs >= afterMs;
}

/**
 * A run in one sentence, without anything that the cells have shown.
 *
 * @param nameOf - What a cell is called, such as “cell [3]”.
 */
export function runSentence<Cell>(
  run: IRun<Cell>,
  notebook: string,
  nameOf: (cell: Cell) => string,
  trans: ITranslate
): string {
  const where = shortName(notebook);
  const took = formatElapsed(run.durationMs, trans);
  const decisive = decisiveResult(run);
  const name = decisive ? nameOf(decisive.cell) : '';
  const count = run.results.length;
  const notRun = run.results.filter(one => one.end === 'aborted').length;
  switch (decisive?.end) {
    case 'error':
      return notRun > 0
        ? trans.__(
            '%1: %2 failed after %3; %4 of %5 cells were not run.',
            where,
            name,
            took,
            notRun,
            count
          )
        : trans.__('%1: %2 failed after %3.', where, name, took);
    case 'lost':
      return trans.__(
        '%1: %2 did not end: after %3 its kernel was restarted or died.',
        where,
        name,
        took
      );
    default:
      return count > 1
        ? trans.__('%1: %2 cells succeeded in %3.', where, count, took)
        : trans.__('%1: %2 succeeded in %3.', where, name, took);
  }
}

/** The times of a cell, as JupyterLab and nbclient keep them in its metadata. */
export type Timing = Readonly<Record<string, string>>;

/** The parts of a message of the kernel that tell of time. */
export interface ITimedMessage {
  readonly header: { readonly msg_type: string; readonly date: string };
  readonly content: object;
  readonly metadata: object;
}

/**
 * Add what a message tells of time.
 *
 * @param now - The time in ISO form, for a message without one.
 * @returns The same object when it tells nothing.
 */
export function addTime(
  timing: Timing,
  message: ITimedMessage,
  now: string
): Timing {
  const { header, content, metadata } = message;
  const date = header.date || now;
  switch (header.msg_type) {
    case 'status': {
      const state = 'execution_state' in content ? content.execution_state : '';
      return { ...timing, [`iopub.status.${String(state)}`]: date };
    }
    case 'execute_input':
      return { ...timing, 'iopub.execute_input': date };
    case 'execute_reply': {
      const started = 'started' in metadata ? metadata.started : null;
      return {
        ...timing,
        ...(typeof started === 'string'
          ? { 'shell.execute_reply.started': started }
          : {}),
        'shell.execute_reply': date
      };
    }
    default:
      return timing;
  }
}
