// @vitest-environment jsdom

import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import { SandboxModel } from '../src/model';
import type { Action, ISandbox } from '../src/protocol';
import { type ISandboxSource, type Problem, SourceError } from '../src/source';
import { sandbox, sandboxBody, STARTING } from './samples';

/** A server at hand: what it answers is set, what it was asked is counted. */
class FakeSource implements ISandboxSource {
  readonly key = 'http://server/user/x/';
  answer: ISandbox[] | Problem = [sandbox()];
  lists = 0;
  readonly fresh: boolean[] = [];
  acts: [string, Action][] = [];
  onAct: () => Promise<ISandbox> = () => Promise.resolve(sandbox());
  streams: ((chunk: string | null) => void)[] = [];
  refusesStreams = false;

  list(fresh: boolean): Promise<ISandbox[]> {
    this.lists += 1;
    this.fresh.push(fresh);
    return Array.isArray(this.answer)
      ? Promise.resolve(this.answer)
      : Promise.reject(new SourceError(this.answer));
  }

  act(id: string, action: Action): Promise<ISandbox> {
    this.acts.push([id, action]);
    return this.onAct();
  }

  async *events(signal: AbortSignal): AsyncGenerator<string> {
    if (this.refusesStreams) {
      throw new SourceError({ kind: 'no-extension' });
    }
    const chunks: (string | null)[] = [];
    let wake = (): void => undefined;
    const push = (chunk: string | null): void => {
      chunks.push(chunk);
      wake();
    };
    signal.addEventListener('abort', () => {
      push(null);
    });
    this.streams.push(push);
    try {
      for (;;) {
        const chunk = chunks.shift();
        if (chunk === null) {
          return;
        }
        if (chunk === undefined) {
          await new Promise<void>(resolve => {
            wake = resolve;
          });
        } else {
          yield chunk;
        }
      }
    } finally {
      this.streams = this.streams.filter(one => one !== push);
    }
  }

  push(...bodies: unknown[]): void {
    const data = JSON.stringify({ sandboxes: bodies });
    for (const stream of this.streams) {
      stream(`event: sandboxes\ndata: ${data}\n\n`);
    }
  }
}

let hidden = false;
let source: FakeSource;
let model: SandboxModel;

function setHidden(value: boolean): void {
  hidden = value;
  document.dispatchEvent(new Event('visibilitychange'));
}

function start(): void {
  model = new SandboxModel({
    source,
    platform: { locks: null, openChannel: null }
  });
  model.start();
}

async function pass(ms: number): Promise<void> {
  await vi.advanceTimersByTimeAsync(ms);
}

beforeEach(() => {
  vi.useFakeTimers();
  vi.spyOn(document, 'hidden', 'get').mockImplementation(() => hidden);
  hidden = false;
  source = new FakeSource();
});

afterEach(() => {
  model.dispose();
  vi.restoreAllMocks();
  vi.useRealTimers();
});

describe('SandboxModel', () => {
  it('knows nothing until the first answer', async () => {
    start();
    expect(model.knowledge.kind).toBe('loading');
    await pass(100);
    expect(model.knowledge.kind).toBe('sandboxes');
  });

  it('sends nothing before it is started', async () => {
    model = new SandboxModel({ source });
    await pass(100_000);
    expect(source.lists).toBe(0);
  });

  it.each([
    ['active', { state: 'active' }, 15],
    ['at rest', { state: 'hibernated' }, 60],
    ['starting', STARTING, 1.5]
  ])(
    'without pushes asks at the pace of a sandbox %s',
    async (_, state, pace) => {
      source.refusesStreams = true;
      source.answer = [sandbox({}, state)];
      start();
      await pass(500);
      const before = source.lists;
      await pass(pace * 1000 * 10);
      expect(source.lists - before).toBeGreaterThanOrEqual(9);
      expect(source.lists - before).toBeLessThanOrEqual(11);
    }
  );

  it('takes a push at once, and polls slowly while pushes come', async () => {
    start();
    await pass(500);
    source.push(sandboxBody({}, STARTING));
    await pass(1);
    expect(model.sandboxes[0]?.status.state).toBe('provisioning');
    const before = source.lists;
    for (let i = 0; i < 8; i += 1) {
      source.push(sandboxBody({}, STARTING));
      await pass(15_000);
    }
    expect(source.lists - before).toBeLessThanOrEqual(2);
  });

  it('asks at once when the stream breaks, and opens it again', async () => {
    start();
    source.push();
    await pass(500);
    source.push(sandboxBody());
    await pass(1);
    const before = source.lists;
    source.streams[0]?.(null);
    await pass(200);
    expect(source.lists).toBe(before + 1);
    await pass(3000);
    expect(source.streams).toHaveLength(1);
  });

  it('gives up a stream that has fallen silent', async () => {
    start();
    await pass(500);
    const [first] = source.streams;
    await pass(45_000);
    expect(source.streams).toHaveLength(1);
    expect(source.streams[0]).not.toBe(first);
  });

  it('keeps what it knew when the server fails, and says why it is old', async () => {
    source.refusesStreams = true;
    start();
    await pass(100);
    source.answer = { kind: 'server-unreachable' };
    await pass(20_000);
    expect(model.knowledge).toMatchObject({
      kind: 'sandboxes',
      sandboxes: [{ id: 'key-1' }],
      problem: { kind: 'server-unreachable' }
    });
    source.answer = [sandbox()];
    await pass(300_000);
    expect(model.knowledge).toMatchObject({ problem: null });
  });

  it('asks a failing server less and less', async () => {
    source.refusesStreams = true;
    source.answer = { kind: 'no-extension' };
    start();
    await pass(3_600_000);
    expect(model.knowledge).toEqual({
      kind: 'nothing',
      problem: { kind: 'no-extension' }
    });
    expect(source.lists).toBeLessThan(60);
  });

  it('asks nothing while the page is hidden, and at once when it is back', async () => {
    start();
    await pass(500);
    setHidden(true);
    await pass(100);
    expect(source.streams).toHaveLength(0);
    const before = source.lists;
    await pass(600_000);
    expect(source.lists).toBe(before);
    setHidden(false);
    await pass(200);
    expect(source.lists).toBe(before + 1);
    expect(source.streams).toHaveLength(1);
  });

  it('has the platform asked only when the user wants it', async () => {
    start();
    await pass(500);
    void model.refresh();
    await pass(100);
    void model.refresh(true);
    await pass(100);
    void model.refresh();
    await pass(100);
    expect(source.fresh).toEqual([false, false, true, false]);
  });

  it('asks when the computer has slept', async () => {
    start();
    await pass(500);
    model.checkClock();
    const before = source.lists;
    vi.setSystemTime(Date.now() + 3_600_000);
    model.checkClock();
    await pass(100);
    expect(source.lists).toBe(before + 1);
  });

  it('lets the wall clock change no figure', async () => {
    start();
    await pass(500);
    const [one] = model.sandboxes;
    const before = one && model.read(one).expiresInMs;
    vi.setSystemTime(Date.now() + 3_600_000);
    expect(one && model.read(one).expiresInMs).toBe(before);
  });

  it('sends an action once, and shows its result', async () => {
    start();
    await pass(500);
    source.onAct = () => Promise.resolve(sandbox({}, STARTING));
    const acting = model.act('key-1', 'create');
    const again = model.act('key-1', 'create');
    expect(model.busyAction('key-1')).toBe('create');
    await Promise.all([acting, again]);
    expect(source.acts).toEqual([['key-1', 'create']]);
    expect(model.busyAction('key-1')).toBeNull();
    expect(model.sandboxes[0]?.status.state).toBe('provisioning');
  });

  it('tells why an action failed, and forgets it with the next one', async () => {
    start();
    await pass(500);
    const refusal: Problem = { kind: 'refused', message: 'Set IVY_API_KEY.' };
    source.onAct = () => Promise.reject(new SourceError(refusal));
    await model.act('key-1', 'create');
    expect(model.actionProblem('key-1')).toEqual(refusal);
    source.onAct = () => Promise.resolve(sandbox());
    await model.act('key-1', 'create');
    expect(model.actionProblem('key-1')).toBeNull();
    expect(source.acts).toHaveLength(2);
  });

  it('moves the other sandboxes on when one is replaced', async () => {
    source.answer = [sandbox(), sandbox({ id: 'key-2' })];
    start();
    await pass(500);
    await pass(9000);
    source.onAct = () => Promise.resolve(sandbox());
    await model.act('key-1', 'reconnect');
    const [first, second] = model.sandboxes;
    expect(first && model.read(first).expiresInMs).toBe(1_800_000);
    expect(second && model.read(second).expiresInMs).toBeLessThan(1_791_000);
  });
});
