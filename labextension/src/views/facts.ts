/** What else is known of a sandbox: uptime, last activity, chat, platform. */

import type { IReading } from '../countdown';
import {
  formatAgo,
  formatElapsed,
  type ITranslate,
  sourceLabel
} from '../format';
import type { IFactsShown } from '../preferences';
import type { ICheckpoint, IStatus } from '../protocol';
import { make, makeIcon, setAttribute, setShown, setText } from './dom';

export class FactsView {
  /**
   * @param onCopy - Called when the user asks for a copy of the chat's id; without it no button.
   */
  constructor(trans: ITranslate, onCopy: (() => void) | null) {
    this._trans = trans;
    this._uptime = this._makeFact(trans.__('Uptime'));
    this._activity = this._makeFact(trans.__('Last activity'));
    this._checkpoint = this._makeFact(trans.__('Checkpoint'));
    this._chat = this._makeFact(trans.__('Chat'));
    this._platform = this._makeFact(trans.__('Platform'));
    this._chat.value.classList.add('jp-ivy-fact-chat');
    if (onCopy) {
      const label = trans.__('Copy the chat id');
      const button = make(
        'button',
        'jp-ivy-icon-button',
        { type: 'button', title: label, 'aria-label': label },
        [makeIcon('copy')]
      );
      button.addEventListener('click', onCopy);
      this._chat.value.append(this._chatText, button);
    } else {
      this._chat.value.append(this._chatText);
    }
  }

  readonly node = make('dl', 'jp-ivy-facts');

  update(
    status: IStatus,
    reading: IReading,
    where: { readonly local: boolean; readonly chatId: string | null },
    shown: IFactsShown
  ): void {
    const trans = this._trans;
    const uptime = shown.uptime ? reading.uptimeMs : null;
    const running =
      reading.state === 'active' || reading.state === 'hibernating';
    setShown(this._uptime.row, uptime !== null && running);
    if (uptime !== null) {
      setText(this._uptime.value, formatElapsed(uptime, trans));
      setAttribute(this._uptime.value, 'title', dateText(status.createdMs));
    }
    const idle = shown.lastActivity ? reading.idleMs : null;
    setShown(this._activity.row, idle !== null);
    if (idle !== null) {
      setText(this._activity.value, formatAgo(idle, trans));
      const date = dateText(status.lastActivityMs);
      setAttribute(this._activity.value, 'title', date);
    }
    setShown(this._chat.row, where.chatId !== null && !where.local);
    setText(this._chatText, where.chatId ?? '');
    setAttribute(this._chatText, 'title', where.chatId);
    setShown(this._platform.row, shown.platform && status.dialect !== null);
    setText(this._platform.value, sourceLabel(where, status, trans));
    this._showAny();
  }

  /**
   * Say up to which cell the variables are kept.
   *
   * @param sinceMs - How long ago that arrived.
   */
  showCheckpoint(checkpoint: ICheckpoint | null, sinceMs: number): void {
    setShown(this._checkpoint.row, checkpoint !== null);
    if (checkpoint !== null) {
      const text = checkpointText(checkpoint, sinceMs, this._trans);
      setText(this._checkpoint.value, text);
    }
    this._showAny();
  }

  private _showAny(): void {
    const rows = [
      this._uptime,
      this._activity,
      this._checkpoint,
      this._chat,
      this._platform
    ];
    setShown(
      this.node,
      rows.some(({ row }) => !row.hidden)
    );
  }

  private _makeFact(label: string): { row: HTMLElement; value: HTMLElement } {
    const value = make('dd');
    const row = make('div', 'jp-ivy-fact', {}, [
      make('dt', '', {}, [label]),
      value
    ]);
    this.node.append(row);
    return { row, value };
  }

  private readonly _trans: ITranslate;
  private readonly _uptime: { row: HTMLElement; value: HTMLElement };
  private readonly _activity: { row: HTMLElement; value: HTMLElement };
  private readonly _checkpoint: { row: HTMLElement; value: HTMLElement };
  private readonly _chat: { row: HTMLElement; value: HTMLElement };
  private readonly _platform: { row: HTMLElement; value: HTMLElement };
  private readonly _chatText = make('code');
}

function checkpointText(
  { ageMs, missing, number }: ICheckpoint,
  sinceMs: number,
  trans: ITranslate
): string {
  const ago = formatAgo(ageMs + sinceMs, trans);
  const made =
    number === 0
      ? trans.__('made %1', ago)
      : trans.__('after cell [%1], %2', number, ago);
  switch (missing) {
    case 0:
      return made;
    case 1:
      return trans.__('%1; 1 variable is not in it', made);
    default:
      return trans.__('%1; %2 variables are not in it', made, missing);
  }
}

function dateText(epochMs: number | null): string | null {
  return epochMs === null ? null : new Date(epochMs).toLocaleString();
}
