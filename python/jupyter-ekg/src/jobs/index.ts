import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { ICommandPalette, Notification } from '@jupyterlab/apputils';
import type { IMainMenu } from '@jupyterlab/mainmenu';
import type * as nbformat from '@jupyterlab/nbformat';
import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';

import { explain, Problem } from '../request';
import { ask, type IChosen } from './dialog';
import { jobOf, Jobs, nameJob } from './following';
import { choiceAt, choices, isOnEkg, nameOf, submitted } from './rest';
import * as server from './server';

/** The command that submits the rest of the current notebook. */
export const COMMAND = 'jupyter-ekg:run-rest-as-job';

/** The place of the command's group in the Run menu: behind JupyterLab's own groups. */
const MENU_RANK = 100;

/** The place of the command in a cell's context menu: behind JupyterLab's own commands about cells. */
const CONTEXT_RANK = 20;

export interface IFrontEnd {
  app: Pick<JupyterFrontEnd, 'commands' | 'contextMenu' | 'serviceManager'>;
  tracker: INotebookTracker;
  palette: ICommandPalette | null;
  menu: IMainMenu | null;
  notification: Pick<typeof Notification, 'emit' | 'update'>;
}

/** Adds the command that runs the rest of a notebook as a job, and follows the jobs of open notebooks. */
export function addJobs({ app, tracker, palette, menu, notification }: IFrontEnd): void {
  const { commands, contextMenu, serviceManager: services } = app;
  const { read, runs, connect } = server;
  const jobs = new Jobs({ read, runs, connect, notification, wait: waitVisibly });
  const opened = async (panel: NotebookPanel) => {
    await panel.context.ready;
    const id = jobOf(panel);
    if (id !== undefined) {
      await jobs.follow(panel, id);
    }
  };
  tracker.forEach(panel => void opened(panel));
  tracker.widgetAdded.connect((_, panel) => void opened(panel));

  commands.addCommand(COMMAND, {
    label: 'Run the Rest as a Job…',
    caption: 'Run this cell and those behind it in this kernel, also when everything is closed',
    isEnabled: () => {
      const panel = tracker.currentWidget;
      const id = panel?.sessionContext.session?.kernel?.id;
      return id !== undefined && isOnEkg(services.kernels.running(), id) && choices(contentOf(panel!)).length > 0;
    },
    execute: async () => {
      const panel = tracker.currentWidget;
      const job = panel && (await askAndSubmit(panel));
      if (job) {
        void jobs.follow(panel, job.id);
      }
    }
  });
  palette?.addItem({ command: COMMAND, category: 'Notebook Operations' });
  menu?.runMenu.addGroup([{ command: COMMAND }], MENU_RANK);
  contextMenu.addItem({ command: COMMAND, selector: '.jp-Notebook .jp-CodeCell', rank: CONTEXT_RANK });
}

function contentOf(panel: NotebookPanel): nbformat.INotebookContent {
  return panel.content.model!.toJSON() as nbformat.INotebookContent;
}

/** Asks, saves and submits. The dialog stays with the reason if that fails. */
async function askAndSubmit(panel: NotebookPanel): Promise<server.IJob | undefined> {
  const path = panel.context.path;
  const title = path.split('/').pop()!;
  const kernel = panel.sessionContext.session?.kernel?.id;
  const all = choices(contentOf(panel));
  const first = choiceAt(all, panel.content.activeCellIndex + 1);
  if (kernel === undefined || !first) {
    return undefined;
  }
  let chosen: IChosen | undefined = { from: first.number, then: 'keep' };
  let problem = '';
  let token = { of: '', value: '' };
  for (;;) {
    chosen = await ask(title, all, chosen, problem);
    if (!chosen) {
      return undefined;
    }
    // An answer may be lost: the same choice again must make no second job.
    const of = JSON.stringify(chosen);
    if (token.of !== of) {
      token = { of, value: randomText() };
    }
    try {
      return await saveAndSubmit(panel, kernel, chosen, token.value);
    } catch (error) {
      problem = explain(error);
    }
  }
}

/** A text that no other submission has. crypto.randomUUID is missing on pages that come by plain HTTP. */
function randomText(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), byte => byte.toString(16).padStart(2, '0')).join('');
}

async function saveAndSubmit(
  panel: NotebookPanel,
  kernel: string,
  { from, then }: IChosen,
  token: string
): Promise<server.IJob> {
  const { context } = panel;
  await context.save().catch(() => {
    throw new Problem('The notebook cannot be saved.');
  });
  const name = context.path.split('/').pop()!.replace(/\.ipynb$/, '');
  const notebook = submitted(contentOf(panel), from);
  const from_cell = nameOf(notebook, from);
  const job = await server.submit(kernel, { notebook, name, input_path: context.path, from_cell, then, token });
  nameJob(panel, job.id);
  await context.save().catch(error => console.warn('jupyter-ekg: the notebook does not name its job:', error));
  return job;
}

/** Waits for a time, and until the page can be seen. */
async function waitVisibly(time: number): Promise<void> {
  await new Promise(resolve => setTimeout(resolve, time));
  while (document.visibilityState === 'hidden') {
    await new Promise(resolve => document.addEventListener('visibilitychange', resolve, { once: true }));
  }
}
