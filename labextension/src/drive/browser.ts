/** JupyterLab's file browser on the drive: it shows a sandbox's files, or why there are none. */

import { Notification } from '@jupyterlab/apputils';
import { PageConfig, PathExt } from '@jupyterlab/coreutils';
import type { IDocumentManager } from '@jupyterlab/docmanager';
import {
  DirListing,
  FileBrowser,
  FilterFileBrowserModel
} from '@jupyterlab/filebrowser';
import type { Contents } from '@jupyterlab/services';
import type { ITranslator, TranslationBundle } from '@jupyterlab/translation';
import {
  fileUploadIcon,
  filterIcon,
  newFolderIcon,
  refreshIcon,
  ToolbarButton
} from '@jupyterlab/ui-components';
import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';
import type { Message } from '@lumino/messaging';
import { type ISignal, Signal } from '@lumino/signaling';

import { make, makeIcon, setText } from '../views/dom';
import { DRIVE_NAME, hoverLines, isDrivePath } from './entries';

/** JupyterLab's own interval is of no use here: nothing is asked by the clock. */
const LONGEST_INTERVAL_MS = 300_000;

/** So many entries are shown at once; a filter brings the others into sight. */
export const SHOWN_LIMIT = 1000;

/** The drag data in which JupyterLab's file browsers hand over paths. */
const CONTENTS_MIME = 'application/x-jupyter-icontents';

interface IModelOptions {
  readonly manager: IDocumentManager;
  readonly translator: ITranslator;
  readonly onUploadFailed: (name: string, error: Error) => void;
}

/**
 * A model that asks only when there is a reason to.
 *
 * A listing is a call to the sandbox, and a call may put its hibernation off: so none goes out by
 * the clock, none while the browser is hidden, and none for what only filters what is known.
 */
export class DriveModel extends FilterFileBrowserModel {
  constructor(options: IModelOptions) {
    super({
      auto: false,
      driveName: DRIVE_NAME,
      manager: options.manager,
      translator: options.translator,
      refreshInterval: LONGEST_INTERVAL_MS
    });
    this._onUploadFailed = options.onUploadFailed;
  }

  /** Whether nothing may be asked now. */
  isHeld: () => boolean = () => true;

  override async cd(path = '.'): Promise<void> {
    if (path === '.') {
      // What was wanted while it was held is asked for when somebody looks again.
      if (!this._isWanted || this.isHeld()) {
        return;
      }
      this._isWanted = false;
    }
    await super.cd(path);
  }

  override async refresh(): Promise<void> {
    if (this._isFiltering) {
      const { sessions } = this.manager.services;
      // Draws what is known anew.
      this.onRunningChanged(sessions, sessions.running());
      return;
    }
    this._isWanted = true;
    if (!this.isHeld()) {
      await super.refresh();
    }
  }

  override setFilter(
    filter: Parameters<FilterFileBrowserModel['setFilter']>[0]
  ): void {
    this._filterOnly(() => {
      super.setFilter(filter);
    });
  }

  override showHiddenFiles(value: boolean): void {
    this._filterOnly(() => {
      super.showHiddenFiles(value);
    });
  }

  override async upload(file: File, path?: string): Promise<Contents.IModel> {
    try {
      return await super.upload(file, path);
    } catch (error) {
      // Anything else than an error is the user's own "no".
      if (error instanceof Error) {
        this._onUploadFailed(file.name, error);
      }
      throw error;
    }
  }

  /** How many entries are not shown, of those that the filter lets through. */
  get unshown(): number {
    return Math.max(0, [...super.items()].length - SHOWN_LIMIT);
  }

  /** The entries to show: JupyterLab makes a node for each, which takes long for thousands. */
  override *items(): IterableIterator<Contents.IModel> {
    let left = SHOWN_LIMIT;
    for (const one of super.items()) {
      if (left === 0) {
        return;
      }
      left -= 1;
      yield one;
    }
  }

  /** Emitted when a listing has arrived. */
  get listed(): ISignal<this, void> {
    return this._listed;
  }

  protected override handleContents(contents: Contents.IModel): void {
    super.handleContents(contents);
    this._listed.emit();
  }

  protected override onFileChanged(
    sender: Contents.IManager,
    change: Contents.IChangedArgs
  ): void {
    const isHere = [change.oldValue, change.newValue].some(
      one => one?.path !== undefined && directoryOf(one.path) === this.path
    );
    if (!isHere) {
      return;
    }
    this._isWanted = true;
    super.onFileChanged(sender, change);
    // JupyterLab (4.3 and newer) puts the drive's name before a path that has it already.
    super.onFileChanged(sender, {
      ...change,
      oldValue: withoutDrive(change.oldValue),
      newValue: withoutDrive(change.newValue)
    });
  }

  private _filterOnly(change: () => void): void {
    this._isFiltering = true;
    try {
      change();
    } finally {
      this._isFiltering = false;
    }
  }

  private readonly _onUploadFailed: IModelOptions['onUploadFailed'];
  private readonly _listed = new Signal<this, void>(this);
  private _isWanted = true;
  private _isFiltering = false;
}

/** The directory that a path is in; of a chat's own directory it is the drive's root. */
function directoryOf(path: string): string {
  const directory = PathExt.dirname(path);
  return directory === '' && isDrivePath(path) ? `${DRIVE_NAME}:` : directory;
}

function withoutDrive(
  value: Partial<Contents.IModel> | null
): Partial<Contents.IModel> | null {
  return value?.path !== undefined && isDrivePath(value.path)
    ? { ...value, path: value.path.slice(DRIVE_NAME.length + 1) }
    : value;
}

/** Draws an entry as JupyterLab does, with what the platform knows and what may not be changed. */
class EntryRenderer extends DirListing.Renderer {
  constructor(private readonly _trans: TranslationBundle) {
    super();
  }

  override updateItemNode(
    ...args: Parameters<DirListing.Renderer['updateItemNode']>
  ): void {
    const [node, model] = args;
    const before = this._lines.get(node) ?? '';
    super.updateItemNode(...args);
    const lines = hoverLines(model, model.writable, this._trans);
    const title =
      before !== '' && node.title.endsWith(before)
        ? node.title.slice(0, -before.length)
        : node.title;
    if (node.title !== title + lines) {
      node.title = title + lines;
    }
    this._lines.set(node, lines);
    this._drawBadge(node, model.writable);
    const modified = node.querySelector('.jp-DirListing-itemModified');
    if (modified && isUndated(model)) {
      setText(modified, '');
    }
  }

  private _drawBadge(node: HTMLElement, isWritable: boolean): void {
    const badge = node.querySelector('.jp-ivy-read-only');
    if (isWritable) {
      badge?.remove();
    } else if (!badge) {
      const label = this._trans.__('read-only');
      // Beside the name, which may be cut off, and not in it.
      node
        .querySelector('.jp-DirListing-itemName')
        ?.append(
          make('span', 'jp-ivy-read-only', { title: label }, [
            makeIcon('lock'),
            make('span', 'jp-ivy-sr-only', {}, [label])
          ])
        );
    }
  }

  private readonly _lines = new WeakMap<HTMLElement, string>();
}

/** Whether nobody knows when it was changed: the contents API has no other way to say so. */
function isUndated(model: Contents.IModel): boolean {
  return Date.parse(model.last_modified) === 0;
}

/** A drop of paths, as Lumino delivers it. */
interface IPathsDrop extends Event {
  readonly mimeData?: {
    hasData(mime: string): boolean;
    getData(mime: string): unknown;
  };
  dropAction?: string;
}

/** Call what words a question by whether there is a trash, which JupyterLab reads at its begin. */
function withoutTrash<T>(ask: () => T): T {
  const name = 'delete_to_trash';
  const before = PageConfig.setOption(name, 'false');
  try {
    return ask();
  } finally {
    PageConfig.setOption(name, before);
  }
}

class DriveListing extends DirListing {
  constructor(
    options: DirListing.IOptions,
    private readonly _onDropped: (paths: string[]) => void
  ) {
    super(options);
  }

  /** Ask, and delete: a sandbox has no trash, whatever the Jupyter server has. */
  override async delete(): Promise<void> {
    await withoutTrash(() => super.delete());
  }

  override handleEvent(event: Event): void {
    if (event.type === 'lm-drop') {
      const drop = event as IPathsDrop;
      const data = drop.mimeData?.hasData(CONTENTS_MIME)
        ? drop.mimeData.getData(CONTENTS_MIME)
        : [];
      const foreign = (Array.isArray(data) ? data : []).filter(
        (one): one is string => typeof one === 'string' && !isDrivePath(one)
      );
      if (foreign.length > 0) {
        event.preventDefault();
        event.stopPropagation();
        // A copy: what was dragged stays where it is.
        drop.dropAction = 'copy';
        this.node
          .querySelector('.jp-mod-dropTarget')
          ?.classList.remove('jp-mod-dropTarget');
        this._onDropped(foreign);
        return;
      }
    }
    super.handleEvent(event);
  }
}

/** The settings of JupyterLab's file browser that hold for this one too. */
const TAKEN_OVER = [
  'singleClickNavigation',
  'showLastModifiedColumn',
  'showDateCreatedColumn',
  'showFileSizeColumn',
  'showHiddenFiles',
  'showFileCheckboxes',
  'sortNotebooksFirst',
  'sortFileNamesNaturally',
  'showFullPath',
  'allowFileUploads'
] as const;

export interface IBrowserOptions {
  readonly id: string;
  readonly manager: IDocumentManager;
  readonly translator: ITranslator;
  readonly trans: TranslationBundle;
  /** Whether nothing may be asked at the place that is shown. */
  readonly isHeld: (path: string) => boolean;
  /** Called with paths of the Jupyter server that were dropped onto the listing. */
  readonly onDropped: (paths: string[]) => void;
  readonly onShown: () => void;
}

export class DriveBrowser extends FileBrowser {
  constructor(options: IBrowserOptions) {
    const { manager, translator, trans } = options;
    const model = new DriveModel({
      manager,
      translator,
      onUploadFailed: (name, error) => {
        Notification.error(
          trans.__('“%1” was not uploaded: %2', name, error.message)
        );
      }
    });
    super({
      id: options.id,
      model,
      translator,
      renderer: new EntryRenderer(trans),
      restore: false
    });
    this._options = options;
    this._listed = model.listed;
    model.isHeld = () => !this.isVisible || options.isHeld(model.path);
    this.addClass('jp-ivy-drive');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', trans.__('Ivy Sandbox files'));
    this.showFileCheckboxes = false;
    this._fillToolbar(trans);
  }

  /** Take over what the user has set for JupyterLab's own file browser. */
  set userSettings(settings: ReadonlyPartialJSONObject) {
    for (const name of TAKEN_OVER) {
      const value = settings[name];
      // An older JupyterLab has fewer of them.
      if (typeof value === 'boolean' && name in this && this[name] !== value) {
        this[name] = value;
      }
    }
  }

  /** How many entries of the directory are not shown. */
  get unshown(): number {
    return (this.model as { readonly unshown?: number }).unshown ?? 0;
  }

  /** Emitted when a listing has arrived. */
  get listed(): ISignal<DriveModel, void> {
    return this._listed;
  }

  /** Show or hide the breadcrumbs and the listing. */
  set showsFiles(shows: boolean) {
    this.mainPanel.setHidden(!shows);
    this.toolbar.setHidden(!shows);
  }

  protected override createDirListing(
    options: DirListing.IOptions
  ): DirListing {
    // Called by the base class's constructor, before there are options of ours.
    return new DriveListing(options, paths => {
      this._options.onDropped(paths);
    });
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this._options.onShown();
  }

  private _fillToolbar(trans: TranslationBundle): void {
    const { toolbar } = this;
    toolbar.node.setAttribute('aria-label', trans.__('Ivy Sandbox files'));
    toolbar.addItem(
      'new-directory',
      new ToolbarButton({
        icon: newFolderIcon,
        tooltip: trans.__('New Folder'),
        onClick: () => {
          // A failure has been shown already.
          void this.createNewDirectory().catch(() => undefined);
        }
      })
    );
    toolbar.addItem(
      'upload',
      new ToolbarButton({
        icon: fileUploadIcon,
        tooltip: trans.__('Upload Files'),
        onClick: () => {
          this._chooseFiles();
        }
      })
    );
    toolbar.addItem(
      'filter',
      new ToolbarButton({
        icon: filterIcon,
        tooltip: trans.__('Filter Files by Name'),
        onClick: () => {
          this.showFileFilter = !this.showFileFilter;
        }
      })
    );
    toolbar.addItem(
      'refresh',
      new ToolbarButton({
        icon: refreshIcon,
        tooltip: trans.__('Refresh'),
        onClick: () => {
          void this.model.refresh();
        }
      })
    );
  }

  private _chooseFiles(): void {
    const input = make('input', '', { type: 'file', multiple: '' });
    input.addEventListener('change', () => {
      for (const file of input.files ?? []) {
        // The model tells of a failure.
        void this.model.upload(file).catch(() => undefined);
      }
    });
    input.click();
  }

  private readonly _options: IBrowserOptions;
  private readonly _listed: ISignal<DriveModel, void>;
}
