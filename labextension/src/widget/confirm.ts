/** A question inside the widget, because a notebook's output has no dialogs of its own. */

import {
  type ITranslate,
  terminateQuestion,
  terminateWarning
} from '../format';
import { make, setShown, setText } from '../views/dom';

export class TerminateQuestion {
  /**
   * @param onAnswer - Called with true for Terminate, false for Cancel or Escape.
   */
  constructor(trans: ITranslate, onAnswer: (confirmed: boolean) => void) {
    this._trans = trans;
    // Each widget on a page has its own copy of this module, so a counter would not do.
    const bodyId = `jp-ivy-${Math.random().toString(36).slice(2)}`;
    const body = make('div', '', { id: bodyId }, [terminateWarning(trans)]);
    const button = (
      label: string,
      className: string,
      confirmed: boolean
    ): HTMLButtonElement => {
      const node = make(
        'button',
        `jp-ivy-button ${className}`,
        { type: 'button' },
        [label]
      );
      node.addEventListener('click', () => {
        this._answer(confirmed);
      });
      return node;
    };
    this._cancel = button(trans.__('Cancel'), '', false);
    const terminate = button(trans.__('Terminate'), 'jp-mod-confirm', true);
    this.node = make(
      'div',
      'jp-ivy-confirm',
      { role: 'alertdialog', 'aria-describedby': bodyId },
      [
        this._title,
        body,
        make('div', 'jp-ivy-actions', {}, [this._cancel, terminate])
      ]
    );
    this.node.hidden = true;
    this.node.addEventListener('keydown', event => {
      if (event.key === 'Escape') {
        event.stopPropagation();
        this._answer(false);
      }
    });
    this._onAnswer = onAnswer;
  }

  readonly node: HTMLDivElement;

  get isOpen(): boolean {
    return !this.node.hidden;
  }

  /** Ask; the harmless answer has the focus. */
  ask(name: string): void {
    const question = terminateQuestion(name, this._trans);
    setText(this._title, question);
    this.node.setAttribute('aria-label', question);
    setShown(this.node, true);
    this._cancel.focus();
  }

  /** Take the question back without an answer. */
  close(): void {
    setShown(this.node, false);
  }

  private _answer(confirmed: boolean): void {
    this.close();
    this._onAnswer(confirmed);
  }

  private readonly _trans: ITranslate;
  private readonly _title = make('div', 'jp-ivy-confirm-title');
  private readonly _cancel: HTMLButtonElement;
  private readonly _onAnswer: (confirmed: boolean) => void;
}
