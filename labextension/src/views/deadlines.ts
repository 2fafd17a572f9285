/** The two countdowns: until hibernation and until expiry. */

import {
  type DeadlineKind,
  deadlinesOf,
  type IReading,
  type IThresholds
} from '../countdown';
import {
  deadlineSentence,
  formatRemaining,
  formatRough,
  type ITranslate,
  keepsAwake
} from '../format';
import type { IStatus } from '../protocol';
import { make, makeIcon, setShown, setText } from './dom';

interface ITile {
  node: HTMLElement;
  icon: HTMLElement;
  value: HTMLElement;
}

export class DeadlinesView {
  constructor(trans: ITranslate) {
    this._trans = trans;
    this._tiles = {
      hibernation: this._makeTile(trans.__('Hibernates in')),
      expiry: this._makeTile(trans.__('Expires in'))
    };
    const tiles = make('div', 'jp-ivy-deadlines', {}, [
      this._tiles.hibernation.node,
      this._tiles.expiry.node
    ]);
    this._note = make('div', 'jp-ivy-note', {}, [
      make('span', 'jp-ivy-note-icon', {}, [makeIcon('warning')]),
      this._noteText
    ]);
    this.node = make('div', '', {}, [tiles, this._note]);
  }

  readonly node: HTMLDivElement;

  update(
    status: IStatus,
    reading: IReading,
    thresholds: IThresholds,
    stale: boolean
  ): void {
    const deadlines = deadlinesOf(reading, thresholds);
    setShown(this.node, deadlines.length > 0);
    for (const kind of ['hibernation', 'expiry'] as const) {
      const deadline = deadlines.find(one => one.kind === kind);
      const tile = this._tiles[kind];
      setShown(tile.node, deadline !== undefined);
      if (deadline) {
        tile.node.dataset['urgency'] = deadline.urgency;
        tile.node.classList.toggle('jp-mod-stale', stale);
        setShown(tile.icon, deadline.urgency !== 'calm');
        setText(tile.value, this._value(kind, deadline.remainingMs, stale));
      }
    }
    const pressing = deadlines.find(
      one => one.urgency === 'soon' || one.urgency === 'urgent'
    );
    setShown(this._note, pressing !== undefined && !stale);
    if (pressing) {
      this._note.dataset['urgency'] = pressing.urgency;
      // The tile above counts; the note says what it means, and is not rewritten every second.
      const { kind, urgency } = pressing;
      setText(this._noteText, this._advice(kind, urgency, keepsAwake(status)));
    }
  }

  private _makeTile(label: string): ITile {
    const icon = make('span', 'jp-ivy-deadline-icon', {}, [
      makeIcon('warning')
    ]);
    const value = make('span', 'jp-ivy-deadline-value', { role: 'timer' });
    const node = make('div', 'jp-ivy-deadline', {}, [
      make('span', 'jp-ivy-deadline-label', {}, [icon, label]),
      value
    ]);
    return { node, icon, value };
  }

  private _value(kind: DeadlineKind, ms: number, stale: boolean): string {
    const trans = this._trans;
    if (ms === 0) {
      return kind === 'hibernation' ? trans.__('any moment') : trans.__('now');
    }
    return stale
      ? trans.__('about %1', formatRough(ms, trans))
      : formatRemaining(ms, trans);
  }

  private _advice(kind: DeadlineKind, urgency: string, awake: boolean): string {
    const trans = this._trans;
    if (kind === 'hibernation') {
      if (awake) {
        return urgency === 'urgent'
          ? trans.__('Hibernates very soon: run a cell to keep its variables.')
          : trans.__('Hibernates soon. Running a cell keeps it awake.');
      }
      return urgency === 'urgent'
        ? trans.__('Hibernates very soon: save what you need now.')
        : trans.__('Hibernates soon. Save what you need from its variables.');
    }
    return urgency === 'urgent'
      ? trans.__('Expires very soon: save what you need now.')
      : trans.__('Expires soon. Save what you need from its variables.');
  }

  private readonly _trans: ITranslate;
  private readonly _tiles: Record<DeadlineKind, ITile>;
  private readonly _note: HTMLDivElement;
  private readonly _noteText = make('span');
}

/**
 * The sentence to announce when a deadline has become more urgent.
 *
 * @param awake - Whether a cell that runs puts the hibernation off.
 */
export function announcementOf(
  reading: IReading,
  thresholds: IThresholds,
  awake: boolean,
  trans: ITranslate
): { key: string; sentence: string } | null {
  const pressing = deadlinesOf(reading, thresholds).find(
    one => one.urgency === 'soon' || one.urgency === 'urgent'
  );
  return pressing
    ? {
        key: `${pressing.kind}:${pressing.urgency}`,
        sentence: deadlineSentence(
          pressing.kind,
          pressing.remainingMs,
          awake,
          trans
        )
      }
    : null;
}
