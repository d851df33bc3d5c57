import { type Kernel, KernelMessage } from '@jupyterlab/services';

import type { Executions } from './log';

/** How long a page waits until the kernel has read what widgets have taken, in ms. A kernel that computes reads nothing. */
const PATIENCE = 5000;

/**
 * Tells the kernel what Output widgets took while no page was open, so that the widgets show it. `known` has the msg_ids
 * of the executions of which that was done before. Returns whether the kernel was told anything. Outputs that are not
 * trusted are not told, since JupyterLab trusts what widgets show.
 */
export async function tellWidgets(
  kernel: Kernel.IKernelConnection,
  executions: Executions,
  known: Set<string>
): Promise<boolean> {
  const sent: Promise<unknown>[] = [];
  for (const { msg_id, trusted, widgets = {} } of Object.values(executions)) {
    if (trusted !== true || known.has(msg_id)) {
      continue;
    }
    for (const [comm_id, outputs] of Object.entries(widgets)) {
      known.add(msg_id);
      const message = KernelMessage.createMessage({
        msgType: 'comm_msg',
        channel: 'shell',
        session: kernel.clientId,
        username: kernel.username,
        content: { comm_id, data: { method: 'update', state: { outputs }, buffer_paths: [] } as any }
      });
      sent.push(kernel.sendShellMessage(message, false).done);
    }
  }
  if (sent.length === 0) {
    return false;
  }
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise(resolve => {
    timer = setTimeout(resolve, PATIENCE);
  });
  await Promise.race([Promise.allSettled(sent), late]);
  clearTimeout(timer);
  return true;
}
