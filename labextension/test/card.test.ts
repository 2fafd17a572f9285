// @vitest-environment jsdom

import { beforeEach, describe, expect, it, vi } from 'vitest';

import { english } from '../src/format';
import type { Action } from '../src/protocol';
import { type ICardContent, SandboxCard } from '../src/views/card';
import { sandbox, STARTING, status } from './samples';

const onAction = vi.fn<(action: Action) => void>();
const onOverdue = vi.fn();

const HOUR = 3_600_000;

function makeCard(): SandboxCard {
  const card = new SandboxCard({
    trans: english,
    announcesDeadlines: true,
    onAction,
    onOverdue
  });
  document.body.replaceChildren(card.node);
  return card;
}

function content(
  fields: Record<string, unknown> = {},
  rest: Partial<ICardContent> = {}
): ICardContent {
  return {
    sandbox: sandbox(),
    status: status(fields),
    receivedMs: 0,
    busyAction: null,
    actionError: null,
    disconnected: null,
    current: false,
    ...rest
  };
}

/** What a person sees: the text of everything that is not hidden. */
function seen(node: Element): string {
  if (node instanceof HTMLElement && node.hidden) {
    return '';
  }
  return [...node.childNodes]
    .map(one => (one instanceof Element ? seen(one) : one.textContent))
    .join(' ');
}

function buttons(card: SandboxCard): string[] {
  return [...card.node.querySelectorAll<HTMLElement>('.jp-ivy-button')]
    .filter(one => !one.hidden)
    .map(one => one.textContent);
}

function announced(card: SandboxCard): string | null {
  return card.node.querySelector('[aria-live]')?.textContent ?? null;
}

function button(card: SandboxCard, action: Action): HTMLElement {
  const found = card.node.querySelector<HTMLElement>(`[data-action=${action}]`);
  if (!found) {
    throw new Error(`No button for ${action}`);
  }
  return found;
}

beforeEach(() => {
  onAction.mockReset();
  onOverdue.mockReset();
});

describe('SandboxCard', () => {
  it('counts by itself between two statuses', () => {
    const card = makeCard();
    card.update(content({ hibernates_in_ms: 250_000 }), 0);
    expect(seen(card.node)).toContain('4 min 10 s');
    card.tick(11_000);
    expect(seen(card.node)).toContain('3 min 59 s');
  });

  it('shows text of the platform as text', () => {
    const card = makeCard();
    const error = '<img src=x onerror=alert(1)>';
    card.update(
      content(
        { state: 'failed', error },
        { sandbox: sandbox({ name: error }) }
      ),
      0
    );
    expect(card.node.querySelector('img')).toBeNull();
    expect(seen(card.node)).toContain(error);
  });

  it.each([
    [{ state: 'none' }, ['Create']],
    [{ state: 'hibernated' }, ['Resume', 'Terminate…']],
    [{ state: 'failed' }, ['Create', 'Terminate…']],
    [{ state: 'active' }, ['Reconnect', 'Terminate…']],
    [{ ...STARTING }, ['Terminate…']],
    [{ state: 'expired', resumable: false }, ['Create']]
  ])('in %o offers %o', (fields, expected) => {
    const card = makeCard();
    card.update(content(fields), 0);
    expect(buttons(card)).toEqual(expected);
  });

  it('offers only what the server allows', () => {
    const card = makeCard();
    const locked = sandbox({ can_create: false, can_terminate: false });
    card.update(content({ state: 'none' }, { sandbox: locked }), 0);
    expect(buttons(card)).toEqual([]);
  });

  it('takes no second action while one is under way', () => {
    const card = makeCard();
    card.update(content({}, { busyAction: 'terminate' }), 0);
    expect(buttons(card)).toEqual(['Reconnect', 'Terminating…']);
    button(card, 'reconnect').click();
    expect(onAction).not.toHaveBeenCalled();
    card.update(content(), 0);
    button(card, 'reconnect').click();
    expect(onAction).toHaveBeenCalledExactlyOnceWith('reconnect');
  });

  it('keeps the keyboard focus in the card when a button goes', () => {
    const card = makeCard();
    card.update(content({ state: 'none' }), 0);
    button(card, 'create').focus();
    card.update(content(), 0);
    expect(document.activeElement).toBe(button(card, 'reconnect'));
  });

  it('asks once when a countdown has run out', () => {
    const card = makeCard();
    card.update(content({ expires_in_ms: 1000 }), 0);
    card.tick(1000);
    card.tick(2000);
    expect(onOverdue).toHaveBeenCalledOnce();
    expect(seen(card.node)).toContain('Expired');
  });

  it('tells a screen reader of a new state, not of its first one', () => {
    const card = makeCard();
    card.update(content(STARTING), 0);
    expect(announced(card)).toBe('');
    card.update(content(), 0);
    expect(announced(card)).toBe('Local sandbox: Active');
  });

  it('tells a screen reader of a deadline twice, not every second', () => {
    const card = makeCard();
    card.update(content({ idle_ms: HOUR, hibernates_in_ms: 602_000 }), 0);
    const heard = new Set<string | null>();
    for (let ms = 0; ms < 600_000; ms += 1000) {
      card.tick(ms);
      heard.add(announced(card));
    }
    expect([...heard]).toEqual([
      '',
      'Local sandbox: Hibernates in 10 min, and variables are lost. Run a cell to keep it awake.',
      'Local sandbox: Hibernates in 2 min 00 s, and variables are lost. Run a cell to keep it awake.'
    ]);
  });

  it('says by a word and a shape what it says by a colour', () => {
    const card = makeCard();
    card.update(content({ idle_ms: HOUR, hibernates_in_ms: 60_000 }), 0);
    expect(seen(card.node)).toContain('Hibernates very soon');
    const icon = card.node.querySelector<HTMLElement>('.jp-ivy-deadline-icon');
    expect(icon?.hidden).toBe(false);
  });

  it('calls the figures of a stale status estimates, and says since when', () => {
    const card = makeCard();
    card.update(
      content({
        stale: true,
        stale_reason: 'The platform does not answer.',
        age_ms: 200_000
      }),
      0
    );
    const words = seen(card.node);
    expect(words).toContain(
      'The platform does not answer. Last seen 3 min ago.'
    );
    expect(words).toContain('about 20 min');
  });

  it('folds a long text of the platform, and unfolds it by a button', () => {
    const card = makeCard();
    const error = `no capacity ${'x '.repeat(400)}THE END`;
    card.update(content({ state: 'failed', error }), 0);
    const fold = [
      ...card.node.querySelectorAll<HTMLButtonElement>('.jp-ivy-fold')
    ].find(one => !one.hidden && one.closest('[hidden]') === null);
    expect(seen(card.node)).not.toContain('THE END');
    expect(fold?.getAttribute('aria-expanded')).toBe('false');
    fold?.click();
    expect(seen(card.node)).toContain('THE END');
    expect(fold?.getAttribute('aria-expanded')).toBe('true');
    card.tick(5000);
    expect(seen(card.node)).toContain('THE END');
    fold?.click();
    expect(seen(card.node)).not.toContain('THE END');
  });

  it('says what to do before what has happened', () => {
    const card = makeCard();
    const stale_reason =
      'Could not read the status: HTTP 401, the key is wrong; correct the setting api_key.';
    card.update(content({ stale: true, stale_reason, age_ms: 200_000 }), 0);
    const banner = card.node.querySelector('[data-kind=stale]');
    expect(banner && seen(banner).replace(/\s+/g, ' ').trim()).toBe(
      'Correct the setting api_key. Could not read the status: HTTP 401, the key is wrong. Last seen 3 min ago.'
    );
    card.update(content({ state: 'failed', error: 'no capacity' }), 0);
    expect(seen(card.node)).toMatch(
      /Press Create for a new one\.\s+no capacity/
    );
  });

  it('notes what is not known, a line each, and takes it back', () => {
    const card = makeCard();
    card.update(content({ unknown: ['One is not known.', 'Two neither.'] }), 0);
    expect(seen(card.node)).toMatch(/One is not known\.\s+Two neither\./);
    const long = `Recoup failed (${'x'.repeat(200)}); check the setting recoup_api_url.`;
    card.update(content({ unknown: [long] }), 0);
    expect(seen(card.node)).toContain(
      'Check the setting recoup_api_url. Recoup'
    );
    card.update(content({ unknown: ['Two neither.'] }), 0);
    expect(seen(card.node)).not.toContain('One is not known.');
    card.update(content(), 0);
    expect(seen(card.node)).not.toContain('Two neither.');
  });

  it('promises that a cell keeps it awake only where the server says so', () => {
    const card = makeCard();
    const near = { idle_ms: HOUR, hibernates_in_ms: 300_000 };
    card.update(content({ ...near, keeps_awake: true }), 0);
    expect(seen(card.node)).toContain('Running a cell keeps it awake.');
    card.update(content({ ...near, keeps_awake: false }), 0);
    expect(seen(card.node)).toContain('Hibernates soon.');
    expect(seen(card.node)).not.toContain('awake');
  });

  it('shows steps and an estimate during a start', () => {
    const card = makeCard();
    card.update(content(STARTING), 0);
    expect(seen(card.node)).toContain('About 42 s left');
    const current = card.node.querySelector('[aria-current=step]');
    expect(current?.textContent).toBe('Mount: under way');
    const bar = card.node.querySelector('[role=progressbar]');
    expect(bar?.getAttribute('aria-valuenow')).toBe('30');
    card.tick(42_000);
    expect(seen(card.node)).toContain('Taking longer than estimated');
    expect(bar?.hasAttribute('aria-valuenow')).toBe(false);
  });

  it('marks the step at which a start failed', () => {
    const card = makeCard();
    card.update(content(STARTING), 0);
    card.update(content({ state: 'failed', phase: 'failed' }), 0);
    const failed = card.node.querySelector('[data-progress=failed]');
    expect(failed?.textContent).toBe('Mount: failed');
  });
});

describe('the checkpoint', () => {
  it.each([
    [{ number: 7, age_seconds: 12 }, 'after cell [7], 10 s ago'],
    [
      { number: 7, age_seconds: 300, missing: 1 },
      'after cell [7], 5 min ago; 1 variable is not in it'
    ],
    [
      { number: 7, age_seconds: 300, missing: { a: {}, b: {} } },
      'after cell [7], 5 min ago; 2 variables are not in it'
    ]
  ])('is told in one line: %#', (checkpoint, line) => {
    const card = makeCard();
    const told = sandbox({ checkpoint });
    card.update(content({}, { checkpoint: told.checkpoint }), 0);
    expect(seen(card.node)).toContain(`Checkpoint ${line}`);
  });

  it.each([undefined, null, 'soon', {}, { number: 7 }])(
    'is not mentioned where the server does not tell: %j',
    checkpoint => {
      const card = makeCard();
      const told = sandbox({ checkpoint });
      card.update(content({}, { checkpoint: told.checkpoint }), 0);
      expect(seen(card.node)).not.toContain('Checkpoint');
    }
  );
});

describe('Resume and Restore', () => {
  const HIBERNATED = { state: 'hibernated', raw_state: 'hibernated' };

  function restorableCard(onRestore?: () => void): SandboxCard {
    const card = new SandboxCard({
      trans: english,
      announcesDeadlines: true,
      onAction,
      ...(onRestore ? { onRestore } : {})
    });
    document.body.replaceChildren(card.node);
    return card;
  }

  it('is offered beside Resume when a notebook has lost what it had', () => {
    const onRestore = vi.fn();
    const card = restorableCard(onRestore);
    card.update(content(HIBERNATED, { canRestore: true }), 0);
    expect(buttons(card).slice(0, 2)).toEqual(['Resume', 'Resume and Restore']);
    card.node
      .querySelector<HTMLElement>('[data-action="resume-and-restore"]')
      ?.click();
    expect(onRestore).toHaveBeenCalledOnce();
    expect(onAction).not.toHaveBeenCalled();
  });

  it.each<[string, Record<string, unknown>, boolean, boolean]>([
    ['nothing runs here that could', HIBERNATED, false, true],
    ['nothing is lost', { state: 'active' }, true, true],
    ['the view has no notebooks', HIBERNATED, true, false]
  ])('is not offered when %s', (_, state, canRestore, hasNotebooks) => {
    const card = restorableCard(hasNotebooks ? vi.fn() : undefined);
    card.update(content(state, { canRestore }), 0);
    expect(buttons(card)).not.toContain('Resume and Restore');
  });

  it('keeps the other buttons from being pressed while it is under way', () => {
    const card = restorableCard(vi.fn());
    card.update(content({}, { isRestoring: true }), 0);
    expect(buttons(card)).toContain('Restoring…');
    card.node.querySelector<HTMLElement>('[data-action="terminate"]')?.click();
    expect(onAction).not.toHaveBeenCalled();
  });
});
