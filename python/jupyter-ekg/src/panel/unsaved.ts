import type * as nbformat from '@jupyterlab/nbformat';

import type { Executions } from '../log';
import type { IRow } from './rows';

/** What is needed to compare a kernel's log with the file of its notebook. */
export interface ISources {
  /** When the file was saved. */
  modified(path: string): Promise<number>;
  /** The saved notebook. */
  notebook(path: string): Promise<nbformat.INotebookContent>;
  /** The executions in the kernel's log, without outputs. */
  executions(id: string): Promise<Executions>;
}

/** Counts the cells whose output is in a kernel's log and not in the file of its notebook, for closed notebooks. */
export class Unsaved {
  constructor(
    private readonly sources: ISources,
    private readonly changed: () => void
  ) {}

  /** How many cells of the kernel's notebook have output that opening it restores. */
  count(id: string): number {
    return this.counts.get(id)?.cells ?? 0;
  }

  /** Looks at those of these rows whose kernel did something since the last look, one after the other. */
  async check(rows: readonly IRow[]): Promise<void> {
    const ids = new Set(rows.map(row => row.kernel.id));
    for (const id of [...this.counts.keys()].filter(id => !ids.has(id))) {
      this.counts.delete(id);
    }
    if (this.checking) {
      return;
    }
    this.checking = true;
    try {
      for (const { kernel, path } of rows) {
        const activity = kernel.last_activity ?? '';
        if (path === undefined || kernel.execution_state !== 'idle' || this.counts.get(kernel.id)?.activity === activity) {
          continue;
        }
        const cells = await this.compare(kernel.id, path, activity).catch(() => 0); // there may be no such file
        this.counts.set(kernel.id, { activity, cells });
        this.changed();
      }
    } finally {
      this.checking = false;
    }
  }

  private async compare(id: string, path: string, activity: string): Promise<number> {
    if ((await this.sources.modified(path)) >= Date.parse(activity)) {
      return 0;
    }
    return countCells(await this.sources.notebook(path), await this.sources.executions(id));
  }

  private readonly counts = new Map<string, { activity: string; cells: number }>();
  private checking = false;
}

/** Counts the cells that opening the notebook would change: those that ran as they are, after the file was saved. */
export function countCells(notebook: nbformat.INotebookContent, executions: Executions): number {
  return notebook.cells.filter(cell => {
    const execution = executions[String(cell.id)];
    return (
      cell.cell_type === 'code' &&
      execution !== undefined &&
      !execution.beginning_lost &&
      (Array.isArray(cell.source) ? cell.source.join('') : cell.source) === execution.code &&
      cell.execution_count !== execution.count
    );
  }).length;
}
