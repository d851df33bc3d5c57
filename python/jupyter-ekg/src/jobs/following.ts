import type { Notification } from '@jupyterlab/apputils';
import type { NotebookPanel } from '@jupyterlab/notebook';

import { explain, Problem } from '../request';
import { hasEnded, isRunning, progress, show } from './rest';
import type { IJob, IRun } from './server';

/** Time between two looks at a job, in ms. */
const LOOK = 5_000;

/** The member of a notebook's metadata that names the job whose outputs may not be in the file. */
const METADATA = 'ekg';

/** What is needed to follow a job. */
export interface ISources {
  read(id: string): Promise<IJob>;
  runs(id: string): Promise<Record<string, IRun>>;
  notification: Pick<typeof Notification, 'emit' | 'update'>;
  /** Makes the job's kernel one of the server's. */
  connect(id: string): Promise<void>;
  /** Resolves after a time in ms, and not while the page is hidden. */
  wait(time: number): Promise<void>;
}

/** The job that a notebook names; undefined if it names none. */
export function jobOf(panel: NotebookPanel): string | undefined {
  const job = (panel.content.model?.getMetadata(METADATA) as { job?: unknown } | undefined)?.job;
  return typeof job === 'string' ? job : undefined;
}

/** Makes a notebook name a job, so that it is found when the notebook is opened later. */
export function nameJob(panel: NotebookPanel, id: string): void {
  panel.content.model?.setMetadata(METADATA, { job: id });
}

/** Shows the progress of the jobs of open notebooks, and outputs of theirs that do not arrive by a kernel. */
export class Jobs {
  constructor(private readonly sources: ISources) {}

  /** Follows a notebook's job until it has ended or the notebook is closed. Another job of the notebook replaces it. */
  async follow(panel: NotebookPanel, id: string): Promise<void> {
    this.followed.set(panel, id);
    let said = ''; // the last notification's text
    let notification: string | undefined;
    let failures = 0;
    while (!panel.isDisposed && this.followed.get(panel) === id) {
      try {
        const job = await this.sources.read(id);
        if (panel.isDisposed || this.followed.get(panel) !== id) {
          return;
        }
        const text = progress(job, panel.context.path.split('/').pop()!);
        let complete = true;
        if (text !== said || hasEnded(job)) {
          complete = await this.restore(panel, job);
        }
        if (text !== said) {
          notification = this.say(panel, job, text, notification);
          said = text;
        }
        if (hasEnded(job) && complete) {
          this.forget(panel, id);
          return;
        }
        failures = 0;
      } catch (error) {
        if (error instanceof Problem && error.status === 404) {
          return; // it was removed, or is another user's
        }
        failures++;
        console.warn(`jupyter-ekg: the job ${id} cannot be read: ${explain(error)}`);
      }
      await this.sources.wait(LOOK * Math.min(2 ** failures, 12));
    }
  }

  /**
   * Shows outputs of the job. While the job runs, those of the kernel to which the page is connected arrive by
   * themselves. Returns false if a cell still runs in the page: its output may be missing.
   */
  private async restore(panel: NotebookPanel, job: IJob): Promise<boolean> {
    const kernel = panel.sessionContext.session?.kernel;
    const gone = ['dead', 'terminating', 'unknown'].includes(kernel?.status ?? 'dead');
    if (!hasEnded(job) && kernel?.id === job.kernel_id && !gone) {
      return true;
    }
    let complete = true;
    const runs = await this.sources.runs(job.id);
    const cells = panel.isDisposed ? undefined : panel.content.model?.cells;
    for (let i = 0; i < (cells?.length ?? 0); i++) {
      const cell = cells!.get(i);
      show(cell, runs[cell.id]);
      complete &&= !runs[cell.id] || !isRunning(cell);
    }
    return complete;
  }

  private say(panel: NotebookPanel, job: IJob, message: string, before: string | undefined): string | undefined {
    const { emit, update } = this.sources.notification;
    const ended = hasEnded(job);
    const type = !ended ? 'in-progress' : job.state === 'succeeded' ? 'success' : 'error';
    const lives = job.kernel_id !== undefined && (job.then === 'keep' || !ended);
    const actions =
      lives && panel.sessionContext.session?.kernel?.id !== job.kernel_id
        ? [{ label: 'Use its kernel', callback: () => void this.connect(panel, job) }]
        : [];
    if (before !== undefined && update({ id: before, message, type, actions, autoClose: false })) {
      return before;
    }
    // A user who has closed the notification wants to read of the end only.
    return before === undefined || ended ? emit(message, type, { actions, autoClose: false }) : before;
  }

  /** Connects the notebook to the kernel of its job, with its variables. The notebook's present kernel is ended. */
  private async connect(panel: NotebookPanel, { id, kernel_id }: IJob): Promise<void> {
    try {
      await this.sources.connect(id);
      await panel.sessionContext.ready; // or the kernel that JupyterLab is starting would stay
      await panel.sessionContext.changeKernel({ id: kernel_id! });
    } catch (error) {
      this.sources.notification.emit(`The job's kernel cannot be used: ${explain(error)}`, 'error');
    }
  }

  /** Its outputs are in the page: the next save has them. */
  private forget(panel: NotebookPanel, id: string): void {
    this.followed.delete(panel);
    if (jobOf(panel) === id) {
      panel.content.model?.deleteMetadata(METADATA);
    }
  }

  private readonly followed = new WeakMap<NotebookPanel, string>();
}
