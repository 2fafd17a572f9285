/** The item in the status bar: the state and the nearest countdown, a click from the panel. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';

import {
  deadlinesOf,
  type IThresholds,
  statusNow,
  type Urgency
} from '../countdown';
import {
  adviceIn,
  deadlineLabel,
  formatBytesShort,
  formatResources,
  formatRough,
  remedyFirst,
  stateLabel
} from '../format';
import type { SandboxModel } from '../model';
import type { IPreferences } from '../preferences';
import type { ISandbox } from '../protocol';
import { problemSentence } from '../source';
import { memoryLevel } from '../warnings';
import { make, makeIcon, setAttribute, setShown, setText } from './dom';
import type { Ticker } from './ticker';

/** Memory is told from this part of it on. */
const NOTEWORTHY_PART = 0.5;

const RANKS: readonly Urgency[] = ['calm', 'soon', 'urgent', 'over'];

export interface IStatusItemOptions {
  readonly model: SandboxModel;
  readonly ticker: Ticker;
  readonly trans: TranslationBundle;
  readonly onOpen: () => void;
  /** The sandbox to tell of. */
  readonly pick: () => ISandbox | null;
}

interface IContent {
  readonly text: string;
  /** The whole sentence, for the tooltip. */
  readonly detail: string;
  readonly urgency: Urgency;
}

export class StatusItem extends Widget {
  constructor(options: IStatusItemOptions, preferences: IPreferences) {
    super();
    this._options = options;
    this._preferences = preferences;
    this.addClass('jp-ivy-status');
    this._button = make(
      'button',
      'jp-StatusBar-TextItem jp-ivy-status-button',
      { type: 'button' },
      [this._icon, this._text]
    );
    this._button.addEventListener('click', options.onOpen);
    this.node.append(this._button);
    options.model.changed.connect(this.refresh, this);
    options.ticker.ticked.connect(this.refresh, this);
    this.refresh();
  }

  set preferences(preferences: IPreferences) {
    this._preferences = preferences;
    this.setHidden(!preferences.showsStatusItem);
    this.refresh();
  }

  refresh(): void {
    const content = this._content();
    this._button.dataset['urgency'] = content.urgency;
    setShown(this._icon, content.urgency !== 'calm');
    setText(this._text, content.text);
    setAttribute(this._button, 'title', content.detail);
  }

  override dispose(): void {
    if (this.isDisposed) {
      return;
    }
    this._options.model.changed.disconnect(this.refresh, this);
    this._options.ticker.ticked.disconnect(this.refresh, this);
    super.dispose();
  }

  private _content(): IContent {
    const { model, pick, trans } = this._options;
    const { knowledge } = model;
    const open = trans.__('Click to open the Ivy Sandbox panel');
    if (knowledge.kind === 'loading') {
      return { text: trans.__('Ivy: …'), detail: open, urgency: 'calm' };
    }
    if (knowledge.problem) {
      return {
        text: trans.__('Ivy: no status'),
        detail: problemSentence(knowledge.problem, trans),
        urgency: 'soon'
      };
    }
    const sandbox = pick();
    if (!sandbox) {
      return {
        text: trans.__('Ivy: no sandbox'),
        detail: open,
        urgency: 'calm'
      };
    }
    if (sandbox.missing !== null) {
      return {
        text: trans.__('Ivy: not configured'),
        detail: remedyFirst(adviceIn(sandbox.missing)),
        urgency: 'calm'
      };
    }
    return this._describe(sandbox, this._preferences.thresholds);
  }

  private _describe(sandbox: ISandbox, thresholds: IThresholds): IContent {
    const { model, trans } = this._options;
    const reading = model.read(sandbox);
    const status = statusNow(sandbox.status, reading);
    const state = stateLabel(status, trans);
    const [nearest] = deadlinesOf(reading, thresholds);
    const resources =
      reading.state === 'active' ? model.freshResources(sandbox) : null;
    const used = resources && formatResources(resources, trans);
    const open = trans.__(
      '%1. Click to open the Ivy Sandbox panel',
      used ? `${sandbox.name}: ${used}` : sandbox.name
    );
    if (status.stale) {
      return {
        text: trans.__('Ivy: %1 (not fresh)', state),
        detail:
          status.staleReason === null
            ? open
            : remedyFirst(adviceIn(status.staleReason)),
        urgency: 'soon'
      };
    }
    if (reading.etaMs !== null && reading.etaMs > 0) {
      const left = formatRough(reading.etaMs, trans);
      const text = trans.__('Ivy: %1 · about %2 left', state, left);
      return { text, detail: open, urgency: 'calm' };
    }
    const texts = [trans.__('Ivy: %1', state)];
    let urgency: Urgency = reading.state === 'failed' ? 'urgent' : 'calm';
    const memory = resources?.memory ?? null;
    const level = memoryLevel(memory);
    if (
      memory &&
      this._preferences.showsStatusMemory &&
      memory.used >= memory.limit * NOTEWORTHY_PART
    ) {
      texts.push(formatBytesShort(memory));
      urgency = level;
    }
    if (nearest && this._preferences.showsStatusCountdown) {
      texts.push(deadlineLabel(nearest.kind, nearest.remainingMs, trans));
      if (RANKS.indexOf(nearest.urgency) > RANKS.indexOf(urgency)) {
        urgency = nearest.urgency;
      }
    }
    return { text: texts.join(' · '), detail: open, urgency };
  }

  private readonly _options: IStatusItemOptions;
  private readonly _button: HTMLButtonElement;
  private readonly _icon = make('span', 'jp-ivy-status-icon', {}, [
    makeIcon('warning')
  ]);
  private readonly _text = make('span');
  private _preferences: IPreferences;
}
