/** What the user has chosen in the settings; values that make no sense fall back. Pure. */

import { DEFAULT_THRESHOLDS, type IThresholds } from './countdown';

/** Which facts to show on a card. */
export interface IFactsShown {
  readonly uptime: boolean;
  readonly lastActivity: boolean;
  readonly platform: boolean;
}

/** How often to ask when nothing is pushed. */
export interface IIntervals {
  /** While a sandbox starts, resumes or hibernates. */
  readonly transitionMs: number;
  /** While a sandbox is active. */
  readonly activeMs: number;
  /** While nothing is expected to change. */
  readonly restMs: number;
}

/** What happens about cells that take long. */
export interface ICellPreferences {
  /** From which time on the end of a run is told; null for never. */
  readonly notifyAfterMs: number | null;
  /** Whether the operating system tells it too, where the browser may ask it to. */
  readonly usesSystem: boolean;
  /** Whether the time that each cell took is kept in the notebook. */
  readonly recordsTiming: boolean;
}

export interface IPreferences {
  readonly intervals: IIntervals;
  readonly thresholds: IThresholds;
  /** Whether deadlines come as notifications. */
  readonly notifies: boolean;
  readonly showsStatusItem: boolean;
  readonly showsStatusCountdown: boolean;
  /** Whether the status bar tells of memory that is half full. */
  readonly showsStatusMemory: boolean;
  readonly facts: IFactsShown;
  readonly cells: ICellPreferences;
}

export const ALL_FACTS: IFactsShown = {
  uptime: true,
  lastActivity: true,
  platform: true
};

export const DEFAULT_INTERVALS: IIntervals = {
  transitionMs: 1500,
  activeMs: 15_000,
  restMs: 60_000
};

export const DEFAULT_PREFERENCES: IPreferences = {
  intervals: DEFAULT_INTERVALS,
  thresholds: DEFAULT_THRESHOLDS,
  notifies: true,
  showsStatusItem: true,
  showsStatusCountdown: true,
  showsStatusMemory: true,
  facts: ALL_FACTS,
  cells: { notifyAfterMs: 60_000, usesSystem: true, recordsTiming: true }
};

type Settings = Readonly<Record<string, unknown>>;

/** Read the settings as the registry composes them. */
export function readPreferences(settings: Settings): IPreferences {
  const group = (name: string): Settings => {
    const value = settings[name];
    return typeof value === 'object' && value !== null
      ? (value as Settings)
      : {};
  };
  const polling = group('polling');
  const warnings = group('warnings');
  const statusBar = group('statusBar');
  const details = group('details');
  const cells = group('cells');
  const { intervals, thresholds } = DEFAULT_PREFERENCES;
  const ms = (value: unknown, unitMs: number, fallbackMs: number): number =>
    typeof value === 'number' && value > 0 && Number.isFinite(value)
      ? Math.max(500, value * unitMs)
      : fallbackMs;
  const soonMs = ms(warnings['firstMinutes'], 60_000, thresholds.soonMs);
  return {
    intervals: {
      transitionMs: ms(
        polling['transitionSeconds'],
        1000,
        intervals.transitionMs
      ),
      activeMs: ms(polling['activeSeconds'], 1000, intervals.activeMs),
      restMs: ms(polling['restSeconds'], 1000, intervals.restMs)
    },
    thresholds: {
      soonMs,
      urgentMs: Math.min(
        soonMs,
        ms(warnings['lastMinutes'], 60_000, thresholds.urgentMs)
      )
    },
    notifies: warnings['notifications'] !== false,
    showsStatusItem: statusBar['visible'] !== false,
    showsStatusCountdown: statusBar['countdown'] !== false,
    showsStatusMemory: statusBar['memory'] !== false,
    facts: {
      uptime: details['uptime'] !== false,
      lastActivity: details['lastActivity'] !== false,
      platform: details['platform'] !== false
    },
    cells: {
      notifyAfterMs:
        cells['notifyAfterSeconds'] === 0
          ? null
          : ms(cells['notifyAfterSeconds'], 1000, 60_000),
      usesSystem: cells['systemNotifications'] !== false,
      recordsTiming: cells['recordTiming'] !== false
    }
  };
}
