/** The wiring: the only file that knows JupyterLab's plugins. */

import {
  ILabShell,
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import {
  Clipboard,
  ICommandPalette,
  ISessionContextDialogs,
  Notification
} from '@jupyterlab/apputils';
import { IDocumentManager } from '@jupyterlab/docmanager';
import { IFileBrowserFactory } from '@jupyterlab/filebrowser';
import { INotebookTracker } from '@jupyterlab/notebook';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { ServerSource } from './api';
import { addChatCommands, ChatCommandIDs, ChatSwitch } from './chatCommands';
import { CellCommandIDs, CellNotifier } from './cellNotifier';
import { ChatsModel } from './chatsModel';
import { addCommands, CommandIDs, pickSandbox } from './commands';
import { CurrentNotebook } from './currentNotebook';
import { addDetach, DetachCommandIDs } from './detach';
import { addDrive } from './drive/controller';
import { ivyIcon } from './icons';
import { SandboxModel } from './model';
import { SandboxNotifier } from './notifications';
import { OutputsLoader } from './outputs/outputsLoader';
import {
  DEFAULT_PREFERENCES,
  type IPreferences,
  readPreferences
} from './preferences';
import { addRestore, RestoreCommandIDs, Restorer } from './restore';
import { PANEL_ID, SandboxPanel } from './views/panel';
import { StatusItem } from './views/statusItem';
import { Ticker } from './views/ticker';

const PLUGIN_ID = 'ivy-kernel:plugin';

/** The kernelspec that a new notebook gets. */
const KERNEL_NAME = 'ivy-sandbox';

/** Among the side bar's own tabs, after the property inspector and the debugger. */
const PANEL_RANK = 900;

const plugin: JupyterFrontEndPlugin<void> = {
  id: PLUGIN_ID,
  description:
    'Shows the Ivy sandboxes: side panel, status bar item, commands.',
  autoStart: true,
  // Everything is optional: Jupyter Notebook 7 has neither the lab shell nor a status bar.
  optional: [
    ITranslator,
    ISettingRegistry,
    ILabShell,
    ILayoutRestorer,
    IStatusBar,
    INotebookTracker,
    ICommandPalette,
    ISessionContextDialogs,
    IFileBrowserFactory,
    IDocumentManager,
    IRenderMimeRegistry
  ],
  activate: (
    app: JupyterFrontEnd,
    translator: ITranslator | null,
    settingRegistry: ISettingRegistry | null,
    labShell: ILabShell | null,
    restorer: ILayoutRestorer | null,
    statusBar: IStatusBar | null,
    notebooks: INotebookTracker | null,
    palette: ICommandPalette | null,
    sessionDialogs: ISessionContextDialogs | null,
    fileBrowsers: IFileBrowserFactory | null,
    documents: IDocumentManager | null,
    renderMime: IRenderMimeRegistry | null
  ): void => {
    const trans = (translator ?? nullTranslator).load('ivy-kernel');
    const { commands, serviceManager, shell } = app;
    const source = new ServerSource(serviceManager.serverSettings);
    const model = new SandboxModel({ source });
    const chats = new ChatsModel(source);
    const ticker = new Ticker();
    const current = new CurrentNotebook(notebooks);
    const chatOptions = {
      app,
      chats,
      current,
      model,
      trans,
      kernelName: KERNEL_NAME
    };
    const chatSwitch = new ChatSwitch(chatOptions);

    const remaining = {
      app,
      notebooks,
      current,
      model,
      trans,
      kernelName: KERNEL_NAME,
      outputs: new OutputsLoader({
        notebooks,
        source,
        trans,
        kernelName: KERNEL_NAME
      }),
      pick: () => pickSandbox(model, current)
    };
    const restoring = new Restorer(remaining);

    const openPanel = (): void => {
      shell.activateById(PANEL_ID);
    };
    const openNotebook = (path: string): void => {
      void commands.execute('docmanager:open', { path });
    };
    const panel = new SandboxPanel(
      {
        model,
        ticker,
        trans,
        isCurrent: sandbox => current.isIn(sandbox),
        restoring: sandbox => restoring.stateOf(sandbox),
        chats,
        canUseChat: () => chatSwitch.canUse,
        switchingTo: () => chatSwitch.switchingTo,
        actions: {
          act: (id, action) => {
            void commands.execute(`ivy:${action}`, { id });
          },
          copyId: id => {
            void commands.execute(CommandIDs.copyId, { id });
          },
          copyText: text => {
            Clipboard.copyToSystem(text);
            Notification.success(trans.__('Copied.'), { autoClose: 2000 });
          },
          openNotebook,
          newNotebook: () => {
            void commands.execute('notebook:create-new', {
              kernelName: KERNEL_NAME
            });
          },
          restartSession: (id, kernelId) => {
            void commands.execute(CommandIDs.restartSession, { id, kernelId });
          },
          chats: chatSwitch
        }
      },
      DEFAULT_PREFERENCES
    );
    panel.title.icon = ivyIcon;
    panel.title.caption = trans.__('Ivy Sandbox');
    shell.add(panel, 'right', { rank: PANEL_RANK, type: 'Ivy Sandbox' });
    restorer?.add(panel, PANEL_ID);

    const isPanelVisible = (): boolean => panel.isVisible;

    const statusItem = new StatusItem(
      {
        model,
        ticker,
        trans,
        onOpen: openPanel,
        pick: () => pickSandbox(model, current)
      },
      DEFAULT_PREFERENCES
    );
    if (statusBar) {
      statusBar.registerStatusItem(`${PLUGIN_ID}:status`, {
        item: statusItem,
        align: 'left',
        rank: 90,
        priority: 1
      });
    } else if (!labShell) {
      statusItem.id = 'ivy-sandbox-status';
      shell.add(statusItem, 'menu', { rank: 1000 });
    }

    addCommands({
      app,
      model,
      current,
      trans,
      sessionDialogs,
      openPanel,
      isPanelVisible
    });
    addChatCommands(chatOptions, chatSwitch, panel, openPanel);
    addDetach(remaining);
    addRestore(remaining, restoring, renderMime);
    const cellNotifier = new CellNotifier({
      app,
      notebooks,
      trans,
      isOurs: kernelId =>
        model.sandboxes.some(sandbox =>
          sandbox.sessions.some(session => session.kernelId === kernelId)
        ),
      kernelName: KERNEL_NAME
    });
    for (const command of [
      ...Object.values(CommandIDs),
      ...Object.values(ChatCommandIDs),
      ...Object.values(CellCommandIDs),
      ...Object.values(DetachCommandIDs),
      ...Object.values(RestoreCommandIDs)
    ]) {
      palette?.addItem({ command, category: trans.__('Ivy Sandbox') });
    }
    const notifier = new SandboxNotifier({
      model,
      ticker,
      trans,
      openPanel,
      isPanelVisible,
      openNotebook,
      create: id => {
        void commands.execute(CommandIDs.create, { id });
      }
    });

    ticker.ticked.connect(() => {
      model.checkClock();
    });
    for (const { changed } of [chatSwitch, restoring]) {
      changed.connect(() => {
        panel.refresh();
      });
    }
    current.changed.connect(() => {
      panel.refresh();
      statusItem.refresh();
      void model.refresh();
    });

    const apply = (preferences: IPreferences): void => {
      model.intervals = preferences.intervals;
      notifier.thresholds = preferences.notifies
        ? preferences.thresholds
        : null;
      cellNotifier.preferences = preferences.cells;
      panel.preferences = preferences;
      statusItem.preferences = preferences;
    };
    apply(DEFAULT_PREFERENCES);
    settingRegistry
      ?.load(PLUGIN_ID)
      .then(settings => {
        const read = (): void => {
          apply(readPreferences(settings.composite));
        };
        settings.changed.connect(read);
        read();
      })
      .catch((error: unknown) => {
        console.error('The settings of Ivy Sandbox could not be read', error);
      });

    if (labShell && fileBrowsers && documents) {
      addDrive({
        app,
        labShell,
        restorer,
        browsers: fileBrowsers,
        documents,
        notebooks,
        settings: settingRegistry,
        translator: translator ?? nullTranslator,
        trans,
        model,
        ticker,
        current,
        pick: () => pickSandbox(model, current),
        act: (id, action) => {
          void commands.execute(`ivy:${action}`, { id });
        }
      });
    }

    // Not before the application is there: the first paint needs the connection more.
    void app.started.then(() => {
      model.start();
    });
  }
};

export default plugin;
