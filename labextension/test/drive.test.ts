import { describe, expect, it } from 'vitest';

import {
  componentsOf,
  dateText,
  hoverLines,
  isDrivePath,
  knownFacts,
  parseKnown,
  parseManifest,
  parseSent,
  parseTransfers,
  placeOf,
  sandboxAt,
  sentText,
  shownAt,
  sizeText,
  transferFraction,
  transferText,
  wakingAction
} from '../src/drive/entries';
import { english } from '../src/format';
import { sandbox } from './samples';

describe('a path of the drive', () => {
  it('is a sandbox and a path in it', () => {
    expect(placeOf('Ivy:chat/a/b c.txt')).toEqual({
      component: 'chat',
      path: 'a/b c.txt'
    });
    expect(placeOf('chat')).toEqual({ component: 'chat', path: '' });
    expect(placeOf('Ivy:')).toEqual({ component: null, path: '' });
    expect(isDrivePath('Ivy:chat')).toBe(true);
    expect(isDrivePath('work/Ivy:chat')).toBe(false);
  });

  it('quotes what would make two components of an id, or none', () => {
    const of = (chatId: string): string | undefined =>
      componentsOf([sandbox({ chat_id: chatId })]).get('key-1');
    expect(of('a/b%c')).toBe('a%2Fb%25c');
    expect(of('..')).toBe('%2E%2E');
    expect(of('\u00fc (1)')).toBe('\u00fc (1)');
  });

  it('keeps two sandboxes of one chat apart', () => {
    const both = [
      sandbox({ id: '0123456789', chat_id: 'same', default: false }),
      sandbox({ id: 'abcdefghij', chat_id: 'same', default: true })
    ];
    expect([...componentsOf(both)]).toEqual([
      ['abcdefghij', 'same'],
      ['0123456789', 'same@01234567']
    ]);
    const found = sandboxAt(both, placeOf('Ivy:same@01234567/x'));
    expect(found?.id).toBe('0123456789');
    expect(sandboxAt(both, placeOf('Ivy:'))).toBeNull();
  });
});

describe('what is shown', () => {
  it('is files only where the sandbox is active', () => {
    const place = placeOf('Ivy:chat/data');
    expect(shownAt(place, 'active')).toBe('files');
    expect(shownAt(place, 'hibernated')).toBe('state');
    expect(shownAt(place, 'provisioning')).toBe('state');
    expect(shownAt(place, null)).toBe('gone');
    expect(shownAt(placeOf('Ivy:'), null)).toBe('files');
  });

  it('has a button only where that helps', () => {
    expect(wakingAction(sandbox(), 'hibernated')).toBe('create');
    expect(wakingAction(sandbox(), 'unknown')).toBe('reconnect');
    expect(wakingAction(sandbox(), 'provisioning')).toBeNull();
    const forbidden = sandbox({ can_create: false });
    expect(wakingAction(forbidden, 'hibernated')).toBeNull();
  });
});

describe('what the platform knows', () => {
  const model = {
    ivy: { kind: 'upload', origin: 'chat', created: 'yesterday' }
  };

  it('stands in the tooltip', () => {
    expect(hoverLines(model, true, english)).toBe(
      '\nKind: upload\nOrigin: chat\nCreated: yesterday'
    );
    expect(hoverLines({}, true, english)).toBe('');
    expect(hoverLines({}, false, english)).toContain('Read-only');
  });

  it('is nothing rather than something false', () => {
    expect(parseKnown({ ivy: { state: 'active' } })).toBeNull();
    expect(parseKnown({ ivy: 'text' })).toBeNull();
    expect(parseKnown(null)).toBeNull();
    expect(parseManifest('<html>')).toBeNull();
    expect(parseManifest({ entries: [{ kind: 'upload' }, 7] })).toEqual([]);
  });

  it('is read from the manifest too', () => {
    const entries = parseManifest({
      entries: [{ path: 'a', kind: 'export', size_bytes: 1500 }]
    });
    const [first] = entries ?? [];
    expect(first && knownFacts(first, english)).toEqual([
      ['Kind', 'export'],
      ['Size', '1.5 kB']
    ]);
    expect(dateText('not a date')).toBe('not a date');
  });
});

describe('a transfer', () => {
  it('is told with its size', () => {
    const [one] = parseTransfers({
      transfers: [
        { id: '0', state: 'done', name: 'old' },
        {
          id: '1',
          state: 'running',
          name: 'big.bin',
          to: 'chat',
          done_bytes: 500_000,
          total_bytes: 2_000_000
        }
      ]
    });
    expect(one?.id).toBe('1');
    expect(one && transferText(one, english)).toBe('big.bin: 500 kB of 2.0 MB');
    expect(one && transferFraction(one)).toBe(0.25);
    expect(parseTransfers(undefined)).toEqual([]);
  });

  it('ends in one sentence', () => {
    const sent = parseSent({ files: 1, bytes: 12 });
    expect(sentText(sent, 'Local sandbox', english)).toBe(
      'Sent 1 file (12 B) to Local sandbox.'
    );
    expect(parseSent('?')).toEqual({ files: 0, bytes: 0 });
  });
});

it('sizes never read as 1000 of a unit', () => {
  expect(sizeText(999, english)).toBe('999 B');
  expect(sizeText(999_499, english)).toBe('999 kB');
  expect(sizeText(999_500, english)).toBe('1.0 MB');
  expect(sizeText(5e18, english)).toBe('5000 PB');
});
