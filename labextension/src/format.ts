/**
 * Durations and sentences, as a person reads them.
 *
 * Every text goes through a translator; what the platform wrote is passed through as it is.
 */

import type { DeadlineKind, IReading } from './countdown';
import type { Action, ISandbox, IStatus, SandboxState } from './protocol';

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

/** The word for a state. */
export function stateLabel(
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

/** What the state means for the user, and what to do; empty when the rest of the view says it. */
export function stateHint(
  status: IStatus,
  reading: IReading,
  trans: ITranslate
): string {
  switch (reading.state) {
    case 'none':
      return trans.__('The first cell that needs the sandbox starts it.');
    case 'hibernating':
      return trans.__('Running processes are being stopped; files are kept.');
    case 'hibernated':
      return trans.__(
        'Files are kept, variables are gone. The next cell resumes it, or press Resume.'
      );
    case 'archived':
      return status.resumable === true
        ? trans.__(
            'Files are kept in a snapshot. Press Resume to bring them back.'
          )
        : trans.__('It was put away. Press Create for a new one.');
    case 'failed':
      return trans.__('It could not start. Press Create to try again.');
    case 'expired':
      return status.resumable === true
        ? trans.__(
            'Its running time is over and variables are gone. Press Resume to bring its files back.'
          )
        : trans.__(
            'Its running time is over and variables are gone. Press Create for a new one.'
          );
    case 'unknown':
      if (status.rawState !== null) {
        return trans.__(
          'The platform gave a state that this version does not know. Reconnect asks again.'
        );
      }
      return trans.__('Its state could not be read. Reconnect asks again.');
    case 'provisioning':
    case 'active':
    case 'restoring':
      return '';
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

/** A deadline, in one sentence with what to do. */
export function deadlineSentence(
  kind: DeadlineKind,
  remainingMs: number,
  trans: ITranslate
): string {
  const left = formatRough(remainingMs, trans);
  return kind === 'hibernation'
    ? trans.__(
        'Hibernates in %1, and variables are lost. Run a cell to keep it awake.',
        left
      )
    : trans.__(
        'Expires in %1, and variables are lost. Save what you need.',
        left
      );
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

/** Whether creating the sandbox brings something back. */
function resumes(status: IStatus): boolean {
  return (
    status.state === 'hibernated' ||
    ((status.state === 'archived' || status.state === 'expired') &&
      status.resumable === true)
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

/** Which platform the sandbox is of. */
export function sourceLabel(
  sandbox: Pick<ISandbox, 'local'>,
  status: IStatus,
  trans: ITranslate
): string {
  const dialect =
    status.dialect === 'ivy'
      ? 'Ivy'
      : status.dialect === 'recoup'
        ? 'Recoup'
        : status.dialect;
  if (sandbox.local) {
    return dialect === null
      ? trans.__('Local')
      : trans.__('Local (%1)', dialect);
  }
  return dialect ?? trans.__('Unknown');
}

/** Why the figures may be wrong, and from when they are; empty when they are fresh. */
export function staleSentence(
  status: IStatus,
  reading: IReading,
  trans: ITranslate
): string {
  if (reading.state === 'unknown' && status.rawState === null) {
    return status.staleReason ?? trans.__('No fresh status.'); // never seen
  }
  const seen = trans.__('Last seen %1.', formatAgo(reading.ageMs, trans));
  return status.staleReason === null
    ? trans.__('No fresh status. %1', seen)
    : `${status.staleReason} ${seen}`;
}
