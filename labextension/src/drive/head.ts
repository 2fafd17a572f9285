/** What stands above the listing: which sandbox it is of, and the state of one that sleeps. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';

import { statusNow } from '../countdown';
import {
  actionLabel,
  adviceIn,
  busyLabel,
  etaSentence,
  stateHint,
  stateLabel
} from '../format';
import type { SandboxModel } from '../model';
import type { Action, ISandbox } from '../protocol';
import { problemSentence } from '../source';
import { Banner } from '../views/banner';
import { StateChip } from '../views/chip';
import { make, setAttribute, setShown, setText } from '../views/dom';
import { componentsOf, type IPlace, type Shown, wakingAction } from './entries';

export interface IHeadOptions {
  readonly model: SandboxModel;
  readonly trans: TranslationBundle;
  /** Called with the component of the sandbox that was chosen; null for the list of them. */
  readonly choose: (component: string | null) => void;
  readonly act: (id: string, action: Action) => void;
}

export class DriveHead extends Widget {
  constructor(options: IHeadOptions) {
    super();
    this._options = options;
    const { trans } = options;
    this.addClass('jp-ivy-drive-head');
    this._select = make('select', 'jp-ivy-drive-choice', {
      'aria-label': trans.__('Sandbox whose files are shown'),
      title: trans.__('Sandbox whose files are shown')
    });
    this._select.addEventListener('change', () => {
      const { value } = this._select;
      options.choose(value === '' ? null : value);
    });
    this._problem = new Banner(trans, 'warning', 'stale');
    this._button.addEventListener('click', () => {
      if (
        this._wakes &&
        this._button.getAttribute('aria-disabled') !== 'true'
      ) {
        options.act(this._wakes.id, this._wakes.action);
      }
    });
    this._state = make('div', 'jp-ivy-drive-state', { role: 'status' }, [
      this._chip.node,
      this._hint
    ]);
    this.node.append(
      this._select,
      this._problem.node,
      this._state,
      this._button,
      this._more
    );
    this.unshown = 0;
  }

  /** Why the last listing could not be had; null when it could. */
  failure: string | null = null;

  /** How many entries of the directory are not shown. */
  set unshown(count: number) {
    setShown(this._more, count > 0);
    setText(
      this._more,
      count === 0
        ? ''
        : this._options.trans.__(
            '%1 more entries are not shown: filter by name to see them.',
            count
          )
    );
  }

  /** Draw the state at a place, where a sandbox is or is not. */
  refresh(place: IPlace, shown: Shown, sandbox: ISandbox | null): void {
    const { model, trans } = this._options;
    this._drawChoice(place);
    const { knowledge } = model;
    const problem =
      knowledge.kind === 'nothing'
        ? problemSentence(knowledge.problem, trans)
        : shown === 'files'
          ? this.failure
          : sandbox && this._actionProblem(sandbox);
    this._problem.show(problem === null ? null : adviceIn(problem));
    this._wakes = null;
    setShown(this._button, false);
    setShown(this._state, shown !== 'files');
    setShown(this._chip.node, shown === 'state');
    if (shown === 'gone') {
      setText(
        this._hint,
        knowledge.kind === 'loading'
          ? trans.__('Asking for the sandboxes…')
          : trans.__(
              'No notebook uses this sandbox any more. Choose another one.'
            )
      );
    }
    if (shown === 'state' && sandbox) {
      this._drawState(sandbox);
    }
  }

  private _actionProblem(sandbox: ISandbox): string | null {
    const { model, trans } = this._options;
    const problem = model.actionProblem(sandbox.id);
    return problem && problemSentence(problem, trans);
  }

  private _drawState(sandbox: ISandbox): void {
    const { model, trans } = this._options;
    const reading = model.read(sandbox);
    const status = statusNow(sandbox.status, reading);
    this._chip.update(status.state, stateLabel(status, trans), status.stale);
    const starts =
      status.state === 'provisioning' || status.state === 'restoring';
    setText(
      this._hint,
      starts
        ? etaSentence(reading, trans)
        : stateHint(status, sandbox.canCreate, trans)
    );
    const busy = model.busyAction(sandbox.id);
    const action = busy ?? wakingAction(sandbox, status.state);
    if (action !== null) {
      this._wakes = { id: sandbox.id, action };
      const words = busy === null ? actionLabel : busyLabel;
      setText(this._button, words(action, status, trans));
      setShown(this._button, true);
    }
    this._button.classList.toggle('jp-mod-busy', busy !== null);
    // Not `disabled`, which would drop the keyboard focus in the middle of an action.
    setAttribute(this._button, 'aria-disabled', busy === null ? null : 'true');
  }

  /** One entry for each sandbox; drawn anew only when one has come, gone or changed. */
  private _drawChoice(place: IPlace): void {
    const { model, trans } = this._options;
    const entries: [value: string, label: string][] = [
      ['', trans.__('All sandboxes')]
    ];
    const components = componentsOf(model.sandboxes);
    for (const one of model.sandboxes) {
      const component = components.get(one.id);
      if (component !== undefined) {
        const status = statusNow(one.status, model.read(one));
        entries.push([
          component,
          status.state === 'active'
            ? one.name
            : trans.__('%1 · %2', one.name, stateLabel(status, trans))
        ]);
      }
    }
    const current = place.component ?? '';
    if (!entries.some(([value]) => value === current)) {
      entries.push([current, current]);
    }
    const drawn = JSON.stringify(entries);
    if (drawn !== this._drawn) {
      this._drawn = drawn;
      this._select.replaceChildren(
        ...entries.map(([value, label]) =>
          make('option', '', { value }, [label])
        )
      );
    }
    this._select.value = current;
  }

  private readonly _options: IHeadOptions;
  private readonly _select: HTMLSelectElement;
  private readonly _problem: Banner;
  private readonly _chip = new StateChip();
  private readonly _hint = make('div', 'jp-ivy-drive-hint');
  private readonly _more = make('div', '', { role: 'status' });
  private readonly _state: HTMLDivElement;
  private readonly _button = make('button', 'jp-ivy-button jp-mod-primary', {
    type: 'button'
  });
  private _wakes: { readonly id: string; readonly action: Action } | null =
    null;
  private _drawn = '';
}
