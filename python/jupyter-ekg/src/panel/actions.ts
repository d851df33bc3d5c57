import { Dialog, showDialog } from '@jupyterlab/apputils';
import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { KernelAPI, type Kernel, type ServiceManager } from '@jupyterlab/services';

import { Problems } from './problems';
import { question, type Action, type IRow } from './rows';
import * as server from './server';
import { askAndShare } from './share';

/** The times for which a kernel or its GPU can be kept, in hours. The gateway's limit is in its answer. */
export const KEEP_HOURS = [1, 4, 8, 24] as const;

/** Does what the user asks for with kernels. */
export class Actions {
  /** What failed. */
  readonly problems = new Problems();

  constructor(
    private readonly services: ServiceManager.IManager,
    private readonly tracker: INotebookTracker,
    private readonly changed: () => void
  ) {}

  /** Asks, if something can be lost, and acts. Resolves also if the action failed: its row says why. */
  async run(row: IRow, action: Exclude<Action, 'keep' | 'keepGPU'>): Promise<void> {
    if (action === 'share') {
      await askAndShare(row);
      return;
    }
    const [title, body] = question(action, row);
    const label = { interrupt: 'Interrupt', restart: 'Restart', shutdown: 'Shut Down' }[action];
    const { button } = await showDialog({
      title,
      body,
      buttons: [Dialog.cancelButton(), Dialog.warnButton({ label })]
    });
    if (button.accept) {
      await this.attempt(row, () => this.act(row.kernel.id, action));
    }
  }

  /** Keeps a kernel or its GPU for so many hours; null ends that. */
  keep(row: IRow, what: server.Kept, hours: number | null): Promise<void> {
    const until = hours === null ? null : new Date(Date.now() + hours * 3_600_000);
    return this.attempt(row, () => server.keep(row.kernel.id, what, until));
  }

  private async attempt({ kernel }: IRow, action: () => Promise<void>): Promise<void> {
    await this.problems.attempt(kernel.id, action);
    this.changed();
  }

  /** Acts through JupyterLab's own services, so that its notebooks know. They know only this server's kernels. */
  private async act(id: string, action: 'interrupt' | 'restart' | 'shutdown'): Promise<void> {
    const { kernels, sessions } = this.services;
    if (![...kernels.running()].some((model: Kernel.IModel) => model.id === id)) {
      return server.act(id, action);
    }
    const session = [...sessions.running()].find(model => model.kernel?.id === id);
    switch (action) {
      case 'interrupt':
        return KernelAPI.interruptKernel(id, this.services.serverSettings);
      case 'restart': {
        const kernel = this.notebook(id)?.sessionContext.session?.kernel;
        return kernel ? kernel.restart() : KernelAPI.restartKernel(id, this.services.serverSettings);
      }
      case 'shutdown':
        return session ? sessions.shutdown(session.id) : kernels.shutdown(id);
    }
  }

  /** The open notebook that uses a kernel. */
  notebook(id: string): NotebookPanel | undefined {
    return this.tracker.find(panel => panel.sessionContext.session?.kernel?.id === id);
  }
}
