/**
 * The status widget in a notebook's output (anywidget).
 *
 * The kernel sends a status when there is a new one; between two of them the browser counts by
 * itself, so the widget goes on while a cell keeps the kernel busy.
 */

import type { AnyModel, Render } from '@anywidget/types';

import { isOverdue, readStatus, SleepWatch } from '../countdown';
import { english } from '../format';
import { type Action, isTransitional, parseStatus } from '../protocol';
import { type ICardContent, SandboxCard } from '../views/card';
import { TerminateQuestion } from './confirm';

/** The traits of the kernel's side, as they are synced. */
export interface IWidgetTraits {
  status: unknown;
  name: string;
  local: boolean;
  busy_action: string;
  action_error: string;
  missing: string;
  can_create: boolean;
  can_terminate: boolean;
}

const TRAITS = [
  'name',
  'local',
  'busy_action',
  'action_error',
  'missing',
  'can_create',
  'can_terminate'
] as const;

const TICK_MS = 1000;

/** The kernel's side speaks when something is new; after so long without it is asked. */
const QUIET_LIMIT_MS = 5 * 60_000;

/** When a question was not answered within this time, the figures are called estimates. */
const ANSWER_LIMIT_MS = 30_000;

/** How soon to ask again. A busy kernel may answer all questions at once, when it is free. */
const ASK_AGAIN_MS = 60_000;

function asAction(value: unknown): Action | null {
  return value === 'create' || value === 'terminate' || value === 'reconnect'
    ? value
    : null;
}

class WidgetView {
  constructor(model: AnyModel<IWidgetTraits>, el: HTMLElement) {
    this._model = model;
    this._question = new TerminateQuestion(english, confirmed => {
      if (confirmed) {
        this._send('terminate');
      }
      this._card.focusAction('terminate');
    });
    this._card = new SandboxCard({
      trans: english,
      announcesDeadlines: true,
      onAction: action => {
        if (action === 'terminate') {
          this._question.ask(this._name());
        } else {
          this._send(action);
        }
      }
    });
    this._card.node.classList.add('jp-ivy-widget');
    this._card.node.append(this._question.node);
    el.append(this._card.node);
    model.on('change:status', this._onStatus);
    for (const trait of TRAITS) {
      model.on(`change:${trait}`, this._draw);
    }
    document.addEventListener('visibilitychange', this._onVisibility);
    this._onStatus();
    this._onVisibility();
  }

  dispose(): void {
    window.clearInterval(this._timer);
    document.removeEventListener('visibilitychange', this._onVisibility);
    this._model.off('change:status', this._onStatus);
    for (const trait of TRAITS) {
      this._model.off(`change:${trait}`, this._draw);
    }
    this._card.node.remove();
  }

  private _name(): string {
    return this._model.get('name') || english.__('Ivy sandbox');
  }

  private _send(action: Action | 'refresh'): void {
    this._model.send({ action });
  }

  private readonly _onStatus = (): void => {
    this._status = parseStatus(this._model.get('status'));
    this._receivedMs = performance.now();
    this._unansweredMs = null;
    this._draw();
  };

  private readonly _draw = (): void => {
    const now = performance.now();
    const model = this._model;
    const silent =
      this._unansweredMs !== null && now - this._unansweredMs > ANSWER_LIMIT_MS;
    const content: ICardContent = {
      sandbox: {
        name: this._name(),
        local: model.get('local'),
        chatId: null,
        missing: model.get('missing') || null,
        canCreate: model.get('can_create'),
        canTerminate: model.get('can_terminate')
      },
      status: this._status,
      receivedMs: this._receivedMs,
      busyAction: asAction(model.get('busy_action')),
      actionError: model.get('action_error') || null,
      disconnected: silent
        ? english.__('The kernel has sent no new status.')
        : null,
      current: false
    };
    if (content.busyAction !== null && this._question.isOpen) {
      this._question.close();
    }
    this._card.update(content, now);
  };

  /** Whether the state is one that time alone changes. */
  private _isPassing(): boolean {
    const { state } = this._status;
    return state === 'active' || isTransitional(state);
  }

  private readonly _onTick = (): void => {
    const now = performance.now();
    const reading = readStatus(this._status, now - this._receivedMs);
    const quiet = this._isPassing() && now - this._receivedMs > QUIET_LIMIT_MS;
    const mayAsk = now - this._askedMs > ASK_AGAIN_MS;
    // Asked when the state must have changed, or after a sleep or a long silence; not as a poll.
    if (
      this._sleep.check(now, Date.now()) ||
      ((isOverdue(reading) || quiet) && mayAsk)
    ) {
      this._askedMs = now;
      this._unansweredMs ??= now;
      this._send('refresh');
    }
    this._draw();
  };

  private readonly _onVisibility = (): void => {
    window.clearInterval(this._timer);
    if (!document.hidden) {
      this._onTick();
      this._timer = window.setInterval(this._onTick, TICK_MS);
    }
  };

  private readonly _model: AnyModel<IWidgetTraits>;
  private readonly _card: SandboxCard;
  private readonly _question: TerminateQuestion;
  private readonly _sleep = new SleepWatch();
  private _status = parseStatus(null);
  private _receivedMs = performance.now();
  private _askedMs = -Infinity;
  /** Since when a question has been waiting for an answer. */
  private _unansweredMs: number | null = null;
  private _timer = 0;
}

const render: Render<IWidgetTraits> = ({ model, el }) => {
  const view = new WidgetView(model, el);
  return () => {
    view.dispose();
  };
};

export default { render };
