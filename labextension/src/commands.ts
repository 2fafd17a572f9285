/** What the palette, the menu and the panel can do with a sandbox. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import {
  Clipboard,
  Dialog,
  type ISessionContextDialogs,
  Notification,
  showDialog
} from '@jupyterlab/apputils';
import { KernelAPI } from '@jupyterlab/services';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';
import {
  DisposableDelegate,
  DisposableSet,
  type IDisposable
} from '@lumino/disposable';

import { statusNow } from './countdown';
import type { CurrentNotebook } from './currentNotebook';
import {
  adviceIn,
  remedyFirst,
  resumes,
  terminateQuestion,
  terminateWarning
} from './format';
import { ivyIcon } from './icons';
import type { SandboxModel } from './model';
import {
  type Action,
  isCreatable,
  type ISandbox,
  isTerminable
} from './protocol';
import { problemSentence } from './source';

export const CommandIDs = {
  create: 'ivy:create',
  terminate: 'ivy:terminate',
  reconnect: 'ivy:reconnect',
  restartSession: 'ivy:restart-session',
  openPanel: 'ivy:open-panel',
  copyId: 'ivy:copy-id'
} as const;

export interface ICommandOptions {
  readonly app: JupyterFrontEnd;
  readonly model: SandboxModel;
  readonly current: CurrentNotebook;
  readonly trans: TranslationBundle;
  readonly sessionDialogs: ISessionContextDialogs | null;
  readonly openPanel: () => void;
  readonly isPanelVisible: () => boolean;
}

type Arguments = ReadonlyPartialJSONObject;

/** The sandbox of the notebook in front, else the default one, else the first. */
export function pickSandbox(
  model: SandboxModel,
  current: CurrentNotebook
): ISandbox | null {
  const { sandboxes } = model;
  return (
    sandboxes.find(one => current.isIn(one)) ??
    sandboxes.find(one => one.isDefault) ??
    sandboxes[0] ??
    null
  );
}

/** Add the commands; disposing of the result removes them. */
export function addCommands(options: ICommandOptions): IDisposable {
  const { app, current, model, trans } = options;
  const { commands } = app;
  const ofArguments = (args: Arguments): ISandbox | null =>
    typeof args['id'] === 'string'
      ? (model.sandboxes.find(one => one.id === args['id']) ?? null)
      : pickSandbox(model, current);
  const sandboxArgument = {
    type: 'object',
    properties: {
      id: {
        type: 'string',
        description: trans.__(
          'The key of the sandbox; by default the one of the current notebook'
        )
      }
    }
  } as const;
  const mayCreate = (one: ISandbox): boolean =>
    one.canCreate && isCreatable(model.read(one).state);
  const mayTerminate = (one: ISandbox): boolean =>
    one.canTerminate && isTerminable(model.read(one).state);
  const isFree = (one: ISandbox | null): one is ISandbox =>
    one !== null && model.busyAction(one.id) === null;

  const added = new DisposableSet();
  added.add(
    commands.addCommand(CommandIDs.openPanel, {
      label: trans.__('Show Ivy Sandbox Panel'),
      caption: trans.__('Show the state of the sandboxes in the side bar'),
      icon: ivyIcon,
      describedBy: { args: { type: 'object', properties: {} } },
      execute: options.openPanel
    })
  );
  added.add(
    commands.addCommand(CommandIDs.create, {
      label: args => {
        const one = ofArguments(args);
        return one && resumes(statusNow(one.status, model.read(one)))
          ? trans.__('Resume Ivy Sandbox')
          : trans.__('Create Ivy Sandbox');
      },
      caption: trans.__('Start the sandbox, or bring the hibernated one back'),
      describedBy: { args: sandboxArgument },
      isEnabled: args => {
        const one = ofArguments(args);
        return isFree(one) && mayCreate(one);
      },
      execute: args => act(options, ofArguments(args), 'create')
    })
  );
  added.add(
    commands.addCommand(CommandIDs.reconnect, {
      label: trans.__('Reconnect to Ivy Sandbox'),
      caption: trans.__('Ask the sandbox anew; its variables stay'),
      describedBy: { args: sandboxArgument },
      isEnabled: args => isFree(ofArguments(args)),
      execute: args => act(options, ofArguments(args), 'reconnect')
    })
  );
  added.add(
    commands.addCommand(CommandIDs.terminate, {
      label: trans.__('Terminate Ivy Sandbox…'),
      caption: trans.__('Shut the sandbox down, after a question'),
      describedBy: { args: sandboxArgument },
      isEnabled: args => {
        const one = ofArguments(args);
        return isFree(one) && mayTerminate(one);
      },
      execute: async args => {
        const one = ofArguments(args);
        if (one && (await confirmTerminate(one, trans))) {
          await act(options, one, 'terminate');
        }
      }
    })
  );
  added.add(
    commands.addCommand(CommandIDs.restartSession, {
      label: trans.__('Restart Ivy Session…'),
      caption: trans.__(
        'Restart the kernel of a notebook: its variables go, the sandbox stays'
      ),
      describedBy: {
        args: {
          type: 'object',
          properties: {
            ...sandboxArgument.properties,
            kernelId: {
              type: 'string',
              description: trans.__(
                'The kernel; by default the one of the current notebook'
              )
            }
          }
        }
      },
      isEnabled: args => kernelOf(options, args, ofArguments(args)) !== null,
      execute: async args => {
        const kernelId = kernelOf(options, args, ofArguments(args));
        if (kernelId !== null) {
          await restartSession(options, kernelId);
        }
      }
    })
  );
  added.add(
    commands.addCommand(CommandIDs.copyId, {
      label: trans.__('Copy Ivy Chat Id'),
      caption: trans.__('Copy the id of the chat that the sandbox belongs to'),
      describedBy: { args: sandboxArgument },
      isEnabled: args => Boolean(ofArguments(args)?.chatId),
      execute: args => {
        const chatId = ofArguments(args)?.chatId;
        if (chatId) {
          Clipboard.copyToSystem(chatId);
          Notification.success(trans.__('The chat id is copied.'), {
            autoClose: 2000
          });
        }
      }
    })
  );
  // Whether a command is enabled depends on what the model knows.
  const onChange = (): void => {
    for (const id of Object.values(CommandIDs)) {
      commands.notifyCommandChanged(id);
    }
  };
  model.changed.connect(onChange);
  current.changed.connect(onChange);
  added.add(
    new DisposableDelegate(() => {
      model.changed.disconnect(onChange);
      current.changed.disconnect(onChange);
    })
  );
  return added;
}

async function act(
  options: ICommandOptions,
  sandbox: ISandbox | null,
  action: Action
): Promise<void> {
  const { isPanelVisible, model, openPanel, trans } = options;
  if (!sandbox) {
    return;
  }
  await model.act(sandbox.id, action);
  const problem = model.actionProblem(sandbox.id);
  if (problem && !isPanelVisible()) {
    // A notification cuts long texts off at their end, so that the remedy comes first.
    Notification.error(remedyFirst(adviceIn(problemSentence(problem, trans))), {
      actions: [{ label: trans.__('Open panel'), callback: openPanel }]
    });
  }
}

async function confirmTerminate(
  sandbox: ISandbox,
  trans: TranslationBundle
): Promise<boolean> {
  const answer = await showDialog({
    title: terminateQuestion(sandbox.name, trans),
    body: terminateWarning(trans),
    buttons: [
      Dialog.cancelButton({ label: trans.__('Cancel') }),
      Dialog.warnButton({ label: trans.__('Terminate') })
    ],
    // What Enter does at once must be the harmless choice.
    defaultButton: 0
  });
  return answer.button.accept;
}

/** The kernel to restart: the one asked for, the current notebook's, or the only one. */
function kernelOf(
  options: ICommandOptions,
  args: Arguments,
  sandbox: ISandbox | null
): string | null {
  const kernels = (sandbox?.sessions ?? []).filter(
    one => one.kind === 'kernel'
  );
  const wanted =
    typeof args['kernelId'] === 'string'
      ? args['kernelId']
      : options.current.kernelId;
  const found =
    kernels.find(one => one.kernelId === wanted) ??
    (args['kernelId'] === undefined && kernels.length === 1
      ? kernels[0]
      : undefined);
  return found?.kernelId ?? null;
}

/** Restart a kernel after a question; through its notebook, if that is open. */
async function restartSession(
  options: ICommandOptions,
  kernelId: string
): Promise<void> {
  const { app, current, model, sessionDialogs, trans } = options;
  const panel = current.find(kernelId);
  try {
    if (panel && sessionDialogs) {
      if (!(await sessionDialogs.restart(panel.sessionContext))) {
        return;
      }
    } else {
      if (!(await confirmRestart(trans))) {
        return;
      }
      await KernelAPI.restartKernel(
        kernelId,
        app.serviceManager.serverSettings
      );
    }
    Notification.success(
      trans.__('The session is restarted: its variables are gone.'),
      { autoClose: 4000 }
    );
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    Notification.error(
      trans.__('The session could not be restarted: %1', reason)
    );
  }
  void model.refresh();
}

async function confirmRestart(trans: TranslationBundle): Promise<boolean> {
  const answer = await showDialog({
    title: trans.__('Restart the session?'),
    body: trans.__('Its variables are lost. The sandbox and its files stay.'),
    buttons: [
      Dialog.cancelButton({ label: trans.__('Cancel') }),
      Dialog.warnButton({ label: trans.__('Restart') })
    ],
    defaultButton: 0
  });
  return answer.button.accept;
}
