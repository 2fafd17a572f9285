/** Documents as the server extension sends them. */

import {
  type IAccount,
  type IChat,
  type ISandbox,
  type IStatus,
  parseSandbox,
  parseStatus
} from '../src/protocol';

type Fields = Record<string, unknown>;

export const ACTIVE: Fields = {
  state: 'active',
  raw_state: 'active',
  phase: 'ready',
  eta_ms: null,
  uptime_ms: 60_000,
  created_ms: 1_796_000_000_000,
  last_activity_ms: 1_796_000_030_000,
  idle_ms: 30_000,
  hibernates_in_ms: 1_200_000,
  expires_in_ms: 1_800_000,
  resumable: true,
  error: null,
  dialect: 'recoup',
  age_ms: 120,
  stale: false,
  stale_reason: null
};

export const STARTING: Fields = {
  ...ACTIVE,
  state: 'provisioning',
  raw_state: 'creating',
  phase: 'mount',
  eta_ms: 42_000,
  uptime_ms: 18_000,
  idle_ms: null,
  hibernates_in_ms: null,
  expires_in_ms: null,
  dialect: 'ivy'
};

export function status(fields: Fields = {}): IStatus {
  return parseStatus({ ...ACTIVE, ...fields });
}

export function sandboxBody(fields: Fields = {}, state: Fields = {}): Fields {
  return {
    id: 'key-1',
    name: 'Local sandbox',
    local: true,
    chat_id: 'local',
    default: true,
    missing: null,
    can_create: true,
    can_terminate: true,
    sessions: [],
    status: { ...ACTIVE, ...state },
    ...fields
  };
}

export function sandbox(fields: Fields = {}, state: Fields = {}): ISandbox {
  const parsed = parseSandbox(sandboxBody(fields, state));
  if (!parsed) {
    throw new Error('The sample is no sandbox');
  }
  return parsed;
}

export const NO_ACCOUNT: IAccount = {
  hasKey: false,
  keySource: null,
  chatId: null,
  campaignId: null,
  configFile: '/home/ada/.jupyter/jupyter_ivy_config.json',
  hasRecoupKey: false,
  recoupSessionId: null,
  checked: null,
  notes: []
};

export function chat(chatId: string, fields: Partial<IChat> = {}): IChat {
  return {
    chatId,
    name: chatId,
    campaignId: null,
    lastUsedMs: null,
    isDefault: false,
    isLocal: false,
    ...fields
  };
}
