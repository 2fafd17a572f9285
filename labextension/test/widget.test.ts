// @vitest-environment jsdom

import type { AnyModel } from '@anywidget/types';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import widget, { type IWidgetTraits } from '../src/widget';
import { ACTIVE } from './samples';

type Listener = () => void;

/** The browser's half of an ipywidgets model. */
class FakeModel {
  readonly sent: unknown[] = [];
  readonly listeners = new Map<string, Set<Listener>>();
  readonly traits: IWidgetTraits = {
    status: ACTIVE,
    name: 'Chat 7',
    local: false,
    busy_action: '',
    action_error: '',
    missing: '',
    can_create: true,
    can_terminate: true
  };

  get<K extends keyof IWidgetTraits>(name: K): IWidgetTraits[K] {
    return this.traits[name];
  }

  set(changes: Partial<IWidgetTraits>): void {
    Object.assign(this.traits, changes);
    for (const name of Object.keys(changes)) {
      for (const listener of this.listeners.get(`change:${name}`) ?? []) {
        listener();
      }
    }
  }

  on(event: string, listener: Listener): void {
    const all = this.listeners.get(event) ?? new Set();
    this.listeners.set(event, all.add(listener));
  }

  off(event: string, listener: Listener): void {
    this.listeners.get(event)?.delete(listener);
  }

  send(content: unknown): void {
    this.sent.push(content);
  }
}

let model: FakeModel;
let el: HTMLElement;
let cleanUp: () => void;

function shown(selector: string): HTMLElement | null {
  const found = el.querySelector<HTMLElement>(selector);
  return found?.hidden ? null : found;
}

function press(selector: string): void {
  shown(selector)?.click();
}

beforeEach(async () => {
  vi.useFakeTimers();
  model = new FakeModel();
  el = document.createElement('div');
  document.body.replaceChildren(el);
  const result = await widget.render({
    model: model as unknown as AnyModel<IWidgetTraits>,
    el,
    signal: new AbortController().signal,
    experimental: { invoke: () => Promise.reject(new Error('not here')) },
    host: {} as never
  });
  cleanUp = result as () => void;
});

afterEach(() => {
  cleanUp();
  vi.useRealTimers();
});

describe('the widget', () => {
  it('ticks without a message from the kernel', () => {
    expect(el.textContent).toContain('20 min 00 s');
    vi.advanceTimersByTime(3000);
    expect(el.textContent).toContain('19 min 57 s');
    expect(model.sent).toEqual([]);
  });

  it('takes a new status over', () => {
    model.set({ status: { ...ACTIVE, hibernates_in_ms: 61_000 } });
    expect(el.textContent).toContain('1 min 01 s');
  });

  it('sends the action of a button', () => {
    press('[data-action=reconnect]');
    expect(model.sent).toEqual([{ action: 'reconnect' }]);
  });

  it('asks before it terminates, with the harmless answer in focus', () => {
    press('[data-action=terminate]');
    expect(model.sent).toEqual([]);
    expect(shown('[role=alertdialog]')?.getAttribute('aria-label')).toBe(
      'Terminate “Chat 7”?'
    );
    expect(document.activeElement?.textContent).toBe('Cancel');
    press('.jp-mod-confirm');
    expect(model.sent).toEqual([{ action: 'terminate' }]);
    expect(shown('[role=alertdialog]')).toBeNull();
  });

  it('does not terminate on Escape, and gives the focus back', () => {
    press('[data-action=terminate]');
    const escape = new KeyboardEvent('keydown', {
      key: 'Escape',
      bubbles: true
    });
    document.activeElement?.dispatchEvent(escape);
    expect(shown('[role=alertdialog]')).toBeNull();
    expect(model.sent).toEqual([]);
    expect(document.activeElement?.textContent).toBe('Terminate…');
  });

  it('asks for the truth when a countdown has run out, but does not poll', () => {
    model.set({ status: { ...ACTIVE, hibernates_in_ms: 2000 } });
    vi.advanceTimersByTime(1500);
    expect(model.sent).toEqual([]);
    vi.advanceTimersByTime(10_000);
    expect(model.sent).toEqual([{ action: 'refresh' }]);
  });

  it('asks for the truth after a sleep of the computer', () => {
    vi.setSystemTime(Date.now() + 3_600_000);
    vi.advanceTimersByTime(1000);
    expect(model.sent).toEqual([{ action: 'refresh' }]);
  });

  it('asks after a long silence, and says so when nobody answers', () => {
    vi.advanceTimersByTime(299_000);
    expect(model.sent).toEqual([]);
    vi.advanceTimersByTime(3000);
    expect(model.sent).toEqual([{ action: 'refresh' }]);
    expect(shown('[data-kind=stale]')).toBeNull();
    vi.advanceTimersByTime(31_000);
    expect(shown('[data-kind=stale]')?.textContent).toContain(
      'The kernel has sent no new status.'
    );
    model.set({ status: { ...ACTIVE } });
    expect(shown('[data-kind=stale]')).toBeNull();
  });

  it('leaves a sandbox alone in which nothing can change by itself', () => {
    model.set({ status: { state: 'none' } });
    vi.advanceTimersByTime(3_600_000);
    expect(model.sent).toEqual([]);
  });

  it('shows why an action failed', () => {
    model.set({ action_error: 'Set IVY_CAMPAIGN_ID.' });
    const alert = el.querySelector('[role=alert]');
    expect(alert?.textContent).toBe('Set IVY_CAMPAIGN_ID.');
  });

  it('leaves nothing behind', () => {
    cleanUp();
    expect(el.childElementCount).toBe(0);
    const left = [...model.listeners.values()].reduce((n, s) => n + s.size, 0);
    expect(left).toBe(0);
    expect(vi.getTimerCount()).toBe(0);
  });
});
