// Tests jupyter-scheduler's dialog and lists in JupyterLab. The front end is the released one, and jupyter-ekg forwards its
// requests to a gateway on which one kernel may live.
//
// Screenshots go to EKG_ARTIFACTS. EKG_PICTURES is a folder for the documentation's picture; then less is tested.
import { existsSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { check, equal, finish, rest, until } from '../js/checks.mjs';
import { JobsPanel, startLab } from './jobspanel.mjs';
import { ARTIFACTS, Notebook, picture } from './lab.mjs';

const { EKG_PICTURES: PICTURES } = process.env;
const lab = await startLab('jobs-lab');

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

let notebook = await lab.open(INPUT, PICTURES && { window: await lab.window({ viewport: { width: 1200, height: 900 } }) });
let { page } = notebook;
let jobs = new JobsPanel(notebook);

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

async function further() {
  await step('the list stops a job that runs, and what it has printed is kept', async () => {
    rmSync(GO);
    await jobs.dialog('endless');
    await jobs.create();
    const row = await jobs.row('endless', 'In progress');
    await until(async () => (await job('endless')).cell === 2, 20, 'the cell that prints runs');
    await jobs.confirmed(row, 'Stop', 'endless');
    await jobs.row('endless', 'Stopped');
    equal(printed(await result('endless'), 1), 'n is 1\n', 'the output');
  });
  await step('a job ends while the server is down, and its notebook is there when the server is back', async () => {
    await jobs.dialog('away');
    await jobs.create();
    await jobs.row('away', 'In progress');
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
    jobs = new JobsPanel(notebook);
    await notebook.connected();
    await makeRoom();
  });
  await step('a schedule is a definition with a time zone, and makes jobs', async () => {
    await jobs.dialog('minutely');
    await jobs.panel.getByLabel('Run on a schedule').check();
    await jobs.panel.getByRole('combobox', { name: 'Interval' }).or(jobs.panel.getByLabel('Interval')).first().click();
    await page.getByRole('option', { name: 'Minute', exact: true }).click();
    await jobs.create();
    await until(async () => (await rest('/api/jobs/definitions')).length === 1, 20, 'there is a definition');
    const [{ schedule, timezone, active, name }] = await rest('/api/jobs/definitions');
    equal([name, schedule, timezone !== undefined, active], ['minutely', '* * * * *', true, true], 'the definition');
    await jobs.row('minutely', 'Active');
    await page.screenshot({ path: join(ARTIFACTS, 'jobs-definitions.png') });
    await until(() => job('minutely'), 75, 'the schedule has made a job');
    await ended('minutely', 'succeeded');
    await jobs.tab('Jobs');
    await jobs.row('minutely', 'Completed');
    equal(printed(await result('minutely'), 1), 'n is 1\ndone\n', 'the output');
  }, 150);
  await step('a definition and a job are deleted', async () => {
    await jobs.tab('Job Definitions');
    await jobs.confirmed(await jobs.row('minutely', 'Active'), 'Delete', 'minutely');
    await until(async () => (await rest('/api/jobs/definitions')).length === 0, 20, 'the definition is gone');
    await jobs.tab('Jobs');
    const { id } = await job('endless');
    await jobs.confirmed(await jobs.row('endless', 'Stopped'), 'Delete', 'endless');
    await until(async () => !(await rest('/api/jobs')).some(j => j.id === id), 20, 'the job is gone');
  });
}

try {
  await notebook.connected();
  await step('a job with a parameter waits for the limit, and the list says why', async () => {
    await jobs.dialog('report');
    await jobs.panel.getByTitle('Add new parameter').click();
    for (const [field, text] of [['name', 'n'], ['value', '42']]) {
      const input = jobs.panel.locator(`input[name="parameter-0-${field}"]`);
      await input.fill(text);
      await input.press('Tab'); // the dialog checks a field that is left
    }
    await page.screenshot({ path: join(ARTIFACTS, 'jobs-dialog.png') });
    await jobs.create();
    const line = await jobs.row('report', 'there may be 1 kernel at one time');
    equal((await line.innerText()).includes('Queued'), true, 'the state is Queued');
    await page.screenshot({ path: join(ARTIFACTS, 'jobs-waiting.png') });
  });
  await step('its state changes in the list, and its notebook is put beside the original', async () => {
    await makeRoom();
    await jobs.row('report', 'In progress');
    go();
    await jobs.row('report', 'Completed');
    first = await result('report');
    equal(printed(first, 2), 'n is 42\ndone\n', 'the output');
  });
  await step('the list opens the notebook, with its outputs', async () => {
    const line = await jobs.row('report', 'Notebook');
    await line.getByRole('link', { name: 'Notebook' }).click();
    const opened = new Notebook(lab, page, first);
    await opened.shown();
    await until(async () => (await opened.output(2)).includes('n is 42'), 20, 'the page shows the output');
    await page.screenshot({ path: join(ARTIFACTS, 'jobs-result.png') });
    await opened.connected(20); // so that its kernel is among those that are shut down
    if (PICTURES) {
      await notebook.command('application:toggle-left-area');
      await jobs.dialog('evaluate');
      await jobs.create();
      await jobs.row('evaluate', 'there may be 1 kernel at one time');
      await jobs.panel.getByTitle('Close').first().click();
      await picture(page, 'jobs-waiting', [jobs.panel.getByRole('tab', { name: 'Jobs', exact: true }), jobs.panel.getByRole('table'),
        jobs.panel.getByText('1–2 of 2').first()], 4);
      return;
    }
    await opened.command('docmanager:close');
    await makeRoom();
  });
  if (!PICTURES) await further();
} finally {
  if (!page.isClosed()) await page.screenshot({ path: join(ARTIFACTS, 'jobs-end.png') });
  await lab.stop();
}
finish();
