import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { ICommandPalette, Notification } from '@jupyterlab/apputils';
import type { IMainMenu } from '@jupyterlab/mainmenu';
import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';

import { explain } from './request';
import { type IRestored, Restorer } from './restorer';

export const COMMAND = 'jupyter-ekg:restore-outputs';

/** The place of the command's group in the Kernel menu: behind JupyterLab's own groups. */
const MENU_RANK = 40;

export interface IFrontEnd {
  app: Pick<JupyterFrontEnd, 'commands'>;
  tracker: INotebookTracker;
  palette: ICommandPalette | null;
  menu: IMainMenu | null;
  notification: Pick<typeof Notification, 'info' | 'error'>;
}

/** Gives each notebook a Restorer, and adds the command that restores all cells to the palette and the Kernel menu. */
export function addRestorers(frontEnd: IFrontEnd, options: Restorer.IOptions): void {
  const { app, tracker, palette, menu, notification } = frontEnd;
  const restorers = new WeakMap<NotebookPanel, Restorer>();
  const add = (panel: NotebookPanel) => {
    restorers.set(panel, new Restorer(panel, options));
  };
  tracker.forEach(add);
  tracker.widgetAdded.connect((_, panel) => add(panel));

  const restoreAll = async (): Promise<void> => {
    const restorer = tracker.currentWidget && restorers.get(tracker.currentWidget);
    if (!restorer) {
      return;
    }
    try {
      notification.info(restoredMessage(await restorer.restore(true)), { autoClose: 3000 });
    } catch (error) {
      notification.error(`The outputs cannot be restored: ${explain(error)}`);
    }
  };
  app.commands.addCommand(COMMAND, {
    label: 'Restore Outputs from Kernel',
    caption: 'Show what the cells printed while the notebook was closed',
    isEnabled: () => tracker.currentWidget !== null,
    execute: restoreAll
  });
  palette?.addItem({ command: COMMAND, category: 'Notebook Operations' });
  menu?.kernelMenu.addGroup([{ command: COMMAND }], MENU_RANK);
}

function restoredMessage({ changed, kept }: IRestored): string {
  const cells = changed === 1 ? '1 cell' : `${changed} cells`;
  const restored = changed > 0 ? `The outputs of ${cells} were restored.` : '';
  if (kept.length > 0) {
    return `${restored} Kept as in the notebook: ${kept.join('; ')}.`.trim();
  }
  return restored || 'All outputs are up to date.';
}
