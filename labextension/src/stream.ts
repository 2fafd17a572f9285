/**
 * Pushed changes, one connection for all tabs of a browser.
 *
 * Browsers allow six HTTP/1.1 connections to a server, over all tabs; an event stream in each tab
 * would soon leave none for anything else. So the visible tabs compete for a lock: its holder reads
 * the stream and passes the events to the others. Where the browser has no locks (a page that is
 * neither https nor localhost), a tab reads its own stream while it is visible.
 */

import type { IDisposable } from '@lumino/disposable';
import { type ISignal, Signal } from '@lumino/signaling';

import { type ISandbox, parseSandboxList } from './protocol';
import type { ISandboxSource } from './source';
import { SSEParser } from './sse';

/** The server sends a comment every 15 s; without any sign for this long the stream is dead. */
const SILENCE_LIMIT_MS = 40_000;

const FIRST_RETRY_MS = 1000;
const LONGEST_RETRY_MS = 60_000;

/** What a browser offers, or does not; given in tests. */
export interface IStreamPlatform {
  readonly locks: Pick<LockManager, 'request'> | null;
  readonly openChannel: ((name: string) => BroadcastChannel) | null;
}

function browserPlatform(): IStreamPlatform {
  // Typed as always there, but absent from insecure contexts and old browsers.
  const locks = (navigator as Partial<Navigator>).locks ?? null;
  const hasChannels = typeof BroadcastChannel === 'function';
  return {
    locks,
    openChannel: hasChannels ? name => new BroadcastChannel(name) : null
  };
}

export class SandboxStream implements IDisposable {
  constructor(
    source: ISandboxSource,
    platform: IStreamPlatform = browserPlatform()
  ) {
    this._source = source;
    this._name = `ivy-events:${source.key}`;
    this._locks = platform.openChannel ? platform.locks : null;
    this._channel =
      this._locks && platform.openChannel
        ? platform.openChannel(this._name)
        : null;
    if (this._channel) {
      this._channel.onmessage = (message: MessageEvent<unknown>) => {
        if (this._abort) {
          this._arrived(message.data);
        }
      };
    }
  }

  /** Emitted with the whole list whenever something has changed. */
  get received(): ISignal<this, ISandbox[]> {
    return this._received;
  }

  /** Emitted when the connection that this tab reads has ended, but was not told to. */
  get broken(): ISignal<this, void> {
    return this._broken;
  }

  /** Whether news came within the silence limit, so that polling may be slow. */
  get isLive(): boolean {
    return (
      this._abort !== null &&
      performance.now() - this._lastSignMs < SILENCE_LIMIT_MS
    );
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  /** Begin to listen; a second call does nothing. */
  start(): void {
    if (this._isDisposed || this._abort) {
      return;
    }
    const abort = new AbortController();
    this._abort = abort;
    void this._lead(abort.signal);
  }

  /** Stop listening, and leave the stream to another tab. */
  stop(): void {
    this._abort?.abort();
    this._abort = null;
    this._lastSignMs = -Infinity;
  }

  dispose(): void {
    if (this._isDisposed) {
      return;
    }
    this._isDisposed = true;
    this.stop();
    this._channel?.close();
    Signal.clearData(this);
  }

  /** Wait to be the one that reads, then read until told to stop. */
  private async _lead(signal: AbortSignal): Promise<void> {
    if (!this._locks) {
      await this._readForever(signal);
      return;
    }
    try {
      await this._locks.request(this._name, { signal }, () =>
        this._readForever(signal)
      );
    } catch {
      // Aborted while it waited for the lock.
    }
  }

  private async _readForever(signal: AbortSignal): Promise<void> {
    let retryMs = FIRST_RETRY_MS;
    for (;;) {
      const gotSome = await this._readOnce(signal);
      if (signal.aborted) {
        return;
      }
      if (gotSome) {
        retryMs = FIRST_RETRY_MS;
        this._lastSignMs = -Infinity;
        this._broken.emit();
      } else {
        retryMs = Math.min(LONGEST_RETRY_MS, retryMs * 2);
      }
      // Spread, so that the tabs of many users do not come back in step.
      const spread = 0.75 + Math.random() / 2;
      if (!(await pause(retryMs * spread, signal))) {
        return;
      }
    }
  }

  /** Read one connection to its end; true when it carried anything. */
  private async _readOnce(outer: AbortSignal): Promise<boolean> {
    const inner = new AbortController();
    const forward = (): void => {
      inner.abort();
    };
    outer.addEventListener('abort', forward);
    let watchdog = window.setTimeout(forward, SILENCE_LIMIT_MS);
    const parser = new SSEParser();
    let gotSome = false;
    try {
      for await (const chunk of this._source.events(inner.signal)) {
        if (outer.aborted) {
          break;
        }
        window.clearTimeout(watchdog);
        watchdog = window.setTimeout(forward, SILENCE_LIMIT_MS);
        gotSome = true;
        this._pass(null);
        for (const event of parser.push(chunk)) {
          if (event.event === 'sandboxes') {
            this._pass(JSON.parse(event.data));
          }
        }
      }
    } catch {
      // A stream that cannot be had is no news: the poll goes on, and says why when it fails too.
    } finally {
      window.clearTimeout(watchdog);
      outer.removeEventListener('abort', forward);
    }
    return gotSome;
  }

  /** Take what arrived, and pass it to the other tabs; null is a bare sign of life. */
  private _pass(body: unknown): void {
    this._channel?.postMessage(body);
    this._arrived(body);
  }

  private _arrived(body: unknown): void {
    this._lastSignMs = performance.now();
    const sandboxes = body === null ? null : parseSandboxList(body);
    if (sandboxes) {
      this._received.emit(sandboxes);
    }
  }

  private readonly _source: ISandboxSource;
  private readonly _name: string;
  private readonly _locks: Pick<LockManager, 'request'> | null;
  private readonly _channel: BroadcastChannel | null;
  private readonly _received = new Signal<this, ISandbox[]>(this);
  private readonly _broken = new Signal<this, void>(this);
  private _abort: AbortController | null = null;
  private _lastSignMs = -Infinity;
  private _isDisposed = false;
}

/** Wait; false when the wait was cut short. */
function pause(ms: number, signal: AbortSignal): Promise<boolean> {
  return new Promise(resolve => {
    const done = (): void => {
      window.clearTimeout(timer);
      signal.removeEventListener('abort', done);
      resolve(!signal.aborted);
    };
    const timer = window.setTimeout(done, ms);
    signal.addEventListener('abort', done);
  });
}
