// @vitest-environment jsdom

import { nullTranslator } from '@jupyterlab/translation';
import { describe, expect, it, vi } from 'vitest';

import { english, formatBytes, formatResources } from '../src/format';
import { SandboxModel } from '../src/model';
import { DEFAULT_PREFERENCES, type IPreferences } from '../src/preferences';
import {
  type IResources,
  type ISandbox,
  parseResources
} from '../src/protocol';
import { SourceError } from '../src/source';
import { MetersView } from '../src/views/meters';
import { StatusItem } from '../src/views/statusItem';
import { Ticker } from '../src/views/ticker';
import { MemoryTracker } from '../src/warnings';
import { sandbox } from './samples';

vi.hoisted(() => {
  // Lumino looks for it when it is loaded, and jsdom has none.
  vi.stubGlobal('DragEvent', MouseEvent);
});

const GB = 2 ** 30;

function body(usedGb: number, rest: Record<string, unknown> = {}): object {
  return {
    memory: { used_bytes: usedGb * GB, limit_bytes: 16 * GB },
    cpu: { used_percent: 140, cores: 4 },
    disk: { used_bytes: 12 * GB, limit_bytes: 50 * GB },
    gpus: [],
    age_seconds: 3,
    ...rest
  };
}

function uses(usedGb: number, rest: Record<string, unknown> = {}): IResources {
  const parsed = parseResources(body(usedGb, rest));
  if (!parsed) {
    throw new Error('The sample says nothing');
  }
  return parsed;
}

describe('parseResources', () => {
  it('reads null, and what makes no sense, as not known', () => {
    const absurd = { used_bytes: -1, limit_bytes: 'all' };
    for (const value of [null, 5, {}, { memory: absurd, gpus: [{}] }]) {
      expect(parseResources(value)).toBeNull();
    }
    expect(uses(1, { cpu: { used_percent: 1, cores: 0 } }).cpu).toBeNull();
  });

  it('reads GPUs, also one that does not say how busy it is', () => {
    const gpu = { name: 'T4', memory_used_bytes: 1, memory_limit_bytes: 2 };
    expect(uses(1, { gpus: [gpu, null] }).gpus).toEqual([
      { name: 'T4', usedPercent: null, memory: { used: 1, limit: 2 } }
    ]);
  });
});

describe('format', () => {
  it('tells bytes in the unit of the limit', () => {
    const words = (used: number, limit: number): string =>
      formatBytes({ used, limit }, english);
    expect(words(15.9 * GB, 16 * GB)).toBe('15.9 of 16 GB');
    expect(words(0.1 * GB, GB / 2)).toBe('102 of 512 MB');
    expect(words(GB, 2048 * GB)).toBe('0 of 2 TB');
  });

  it('tells all in one line', () => {
    expect(formatResources(uses(3.1), english)).toBe(
      'Memory 3.1 of 16 GB, CPU 35 % of 4 cores, disk 12 of 50 GB'
    );
  });
});

describe('MemoryTracker', () => {
  it('says each level once, and takes it back when memory is emptier', () => {
    const tracker = new MemoryTracker();
    const seen = [13, 14, 14, 13, 15.5, 15.6, 12, 14].map(used => {
      const { raise, clear } = tracker.observe('a', uses(used));
      return clear ? [raise, 'clear'] : raise;
    });
    expect(seen).toEqual([
      ...[null, 'soon', null, null, 'urgent', null],
      ...[[null, 'clear'], 'soon']
    ]);
  });

  it('forgets a sandbox that is gone, or does not say', () => {
    const tracker = new MemoryTracker();
    tracker.observe('a', uses(15.9));
    tracker.observe('b', uses(15.9));
    expect(tracker.observe('a', null)).toEqual({ raise: null, clear: true });
    expect(tracker.keepOnly(['a'])).toEqual(['b']);
  });
});

describe('MetersView', () => {
  function draw(resources: IResources | null, sinceMs = 0): HTMLElement {
    const view = new MetersView(english);
    view.update(resources, sinceMs);
    return view.node;
  }

  function shown(node: HTMLElement, selector: string): string[] {
    return [...node.querySelectorAll(selector)]
      .filter(one => one.closest('[hidden]') === null)
      .map(one => one.textContent);
  }

  it('is not there while nothing is known', () => {
    expect(draw(null).hidden).toBe(true);
  });

  it('shows bars that a screen reader can read', () => {
    const node = draw(uses(4));
    const bars = [...node.querySelectorAll('[role=meter]')].map(bar =>
      ['aria-label', 'aria-valuenow', 'aria-valuetext'].map(name =>
        bar.getAttribute(name)
      )
    );
    expect(bars).toEqual([
      ['Memory', '25', '4 of 16 GB'],
      ['CPU', '35', '35 % of 4 cores'],
      ['Disk', '24', '12 of 50 GB']
    ]);
    expect(shown(node, '.jp-ivy-note, .jp-ivy-meters-age')).toEqual([]);
  });

  it('leaves out what is not known, and GPUs that are gone', () => {
    const gpu = { name: 'T4', memory_used_bytes: 1, memory_limit_bytes: 2 };
    const view = new MetersView(english);
    view.update(uses(4, { cpu: null, gpus: [gpu] }), 0);
    const labels = '.jp-ivy-meter-label';
    expect(shown(view.node, labels)).toEqual(['Memory', 'Disk', 'T4']);
    view.update(uses(4, { disk: null }), 0);
    expect(shown(view.node, labels)).toEqual(['Memory', 'CPU']);
  });

  it('warns while memory is nearly full, and calls old figures old', () => {
    const full = uses(15.5);
    expect(shown(draw(full), '.jp-ivy-note')[0]).toMatch(
      /^Memory is 96 % full \(15\.5 of 16 GB\)/
    );
    const old = draw(full, 125_000);
    expect(shown(old, '.jp-ivy-note, .jp-ivy-meters-age')).toEqual([
      'As of 2 min ago'
    ]);
  });
});

describe('StatusItem', () => {
  async function text(
    used: ISandbox,
    preferences: Partial<IPreferences> = {}
  ): Promise<(string | null | undefined)[]> {
    const model = new SandboxModel({
      source: {
        key: 'http://server/',
        list: () => Promise.resolve([used]),
        act: () => Promise.reject(new SourceError({ kind: 'no-extension' })),
        async *events(): AsyncGenerator<string> {
          await Promise.reject(new SourceError({ kind: 'no-extension' }));
        }
      },
      platform: { locks: null, openChannel: null }
    });
    const item = new StatusItem(
      {
        model,
        ticker: new Ticker(),
        trans: nullTranslator.load('ivy-kernel'),
        onOpen: () => undefined,
        pick: () => model.sandboxes[0] ?? null
      },
      { ...DEFAULT_PREFERENCES, showsStatusCountdown: false, ...preferences }
    );
    model.start();
    await vi.waitFor(() => {
      expect(model.knowledge.kind).toBe('sandboxes');
    });
    const button = item.node.querySelector('button');
    const seen = [
      button?.textContent,
      button?.dataset['urgency'],
      button?.title
    ];
    item.dispose();
    model.dispose();
    return seen;
  }

  it('tells of memory from half full on, in the colour of a warning above', async () => {
    const [, , title] = await text(sandbox({ resources: body(7.9) }));
    expect(title).toMatch(/Memory 7.9 of 16 GB, CPU 35 % of 4 cores/);
    const seen = await Promise.all(
      [7.9, 8, 14, 15.9].map(used => text(sandbox({ resources: body(used) })))
    );
    expect(seen.map(([words, urgency]) => [words, urgency])).toEqual([
      ['Ivy: Active', 'calm'],
      ['Ivy: Active · 8/16 GB', 'calm'],
      ['Ivy: Active · 14/16 GB', 'soon'],
      ['Ivy: Active · 15.9/16 GB', 'urgent']
    ]);
  });

  it('says nothing of what is old, of what sleeps, and against the setting', async () => {
    const old = sandbox({ resources: body(15, { age_seconds: 61 }) });
    const asleep = sandbox(
      { resources: body(15) },
      { state: 'hibernated', raw_state: 'hibernated' }
    );
    const full = sandbox({ resources: body(15) });
    const off = { showsStatusMemory: false };
    const seen = [await text(old), await text(asleep), await text(full, off)];
    expect(seen.map(([words]) => words)).toEqual([
      'Ivy: Active',
      'Ivy: Hibernated',
      'Ivy: Active'
    ]);
  });
});
