/**
 * Time that passes between two statuses.
 *
 * A status carries durations, taken on the server's clock by the far side. From its arrival on they
 * are counted by a monotonic clock alone, so the wall clock of this computer, right or wrong, never
 * reaches a figure. It has one use, in `SleepWatch`: to suspect that the computer was asleep, which
 * costs a refresh when it is wrong.
 */

import type { IStatus, SandboxState } from './protocol';

/**
 * The remaining time below which a deadline is `soon`, and below which it is `urgent`.
 *
 * They hold for long lives; `thresholdsOf` shortens them for short ones.
 */
export interface IThresholds {
  readonly soonMs: number;
  readonly urgentMs: number;
}

export const DEFAULT_THRESHOLDS: IThresholds = {
  soonMs: 10 * 60_000,
  urgentMs: 2 * 60_000
};

/**
 * A deadline is never `soon` before so large a part of its whole time is left, nor `urgent` before
 * so large a one: a sandbox that hibernates five minutes after each cell is not "soon" all its life.
 *
 * `ivy_kernel/session/describe.py` has the same rule; `test/urgency.json` holds both to it.
 */
const SOON_PART = 1 / 3;
const URGENT_PART = 1 / 10;

export type Urgency = 'calm' | 'soon' | 'urgent' | 'over';

export type DeadlineKind = 'hibernation' | 'expiry';

export interface IDeadline {
  readonly kind: DeadlineKind;
  readonly remainingMs: number;
  readonly urgency: Urgency;
  /** Those that the urgency follows from. */
  readonly thresholds: IThresholds;
}

/** A status as it reads some time after its arrival. */
export interface IReading {
  /** The state, with what must have happened since: an active sandbox past its expiry is expired. */
  readonly state: SandboxState;
  readonly etaMs: number | null;
  readonly uptimeMs: number | null;
  readonly idleMs: number | null;
  readonly hibernatesInMs: number | null;
  readonly expiresInMs: number | null;
  /** The age of the platform's answer. */
  readonly ageMs: number;
}

/** States in which the sandbox runs, so that its deadlines and its uptime mean something. */
function isRunning(state: SandboxState): boolean {
  return state === 'active' || state === 'hibernating' || state === 'unknown';
}

function down(ms: number | null, elapsedMs: number): number | null {
  return ms === null ? null : Math.max(0, ms - elapsedMs);
}

function up(ms: number | null, elapsedMs: number): number | null {
  return ms === null ? null : ms + elapsedMs;
}

/**
 * Read a status `elapsedMs` after its arrival.
 *
 * A negative or absurd elapsed time counts as none: no clock error makes a countdown jump up.
 */
export function readStatus(status: IStatus, elapsedMs: number): IReading {
  const elapsed = Number.isFinite(elapsedMs) && elapsedMs > 0 ? elapsedMs : 0;
  const starting =
    status.state === 'provisioning' || status.state === 'restoring';
  const running = isRunning(status.state);
  const expiresInMs = running ? down(status.expiresInMs, elapsed) : null;
  return {
    state:
      status.state === 'active' && expiresInMs === 0 ? 'expired' : status.state,
    etaMs: starting ? down(status.etaMs, elapsed) : null,
    uptimeMs:
      running || starting ? up(status.uptimeMs, elapsed) : status.uptimeMs,
    idleMs: up(status.idleMs, elapsed),
    hibernatesInMs:
      running && status.state !== 'hibernating'
        ? down(status.hibernatesInMs, elapsed)
        : null,
    expiresInMs,
    ageMs: status.ageMs + elapsed
  };
}

/**
 * A status whose words fit a reading of it.
 *
 * What the server says of the state holds for the state that it knew. Where time alone has brought
 * another one, the page goes by what it knows itself, until the server tells.
 */
export function statusNow(status: IStatus, reading: IReading): IStatus {
  return reading.state === status.state
    ? status
    : {
        ...status,
        state: reading.state,
        label: null,
        hint: null,
        resumes: null
      };
}

/** The same status, made `elapsedMs` later. */
export function ageStatus(status: IStatus, elapsedMs: number): IStatus {
  const elapsed = Math.max(0, elapsedMs);
  return {
    ...status,
    etaMs: down(status.etaMs, elapsed),
    hibernatesInMs: down(status.hibernatesInMs, elapsed),
    expiresInMs: down(status.expiresInMs, elapsed),
    uptimeMs: up(status.uptimeMs, elapsed),
    idleMs: up(status.idleMs, elapsed),
    ageMs: status.ageMs + elapsed
  };
}

/**
 * The thresholds for a deadline.
 *
 * @param wholeMs - The time from what set the deadline (the last activity, the start) to it; null
 * when that is not known.
 */
function thresholdsOf(
  wholeMs: number | null,
  { soonMs, urgentMs }: IThresholds
): IThresholds {
  const whole = wholeMs ?? Infinity;
  return {
    soonMs: Math.min(soonMs, whole * SOON_PART),
    urgentMs: Math.min(urgentMs, whole * URGENT_PART)
  };
}

function urgencyOf(remainingMs: number, thresholds: IThresholds): Urgency {
  if (remainingMs <= 0) {
    return 'over';
  }
  if (remainingMs <= thresholds.urgentMs) {
    return 'urgent';
  }
  return remainingMs <= thresholds.soonMs ? 'soon' : 'calm';
}

/** The deadlines that a reading has, nearest first; at a tie the expiry, which loses more. */
export function deadlinesOf(
  reading: IReading,
  thresholds: IThresholds = DEFAULT_THRESHOLDS
): IDeadline[] {
  const deadlines: IDeadline[] = [];
  const add = (
    kind: DeadlineKind,
    remainingMs: number | null,
    passedMs: number | null
  ): void => {
    if (remainingMs !== null) {
      const wholeMs = passedMs === null ? null : passedMs + remainingMs;
      const own = thresholdsOf(wholeMs, thresholds);
      const urgency = urgencyOf(remainingMs, own);
      deadlines.push({ kind, remainingMs, urgency, thresholds: own });
    }
  };
  add('expiry', reading.expiresInMs, reading.uptimeMs);
  add('hibernation', reading.hibernatesInMs, reading.idleMs);
  return deadlines.sort((a, b) => a.remainingMs - b.remainingMs);
}

/** Whether a countdown has just run out, so that the truth must be asked for. */
export function isOverdue(reading: IReading): boolean {
  return (
    reading.hibernatesInMs === 0 ||
    reading.expiresInMs === 0 ||
    reading.etaMs === 0
  );
}

export const PHASES = ['compute', 'mount', 'ready'] as const;

export interface IPhaseStep {
  readonly phase: (typeof PHASES)[number];
  readonly progress: 'done' | 'current' | 'todo' | 'failed';
}

/**
 * The steps of a start.
 *
 * A start that has not said a phase that we know is at the first step. A failure is shown at the
 * step of the last known phase; without one nobody knows where it failed, and there are no steps.
 */
export function phaseSteps(
  status: IStatus,
  lastKnownPhase: string | null = null
): IPhaseStep[] {
  const index = (phase: string | null): number =>
    (PHASES as readonly (string | null)[]).indexOf(phase);
  const failed = status.state === 'failed' || status.phase === 'failed';
  const said = index(status.phase);
  const known = said >= 0 ? said : index(lastKnownPhase);
  if (failed && known < 0) {
    return [];
  }
  const at = Math.max(0, known);
  const arrived = status.state === 'active';
  return PHASES.map((phase, position) => {
    if (arrived || position < at) {
      return { phase, progress: 'done' };
    }
    if (position > at) {
      return { phase, progress: 'todo' };
    }
    return { phase, progress: failed ? 'failed' : 'current' };
  });
}

/**
 * How far a start has come, from 0 to 1, and never backwards.
 *
 * The whole is what has passed since this watch saw the start, plus what is said to be left. Null
 * while nothing is known, and when the time is up although the sandbox is not: then a bar at 100 %
 * would lie.
 */
export class StartProgress {
  update(reading: IReading, nowMs: number): number | null {
    if (reading.state !== 'provisioning' && reading.state !== 'restoring') {
      this._sinceMs = null;
      this._fraction = 0;
      return null;
    }
    this._sinceMs ??= nowMs - (reading.uptimeMs ?? 0);
    if (reading.etaMs === null || reading.etaMs === 0) {
      return null;
    }
    const passedMs = Math.max(0, nowMs - this._sinceMs);
    const fraction = passedMs / (passedMs + reading.etaMs);
    this._fraction = Math.max(this._fraction, fraction);
    return this._fraction;
  }

  private _sinceMs: number | null = null;
  private _fraction = 0;
}

/** How much the two clocks may differ before a sleep is suspected. */
const SLEEP_GAP_MS = 5000;

/**
 * Suspects that the computer has slept.
 *
 * `performance.now()` stops during sleep on most systems, so countdowns would be too long after it.
 * The wall clock goes on. When it has run ahead of the monotonic clock, the caller should ask for a
 * fresh status; a stepped wall clock has the same effect, which is harmless.
 */
export class SleepWatch {
  /** Whether the computer may have slept since the last call. */
  check(monotonicMs: number, wallMs: number): boolean {
    const last = this._last;
    this._last = { monotonicMs, wallMs };
    if (last === null) {
      return false;
    }
    const gap = wallMs - last.wallMs - (monotonicMs - last.monotonicMs);
    return Math.abs(gap) > SLEEP_GAP_MS;
  }

  private _last: { monotonicMs: number; wallMs: number } | null = null;
}
