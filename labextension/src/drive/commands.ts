/** Copies between the sandbox and the Jupyter server, and what the platform knows of a file. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import {
  Dialog,
  Notification,
  showDialog,
  showErrorMessage
} from '@jupyterlab/apputils';
import { PathExt } from '@jupyterlab/coreutils';
import type { FileBrowser } from '@jupyterlab/filebrowser';
import type { Contents } from '@jupyterlab/services';
import type { TranslationBundle } from '@jupyterlab/translation';
import {
  DisposableDelegate,
  DisposableSet,
  type IDisposable
} from '@lumino/disposable';
import { Widget } from '@lumino/widgets';

import { ivyIcon } from '../icons';
import { make } from '../views/dom';
import { DriveError, type IvyDrive } from './drive';
import {
  type IKnown,
  type ISent,
  isDrivePath,
  knownFacts,
  parseKnown,
  placeOf,
  sentText,
  sizeText,
  transferFraction,
  transferText
} from './entries';

export const DriveCommandIDs = {
  send: 'ivy:send-to-sandbox',
  copyToNotebook: 'ivy:copy-to-notebook-folder',
  known: 'ivy:show-file-facts'
} as const;

/** Between two questions of how far a copy has come. */
const TRANSFER_INTERVAL_MS = 700;

/** After a notification has appeared JupyterLab needs so long before it can be changed. */
const SETTLE_MS = 1000;

/** A larger file goes through the browser's memory too slowly. */
const COPY_LIMIT_BYTES = 50_000_000;

/** The part of JupyterLab's list of file browsers that is used here. */
interface IBrowsers {
  readonly currentWidget: FileBrowser | null;
}

export interface IDriveCommandsOptions {
  readonly app: JupyterFrontEnd;
  readonly drive: IvyDrive;
  readonly browsers: IBrowsers;
  readonly trans: TranslationBundle;
  /** Where files are sent to; null when there is no sandbox. */
  readonly target: () => ISendTarget | null;
  /** The folder of the notebook in front. */
  readonly notebookFolder: () => string;
  /** Called when something was sent. */
  readonly onSent: () => void;
}

export interface ISendTarget {
  /** A path of the drive, without its name. */
  readonly path: string;
  /** How it is called in a sentence. */
  readonly label: string;
}

/** Add the commands and their menu entries; disposing of the result removes them. */
export function addDriveCommands(options: IDriveCommandsOptions): IDisposable {
  const { app, browsers, drive, trans } = options;
  const { commands, contextMenu } = app;
  const selected = (ofDrive: boolean): Contents.IModel[] =>
    [...(browsers.currentWidget?.selectedItems() ?? [])].filter(
      one => isDrivePath(one.path) === ofDrive
    );
  const none = { args: { type: 'object', properties: {} } } as const;
  const added = new DisposableSet();
  added.add(
    commands.addCommand(DriveCommandIDs.send, {
      label: trans.__('Send to Ivy Sandbox'),
      caption: trans.__(
        'Copy the selected files and folders into the sandbox; asks before it overwrites'
      ),
      icon: ivyIcon,
      describedBy: none,
      isVisible: () => selected(false).length > 0,
      isEnabled: () => options.target() !== null,
      execute: () =>
        sendToSandbox(
          options,
          selected(false).map(one => one.path)
        )
    })
  );
  added.add(
    commands.addCommand(DriveCommandIDs.copyToNotebook, {
      label: trans.__('Copy to Notebook Folder'),
      caption: trans.__(
        'Copy the selected files beside the notebook in front; asks before it overwrites'
      ),
      describedBy: none,
      isVisible: () => filesIn(selected(true)).length > 0,
      execute: () => copyToNotebook(options, filesIn(selected(true)))
    })
  );
  added.add(
    commands.addCommand(DriveCommandIDs.known, {
      label: trans.__('Show What the Platform Knows'),
      caption: trans.__('Kind, origin, time and size of this file'),
      icon: ivyIcon,
      describedBy: none,
      isVisible: () => selected(true).length === 1,
      execute: async () => {
        const [one] = selected(true);
        if (one) {
          await showKnown(one, drive, trans);
        }
      }
    })
  );
  const selector = '.jp-DirListing-item[data-isdir]';
  const items = [
    { command: DriveCommandIDs.send, rank: 9.5 },
    { command: DriveCommandIDs.copyToNotebook, rank: 9.6 },
    { command: DriveCommandIDs.known, rank: 14.5 }
  ].map(one => contextMenu.addItem({ ...one, selector }));
  added.add(
    new DisposableDelegate(() => {
      items.forEach(one => {
        one.dispose();
      });
    })
  );
  return added;
}

function filesIn(models: readonly Contents.IModel[]): Contents.IModel[] {
  return models.filter(one => one.type !== 'directory');
}

/**
 * Copy files and folders of the Jupyter server into the sandbox, one after the other.
 *
 * @param paths - Paths of JupyterLab's own drive.
 */
export async function sendToSandbox(
  options: IDriveCommandsOptions,
  paths: readonly string[]
): Promise<void> {
  const { drive, trans } = options;
  const target = options.target();
  if (!target || paths.length === 0) {
    return;
  }
  const [first = ''] = paths;
  const what =
    paths.length === 1
      ? trans.__('“%1”', PathExt.basename(first))
      : trans.__('%1 items', paths.length);
  const notice = new SendNotice(
    drive,
    target.path,
    trans.__('Sending %1 to %2…', what, target.label),
    trans
  );
  let total: ISent = { files: 0, bytes: 0 };
  try {
    for (const path of paths) {
      const sent = await sendOne(drive, path, target.path, trans);
      if (sent) {
        total = {
          files: total.files + sent.files,
          bytes: total.bytes + sent.bytes
        };
      }
    }
    if (total.files === 0) {
      await notice.end(
        trans.__('Nothing was sent to %1.', target.label),
        'info'
      );
    } else {
      await notice.end(sentText(total, target.label, trans), 'success');
    }
  } catch (error) {
    await notice.end(
      trans.__('%1 was not sent: %2', what, reasonOf(error)),
      'error'
    );
  }
  options.onSent();
}

/** Send one file or folder; null when the user does not want it overwritten. */
async function sendOne(
  drive: IvyDrive,
  path: string,
  to: string,
  trans: TranslationBundle
): Promise<ISent | null> {
  try {
    return await drive.send(path, to, false);
  } catch (error) {
    if (!(error instanceof DriveError && error.isConflict)) {
      throw error;
    }
    return (await confirmOverwrite(error.message, trans))
      ? drive.send(path, to, true)
      : null;
  }
}

async function confirmOverwrite(
  sentence: string,
  trans: TranslationBundle
): Promise<boolean> {
  const answer = await showDialog({
    title: trans.__('Overwrite?'),
    body: sentence,
    buttons: [
      Dialog.cancelButton({ label: trans.__('Keep') }),
      Dialog.warnButton({ label: trans.__('Overwrite') })
    ],
    defaultButton: 0
  });
  return answer.button.accept;
}

/**
 * The notification of a sending: how far it has come, and at last what became of it.
 *
 * It appears only when it is worth it: JupyterLab loses a change that follows an appearance at once.
 */
class SendNotice {
  constructor(
    private readonly _drive: IvyDrive,
    private readonly _to: string,
    private readonly _message: string,
    private readonly _trans: TranslationBundle
  ) {
    this._timer = window.setInterval(() => {
      void this._tick();
    }, TRANSFER_INTERVAL_MS);
  }

  /** Say how it ended. */
  async end(
    message: string,
    type: 'success' | 'info' | 'error'
  ): Promise<void> {
    window.clearInterval(this._timer);
    const autoClose = type === 'error' ? false : 5000;
    if (this._id === null) {
      Notification.emit(message, type, { autoClose });
      return;
    }
    const id = this._id;
    this._id = null;
    const waitMs = this._shownMs + SETTLE_MS - performance.now();
    await new Promise(resolve => window.setTimeout(resolve, waitMs));
    Notification.update({ id, message, type, actions: [], autoClose });
  }

  private async _tick(): Promise<void> {
    if (this._id === null) {
      this._shownMs = performance.now();
      this._id = Notification.emit(this._message, 'in-progress', {
        autoClose: false,
        actions: [
          {
            label: this._trans.__('Cancel'),
            callback: event => {
              // It closes when the sending has ended.
              event.preventDefault();
              void this._cancel().catch(() => undefined);
            }
          }
        ]
      });
      return;
    }
    // Only for show: the answer to the sending itself decides.
    const [one] = await this._drive.transfers(this._to).catch(() => []);
    const id = this._id;
    // It may have ended while this was asked.
    if (one && (id as string | null) !== null) {
      const progress = transferFraction(one);
      Notification.update({
        id,
        message: transferText(one, this._trans),
        ...(progress === null ? {} : { progress })
      });
    }
  }

  private async _cancel(): Promise<void> {
    for (const { id } of await this._drive.transfers(this._to)) {
      await this._drive.cancel(id);
    }
  }

  private readonly _timer: number;
  private _id: string | null = null;
  private _shownMs = 0;
}

/** Copy files of the sandbox into the notebook's folder, through the browser. */
async function copyToNotebook(
  options: IDriveCommandsOptions,
  models: readonly Contents.IModel[]
): Promise<void> {
  const { trans, app } = options;
  const { contents } = app.serviceManager;
  const folder = options.notebookFolder();
  const shownFolder = folder === '' ? trans.__('the root folder') : folder;
  try {
    for (const { name, path, size } of models) {
      if ((size ?? 0) > COPY_LIMIT_BYTES) {
        throw new DriveError(
          'TooLarge',
          trans.__(
            '“%1” has %2; from 50 MB on use “Download”, or “%ivy get” in a cell.',
            name,
            sizeText(size ?? 0, trans)
          )
        );
      }
      const target = PathExt.join(folder, name);
      const isThere = await contents
        .get(target, { content: false })
        .then(() => true)
        .catch(() => false);
      const question = trans.__('“%1” is in the folder already.', name);
      if (isThere && !(await confirmOverwrite(question, trans))) {
        continue;
      }
      const model = await contents.get(path, {
        type: 'file',
        format: 'base64',
        content: true
      });
      await contents.save(target, {
        type: 'file',
        format: 'base64',
        content: model.content as string
      });
      Notification.success(trans.__('Copied “%1” to %2.', name, shownFolder), {
        autoClose: 5000
      });
    }
  } catch (error) {
    Notification.error(trans.__('Not copied: %1', reasonOf(error)));
  }
}

async function showKnown(
  model: Contents.IModel,
  drive: IvyDrive,
  trans: TranslationBundle
): Promise<void> {
  const place = placeOf(model.path);
  let known: IKnown | null = parseKnown(model);
  try {
    if (known === null && place.component !== null) {
      const entries = await drive.manifest(place.component);
      known = entries.find(one => one.path === place.path) ?? null;
    }
  } catch (error) {
    await showErrorMessage(trans.__('Ivy Sandbox'), reasonOf(error));
    return;
  }
  const body = new Widget();
  const facts = known
    ? knownFacts(
        { ...known, sizeBytes: known.sizeBytes ?? model.size ?? null },
        trans
      )
    : [];
  body.node.append(
    facts.length > 0
      ? make(
          'dl',
          'jp-ivy-known',
          {},
          facts.flatMap(([label, value]) => [
            make('dt', '', {}, [label]),
            make('dd', '', {}, [value])
          ])
        )
      : trans.__(
          'The platform’s manifest does not list this file: it was made in the sandbox, or is newer than the manifest.'
        )
  );
  await showDialog({
    title: model.name,
    body,
    buttons: [Dialog.okButton({ label: trans.__('Close') })]
  });
}

function reasonOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
