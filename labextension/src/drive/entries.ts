/**
 * The sandbox's files as the drive names them, and what the server says of them.
 *
 * A path of the drive is `chat/directory/…/name`; its first component stands for the sandbox. The
 * parsers never throw, like those of `protocol.ts`.
 */

import type { ITranslate } from '../format';
import { isCreatable, type ISandbox, type SandboxState } from '../protocol';

/** The name of the drive, which JupyterLab puts before every path: `Ivy:chat/data.csv`. */
export const DRIVE_NAME = 'Ivy';

/** A place in the drive; the root, which lists the sandboxes, is of no chat. */
export interface IPlace {
  /** The first component, as it stands in the path. */
  readonly component: string | null;
  /** The rest: a path in the sandbox. */
  readonly path: string;
}

/** Whether a path of JupyterLab is one of the drive. */
export function isDrivePath(path: string): boolean {
  return path.startsWith(`${DRIVE_NAME}:`);
}

/** Where a path leads, with or without the drive's name. */
export function placeOf(path: string): IPlace {
  const local = isDrivePath(path) ? path.slice(DRIVE_NAME.length + 1) : path;
  const [component = '', ...rest] = local
    .split('/')
    .filter(one => one !== '' && one !== '.');
  return {
    component: component === '' ? null : component,
    path: rest.join('/')
  };
}

/** A chat's id as one component of a path: what would make two of it, or none, is quoted. */
function quoted(chatId: string): string {
  if (chatId === '.' || chatId === '..') {
    return chatId.replace(/\./g, '%2E');
  }
  return chatId.replace(
    /[%/\\\u0000-\u001f\u007f]/g,
    one => `%${one.charCodeAt(0).toString(16).toUpperCase().padStart(2, '0')}`
  );
}

/** The component of each sandbox, by its id; of two with one chat the default one has its name. */
export function componentsOf(
  sandboxes: readonly ISandbox[]
): ReadonlyMap<string, string> {
  const components = new Map<string, string>();
  const taken = new Set<string>();
  const inOrder = [...sandboxes].sort(
    (a, b) => Number(b.isDefault) - Number(a.isDefault)
  );
  for (const { id, chatId } of inOrder) {
    if (chatId !== null) {
      const plain = quoted(chatId);
      const component = taken.has(plain) ? `${plain}@${id.slice(0, 8)}` : plain;
      taken.add(component);
      components.set(id, component);
    }
  }
  return components;
}

/** The sandbox that a place is in. */
export function sandboxAt(
  sandboxes: readonly ISandbox[],
  place: IPlace
): ISandbox | null {
  const components = componentsOf(sandboxes);
  return (
    sandboxes.find(
      one =>
        place.component !== null && components.get(one.id) === place.component
    ) ?? null
  );
}

/** What a browser of the drive has to show. */
export type Shown =
  /** The listing: the sandbox answers, or it is the list of the sandboxes. */
  | 'files'
  /** The sandbox is not active: its state, and what can be done. */
  | 'state'
  /** No such sandbox is in use (any more). */
  | 'gone';

/**
 * What to show at a place.
 *
 * @param state - The state of the sandbox there, as it reads now; null without one.
 */
export function shownAt(place: IPlace, state: SandboxState | null): Shown {
  if (place.component === null) {
    return 'files';
  }
  if (state === null) {
    return 'gone';
  }
  return state === 'active' ? 'files' : 'state';
}

/** The action that brings the files of a sandbox in this state within reach. */
export function wakingAction(
  sandbox: ISandbox,
  state: SandboxState
): 'create' | 'reconnect' | null {
  if (state === 'unknown') {
    return 'reconnect';
  }
  return sandbox.canCreate && isCreatable(state) ? 'create' : null;
}

/** What the platform knows of a file, beside what any file system does. */
export interface IKnown {
  /** "upload", "job output", "export", or another word of the platform. */
  readonly kind: string | null;
  readonly origin: string | null;
  /** As the server wrote it; see `dateText`. */
  readonly created: string | null;
  readonly sizeBytes: number | null;
}

/** An entry of a sandbox's manifest. */
export interface IManifestEntry extends IKnown {
  readonly path: string;
}

type Fields = Record<string, unknown>;

function asFields(value: unknown): Fields | null {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
    ? (value as Fields)
    : null;
}

function text(value: unknown): string | null {
  return typeof value === 'string' && value.trim() !== '' ? value : null;
}

function count(value: unknown): number | null {
  return typeof value === 'number' && Number.isFinite(value) && value >= 0
    ? value
    : null;
}

function knownOf(fields: Fields): IKnown {
  return {
    kind: text(fields['kind']),
    origin: text(fields['origin']),
    created: text(fields['created']),
    sizeBytes: count(fields['size_bytes'])
  };
}

/** What a contents model carries of the manifest; null when nothing is known. */
export function parseKnown(model: unknown): IKnown | null {
  const fields = asFields(asFields(model)?.['ivy']);
  if (!fields) {
    return null;
  }
  const known = knownOf(fields);
  return (known.kind ?? known.origin ?? known.created) ? known : null;
}

/** Read the answer to `GET /ivy/manifest/{chat}`; null when it is none. */
export function parseManifest(value: unknown): IManifestEntry[] | null {
  const list = asFields(value)?.['entries'];
  if (!Array.isArray(list)) {
    return null;
  }
  return (list as unknown[]).flatMap(one => {
    const fields = asFields(one);
    const path = text(fields?.['path']);
    return fields && path !== null ? [{ path, ...knownOf(fields) }] : [];
  });
}

/** How far a transfer has come. */
export interface ITransfer {
  readonly id: string;
  readonly name: string;
  /** The directory that it goes to, as a path of the drive. */
  readonly to: string | null;
  readonly doneBytes: number;
  readonly totalBytes: number | null;
  readonly filesDone: number;
  readonly filesTotal: number | null;
  readonly secondsLeft: number | null;
}

/** The transfers into sandboxes that `GET /ivy/transfers` says are under way. */
export function parseTransfers(value: unknown): ITransfer[] {
  const list = asFields(value)?.['transfers'];
  if (!Array.isArray(list)) {
    return [];
  }
  return (list as unknown[]).flatMap(one => {
    const fields = asFields(one);
    const id = text(fields?.['id']);
    return fields?.['state'] === 'running' && id !== null
      ? [
          {
            id,
            name: text(fields['name']) ?? id,
            to: text(fields['to']),
            doneBytes: count(fields['done_bytes']) ?? 0,
            totalBytes: count(fields['total_bytes']),
            filesDone: count(fields['files_done']) ?? 0,
            filesTotal: count(fields['files_total']),
            secondsLeft: count(fields['seconds_left'])
          }
        ]
      : [];
  });
}

/** What `POST /ivy/send` has copied. */
export interface ISent {
  readonly files: number;
  readonly bytes: number;
}

/** Read the answer to `POST /ivy/send`. */
export function parseSent(value: unknown): ISent {
  const fields = asFields(value);
  return {
    files: count(fields?.['files']) ?? 0,
    bytes: count(fields?.['bytes']) ?? 0
  };
}

const UNITS = ['kB', 'MB', 'GB', 'TB', 'PB'] as const;

/** A size, in powers of 1,000 as JupyterLab's own listing shows it. */
export function sizeText(bytes: number, trans: ITranslate): string {
  if (bytes < 1000) {
    return trans.__('%1 B', Math.round(bytes));
  }
  let value = bytes / 1000;
  let unit: string = UNITS[0];
  for (const next of UNITS.slice(1)) {
    // What would be rounded to 1000 is one of the next unit.
    if (value < 999.5) {
      break;
    }
    value /= 1000;
    unit = next;
  }
  return `${value < 10 ? value.toFixed(1) : String(Math.round(value))} ${unit}`;
}

/** A time in the reader's own zone; what is none is shown as the platform wrote it. */
export function dateText(value: string): string {
  const ms = Date.parse(value);
  return Number.isNaN(ms) ? value : new Date(ms).toLocaleString();
}

/** What is known of a file, line by line: what it is called, and what it is. */
export function knownFacts(
  known: IKnown,
  trans: ITranslate
): (readonly [label: string, value: string])[] {
  const facts: [string, string][] = [];
  if (known.kind !== null) {
    facts.push([trans.__('Kind'), known.kind]);
  }
  if (known.origin !== null) {
    facts.push([trans.__('Origin'), known.origin]);
  }
  if (known.created !== null) {
    facts.push([trans.__('Created'), dateText(known.created)]);
  }
  if (known.sizeBytes !== null) {
    facts.push([trans.__('Size'), sizeText(known.sizeBytes, trans)]);
  }
  return facts;
}

/** The lines that an entry's tooltip has beside JupyterLab's own. */
export function hoverLines(
  model: unknown,
  isWritable: boolean,
  trans: ITranslate
): string {
  const known = parseKnown(model);
  const lines = known
    ? knownFacts({ ...known, sizeBytes: null }, trans).map(([label, value]) =>
        trans.__('%1: %2', label, value)
      )
    : [];
  if (!isWritable) {
    lines.push(trans.__('Read-only: it cannot be changed from here.'));
  }
  return lines.map(line => `\n${line}`).join('');
}

/** How a transfer under way reads in a notification. */
export function transferText(one: ITransfer, trans: ITranslate): string {
  const done = sizeText(one.doneBytes, trans);
  return one.totalBytes === null
    ? trans.__('%1: %2 so far', one.name, done)
    : trans.__('%1: %2 of %3', one.name, done, sizeText(one.totalBytes, trans));
}

/** The part of a transfer that is done, from 0 to 1; null while nobody knows. */
export function transferFraction(one: ITransfer): number | null {
  return one.totalBytes === null || one.totalBytes === 0
    ? null
    : Math.min(1, one.doneBytes / one.totalBytes);
}

/** What was sent, in one sentence. */
export function sentText(
  sent: ISent,
  target: string,
  trans: ITranslate
): string {
  const size = sizeText(sent.bytes, trans);
  return sent.files === 1
    ? trans.__('Sent 1 file (%1) to %2.', size, target)
    : trans.__('Sent %1 files (%2) to %3.', sent.files, size, target);
}
