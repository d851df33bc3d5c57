/**
 * The page's part of jupyter-ekg, for JupyterLab 4 and Notebook 7. It restores the output that a notebook's cells
 * printed while no page was open, follows cells that are still running, and hides messages that the server repeats
 * after the page's websocket broke. It also makes the text of dialogs about kernels wrap.
 */
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette, Notification } from '@jupyterlab/apputils';
import { PageConfig } from '@jupyterlab/coreutils';
import { IMainMenu } from '@jupyterlab/mainmenu';
import { INotebookTracker, NotebookActions } from '@jupyterlab/notebook';

import { addRestorers } from './command';
import { styleDialogs } from './dialogs';
import { fetchExecutions } from './log';

const plugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-ekg:outputs',
  description: 'Shows what cells printed while no page was open.',
  autoStart: true,
  requires: [INotebookTracker],
  optional: [ICommandPalette, IMainMenu],
  activate: (
    app: JupyterFrontEnd,
    tracker: INotebookTracker,
    palette: ICommandPalette | null,
    menu: IMainMenu | null
  ) => {
    // The server sets the option if its kernels come from a gateway.
    if (PageConfig.getOption('jupyterEkg') !== 'true') {
      return;
    }
    styleDialogs(document);
    addRestorers(
      { app, tracker, palette, menu, notification: Notification },
      { fetchExecutions, executionScheduled: NotebookActions.executionScheduled }
    );
  }
};

export default plugin;
