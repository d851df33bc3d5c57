// Tests jupyter-scheduler's dialog and lists in JupyterLab. The front end is the released one, and jupyter-ekg forwards its
// requests to a gateway on which one kernel may live.
//
// EKG_JOBS is the folder with jupyter-scheduler. Screenshots go to EKG_ARTIFACTS.
import { existsSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { check, equal, finish, rest, until } from '../js/checks.mjs';
import { ARTIFACTS, EXTENSION, Lab, Notebook } from './lab.mjs';

const { EKG_JOBS: JOBS } = process.env;
const both = path => `${join(EXTENSION, path)}:${join(JOBS, path)}`;
const lab = await Lab.start({
  name: 'jobs-lab',
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

// The cell waits until this file exists.
const GO = join(lab.dir, 'go');
const go = () => writeFileSync(GO, '');

const INPUT = 'train.ipynb';
lab.write(INPUT, [
  'n = 1', `import os, time\nprint("n is", n, flush=True)\nwhile not os.path.exists(${JSON.stringify(GO)}):\n    time.sleep(0.05)\nprint("done")`,
]);
const edited = JSON.parse(readFileSync(join(lab.files, INPUT), 'utf8'));
edited.cells[0].metadata.tags = ['parameters'];
writeFileSync(join(lab.files, INPUT), JSON.stringify(edited));

let notebook = await lab.open(INPUT);
let { page } = notebook;
let panel = page.locator('.jp-notebook-jobs-panel');

/** Opens the dialog from the notebook's toolbar, and chooses a name. */
async function dialog(name) {
  await page.locator('.lm-DockPanel-tabBar .lm-TabBar-tab', { hasText: INPUT }).click();
  await page.locator('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-NotebookPanel-toolbar [data-jp-item-name="create-job"]').first().click();
  // The form is complete when the environments are read. What was typed before is lost then.
  await until(async () => await panel.locator('input[name="environment"]').inputValue() === 'python3', 20, 'the form has an environment');
  await panel.getByLabel('Job name').fill(name);
}

const create = () => panel.getByRole('button', { name: 'Create', exact: true }).click();
const tab = name => panel.getByRole('tab', { name, exact: true }).dispatchEvent('click');
const reload = () => panel.getByRole('button', { name: 'Reload', exact: true }).dispatchEvent('click');

/** Reloads a list until the row with a name has a text, and returns the row. */
async function row(name, text, seconds = 40) {
  const line = panel.getByRole('row').filter({ hasText: name }).first();
  await until(async () => {
    await reload();
    await page.waitForTimeout(500);
    return await line.isVisible() && (await line.innerText()).includes(text);
  }, seconds, `the row of ${name} says ${text}`).catch(async e => { throw new Error(`${e.message}: ${await panel.innerText()}`); });
  return line;
}

/** Clicks an icon of a row, and the button that it becomes. */
async function confirmed(line, action, name) {
  await line.getByTitle(`${action} "${name}"`).click();
  await line.getByText(action, { exact: true }).click();
}

const job = async name => (await rest(`/api/jobs?name=${name}`))[0];
const ended = (name, state, seconds = 40) => until(async () => (await job(name))?.state === state, seconds, `the job ${name} has ${state}`);
const results = () => readdirSync(lab.files).filter(name => name !== INPUT && name.endsWith('.ipynb'));

/** Waits until the notebook of a job is beside the original, and returns its name. Nothing was clicked for it. */
async function result(name) {
  const { id } = await job(name);
  // The server writes a file in several steps.
  const complete = file => file.includes(id.slice(0, 8)) && readFileSync(join(lab.files, file), 'utf8').trim().endsWith('}');
  return until(() => results().find(complete), 20, `the notebook of ${name} is beside the original`);
}

const printed = (file, cell) => lab.saved(file, cell).flatMap(output => output.text ?? []).join('');

/** Shuts the kernels of open notebooks down, so that a job may start. */
const makeRoom = () => page.evaluate(() => window.jupyterapp.serviceManager.sessions.shutdownAll());

/** Does one check. The next ones need it. */
async function step(name, fn, seconds) {
  if (!await check(name, async () => { await fn(); return true; }, seconds)) throw new Error('the other checks are left out');
}

let first; // the name of the first result

try {
  await notebook.connected();
  await step('a job with a parameter waits for the limit, and the list says why', async () => {
    await dialog('report');
    await panel.getByTitle('Add new parameter').click();
    for (const [field, text] of [['name', 'n'], ['value', '42']]) {
      const input = panel.locator(`input[name="parameter-0-${field}"]`);
      await input.fill(text);
      await input.press('Tab'); // the dialog checks a field that is left
    }
    await page.screenshot({ path: join(ARTIFACTS, 'jobs-dialog.png') });
    await create();
    const line = await row('report', 'there may be 1 kernel at one time');
    equal((await line.innerText()).includes('Queued'), true, 'the state is Queued');
    await page.screenshot({ path: join(ARTIFACTS, 'jobs-waiting.png') });
  });
  await step('its state changes in the list, and its notebook is put beside the original', async () => {
    await makeRoom();
    await row('report', 'In progress');
    go();
    await row('report', 'Completed');
    first = await result('report');
    equal(printed(first, 2), 'n is 42\ndone\n', 'the output');
  });
  await step('the list opens the notebook, with its outputs', async () => {
    const line = await row('report', 'Notebook');
    await line.getByRole('link', { name: 'Notebook' }).click();
    const opened = new Notebook(lab, page, first);
    await opened.shown();
    await until(async () => (await opened.output(2)).includes('n is 42'), 20, 'the page shows the output');
    await page.screenshot({ path: join(ARTIFACTS, 'jobs-result.png') });
    await opened.connected(20); // so that its kernel is among those that are shut down
    await opened.command('docmanager:close');
    await makeRoom();
  });
  await step('the list stops a job that runs, and what it has printed is kept', async () => {
    rmSync(GO);
    await dialog('endless');
    await create();
    await confirmed(await row('endless', 'In progress'), 'Stop', 'endless');
    await row('endless', 'Stopped');
    equal(printed(await result('endless'), 1), 'n is 1\n', 'the output');
  });
  await step('a job ends while the server is down, and its notebook is there when the server is back', async () => {
    await dialog('away');
    await create();
    await row('away', 'In progress');
    await page.close({ runBeforeUnload: false });
    await lab.kill();
    rmSync(join(lab.files, first));
    go();
    await ended('away', 'succeeded');
    equal(results().length, 1, 'notebooks before the server is back');
    await lab.serve('a');
    equal(printed(await result('away'), 1), 'n is 1\ndone\n', 'the output');
    equal(existsSync(join(lab.files, first)), false, 'the notebook that the user has deleted is there');
    notebook = await lab.open(INPUT);
    ({ page } = notebook);
    panel = page.locator('.jp-notebook-jobs-panel');
    await notebook.connected();
    await makeRoom();
  });
  await step('a schedule is a definition with a time zone, and makes jobs', async () => {
    await dialog('minutely');
    await panel.getByLabel('Run on a schedule').check();
    await panel.getByRole('combobox', { name: 'Interval' }).or(panel.getByLabel('Interval')).first().click();
    await page.getByRole('option', { name: 'Minute', exact: true }).click();
    await create();
    await until(async () => (await rest('/api/jobs/definitions')).length === 1, 20, 'there is a definition');
    const [{ schedule, timezone, active, name }] = await rest('/api/jobs/definitions');
    equal([name, schedule, timezone !== undefined, active], ['minutely', '* * * * *', true, true], 'the definition');
    await row('minutely', 'Active');
    await page.screenshot({ path: join(ARTIFACTS, 'jobs-definitions.png') });
    await until(() => job('minutely'), 75, 'the schedule has made a job');
    await ended('minutely', 'succeeded');
    await tab('Jobs');
    await row('minutely', 'Completed');
    equal(printed(await result('minutely'), 1), 'n is 1\ndone\n', 'the output');
  }, 150);
  await step('a definition and a job are deleted', async () => {
    await tab('Job Definitions');
    await confirmed(await row('minutely', 'Active'), 'Delete', 'minutely');
    await until(async () => (await rest('/api/jobs/definitions')).length === 0, 20, 'the definition is gone');
    await tab('Jobs');
    const { id } = await job('endless');
    await confirmed(await row('endless', 'Stopped'), 'Delete', 'endless');
    await until(async () => !(await rest('/api/jobs')).some(j => j.id === id), 20, 'the job is gone');
  });
} finally {
  if (!page.isClosed()) await page.screenshot({ path: join(ARTIFACTS, 'jobs-end.png') });
  await lab.stop();
}
finish();
