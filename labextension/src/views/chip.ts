/** The state of a sandbox: an icon of its own shape, and a word. */

import type { SandboxState } from '../protocol';
import { type IconName, make, setIcon, setText } from './dom';

const ICONS: Record<SandboxState, IconName> = {
  none: 'none',
  provisioning: 'busy',
  active: 'active',
  hibernating: 'busy',
  hibernated: 'hibernated',
  restoring: 'busy',
  archived: 'archived',
  failed: 'failed',
  expired: 'expired',
  unknown: 'unknown'
};

export class StateChip {
  constructor() {
    this.node = make('span', 'jp-ivy-chip', {}, [this._icon, this._label]);
  }

  readonly node: HTMLSpanElement;

  /**
   * Show a state.
   *
   * @param stale - Whether the state is only what was true when the sandbox was last seen.
   */
  update(state: SandboxState, label: string, stale: boolean): void {
    this.node.dataset['state'] = state;
    this.node.classList.toggle('jp-mod-stale', stale);
    setIcon(this._icon, ICONS[state]);
    setText(this._label, label);
  }

  private readonly _icon = make('span', 'jp-ivy-chip-icon');
  private readonly _label = make('span', 'jp-ivy-chip-label');
}
