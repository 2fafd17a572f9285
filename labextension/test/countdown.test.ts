import fc from 'fast-check';
import { describe, expect, it } from 'vitest';

import {
  ageStatus,
  deadlinesOf,
  isOverdue,
  phaseSteps,
  readStatus,
  SleepWatch,
  StartProgress
} from '../src/countdown';
import { STARTING, status } from './samples';
import urgencies from './urgency.json';

describe('readStatus', () => {
  it('counts down what is left and up what has passed', () => {
    expect(readStatus(status(), 10_000)).toEqual({
      state: 'active',
      etaMs: null,
      uptimeMs: 70_000,
      idleMs: 40_000,
      hibernatesInMs: 1_190_000,
      expiresInMs: 1_790_000,
      ageMs: 10_120
    });
  });

  it('stops at zero', () => {
    const reading = readStatus(status({ hibernates_in_ms: 5000 }), 6000);
    expect(reading.hibernatesInMs).toBe(0);
  });

  it('reads an active sandbox past its expiry as expired', () => {
    expect(readStatus(status({ expires_in_ms: 1000 }), 1000).state).toBe(
      'expired'
    );
  });

  it('leaves a sandbox past its hibernation active until the server says so', () => {
    const reading = readStatus(status({ hibernates_in_ms: 0 }), 0);
    expect(reading.state).toBe('active');
    expect(isOverdue(reading)).toBe(true);
  });

  it.each(['none', 'hibernated', 'archived', 'failed', 'expired'])(
    'has no deadlines in the state %s',
    state => {
      expect(deadlinesOf(readStatus(status({ state }), 0))).toEqual([]);
    }
  );

  it('has an estimate only during a start', () => {
    expect(readStatus(status(STARTING), 2000).etaMs).toBe(40_000);
    expect(readStatus(status({ eta_ms: 5000 }), 0).etaMs).toBeNull();
  });

  it('never goes up or below zero as time passes, whatever the clock says', () => {
    const times = fc.array(fc.double({ min: -1e9, max: 1e9, noNaN: true }), {
      minLength: 1
    });
    const left = fc.integer({ min: 0, max: 1e9 });
    fc.assert(
      fc.property(left, times, (expires_in_ms, elapsed) => {
        const given = status({ expires_in_ms });
        let last = expires_in_ms;
        for (const ms of [...elapsed].sort((a, b) => a - b)) {
          const now = readStatus(given, ms).expiresInMs ?? -1;
          expect(now).toBeGreaterThanOrEqual(0);
          expect(now).toBeLessThanOrEqual(last);
          last = now;
        }
      })
    );
  });

  it('takes a time that is no number for none', () => {
    const given = status({ expires_in_ms: 5000 });
    expect(readStatus(given, NaN).expiresInMs).toBe(5000);
  });

  it('agrees with a status that was moved on first', () => {
    fc.assert(
      fc.property(fc.nat(2e6), fc.nat(2e6), (first, second) => {
        const given = status();
        const moved = readStatus(ageStatus(given, first), second);
        expect(moved).toEqual(readStatus(given, first + second));
      })
    );
  });
});

describe('urgency', () => {
  it.each(urgencies)(
    'of a $kind $leftSeconds s away, $passedSeconds s after what set it, is $urgency',
    ({ kind, leftSeconds, passedSeconds, urgency }) => {
      const passedMs = passedSeconds === null ? null : 1000 * passedSeconds;
      const none = { idle_ms: null, hibernates_in_ms: null };
      const fields =
        kind === 'hibernation'
          ? { idle_ms: passedMs, hibernates_in_ms: 1000 * leftSeconds }
          : { ...none, uptime_ms: passedMs, expires_in_ms: 1000 * leftSeconds };
      const reading = readStatus(status({ expires_in_ms: null, ...fields }), 0);
      expect(deadlinesOf(reading)[0]).toMatchObject({ kind, urgency });
    }
  );

  it('follows thresholds of the user', () => {
    const reading = readStatus(status({ hibernates_in_ms: 50_000 }), 0);
    const thresholds = { soonMs: 15_000, urgentMs: 10_000 };
    expect(deadlinesOf(reading, thresholds)[0]?.urgency).toBe('calm');
  });
});

describe('deadlinesOf', () => {
  it('puts the nearest first', () => {
    const kinds = deadlinesOf(readStatus(status(), 0)).map(one => one.kind);
    expect(kinds).toEqual(['hibernation', 'expiry']);
  });

  it('puts the expiry first when both are as near', () => {
    const both = status({ hibernates_in_ms: 9, expires_in_ms: 9 });
    expect(deadlinesOf(readStatus(both, 0))[0]?.kind).toBe('expiry');
  });
});

describe('phaseSteps', () => {
  const words = (fields: Record<string, unknown>, last: string | null = null) =>
    phaseSteps(status({ ...STARTING, ...fields }), last).map(
      step => step.progress
    );

  it('marks what is done, under way and to come', () => {
    expect(words({ phase: 'mount' })).toEqual(['done', 'current', 'todo']);
  });

  it('is at the first step while nothing is known', () => {
    expect(words({ phase: null })).toEqual(['current', 'todo', 'todo']);
  });

  it('stays at the last known step when the word is a new one', () => {
    expect(words({ phase: 'polish' }, 'mount')).toEqual([
      'done',
      'current',
      'todo'
    ]);
  });

  it('is done when the sandbox is active', () => {
    expect(words({ state: 'active' })).toEqual(['done', 'done', 'done']);
  });

  it('marks the step at which it failed', () => {
    expect(words({ state: 'failed', phase: 'failed' }, 'mount')).toEqual([
      'done',
      'failed',
      'todo'
    ]);
  });

  it('does not guess where it failed', () => {
    expect(words({ state: 'failed', phase: 'failed' })).toEqual([]);
  });
});

describe('StartProgress', () => {
  it('is what has passed of the whole', () => {
    const progress = new StartProgress();
    const reading = readStatus(status(STARTING), 0);
    expect(progress.update(reading, 100_000)).toBeCloseTo(18 / 60);
  });

  it('never goes back when the estimate grows', () => {
    const progress = new StartProgress();
    const at = (eta_ms: number, nowMs: number) =>
      progress.update(
        readStatus(status({ ...STARTING, uptime_ms: null, eta_ms }), 0),
        nowMs
      );
    at(10_000, 0);
    const half = at(10_000, 10_000);
    expect(half).toBeCloseTo(0.5);
    expect(at(60_000, 11_000)).toBe(half);
  });

  it('is unknown without an estimate, and when the estimate is used up', () => {
    const progress = new StartProgress();
    const reading = (eta_ms: number | null) =>
      readStatus(status({ ...STARTING, eta_ms }), 0);
    expect(progress.update(reading(null), 0)).toBeNull();
    expect(progress.update(reading(0), 1000)).toBeNull();
  });

  it('begins anew with the next start', () => {
    const progress = new StartProgress();
    const starting = readStatus(status({ ...STARTING, uptime_ms: 0 }), 0);
    progress.update(starting, 0);
    progress.update(starting, 1_000_000);
    progress.update(readStatus(status(), 0), 1_000_001);
    expect(progress.update(starting, 1_000_002)).toBe(0);
  });
});

describe('SleepWatch', () => {
  it('suspects a sleep when the wall clock ran ahead of the monotonic one', () => {
    const watch = new SleepWatch();
    watch.check(0, 1_000_000);
    expect(watch.check(1000, 1_001_000)).toBe(false);
    expect(watch.check(2000, 1_602_000)).toBe(true);
    expect(watch.check(3000, 1_603_000)).toBe(false);
  });

  it('takes a throttled timer for what it is', () => {
    const watch = new SleepWatch();
    watch.check(0, 0);
    expect(watch.check(60_000, 60_000)).toBe(false);
  });
});
