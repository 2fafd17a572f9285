/** A sentence that stands out: what to do first, and all of what happened, however long. */

import type { IAdvice, ITranslate } from '../format';
import { make, makeIcon, setShown, setText } from './dom';

/** A longer text is shown folded. */
export const FOLD_AT_CHARACTERS = 180;

/** A text whose end is a click, or the Enter key, away when it is long. */
export class FoldedText {
  constructor(trans: ITranslate, className: string) {
    this._trans = trans;
    this._toggle.addEventListener('click', () => {
      this._isOpen = !this._isOpen;
      this._draw();
    });
    this.node = make('div', className, {}, [this._text, this._toggle]);
    this.show('');
  }

  readonly node: HTMLDivElement;

  /**
   * Show a text; an empty one hides the element. Whether it is folded stays as the user left it.
   */
  show(text: string): void {
    this._whole = text;
    setShown(this.node, text !== '');
    this._draw();
  }

  private _draw(): void {
    const isLong = this._whole.length > FOLD_AT_CHARACTERS;
    this._isOpen &&= isLong;
    const isFolded = isLong && !this._isOpen;
    setText(
      this._text,
      isFolded
        ? `${this._whole.slice(0, FOLD_AT_CHARACTERS).trimEnd()}…`
        : this._whole
    );
    setShown(this._toggle, isLong);
    this._toggle.setAttribute('aria-expanded', String(isLong && !isFolded));
    const trans = this._trans;
    setText(
      this._toggle,
      !isLong ? '' : isFolded ? trans.__('Show all') : trans.__('Show less')
    );
  }

  private readonly _trans: ITranslate;
  private readonly _text = make('span');
  private readonly _toggle = make('button', 'jp-ivy-link jp-ivy-fold', {
    type: 'button'
  });
  private _whole = '';
  private _isOpen = false;
}

export class Banner {
  constructor(
    trans: ITranslate,
    icon: 'warning' | 'failed' | 'info',
    kind: 'stale' | 'error' | 'missing',
    role: 'alert' | null = null
  ) {
    this._cause = new FoldedText(trans, 'jp-ivy-banner-cause');
    const text = make('div', 'jp-ivy-banner-text', {}, [
      this._remedy,
      this._cause.node
    ]);
    this.node = make('div', 'jp-ivy-banner', { 'data-kind': kind }, [
      make('span', 'jp-ivy-banner-icon', {}, [makeIcon(icon)]),
      text
    ]);
    if (role) {
      text.setAttribute('role', role);
    }
    this.node.hidden = true;
  }

  readonly node: HTMLDivElement;

  /** Show what happened and what to do; null hides the banner. */
  show(advice: IAdvice | null): void {
    setText(this._remedy, advice?.remedy ?? '');
    setShown(this._remedy, Boolean(advice?.remedy));
    this._cause.show(advice?.cause ?? '');
    setShown(this.node, advice !== null);
  }

  private readonly _remedy = make('div', 'jp-ivy-banner-remedy');
  private readonly _cause: FoldedText;
}
