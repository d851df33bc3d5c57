import type { CodeCell, ICodeCellModel } from '@jupyterlab/cells';
import type { NotebookPanel } from '@jupyterlab/notebook';
import type { Kernel, KernelMessage } from '@jupyterlab/services';

import { DuplicateFilter } from './duplicates';

/** Bound on the prompts that are kept for cells that are not followed yet. */
export const MAX_WAITING = 64;

interface IDisposable {
  dispose(): void;
}

/** The part of an OutputArea that shows a prompt, and the only part of the future that the prompt uses. */
interface IPromptArea {
  onInputRequest(msg: KernelMessage.IInputRequestMsg, future: Pick<Kernel.IShellFuture, 'sendInputReply'>): void;
  readonly widgets: readonly IDisposable[];
}

/** JupyterLab's future of a request that this page sent. */
type CellFuture = CodeCell['outputArea']['future'];

/** The prompt of one request. */
interface IPrompt {
  msg: KernelMessage.IInputRequestMsg;
  /** What the cell shows; undefined before that. */
  shown?: IDisposable | undefined;
}

/**
 * Shows the prompts of input() in cells that another page started: the server offers a waiting prompt to each new page.
 * Hides prompts that the server repeats from cells that this page started.
 */
export class Prompts {
  constructor(private readonly panel: NotebookPanel) {}

  /** Shows the prompts of a kernel from now on. Must be called before messages of the kernel arrive. */
  attach(kernel: Kernel.IKernelConnection): void {
    this.detach();
    this.kernel = kernel;
    kernel.anyMessage.connect(this.onMessage, this);
  }

  /** Forgets all prompts and the kernel. */
  detach(): void {
    this.kernel?.anyMessage.disconnect(this.onMessage, this);
    for (const id of [...this.prompts.keys()]) {
      this.remove(id);
    }
    this.followed.clear();
    this.kernel = null;
  }

  /** Shows the prompts of a request in the cell, until end is called. */
  follow(id: string, model: ICodeCellModel): void {
    this.followed.set(id, model);
    this.show(id);
  }

  /** Removes the prompt of a request. */
  end(id: string): void {
    this.followed.delete(id);
    this.remove(id);
  }

  private onMessage(_: unknown, { msg, direction }: Kernel.IAnyMessageArgs): void {
    const parent = (msg.parent_header as Partial<KernelMessage.IHeader>).msg_id;
    if (direction !== 'recv' || !parent) {
      return;
    }
    if (msg.header.msg_type === 'input_request') {
      this.onPrompt(parent, msg as KernelMessage.IInputRequestMsg);
    } else if ((msg.content as { execution_state?: string }).execution_state === 'idle') {
      this.remove(parent);
    }
  }

  private onPrompt(parent: string, msg: KernelMessage.IInputRequestMsg): void {
    const own = this.codeCells().find(cell => cell.outputArea.future?.msg.header.msg_id === parent);
    if (own) {
      this.hideRepeated(own.outputArea.future);
      return;
    }
    if (this.prompts.get(parent)?.msg.header.msg_id === msg.header.msg_id) {
      return;
    }
    this.remove(parent); // it was answered in another page
    this.prompts.set(parent, { msg });
    if (this.prompts.size > MAX_WAITING) {
      this.remove(this.prompts.keys().next().value!);
    }
    this.show(parent);
  }

  /** Makes the future of a cell pass on each prompt once. JupyterLab would show a second one below the first. */
  private hideRepeated(future: CellFuture): void {
    if (this.filtered.has(future)) {
      return;
    }
    this.filtered.add(future);
    const filter = new DuplicateFilter();
    const { onStdin } = future;
    future.onStdin = msg => (filter.isNew(msg) ? onStdin(msg) : undefined);
  }

  private show(id: string): void {
    const prompt = this.prompts.get(id);
    const model = this.followed.get(id);
    const kernel = this.kernel;
    const cell = model && this.codeCells().find(widget => widget.model === model);
    if (!prompt || prompt.shown || !cell || !kernel) {
      return;
    }
    const area = cell.outputArea as unknown as IPromptArea;
    area.onInputRequest(prompt.msg, {
      sendInputReply: (content, parent) => kernel.sendInputReply(content, parent)
    });
    prompt.shown = area.widgets.at(-1);
    kernel.hasPendingInput = true; // JupyterLab then warns before it runs another cell
  }

  private remove(id: string): void {
    const prompt = this.prompts.get(id);
    if (prompt?.shown && this.kernel && !this.kernel.isDisposed) {
      this.kernel.hasPendingInput = false;
    }
    prompt?.shown?.dispose();
    this.prompts.delete(id);
  }

  private codeCells(): CodeCell[] {
    return this.panel.content.widgets.filter((cell): cell is CodeCell => 'outputArea' in cell);
  }

  private kernel: Kernel.IKernelConnection | null = null;
  /** By the msg_id of the request that asks. */
  private readonly prompts = new Map<string, IPrompt>();
  /** The cells that are followed, by the msg_id of their request. */
  private readonly followed = new Map<string, ICodeCellModel>();
  private readonly filtered = new WeakSet<CellFuture>();
}
