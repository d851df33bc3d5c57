import type * as nbformat from '@jupyterlab/nbformat';

import { beginOf, type Executions, reasonToKeep } from '../log';
import type { IKernelModel } from './kernels';
import type { IRow } from './rows';

/** What is needed to compare a kernel's log with the file of its notebook. */
export interface ISources {
  /** When the file was saved, in ms since 1970; undefined if there is no such file. */
  modified(path: string): Promise<number | undefined>;
  /** The saved notebook. */
  notebook(path: string): Promise<nbformat.INotebookContent>;
  /** The executions in the kernel's log, without outputs. */
  executions(id: string): Promise<Executions>;
}

/** What is known about a kernel's notebook. */
interface ICount {
  path: string;
  /** What was compared: the kernel's last activity and the time of the file. Empty before the first comparison. */
  compared: string;
  cells: number;
  /** How many comparisons have failed since the last one that did not. */
  failures: number;
  /** How many looks are left out before the next comparison. */
  skip: number;
}

/** Bound on the looks that are left out after failures. */
const MOST_SKIPPED = 32;

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

  /**
   * Looks at these rows, one after the other. A log is read again if its kernel did something since, or if the file
   * was saved. A comparison that fails changes no count, and is repeated after growing pauses.
   */
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
        if (path !== undefined && kernel.execution_state === 'idle') {
          await this.look(kernel, path);
        }
      }
    } finally {
      this.checking = false;
    }
  }

  private async look({ id, last_activity = '' }: IKernelModel, path: string): Promise<void> {
    const known = this.counts.get(id);
    const count = known?.path === path ? known : { path, compared: '', cells: 0, failures: 0, skip: 0 };
    this.counts.set(id, count);
    if (count.skip > 0) {
      count.skip--;
      return;
    }
    const before = known?.cells ?? 0;
    try {
      const modified = await this.sources.modified(path);
      const compared = `${last_activity} ${modified}`;
      if (count.compared !== compared) {
        count.cells = await this.compare(id, path, last_activity, modified);
        count.compared = compared;
      }
      count.failures = 0;
    } catch {
      count.skip = Math.min(2 ** count.failures++, MOST_SKIPPED);
    }
    if (count.cells !== before) {
      this.changed();
    }
  }

  private async compare(id: string, path: string, activity: string, modified: number | undefined): Promise<number> {
    if (modified === undefined || modified >= Date.parse(activity)) {
      return 0;
    }
    return countCells(await this.sources.notebook(path), await this.sources.executions(id));
  }

  private readonly counts = new Map<string, ICount>();
  private checking = false;
}

/** Counts the cells that opening the notebook would change. */
export function countCells(notebook: nbformat.INotebookContent, executions: Executions): number {
  return notebook.cells.filter(cell => {
    const execution = executions[String(cell.id)];
    if (cell.cell_type !== 'code' || execution === undefined) {
      return false;
    }
    const source = Array.isArray(cell.source) ? cell.source.join('') : cell.source;
    const { execution_count: count, outputs } = cell as nbformat.ICodeCell;
    return count !== execution.count && !reasonToKeep(execution, source, count, outputs, beginOf(cell.metadata));
  }).length;
}
