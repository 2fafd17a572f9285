/** Chats and the account in the palette and the menus; letting a notebook use another chat. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import {
  Dialog,
  InputDialog,
  Notification,
  showDialog
} from '@jupyterlab/apputils';
import type { Kernel } from '@jupyterlab/services';
import type { TranslationBundle } from '@jupyterlab/translation';
import { DisposableSet, type IDisposable } from '@lumino/disposable';
import { type ISignal, Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';

import type { ChatsModel } from './chatsModel';
import type { CurrentNotebook } from './currentNotebook';
import { ivyIcon } from './icons';
import { runLine } from './kernelLine';
import type { SandboxModel } from './model';
import type { IChat } from './protocol';
import type { IChatActions } from './views/chats';

export const ChatCommandIDs = {
  switchChat: 'ivy:switch-chat',
  account: 'ivy:account'
} as const;

export interface IChatCommandOptions {
  readonly app: JupyterFrontEnd;
  readonly chats: ChatsModel;
  readonly current: CurrentNotebook;
  readonly model: SandboxModel;
  readonly trans: TranslationBundle;
  /** The kernelspec whose kernel is ours. */
  readonly kernelName: string;
}

/** What a chat is called by: enough to send a notebook there. */
type Target = Pick<IChat, 'chatId' | 'name' | 'campaignId'>;

/**
 * An id that a line of a magic carries as it is: IPython replaces `$x` and `{x}`, and a quotation
 * mark or a line's end would end the word.
 */
const PLAIN_ID = /^[^\s'"\\${}\p{Cc}-][^\s'"\\${}\p{Cc}]*$/u;

/** Whether an id can be given to `%ivy attach`. */
export function isPlainId(id: string): boolean {
  return PLAIN_ID.test(id);
}

/** What lets the current notebook use other chats, and changes the list of chats. */
export class ChatSwitch implements IChatActions {
  constructor(options: IChatCommandOptions) {
    this._options = options;
  }

  /** Emitted when a switch begins or ends. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** The name of the chat that a notebook is being switched to. */
  get switchingTo(): string | null {
    return this._switchingTo;
  }

  /** Whether the notebook in front has a kernel that can use a chat. */
  get canUse(): boolean {
    return this._kernel() !== null;
  }

  readonly use = (chat: Target): void => {
    void this.switchTo(chat);
  };

  readonly useAnother = (): void => {
    const { trans } = this._options;
    void askForChat(trans, this.canUse).then(async chat => {
      if (chat) {
        await this.switchTo(chat);
      }
    });
  };

  readonly rename = (chat: IChat): void => {
    const { chats, trans } = this._options;
    void InputDialog.getText({
      title: trans.__('Rename the chat'),
      label: trans.__('A name for chat %1', chat.chatId),
      text: chat.name,
      okLabel: trans.__('Rename'),
      cancelLabel: trans.__('Cancel')
    }).then(async ({ button, value }) => {
      const name = value?.trim() ?? '';
      if (button.accept && name !== '' && name !== chat.name) {
        await chats.rename(chat.chatId, name);
      }
    });
  };

  readonly makeDefault = (chat: IChat): void => {
    void this._options.chats.makeDefault(chat.chatId).then(isDone => {
      if (isDone) {
        void this._options.model.refresh();
      }
    });
  };

  readonly forget = (chat: IChat): void => {
    const { chats, trans } = this._options;
    void showDialog({
      title: trans.__('Forget the chat %1?', chat.name),
      body: trans.__(
        'Only this list forgets it. The chat, its sandbox and its files stay as they are.'
      ),
      buttons: [
        Dialog.cancelButton({ label: trans.__('Cancel') }),
        Dialog.warnButton({ label: trans.__('Forget') })
      ],
      defaultButton: 0
    }).then(async ({ button }) => {
      if (button.accept) {
        await chats.forget(chat.chatId);
      }
    });
  };

  /** Let the current notebook's cells run in a chat's sandbox from now on. */
  async switchTo(chat: Target): Promise<void> {
    const { chats, current, model, trans } = this._options;
    const kernel = this._kernel();
    if (kernel === null || this._switchingTo !== null) {
      return;
    }
    const name = current.name;
    this._switchingTo = chat.name;
    this._changed.emit();
    try {
      const loaded = await this._attach(kernel, chat);
      const message =
        kernel.name === this._options.kernelName
          ? trans.__('Cells of %1 now run in chat %2.', name, chat.name)
          : trans.__(
              '%%%%ivy cells of %1 now run in chat %2.',
              name,
              chat.name
            );
      Notification.success(
        loaded
          ? `${message} ${trans.__('“%load_ext ivy_kernel” was run in it first.')}`
          : message,
        { autoClose: 6000 }
      );
    } catch (error) {
      Notification.error(
        trans.__(
          '%1 still runs where it did: %2',
          name,
          error instanceof Error ? error.message : String(error)
        ),
        { autoClose: false }
      );
    } finally {
      this._switchingTo = null;
      this._changed.emit();
    }
    void model.refresh();
    void chats.refresh();
  }

  /** The kernel of the notebook in front, if it runs Python. */
  private _kernel(): Kernel.IKernelConnection | null {
    const { app, current } = this._options;
    const kernel = current.kernel;
    if (!kernel || kernel.status === 'dead') {
      return null;
    }
    const specs = app.serviceManager.kernelspecs.specs?.kernelspecs;
    const language = specs?.[kernel.name]?.language ?? '';
    return /python/i.test(language) ? kernel : null;
  }

  /** Attach a kernel to a chat; tell whether our extension had to be loaded for it. */
  private async _attach(
    kernel: Kernel.IKernelConnection,
    chat: Target
  ): Promise<boolean> {
    const { kernelName, trans } = this._options;
    for (const id of [chat.chatId, chat.campaignId ?? 'none']) {
      if (!isPlainId(id)) {
        throw new Error(
          trans.__(
            'the id “%1” has a space, a quotation mark or a sign that %ivy attach cannot take; check it.',
            id
          )
        );
      }
    }
    let loaded = false;
    if (kernel.name !== kernelName && !(await hasMagic(kernel))) {
      await runLine(kernel, '%load_ext ivy_kernel', trans);
      loaded = true;
    }
    const campaign =
      chat.campaignId === null ? '' : ` --campaign ${chat.campaignId}`;
    await runLine(kernel, `%ivy attach ${chat.chatId}${campaign}`, trans);
    return loaded;
  }

  private readonly _options: IChatCommandOptions;
  private readonly _changed = new Signal<this, void>(this);
  private _switchingTo: string | null = null;
}

/** Add the commands; disposing of the result removes them. */
export function addChatCommands(
  options: IChatCommandOptions,
  chatSwitch: ChatSwitch,
  panel: { openChats(): void; openAccount(): void },
  openPanel: () => void
): IDisposable {
  const { app, chats, trans } = options;
  const { commands } = app;
  const added = new DisposableSet();
  added.add(
    commands.addCommand(ChatCommandIDs.switchChat, {
      label: trans.__('Switch Ivy Chat…'),
      caption: trans.__(
        'Let the current notebook run its cells in the sandbox of another chat'
      ),
      icon: ivyIcon,
      describedBy: {
        args: {
          type: 'object',
          properties: {
            chatId: {
              type: 'string',
              description: trans.__(
                'The chat; without it the panel shows a list to pick from'
              )
            },
            campaignId: {
              type: 'string',
              description: trans.__('The campaign of the chat')
            }
          }
        }
      },
      execute: async args => {
        const { chatId, campaignId } = args;
        if (typeof chatId !== 'string') {
          panel.openChats();
          openPanel();
          return;
        }
        const known = chats.chats.find(one => one.chatId === chatId);
        await chatSwitch.switchTo({
          chatId,
          name: known?.name ?? chatId,
          campaignId:
            typeof campaignId === 'string'
              ? campaignId
              : (known?.campaignId ?? null)
        });
      }
    })
  );
  added.add(
    commands.addCommand(ChatCommandIDs.account, {
      label: trans.__('Ivy Account…'),
      caption: trans.__('Key, chat and campaign that notebooks use'),
      icon: ivyIcon,
      describedBy: { args: { type: 'object', properties: {} } },
      execute: () => {
        panel.openAccount();
        openPanel();
      }
    })
  );
  return added;
}

/** Whether a Python kernel has the magic `%ivy`; nothing is shown or counted. */
async function hasMagic(kernel: Kernel.IKernelConnection): Promise<boolean> {
  const future = kernel.requestExecute({
    code: '',
    silent: true,
    store_history: false,
    allow_stdin: false,
    user_expressions: {
      loaded: "'ivy' in get_ipython().magics_manager.magics['line']"
    }
  });
  const { content } = await future.done;
  if (content.status !== 'ok') {
    return false;
  }
  const value = content.user_expressions['loaded'] as {
    data?: Record<string, unknown>;
  };
  return value.data?.['text/plain'] === 'True';
}

/** The body of the dialog that asks for a chat that is not in the list. */
class AnotherChat extends Widget implements Dialog.IBodyWidget<Target> {
  constructor(trans: TranslationBundle) {
    super();
    this.addClass('jp-ivy-another-chat');
    this._chat = this._input(trans.__('Chat id'));
    this._campaign = this._input(trans.__('Campaign id (optional)'));
  }

  getValue(): Target {
    const chatId = this._chat.value.trim();
    const campaignId = this._campaign.value.trim() || null;
    return { chatId, name: chatId, campaignId };
  }

  private _input(label: string): HTMLInputElement {
    const field = document.createElement('label');
    const input = document.createElement('input');
    input.className = 'jp-mod-styled';
    input.autocomplete = 'off';
    input.spellcheck = false;
    field.append(label, input);
    this.node.append(field);
    return input;
  }

  private readonly _chat: HTMLInputElement;
  private readonly _campaign: HTMLInputElement;
}

async function askForChat(
  trans: TranslationBundle,
  canUse: boolean
): Promise<Target | null> {
  if (!canUse) {
    await showDialog({
      title: trans.__('No notebook'),
      body: trans.__(
        'Open a Python notebook first: this lets it use another chat.'
      ),
      buttons: [Dialog.okButton()]
    });
    return null;
  }
  const { button, value } = await showDialog({
    title: trans.__('Use another chat in this notebook'),
    body: new AnotherChat(trans),
    buttons: [
      Dialog.cancelButton({ label: trans.__('Cancel') }),
      Dialog.okButton({ label: trans.__('Use') })
    ],
    focusNodeSelector: 'input'
  });
  return button.accept && value && value.chatId !== '' ? value : null;
}
