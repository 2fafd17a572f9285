/** The server extension's REST routes, relative to the base URL of the injected settings. */

import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

import {
  type IWaitingOutputs,
  parseWaitingOutputs
} from './outputs/outputsModel';
import {
  type Action,
  type IAccount,
  type IAccountInput,
  type IChat,
  type ISandbox,
  parseAccount,
  parseChats,
  parseErrorBody,
  parseNotes,
  parseSandbox,
  parseSandboxList
} from './protocol';
import {
  type IChatsSource,
  type IOutputsSource,
  type ISandboxSource,
  SourceError
} from './source';

const NAMESPACE = 'ivy';

/** Reads sandboxes and chats from, and acts on them through, the Jupyter server. */
export class ServerSource
  implements ISandboxSource, IChatsSource, IOutputsSource
{
  constructor(settings: ServerConnection.ISettings) {
    this._settings = settings;
  }

  /** Names the server in what tabs of one browser share. */
  get key(): string {
    return this._settings.baseUrl;
  }

  async list(fresh: boolean): Promise<ISandbox[]> {
    const path = fresh ? 'sandboxes?fresh=1' : 'sandboxes';
    const response = await this._request(path, {});
    const sandboxes = parseSandboxList(await readJSON(response));
    if (sandboxes === null) {
      throw new SourceError({ kind: 'bad-answer' });
    }
    return sandboxes;
  }

  async act(id: string, action: Action): Promise<ISandbox> {
    const path = `sandboxes/${encodeURIComponent(id)}/${action}`;
    const response = await this._request(path, { method: 'POST', body: '{}' });
    const sandbox = parseSandbox(await readJSON(response));
    if (sandbox === null) {
      throw new SourceError({ kind: 'bad-answer' });
    }
    return sandbox;
  }

  async chats(): Promise<IChat[]> {
    const response = await this._request('chats', {});
    const chats = parseChats(await readJSON(response));
    if (chats === null) {
      throw new SourceError({ kind: 'bad-answer' });
    }
    return chats;
  }

  async putChat(
    chatId: string,
    change: { readonly name?: string; readonly campaign_id?: string }
  ): Promise<void> {
    await this._request(chatPath(chatId), {
      method: 'PUT',
      body: JSON.stringify(change)
    });
  }

  async forgetChat(chatId: string): Promise<void> {
    await this._request(chatPath(chatId), { method: 'DELETE' });
  }

  async makeDefault(chatId: string): Promise<readonly string[]> {
    const response = await this._request(`${chatPath(chatId)}/default`, {
      method: 'POST',
      body: '{}'
    });
    return parseNotes(await readJSON(response));
  }

  async account(): Promise<IAccount> {
    return this._account({});
  }

  async saveAccount(input: IAccountInput): Promise<IAccount> {
    const body = JSON.stringify({ ...input, check: true });
    return this._account({ method: 'POST', body });
  }

  async outputs(
    kernelId: string,
    path: string,
    since: number
  ): Promise<IWaitingOutputs> {
    const query = URLExt.objectToQueryString({
      kernel_id: kernelId,
      path,
      since
    });
    const body = await readJSON(await this._request(`outputs${query}`, {}));
    const outputs = parseWaitingOutputs(body);
    if (outputs === null) {
      throw new SourceError({ kind: 'bad-answer' });
    }
    return outputs;
  }

  async *events(signal: AbortSignal): AsyncGenerator<string> {
    const response = await this._request('events', {
      headers: { Accept: 'text/event-stream' },
      signal
    });
    const type = response.headers.get('Content-Type') ?? '';
    if (!response.body || !type.startsWith('text/event-stream')) {
      throw new SourceError({ kind: 'bad-answer' });
    }
    const reader = response.body.getReader();
    const decoder = new TextDecoder();
    try {
      for (;;) {
        const { done, value } = await reader.read();
        if (done) {
          return;
        }
        yield decoder.decode(value, { stream: true });
      }
    } catch (error) {
      throw asSourceError(error);
    } finally {
      // Also when the consumer has had enough: the server must see the stream closed.
      void reader.cancel().catch(() => undefined);
    }
  }

  private async _account(init: RequestInit): Promise<IAccount> {
    const response = await this._request('account', init);
    const account = parseAccount(await readJSON(response));
    if (account === null) {
      throw new SourceError({ kind: 'bad-answer' });
    }
    return account;
  }

  private async _request(path: string, init: RequestInit): Promise<Response> {
    const url = URLExt.join(this._settings.baseUrl, NAMESPACE, path);
    let response: Response;
    try {
      response = await ServerConnection.makeRequest(url, init, this._settings);
    } catch (error) {
      throw asSourceError(error);
    }
    if (!response.ok) {
      throw await refusal(response);
    }
    return response;
  }

  private readonly _settings: ServerConnection.ISettings;
}

function chatPath(chatId: string): string {
  return `chats/${encodeURIComponent(chatId)}`;
}

function asSourceError(error: unknown): SourceError {
  return error instanceof SourceError
    ? error
    : new SourceError({ kind: 'server-unreachable' });
}

async function readJSON(response: Response): Promise<unknown> {
  try {
    return (await response.json()) as unknown;
  } catch {
    // A login page, or a body cut off: the caller's parser refuses undefined.
    return undefined;
  }
}

async function refusal(response: Response): Promise<SourceError> {
  const error = parseErrorBody(await readJSON(response));
  if (error !== null) {
    return new SourceError({
      kind: 'refused',
      message: error.message,
      errorKind: error.kind
    });
  }
  switch (response.status) {
    case 401:
    case 403:
      return new SourceError({ kind: 'signed-out' });
    case 404:
      return new SourceError({ kind: 'no-extension' });
    case 502:
    case 503:
    case 504:
      return new SourceError({ kind: 'server-unreachable' });
    default:
      return new SourceError({ kind: 'bad-answer' });
  }
}
