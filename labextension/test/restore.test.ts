// @vitest-environment jsdom

import fc from 'fast-check';
import { describe, expect, it, vi } from 'vitest';

import { english } from '../src/format';
import {
  drawRestored,
  parseRestored,
  possibleActions,
  restoreLabel
} from '../src/views/restoreView';

const BODY = {
  text: 'Back: 12 variables of cell [7]. Not back: model.',
  missing: { model: { why: 'it holds a lock', cell: 4 }, data: 'too large' },
  cells: ['cell-3', 'cell-4'],
  actions: ['install', 'rerun', 'delete-everything']
};

function draw(body: unknown, isTrusted = true): HTMLElement {
  const restored = parseRestored(body);
  if (!restored) {
    throw new Error('The sample says nothing');
  }
  const node = document.createElement('div');
  drawRestored(node, restored, english, isTrusted ? onAction : null);
  return node;
}

const onAction = vi.fn();

describe('drawRestored', () => {
  it('names what is missing and why, and offers what can be done', () => {
    const node = draw(BODY);
    const rows = [...node.querySelectorAll('li')].map(one => one.textContent);
    expect(rows).toEqual(['model: it holds a lock', 'data: too large']);
    const buttons = [...node.querySelectorAll('button')];
    expect(buttons.map(one => one.textContent)).toEqual([
      'Run these 2 cells again',
      'Install packages'
    ]);
  });

  it('does not list what its sentence names already', () => {
    const text = 'Not back: model (it holds a lock), data (too large).';
    const node = draw({ ...BODY, text });
    expect(node.querySelector('li')).toBeNull();
    expect(node.textContent).toContain(text);
  });

  it('shows markup as the text that it is', () => {
    const markup = '<img src=x onerror="alert(1)"><b>bold</b>';
    const node = draw({ text: markup, missing: { [`${markup}2`]: markup } });
    expect(node.querySelector('img, b')).toBeNull();
    expect(node.textContent).toBe(`${markup}${markup}2: ${markup}`);
  });

  it('offers nothing in a notebook that is not trusted, and says so', () => {
    const node = draw(BODY, false);
    expect(node.querySelector('button')).toBeNull();
    expect(node.textContent).toContain('not trusted');
  });

  it('does nothing when a script presses a button', () => {
    draw(BODY).querySelector('button')?.click();
    expect(onAction).not.toHaveBeenCalled();
  });

  it('counts what would be too much to show', () => {
    const missing = Object.fromEntries(
      Array.from({ length: 30 }, (_, index) => [`name${index}`, 'why'])
    );
    const rows = draw({ text: 'x', missing }).querySelectorAll('li');
    expect(rows).toHaveLength(21);
    expect(rows[20]?.textContent).toBe('and 10 more');
  });
});

describe('parseRestored', () => {
  it('never throws', () => {
    fc.assert(
      fc.property(fc.jsonValue(), value => {
        parseRestored(value);
        const found = parseRestored({
          text: 'x',
          missing: value,
          cells: value,
          actions: value
        });
        expect(found?.text).toBe('x');
      })
    );
  });

  it('offers to run cells only where there are some', () => {
    const restored = parseRestored({ ...BODY, cells: [] });
    expect(restored && possibleActions(restored)).toEqual(['install']);
  });

  it('says one cell when it is one', () => {
    const restored = parseRestored({ ...BODY, cells: ['a'] });
    expect(restored && restoreLabel('rerun', restored, english)).toBe(
      'Run this cell again'
    );
  });
});
