/** The buttons of a sandbox: create (or resume), reconnect, terminate. */

import { actionLabel, busyLabel, type ITranslate } from '../format';
import {
  type Action,
  isCreatable,
  isTerminable,
  type IStatus
} from '../protocol';
import { make, setAttribute, setShown, setText } from './dom';

export interface IActionsState {
  readonly canCreate: boolean;
  readonly canTerminate: boolean;
  /** The action under way; every button waits for it. */
  readonly busyAction: Action | null;
}

const ACTIONS: readonly Action[] = ['create', 'reconnect', 'terminate'];

export class ActionsView {
  constructor(trans: ITranslate, onAction: (action: Action) => void) {
    this._trans = trans;
    for (const action of ACTIONS) {
      const button = make('button', 'jp-ivy-button', {
        type: 'button',
        'data-action': action
      });
      button.classList.toggle('jp-mod-primary', action === 'create');
      button.classList.toggle('jp-mod-danger', action === 'terminate');
      button.addEventListener('click', () => {
        // Not `disabled`, which would drop the keyboard focus in the middle of an action.
        if (button.getAttribute('aria-disabled') !== 'true') {
          onAction(action);
        }
      });
      this._buttons.set(action, button);
      this.node.append(button);
    }
    setAttribute(this.node, 'aria-label', trans.__('Sandbox actions'));
  }

  readonly node = make('div', 'jp-ivy-actions', { role: 'group' });

  /**
   * @param status - As it reads now: a label follows what the time has made of it, such as an
   * active sandbox past its expiry.
   */
  update(status: IStatus, state: IActionsState): void {
    const offered: Record<Action, boolean> = {
      create: state.canCreate && isCreatable(status.state),
      reconnect: status.state === 'active' || status.state === 'unknown',
      terminate: state.canTerminate && isTerminable(status.state)
    };
    const focused = document.activeElement;
    let lostFocus = false;
    for (const [action, button] of this._buttons) {
      const busy = state.busyAction === action;
      const visible = busy || offered[action];
      lostFocus ||= !visible && button === focused;
      setShown(button, visible);
      setAttribute(
        button,
        'aria-disabled',
        state.busyAction === null ? null : 'true'
      );
      button.classList.toggle('jp-mod-busy', busy);
      const words = busy ? busyLabel : actionLabel;
      setText(button, words(action, status, this._trans));
    }
    const visible = [...this._buttons.values()].filter(one => !one.hidden);
    setShown(this.node, visible.length > 0);
    if (lostFocus) {
      visible[0]?.focus();
    }
  }

  /** Put the keyboard focus on an action's button. */
  focus(action: Action): void {
    this._buttons.get(action)?.focus();
  }

  private readonly _trans: ITranslate;
  private readonly _buttons = new Map<Action, HTMLButtonElement>();
}
