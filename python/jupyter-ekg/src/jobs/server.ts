import type * as nbformat from '@jupyterlab/nbformat';

import { request } from '../request';

/** A job in the JSON of the gateway. */
export interface IJob {
  id: string;
  name: string;
  state: string;
  reason?: string;
  /** Which of its cells with code runs, from 1; 0 before the first. */
  cell: number;
  cells: number;
  kernel_id?: string;
  /** What happens to the author's kernel after it; absent if the kernel is the job's own. */
  then?: Then;
}

/** What happens to the kernel after a job. */
export type Then = 'keep' | 'end';

/** What a page submits. */
export interface ISubmission {
  notebook: nbformat.INotebookContent;
  name: string;
  input_path: string;
  /** The id of a cell, or its number from 1 if the notebook's format has no ids. */
  from_cell: string | number;
  then: Then;
  /** The same submission again, with the same token, makes no second job. */
  token: string;
}

/** What a job has made of one cell. */
export interface IRun {
  code: string;
  count: number | null;
  /** The cell's number when the job was submitted. */
  count_before: number | null;
  outputs: nbformat.IOutput[];
  /** Whether only this server's user can have caused the outputs. */
  trusted: boolean;
}

/** Submits the rest of a notebook as a job in its kernel. Rejects with the gateway's sentence, as the others here. */
export async function submit(kernel: string, submission: ISubmission): Promise<IJob> {
  const response = await request(['kernels', kernel, 'jobs'], { method: 'POST', body: JSON.stringify(submission) });
  return response.json();
}

/** Reads a job. */
export async function read(id: string): Promise<IJob> {
  return (await request(['jobs', id], { cache: 'no-store' })).json();
}

/** Reads what a job has made of the cells that it has run, by their ids. */
export async function runs(id: string): Promise<Record<string, IRun>> {
  return (await (await request(['jobs', id, 'outputs'], { cache: 'no-store' })).json()).cells;
}

/** Makes the kernel of a job one of the server's, so that a notebook can be connected to it. */
export async function connect(id: string): Promise<void> {
  await request(['jobs', id, 'connect'], { method: 'POST' });
}
