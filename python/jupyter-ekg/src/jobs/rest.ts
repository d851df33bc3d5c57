// What is submitted of a notebook, and what its page shows of the job.
import type { ICellModel, ICodeCellModel } from '@jupyterlab/cells';
import type * as nbformat from '@jupyterlab/nbformat';
import type { Kernel } from '@jupyterlab/services';

import { canonical } from '../outputs';
import type { IJob, IRun } from './server';

/** Whether a kernel is one of ekg's: other servers and gateways do not say when they have created a kernel. */
export function isOnEkg(running: Iterable<Kernel.IModel>, id: string): boolean {
  const model = [...running].find(model => model.id === id) as { created?: unknown } | undefined;
  return typeof model?.created === 'string';
}

/** A cell with which a job can begin. */
export interface IChoice {
  /** Its number among all cells of the notebook, from 1. */
  number: number;
  label: string;
}

const LABEL = 60; // characters of a cell's first line

/** The cells with code. Cells that a job leaves out are no choices. */
export function choices(notebook: nbformat.INotebookContent): IChoice[] {
  return notebook.cells.flatMap((cell, i) => {
    if (!runs(cell)) {
      return [];
    }
    const source = Array.isArray(cell.source) ? cell.source.join('') : cell.source;
    const line = source.split('\n').find(line => line.trim()) ?? '';
    const text = line.length > LABEL ? `${line.slice(0, LABEL - 1)}…` : line;
    return [{ number: i + 1, label: `Cell ${i + 1}: ${text.trim() || 'empty'}` }];
  });
}

function runs(cell: nbformat.ICell): boolean {
  const tags = cell.metadata?.tags;
  return cell.cell_type === 'code' && !(Array.isArray(tags) && tags.includes('skip-execution'));
}

/** The choice for a cell: itself, or the next one that a job can begin with, or the last one before. */
export function choiceAt(all: readonly IChoice[], number: number): IChoice | undefined {
  return all.find(choice => choice.number >= number) ?? all[all.length - 1];
}

/** Says what is submitted from a cell on. */
export function extent(all: readonly IChoice[], from: number): string {
  const rest = all.filter(choice => choice.number >= from);
  const numbers = rest.map(choice => choice.number);
  return rest.length === 1
    ? `1 cell with code is run: cell ${numbers[0]}.`
    : `${rest.length} cells with code are run: cells ${numbers[0]} to ${numbers[numbers.length - 1]}.`;
}

/** Names a cell by its id, if it has one: the gateway takes a number for an id if a cell has such an id. */
export function nameOf(notebook: nbformat.INotebookContent, number: number): string | number {
  const id = notebook.cells[number - 1]?.id;
  return typeof id === 'string' ? id : number;
}

/** The notebook as it is submitted: outputs that the job replaces are left out. */
export function submitted(notebook: nbformat.INotebookContent, from: number): nbformat.INotebookContent {
  const cells = notebook.cells.map((cell, i) =>
    i + 1 >= from && cell.cell_type === 'code' ? { ...cell, outputs: [] } : cell
  );
  return { ...notebook, cells };
}

/** The states in which a job has ended. */
const FINAL: readonly string[] = ['succeeded', 'failed', 'stopped'];

/** Whether a job has ended. */
export function hasEnded({ state }: IJob): boolean {
  return FINAL.includes(state);
}

/** Says how far a job is. */
export function progress(job: IJob, title: string): string {
  const name = `Job ${job.id.slice(0, 8)} of ${title}`;
  const why = job.reason ? `: ${job.reason}` : '.';
  switch (job.state) {
    case 'queued':
      return `${name} is queued${why}`;
    case 'running':
      return job.cell > 0 ? `${name} is running, cell ${job.cell} of ${job.cells}.` : `${name} is running${why}`;
    case 'succeeded':
      return `${name} has succeeded.`;
    case 'failed':
      return `${name} has failed${why}`;
    case 'stopped':
      return `${name} was stopped.`;
    default:
      return `${name} is ${job.state}${why}`;
  }
}

/** Puts what a job has made of a cell into it, unless the cell was changed or run since the job was submitted. */
export function show(model: ICellModel, run: IRun | undefined): boolean {
  if (!run || !isCode(model) || isRunning(model) || model.sharedModel.getSource() !== run.code) {
    return false;
  }
  const present = canonical(model.outputs.toJSON());
  const made = canonical(run.outputs);
  const count = model.executionCount;
  if (count === run.count ? present.length >= made.length : count !== null && count !== run.count_before) {
    return false;
  }
  model.trusted = run.trusted;
  model.outputs.fromJSON(run.outputs);
  model.executionCount = run.count;
  return true;
}

/** Whether the page waits for the end of a cell. */
export function isRunning(model: ICellModel): boolean {
  return isCode(model) && model.executionState === 'running';
}

function isCode(model: ICellModel): model is ICodeCellModel {
  return model.type === 'code';
}
