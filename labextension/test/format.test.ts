import { describe, expect, it } from 'vitest';

import { readStatus, statusNow } from '../src/countdown';
import {
  actionLabel,
  adviceIn,
  deadlineLabel,
  deadlineSentence,
  english,
  etaSentence,
  formatAgo,
  formatElapsed,
  formatRemaining,
  formatRough,
  sourceLabel,
  remedyFirst,
  shortName,
  staleAdvice,
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
    const words = SANDBOX_STATES.map(state =>
      stateLabel({ state, rawState: null, label: null }, english)
    );
    expect(new Set(words).size).toBe(SANDBOX_STATES.length);
  });

  it('show the raw word of an unknown one', () => {
    const odd = status({ state: 'unknown', raw_state: 'defrosting' });
    expect(stateLabel(odd, english)).toBe('Unknown (defrosting)');
  });

  it('are called as the server calls them, until the time has brought another one', () => {
    const said = status({
      label: 'Awake',
      hint: 'It runs.',
      expires_in_ms: 1000
    });
    expect(stateLabel(said, english)).toBe('Awake');
    expect(stateHint(said, true, english)).toBe('It runs.');
    const later = statusNow(said, readStatus(said, 1000));
    expect(stateLabel(later, english)).toBe('Expired');
    expect(stateHint(later, true, english)).toMatch(
      /^Its running time is over/
    );
  });

  it.each(['failed', 'expired', 'hibernated', 'archived', 'none'])(
    'say what to do in %s',
    state => {
      const given = status({ state });
      expect(stateHint(given, true, english)).not.toBe('');
    }
  );

  it.each(['failed', 'expired', 'hibernated', 'archived'])(
    'speak of no button that is not there in %s',
    state => {
      expect(stateHint(status({ state }), false, english)).not.toMatch(/Press/);
      expect(stateHint(status({ state }), true, english)).toMatch(/Press/);
    }
  );
});

describe('a state that is unknown', () => {
  const hint = (given: ReturnType<typeof status>) =>
    stateHint(given, true, english);

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
    expect(staleAdvice(never, readStatus(never, 0), english)).toEqual({
      remedy: '',
      cause: 'No such session.'
    });
    const word = status({ ...failed, raw_state: 'defrosting' });
    expect(staleAdvice(word, readStatus(word, 0), english).cause).toMatch(
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

  it.each([true, false])(
    'resume exactly what the server says comes back: %s',
    resumes => {
      for (const state of ['none', 'hibernated', 'archived', 'failed']) {
        const given = status({ state, resumes, resumable: !resumes });
        expect(actionLabel('create', given, english)).toBe(
          resumes ? 'Resume' : 'Create'
        );
      }
    }
  );
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
    expect(staleAdvice(stale, readStatus(stale, 0), english)).toEqual({
      remedy: '',
      cause: 'The platform does not answer. Last seen 3 min ago.'
    });
  });

  it('promise that a cell keeps it awake only where that is so', () => {
    const words = (awake: boolean) =>
      deadlineSentence('hibernation', 60_000, awake, english);
    expect(words(true)).toContain('Run a cell to keep it awake.');
    expect(words(false)).not.toContain('awake');
  });

  it('say local of a local sandbox', () => {
    expect(sourceLabel({ local: true }, status(), english)).toBe(
      'Local (Recoup)'
    );
  });

  it('name both APIs of a joined status', () => {
    const joined = status({ dialect: 'ivy+recoup' });
    expect(sourceLabel({ local: false }, joined, english)).toBe('Ivy, Recoup');
  });

  it('put values in without reading them as patterns', () => {
    expect(english.__('%1 and %2', '%2', '$&')).toBe('%2 and $&');
  });
});

describe('advice', () => {
  it.each([
    [
      "Could not read the sandbox status of chat 'c': HTTP 401, the key is wrong; correct the setting api_key (IVY_API_KEY) (the platform says: bad key; get one).",
      'Correct the setting api_key (IVY_API_KEY).',
      "Could not read the sandbox status of chat 'c': HTTP 401, the key is wrong (the platform says: bad key; get one)."
    ],
    [
      'The setting chat_id has no value. Put {"Ivy": {"chat_id": "…"}} into the file, and run the cell again; no restart is needed.',
      'Put {"Ivy": {"chat_id": "…"}} into the file, and run the cell again; no restart is needed.',
      'The setting chat_id has no value.'
    ],
    [
      'The extension is not enabled: run “x” and restart the server.',
      'Run “x” and restart the server.',
      'The extension is not enabled.'
    ],
    [
      'Recoup says 404; if it stays so, check the setting recoup_session_id.',
      'If it stays so, check the setting recoup_session_id.',
      'Recoup says 404.'
    ],
    [
      'The connection broke before the answer was complete (ReadError).',
      '',
      'The connection broke before the answer was complete (ReadError).'
    ]
  ])('is found in: %s', (sentence, remedy, cause) => {
    expect(adviceIn(sentence)).toEqual({ remedy, cause });
  });

  it('comes first where the end may be cut off', () => {
    const sentence = 'It is gone; run it again.';
    expect(remedyFirst(adviceIn(sentence))).toBe('Run it again. It is gone.');
    expect(remedyFirst(adviceIn('It is gone.'))).toBe('It is gone.');
  });

  it('keeps the beginning and the end of a long name', () => {
    expect(shortName('Chat 7')).toBe('Chat 7');
    const long = shortName(`Chat ${'x'.repeat(100)}end`);
    expect(long).toHaveLength(47);
    expect(long).toMatch(/^Chat x+…x+end$/);
  });
});
