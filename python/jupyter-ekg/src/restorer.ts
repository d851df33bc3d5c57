import type { ISessionContext } from '@jupyterlab/apputils';
import type { Cell, ICellModel, ICodeCellModel } from '@jupyterlab/cells';
import type * as nbformat from '@jupyterlab/nbformat';
import type { NotebookPanel } from '@jupyterlab/notebook';
import type { Kernel, KernelMessage } from '@jupyterlab/services';
import type { ISignal } from '@lumino/signaling';

import { hideDuplicates } from './duplicates';
import { type Executions, type IExecution, beginOf, reasonToKeep } from './log';
import { canonical, withoutTransient } from './outputs';
import { Prompts } from './prompts';
import { Problem } from './request';
import { RunningCell } from './runningcell';
import { tellWidgets } from './widgets';

/** Bound on the messages that are held back while the log is read. */
export const MAX_HELD = 100_000;

/** The states in which no execution of the kernel is running any more. */
const ENDED_STATES: readonly string[] = ['starting', 'restarting', 'autorestarting', 'terminating', 'dead'];

/** The session of a job's requests: the id of the job, and the number of its attempt. */
const JOB_SESSION = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-\d+$/;

/**
 * Restores the outputs of one notebook from its kernel's log, when the notebook is opened and on request. Cells that
 * another page started and that are still running are followed until they end.
 */
export class Restorer {
  constructor(
    private readonly panel: NotebookPanel,
    private readonly options: Restorer.IOptions
  ) {
    this.prompts = new Prompts(panel);
    const context = panel.sessionContext;
    this.attach(context.session?.kernel);
    context.kernelChanged.connect(this.onKernelChanged, this);
    context.iopubMessage.connect(this.onMessage, this);
    context.statusChanged.connect(this.onStatusChanged, this);
    options.executionScheduled?.connect(this.onScheduled, this);
    panel.disposed.connect(this.dispose, this);
    void panel.context.ready.then(() => context.ready).then(() => this.restoreOnce());
  }

  /**
   * Updates the cells from the log: those that were executed while the notebook was closed, or all. Readings run one
   * after the other. Rejects if the log cannot be read.
   */
  restore(all: boolean): Promise<IRestored> {
    this.held ??= [];
    this.readings++;
    const reading = this.lastReading
      .then(() => this.read(all))
      .finally(() => {
        this.readings--;
        if (this.readings === 0) {
          this.held = null;
        }
      });
    this.lastReading = reading.catch(() => undefined);
    return reading;
  }

  private dispose(): void {
    const context = this.panel.sessionContext;
    context.kernelChanged.disconnect(this.onKernelChanged, this);
    context.iopubMessage.disconnect(this.onMessage, this);
    context.statusChanged.disconnect(this.onStatusChanged, this);
    this.options.executionScheduled?.disconnect(this.onScheduled, this);
    this.running.clear();
    this.prompts.detach();
  }

  private get kernel(): Kernel.IKernelConnection | null {
    return this.panel.isDisposed ? null : (this.panel.sessionContext.session?.kernel ?? null);
  }

  private attach(kernel: Kernel.IKernelConnection | null | undefined): void {
    if (kernel && kernel !== this.attached) {
      this.attached = kernel;
      hideDuplicates(kernel);
      this.prompts.attach(kernel);
    }
  }

  private onKernelChanged(_: ISessionContext, { newValue }: { newValue: Kernel.IKernelConnection | null }): void {
    this.attach(newValue);
    this.endAll();
    this.followedSessions.clear();
    void this.restoreOnce();
  }

  private onStatusChanged(_: ISessionContext, status: Kernel.Status): void {
    if (ENDED_STATES.includes(status)) {
      this.endAll();
    }
  }

  /** Leaves a cell to JupyterLab when this page executes it. */
  private onScheduled(_: unknown, { cell }: { cell: Cell }): void {
    for (const [id, running] of this.running) {
      if (running.model === cell.model) {
        this.running.delete(id);
        this.prompts.end(id);
      }
    }
  }

  private onMessage(_: ISessionContext, message: KernelMessage.IMessage): void {
    const msg = message as KernelMessage.IIOPubMessage; // the signal's type is wider than its messages
    const parent = msg.parent_header as Partial<KernelMessage.IHeader>;
    if (!parent.msg_id) {
      return;
    }
    const cell = this.running.get(parent.msg_id);
    if (cell) {
      cell.handle(msg);
      return;
    }
    // A page that was closed, or a job, may have sent several requests. The next one starts now; the log did not have it
    // before.
    const session = parent.session ?? '';
    if (isExecutionStart(msg) && (this.followedSessions.has(session) || JOB_SESSION.test(session))) {
      void this.restore(false).catch(warn);
    }
    if (this.held && this.held.length < MAX_HELD) {
      this.held.push(msg);
    }
  }

  private endAll(): void {
    for (const cell of [...this.running.values()]) {
      cell.end();
    }
  }

  /** Restores from the log of the present kernel, unless that was done before. */
  private async restoreOnce(): Promise<void> {
    const kernel = this.kernel;
    if (!kernel || kernel.id === this.restoredKernel || !this.panel.content.model) {
      return;
    }
    this.restoredKernel = kernel.id;
    try {
      // The kernel's info arrives by the websocket. Later messages therefore arrive here, and the log, read
      // afterwards, contains all earlier ones.
      await kernel.info;
      await this.restore(false);
    } catch (error) {
      warn(error);
    }
  }

  private async read(all: boolean): Promise<IRestored> {
    const kernel = this.kernel;
    if (!kernel) {
      throw new Problem('The notebook has no kernel.');
    }
    let executions = await this.options.fetchExecutions(kernel.id);
    if (await tellWidgets(kernel, executions, this.told)) {
      executions = await this.options.fetchExecutions(kernel.id);
    }
    const model = this.panel.content.model;
    if (this.kernel?.id !== kernel.id || !model) {
      return { changed: 0, kept: [] };
    }
    const restored: IRestored = { changed: 0, kept: [] };
    for (let i = 0; i < model.cells.length; i++) {
      const cell = model.cells.get(i);
      const execution = executions[cell.id];
      if (!isCode(cell) || !execution || this.isOfPage(cell, execution, kernel)) {
        continue;
      }
      const source = cell.sharedModel.getSource();
      const began = beginOf(cell.sharedModel.getMetadata());
      const why = reasonToKeep(execution, source, cell.executionCount, cell.outputs.toJSON(), began);
      if (why) {
        if (differs(cell, execution)) {
          restored.kept.push(`cell ${i + 1}: ${why}`);
        }
      } else if ((all || isNewer(cell, execution)) && this.apply(cell, execution)) {
        restored.changed++;
      }
    }
    return restored;
  }

  /** Whether the page shows the execution already: JupyterLab shows those of its own page. */
  private isOfPage(model: ICodeCellModel, execution: IExecution, kernel: Kernel.IKernelConnection): boolean {
    return (
      this.running.has(execution.msg_id) ||
      (execution.running && execution.session === kernel.clientId) ||
      model.executionState === 'running'
    );
  }

  /** Puts an execution into its cell, and follows it if it is running. Returns whether the cell changed. */
  private apply(model: ICodeCellModel, execution: IExecution): boolean {
    const changed = differs(model, execution);
    if (changed || execution.running) {
      // JupyterLab runs the scripts of trusted outputs only. It trusts a cell that the user executes in this page. A
      // running cell gets more outputs.
      model.trusted = execution.trusted === true;
    }
    if (changed) {
      model.outputs.fromJSON(execution.outputs.map(withoutTransient) as nbformat.IOutput[]);
      model.executionCount = execution.running ? null : execution.count;
    }
    if (execution.running) {
      this.follow(model, execution);
    }
    return changed;
  }

  private follow(model: ICodeCellModel, execution: IExecution): void {
    const id = execution.msg_id;
    const cell = new RunningCell(model, this.panel, execution, () => {
      this.running.delete(id);
      this.prompts.end(id);
      if (cell.captured && !this.panel.isDisposed) {
        void this.restore(false).catch(warn); // what no page has told the widget's kernel is shown with the cell
      }
    });
    this.running.set(id, cell);
    this.followedSessions.add(execution.session);
    for (const msg of this.held ?? []) {
      if ((msg.parent_header as KernelMessage.IHeader).msg_id === id && this.running.has(id)) {
        cell.handle(msg);
      }
    }
    if (this.running.has(id)) {
      this.prompts.follow(id, model);
    }
  }

  private readonly prompts: Prompts;
  /** The followed cells by the msg_id of their request. */
  private readonly running = new Map<string, RunningCell>();
  /** The msg_ids of the executions of which the kernel was told what Output widgets have taken. */
  private readonly told = new Set<string>();
  /** The sessions of closed pages that left running cells. */
  private readonly followedSessions = new Set<string>();
  /** Messages of unknown requests that arrived during a reading; null while the log is not read. */
  private held: KernelMessage.IIOPubMessage[] | null = null;
  /** The number of readings that run or wait. */
  private readings = 0;
  /** Resolves when the last of the readings has ended. */
  private lastReading: Promise<unknown> = Promise.resolve();
  /** The id of the kernel whose log was read on opening. */
  private restoredKernel: string | null = null;
  private attached: Kernel.IKernelConnection | null = null;
}

export namespace Restorer {
  export interface IOptions {
    /** Reads the executions in a kernel's log. */
    fetchExecutions: (kernelId: string) => Promise<Executions>;
    /** Is emitted when this page executes a cell. */
    executionScheduled?: ISignal<any, { cell: Cell }> | undefined;
  }
}

/** What a reading has done. */
export interface IRestored {
  /** The number of changed cells. */
  changed: number;
  /** The cells that keep other outputs than the log has, with the reasons. */
  kept: string[];
}

/** Whether an execution is later than what the cell has, or has more of the same. */
function isNewer(model: ICodeCellModel, execution: IExecution): boolean {
  const hasMore = canonical(model.outputs.toJSON()).length < canonical(execution.outputs).length;
  return execution.running || model.executionCount !== execution.count || hasMore;
}

function differs(model: ICodeCellModel, execution: IExecution): boolean {
  return (
    model.executionCount !== execution.count || canonical(model.outputs.toJSON()) !== canonical(execution.outputs)
  );
}

function isCode(model: ICellModel): model is ICodeCellModel {
  return model.type === 'code';
}

function isExecutionStart(msg: KernelMessage.IIOPubMessage): boolean {
  const parent = msg.parent_header as Partial<KernelMessage.IHeader>;
  return (
    msg.header.msg_type === 'status' &&
    (msg.content as { execution_state?: string }).execution_state === 'busy' &&
    parent.msg_type === 'execute_request'
  );
}

/** Logs an error of a restoration that no user asked for. The notebook stays as it was saved. */
function warn(error: unknown): void {
  console.warn(`jupyter-ekg: ${error instanceof Error ? error.message : error}`);
}
