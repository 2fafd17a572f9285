/** Runs a line of ours in a kernel, beside the notebook's cells. */

import { type Kernel, KernelMessage } from '@jupyterlab/services';
import type { TranslationBundle } from '@jupyterlab/translation';

/** What a line has shown. */
export interface ILineOutput {
  /** What it has printed or displayed, as text. */
  readonly text: string;
  /** What it has displayed, by MIME type. */
  readonly displays: readonly Readonly<Record<string, unknown>>[];
}

/** Run a line in no cell; rejects with the line's own error. */
export async function runLine(
  kernel: Kernel.IKernelConnection,
  code: string,
  trans: TranslationBundle
): Promise<ILineOutput> {
  const future = kernel.requestExecute({
    code,
    silent: false,
    store_history: false,
    allow_stdin: false
  });
  let text = '';
  const displays: Record<string, unknown>[] = [];
  future.onIOPub = (message: KernelMessage.IIOPubMessage): void => {
    if (KernelMessage.isStreamMsg(message)) {
      text += message.content.text;
    } else if (KernelMessage.isDisplayDataMsg(message)) {
      const { data } = message.content;
      displays.push(data);
      const words: unknown = data['text/plain'];
      text += typeof words === 'string' ? `${words}\n` : '';
    }
  };
  const { content } = await future.done;
  if (content.status === 'error') {
    // IPython prints some errors of magics instead of naming them in the reply.
    throw new Error(content.evalue || text.trim() || content.ename);
  }
  if (content.status !== 'ok') {
    throw new Error(
      trans.__('a cell that failed before it kept it from running; try again.')
    );
  }
  return { text: text.trim(), displays };
}
