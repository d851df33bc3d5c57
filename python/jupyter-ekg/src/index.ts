/**
 * The page's part of jupyter-ekg, for JupyterLab 4 and Notebook 7. It restores the output that a notebook's cells
 * printed while no page was open, follows cells that are still running, and hides messages that the server repeats
 * after the page's websocket broke. It also makes the text of dialogs about kernels wrap. A panel in the sidebar and an
 * item in the status bar show the user's kernels, their GPUs, and when they will be ended. A command runs the rest of a
 * notebook as a job. A parked kernel is woken when its user types.
 */
import { ILabShell, ILayoutRestorer, type JupyterFrontEnd, type JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette, Notification } from '@jupyterlab/apputils';
import { PageConfig } from '@jupyterlab/coreutils';
import { IMainMenu } from '@jupyterlab/mainmenu';
import { INotebookTracker, NotebookActions } from '@jupyterlab/notebook';
import { IStatusBar } from '@jupyterlab/statusbar';

import { addAhead } from './ahead';
import { addRestorers } from './command';
import { addStyle, DIALOGS } from './dialogs';
import { addJobs } from './jobs';
import { JOBS } from './jobs/style';
import { fetchExecutions } from './log';
import { addPanel } from './panel';
import { STYLE } from './panel/style';

const outputs: JupyterFrontEndPlugin<void> = {
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
    addStyle(document, DIALOGS);
    addRestorers(
      { app, tracker, palette, menu, notification: Notification },
      { fetchExecutions: id => fetchExecutions(id), executionScheduled: NotebookActions.executionScheduled }
    );
  }
};

const kernels: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-ekg:kernels',
  description: "Shows the user's kernels, their GPUs, and when they will be ended.",
  autoStart: true,
  requires: [INotebookTracker],
  optional: [ICommandPalette, ILabShell, ILayoutRestorer, IStatusBar],
  activate: (
    app: JupyterFrontEnd,
    tracker: INotebookTracker,
    palette: ICommandPalette | null,
    labShell: ILabShell | null,
    restorer: ILayoutRestorer | null,
    statusBar: IStatusBar | null
  ) => {
    if (PageConfig.getOption('jupyterEkg') === 'true') {
      addStyle(document, STYLE);
      addPanel({ app, tracker, palette, labShell, restorer, statusBar });
    }
  }
};

const jobs: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-ekg:jobs',
  description: 'Runs the rest of a notebook as a job in its kernel.',
  autoStart: true,
  requires: [INotebookTracker],
  optional: [ICommandPalette, IMainMenu],
  activate: (
    app: JupyterFrontEnd,
    tracker: INotebookTracker,
    palette: ICommandPalette | null,
    menu: IMainMenu | null
  ) => {
    if (PageConfig.getOption('jupyterEkg') === 'true') {
      addStyle(document, JOBS);
      addJobs({ app, tracker, palette, menu, notification: Notification });
    }
  }
};

const ahead: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-ekg:ahead',
  description: 'Wakes a parked kernel when its notebook is opened or typed into.',
  autoStart: true,
  requires: [INotebookTracker],
  activate: (_: JupyterFrontEnd, tracker: INotebookTracker) => {
    if (PageConfig.getOption('jupyterEkg') === 'true') {
      addAhead(tracker);
    }
  }
};

export default [outputs, kernels, jobs, ahead];
