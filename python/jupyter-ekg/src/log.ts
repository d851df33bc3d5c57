import type * as nbformat from '@jupyterlab/nbformat';

import type { LoggedOutput } from './outputs';
import { request } from './request';
import { couldHave } from './samerun';

/** The longest time between what two clients note of the beginning of one run, in s. */
const SAME = 1;

/** The newest execution of one cell in the kernel's log, in the JSON of the server's `outputs` route. */
export interface IExecution {
  /** The msg_id of the execute_request. */
  msg_id: string;
  /** The session of the page or program that sent the request. */
  session: string;
  /** The executed source; null if the log has lost the beginning of the execution. */
  code: string | null;
  /** The execution count. */
  count: number | null;
  /** The counts of this and of earlier runs of the source in the kernel's session. An older server has none. */
  counts?: number[] | undefined;
  /** When these runs began, in s since 1970, as far as the kernel says that. An older server has none. */
  begins?: number[] | undefined;
  /**
   * Whether the outputs may have been others at some time, or were left out. Then the outputs of a cell prove nothing.
   * An older server does not say it.
   */
  rewritten?: boolean | undefined;
  running: boolean;
  /** How many messages of the execution the log has lost. */
  lost: number;
  /** Whether the log has lost the beginning of the execution. */
  beginning_lost: boolean;
  /** Whether the next output replaces all outputs: `clear_output(wait=True)` was called. */
  clear_next: boolean;
  /** The ids of the Output widgets that take the run's outputs, the last one gets them. An older server has none. */
  takers?: string[] | undefined;
  /** Whether such a widget has outputs of the running execution that no page has told the kernel. */
  untold?: boolean | undefined;
  /** After the run, the outputs of these widgets by their comms, if the log has them all. They are in `outputs`, too. */
  widgets?: Record<string, nbformat.IOutput[]> | undefined;
  outputs: LoggedOutput[];
  /** Whether only this server's user can have caused the outputs. Absent in the JSON of an older server. */
  trusted?: boolean | undefined;
  /** The msg_ids that `outputs` contains; empty unless the execution is running. */
  seen: string[];
}

/** Executions by cell id. */
export type Executions = Record<string, IExecution>;

/**
 * Reads the executions in the log of a kernel; with `summary` without their outputs. Rejects with the server's sentence
 * if the log cannot be read.
 */
export async function fetchExecutions(kernelId: string, summary = false): Promise<Executions> {
  const response = await request(['kernels', kernelId, 'outputs'], {}, summary ? '?summary=1' : '');
  return (await response.json()).cells;
}

/**
 * Why a cell keeps its outputs; undefined if the execution can replace them. It can if it is the cell's run, or a later
 * one in the kernel's same session, and the log has it without a gap. A run that goes on is later than a file's. `began`
 * is when the cell's run began, in s, if the cell says that. Else the runs of two sessions are told apart by their
 * numbers, and by the cell's outputs: the execution must have had them.
 */
export function reasonToKeep(
  execution: IExecution,
  source: string,
  present: number | null,
  saved: readonly nbformat.IOutput[],
  began?: number
): string | undefined {
  const { code, count, counts = count === null ? [] : [count], begins = [], lost, beginning_lost } = execution;
  if (code !== null && source !== code) {
    return 'its source was changed since it ran';
  }
  if (saved.length === 0 && present === null) {
    return undefined;
  }
  if (lost > 0 || beginning_lost) {
    return 'the log has lost a part of its output';
  }
  if (execution.running) {
    return undefined;
  }
  if (began !== undefined && begins.length > 0) {
    const at = new Date(began * 1000).toISOString();
    const there = begins.some(begin => Math.abs(began - begin) <= SAME);
    return there ? undefined : `the log has no run of it that began at ${at}`;
  }
  if (present !== null && !counts.includes(present)) {
    return `the log has no run [${present}] of it, but only [${count ?? ' '}]`;
  }
  const newest = present === count || (counts.length === 1 && counts[0] === count);
  if (newest && execution.rewritten === false && !couldHave(execution.outputs, saved)) {
    return `the log's run [${count ?? ' '}] had other outputs`;
  }
  return undefined;
}

/** When the run of a cell's outputs began, in s since 1970, if its metadata says that: JupyterLab with `recordTiming`. */
export function beginOf(metadata: Partial<nbformat.ICodeCellMetadata> | undefined): number | undefined {
  const timing = metadata?.['execution'] as Record<string, unknown> | null | undefined;
  const began = Date.parse(String(timing?.['iopub.execute_input'])) / 1000;
  return Number.isNaN(began) ? undefined : began;
}
