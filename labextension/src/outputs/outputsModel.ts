/** Outputs that wait for their cells: which of them a page puts where. Pure. */

import { type ITranslate, shortName } from '../format';
import { amount, asRecord, type JSONRecord, text } from '../protocol';
import { sha256 } from './sha256';

/** An output as nbformat 4 has it. */
export type Output = JSONRecord;

/** What a cell has said, and whether it still speaks. */
export interface IWaitingCell {
  /** The id of the request that ran it. */
  readonly run: string;
  /** SHA-256 of the text that was run. */
  readonly code: string;
  readonly number: number | null;
  readonly outputs: readonly Output[];
  readonly isRunning: boolean;
  /**
   * How it ended: ok, error, aborted; unknown when its kernel has ended before it, and another one
   * may find the rest; null while it runs.
   */
  readonly fate: string | null;
  readonly receipt: JSONRecord | null;
}

/** The cells of a notebook that have said something since the last look, by their ids. */
export interface IWaitingOutputs {
  readonly offset: number;
  readonly cells: ReadonlyMap<string, IWaitingCell>;
}

/** The receipt that comes with the end of a cell, in the metadata of the reply. */
export function parseReceipt(metadata: unknown): JSONRecord | null {
  return asRecord(asRecord(asRecord(metadata)?.['ivy'])?.['receipt']);
}

function parseWaitingCell(value: unknown): IWaitingCell | null {
  const body = asRecord(value);
  const run = text(body?.['run']);
  const code = text(body?.['code']);
  const outputs: unknown = body?.['outputs'];
  if (!body || run === null || code === null || !Array.isArray(outputs)) {
    return null;
  }
  return {
    run,
    code,
    number: amount(body['number']),
    outputs: (outputs as unknown[])
      .map(asRecord)
      .filter((one): one is Output => text(one?.['output_type']) !== null),
    isRunning: body['is_running'] === true,
    fate: text(body['fate']),
    receipt: parseReceipt(body['metadata'])
  };
}

/** Read outputs that wait; null when the value is none. */
export function parseWaitingOutputs(value: unknown): IWaitingOutputs | null {
  const body = asRecord(value);
  const cells = asRecord(body?.['cells']);
  const offset = amount(body?.['offset']);
  if (cells === null || offset === null) {
    return null;
  }
  const found = new Map<string, IWaitingCell>();
  for (const [id, one] of Object.entries(cells)) {
    const cell = parseWaitingCell(one);
    if (cell) {
      found.set(id, cell);
    }
  }
  return { offset, cells: found };
}

/** What a page knows of one of its cells. */
export interface IKnownCell {
  readonly source: string;
  /** The run whose outputs it has, as its metadata say. */
  readonly run: string | null;
  /** Whether the page itself awaits the outputs of a request of this cell. */
  readonly isAwaited: boolean;
}

/**
 * What becomes of outputs: they go into the cell; it has them; the page receives them itself; or
 * the cell's text is not that which was run any more.
 */
export type Decision = 'take' | 'has' | 'own' | 'changed';

export function decide(cell: IKnownCell, waiting: IWaitingCell): Decision {
  if (cell.isAwaited) {
    return 'own';
  }
  if (cell.run === waiting.run && !waiting.isRunning) {
    return 'has';
  }
  return sha256(cell.source) === waiting.code ? 'take' : 'changed';
}

/** The least that turns the outputs of a cell into newer ones. */
export type OutputChange =
  | { readonly kind: 'none' }
  | { readonly kind: 'replace' }
  | {
      readonly kind: 'grow';
      /** Outputs that stay where they are and have changed. */
      readonly changed: readonly (readonly [number, Output])[];
      /** What comes behind them; a text that begins it goes on with the last one's. */
      readonly added: readonly Output[];
    };

/**
 * Compare two outputs of one run, so that a cell that runs does not flicker with each look.
 *
 * @param before - What the page has put into the cell; null when it has not.
 */
export function changeOf(
  before: readonly Output[] | null,
  after: readonly Output[]
): OutputChange {
  if (before === null || after.length < before.length) {
    return { kind: 'replace' };
  }
  const changed: [number, Output][] = [];
  const added: Output[] = [];
  for (const [index, output] of after.entries()) {
    const old = before[index];
    if (old === undefined) {
      added.push(output);
    } else if (JSON.stringify(old) !== JSON.stringify(output)) {
      const rest = index === before.length - 1 ? goesOn(old, output) : null;
      if (rest !== null) {
        added.push(rest);
      } else if (isText(old) || isText(output)) {
        return { kind: 'replace' };
      } else {
        changed.push([index, output]);
      }
    }
  }
  return changed.length === 0 && added.length === 0
    ? { kind: 'none' }
    : { kind: 'grow', changed, added };
}

function isText(output: Output): boolean {
  return output['output_type'] === 'stream';
}

/** A text of nbformat, which may be cut into lines. */
function textOf(output: Output): string {
  const text: unknown = output['text'];
  return Array.isArray(text) ? text.join('') : String(text);
}

/** What a text has more than it had; null when it is another one. */
function goesOn(old: Output, output: Output): Output | null {
  if (!isText(old) || !isText(output) || old['name'] !== output['name']) {
    return null;
  }
  const [before, after] = [textOf(old), textOf(output)];
  return after.startsWith(before)
    ? { ...output, text: after.slice(before.length) }
    : null;
}

/**
 * What a page says of cells that it left alone because their text has changed.
 *
 * JupyterLab cuts a notification off behind 140 signs.
 */
export function changedSentence(
  count: number,
  notebook: string,
  trans: ITranslate
): string {
  const where = shortName(notebook);
  return count === 1
    ? trans.__(
        '%1: a cell has ended, but was edited meanwhile. Its outputs are left as they were: run it again.',
        where
      )
    : trans.__(
        '%1: %2 cells have ended, but were edited meanwhile. Their outputs are left as they were: run them again.',
        where,
        count
      );
}

/** Fates of a cell behind which a queue goes on; a kernel has other words for them than a journal. */
const GOES_ON: ReadonlySet<string> = new Set(['ok', 'succeeded', 'unknown']);

/** Cells that were handed over to the sandbox, and whose outputs have not come yet. */
export class ExpectedCells {
  /**
   * @param runs - The run that each cell has had so far, by the cell's id, in their order.
   * @param allowed - The cells whose errors stop nothing.
   */
  constructor(
    runs: ReadonlyMap<string, string | null>,
    allowed: ReadonlySet<string>
  ) {
    this._runs = new Map(runs);
    this._allowed = allowed;
  }

  /** The cells that are still awaited. */
  get ids(): readonly string[] {
    return [...this._runs.keys()];
  }

  /** Whether a cell is awaited, and this run is the one before. */
  isStillAt(id: string, run: string): boolean {
    return this._runs.get(id) === run;
  }

  /**
   * Note what has come.
   *
   * @returns The cells that will not run any more, because one before them failed.
   */
  note(cells: ReadonlyMap<string, IWaitingCell>): readonly string[] {
    let isStopped = false;
    for (const [id, waiting] of cells) {
      if (!this._runs.has(id) || this._runs.get(id) === waiting.run) {
        continue;
      }
      if (!waiting.isRunning) {
        this._runs.delete(id);
        isStopped ||=
          !GOES_ON.has(waiting.fate ?? 'ok') && !this._allowed.has(id);
      }
    }
    if (!isStopped) {
      return [];
    }
    const rest = this.ids;
    this._runs.clear();
    return rest;
  }

  private readonly _runs: Map<string, string | null>;
  private readonly _allowed: ReadonlySet<string>;
}
