// @vitest-environment jsdom

import { ServerConnection } from '@jupyterlab/services';
import { describe, expect, it, vi } from 'vitest';

import { ServerSource } from '../src/api';
import type { Problem } from '../src/source';
import { sandboxBody } from './samples';

const BASE_URL = 'http://localhost:8888/user/x/';

function sourceThat(fetch: typeof globalThis.fetch): ServerSource {
  return new ServerSource(
    ServerConnection.makeSettings({ baseUrl: BASE_URL, fetch, token: 'tok' })
  );
}

function answer(body: unknown, init: ResponseInit = {}): Response {
  return new Response(
    typeof body === 'string' ? body : JSON.stringify(body),
    init
  );
}

async function problemOf(response: Response | Error): Promise<Problem> {
  const source = sourceThat(() =>
    response instanceof Error
      ? Promise.reject(response)
      : Promise.resolve(response)
  );
  try {
    await source.list(false);
  } catch (error) {
    return (error as { problem: Problem }).problem;
  }
  throw new Error('It succeeded');
}

describe('ServerSource', () => {
  it('asks under the base URL, with the token', async () => {
    const fetch = vi.fn<typeof globalThis.fetch>(() =>
      Promise.resolve(answer({ sandboxes: [sandboxBody()] }))
    );
    const sandboxes = await sourceThat(fetch).list(true);
    expect(sandboxes).toHaveLength(1);
    const request = fetch.mock.calls[0]?.[0] as Request;
    expect(request.url).toContain(`${BASE_URL}ivy/sandboxes?fresh=1`);
    expect(request.headers.get('Authorization')).toBe('token tok');
  });

  it('quotes the id of the sandbox it acts on', async () => {
    const fetch = vi.fn<typeof globalThis.fetch>(() =>
      Promise.resolve(answer(sandboxBody()))
    );
    const source = sourceThat(fetch);
    await source.act('../a b', 'terminate');
    const request = fetch.mock.calls[0]?.[0] as Request;
    expect(request.method).toBe('POST');
    expect(new URL(request.url).pathname).toBe(
      '/user/x/ivy/sandboxes/..%2Fa%20b/terminate'
    );
  });

  it('asks for the outputs of a notebook since the last look', async () => {
    const fetch = vi.fn<typeof globalThis.fetch>(() =>
      Promise.resolve(answer({ offset: 9, cells: {} }))
    );
    const found = await sourceThat(fetch).outputs('k-1', 'a b/c&d.ipynb', 5);
    expect(found).toEqual({ offset: 9, cells: new Map() });
    const { pathname, searchParams } = new URL(
      (fetch.mock.calls[0]?.[0] as Request).url
    );
    expect(pathname).toBe('/user/x/ivy/outputs');
    expect(Object.fromEntries(searchParams)).toMatchObject({
      kernel_id: 'k-1',
      path: 'a b/c&d.ipynb',
      since: '5'
    });
  });

  it.each<[string, Response | Error, Problem]>([
    [
      'no answer',
      new TypeError('Failed to fetch'),
      { kind: 'server-unreachable' }
    ],
    [
      'a proxy without a server',
      answer('', { status: 503 }),
      { kind: 'server-unreachable' }
    ],
    ['a login page', answer('<html>'), { kind: 'bad-answer' }],
    ['a sign-in', answer('', { status: 403 }), { kind: 'signed-out' }],
    [
      'a server without the extension',
      answer('', { status: 404 }),
      { kind: 'no-extension' }
    ],
    [
      'a refusal with a reason',
      answer(
        { error: { kind: 'CredentialsError', message: 'Set IVY_API_KEY.' } },
        { status: 401 }
      ),
      {
        kind: 'refused',
        message: 'Set IVY_API_KEY.',
        errorKind: 'CredentialsError'
      }
    ]
  ])('tells %s from other problems', async (_, response, problem) => {
    expect(await problemOf(response)).toEqual(problem);
  });

  it('reads the event stream, and ends it when it is not wanted any more', async () => {
    const cancel = vi.fn();
    const body = new ReadableStream({
      start(controller) {
        controller.enqueue(new TextEncoder().encode('data: é\n'));
      },
      cancel
    });
    const headers = { 'Content-Type': 'text/event-stream; charset=utf-8' };
    const source = sourceThat(() =>
      Promise.resolve(new Response(body, { headers }))
    );
    for await (const chunk of source.events(new AbortController().signal)) {
      expect(chunk).toBe('data: é\n');
      break;
    }
    expect(cancel).toHaveBeenCalledOnce();
  });
});
