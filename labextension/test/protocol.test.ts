import fc from 'fast-check';
import { describe, expect, it } from 'vitest';

import {
  isSandboxState,
  parseErrorBody,
  parseSandbox,
  parseSandboxList,
  parseStatus,
  SANDBOX_STATES
} from '../src/protocol';
import { ACTIVE, sandboxBody } from './samples';

describe('parseStatus', () => {
  it('reads every field of the canonical document', () => {
    expect(parseStatus(ACTIVE)).toEqual({
      state: 'active',
      rawState: 'active',
      phase: 'ready',
      etaMs: null,
      uptimeMs: 60_000,
      createdMs: 1_796_000_000_000,
      lastActivityMs: 1_796_000_030_000,
      idleMs: 30_000,
      hibernatesInMs: 1_200_000,
      expiresInMs: 1_800_000,
      resumable: true,
      error: null,
      dialect: 'recoup',
      ageMs: 120,
      stale: false,
      staleReason: null,
      label: null,
      hint: null,
      resumes: null,
      keepsAwake: null,
      unknown: []
    });
  });

  it('reads the words of a newer server, and nothing that is none', () => {
    const words = { label: 'Active', hint: '', resumes: false };
    const unknown = ['When it expires is not known.'];
    expect(
      parseStatus({
        ...words,
        keeps_awake: true,
        unknown: [...unknown, 7, ' ']
      })
    ).toMatchObject({ ...words, keepsAwake: true, unknown });
    expect(
      parseStatus({ label: 7, hint: 7, resumes: 'yes', unknown: 'no list' })
    ).toMatchObject({ label: null, hint: null, resumes: null, unknown: [] });
  });

  it.each(SANDBOX_STATES)('knows the state %s', state => {
    expect(parseStatus({ state }).state).toBe(state);
  });

  it('keeps the raw word of a state that it does not know', () => {
    expect(parseStatus({ state: 'defrosting' })).toMatchObject({
      state: 'unknown',
      rawState: 'defrosting'
    });
  });

  it.each([
    ['a text', '5000'],
    ['not a number', NaN],
    ['infinite', Infinity],
    ['an epoch instead of a duration', 1_796_000_000_000],
    ['missing', undefined]
  ])('reads a duration that is %s as null', (_, value) => {
    expect(parseStatus({ expires_in_ms: value }).expiresInMs).toBeNull();
  });

  it('reads a negative duration as nothing left', () => {
    expect(parseStatus({ expires_in_ms: -5 }).expiresInMs).toBe(0);
  });

  it('never throws and never gives a negative duration, whatever it is given', () => {
    fc.assert(
      fc.property(fc.anything(), anything => {
        for (const value of [
          anything,
          { ...ACTIVE, expires_in_ms: anything }
        ]) {
          const parsed = parseStatus(value);
          expect(isSandboxState(parsed.state)).toBe(true);
          expect(parsed.expiresInMs ?? 0).toBeGreaterThanOrEqual(0);
        }
      })
    );
  });
});

describe('parseSandbox', () => {
  it('reads the fields and the sessions', () => {
    const body = sandboxBody({
      sessions: [
        { kernel_id: 'k', notebook_path: 'a/b.ipynb', kind: 'magic' },
        { kernel_id: 'l', notebook_path: null, kind: 'kernel' }
      ]
    });
    expect(parseSandbox(body)).toMatchObject({
      id: 'key-1',
      name: 'Local sandbox',
      local: true,
      chatId: 'local',
      isDefault: true,
      missing: null,
      canCreate: true,
      canTerminate: true,
      sessions: [
        { kernelId: 'k', notebookPath: 'a/b.ipynb', kind: 'magic' },
        { kernelId: 'l', notebookPath: null, kind: 'kernel' }
      ]
    });
  });

  it('is nothing without an id', () => {
    expect(parseSandbox(sandboxBody({ id: '' }))).toBeNull();
    expect(parseSandbox(null)).toBeNull();
  });

  it('offers no action that the server does not allow', () => {
    expect(parseSandbox({ id: 'a' })).toMatchObject({
      canCreate: false,
      canTerminate: false
    });
  });
});

describe('parseSandboxList', () => {
  it('leaves out what is no sandbox, and what comes twice', () => {
    const sandboxes = [sandboxBody(), null, 7, {}, sandboxBody()];
    expect(parseSandboxList({ sandboxes })).toHaveLength(1);
  });

  it('refuses what is no list', () => {
    expect(parseSandboxList('<html>')).toBeNull();
    expect(parseSandboxList(undefined)).toBeNull();
    expect(parseSandboxList({ sandboxes: {} })).toBeNull();
  });
});

describe('parseErrorBody', () => {
  it('reads kind and message', () => {
    const error = { kind: 'CredentialsError', message: 'Set IVY_API_KEY.' };
    expect(parseErrorBody({ error })).toEqual(error);
  });

  it("is nothing for another program's error", () => {
    expect(parseErrorBody({ message: 'Forbidden', reason: null })).toBeNull();
    expect(parseErrorBody({ error: 'text' })).toBeNull();
  });
});
