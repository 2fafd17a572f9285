import fc from 'fast-check';
import { describe, expect, it } from 'vitest';

import { SSEParser } from '../src/sse';

const STREAM =
  ': hello\r\n\r\nevent: sandboxes\r\ndata: {"a":\r\ndata: 1}\r\n\r\n' +
  'data: plain\n\nevent: empty\n\nid: 7\ndata:tight\r\r';

const EVENTS = [
  { event: 'sandboxes', data: '{"a":\n1}' },
  { event: 'message', data: 'plain' },
  { event: 'message', data: 'tight' }
];

describe('SSEParser', () => {
  it('reads events, comments and every line ending', () => {
    // The last carriage return waits for what follows.
    expect(new SSEParser().push(`${STREAM}:`)).toEqual(EVENTS);
  });

  it('does not care where the chunks end', () => {
    const cuts = fc.array(fc.nat(STREAM.length));
    fc.assert(
      fc.property(cuts, positions => {
        const parser = new SSEParser();
        const sorted = [0, ...positions, STREAM.length].sort((a, b) => a - b);
        const events = sorted.flatMap((from, index) =>
          parser.push(STREAM.slice(from, sorted[index + 1] ?? from))
        );
        expect([...events, ...parser.push(':')]).toEqual(EVENTS);
      })
    );
  });

  it('gives up an event without end', () => {
    const parser = new SSEParser();
    expect(() => {
      for (let i = 0; i < 50; i += 1) {
        parser.push(`data: ${'x'.repeat(100_000)}\n`);
      }
    }).toThrow(RangeError);
  });
});
