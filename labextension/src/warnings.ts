/** Which deadlines deserve a notification, and when it is out of date. Pure. */

import {
  DEFAULT_THRESHOLDS,
  type DeadlineKind,
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

/**
 * Remembers what was said about each deadline, so that it is said once.
 *
 * A sandbox that always hibernates a few minutes after its last cell would be "soon" all its life;
 * the early warning is therefore for a hibernation that lay beyond the threshold after the last
 * activity. The urgent one always comes.
 */
export class WarningTracker {
  /** Note a reading, and learn what to say and what to take back. */
  observe(
    sandboxId: string,
    reading: IReading,
    thresholds: IThresholds = DEFAULT_THRESHOLDS
  ): IWarningChange {
    const raise: IWarning[] = [];
    const clear: Pick<IWarning, 'sandboxId' | 'kind'>[] = [];
    const kinds: [DeadlineKind, number | null][] = [
      ['hibernation', reading.hibernatesInMs],
      ['expiry', reading.expiresInMs]
    ];
    for (const [kind, remainingMs] of kinds) {
      const key = `${kind}:${sandboxId}`;
      const said = this._said.get(key);
      if (remainingMs === null || remainingMs === 0) {
        if (said) {
          this._said.delete(key);
          clear.push({ sandboxId, kind });
        }
        continue;
      }
      const level = levelOf(kind, remainingMs, reading, thresholds);
      if (said && isMovedBack(said, remainingMs, thresholds)) {
        this._said.delete(key);
        clear.push({ sandboxId, kind });
      }
      const now = this._said.get(key);
      if (level && (!now || (now === 'soon' && level === 'urgent'))) {
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

function levelOf(
  kind: DeadlineKind,
  remainingMs: number,
  reading: IReading,
  thresholds: IThresholds
): WarningLevel | null {
  if (remainingMs <= thresholds.urgentMs) {
    return 'urgent';
  }
  if (remainingMs > thresholds.soonMs) {
    return null;
  }
  const wholeMs =
    kind === 'hibernation' && reading.idleMs !== null
      ? reading.idleMs + remainingMs
      : Infinity;
  return wholeMs > thresholds.soonMs ? 'soon' : null;
}

function isMovedBack(
  said: WarningLevel,
  remainingMs: number,
  thresholds: IThresholds
): boolean {
  const limit = said === 'urgent' ? thresholds.urgentMs : thresholds.soonMs;
  return remainingMs > limit + REARM_MARGIN_MS;
}
