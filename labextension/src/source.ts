/** Where the model gets sandboxes from, and the reasons why there may be none. */

import type { ITranslate } from './format';
import type { IWaitingOutputs } from './outputs/outputsModel';
import type {
  Action,
  IAccount,
  IAccountInput,
  IChat,
  ISandbox
} from './protocol';

/** Why there is no data, or none that is fresh. */
export type Problem =
  /** The Jupyter server does not answer. */
  | { readonly kind: 'server-unreachable' }
  /** The Jupyter server does not know the routes: the server extension is not enabled. */
  | { readonly kind: 'no-extension' }
  /** The Jupyter server does not accept this browser (any more). */
  | { readonly kind: 'signed-out' }
  /** Something answered that is not the server extension. */
  | { readonly kind: 'bad-answer' }
  /** The server extension says why not, in a sentence for the user. */
  | {
      readonly kind: 'refused';
      readonly message: string;
      /** The class of the server's error. */
      readonly errorKind?: string;
    };

export class SourceError extends Error {
  constructor(readonly problem: Problem) {
    super(problem.kind === 'refused' ? problem.message : problem.kind);
    this.name = 'SourceError';
  }
}

export interface ISandboxSource {
  readonly key: string;
  /**
   * @param fresh - Whether the platform shall be asked, however new the last answer is.
   */
  list(fresh: boolean): Promise<ISandbox[]>;
  act(id: string, action: Action): Promise<ISandbox>;
  /** The chunks of the event stream, until it ends or is aborted. */
  events(signal: AbortSignal): AsyncIterable<string>;
}

/** Where the chats and the account come from. */
export interface IChatsSource {
  chats(): Promise<IChat[]>;
  /** Change what is remembered of a chat; a chat that is not remembered yet is from now on. */
  putChat(
    chatId: string,
    change: { readonly name?: string; readonly campaign_id?: string }
  ): Promise<void>;
  forgetChat(chatId: string): Promise<void>;
  /** Write a chat into the settings; gives the sentences that the person has to know. */
  makeDefault(chatId: string): Promise<readonly string[]>;
  account(): Promise<IAccount>;
  /** Check an account with the platform, and save it if that works. */
  saveAccount(input: IAccountInput): Promise<IAccount>;
}

/** Where outputs wait for their cells. */
export interface IOutputsSource {
  /**
   * @param path - The notebook's path, under which an earlier kernel may have left some.
   * @param since - The offset of the last answer; 0 for all that there is.
   */
  outputs(
    kernelId: string,
    path: string,
    since: number
  ): Promise<IWaitingOutputs>;
}

/** The problem that an error of a source stands for. */
export function problemOf(error: unknown): Problem {
  return error instanceof SourceError ? error.problem : { kind: 'bad-answer' };
}

/** A problem, in one sentence that says what to do. */
export function problemSentence(problem: Problem, trans: ITranslate): string {
  switch (problem.kind) {
    case 'server-unreachable':
      return trans.__('The Jupyter server does not answer.');
    case 'no-extension':
      return trans.__(
        'The server extension “ivy_kernel” is not enabled: run “jupyter server extension enable ivy_kernel” and restart the server.'
      );
    case 'signed-out':
      return trans.__(
        'The Jupyter server asks for a sign-in: reload this page.'
      );
    case 'bad-answer':
      return trans.__(
        'The Jupyter server gave an unexpected answer: reload this page.'
      );
    case 'refused':
      return problem.message;
  }
}
