import { describe, expect, it } from 'vitest';

import { type IReading, readStatus } from '../src/countdown';
import { WarningTracker } from '../src/warnings';
import { status } from './samples';

const MINUTE = 60_000;

function reading(fields: Record<string, number | null>): IReading {
  const none = { uptime_ms: null, idle_ms: null, hibernates_in_ms: null };
  return readStatus(status({ ...none, expires_in_ms: null, ...fields }), 0);
}

function expiry(minutes: number): IReading {
  return reading({ expires_in_ms: minutes * MINUTE });
}

describe('WarningTracker', () => {
  it('warns once at ten minutes and once at two', () => {
    const tracker = new WarningTracker();
    const levels = [30, 11, 10, 9, 5, 2, 1.5, 1].map(minutes =>
      tracker.observe('a', expiry(minutes)).raise.map(one => one.level)
    );
    expect(levels).toEqual([[], [], ['soon'], [], [], ['urgent'], [], []]);
  });

  it('warns at first sight of a deadline that is already near', () => {
    const tracker = new WarningTracker();
    expect(tracker.observe('a', expiry(1)).raise[0]?.level).toBe('urgent');
  });

  it('takes a warning back when the deadline moves away, and warns again', () => {
    const tracker = new WarningTracker();
    tracker.observe('a', expiry(1));
    expect(tracker.observe('a', expiry(25)).clear).toEqual([
      { sandboxId: 'a', kind: 'expiry' }
    ]);
    expect(tracker.observe('a', expiry(1)).raise).toHaveLength(1);
  });

  it('does not flicker at a threshold', () => {
    const tracker = new WarningTracker();
    tracker.observe('a', expiry(2));
    expect(tracker.observe('a', expiry(2.1))).toEqual({ raise: [], clear: [] });
  });

  it('takes a warning back when its time has come, or the sandbox is gone', () => {
    const tracker = new WarningTracker();
    tracker.observe('a', expiry(1));
    tracker.observe('b', expiry(1));
    expect(tracker.observe('a', reading({})).clear).toHaveLength(1);
    expect(tracker.keepOnly(['a']).clear).toEqual([
      { sandboxId: 'b', kind: 'expiry' }
    ]);
  });

  it('is silent for most of a short life, warns twice, and again after the next cell', () => {
    const tracker = new WarningTracker();
    const at = (idle: number) =>
      tracker
        .observe(
          'a',
          reading({
            idle_ms: idle * MINUTE,
            hibernates_in_ms: (5 - idle) * MINUTE
          })
        )
        .raise.map(one => one.level);
    const life = [0, 0.05, 2, 3.3, 3.4, 4, 4.5, 4.9];
    const heard = [[], [], [], [], ['soon'], [], ['urgent'], []];
    expect(life.map(at)).toEqual(heard);
    expect(life.map(at)).toEqual(heard);
  });

  it('gives the early warning of a hibernation that was far', () => {
    const tracker = new WarningTracker();
    const near = reading({
      idle_ms: 25 * MINUTE,
      hibernates_in_ms: 9 * MINUTE
    });
    expect(tracker.observe('a', near).raise[0]).toMatchObject({
      kind: 'hibernation',
      level: 'soon'
    });
  });
});
