/** The sandboxes' files as a drive of JupyterLab: its own contents API, at a path of ours. */

import { URLExt } from '@jupyterlab/coreutils';
import { type Contents, Drive, ServerConnection } from '@jupyterlab/services';

import { parseErrorBody } from '../protocol';
import {
  DRIVE_NAME,
  type IManifestEntry,
  type ISent,
  type ITransfer,
  parseManifest,
  parseSent,
  parseTransfers,
  placeOf
} from './entries';

/** The kind of the error that says that the sandbox is not active. */
const NO_SANDBOX = 'NoSandboxError';

/** The kinds of the errors that `overwrite` gets over. */
const EXISTS = 'FileExistsInSandboxError';

/** An answer other than the one that was asked for, in the server's own sentence. */
export class DriveError extends Error {
  constructor(
    readonly kind: string,
    message: string
  ) {
    super(message);
    this.name = 'DriveError';
  }

  /** Whether it is only that something is there already. */
  get isConflict(): boolean {
    return this.kind === EXISTS;
  }
}

export interface IDriveOptions {
  readonly serverSettings: ServerConnection.ISettings;
  /** Whether nothing may be asked of the sandbox that this component stands for. */
  readonly isHeld: (component: string) => boolean;
  /** Called when the server says that a sandbox is not active. */
  readonly onAsleep: () => void;
}

export class IvyDrive extends Drive {
  constructor(options: IDriveOptions) {
    super({
      name: DRIVE_NAME,
      apiEndpoint: 'ivy/contents',
      serverSettings: explained(options.serverSettings, options.onAsleep)
    });
    this._options = options;
  }

  /** Get a file or directory; a sandbox that does not answer reads as an empty one, unasked. */
  override async get(
    localPath: string,
    options?: Contents.IFetchOptions
  ): Promise<Contents.IModel> {
    const place = placeOf(localPath);
    if (
      place.component !== null &&
      place.path === '' &&
      this._options.isHeld(place.component)
    ) {
      return emptyDirectory(place.component);
    }
    // A file browser names no type. The server would give it an older listing after a while, for
    // the sake of those that ask by the clock, which ours does not.
    const isListing = options?.content === true && options.type === undefined;
    return super.get(localPath, isListing ? withFresh(options) : options);
  }

  /** Where the browser downloads a file from: streamed, not through the contents API. */
  override async getDownloadUrl(localPath: string): Promise<string> {
    const url = await super.getDownloadUrl(localPath);
    const { baseUrl } = this.serverSettings;
    const files = URLExt.join(baseUrl, 'files');
    return url.startsWith(files)
      ? URLExt.join(baseUrl, 'ivy/files') + url.slice(files.length)
      : url;
  }

  /** What the platform knows of the files of a chat. */
  async manifest(component: string): Promise<IManifestEntry[]> {
    const body = await this._ask(`manifest/${encodeURIComponent(component)}`);
    return parseManifest(body) ?? [];
  }

  /** What is being copied now into a directory of a sandbox. */
  async transfers(to: string): Promise<ITransfer[]> {
    const all = parseTransfers(await this._ask('transfers'));
    return all.filter(one => one.to === null || one.to === to);
  }

  /** End a transfer. */
  async cancel(id: string): Promise<void> {
    await this._ask(`transfers/${encodeURIComponent(id)}`, {
      method: 'DELETE'
    });
  }

  /**
   * Copy a file or folder of the Jupyter server into a directory of a sandbox.
   *
   * @param to - A path of this drive, without its name.
   */
  async send(path: string, to: string, overwrite: boolean): Promise<ISent> {
    return parseSent(
      await this._ask('send', {
        method: 'POST',
        body: JSON.stringify({ path, to, overwrite })
      })
    );
  }

  private async _ask(path: string, init: RequestInit = {}): Promise<unknown> {
    const { serverSettings } = this;
    const response = await ServerConnection.makeRequest(
      URLExt.join(serverSettings.baseUrl, 'ivy', path),
      init,
      serverSettings
    );
    const body: unknown = await response.json().catch(() => null);
    if (!response.ok) {
      const { kind, message } = (body ?? {}) as Partial<IExplained>;
      throw new DriveError(kind ?? '', message ?? response.statusText);
    }
    return body;
  }

  private readonly _options: IDriveOptions;
}

/** The body of an error answer, as JupyterLab reads it; with the kind beside it. */
interface IExplained {
  readonly message: string;
  readonly kind: string;
}

/**
 * Settings whose answers say in JupyterLab's own way why something failed.
 *
 * JupyterLab shows `message` of an error's body, and asks whether to overwrite whenever a status is
 * 409, and goes to the root again and again while that is 404.
 */
function explained(
  settings: ServerConnection.ISettings,
  onAsleep: () => void
): ServerConnection.ISettings {
  const explain = async (response: Response): Promise<Response> => {
    if (response.ok) {
      return response;
    }
    const body = (await response
      .clone()
      .json()
      .catch(() => null)) as unknown;
    const error = parseErrorBody(body);
    if (error?.kind === NO_SANDBOX) {
      onAsleep();
    }
    const isOurs = error !== null;
    const status =
      error?.kind === NO_SANDBOX || (response.status === 404 && !isOurs)
        ? 503
        : response.status;
    const told: IExplained = error ?? {
      kind: '',
      message: sentenceIn(body) ?? response.statusText
    };
    return new Response(JSON.stringify(told), {
      status,
      statusText: response.statusText,
      headers: { 'Content-Type': 'application/json' }
    });
  };
  // Taken out of its object: the browser's `fetch` refuses to be called as a method of another one.
  const { fetch } = settings;
  return {
    ...settings,
    fetch: async (input, init) => explain(await fetch(input, init))
  };
}

/** Every option travels as a parameter of the query. */
function withFresh(options: Contents.IFetchOptions): Contents.IFetchOptions {
  const query: Contents.IFetchOptions & { readonly fresh: string } = {
    ...options,
    fresh: '1'
  };
  return query;
}

function sentenceIn(body: unknown): string | null {
  const message = (body as { message?: unknown } | null)?.message;
  return typeof message === 'string' && message !== '' ? message : null;
}

function emptyDirectory(component: string): Contents.IModel {
  return {
    name: component,
    path: component,
    type: 'directory',
    format: 'json',
    mimetype: '',
    content: [],
    writable: false,
    created: '',
    last_modified: ''
  };
}
