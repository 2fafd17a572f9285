/** Which deadlines, and which memory, deserve a warning, and when it is out of date. Pure. */

import {
  DEFAULT_THRESHOLDS,
  type DeadlineKind,
  deadlinesOf,
  type IDeadline,
  type IReading,
  type IThresholds
} from './countdown';
import type { IMeter, IResources } from './protocol';

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

/** What is older is shown as old, and warns of nothing. */
export const FRESH_MS = 60_000;

const NEARLY_FULL: Readonly<Record<WarningLevel, number>> = {
  soon: 0.85,
  urgent: 0.95
};

/** By how much emptier a memory must be before it is warned of again. */
const REARM_FULLNESS = 0.05;

/** How pressing it is that memory fills up. */
export function memoryLevel(memory: IMeter | null): WarningLevel | 'calm' {
  const part = memory ? memory.used / memory.limit : 0;
  return part >= NEARLY_FULL.urgent
    ? 'urgent'
    : part >= NEARLY_FULL.soon
      ? 'soon'
      : 'calm';
}

export interface IMemoryChange {
  readonly raise: WarningLevel | null;
  readonly clear: boolean;
}

/** Remembers what was said of each sandbox's memory, so that it is said once. */
export class MemoryTracker {
  /** Note what is used now; null when that is not known, or no longer true. */
  observe(sandboxId: string, resources: IResources | null): IMemoryChange {
    const memory = resources?.memory ?? null;
    const said = this._said.get(sandboxId) ?? null;
    const part = memory ? memory.used / memory.limit : 0;
    const clear = said !== null && part < NEARLY_FULL[said] - REARM_FULLNESS;
    if (clear) {
      this._said.delete(sandboxId);
    }
    const level = memoryLevel(memory);
    const now = this._said.get(sandboxId) ?? null;
    if (level === 'calm' || now === 'urgent' || now === level) {
      return { raise: null, clear };
    }
    this._said.set(sandboxId, level);
    return { raise: level, clear };
  }

  /** Forget the sandboxes that are no longer there; return those that something was said of. */
  keepOnly(sandboxIds: readonly string[]): string[] {
    const gone = [...this._said.keys()].filter(id => !sandboxIds.includes(id));
    gone.forEach(id => this._said.delete(id));
    return gone;
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
