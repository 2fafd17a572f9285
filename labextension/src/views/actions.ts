/** The buttons of a sandbox: create (or resume), with what was in it, reconnect, terminate. */

import { actionLabel, busyLabel, type ITranslate, resumes } from '../format';
import {
  type Action,
  isCreatable,
  isTerminable,
  type IStatus,
  type SandboxState
} from '../protocol';
import { make, setAttribute, setShown, setText } from './dom';

export interface IActionsState {
  readonly canCreate: boolean;
  readonly canTerminate: boolean;
  /** The action under way; every button waits for it. */
  readonly busyAction: Action | null;
  /** Whether a notebook could get back what it had in the sandbox. */
  readonly canRestore?: boolean;
  /** Whether it is about to. */
  readonly isRestoring?: boolean;
}

/** To bring a notebook's packages and variables back, which the server does not do by itself. */
export const RESTORE = 'resume-and-restore';

type Button = Action | typeof RESTORE;

const BUTTONS: readonly Button[] = [
  'create',
  RESTORE,
  'reconnect',
  'terminate'
];

/** States in which a notebook has lost what it had, and may get it back. */
const RESTORABLE = new Set<SandboxState>(['hibernated', 'archived', 'expired']);

function labelOf(
  button: Button,
  busy: boolean,
  status: IStatus,
  trans: ITranslate
): string {
  if (button === RESTORE) {
    if (busy) {
      return trans.__('Restoring…');
    }
    return resumes(status)
      ? trans.__('Resume and Restore')
      : trans.__('Create and Restore');
  }
  return (busy ? busyLabel : actionLabel)(button, status, trans);
}

export class ActionsView {
  /**
   * @param onRestore - Without it that button is never shown.
   */
  constructor(
    trans: ITranslate,
    onAction: (action: Action) => void,
    onRestore: (() => void) | null = null
  ) {
    this._trans = trans;
    this._mayRestore = onRestore !== null;
    for (const action of BUTTONS) {
      const button = make('button', 'jp-ivy-button', {
        type: 'button',
        'data-action': action
      });
      button.classList.toggle('jp-mod-primary', action === 'create');
      button.classList.toggle('jp-mod-danger', action === 'terminate');
      button.addEventListener('click', () => {
        // Not `disabled`, which would drop the keyboard focus in the middle of an action.
        if (button.getAttribute('aria-disabled') === 'true') {
          return;
        }
        if (action === RESTORE) {
          onRestore?.();
        } else {
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
    const mayCreate = state.canCreate && isCreatable(status.state);
    const busyButton =
      state.isRestoring === true && this._mayRestore
        ? RESTORE
        : state.busyAction;
    const offered: Record<Button, boolean> = {
      create: mayCreate,
      [RESTORE]:
        this._mayRestore &&
        mayCreate &&
        state.canRestore === true &&
        RESTORABLE.has(status.state),
      reconnect: status.state === 'active' || status.state === 'unknown',
      terminate: state.canTerminate && isTerminable(status.state)
    };
    const focused = document.activeElement;
    let lostFocus = false;
    for (const [action, button] of this._buttons) {
      const busy = busyButton === action;
      const visible = busy || offered[action];
      lostFocus ||= !visible && button === focused;
      setShown(button, visible);
      setAttribute(
        button,
        'aria-disabled',
        busyButton === null ? null : 'true'
      );
      button.classList.toggle('jp-mod-busy', busy);
      setText(button, labelOf(action, busy, status, this._trans));
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
  private readonly _mayRestore: boolean;
  private readonly _buttons = new Map<Button, HTMLButtonElement>();
}
