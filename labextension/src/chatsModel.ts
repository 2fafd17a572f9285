/** The chats that this person has used, and the account, as this browser knows them. */

import type { IDisposable } from '@lumino/disposable';
import { type ISignal, Signal } from '@lumino/signaling';

import type { IAccount, IAccountInput, IChat } from './protocol';
import { type IChatsSource, type Problem, problemOf } from './source';

export class ChatsModel implements IDisposable {
  constructor(source: IChatsSource) {
    this._source = source;
  }

  /** Emitted when anything has changed. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get chats(): readonly IChat[] {
    return this._chats;
  }

  /** What the settings say of the account; null as long as nobody has said. */
  get account(): IAccount | null {
    return this._account;
  }

  /** Why the last thing that was asked for did not work. */
  get problem(): Problem | null {
    return this._problem;
  }

  /** What the person has to know of the last change. */
  get notes(): readonly string[] {
    return this._notes;
  }

  /** Whether an answer has come. */
  get isKnown(): boolean {
    return this._isKnown;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  /** Ask for chats and account; tells whether the answers came, and never rejects. */
  async refresh(): Promise<boolean> {
    return this._attempt(() => this._read(), isToldElsewhere);
  }

  /** Give a chat a name. */
  async rename(chatId: string, name: string): Promise<boolean> {
    return this._change(() => this._source.putChat(chatId, { name }));
  }

  /** Drop a chat from the list; the chat itself stays. */
  async forget(chatId: string): Promise<boolean> {
    return this._change(() => this._source.forgetChat(chatId));
  }

  /** Write a chat into the settings, as the one that notebooks use. */
  async makeDefault(chatId: string): Promise<boolean> {
    return this._change(async () => {
      this._notes = await this._source.makeDefault(chatId);
    });
  }

  /**
   * Check an account and save it.
   *
   * @returns What is saved, or why nothing was. The input is not kept.
   */
  async saveAccount(
    input: IAccountInput
  ): Promise<{ readonly account: IAccount } | { readonly problem: Problem }> {
    let account: IAccount;
    try {
      account = await this._source.saveAccount(input);
    } catch (error) {
      return { problem: problemOf(error) };
    }
    this._account = account;
    void this.refresh();
    return { account };
  }

  dispose(): void {
    this._isDisposed = true;
    Signal.clearData(this);
  }

  private async _change(request: () => Promise<void>): Promise<boolean> {
    this._notes = [];
    return this._attempt(async () => {
      await request();
      await this._read();
    });
  }

  private async _attempt(
    request: () => Promise<void>,
    isUntold: (problem: Problem) => boolean = () => false
  ): Promise<boolean> {
    let problem: Problem | null = null;
    try {
      await request();
    } catch (error) {
      problem = problemOf(error);
    }
    if (!this._isDisposed) {
      this._problem = problem && isUntold(problem) ? null : problem;
      this._changed.emit();
    }
    return problem === null;
  }

  private async _read(): Promise<void> {
    const sequence = ++this._sequence;
    const [chats, account] = await Promise.all([
      this._source.chats(),
      this._source.account()
    ]);
    // An answer that was overtaken by a newer one is out of date.
    if (sequence === this._sequence) {
      this._chats = chats;
      this._account = account;
      this._isKnown = true;
    }
  }

  private readonly _source: IChatsSource;
  private readonly _changed = new Signal<this, void>(this);
  private _chats: readonly IChat[] = [];
  private _account: IAccount | null = null;
  private _problem: Problem | null = null;
  private _notes: readonly string[] = [];
  private _isKnown = false;
  private _sequence = 0;
  private _isDisposed = false;
}

/** Whoever shows the sandboxes says that the server does not answer. */
function isToldElsewhere(problem: Problem): boolean {
  return problem.kind === 'server-unreachable';
}
