/** A start under way: its steps and how long it will still take. */

import {
  type IReading,
  StartProgress,
  PHASES,
  type IPhaseStep,
  phaseSteps
} from '../countdown';
import { etaSentence, type ITranslate, phaseLabel } from '../format';
import type { IStatus } from '../protocol';
import { make, setAttribute, setIcon, setShown, setText } from './dom';

export class StartView {
  constructor(trans: ITranslate) {
    this._trans = trans;
    this._words = {
      done: trans.__('done'),
      current: trans.__('under way'),
      todo: trans.__('to come'),
      failed: trans.__('failed')
    };
    const steps = make('ol', 'jp-ivy-steps', {
      'aria-label': trans.__('Steps of the start')
    });
    for (const phase of PHASES) {
      const icon = make('span', 'jp-ivy-step-icon');
      const label = make('span', '', {}, [phaseLabel(phase, trans)]);
      const word = make('span', 'jp-ivy-sr-only');
      const item = make('li', 'jp-ivy-step', {}, [icon, label, word]);
      this._steps.set(phase, { item, icon, word });
      steps.append(item);
    }
    this._bar = make(
      'div',
      'jp-ivy-bar',
      {
        role: 'progressbar',
        'aria-label': trans.__('Start of the sandbox'),
        'aria-valuemin': '0',
        'aria-valuemax': '100'
      },
      [this._fill]
    );
    this._timing = make('div', 'jp-ivy-start-timing', {}, [
      this._bar,
      this._eta
    ]);
    this.node = make('div', 'jp-ivy-start', {}, [steps, this._timing]);
  }

  readonly node: HTMLDivElement;

  update(status: IStatus, reading: IReading, nowMs: number): void {
    const starting =
      reading.state === 'provisioning' || reading.state === 'restoring';
    const failed = reading.state === 'failed';
    const steps = starting || failed ? phaseSteps(status, this._lastPhase) : [];
    setShown(this.node, steps.length > 0);
    setShown(this._timing, starting);
    const fraction = this._progress.update(reading, nowMs);
    if (!starting && !failed) {
      this._lastPhase = null;
      return;
    }
    for (const step of steps) {
      this._updateStep(step);
    }
    if (status.phase !== null && status.phase !== 'failed') {
      this._lastPhase = status.phase;
    }
    const eta = etaSentence(reading, this._trans);
    setText(this._eta, eta);
    setAttribute(this._bar, 'aria-valuetext', eta);
    this._bar.classList.toggle('jp-mod-indeterminate', fraction === null);
    if (fraction === null) {
      setAttribute(this._bar, 'aria-valuenow', null);
      this._fill.style.removeProperty('width');
    } else {
      const percent = Math.round(fraction * 1000) / 10;
      setAttribute(this._bar, 'aria-valuenow', String(Math.round(percent)));
      this._fill.style.width = `${percent}%`;
    }
  }

  private _updateStep({ phase, progress }: IPhaseStep): void {
    const step = this._steps.get(phase);
    if (!step) {
      return;
    }
    step.item.dataset['progress'] = progress;
    setAttribute(
      step.item,
      'aria-current',
      progress === 'current' ? 'step' : null
    );
    setIcon(step.icon, progress);
    setText(step.word, `: ${this._words[progress]}`);
  }

  private readonly _trans: ITranslate;
  private readonly _words: Record<IPhaseStep['progress'], string>;
  private readonly _steps = new Map<
    IPhaseStep['phase'],
    { item: HTMLElement; icon: HTMLElement; word: HTMLElement }
  >();
  private readonly _bar: HTMLDivElement;
  private readonly _fill = make('div', 'jp-ivy-bar-fill');
  private readonly _eta = make('div', 'jp-ivy-eta');
  private readonly _timing: HTMLDivElement;
  private readonly _progress = new StartProgress();
  private _lastPhase: string | null = null;
}
