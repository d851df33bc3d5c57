// jupyter-scheduler in JupyterLab with jupyter-ekg, and the actions of a user in its panel.
//
// EKG_JOBS is the folder with jupyter-scheduler.
import { join } from 'node:path';

import { until } from '../js/checks.mjs';
import { EXTENSION, Lab } from './lab.mjs';

/** Starts a JupyterLab whose jobs run on the gateway. */
export function startLab(name) {
  const { EKG_JOBS: JOBS } = process.env;
  const both = path => `${join(EXTENSION, path)}:${join(JOBS, path)}`;
  return Lab.start({
    name,
    options: [
      '--SchedulerApp.scheduler_class=jupyter_ekg.scheduler.EkgScheduler',
      '--SchedulerApp.environment_manager_class=jupyter_ekg.scheduler.EkgEnvironmentManager',
      '--SchedulerApp.job_files_manager_class=jupyter_ekg.scheduler.EkgJobFilesManager',
      '--EkgScheduler.look_every=1',
    ],
    env: {
      PYTHONPATH: `${EXTENSION}:${JOBS}`, JUPYTER_CONFIG_PATH: both('etc/jupyter'), JUPYTER_PATH: both('share/jupyter'),
    },
  });
}

/** The panel of jobs beside a notebook. */
export class JobsPanel {
  constructor(notebook) {
    this.page = notebook.page;
    this.input = notebook.name;
    this.panel = this.page.locator('.jp-notebook-jobs-panel');
  }

  /** Opens the dialog from the notebook's toolbar, and chooses a name; "" keeps the default. */
  async dialog(name, input = this.input) {
    await this.page.locator('.lm-DockPanel-tabBar .lm-TabBar-tab', { hasText: input }).click();
    await this.page.locator('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-NotebookPanel-toolbar [data-jp-item-name="create-job"]').first().click();
    // The form is complete when the environments are read. What was typed before is lost then.
    const environment = this.panel.locator('input[name="environment"]');
    await until(async () => await environment.inputValue() === 'python3', 20, 'the form has an environment');
    if (name) await this.panel.getByLabel('Job name').fill(name);
  }

  create() {
    return this.panel.getByRole('button', { name: 'Create', exact: true }).click();
  }

  /** Shows the list of jobs or of definitions. */
  tab(name) {
    return this.panel.getByRole('tab', { name, exact: true }).dispatchEvent('click');
  }

  reload() {
    return this.panel.getByRole('button', { name: 'Reload', exact: true }).dispatchEvent('click');
  }

  /** Waits until the panel shows an error with this text. */
  async says(text) {
    const alerts = this.panel.locator('.MuiAlert-message');
    await until(async () => (await alerts.allInnerTexts()).some(alert => alert.includes(text)), 20, `an error says ${text}`)
      .catch(async e => { throw new Error(`${e.message}: ${await this.panel.innerText()}`); });
  }

  /** Reloads a list until the row with a name has a text, and returns the row. */
  async row(name, text, seconds = 40) {
    const line = this.panel.getByRole('row').filter({ hasText: name }).first();
    await until(async () => {
      await this.reload();
      await this.page.waitForTimeout(500);
      return await line.isVisible() && (await line.innerText()).includes(text);
    }, seconds, `the row of ${name} says ${text}`).catch(async e => { throw new Error(`${e.message}: ${await this.panel.innerText()}`); });
    return line;
  }

  /** Clicks an icon of a row, and the button that it becomes. */
  async confirmed(line, action, name) {
    await line.getByTitle(`${action} "${name}"`).click();
    await line.getByText(action, { exact: true }).click();
  }
}
