import type { Kernel, KernelMessage } from '@jupyterlab/services';

/**
 * Bound on the remembered messages of one cell. The server repeats at most 4 MiB of unacknowledged messages, which is
 * fewer messages than this.
 */
export const MAX_REMEMBERED = 20_000;

/**
 * Recognizes repeated messages of one cell by their msg_id. The server resends what the browser had not acknowledged
 * when its websocket broke.
 */
export class DuplicateFilter {
  constructor(ids: readonly string[] = []) {
    this.ids = new Set(ids);
    this.order = [...this.ids];
  }

  /** Remembers the message and reports whether it is new. */
  isNew(msg: KernelMessage.IMessage): boolean {
    const id = msg.header.msg_id;
    if (this.ids.has(id)) {
      return false;
    }
    this.ids.add(id);
    if (this.order.length < MAX_REMEMBERED) {
      this.order.push(id);
      return true;
    }
    this.ids.delete(this.order[this.oldest]!);
    this.order[this.oldest] = id;
    this.oldest = (this.oldest + 1) % this.order.length;
    return true;
  }

  private readonly ids: Set<string>;
  /** The ids in the order of arrival, as a ring. A Set skips all its deleted elements to find the oldest one. */
  private readonly order: string[];
  /** The index of the oldest id when the ring is full. */
  private oldest = 0;
}

/** Hides repeated messages from the cells that this page executes over the kernel connection. */
export function hideDuplicates(kernel: Kernel.IKernelConnection): void {
  kernel.anyMessage.connect((_, { msg, direction }) => {
    if (direction !== 'send' || msg.header.msg_type !== 'execute_request') {
      return;
    }
    const filter = new DuplicateFilter();
    // A hook needs JupyterLab's future for the request, which JupyterLab creates right after this signal.
    queueMicrotask(() => {
      if (!kernel.isDisposed) {
        kernel.registerMessageHook(msg.header.msg_id, reply => filter.isNew(reply));
      }
    });
  });
}
