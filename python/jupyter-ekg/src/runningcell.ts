import type { ICodeCellModel } from '@jupyterlab/cells';
import type * as nbformat from '@jupyterlab/nbformat';
import type { NotebookPanel } from '@jupyterlab/notebook';
import type { KernelMessage } from '@jupyterlab/services';

import { DuplicateFilter } from './duplicates';
import type { IExecution } from './log';
import { displayIdOf, outputOf } from './outputs';

/**
 * A cell whose execution another page started. It is shown as running, and its output is appended as it arrives.
 * JupyterLab itself shows only the executions that its own page started. What an Output widget takes is not the cell's.
 */
export class RunningCell {
  /** Shows the cell as running. `onEnd` is called once, when the execution ends. */
  constructor(
    readonly model: ICodeCellModel,
    private readonly panel: NotebookPanel,
    private readonly execution: IExecution,
    private readonly onEnd: () => void
  ) {
    this.filter = new DuplicateFilter(execution.seen);
    this.takers = [...(execution.takers ?? [])];
    this.captured = execution.untold === true;
    execution.outputs.forEach((output, index) => this.rememberDisplay(output.transient?.display_id, index));
    if (execution.clear_next) {
      model.outputs.clear(true);
    }
    this.showRunning(true);
  }

  /** Applies an iopub message whose parent is the cell's request. Messages that the log already had are ignored. */
  handle(msg: KernelMessage.IIOPubMessage): void {
    if (!this.filter.isNew(msg)) {
      return;
    }
    const { outputs } = this.model;
    const output = outputOf(msg);
    if (this.takers.length > 0 && (output || msg.header.msg_type === 'clear_output')) {
      this.captured = true;
      return;
    }
    if (output) {
      outputs.add(output);
      this.rememberDisplay(displayIdOf(msg), outputs.length - 1);
      return;
    }
    const content = msg.content as Record<string, any>;
    switch (msg.header.msg_type) {
      case 'comm_open':
      case 'comm_msg':
        this.aim(content.comm_id, content.data?.state?.msg_id);
        break;
      case 'clear_output':
        outputs.clear(content.wait);
        if (!content.wait) {
          this.displays.clear();
        }
        break;
      case 'update_display_data':
        this.updateDisplays(displayIdOf(msg), content);
        break;
      case 'status':
        if (content.execution_state === 'idle') {
          this.end();
        }
        break;
    }
  }

  /** Whether Output widgets have taken outputs. The kernel does not know these if no page has told it. */
  captured: boolean;

  /** Shows the cell as finished. */
  end(): void {
    if (!this.model.isDisposed) {
      this.model.executionCount = this.execution.count;
      this.showRunning(false);
    }
    this.onEnd();
  }

  /** Notes whether a widget takes the outputs: the kernel sets its msg_id. Only Output widgets have one. */
  private aim(comm: string, msgId: unknown): void {
    if (typeof msgId !== 'string') {
      return;
    }
    this.takers = this.takers.filter(id => id !== comm);
    if (msgId === this.execution.msg_id) {
      this.takers.push(comm);
    }
  }

  private rememberDisplay(id: string | undefined, index: number): void {
    if (id) {
      this.displays.set(id, [...(this.displays.get(id) ?? []), index]);
    }
  }

  private updateDisplays(id: string | undefined, content: Record<string, any>): void {
    const { outputs } = this.model;
    for (const index of (id && this.displays.get(id)) || []) {
      if (index < outputs.length) {
        const updated = { ...outputs.get(index).toJSON(), data: content.data, metadata: content.metadata };
        outputs.set(index, updated as nbformat.IOutput);
      }
    }
  }

  private showRunning(running: boolean): void {
    // JupyterLab before 4.2 has no executionState, and shows the prompt of the widget only.
    if ('executionState' in this.model) {
      this.model.executionState = running ? 'running' : 'idle';
    }
    // A cell that is scrolled out of view may have no widget yet.
    const widget = this.panel.content.widgets.find(cell => cell.model === this.model);
    const count = this.model.executionCount;
    (widget as { setPrompt?: (text: string) => void } | undefined)?.setPrompt?.(running ? '*' : String(count ?? ''));
  }

  private readonly filter: DuplicateFilter;
  /** The ids of the Output widgets that take the outputs. The last one gets them. */
  private takers: string[];
  /** The indexes of a display's outputs by its display_id. */
  private readonly displays = new Map<string, number[]>();
}
