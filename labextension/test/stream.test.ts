// @vitest-environment jsdom

import { afterEach, describe, expect, it, vi } from 'vitest';

import type { ISandbox } from '../src/protocol';
import type { ISandboxSource } from '../src/source';
import { type IStreamPlatform, SandboxStream } from '../src/stream';
import { sandboxBody } from './samples';

/** A lock that browsers give to one tab after the other. */
class FakeLocks {
  private _queue: Promise<unknown> = Promise.resolve();

  request(
    _name: string,
    options: { signal: AbortSignal },
    callback: () => Promise<void>
  ): Promise<void> {
    const turn = this._queue.then(() =>
      options.signal.aborted ? undefined : callback()
    );
    this._queue = turn;
    return turn;
  }
}

/** Channels of one name, each of which hears the others. */
class FakeChannels {
  private readonly _all: { onmessage: ((one: unknown) => void) | null }[] = [];

  readonly open = (): BroadcastChannel => {
    const channel = {
      onmessage: null as ((one: unknown) => void) | null,
      postMessage: (data: unknown) => {
        for (const other of this._all) {
          if (other !== channel) {
            other.onmessage?.({ data });
          }
        }
      },
      close: () => undefined
    };
    this._all.push(channel);
    return channel as unknown as BroadcastChannel;
  };
}

let streams: SandboxStream[] = [];

function openTabs(count: number): { open: () => number; news: ISandbox[][] } {
  const locks = new FakeLocks();
  const platform: IStreamPlatform = {
    locks: locks as unknown as LockManager,
    openChannel: new FakeChannels().open
  };
  let open = 0;
  const source: ISandboxSource = {
    key: 'http://server/',
    list: () => Promise.resolve([]),
    act: () => Promise.reject(new Error('not here')),
    async *events(signal) {
      open += 1;
      try {
        const data = JSON.stringify({ sandboxes: [sandboxBody()] });
        yield `event: sandboxes\ndata: ${data}\n\n`;
        await new Promise<void>(resolve => {
          signal.addEventListener('abort', () => {
            resolve();
          });
        });
      } finally {
        open -= 1;
      }
    }
  };
  const news: ISandbox[][] = [];
  streams = Array.from({ length: count }, () => {
    const stream = new SandboxStream(source, platform);
    stream.received.connect((_, sandboxes) => {
      news.push(sandboxes);
    });
    stream.start();
    return stream;
  });
  return { open: () => open, news };
}

afterEach(() => {
  for (const stream of streams) {
    stream.dispose();
  }
});

describe('SandboxStream', () => {
  it('opens one connection for all tabs, and all get the news', async () => {
    const { open, news } = openTabs(10);
    await vi.waitFor(() => {
      expect(news).toHaveLength(10);
    });
    expect(open()).toBe(1);
    expect(streams.every(one => one.isLive)).toBe(true);
  });

  it('passes on to another tab when the reading one goes', async () => {
    const { open, news } = openTabs(2);
    await vi.waitFor(() => {
      expect(news).toHaveLength(2);
    });
    streams[0]?.stop();
    await vi.waitFor(() => {
      expect(news).toHaveLength(3);
    });
    expect(open()).toBe(1);
    expect(streams.map(one => one.isLive)).toEqual([false, true]);
  });

  it('takes no news when it was told to stop', async () => {
    const { news } = openTabs(2);
    await vi.waitFor(() => {
      expect(news).toHaveLength(2);
    });
    streams[1]?.stop();
    streams[1]?.start();
    streams[1]?.stop();
    expect(streams[1]?.isLive).toBe(false);
  });
});
