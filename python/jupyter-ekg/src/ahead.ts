import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';

import { request } from './request';

/** Least time in ms between an answer about a kernel and the next message about it. */
export const PAUSE = 10_000;

/** The same if the kernel cannot be parked, or if the message has failed. */
export const LONG_PAUSE = 300_000;

/** Says that a cell will follow in a kernel, so that a parked kernel takes its GPU before. One message at a time. */
export class Ahead {
  /** `send` says it about a kernel, and resolves to whether the kernel may be parked. */
  constructor(private readonly send: (id: string) => Promise<boolean>) {}

  /** Must be called at each sign that a cell will follow. */
  sign(id: string): void {
    const now = Date.now();
    for (const [other, pause] of this.pauses) {
      if (pause <= now) {
        this.pauses.delete(other);
      }
    }
    if (!this.pauses.has(id)) {
      this.pauses.set(id, Infinity);
      void this.say(id);
    }
  }

  private async say(id: string): Promise<void> {
    const parks = await this.send(id).catch(() => false);
    this.pauses.set(id, Date.now() + (parks ? PAUSE : LONG_PAUSE));
  }

  /** Until when nothing is said about a kernel, in ms since 1970. */
  private readonly pauses = new Map<string, number>();
}

/** Takes for a sign that a notebook is opened, gets the focus, or that its user types into it. */
export function addAhead(tracker: INotebookTracker, ahead = new Ahead(wake)): void {
  const sign = ({ sessionContext }: NotebookPanel) => {
    const id = sessionContext.session?.kernel?.id;
    if (id !== undefined) {
      ahead.sign(id);
    }
  };
  const add = (panel: NotebookPanel) => {
    panel.node.addEventListener('focusin', () => sign(panel));
    panel.node.addEventListener('keydown', () => sign(panel), true);
    panel.sessionContext.kernelChanged.connect(() => {
      if (panel.isVisible && document.visibilityState === 'visible') {
        sign(panel);
      }
    });
  };
  tracker.forEach(add);
  tracker.widgetAdded.connect((_, panel) => add(panel));
}

async function wake(id: string): Promise<boolean> {
  return (await request(['kernels', id, 'wake'], { method: 'POST' })).status === 202;
}
