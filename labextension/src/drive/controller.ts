/** The drive in JupyterLab: its browser follows the notebook in front, and asks no sandbox awake. */

import type {
  ILabShell,
  ILayoutRestorer,
  JupyterFrontEnd
} from '@jupyterlab/application';
import { PathExt } from '@jupyterlab/coreutils';
import type { IDocumentManager } from '@jupyterlab/docmanager';
import type { IFileBrowserFactory } from '@jupyterlab/filebrowser';
import { type INotebookTracker, NotebookActions } from '@jupyterlab/notebook';
import type { ISettingRegistry } from '@jupyterlab/settingregistry';
import type { ITranslator, TranslationBundle } from '@jupyterlab/translation';
import { Debouncer } from '@lumino/polling';

import type { CurrentNotebook } from '../currentNotebook';
import { ivyIcon } from '../icons';
import type { SandboxModel } from '../model';
import type { Action, ISandbox, SandboxState } from '../protocol';
import type { Ticker } from '../views/ticker';
import { DriveBrowser } from './browser';
import {
  addDriveCommands,
  type IDriveCommandsOptions,
  type ISendTarget,
  sendToSandbox
} from './commands';
import { IvyDrive } from './drive';
import {
  componentsOf,
  DRIVE_NAME,
  type IPlace,
  isDrivePath,
  placeOf,
  sandboxAt,
  type Shown,
  shownAt
} from './entries';
import { DriveHead } from './head';

export const DRIVE_ID = 'ivy-drive';

/** Below JupyterLab's own file browser, which has 100. */
const DRIVE_RANK = 101;

/** Cells that end one after the other make one new listing. */
const AFTER_CELL_MS = 500;

/** The settings of JupyterLab's own file browser. */
const FILE_BROWSER_PLUGIN = '@jupyterlab/filebrowser-extension:browser';

export interface IDriveParts {
  readonly app: JupyterFrontEnd;
  readonly labShell: ILabShell;
  readonly restorer: ILayoutRestorer | null;
  readonly browsers: IFileBrowserFactory;
  readonly documents: IDocumentManager;
  readonly notebooks: INotebookTracker | null;
  readonly settings: ISettingRegistry | null;
  readonly translator: ITranslator;
  readonly trans: TranslationBundle;
  readonly model: SandboxModel;
  readonly ticker: Ticker;
  readonly current: CurrentNotebook;
  /** The sandbox of the notebook in front, or the one that takes its place. */
  readonly pick: () => ISandbox | null;
  readonly act: (id: string, action: Action) => void;
}

/** Add the drive to JupyterLab, with its browser in the left side bar. */
export function addDrive(parts: IDriveParts): void {
  new DriveController(parts).start();
}

class DriveController {
  constructor(parts: IDriveParts) {
    this._parts = parts;
    const { app, browsers, documents, model, trans, translator } = parts;
    this._drive = new IvyDrive({
      serverSettings: app.serviceManager.serverSettings,
      isHeld: component => this._shownAt({ component, path: '' }) !== 'files',
      onAsleep: () => {
        void model.refresh();
      }
    });
    app.serviceManager.contents.addDrive(this._drive);
    this._browser = new DriveBrowser({
      id: DRIVE_ID,
      manager: documents,
      translator,
      trans,
      isHeld: path => this._shownAt(placeOf(path)) !== 'files',
      onDropped: paths => {
        void this._send(paths);
      },
      onShown: () => {
        this._show();
      }
    });
    this._head = new DriveHead({
      model,
      trans,
      choose: component => {
        this._go(component);
      },
      act: parts.act
    });
    this._browser.header.addWidget(this._head);
    this._browser.title.icon = ivyIcon;
    this._browser.title.caption = trans.__('Ivy Sandbox files');
    // JupyterLab makes new notebooks where the browser is that was added or used last: in the sandbox
    // only if somebody has used this one.
    const addOnce = (): void => {
      if (!browsers.tracker.has(this._browser)) {
        void browsers.tracker.add(this._browser);
      }
    };
    for (const type of ['pointerdown', 'focusin']) {
      this._browser.node.addEventListener(type, addOnce, {
        capture: true,
        once: true
      });
    }
    this._commands = {
      app,
      trans,
      drive: this._drive,
      browsers: browsers.tracker,
      target: () => this._target(),
      notebookFolder: () => this._notebookFolder(),
      onSent: () => {
        void this._browser.model.refresh();
      }
    };
  }

  start(): void {
    const { current, labShell, model, restorer, ticker } = this._parts;
    const browser = this._browser;
    labShell.add(browser, 'left', {
      rank: DRIVE_RANK,
      type: 'Ivy Sandbox files'
    });
    restorer?.add(browser, DRIVE_ID);
    addDriveCommands(this._commands);
    model.changed.connect(this._draw, this);
    model.changed.connect(this._refreshAfterCell, this);
    ticker.ticked.connect(() => {
      if (browser.isVisible && this._shown === 'state') {
        this._draw();
      }
    });
    current.changed.connect(this._follow, this);
    browser.model.refreshed.connect(() => {
      this._head.unshown = this._shown === 'files' ? browser.unshown : 0;
    });
    browser.model.pathChanged.connect(this._draw, this);
    browser.model.connectionFailure.connect((_, error) => {
      this._head.failure = error.message;
      this._draw();
    });
    browser.listed.connect(() => {
      this._head.failure = null;
      this._draw();
    });
    NotebookActions.executed.connect((_, { notebook }) => {
      const front = this._parts.notebooks?.currentWidget;
      if (front?.content === notebook) {
        this._ranIn = this._parts.current.kernelId;
        this._refreshAfterCell();
      }
    });
    this._readSettings();
    this._draw();
  }

  private _readSettings(): void {
    this._parts.settings
      ?.load(FILE_BROWSER_PLUGIN)
      .then(settings => {
        const read = (): void => {
          this._browser.userSettings = settings.composite;
        };
        settings.changed.connect(read);
        read();
      })
      .catch((error: unknown) => {
        // An application that has no such plugin; JupyterLab's defaults hold.
        console.warn('The settings of the file browser are not known', error);
      });
  }

  /** The sandbox's part of the view, and what it means for the listing. */
  private _draw(): void {
    const place = this._place;
    const before = this._shown;
    this._shown = this._shownAt(place);
    const { model } = this._parts;
    this._head.refresh(place, this._shown, sandboxAt(model.sandboxes, place));
    this._browser.showsFiles = this._shown === 'files';
    if (!this._hasFollowed) {
      // The sandboxes were not known before.
      this._follow();
    } else if (this._shown === 'files' && before !== 'files') {
      void this._browser.model.refresh();
    }
  }

  /** Go to the sandbox of the notebook in front, unless the user has gone elsewhere. */
  private _follow(): void {
    const { current, model, pick } = this._parts;
    if (!this._browser.isVisible || model.knowledge.kind !== 'sandboxes') {
      return;
    }
    const here = this._browser.model.path;
    if (this._hasFollowed && here !== this._followed) {
      return;
    }
    const found =
      model.sandboxes.find(one => current.isIn(one)) ??
      (this._hasFollowed ? null : pick());
    const component = found && componentsOf(model.sandboxes).get(found.id);
    if (component) {
      this._go(component);
    }
  }

  private _go(component: string | null): void {
    const path = `${DRIVE_NAME}:${component ?? ''}`;
    if (component !== null) {
      this._hasFollowed = true;
      this._followed = path;
    }
    void this._browser.model.cd(`/${component ?? ''}`);
  }

  /** The browser came into sight: what has changed meanwhile is asked for now. */
  private _show(): void {
    const before = this._browser.model.path;
    this._draw();
    this._follow();
    if (this._shown === 'files' && this._browser.model.path === before) {
      void this._browser.model.refresh();
    }
  }

  private _target(): ISendTarget | null {
    const { model, pick } = this._parts;
    const place = this._place;
    const shown = sandboxAt(model.sandboxes, place);
    const sandbox = shown ?? pick();
    const component = sandbox && componentsOf(model.sandboxes).get(sandbox.id);
    if (!sandbox || !component) {
      return null;
    }
    const path = shown ? place.path : '';
    return {
      path: PathExt.join(component, path),
      label: path === '' ? sandbox.name : `${sandbox.name}: ${path}`
    };
  }

  private _notebookFolder(): string {
    const path = this._parts.notebooks?.currentWidget?.context.path ?? '';
    return isDrivePath(path) ? '' : PathExt.dirname(path);
  }

  private async _send(paths: string[]): Promise<void> {
    await sendToSandbox(this._commands, paths);
  }

  /** A cell has ended; the first one of a notebook before its sandbox is known to be its own. */
  private _refreshAfterCell(): void {
    const kernelId = this._parts.current.kernelId;
    if (this._ranIn !== null && this._ranIn === kernelId && this._isOfFront()) {
      this._ranIn = null;
      void this._afterCell.invoke().catch(() => undefined);
    }
  }

  /** Whether the notebook in front runs in the sandbox whose files are shown. */
  private _isOfFront(): boolean {
    const { current, model } = this._parts;
    const shown = sandboxAt(model.sandboxes, this._place);
    return shown !== null && current.isIn(shown);
  }

  private get _place(): IPlace {
    return placeOf(this._browser.model.path);
  }

  private _shownAt(place: IPlace): Shown {
    return shownAt(place, this._stateAt(place));
  }

  private _stateAt(place: IPlace): SandboxState | null {
    const { model } = this._parts;
    const sandbox = sandboxAt(model.sandboxes, place);
    return sandbox && model.read(sandbox).state;
  }

  private readonly _parts: IDriveParts;
  private readonly _drive: IvyDrive;
  private readonly _browser: DriveBrowser;
  private readonly _head: DriveHead;
  private readonly _commands: IDriveCommandsOptions;
  private readonly _afterCell = new Debouncer(
    () => this._browser.model.refresh(),
    AFTER_CELL_MS
  );
  private _shown: Shown = 'gone';
  private _ranIn: string | null = null;
  private _followed = '';
  private _hasFollowed = false;
}
