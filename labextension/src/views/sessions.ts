/** The notebooks that a sandbox is used from. */

import type { ITranslate } from '../format';
import type { ISession } from '../protocol';
import { make, makeIcon, setShown } from './dom';

export interface ISessionActions {
  readonly open: (path: string) => void;
  readonly restart: (kernelId: string) => void;
}

export class SessionsView {
  constructor(trans: ITranslate, actions: ISessionActions) {
    this._trans = trans;
    this._actions = actions;
    this.node = make('div', 'jp-ivy-sessions', {}, [
      make('div', 'jp-ivy-section-title', {}, [trans.__('Notebooks')]),
      this._list
    ]);
  }

  readonly node: HTMLDivElement;

  update(sessions: readonly ISession[]): void {
    setShown(this.node, sessions.length > 0);
    const drawn = JSON.stringify(sessions);
    if (drawn !== this._drawn) {
      this._drawn = drawn;
      this._list.replaceChildren(...sessions.map(one => this._row(one)));
    }
  }

  private _row(session: ISession): HTMLLIElement {
    const trans = this._trans;
    const path = session.notebookPath;
    const name = path?.split('/').pop() ?? trans.__('Without a notebook');
    const row = make('li', 'jp-ivy-session', {}, [
      make('span', 'jp-ivy-session-icon', {}, [makeIcon('notebook')])
    ]);
    if (path === null) {
      row.append(make('span', 'jp-ivy-session-name', {}, [name]));
    } else {
      const open = make(
        'button',
        'jp-ivy-session-name jp-ivy-link',
        {
          type: 'button',
          title: path,
          'aria-label': trans.__('Open notebook %1', path)
        },
        [name]
      );
      open.addEventListener('click', () => {
        this._actions.open(path);
      });
      row.append(open);
    }
    if (session.kind === 'magic') {
      const title = trans.__('A Python notebook that uses the %%ivy magic');
      row.append(make('span', 'jp-ivy-badge', { title }, ['%%ivy']));
    } else {
      const label = trans.__('Restart the session of %1', name);
      const restart = make(
        'button',
        'jp-ivy-icon-button',
        {
          type: 'button',
          title: trans.__('Restart session'),
          'aria-label': label
        },
        [makeIcon('restart')]
      );
      restart.addEventListener('click', () => {
        this._actions.restart(session.kernelId);
      });
      row.append(restart);
    }
    return row;
  }

  private readonly _trans: ITranslate;
  private readonly _actions: ISessionActions;
  private readonly _list = make('ul', 'jp-ivy-session-list');
  private _drawn = '[]';
}
