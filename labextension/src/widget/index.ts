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

/** Without a status for so long, the figures are called estimates. */
const SILENCE_LIMIT_MS = 120_000;

/** How often to ask again when a countdown has run out and no new status came. */
const OVERDUE_RETRY_MS = 15_000;

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
    this._draw();
  };

  private readonly _draw = (): void => {
    const now = performance.now();
    const model = this._model;
    const silent =
      now - this._receivedMs > SILENCE_LIMIT_MS && this._expectsNews();
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

  /** Whether the state is one in which the kernel's side sends something every few seconds. */
  private _expectsNews(): boolean {
    const { state } = this._status;
    return state === 'active' || isTransitional(state);
  }

  private readonly _onTick = (): void => {
    const now = performance.now();
    const reading = readStatus(this._status, now - this._receivedMs);
    const overdue = isOverdue(reading);
    const mayAsk = now - this._askedMs > OVERDUE_RETRY_MS;
    // Asked for a state that must have changed, or after a sleep; never as a poll.
    if (this._sleep.check(now, Date.now()) || (overdue && mayAsk)) {
      this._askedMs = now;
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
  private _timer = 0;
}

const render: Render<IWidgetTraits> = ({ model, el }) => {
  const view = new WidgetView(model, el);
  return () => {
    view.dispose();
  };
};

export default { render };
