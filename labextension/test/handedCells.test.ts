import { describe, expect, it } from 'vitest';

import { readStatus } from '../src/countdown';
import { english } from '../src/format';
import { deadlineSentences, detachLine } from '../src/handedCells';
import { status } from './samples';

describe('detachLine', () => {
  it('carries any text on one line that IPython leaves as it is', () => {
    const cells = [['a', 'print("é 🌍")\n{x} $y \'z\'', true]] as const;
    const line = detachLine(cells, 'name');
    expect(line).toMatch(/^%ivy detach [A-Za-z0-9+/=]+$/);
    const bytes = Uint8Array.from(atob(line.slice(12).trim()), one =>
      one.charCodeAt(0)
    );
    expect(JSON.parse(new TextDecoder().decode(bytes))).toEqual({
      cells,
      name: 'name'
    });
  });
});

describe('deadlineSentences', () => {
  it('says how much time is left', () => {
    const reading = readStatus(status(), 0);
    const said = deadlineSentences(reading, english).join(' ');
    expect(said).toContain('hibernates in 20 min');
    expect(said).toContain('expires in 30 min');
    expect(said).toContain(
      'Whether the platform lets a busy sandbox hibernate'
    );
  });

  it('says that it is not known', () => {
    expect(deadlineSentences(null, english)[0]).toBe(
      'When the sandbox hibernates and expires is not known.'
    );
  });
});
