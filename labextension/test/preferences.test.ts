import { describe, expect, it } from 'vitest';

import schema from '../schema/plugin.json';
import { DEFAULT_PREFERENCES, readPreferences } from '../src/preferences';

interface IProperty {
  default?: unknown;
  properties?: Record<string, IProperty>;
}

describe('readPreferences', () => {
  it('has the defaults that the schema tells the user', () => {
    const defaults = Object.fromEntries(
      Object.entries<IProperty>(schema.properties).map(([group, property]) => [
        group,
        Object.fromEntries(
          Object.entries(property.properties ?? {}).map(([name, one]) => [
            name,
            one.default
          ])
        )
      ])
    );
    expect(readPreferences(defaults)).toEqual(DEFAULT_PREFERENCES);
    expect(readPreferences({})).toEqual(DEFAULT_PREFERENCES);
  });

  it('reads minutes and seconds', () => {
    const read = readPreferences({
      polling: { activeSeconds: 30 },
      warnings: { firstMinutes: 5, lastMinutes: 1, notifications: false }
    });
    expect(read.intervals.activeMs).toBe(30_000);
    expect(read.thresholds).toEqual({ soonMs: 300_000, urgentMs: 60_000 });
    expect(read.notifies).toBe(false);
  });

  it('never polls without pause', () => {
    const read = readPreferences({ polling: { transitionSeconds: 0.001 } });
    expect(read.intervals.transitionMs).toBe(500);
  });

  it('falls back where a value makes no sense', () => {
    const read = readPreferences({
      polling: { activeSeconds: 'soon', restSeconds: -1 },
      warnings: { firstMinutes: 1, lastMinutes: 5 }
    });
    expect(read.intervals).toEqual(DEFAULT_PREFERENCES.intervals);
    expect(read.thresholds.urgentMs).toBe(60_000);
  });
});
