/** What this browser knows of the sandboxes, kept fresh by pushes and by a poll. */

import type { IDisposable } from '@lumino/disposable';
import { Poll } from '@lumino/polling';
import { type ISignal, Signal } from '@lumino/signaling';

import { ageStatus, type IReading, readStatus, SleepWatch } from './countdown';
import { DEFAULT_INTERVALS, type IIntervals } from './preferences';
import {
  type Action,
  type IResources,
  type ISandbox,
  isTransitional
} from './protocol';
import { type ISandboxSource, type Problem, problemOf } from './source';
import { SandboxStream, type IStreamPlatform } from './stream';
import { FRESH_MS } from './warnings';

/** The longest wait between two attempts while the server fails. */
const LONGEST_BACKOFF_MS = 5 * 60_000;

/** What is known: sandboxes or not, and why they may be missing or old. */
export type Knowledge =
  | { readonly kind: 'loading' }
  | { readonly kind: 'nothing'; readonly problem: Problem }
  | {
      readonly kind: 'sandboxes';
      readonly sandboxes: readonly ISandbox[];
      /** When they arrived, on the monotonic clock. */
      readonly receivedMs: number;
      /** Why they may be out of date. */
      readonly problem: Problem | null;
    };

export interface IModelOptions {
  readonly source: ISandboxSource;
  readonly intervals?: IIntervals;
  readonly platform?: IStreamPlatform;
}

export class SandboxModel implements IDisposable {
  constructor(options: IModelOptions) {
    this._source = options.source;
    this._intervals = options.intervals ?? DEFAULT_INTERVALS;
    this._stream = new SandboxStream(options.source, options.platform);
    this._stream.received.connect(this._onPushed, this);
    this._stream.broken.connect(this._onBroken, this);
    this._poll = new Poll({
      name: 'ivy-kernel:sandboxes',
      auto: false,
      // Not 'when-hidden', which lets one more poll through.
      standby: () => document.hidden,
      factory: () => this._fetch(),
      frequency: this._frequency()
    });
    document.addEventListener('visibilitychange', this._onVisibility);
    window.addEventListener('online', this._onWake);
  }

  /** Emitted when anything but the time has changed. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get knowledge(): Knowledge {
    return this._knowledge;
  }

  get sandboxes(): readonly ISandbox[] {
    return this._knowledge.kind === 'sandboxes'
      ? this._knowledge.sandboxes
      : [];
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  set intervals(intervals: IIntervals) {
    this._intervals = intervals;
    this._poll.frequency = this._frequency();
  }

  /** Begin to ask; before it nothing is sent. */
  start(): void {
    if (!document.hidden) {
      this._stream.start();
    }
    void this._poll.start();
  }

  /**
   * Ask now.
   *
   * @param fresh - Whether the user wants it, so that the platform shall be asked too.
   */
  async refresh(fresh = false): Promise<void> {
    if (!this._isDisposed) {
      this._wantsFresh ||= fresh;
      await this._poll.refresh();
    }
  }

  /** A sandbox's status as it reads now. */
  read(sandbox: ISandbox, nowMs: number = performance.now()): IReading {
    const knowledge = this._knowledge;
    const sinceMs =
      knowledge.kind === 'sandboxes' ? nowMs - knowledge.receivedMs : 0;
    return readStatus(sandbox.status, sinceMs);
  }

  /** What a sandbox uses, unless that is not known or was long ago. */
  freshResources(
    sandbox: ISandbox,
    nowMs: number = performance.now()
  ): IResources | null {
    const knowledge = this._knowledge;
    const { resources } = sandbox;
    const sinceMs =
      knowledge.kind === 'sandboxes' ? nowMs - knowledge.receivedMs : 0;
    return resources && resources.ageMs + sinceMs <= FRESH_MS
      ? resources
      : null;
  }

  /** The action that is under way on a sandbox. */
  busyAction(id: string): Action | null {
    return this._busy.get(id) ?? null;
  }

  /** The reason for which the last action on a sandbox failed. */
  actionProblem(id: string): Problem | null {
    return this._failed.get(id) ?? null;
  }

  /**
   * Act on a sandbox; one action at a time.
   *
   * Never retried, and never rejects: a failure is told by `actionProblem`.
   */
  async act(id: string, action: Action): Promise<void> {
    if (this._busy.has(id)) {
      return;
    }
    this._busy.set(id, action);
    this._failed.delete(id);
    this._changed.emit();
    try {
      const sandbox = await this._source.act(id, action);
      this._merge(sandbox);
    } catch (error) {
      this._failed.set(id, problemOf(error));
    } finally {
      this._busy.delete(id);
    }
    if (!this._isDisposed) {
      this._changed.emit();
      void this.refresh();
    }
  }

  /** Called by the views' ticker: looks whether the computer has slept. */
  checkClock(): void {
    if (this._sleep.check(performance.now(), Date.now())) {
      void this.refresh();
    }
  }

  dispose(): void {
    if (this._isDisposed) {
      return;
    }
    this._isDisposed = true;
    document.removeEventListener('visibilitychange', this._onVisibility);
    window.removeEventListener('online', this._onWake);
    this._poll.dispose();
    this._stream.dispose();
    Signal.clearData(this);
  }

  private async _fetch(): Promise<void> {
    const sequence = ++this._sequence;
    try {
      const fresh = this._wantsFresh;
      this._wantsFresh = false;
      const sandboxes = await this._source.list(fresh);
      // A push that came meanwhile is newer than this answer.
      if (sequence === this._sequence) {
        this._accept(sandboxes);
      }
    } catch (error) {
      if (sequence === this._sequence) {
        this._fail(problemOf(error));
      }
      throw error;
    }
  }

  private _onPushed(_: SandboxStream, sandboxes: ISandbox[]): void {
    this._sequence += 1;
    this._accept(sandboxes);
  }

  /** The end of the stream may be the end of the server: find out now. */
  private _onBroken(): void {
    void this.refresh();
  }

  private _accept(sandboxes: readonly ISandbox[]): void {
    if (this._isDisposed) {
      return;
    }
    const receivedMs = performance.now();
    this._knowledge = {
      kind: 'sandboxes',
      sandboxes,
      receivedMs,
      problem: null
    };
    this._poll.frequency = this._frequency();
    this._changed.emit();
  }

  /** Put the answer to an action in the place of what was known of that sandbox. */
  private _merge(sandbox: ISandbox): void {
    this._sequence += 1;
    const now = performance.now();
    const knowledge = this._knowledge;
    if (knowledge.kind !== 'sandboxes') {
      return;
    }
    const passedMs = now - knowledge.receivedMs;
    this._accept(
      knowledge.sandboxes.map(one =>
        // The others are moved on, so that all may share the newer time of arrival.
        one.id === sandbox.id
          ? sandbox
          : {
              ...one,
              status: ageStatus(one.status, passedMs),
              resources: one.resources && {
                ...one.resources,
                ageMs: one.resources.ageMs + passedMs
              },
              checkpoint: one.checkpoint && {
                ...one.checkpoint,
                ageMs: one.checkpoint.ageMs + passedMs
              }
            }
      )
    );
  }

  private _fail(problem: Problem): void {
    if (this._isDisposed) {
      return;
    }
    this._knowledge =
      this._knowledge.kind === 'sandboxes'
        ? { ...this._knowledge, problem }
        : { kind: 'nothing', problem };
    this._poll.frequency = this._frequency();
    this._changed.emit();
  }

  private _frequency(): { interval: number; backoff: number; max: number } {
    const { transitionMs, activeMs, restMs } = this._intervals;
    const states = this.sandboxes.map(one => one.status.state);
    let interval = restMs;
    if (!this._stream.isLive) {
      if (states.some(isTransitional)) {
        interval = transitionMs;
      } else if (states.includes('active') || states.includes('unknown')) {
        interval = activeMs;
      }
    }
    return {
      interval,
      backoff: 2,
      max: Math.max(interval, LONGEST_BACKOFF_MS)
    };
  }

  private readonly _onVisibility = (): void => {
    if (document.hidden) {
      this._stream.stop();
    } else {
      this._onWake();
    }
  };

  private readonly _onWake = (): void => {
    if (!document.hidden) {
      this._stream.start();
      void this.refresh();
    }
  };

  private readonly _source: ISandboxSource;
  private readonly _stream: SandboxStream;
  private readonly _poll: Poll;
  private readonly _changed = new Signal<this, void>(this);
  private readonly _busy = new Map<string, Action>();
  private readonly _failed = new Map<string, Problem>();
  private readonly _sleep = new SleepWatch();
  private _intervals: IIntervals;
  private _knowledge: Knowledge = { kind: 'loading' };
  private _sequence = 0;
  private _wantsFresh = false;
  private _isDisposed = false;
}
