/** Cells that are handed over to the sandbox: how they travel, and what is said before. Pure. */

import type { IReading } from './countdown';
import { formatRough, type ITranslate } from './format';

/** A cell as `%ivy detach` takes it: id, text, and whether an error of it stops nothing. */
type DetachedCell = readonly [string, string, boolean];

/** What `%ivy detach` takes, on one line and safe from what IPython replaces in it. */
export function detachLine(
  cells: readonly DetachedCell[],
  name: string
): string {
  const bytes = new TextEncoder().encode(JSON.stringify({ cells, name }));
  let binary = '';
  for (const byte of bytes) {
    binary += String.fromCharCode(byte);
  }
  return `%ivy detach ${btoa(binary)}`;
}

/** The time that is left, as far as it is known, and what may happen then. */
export function deadlineSentences(
  reading: IReading | null,
  trans: ITranslate
): string[] {
  const hibernates = reading?.hibernatesInMs ?? null;
  const expires = reading?.expiresInMs ?? null;
  const said: string[] = [];
  if (hibernates !== null) {
    said.push(
      trans.__(
        'As things are, the sandbox hibernates in %1.',
        formatRough(hibernates, trans)
      )
    );
  }
  if (expires !== null) {
    said.push(
      trans.__(
        'It expires in %1, whatever runs in it.',
        formatRough(expires, trans)
      )
    );
  }
  if (hibernates === null && expires === null) {
    said.push(
      trans.__('When the sandbox hibernates and expires is not known.')
    );
  }
  said.push(
    trans.__(
      'Whether the platform lets a busy sandbox hibernate is not known either: if it does, the run stops there. Variables of cells that have ended are in checkpoints, and the run can be resumed from them.'
    )
  );
  return said;
}
