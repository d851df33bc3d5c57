// Stand-ins for the parts of JupyterLab that the extension uses. The real parts need a browser; the end to end tests
// run the extension in one.
import type { ICodeCellModel } from '@jupyterlab/cells';
import type { NotebookPanel } from '@jupyterlab/notebook';
import type { KernelMessage } from '@jupyterlab/services';

import type { IExecution } from '../log';

export class FakeSignal<T> {
  connect(slot: (sender: any, args: T) => void, context?: unknown): void {
    this.slots.push({ slot, context });
  }

  disconnect(slot: (sender: any, args: T) => void): void {
    this.slots = this.slots.filter(s => s.slot !== slot);
  }

  emit(args: T): void {
    for (const { slot, context } of [...this.slots]) {
      slot.call(context, undefined, args);
    }
  }

  get connected(): number {
    return this.slots.length;
  }

  private slots: { slot: (sender: any, args: T) => void; context: unknown }[] = [];
}

export class FakeOutputs {
  constructor(public list: any[] = []) {}

  get length(): number {
    return this.list.length;
  }

  add(output: any): void {
    if (this.clearNext) {
      this.list = [];
      this.clearNext = false;
    }
    this.list.push(output);
  }

  get(index: number): any {
    return { toJSON: () => this.list[index] };
  }

  set(index: number, output: any): void {
    this.list[index] = output;
  }

  clear(wait = false): void {
    this.clearNext = wait;
    if (!wait) {
      this.list = [];
    }
  }

  fromJSON(outputs: any[]): void {
    this.list = [...outputs];
  }

  toJSON(): any[] {
    return this.list;
  }

  private clearNext = false;
}

export class FakeCell {
  constructor(
    readonly id: string,
    readonly source: string,
    outputs: any[] = [],
    public executionCount: number | null = null
  ) {
    this.outputs = new FakeOutputs(outputs);
  }

  readonly type = 'code';
  readonly outputs: FakeOutputs;
  executionState = 'idle';
  trusted = false;
  isDisposed = false;
  metadata: Record<string, unknown> = {};
  readonly sharedModel = { getSource: () => this.source, getMetadata: () => this.metadata };

  /** The text of all streams. */
  get text(): string {
    return this.outputs.list.map(output => output.text ?? '').join('');
  }

  get model(): ICodeCellModel {
    return this as unknown as ICodeCellModel;
  }
}

export class FakeKernel {
  constructor(readonly id = 'k1') {}

  readonly clientId = 'this-page';
  readonly info = Promise.resolve({});
  readonly anyMessage = new FakeSignal<{ msg: KernelMessage.IMessage; direction: 'send' | 'recv' }>();
  readonly hooks = new Map<string, (msg: any) => boolean>();
  isDisposed = false;
  /** The messages that were sent. */
  readonly sent: any[] = [];
  /** What the kernel does with a message. */
  onMessage: (msg: any) => void = () => {};

  registerMessageHook(id: string, hook: (msg: any) => boolean): void {
    this.hooks.set(id, hook);
  }

  sendShellMessage(msg: any): { done: Promise<void> } {
    this.sent.push(msg);
    this.onMessage(msg);
    return { done: Promise.resolve() };
  }
}

export class FakePanel {
  constructor(
    readonly cells: FakeCell[],
    kernel: FakeKernel | null = new FakeKernel()
  ) {
    this.sessionContext.session = kernel && { kernel };
    this.prompts = cells.map(() => '');
    this.content = {
      model: { cells: { length: cells.length, get: (i: number) => cells[i] } },
      widgets: cells.map((model, i) => ({ model, setPrompt: (text: string) => (this.prompts[i] = text) }))
    };
  }

  readonly content: any;
  /** The prompts that were set on the cells' widgets. */
  readonly prompts: string[];
  readonly context = { ready: Promise.resolve() };
  readonly disposed = new FakeSignal<void>();
  isDisposed = false;
  readonly sessionContext = {
    session: null as { kernel: FakeKernel } | null,
    ready: Promise.resolve(),
    kernelChanged: new FakeSignal<any>(),
    iopubMessage: new FakeSignal<any>(),
    statusChanged: new FakeSignal<string>()
  };

  get panel(): NotebookPanel {
    return this as unknown as NotebookPanel;
  }
}

let messages = 0;

/** An iopub message with a msg_id of its own. */
export function iopub(type: string, content: object, parent: string, session = 'other-page'): any {
  return {
    header: { msg_id: `m${++messages}`, msg_type: type },
    parent_header: { msg_id: parent, msg_type: 'execute_request', session },
    content
  };
}

export const stream = (text: string, parent: string) => iopub('stream', { name: 'stdout', text }, parent);
export const status = (state: string, parent: string, session?: string) =>
  iopub('status', { execution_state: state }, parent, session);

/** A finished execution of `code` that printed the text. */
export function execution(code: string, text: string, more: Partial<IExecution> = {}): IExecution {
  return {
    msg_id: 'r1',
    session: 'other-page',
    code,
    count: 7,
    counts: [7],
    running: false,
    lost: 0,
    beginning_lost: false,
    clear_next: false,
    outputs: text ? [{ output_type: 'stream', name: 'stdout', text }] : [],
    trusted: true,
    seen: [],
    ...more
  };
}

/** Lets all promises that are resolved already run their continuations. */
export function settled(): Promise<void> {
  return new Promise(resolve => setImmediate(resolve));
}
