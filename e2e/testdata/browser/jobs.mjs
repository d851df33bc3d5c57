// Tests jupyter-scheduler's dialog and lists in JupyterLab. The front end is the released one, and jupyter-ekg forwards its
// requests to a gateway on which one kernel may live.
//
// EKG_JOBS is the folder with jupyter-scheduler. Screenshots go to EKG_ARTIFACTS.
import { readdirSync } from 'node:fs';
import { join } from 'node:path';

import { check, equal, finish, rest, until } from '../js/checks.mjs';
import { ARTIFACTS, EXTENSION, Lab } from './lab.mjs';

const { EKG_JOBS: JOBS } = process.env;
const both = path => `${join(EXTENSION, path)}:${join(JOBS, path)}`;
const lab = await Lab.start({
  name: 'jobs-lab',
  options: [
    '--SchedulerApp.scheduler_class=jupyter_ekg.scheduler.EkgScheduler',
    '--SchedulerApp.environment_manager_class=jupyter_ekg.scheduler.EkgEnvironmentManager',
    '--SchedulerApp.job_files_manager_class=jupyter_ekg.scheduler.EkgJobFilesManager',
  ],
  env: {
    PYTHONPATH: `${EXTENSION}:${JOBS}`, JUPYTER_CONFIG_PATH: both('etc/jupyter'), JUPYTER_PATH: both('share/jupyter'),
  },
});

lab.write('train.ipynb', ['x = 1', 'print("x is", x)']);
const notebook = await lab.open('train.ipynb');
const { page } = notebook;
const panel = page.locator('.jp-notebook-jobs-panel');

/** Opens the dialog from the notebook's toolbar, and chooses a name. */
async function dialog(name) {
  await page.locator('.lm-DockPanel-tabBar .lm-TabBar-tab', { hasText: 'train.ipynb' }).click();
  await page.locator('.jp-NotebookPanel-toolbar [data-jp-item-name="create-job"]').first().click();
  await panel.getByLabel('Job name').fill(name);
}

const create = () => panel.getByRole('button', { name: 'Create', exact: true }).click();

/** Reloads the list of jobs until the row of a job has a text, and returns the row. */
async function row(name, text, seconds = 40) {
  const line = panel.getByRole('row').filter({ hasText: name }).first();
  await until(async () => {
    await panel.getByRole('button', { name: 'Reload' }).dispatchEvent('click');
    await page.waitForTimeout(500);
    return await line.isVisible() && (await line.innerText()).includes(text);
  }, seconds, `the row of ${name} says ${text}`).catch(async e => { throw new Error(`${e.message}: ${await panel.innerText()}`); });
  return line;
}

const results = () => readdirSync(lab.files).filter(name => name !== 'train.ipynb' && name.endsWith('.ipynb'));

try {
  await notebook.connected();
  await check('a job waits for the limit, and the list says why', async () => {
    await dialog('report');
    await create();
    await row('report', 'there may be 1 kernel at one time');
    await page.screenshot({ path: join(ARTIFACTS, 'jobs-waiting.png') });
  });
  await check('a schedule is a definition, with a time zone', async () => {
    await dialog('daily');
    await panel.getByLabel('Run on a schedule').check();
    await create();
    await until(async () => (await rest('/api/jobs/definitions')).length === 1, 20, 'there is a definition');
    await panel.getByText('daily').first().waitFor();
    await page.screenshot({ path: join(ARTIFACTS, 'jobs-definitions.png') });
    const [{ schedule, timezone, active, name }] = await rest('/api/jobs/definitions');
    equal([name, schedule.split(' ').length, timezone !== undefined, active], ['daily', 5, true, true], 'the definition');
  });
  await check('it runs when there is room, and the list puts its notebook beside the original', async () => {
    for (const { id } of await rest('/api/kernels')) await rest(`/api/kernels/${id}`, { method: 'DELETE' });
    await until(async () => (await rest('/api/jobs'))[0].state === 'succeeded', 40, 'the job has succeeded');
    await panel.getByRole('tab', { name: 'Jobs', exact: true }).dispatchEvent('click');
    const line = await row('report', 'Completed');
    await line.getByLabel('download').or(line.getByTitle('Download', { exact: false })).first().dispatchEvent('click');
    await until(() => results().length === 1, 20, 'the notebook with the outputs is beside the original');
    equal(lab.saved(results()[0], 1)[0].text, ['x is 1\n'], 'the output');
  });
} finally {
  await page.screenshot({ path: join(ARTIFACTS, 'jobs-end.png') });
  await lab.stop();
}
finish();
