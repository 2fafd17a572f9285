/**
 * Durations and sentences, as a person reads them.
 *
 * Every text goes through a translator; what the platform wrote is passed through as it is.
 */

import type { DeadlineKind, IReading } from './countdown';
import {
  type Action,
  type IMeter,
  type IResources,
  isCreatable,
  type ISandbox,
  type IStatus,
  type SandboxState
} from './protocol';

/** The part of JupyterLab's `TranslationBundle` that is used here. */
export interface ITranslate {
  __(msgid: string, ...args: (string | number)[]): string;
}

/** English as written: for the notebook widget, which has no translator at hand. */
export const english: ITranslate = {
  __: (msgid, ...args) =>
    msgid.replace(/%(\d)/g, (_, position: string) =>
      String(args[Number(position) - 1] ?? '')
    )
};

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** Two parts of a duration, the larger ones; seconds are shown below an hour. */
function twoParts(wholeMs: number, trans: ITranslate): string {
  const pad = (value: number): string => String(value).padStart(2, '0');
  if (wholeMs < MINUTE) {
    return trans.__('%1 s', wholeMs / SECOND);
  }
  if (wholeMs < HOUR) {
    const seconds = Math.floor((wholeMs % MINUTE) / SECOND);
    return trans.__('%1 min %2 s', Math.floor(wholeMs / MINUTE), pad(seconds));
  }
  if (wholeMs < DAY) {
    const minutes = Math.floor((wholeMs % HOUR) / MINUTE);
    return trans.__('%1 h %2 min', Math.floor(wholeMs / HOUR), pad(minutes));
  }
  const hours = Math.floor((wholeMs % DAY) / HOUR);
  return trans.__('%1 d %2 h', Math.floor(wholeMs / DAY), hours);
}

/** What is left: rounded up, so that only nothing left reads as 0 s. */
export function formatRemaining(ms: number, trans: ITranslate): string {
  return twoParts(Math.ceil(Math.max(0, ms) / SECOND) * SECOND, trans);
}

/** What has passed: rounded down. */
export function formatElapsed(ms: number, trans: ITranslate): string {
  return twoParts(Math.floor(Math.max(0, ms) / SECOND) * SECOND, trans);
}

/** One part of a duration, for little room and for announcements: whole minutes, rounded up. */
export function formatRough(ms: number, trans: ITranslate): string {
  const left = Math.max(0, ms);
  if (left <= 2 * MINUTE) {
    return formatRemaining(left, trans);
  }
  if (left < 2 * HOUR) {
    return trans.__('%1 min', Math.ceil(left / MINUTE));
  }
  return left < 2 * DAY
    ? trans.__('%1 h', Math.ceil(left / HOUR))
    : trans.__('%1 d', Math.ceil(left / DAY));
}

/** How long ago something was. */
export function formatAgo(ms: number, trans: ITranslate): string {
  if (ms < 10 * SECOND) {
    return trans.__('just now');
  }
  if (ms < 2 * MINUTE) {
    return trans.__('%1 s ago', Math.floor(ms / (10 * SECOND)) * 10);
  }
  if (ms < 2 * HOUR) {
    return trans.__('%1 min ago', Math.floor(ms / MINUTE));
  }
  return ms < 2 * DAY
    ? trans.__('%1 h ago', Math.floor(ms / HOUR))
    : trans.__('%1 d ago', Math.floor(ms / DAY));
}

/** As JupyterLab counts the sizes of files: 1 GB is 1024 MB. */
const UNITS: readonly (readonly [string, number])[] = [
  ['TB', 2 ** 40],
  ['GB', 2 ** 30],
  ['MB', 2 ** 20]
];

function unitOf(meter: IMeter): readonly [string, number] {
  return UNITS.find(([, size]) => meter.limit >= size) ?? ['MB', 2 ** 20];
}

function shortNumber(value: number): string {
  return value >= 100 ? value.toFixed(0) : value.toFixed(1).replace(/\.0$/, '');
}

/** Bytes in use and at most, for example `15.9 of 16 GB`. */
export function formatBytes(meter: IMeter, trans: ITranslate): string {
  const [unit, size] = unitOf(meter);
  const used = shortNumber(meter.used / size);
  return trans.__('%1 of %2 %3', used, shortNumber(meter.limit / size), unit);
}

/** The same for little room: `15.9/16 GB`. */
export function formatBytesShort(meter: IMeter): string {
  const [unit, size] = unitOf(meter);
  return `${shortNumber(meter.used / size)}/${shortNumber(meter.limit / size)} ${unit}`;
}

/** How busy all processors are, and how many there are; `used` is percent of one. */
export function formatCpu(meter: IMeter, trans: ITranslate): string {
  const percent = (meter.used / meter.limit).toFixed(0);
  return meter.limit === 1
    ? trans.__('%1 % of 1 core', percent)
    : trans.__('%1 % of %2 cores', percent, shortNumber(meter.limit));
}

/** What a sandbox uses, in one line; empty when nothing is known. */
export function formatResources(
  resources: IResources,
  trans: ITranslate
): string {
  const { memory, cpu, disk } = resources;
  return [
    memory && trans.__('Memory %1', formatBytes(memory, trans)),
    cpu && trans.__('CPU %1', formatCpu(cpu, trans)),
    disk && trans.__('disk %1', formatBytes(disk, trans)),
    ...resources.gpus.map(
      ({ name, memory: own }) => `${name} ${formatBytes(own, trans)}`
    )
  ]
    .filter(Boolean)
    .join(', ');
}

/** What a memory that is nearly full means. */
export function memorySentence(memory: IMeter, trans: ITranslate): string {
  return trans.__(
    'Memory is %1 % full (%2). When it is full, its Python is killed and the variables are lost.',
    Math.floor((100 * memory.used) / memory.limit),
    formatBytes(memory, trans)
  );
}

/**
 * The word for a state.
 *
 * @param status - As it reads now: see `statusNow`.
 */
export function stateLabel(
  status: Pick<IStatus, 'state' | 'rawState' | 'label'>,
  trans: ITranslate
): string {
  return status.label ?? ownLabel(status.state, status.rawState, trans);
}

function ownLabel(
  state: SandboxState,
  rawState: string | null,
  trans: ITranslate
): string {
  switch (state) {
    case 'none':
      return trans.__('Not started');
    case 'provisioning':
      return trans.__('Starting');
    case 'active':
      return trans.__('Active');
    case 'hibernating':
      return trans.__('Hibernating');
    case 'hibernated':
      return trans.__('Hibernated');
    case 'restoring':
      return trans.__('Resuming');
    case 'archived':
      return trans.__('Archived');
    case 'failed':
      return trans.__('Failed');
    case 'expired':
      return trans.__('Expired');
    case 'unknown':
      return rawState === null
        ? trans.__('Unknown')
        : trans.__('Unknown (%1)', rawState);
  }
}

/**
 * What the state means for the user, and what to do; empty when the rest of the view says it.
 *
 * @param status - As it reads now: see `statusNow`.
 * @param canCreate - Whether the view has the button.
 */
export function stateHint(
  status: IStatus,
  canCreate: boolean,
  trans: ITranslate
): string {
  if (status.hint !== null) {
    return status.hint;
  }
  const sentences = ownHint(status, trans);
  if (canCreate && isCreatable(status.state) && status.state !== 'none') {
    sentences.push(
      resumes(status)
        ? trans.__('Press Resume to bring its files back.')
        : trans.__('Press Create for a new one.')
    );
  }
  return sentences.join(' ');
}

function ownHint(status: IStatus, trans: ITranslate): string[] {
  switch (status.state) {
    case 'none':
      return [trans.__('The first cell that needs the sandbox starts it.')];
    case 'hibernating':
      return [trans.__('Running processes are being stopped; files are kept.')];
    case 'hibernated':
      return [trans.__('Files are kept, variables are gone.')];
    case 'archived':
      return [
        status.resumable === true
          ? trans.__('Files are kept in a snapshot.')
          : trans.__('It was put away.')
      ];
    case 'failed':
      return [trans.__('It could not start.')];
    case 'expired':
      return [trans.__('Its running time is over and variables are gone.')];
    case 'unknown':
      return [
        status.rawState === null
          ? trans.__('Its state could not be read. Reconnect asks again.')
          : trans.__(
              'The platform gave a state that this version does not know. Reconnect asks again.'
            )
      ];
    case 'provisioning':
    case 'active':
    case 'restoring':
      return [];
  }
}

/** The name of a step of a start. */
export function phaseLabel(phase: string, trans: ITranslate): string {
  switch (phase) {
    case 'compute':
      return trans.__('Compute');
    case 'mount':
      return trans.__('Mount');
    case 'ready':
      return trans.__('Ready');
    default:
      return phase;
  }
}

/** How a start goes on. */
export function etaSentence(reading: IReading, trans: ITranslate): string {
  if (reading.etaMs === null) {
    return trans.__('No estimate yet');
  }
  return reading.etaMs === 0
    ? trans.__('Taking longer than estimated')
    : trans.__('About %1 left', formatRemaining(reading.etaMs, trans));
}

/**
 * A deadline, in one sentence with what to do.
 *
 * @param keepsAwake - Whether a cell that runs puts the hibernation off.
 */
export function deadlineSentence(
  kind: DeadlineKind,
  remainingMs: number,
  keepsAwake: boolean,
  trans: ITranslate
): string {
  const left = formatRough(remainingMs, trans);
  if (kind === 'expiry') {
    return trans.__(
      'Expires in %1, and variables are lost. Save what you need.',
      left
    );
  }
  return keepsAwake
    ? trans.__(
        'Hibernates in %1, and variables are lost. Run a cell to keep it awake.',
        left
      )
    : trans.__(
        'Hibernates in %1, and variables are lost. Save what you need.',
        left
      );
}

/** Whether to say that a cell keeps the sandbox awake: unless the server knows that it does not. */
export function keepsAwake(status: IStatus): boolean {
  return status.keepsAwake ?? true;
}

/** A deadline in two or three words. */
export function deadlineLabel(
  kind: DeadlineKind,
  remainingMs: number,
  trans: ITranslate
): string {
  if (remainingMs <= 0) {
    return kind === 'hibernation'
      ? trans.__('hibernates now')
      : trans.__('expires now');
  }
  const left = formatRough(remainingMs, trans);
  return kind === 'hibernation'
    ? trans.__('hibernates in %1', left)
    : trans.__('expires in %1', left);
}

/** The words on an action's button. */
export function actionLabel(
  action: Action,
  status: IStatus,
  trans: ITranslate
): string {
  switch (action) {
    case 'create':
      return resumes(status) ? trans.__('Resume') : trans.__('Create');
    case 'reconnect':
      return trans.__('Reconnect');
    case 'terminate':
      return trans.__('Terminate…');
  }
}

/** The words on the button while its action is under way. */
export function busyLabel(
  action: Action,
  status: IStatus,
  trans: ITranslate
): string {
  switch (action) {
    case 'create':
      return resumes(status) ? trans.__('Resuming…') : trans.__('Creating…');
    case 'reconnect':
      return trans.__('Reconnecting…');
    case 'terminate':
      return trans.__('Terminating…');
  }
}

/**
 * Whether creating the sandbox brings something back.
 *
 * @param status - As it reads now: see `statusNow`.
 */
export function resumes(status: IStatus): boolean {
  return (
    status.resumes ??
    (status.state === 'hibernated' ||
      ((status.state === 'archived' || status.state === 'expired') &&
        status.resumable === true))
  );
}

export function terminateQuestion(name: string, trans: ITranslate): string {
  return trans.__('Terminate “%1”?', name);
}

export function terminateWarning(trans: ITranslate): string {
  return trans.__(
    'The sandbox is shut down now. Its variables and running cells are lost, and so are files that the platform does not keep.'
  );
}

const DIALECT_NAMES = new Map([
  ['ivy', 'Ivy'],
  ['recoup', 'Recoup'],
  ['ivy+recoup', 'Ivy, Recoup']
]);

/** Which platform the sandbox is of. */
export function sourceLabel(
  sandbox: Pick<ISandbox, 'local'>,
  status: IStatus,
  trans: ITranslate
): string {
  const dialect =
    status.dialect === null
      ? null
      : (DIALECT_NAMES.get(status.dialect) ?? status.dialect);
  if (sandbox.local) {
    return dialect === null
      ? trans.__('Local')
      : trans.__('Local (%1)', dialect);
  }
  return dialect ?? trans.__('Unknown');
}

/** Why the figures may be wrong, and from when they are. */
export function staleAdvice(
  status: IStatus,
  reading: IReading,
  trans: ITranslate
): IAdvice {
  const reason = status.staleReason ?? trans.__('No fresh status.');
  const { cause, remedy } = adviceIn(reason);
  const isNeverSeen = reading.state === 'unknown' && status.rawState === null;
  const seen = trans.__('Last seen %1.', formatAgo(reading.ageMs, trans));
  return { remedy, cause: isNeverSeen ? cause : `${cause} ${seen}` };
}

/** A sentence about something that went wrong, in its two parts. */
export interface IAdvice {
  /** What to do; empty when the sentence does not say it. */
  readonly remedy: string;
  readonly cause: string;
}

/** Where the platform's own words begin, which end a sentence of ours. */
const QUOTED = ' (the platform says: ';

/**
 * Where a sentence of ours goes over to what to do: a clause that begins with an imperative, or
 * with the condition of one.
 *
 * `tests/api/test_error_sentences.py` holds the sentences to it.
 */
const IMPERATIVE =
  /(?:^|[;.:] )(?=(?:if [^,;.]{1,60}, )?(?:add|ask|check|choose|correct|delete|free|give|install|let|load|look|open|press|put|raise|reload|remove|restart|run|save|send|set|split|start|try|unset|update|use|wait|write)\b)/i;

/** Part a sentence into what has happened and what to do; together they are the whole of it. */
export function adviceIn(sentence: string): IAdvice {
  const quotedAt = sentence.lastIndexOf(QUOTED);
  const ours = quotedAt < 0 ? sentence : sentence.slice(0, quotedAt);
  const quoted = quotedAt < 0 ? '' : sentence.slice(quotedAt);
  const found = IMPERATIVE.exec(ours);
  if (found === null) {
    return { remedy: '', cause: sentence };
  }
  const remedy = ours.slice(found.index + found[0].length);
  const cause = ours.slice(0, found.index) + quoted;
  return { remedy: asSentence(remedy), cause: asSentence(cause) };
}

/** The same, in one text that may be cut off at its end. */
export function remedyFirst({ cause, remedy }: IAdvice): string {
  return remedy === '' ? cause : `${remedy} ${cause}`.trim();
}

function asSentence(words: string): string {
  const trimmed = words.trim();
  return trimmed === ''
    ? ''
    : trimmed.charAt(0).toUpperCase() +
        trimmed.slice(1) +
        (/[.!?]$/.test(trimmed) ? '' : '.');
}

/** The most that a name may take of a sentence that is cut off somewhere. */
const NAME_LIMIT_CHARACTERS = 48;

/** A name for little room; its beginning and its end tell it from others. */
export function shortName(name: string): string {
  if (name.length <= NAME_LIMIT_CHARACTERS) {
    return name;
  }
  const half = (NAME_LIMIT_CHARACTERS - 1) >> 1;
  return `${name.slice(0, half)}…${name.slice(-half)}`;
}
