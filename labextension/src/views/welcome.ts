/** What to do first: shown while no notebook uses a sandbox. */

import type { ITranslate } from '../format';
import { make, setShown } from './dom';

export interface IWelcomeActions {
  readonly newNotebook: () => void;
  readonly copy: (text: string) => void;
}

/** The setting that makes everything use the local sandbox. */
const LOCAL_SETTING = 'IVY_API_URL=local';

export class WelcomeView {
  constructor(trans: ITranslate, actions: IWelcomeActions) {
    const create = make('button', 'jp-ivy-button', { type: 'button' }, [
      trans.__('New notebook')
    ]);
    create.addEventListener('click', actions.newNotebook);
    const copy = make('button', 'jp-ivy-button', { type: 'button' }, [
      trans.__('Copy setting')
    ]);
    copy.addEventListener('click', () => {
      actions.copy(LOCAL_SETTING);
    });
    this._local = make('div', 'jp-ivy-welcome-part', {}, [
      make('div', 'jp-ivy-section-title', {}, [
        trans.__('Try it without an account')
      ]),
      make('p', '', {}, [
        trans.__(
          'The local sandbox runs on this computer and behaves like one on the platform. Set this in the environment of the Jupyter server, and restart the server:'
        )
      ]),
      make('pre', 'jp-ivy-setting', {}, [LOCAL_SETTING]),
      copy
    ]);
    this.node = make('section', 'jp-ivy-welcome', {}, [
      make('div', 'jp-ivy-section-title', {}, [
        trans.__('Use it from a notebook')
      ]),
      make('p', '', {}, [
        trans.__(
          'Cells of a notebook with the kernel “Ivy Sandbox” run in the sandbox. It starts with the first cell, never before.'
        )
      ]),
      create,
      this._local
    ]);
  }

  readonly node: HTMLElement;

  /**
   * @param offersLocal - Whether the local sandbox is not in use, so that it is worth a word.
   */
  update(shown: boolean, offersLocal: boolean): void {
    setShown(this.node, shown);
    setShown(this._local, offersLocal);
  }

  private readonly _local: HTMLElement;
}
