/** Memory, processors, disk and GPUs of a sandbox, as bars with numbers. */

import {
  formatAgo,
  formatBytes,
  formatCpu,
  type ITranslate,
  memorySentence
} from '../format';
import type { IMeter, IResources } from '../protocol';
import { FRESH_MS, memoryLevel } from '../warnings';
import { make, makeIcon, setAttribute, setShown, setText } from './dom';

interface IRow {
  readonly node: HTMLElement;
  readonly label: HTMLElement;
  readonly bar: HTMLElement;
  readonly fill: HTMLElement;
  readonly value: HTMLElement;
}

export class MetersView {
  constructor(trans: ITranslate) {
    this._trans = trans;
    this._memory = this._makeRow(trans.__('Memory'));
    this._cpu = this._makeRow(trans.__('CPU'));
    this._disk = this._makeRow(trans.__('Disk'));
    this._note = make('div', 'jp-ivy-note', {}, [
      make('span', 'jp-ivy-note-icon', {}, [makeIcon('warning')]),
      this._noteText
    ]);
    this.node = make('div', 'jp-ivy-meters', {}, [
      this._rows,
      this._age,
      this._note
    ]);
    setShown(this.node, false);
  }

  readonly node: HTMLDivElement;

  /**
   * @param resources - What is used; null when that is not known.
   * @param sinceMs - How long ago it arrived.
   */
  update(resources: IResources | null, sinceMs: number): void {
    const trans = this._trans;
    setShown(this.node, resources !== null);
    if (!resources) {
      return;
    }
    const { memory, cpu, disk, gpus } = resources;
    const level = memoryLevel(memory);
    const ageMs = resources.ageMs + sinceMs;
    const isOld = ageMs > FRESH_MS;
    this._show(this._memory, memory, formatBytes);
    this._memory.node.dataset['urgency'] = level;
    // Of all processors: one that works fully is a part of the bar.
    const work = cpu && { used: cpu.used, limit: cpu.limit * 100 };
    this._show(this._cpu, work, () => (cpu ? formatCpu(cpu, trans) : ''));
    this._show(this._disk, disk, formatBytes);
    gpus.forEach(({ name, usedPercent, memory: own }, position) => {
      const row = (this._gpus[position] ??= this._makeRow(name));
      setText(row.label, name);
      setAttribute(row.bar, 'aria-label', name);
      const busy = usedPercent === null ? '' : `${usedPercent.toFixed(0)} %, `;
      this._show(row, own, () => busy + formatBytes(own, trans));
    });
    for (const row of this._gpus.slice(gpus.length)) {
      setShown(row.node, false);
    }
    this.node.classList.toggle('jp-mod-stale', isOld);
    setShown(this._age, isOld);
    setText(this._age, trans.__('As of %1', formatAgo(ageMs, trans)));
    setShown(this._note, level !== 'calm' && !isOld);
    if (memory && level !== 'calm') {
      this._note.dataset['urgency'] = level;
      setText(this._noteText, memorySentence(memory, trans));
    }
  }

  private _show(
    row: IRow,
    meter: IMeter | null,
    words: (meter: IMeter, trans: ITranslate) => string
  ): void {
    setShown(row.node, meter !== null);
    if (meter) {
      const percent = Math.min(100, (100 * meter.used) / meter.limit);
      const text = words(meter, this._trans);
      row.fill.style.width = `${percent.toFixed(1)}%`;
      setText(row.value, text);
      setAttribute(row.bar, 'aria-valuenow', percent.toFixed(0));
      setAttribute(row.bar, 'aria-valuetext', text);
    }
  }

  private _makeRow(name: string): IRow {
    const label = make('span', 'jp-ivy-meter-label', {}, [name]);
    const fill = make('div', 'jp-ivy-meter-fill');
    const value = make('span', 'jp-ivy-meter-value');
    const bar = make(
      'div',
      'jp-ivy-meter-bar',
      {
        role: 'meter',
        'aria-label': name,
        'aria-valuemin': '0',
        'aria-valuemax': '100'
      },
      [fill]
    );
    const node = make('div', 'jp-ivy-meter', {}, [label, bar, value]);
    this._rows.append(node);
    return { node, label, bar, fill, value };
  }

  private readonly _trans: ITranslate;
  private readonly _rows = make('div', 'jp-ivy-meter-rows');
  private readonly _memory: IRow;
  private readonly _cpu: IRow;
  private readonly _disk: IRow;
  private readonly _gpus: IRow[] = [];
  private readonly _age = make('div', 'jp-ivy-meters-age');
  private readonly _note: HTMLDivElement;
  private readonly _noteText = make('span');
}
