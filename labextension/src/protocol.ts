/**
 * What the server extension and the widget's kernel side say about sandboxes.
 *
 * The parsers never throw: a field of the wrong type, a missing one and a negative or absurd
 * duration read as `null`, an unknown state as `unknown` with the raw word kept. So an older front
 * end shows less, never something false, when a newer server adds to the documents.
 */

export const SANDBOX_STATES = [
  'none',
  'provisioning',
  'active',
  'hibernating',
  'hibernated',
  'restoring',
  'archived',
  'failed',
  'expired',
  'unknown'
] as const;

export type SandboxState = (typeof SANDBOX_STATES)[number];

/** A status; every duration holds at the moment the status was made. */
export interface IStatus {
  readonly state: SandboxState;
  /** The platform's own word for the state. */
  readonly rawState: string | null;
  /** The platform's own word for the step of a start: compute, mount, ready, failed, or another. */
  readonly phase: string | null;
  readonly etaMs: number | null;
  readonly uptimeMs: number | null;
  /** Epoch ms on the server's clock: only to be shown as a date. */
  readonly createdMs: number | null;
  /** Epoch ms on the server's clock: only to be shown as a date. */
  readonly lastActivityMs: number | null;
  readonly idleMs: number | null;
  readonly hibernatesInMs: number | null;
  readonly expiresInMs: number | null;
  /** Whether creating it brings its files back; null when nobody knows. */
  readonly resumable: boolean | null;
  readonly error: string | null;
  readonly dialect: string | null;
  /** How old the platform's answer already was when the status was made. */
  readonly ageMs: number;
  readonly stale: boolean;
  readonly staleReason: string | null;
  /** The word for the state, as every part of us says it; null from an older server. */
  readonly label: string | null;
  /** What the state means and what comes next; null from an older server. */
  readonly hint: string | null;
  /** Whether creating it brings something back, as the server knows it; null likewise. */
  readonly resumes: boolean | null;
  /** Whether a cell that runs puts the hibernation off; null likewise. */
  readonly keepsAwake: boolean | null;
  /** Sentences that say what is not known, and why. */
  readonly unknown: readonly string[];
}

/** A hold on a sandbox: a kernel of ours, or a notebook that uses the cell magic. */
export interface ISession {
  readonly kernelId: string;
  readonly notebookPath: string | null;
  readonly kind: 'kernel' | 'magic';
}

/** What is used of something, and the most that may be. */
export interface IMeter {
  readonly used: number;
  readonly limit: number;
}

export interface IGpu {
  readonly name: string;
  readonly usedPercent: number | null;
  /** Bytes of its own memory. */
  readonly memory: IMeter;
}

/** What a sandbox uses, as its agent last told some notebook; null for what is not known. */
export interface IResources {
  /** Bytes. */
  readonly memory: IMeter | null;
  /** Percent of one processor, and the number of processors. */
  readonly cpu: IMeter | null;
  /** Bytes. */
  readonly disk: IMeter | null;
  readonly gpus: readonly IGpu[];
  /** How old it already was when it was sent. */
  readonly ageMs: number;
}

export interface ISandbox {
  /** An opaque key, for the REST paths. */
  readonly id: string;
  readonly name: string;
  readonly local: boolean;
  readonly chatId: string | null;
  readonly isDefault: boolean;
  /** Whether the settings hold a key of the platform; true unless the server says no. */
  readonly hasAccount: boolean;
  /** The sentence that says which settings are missing. */
  readonly missing: string | null;
  readonly canCreate: boolean;
  readonly canTerminate: boolean;
  readonly sessions: readonly ISession[];
  readonly status: IStatus;
  readonly resources: IResources | null;
  /** Null also from a server that does not tell. */
  readonly checkpoint: ICheckpoint | null;
}

/** The newest checkpoint of the variables of a sandbox. */
export interface ICheckpoint {
  /** The cell after which it was made. */
  readonly number: number;
  /** How old it already was when it was sent. */
  readonly ageMs: number;
  /** How many variables are not in it. */
  readonly missing: number;
}

/** The body of every error answer of the server extension. */
export interface IErrorBody {
  readonly kind: string;
  readonly message: string;
}

export type Action = 'create' | 'terminate' | 'reconnect';

export type JSONRecord = Record<string, unknown>;

export function asRecord(value: unknown): JSONRecord | null {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
    ? (value as JSONRecord)
    : null;
}

/** A text with something in it, else null. */
export function text(value: unknown): string | null {
  return typeof value === 'string' && value.trim() !== '' ? value : null;
}

function flag(value: unknown): boolean | null {
  return typeof value === 'boolean' ? value : null;
}

function texts(value: unknown): string[] {
  return Array.isArray(value)
    ? (value as unknown[])
        .map(text)
        .filter((one): one is string => one !== null)
    : [];
}

/** Ten years: beyond it a duration is a misunderstanding, such as an epoch. */
const LONGEST_DURATION_MS = 10 * 365 * 24 * 3600 * 1000;

function durationMs(value: unknown): number | null {
  if (typeof value !== 'number' || !Number.isFinite(value)) {
    return null;
  }
  return value > LONGEST_DURATION_MS ? null : Math.max(0, value);
}

/** The last ms that a JavaScript date can show. */
const LAST_EPOCH_MS = 8.64e15;

function epochMs(value: unknown): number | null {
  return typeof value === 'number' && value > 0 && value <= LAST_EPOCH_MS
    ? value
    : null;
}

export function isSandboxState(value: unknown): value is SandboxState {
  return (SANDBOX_STATES as readonly unknown[]).includes(value);
}

/** Read a canonical status; anything that is none reads as an unknown state. */
export function parseStatus(value: unknown): IStatus {
  const body = asRecord(value) ?? {};
  const known = isSandboxState(body['state']);
  return {
    state: known ? (body['state'] as SandboxState) : 'unknown',
    rawState: text(body['raw_state']) ?? (known ? null : text(body['state'])),
    phase: text(body['phase']),
    etaMs: durationMs(body['eta_ms']),
    uptimeMs: durationMs(body['uptime_ms']),
    createdMs: epochMs(body['created_ms']),
    lastActivityMs: epochMs(body['last_activity_ms']),
    idleMs: durationMs(body['idle_ms']),
    hibernatesInMs: durationMs(body['hibernates_in_ms']),
    expiresInMs: durationMs(body['expires_in_ms']),
    resumable: flag(body['resumable']),
    error: text(body['error']),
    dialect: text(body['dialect']),
    ageMs: durationMs(body['age_ms']) ?? 0,
    stale: body['stale'] === true,
    staleReason: text(body['stale_reason']),
    label: text(body['label']),
    hint: typeof body['hint'] === 'string' ? body['hint'].trim() : null,
    resumes: flag(body['resumes']),
    keepsAwake: flag(body['keeps_awake']),
    unknown: texts(body['unknown'])
  };
}

function parseSession(value: unknown): ISession | null {
  const body = asRecord(value);
  const kernelId = text(body?.['kernel_id']);
  if (!body || kernelId === null) {
    return null;
  }
  return {
    kernelId,
    notebookPath: text(body['notebook_path']),
    kind: body['kind'] === 'magic' ? 'magic' : 'kernel'
  };
}

/** A number that counts something, else null. */
export function amount(value: unknown): number | null {
  return typeof value === 'number' && Number.isFinite(value) && value >= 0
    ? value
    : null;
}

function parseMeter(
  value: unknown,
  usedName: string,
  limitName: string
): IMeter | null {
  const body = asRecord(value);
  const used = amount(body?.[usedName]);
  const limit = amount(body?.[limitName]);
  return used === null || limit === null || limit === 0
    ? null
    : { used, limit };
}

function parseGpu(value: unknown): IGpu | null {
  const body = asRecord(value);
  const name = text(body?.['name']);
  const memory = parseMeter(body, 'memory_used_bytes', 'memory_limit_bytes');
  return name === null || memory === null
    ? null
    : { name, usedPercent: amount(body?.['used_percent']), memory };
}

/** Read what a sandbox uses; null when nothing of it is known. */
export function parseResources(value: unknown): IResources | null {
  const body = asRecord(value);
  if (!body) {
    return null;
  }
  const gpus: unknown[] = Array.isArray(body['gpus']) ? body['gpus'] : [];
  const found: IResources = {
    memory: parseMeter(body['memory'], 'used_bytes', 'limit_bytes'),
    cpu: parseMeter(body['cpu'], 'used_percent', 'cores'),
    disk: parseMeter(body['disk'], 'used_bytes', 'limit_bytes'),
    gpus: gpus.map(parseGpu).filter((one): one is IGpu => one !== null),
    ageMs: (durationMs(body['age_seconds']) ?? 0) * 1000
  };
  return found.memory || found.cpu || found.disk || found.gpus.length > 0
    ? found
    : null;
}

function parseCheckpoint(value: unknown): ICheckpoint | null {
  const body = asRecord(value);
  const number = amount(body?.['number']);
  const ageMs = durationMs(amount(body?.['age_seconds'])) ?? null;
  if (!body || number === null || ageMs === null) {
    return null;
  }
  const { missing } = body;
  return {
    number,
    ageMs: ageMs * 1000,
    // Their names, or how many they are.
    missing: amount(missing) ?? Object.keys(missing ?? {}).length
  };
}

/** Read a sandbox; null when it has no id, because nothing could be done with it. */
export function parseSandbox(value: unknown): ISandbox | null {
  const body = asRecord(value);
  const id = text(body?.['id']);
  if (!body || id === null) {
    return null;
  }
  const sessions: unknown[] = Array.isArray(body['sessions'])
    ? body['sessions']
    : [];
  return {
    id,
    name: text(body['name']) ?? id,
    local: body['local'] === true,
    chatId: text(body['chat_id']),
    isDefault: body['default'] === true,
    hasAccount: body['account'] !== false,
    missing: text(body['missing']),
    canCreate: body['can_create'] === true,
    canTerminate: body['can_terminate'] === true,
    sessions: sessions
      .map(parseSession)
      .filter((session): session is ISession => session !== null),
    status: parseStatus(body['status']),
    resources: parseResources(body['resources']),
    checkpoint: parseCheckpoint(body['checkpoint'])
  };
}

/** Read a list of sandboxes; null when the value is not one at all (a login page, say). */
export function parseSandboxList(value: unknown): ISandbox[] | null {
  const list = asRecord(value)?.['sandboxes'];
  if (!Array.isArray(list)) {
    return null;
  }
  const seen = new Set<string>();
  return (list as unknown[])
    .map(parseSandbox)
    .filter((one): one is ISandbox => {
      if (one === null || seen.has(one.id)) {
        return false;
      }
      seen.add(one.id);
      return true;
    });
}

/** Read the body of an error answer; null when it is not one of the server extension's. */
export function parseErrorBody(value: unknown): IErrorBody | null {
  const error = asRecord(asRecord(value)?.['error']);
  const message = text(error?.['message']);
  if (message === null) {
    return null;
  }
  return { kind: text(error?.['kind']) ?? 'IvyError', message };
}

/** A chat that this person has used. */
export interface IChat {
  readonly chatId: string;
  /** The name that the person gave it; the id where there is none. */
  readonly name: string;
  readonly campaignId: string | null;
  /** Epoch ms on the server's clock. */
  readonly lastUsedMs: number | null;
  readonly isDefault: boolean;
  readonly isLocal: boolean;
}

/** What the server's settings say of the account; never a key, nor a part of one. */
export interface IAccount {
  readonly hasKey: boolean;
  /** Where the key comes from, in words. */
  readonly keySource: string | null;
  readonly chatId: string | null;
  readonly campaignId: string | null;
  readonly configFile: string | null;
  readonly hasRecoupKey: boolean;
  readonly recoupSessionId: string | null;
  /** What the platform said when the account was checked just now. */
  readonly checked: string | null;
  /** What the person has to know of what was saved. */
  readonly notes: readonly string[];
}

/** What is to be saved; what is left out stays as it is. Its names are those of the settings. */
export interface IAccountInput {
  readonly api_key?: string;
  readonly chat_id?: string;
  readonly campaign_id?: string;
  readonly recoup_api_key?: string;
  readonly recoup_session_id?: string;
}

function parseChat(value: unknown): IChat | null {
  const body = asRecord(value);
  const chatId = text(body?.['chat_id']);
  if (!body || chatId === null) {
    return null;
  }
  return {
    chatId,
    name: text(body['name']) ?? chatId,
    campaignId: text(body['campaign_id']),
    lastUsedMs: epochMs(Date.parse(text(body['last_used']) ?? '')),
    isDefault: body['is_default'] === true,
    isLocal: body['is_local'] === true
  };
}

/** Read a list of chats; null when the value is none. */
export function parseChats(value: unknown): IChat[] | null {
  const list = asRecord(value)?.['chats'];
  return Array.isArray(list)
    ? (list as unknown[])
        .map(parseChat)
        .filter((chat): chat is IChat => chat !== null)
    : null;
}

/** Read the sentences that come with an answer. */
export function parseNotes(value: unknown): string[] {
  return texts(asRecord(value)?.['notes']);
}

/** Read an account; null when the value is none. */
export function parseAccount(value: unknown): IAccount | null {
  const body = asRecord(value);
  const hasKey = flag(body?.['has_key']);
  if (!body || hasKey === null) {
    return null;
  }
  return {
    hasKey,
    keySource: text(body['key_source']),
    chatId: text(body['chat_id']),
    campaignId: text(body['campaign_id']),
    configFile: text(body['config_file']),
    hasRecoupKey: body['has_recoup_key'] === true,
    recoupSessionId: text(body['recoup_session_id']),
    checked: text(body['checked']),
    notes: texts(body['notes'])
  };
}

/** Whether the state changes by itself before long. */
export function isTransitional(state: SandboxState): boolean {
  return (
    state === 'provisioning' || state === 'restoring' || state === 'hibernating'
  );
}

/** Whether a sandbox in this state may be created (or woken, which is the same request). */
export function isCreatable(state: SandboxState): boolean {
  return (
    state === 'none' ||
    state === 'hibernated' ||
    state === 'archived' ||
    state === 'failed' ||
    state === 'expired'
  );
}

/**
 * Whether this is the local sandbox that somebody without an account may try: nobody uses it, and
 * it is not there until it is asked for.
 */
export function isOffer(sandbox: ISandbox): boolean {
  return (
    sandbox.isDefault &&
    sandbox.local &&
    !sandbox.hasAccount &&
    sandbox.canCreate &&
    sandbox.sessions.length === 0 &&
    sandbox.status.state === 'none'
  );
}

/** Whether there is something in this state that can be terminated. */
export function isTerminable(state: SandboxState): boolean {
  return state !== 'none' && state !== 'archived' && state !== 'expired';
}
