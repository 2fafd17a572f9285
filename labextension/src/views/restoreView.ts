/** What a restored notebook has and lacks, and what can be done about the rest. */

import { type ITranslate } from '../format';
import { asRecord, text } from '../protocol';
import { make } from './dom';

/** A document of the MIME type `application/vnd.ivy.restore+json`. */
export interface IRestored {
  readonly text: string;
  /** Names that are not back, and why. */
  readonly missing: readonly IMissing[];
  /** The ids of the cells that made them. */
  readonly cells: readonly string[];
  readonly actions: readonly RestoreAction[];
}

export interface IMissing {
  readonly name: string;
  readonly why: string;
}

const ACTIONS = ['rerun', 'install'] as const;

export type RestoreAction = (typeof ACTIONS)[number];

/** More are counted, not shown. */
const MISSING_SHOWN = 20;

function isAction(value: unknown): value is RestoreAction {
  return (ACTIONS as readonly unknown[]).includes(value);
}

function list(value: unknown): unknown[] {
  return Array.isArray(value) ? (value as unknown[]) : [];
}

/** Read a document; null when it says nothing. */
export function parseRestored(value: unknown): IRestored | null {
  const body = asRecord(value);
  const words = text(body?.['text']);
  if (!body || words === null) {
    return null;
  }
  const missing = Object.entries(asRecord(body['missing']) ?? {});
  return {
    text: words,
    missing: missing.map(([name, one]) => ({
      name,
      why: text(asRecord(one)?.['why'] ?? one) ?? ''
    })),
    cells: list(body['cells']).filter(
      (one): one is string => typeof one === 'string'
    ),
    actions: list(body['actions']).filter(isAction)
  };
}

/** The actions that can be done, in the order of their buttons. */
export function possibleActions(restored: IRestored): RestoreAction[] {
  return ACTIONS.filter(
    one =>
      restored.actions.includes(one) &&
      (one !== 'rerun' || restored.cells.length > 0)
  );
}

export function restoreLabel(
  action: RestoreAction,
  restored: IRestored,
  trans: ITranslate
): string {
  if (action === 'install') {
    return trans.__('Install packages');
  }
  const count = restored.cells.length;
  return count === 1
    ? trans.__('Run this cell again')
    : trans.__('Run these %1 cells again', count);
}

/**
 * Draw it: every word is text, whoever wrote it.
 *
 * @param onAction - Called when the user presses a button; null where no button may be.
 */
export function drawRestored(
  node: HTMLElement,
  restored: IRestored,
  trans: ITranslate,
  onAction: ((action: RestoreAction) => void) | null
): void {
  node.replaceChildren(make('p', 'jp-ivy-restore-text', {}, [restored.text]));
  const { missing } = restored;
  // The sentence names a few with their reasons, and only counts more.
  if (missing.some(one => !restored.text.includes(one.name))) {
    const rows = missing
      .slice(0, MISSING_SHOWN)
      .map(({ name, why }) =>
        make('li', '', {}, [
          make('code', '', {}, [name]),
          why === '' ? '' : trans.__(': %1', why)
        ])
      );
    if (missing.length > MISSING_SHOWN) {
      rows.push(
        make('li', '', {}, [
          trans.__('and %1 more', missing.length - MISSING_SHOWN)
        ])
      );
    }
    node.append(make('ul', 'jp-ivy-restore-missing', {}, rows));
  }
  const actions = possibleActions(restored);
  if (actions.length === 0) {
    return;
  }
  if (onAction === null) {
    node.append(
      make('p', 'jp-ivy-restore-untrusted', {}, [
        trans.__(
          'This notebook is not trusted, so that nothing is offered here: run its cells yourself.'
        )
      ])
    );
    return;
  }
  const buttons = actions.map((action, index) => {
    const button = make('button', 'jp-ivy-button', { type: 'button' }, [
      restoreLabel(action, restored, trans)
    ]);
    button.classList.toggle('jp-mod-primary', index === 0);
    button.addEventListener('click', event => {
      // A script in an output of the same page must not press it.
      if (event.isTrusted) {
        onAction(action);
      }
    });
    return button;
  });
  node.append(make('div', 'jp-ivy-actions', { role: 'group' }, [...buttons]));
}
