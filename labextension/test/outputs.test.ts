import { createHash } from 'node:crypto';

import fc from 'fast-check';
import { describe, expect, it } from 'vitest';

import { english } from '../src/format';
import {
  changedSentence,
  changeOf,
  decide,
  ExpectedCells,
  type IWaitingCell,
  type Output,
  parseReceipt,
  parseWaitingOutputs
} from '../src/outputs/outputsModel';
import { sha256 } from '../src/outputs/sha256';

const SOURCE = 'print("é")';

function waiting(fields: Partial<IWaitingCell> = {}): IWaitingCell {
  return {
    run: 'run-2',
    code: sha256(SOURCE),
    number: 7,
    outputs: [],
    isRunning: false,
    fate: 'ok',
    receipt: null,
    ...fields
  };
}

function printed(text: string | string[], name = 'stdout'): Output {
  return { output_type: 'stream', name, text };
}

function shown(value: string): Output {
  return {
    output_type: 'display_data',
    data: { 'text/plain': value },
    metadata: {}
  };
}

describe('sha256', () => {
  it('is the digest that others make of the same text', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'grapheme', maxLength: 300 }), text => {
        const expected = createHash('sha256')
          .update(text, 'utf8')
          .digest('hex');
        expect(sha256(text)).toBe(expected);
      })
    );
  });
});

describe('decide', () => {
  const cell = { source: SOURCE, run: 'run-1', isAwaited: false };

  it.each([
    ['another run of the same text', cell, waiting(), 'take'],
    ['the run that it has', { ...cell, run: 'run-2' }, waiting(), 'has'],
    [
      'the run that it has, which still speaks',
      { ...cell, run: 'run-2' },
      waiting({ isRunning: true }),
      'take'
    ],
    ['what the page receives', { ...cell, isAwaited: true }, waiting(), 'own'],
    ['a changed text', { ...cell, source: 'print(1)' }, waiting(), 'changed'],
    [
      'a text that was changed after its outputs had come',
      { ...cell, source: 'print(1)', run: 'run-2' },
      waiting(),
      'has'
    ]
  ])('%s', (_, one, found, expected) => {
    expect(decide(one, found)).toBe(expected);
  });
});

describe('changeOf', () => {
  it('goes on with the last text', () => {
    expect(changeOf([printed('a\n')], [printed('a\nb\n')])).toEqual({
      kind: 'grow',
      changed: [],
      added: [printed('b\n')]
    });
  });

  it('reads a text that is cut into lines', () => {
    const change = changeOf([printed(['a\n'])], [printed(['a\n', 'b'])]);
    expect(change).toMatchObject({ added: [{ text: 'b' }] });
  });

  it('changes a display in its place', () => {
    const before = [shown('1 %'), printed('a')];
    const after = [shown('2 %'), printed('a'), shown('end')];
    expect(changeOf(before, after)).toEqual({
      kind: 'grow',
      changed: [[0, shown('2 %')]],
      added: [shown('end')]
    });
  });

  it.each<[string, Output[] | null, Output[]]>([
    ['what another page has put there', null, []],
    ['cleared outputs', [shown('1')], []],
    ['another text', [printed('one')], [printed('two')]],
    ['a text in the place of a display', [shown('1')], [printed('1')]],
    ['another stream', [printed('a')], [printed('ab', 'stderr')]],
    [
      'a text that grows before the end',
      [printed('a'), shown('1')],
      [printed('ab'), shown('1')]
    ]
  ])('replaces all for %s', (_, before, after) => {
    expect(changeOf(before, after)).toEqual({ kind: 'replace' });
  });

  it('does nothing when nothing has changed', () => {
    const outputs = [printed('a'), shown('1')];
    expect(changeOf(outputs, structuredClone(outputs)).kind).toBe('none');
  });
});

describe('ExpectedCells', () => {
  const runs = new Map([
    ['a', null],
    ['b', 'run-1'],
    ['c', null]
  ]);

  it('awaits each cell until a new run of it has ended', () => {
    const expected = new ExpectedCells(runs, new Set());
    expected.note(
      new Map([
        ['a', waiting()],
        ['b', waiting({ run: 'run-1' })],
        ['c', waiting({ isRunning: true })]
      ])
    );
    expect(expected.ids).toEqual(['b', 'c']);
    expect(expected.isStillAt('b', 'run-1')).toBe(true);
  });

  it('gives up those behind an error', () => {
    const expected = new ExpectedCells(runs, new Set());
    const stopped = expected.note(new Map([['a', waiting({ fate: 'error' })]]));
    expect(stopped).toEqual(['b', 'c']);
    expect(expected.ids).toEqual([]);
  });

  it('goes on behind an error that is allowed', () => {
    const expected = new ExpectedCells(runs, new Set(['a']));
    const stopped = expected.note(new Map([['a', waiting({ fate: 'error' })]]));
    expect(stopped).toEqual([]);
    expect(expected.ids).toEqual(['b', 'c']);
  });
});

describe('parseWaitingOutputs', () => {
  it('reads what the server says', () => {
    const receipt = { v: 1, hash: 'abc' };
    const found = parseWaitingOutputs({
      offset: 12,
      cells: {
        one: {
          run: 'run-2',
          code: sha256(SOURCE),
          number: 7,
          outputs: [printed('a'), 'no output'],
          is_running: false,
          fate: 'ok',
          metadata: { ivy: { receipt } }
        }
      }
    });
    expect(found?.offset).toBe(12);
    expect(found?.cells.get('one')).toEqual(
      waiting({ outputs: [printed('a')], receipt })
    );
  });

  it('never throws, and leaves out what makes no sense', () => {
    fc.assert(
      fc.property(fc.jsonValue(), value => {
        parseReceipt(value);
        const found = parseWaitingOutputs({ offset: 0, cells: { a: value } });
        expect(found?.cells.has('a') ?? false).toBe(false);
        expect(parseWaitingOutputs(value)?.offset ?? 0).toBeGreaterThanOrEqual(
          0
        );
      })
    );
  });
});

describe('changedSentence', () => {
  it.each([1, 3])('says how many: %i', count => {
    const sentence = changedSentence(count, 'a.ipynb', english);
    expect(sentence).toMatch(count === 1 ? /^a\.ipynb: a cell/ : /: 3 cells/);
  });
});
