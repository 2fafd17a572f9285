import { describe, expect, it } from 'vitest';

import { readStatus } from '../src/countdown';
import {
  actionLabel,
  deadlineLabel,
  english,
  etaSentence,
  formatAgo,
  formatElapsed,
  formatRemaining,
  formatRough,
  sourceLabel,
  staleSentence,
  stateHint,
  stateLabel
} from '../src/format';
import { SANDBOX_STATES } from '../src/protocol';
import { STARTING, status } from './samples';

const SECOND = 1000;
const MINUTE = 60_000;
const HOUR = 3_600_000;

describe('durations', () => {
  it.each([
    [0, '0 s'],
    [1, '1 s'],
    [59_001, '1 min 00 s'],
    [4 * MINUTE + 5 * SECOND, '4 min 05 s'],
    [HOUR - 1, '1 h 00 min'],
    [2 * HOUR + 3 * MINUTE, '2 h 03 min'],
    [49 * HOUR, '2 d 1 h'],
    [-5, '0 s']
  ])('%i ms left reads %s', (ms, words) => {
    expect(formatRemaining(ms, english)).toBe(words);
  });

  it('rounds down what has passed', () => {
    expect(formatElapsed(59_999, english)).toBe('59 s');
  });

  it.each([
    [100 * SECOND, '1 min 40 s'],
    [9 * MINUTE + 1, '10 min'],
    [3 * HOUR, '3 h'],
    [80 * HOUR, '4 d']
  ])('%i ms in short reads %s', (ms, words) => {
    expect(formatRough(ms, english)).toBe(words);
  });

  it.each([
    [9999, 'just now'],
    [64_000, '60 s ago'],
    [11 * MINUTE, '11 min ago'],
    [5 * HOUR, '5 h ago'],
    [72 * HOUR, '3 d ago']
  ])('%i ms back reads %s', (ms, words) => {
    expect(formatAgo(ms, english)).toBe(words);
  });
});

describe('states', () => {
  it('have a word each', () => {
    const words = SANDBOX_STATES.map(one => stateLabel(one, null, english));
    expect(new Set(words).size).toBe(SANDBOX_STATES.length);
  });

  it('show the raw word of an unknown one', () => {
    expect(stateLabel('unknown', 'defrosting', english)).toBe(
      'Unknown (defrosting)'
    );
  });

  it.each(['failed', 'expired', 'hibernated', 'archived', 'none'])(
    'say what to do in %s',
    state => {
      const given = status({ state });
      expect(stateHint(given, readStatus(given, 0), english)).not.toBe('');
    }
  );
});

describe('a state that is unknown', () => {
  const hint = (given: ReturnType<typeof status>) =>
    stateHint(given, readStatus(given, 0), english);

  it('was a word of the platform, or nothing that could be read', () => {
    expect(hint(status({ state: 'unknown', raw_state: 'defrosting' }))).toMatch(
      /a state that this version does not know/
    );
    expect(hint(status({ state: 'unknown', raw_state: null }))).toBe(
      'Its state could not be read. Reconnect asks again.'
    );
  });

  it('was never seen, unless it was a word', () => {
    const failed = {
      state: 'unknown',
      stale: true,
      stale_reason: 'No such session.',
      age_ms: 1000
    };
    const never = status({ ...failed, raw_state: null });
    expect(staleSentence(never, readStatus(never, 0), english)).toBe(
      'No such session.'
    );
    const word = status({ ...failed, raw_state: 'defrosting' });
    expect(staleSentence(word, readStatus(word, 0), english)).toMatch(
      /^No such session\. Last seen/
    );
  });
});

describe('actions', () => {
  it('resume what can come back, create what cannot', () => {
    const label = (state: string, resumable: boolean) =>
      actionLabel('create', status({ state, resumable }), english);
    expect(label('hibernated', true)).toBe('Resume');
    expect(label('expired', true)).toBe('Resume');
    expect(label('expired', false)).toBe('Create');
    expect(label('none', true)).toBe('Create');
  });
});

describe('sentences', () => {
  it('tell the estimate, and when it is used up', () => {
    const at = (ms: number) =>
      etaSentence(readStatus(status(STARTING), ms), english);
    expect(at(0)).toBe('About 42 s left');
    expect(at(50_000)).toBe('Taking longer than estimated');
  });

  it('never speak of a time that is over', () => {
    expect(deadlineLabel('expiry', 0, english)).toBe('expires now');
  });

  it('say why a status is stale and when it was seen', () => {
    const stale = status({
      stale: true,
      stale_reason: 'The platform does not answer.',
      age_ms: 200_000
    });
    expect(staleSentence(stale, readStatus(stale, 0), english)).toBe(
      'The platform does not answer. Last seen 3 min ago.'
    );
  });

  it('say local of a local sandbox', () => {
    expect(sourceLabel({ local: true }, status(), english)).toBe(
      'Local (Recoup)'
    );
  });

  it('put values in without reading them as patterns', () => {
    expect(english.__('%1 and %2', '%2', '$&')).toBe('%2 and $&');
  });
});
