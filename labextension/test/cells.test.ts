import { describe, expect, it } from 'vitest';

import {
  addTime,
  type CellEnd,
  decisiveResult,
  type IRun,
  isIvyCell,
  isWorthTelling,
  RunTracker,
  runSentence
} from '../src/cells';
import { english } from '../src/format';

function run(durationMs: number, ...ends: CellEnd[]): IRun<number> {
  return {
    durationMs,
    results: ends.map((end, position) => ({ cell: position + 1, end }))
  };
}

function say(one: IRun<number>): string {
  return runSentence(one, 'a.ipynb', cell => `cell [${cell}]`, english);
}

describe('RunTracker', () => {
  it('ends a run with the last cell that waits, and counts from the first begin', () => {
    const tracker = new RunTracker<string>();
    tracker.schedule('a');
    tracker.schedule('b');
    tracker.begin(1000);
    expect(tracker.end('a', 'ok', 4000)).toBeNull();
    tracker.begin(4000);
    expect(tracker.end('b', 'error', 9000)).toEqual({
      durationMs: 8000,
      results: [
        { cell: 'a', end: 'ok' },
        { cell: 'b', end: 'error' }
      ]
    });
  });

  it('begins anew after a run', () => {
    const tracker = new RunTracker<string>();
    tracker.schedule('a');
    tracker.begin(0);
    tracker.end('a', 'ok', 100_000);
    tracker.schedule('a');
    tracker.begin(200_000);
    expect(tracker.end('a', 'ok', 200_500)?.durationMs).toBe(500);
  });

  it('does not count the time that a cell waits for its kernel', () => {
    const tracker = new RunTracker<string>();
    tracker.schedule('a');
    expect(tracker.end('a', 'lost', 500_000)?.durationMs).toBe(0);
  });

  it('says nothing of a cell that it does not know', () => {
    const tracker = new RunTracker<string>();
    expect(tracker.end('a', 'ok', 1)).toBeNull();
  });
});

describe('isWorthTelling', () => {
  it.each([
    ['long and unseen', 60_000, 60_000, true, true],
    ['short', 59_999, 60_000, true, false],
    ['seen', 600_000, 60_000, false, false],
    ['switched off', 600_000, null, true, false]
  ])('%s', (_, durationMs, afterMs, looksElsewhere, expected) => {
    const told = isWorthTelling(run(durationMs, 'ok'), afterMs, looksElsewhere);
    expect(told).toBe(expected);
  });
});

describe('runSentence', () => {
  it.each([
    [run(65_000, 'ok'), 'a.ipynb: cell [1] succeeded in 1 min 05 s.'],
    [run(65_000, 'error'), 'a.ipynb: cell [1] failed after 1 min 05 s.'],
    [run(65_000, 'ok', 'ok'), 'a.ipynb: 2 cells succeeded in 1 min 05 s.'],
    [
      run(65_000, 'ok', 'error', 'aborted', 'aborted'),
      'a.ipynb: cell [2] failed after 1 min 05 s; 2 of 4 cells were not run.'
    ],
    [
      run(65_000, 'ok', 'lost', 'lost'),
      'a.ipynb: cell [2] did not end: after 1 min 05 s its kernel was restarted or died.'
    ]
  ])('%#', (one, sentence) => {
    expect(say(one)).toBe(sentence);
  });

  it('is about the cell that failed, also when others ended after it', () => {
    expect(decisiveResult(run(1, 'ok', 'error', 'ok'))?.cell).toBe(2);
  });
});

describe('isIvyCell', () => {
  it.each([
    ['%%ivy', true],
    ['%%ivy --chat other\nprint(1)', true],
    ['\n\n%%ivy\n1', true],
    ['%%ivyland', false],
    ['print("%%ivy")', false],
    ['%ivy status', false]
  ])('%j', (source, expected) => {
    expect(isIvyCell(source)).toBe(expected);
  });
});

describe('addTime', () => {
  const message = (
    msg_type: string,
    content: object,
    metadata: object = {},
    date = '2026-01-01T00:00:01Z'
  ): Parameters<typeof addTime>[1] => ({
    header: { msg_type, date },
    content,
    metadata
  });
  const NOW = '2026-01-01T00:00:09Z';

  it("keeps JupyterLab's keys", () => {
    const started = '2026-01-01T00:00:00Z';
    const messages = [
      message('status', { execution_state: 'busy' }),
      message('execute_input', { code: 'secret' }),
      message('stream', { text: 'secret' }),
      message('execute_reply', { status: 'ok' }, { started }),
      message('status', { execution_state: 'idle' })
    ];
    const timing = messages.reduce(
      (before, one) => addTime(before, one, NOW),
      {}
    );
    expect(timing).toEqual({
      'iopub.status.busy': '2026-01-01T00:00:01Z',
      'iopub.execute_input': '2026-01-01T00:00:01Z',
      'shell.execute_reply.started': started,
      'shell.execute_reply': '2026-01-01T00:00:01Z',
      'iopub.status.idle': '2026-01-01T00:00:01Z'
    });
  });

  it('takes the time of arrival where a message has none', () => {
    expect(addTime({}, message('execute_input', {}, {}, ''), NOW)).toEqual({
      'iopub.execute_input': NOW
    });
  });
});
