/** Server-sent events, read from chunks of text. Pure. */

export interface IServerEvent {
  readonly event: string;
  readonly data: string;
}

/** An event longer than this is given up, so that a broken server cannot fill the memory. */
const LONGEST_EVENT_CHARACTERS = 4_000_000;

/**
 * Splits a stream into events.
 *
 * Chunks may end anywhere, in the middle of a line ending too. Comment lines carry nothing, but
 * their arrival shows that the stream lives.
 */
export class SSEParser {
  /** Take a chunk, give the events that it completes. */
  push(chunk: string): IServerEvent[] {
    this._rest += chunk;
    const events: IServerEvent[] = [];
    // A carriage return at the very end may be half of a line ending.
    const lineEnd = /\r\n|\n|\r(?!$)/g;
    let start = 0;
    for (;;) {
      const match = lineEnd.exec(this._rest);
      if (!match) {
        break;
      }
      this._line(this._rest.slice(start, match.index), events);
      start = lineEnd.lastIndex;
    }
    this._rest = this._rest.slice(start);
    if (this._rest.length + this._size > LONGEST_EVENT_CHARACTERS) {
      throw new RangeError('A server-sent event is too large');
    }
    return events;
  }

  private _line(line: string, events: IServerEvent[]): void {
    if (line === '') {
      if (this._data.length > 0) {
        events.push({ event: this._event, data: this._data.join('\n') });
      }
      this._event = 'message';
      this._data = [];
      this._size = 0;
      return;
    }
    const colon = line.indexOf(':');
    if (colon === 0) {
      return;
    }
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '');
    if (field === 'event') {
      this._event = value;
    } else if (field === 'data') {
      this._data.push(value);
      this._size += value.length;
    }
  }

  private _rest = '';
  private _event = 'message';
  private _data: string[] = [];
  private _size = 0;
}
