// Tests what jupyter-scheduler's dialog and list say when something is wrong, in JupyterLab with jupyter-ekg.
//
// EKG_CONTROL is the address of the test that started the gateway. EKG_FLAVORS is the gateway's file of flavors, which has
// "fast" and "slow". EKG_MAX_BODY are the bytes that the gateway accepts. Screenshots go to EKG_ARTIFACTS.
import { readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { check, equal, finish, rest, until } from '../js/checks.mjs';
import { JobsPanel, startLab } from './jobspanel.mjs';
import { ARTIFACTS } from './lab.mjs';

const { EKG_CONTROL: CONTROL, EKG_FLAVORS: FLAVORS, EKG_MAX_BODY: MAX_BODY } = process.env;
const HOSTILE = `<img src=x onerror="window.owned=1"> ;&#%'.ipynb`;
const lab = await startLab('job-errors');
lab.write('small.ipynb', ['print("ran")']);
lab.write('large.ipynb', [`"${'x'.repeat(8 << 20)}"`]); // more than what a connection buffers
lab.write(HOSTILE, ['print("ran")']);

async function control(what) {
  const response = await fetch(`${CONTROL}/${what}`, { method: 'POST' });
  if (!response.ok) throw new Error(`${what}: ${await response.text()}`);
}

const notebook = await lab.open('small.ipynb');
await notebook.connected(60);
const { page } = notebook;
const jobs = new JobsPanel(notebook);

/** Opens another notebook in a tab of the page. Its kernel is up then: a start that fails later would open a dialog. */
async function beside(name) {
  const before = (await rest('/api/kernels')).length;
  await notebook.command('docmanager:open', { path: name, factory: 'Notebook' });
  await page.locator('.lm-DockPanel-tabBar .lm-TabBar-tab', { hasText: name }).waitFor();
  await until(async () => {
    const kernels = await rest('/api/kernels');
    return kernels.length > before && kernels.every(kernel => kernel.execution_state === 'idle' && kernel.connections > 0);
  }, 40, `the kernel of ${name} is connected`);
}

const screenshot = name => page.screenshot({ path: join(ARTIFACTS, `${name}.png`) });
const none = async () => equal((await rest('/api/jobs')).length, 0, 'jobs');

await check('a flavor that the user may not choose any more', async () => {
  await jobs.dialog('flavor');
  await jobs.panel.getByText('fast', { exact: true }).first().waitFor();
  writeFileSync(FLAVORS, 'flavors:\n- {name: slow, none: true}\n');
  await jobs.create();
  await jobs.says('You may not use the flavor "fast", which the request asks for. You may choose: slow.');
  await screenshot('flavor');
  await none();
});

await check('a notebook that is too large', async () => {
  await beside('large.ipynb');
  await jobs.dialog('large', 'large.ipynb');
  await jobs.create();
  await jobs.says(`the notebook is too large for the gateway: The body is larger than ${MAX_BODY} bytes.`);
  await screenshot('large');
  await none();
}, 90);

await check('a gateway that is away', async () => {
  await jobs.dialog('away');
  await control('kill');
  await jobs.create();
  await jobs.says('the gateway does not answer: Connection refused');
  await screenshot('away');
  await control('start');
  await jobs.create();
  await jobs.row('away', 'Completed');
  await control('kill');
  await jobs.reload();
  await jobs.says('the gateway does not answer: Connection refused');
  await screenshot('away-list');
  await control('start');
  await jobs.row('away', 'Completed');
});

await check('names with hostile characters', async () => {
  await beside(HOSTILE);
  await jobs.dialog('', HOSTILE);
  await jobs.create();
  await until(() => readdirSync(lab.files).some(name => name.startsWith(HOSTILE.replace('.ipynb', '-2'))), 60,
    'the result is beside the original');
  // Another client may send any text.
  const [{ id }] = await rest('/api/jobs?name=away');
  const source = await rest(`/api/jobs/${id}/notebook?source=1`);
  await rest('/api/jobs', { method: 'POST', body: JSON.stringify({
    notebook: source, name: HOSTILE, input_path: `../../../${HOSTILE}`, tags: [HOSTILE], kernelspec: 'python3' }) });
  const line = await jobs.row(HOSTILE, 'Completed');
  equal((await line.innerText()).split(HOSTILE).length, 3, 'parts of the row around the name and the path');
  await line.getByText(HOSTILE).first().click();
  await until(async () => {
    const text = await jobs.panel.innerText();
    return text.includes('Job ID') && text.split(HOSTILE).length > 3;
  }, 20, 'the details of the job have its name and its path');
  await screenshot('hostile');
  equal(await page.evaluate(() => window.owned), undefined, 'what the name has set');
}, 90);

await lab.stop();
finish();
