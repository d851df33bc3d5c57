// Tests the command of jupyter-ekg that runs the rest of a notebook as a job in its own kernel.
//
// A cell of the jobs waits for the file EKG_GO. Screenshots go to EKG_ARTIFACTS.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { check, equal, finish, rest, TOKEN, until } from '../js/checks.mjs';
import { ARTIFACTS, Lab } from './lab.mjs';

const { EKG_GO: GO } = process.env;
const COMMAND = 'jupyter-ekg:run-rest-as-job';
const CELLS = [
  'x = 40', "print('by hand', x)",
  `import os, time\nprint('begun', flush=True)\nwhile not os.path.exists(${JSON.stringify(GO)}): time.sleep(0.05)\nprint('going')`,
  "y = x + 2\nprint('y is', y)", "print('end')",
];
const OUTPUTS = ['', 'by hand 40', 'begun\ngoing', 'y is 42', 'end'];

const files = mkdtempSync(join(tmpdir(), 'ekg-files-'));
let lab = await Lab.start({ name: 'jobs-live', files });
lab.write('keep.ipynb', CELLS);
lab.write('end.ipynb', CELLS);
lab.write('other.ipynb', ["print('one')", "import time\nfor i in range(30): print(i, flush=True); time.sleep(0.1)", "print('three')"]);

const dialogOf = notebook => notebook.page.locator('.jp-Dialog');
const toast = (notebook, text) => notebook.page.locator('.Toastify__toast').filter({ hasText: text });
const jobs = () => rest('/api/jobs');
const jobOf = async name => (await jobs()).find(job => job.name === name);
const states = async () => [(await jobOf('keep')).state, (await jobOf('end')).state];
const metadata = name => JSON.parse(readFileSync(join(files, name), 'utf8')).metadata;
const shown = async notebook => Promise.all(CELLS.map(async (_, i) => (await notebook.output(i)).trim()));
const enabled = notebook => notebook.page.evaluate(id => window.jupyterapp.commands.isEnabled(id), COMMAND);

/** Runs the first two cells, and opens the command's dialog from the third one's context menu. */
async function begin(name) {
  const notebook = await lab.open(name);
  notebook.page.on('request', r => requests.push(`${r.url()} ${JSON.stringify(r.headers())} ${r.postData() ?? ''}`));
  await notebook.connected(60);
  await notebook.run(0);
  await notebook.run(1);
  await notebook.printed(1, 'by hand');
  await notebook.finished(1);
  return notebook;
}

const requests = [];
let keep, end, kernel;

await check('the rest is submitted from the context menu of a cell', async () => {
  keep = await begin('keep.ipynb');
  kernel = (await rest('/api/kernels'))[0].id;
  await keep.cell(2).locator('.cm-content').click({ button: 'right' });
  await keep.page.locator('.lm-Menu-item', { hasText: 'Run the Rest as a Job…' }).click();
  const dialog = dialogOf(keep);
  await dialog.waitFor();
  equal(await dialog.getByLabel('Begin with').evaluate(s => s.selectedOptions[0].text), 'Cell 3: import os, time', 'the cell');
  equal(await dialog.getByRole('status').innerText(), '3 cells with code are run: cells 3 to 5.', 'what is submitted');
  await keep.screenshot('dialog');
  await dialog.locator('.jp-mod-accept').click();
  await toast(keep, /^Job [0-9a-f]{8} of keep.ipynb is running/).waitFor();
  const job = await jobOf('keep');
  equal([job.kernel_id, job.from_cell, job.then, job.input_path, job.state], [kernel, 3, 'keep', 'keep.ipynb', 'running'], 'the job');
  equal(metadata('keep.ipynb').ekg, { job: job.id }, 'what the file names');
  await until(async () => (await jobOf('keep')).cell === 1, 20, 'its first cell runs');
  await keep.printed(2, 'begun'); // in the page that is open
  equal(await keep.prompt(2), '[*]:', 'the prompt');
  await keep.command('jupyter-ekg:show-kernels');
  const row = keep.page.locator('.jp-ekg-Kernels .jp-ekg-row', { hasText: 'keep.ipynb' });
  await row.filter({ hasText: 'Job keep, cell 1 of 3' }).waitFor({ timeout: 30000 });
  await keep.screenshot('panel');
}, 120);

await check("another job in the kernel is refused, in the gateway's words", async () => {
  await keep.command(COMMAND);
  const dialog = dialogOf(keep);
  await dialog.locator('.jp-mod-accept').click();
  await dialog.getByRole('alert').filter({ hasText: 'Another job runs in this kernel.' }).waitFor();
  await keep.screenshot('refused');
  await dialog.locator('.jp-mod-reject').click();
  await dialog.waitFor({ state: 'detached' });
  equal((await jobs()).length, 1, 'jobs');
});

await check('the kernel shall end with the job', async () => {
  end = await begin('end.ipynb');
  await end.command(COMMAND);
  const dialog = dialogOf(end);
  await dialog.getByLabel('Begin with').selectOption('3');
  await dialog.getByLabel('The kernel afterwards').selectOption('end');
  await dialog.locator('.jp-mod-accept').click();
  await toast(end, /^Job [0-9a-f]{8} of end.ipynb is running/).waitFor();
  await until(async () => (await jobOf('end')).cell === 1, 20, 'its first cell runs');
}, 120);

await check('a page that stays open shows all outputs', async () => {
  const other = await lab.open('other.ipynb');
  await other.connected(60);
  await other.command(COMMAND);
  await dialogOf(other).locator('.jp-mod-accept').click();
  await toast(other, 'has succeeded').waitFor({ timeout: 40000 });
  await other.printed(0, 'one');
  await other.printed(1, '29');
  await other.printed(2, 'three');
  equal((await other.output(1)).trim().split(/\s+/), Array.from({ length: 30 }, (_, i) => String(i)), 'its lines');
  equal(await toast(other, 'has succeeded').getByRole('button', { name: 'Use its kernel' }).count(), 0, 'offers of its own kernel');
  await other.save();
  equal(metadata('other.ipynb').ekg, undefined, 'what the file names');
}, 120);

await check('browser and Jupyter server are closed, and the jobs end', async () => {
  equal((await rest('/api/kernels')).length, 3, 'kernels');
  await lab.stop();
  const left = (await rest('/api/kernels')).map(k => k.id);
  equal([left.length, left.includes(kernel)], [2, true], 'kernels that the Jupyter server has left');
  equal(await states(), ['running', 'running'], 'jobs');
  writeFileSync(GO, '');
  await until(async () => (await states()).every(state => state === 'succeeded'), 30, 'the jobs have succeeded');
  await until(async () => (await rest('/api/kernels')).length === 1, 20, 'one kernel is ended');
}, 120);

await check('a new JupyterLab shows the outputs, and uses the kernel that was kept', async () => {
  lab = await Lab.start({ name: 'jobs-live-later', files });
  keep = await lab.open('keep.ipynb');
  await keep.printed(4, 'end');
  equal(await shown(keep), OUTPUTS, 'the outputs');
  await keep.screenshot('later');
  await toast(keep, 'has succeeded').getByRole('button', { name: 'Use its kernel' }).click();
  const used = async () => (await (await fetch(`${lab.url}/api/sessions`)).json()).map(session => session.kernel.id);
  await until(async () => (await used()).includes(kernel), 20, 'the notebook has the kernel');
  await keep.connected(20);
  await keep.cell(4).locator('.cm-content').click();
  await keep.page.keyboard.press('Control+End');
  await keep.page.keyboard.type('; print(y + 1)');
  await keep.run(4);
  await keep.printed(4, '43');
  await keep.save();
  equal(metadata('keep.ipynb').ekg, undefined, 'what the file names');
  equal((await rest('/api/kernels')).map(k => k.id), [kernel], 'kernels');
}, 120);

await check('a new JupyterLab shows the outputs of the kernel that was ended', async () => {
  end = await lab.open('end.ipynb');
  await end.printed(4, 'end');
  equal(await shown(end), OUTPUTS, 'the outputs');
  await toast(end, 'has succeeded').waitFor();
  equal(await toast(end, 'has succeeded').getByRole('button', { name: 'Use its kernel' }).count(), 0, 'offers of a kernel');
}, 60);

await check('a kernel of the Jupyter server itself has no such command', async () => {
  const local = await Lab.start({ name: 'jobs-live-local', gateway: '' });
  local.write('local.ipynb', ['1']);
  const notebook = await local.open('local.ipynb');
  await notebook.connected(60);
  equal(await notebook.page.evaluate(id => window.jupyterapp.commands.hasCommand(id), COMMAND), false, 'the command');
  await local.stop();
  equal(await enabled(end), true, 'the command is enabled in the other one');
}, 120);

await check('no token of the gateway reaches the browser', async () => {
  equal(requests.filter(r => r.includes(TOKEN)), [], 'requests with the token');
});
await lab.stop();
rmSync(files, { recursive: true, force: true });
finish();
