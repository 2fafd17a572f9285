/** Which deadlines deserve a notification, and when it is out of date. Pure. */

import {
  DEFAULT_THRESHOLDS,
  type DeadlineKind,
  deadlinesOf,
  type IDeadline,
  type IReading,
  type IThresholds
} from './countdown';

export type WarningLevel = 'soon' | 'urgent';

export interface IWarning {
  readonly sandboxId: string;
  readonly kind: DeadlineKind;
  readonly level: WarningLevel;
  readonly remainingMs: number;
}

export interface IWarningChange {
  readonly raise: readonly IWarning[];
  /** Deadlines whose warning no longer holds. */
  readonly clear: readonly Pick<IWarning, 'sandboxId' | 'kind'>[];
}

/** How far above a threshold a deadline must move before its warning may come again. */
const REARM_MARGIN_MS = 15_000;

/** Of a short life, by which part of the threshold. */
const REARM_PART = 1 / 4;

const KINDS: readonly DeadlineKind[] = ['hibernation', 'expiry'];

/** Remembers what was said about each deadline, so that it is said once. */
export class WarningTracker {
  /** Note a reading, and learn what to say and what to take back. */
  observe(
    sandboxId: string,
    reading: IReading,
    thresholds: IThresholds = DEFAULT_THRESHOLDS
  ): IWarningChange {
    const raise: IWarning[] = [];
    const clear: Pick<IWarning, 'sandboxId' | 'kind'>[] = [];
    const deadlines = deadlinesOf(reading, thresholds);
    for (const kind of KINDS) {
      const key = `${kind}:${sandboxId}`;
      const deadline = deadlines.find(one => one.kind === kind);
      const said = this._said.get(key);
      if (said && (!deadline || isMovedBack(said, deadline))) {
        this._said.delete(key);
        clear.push({ sandboxId, kind });
      }
      const now = this._said.get(key);
      if (
        (deadline?.urgency === 'soon' && !now) ||
        (deadline?.urgency === 'urgent' && now !== 'urgent')
      ) {
        const { remainingMs, urgency: level } = deadline;
        this._said.set(key, level);
        raise.push({ sandboxId, kind, level, remainingMs });
      }
    }
    return { raise, clear };
  }

  /** Forget the sandboxes that are no longer there. */
  keepOnly(sandboxIds: readonly string[]): IWarningChange {
    const clear: Pick<IWarning, 'sandboxId' | 'kind'>[] = [];
    for (const key of [...this._said.keys()]) {
      const colon = key.indexOf(':');
      const sandboxId = key.slice(colon + 1);
      if (!sandboxIds.includes(sandboxId)) {
        this._said.delete(key);
        clear.push({ sandboxId, kind: key.slice(0, colon) as DeadlineKind });
      }
    }
    return { raise: [], clear };
  }

  private readonly _said = new Map<string, WarningLevel>();
}

/** Whether a deadline is over, or so far away again that what was said of it holds no longer. */
function isMovedBack(said: WarningLevel, deadline: IDeadline): boolean {
  const { remainingMs, thresholds } = deadline;
  const limitMs = said === 'urgent' ? thresholds.urgentMs : thresholds.soonMs;
  const marginMs = Math.min(REARM_MARGIN_MS, limitMs * REARM_PART);
  return remainingMs === 0 || remainingMs > limitMs + marginMs;
}
