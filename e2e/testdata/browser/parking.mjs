// Tests in JupyterLab that a parked kernel is woken ahead of its cell.
//
// The kernelspec "gpu" asks for the only GPU, and the gateway parks its kernel after a second without a cell. EKG_CODE
// defines begin and held.
import { check, equal, finish, rest, until } from '../js/checks.mjs';
import { Lab } from './lab.mjs';

const lab = await Lab.start();
lab.write('model.ipynb', [`${process.env.EKG_CODE}begin(60 << 20, "hers")`, 'print(held())'], 'gpu');
const notebook = await lab.open('model.ipynb');
const { page } = notebook;
const wakes = []; // the answers to the page's messages
page.on('response', r => r.url().endsWith('/wake') && wakes.push(r.status()));

const kernel = async () => (await rest('/api/kernels'))[0];
const gpu = (state, seconds) =>
  until(async () => (await kernel())?.parked?.state === state, seconds, `the GPU is ${state}`)
    .catch(async e => { throw new Error(`${e.message}; the model is ${JSON.stringify(await kernel())}`); });

await check('an idle kernel is parked', async () => {
  await notebook.connected(60);
  await notebook.run(0);
  await notebook.finished(0, 40);
  await gpu('parked', 60);
  await notebook.printed(0, 'has given its GPU back');
}, 120);

await check('typing wakes it before the cell runs, and nobody is told to wait', async () => {
  const { last_activity } = await kernel();
  await notebook.cell(1).locator('.cm-content').click();
  await page.keyboard.type('  ');
  await gpu('held', 20);
  equal(await notebook.prompt(1), '[ ]:', 'no cell has run');
  equal((await kernel()).last_activity, last_activity, 'the kernel was not used');
  const output = await notebook.output(0);
  if (/GPU/.test(output)) throw new Error(`below the cell stands ${output}`);
  await page.keyboard.type('    ', { delay: 200 });
  equal(wakes.every(status => status === 202), true, `the answers to the page, which are ${wakes},`);
  equal(wakes.length < 8, true, `${wakes.length} messages are few`);
}, 60);

await check('without a cell it is parked again', () => gpu('parked', 60), 90);

await check('its cell has its variables', async () => {
  await notebook.run(1);
  await notebook.printed(1, 'hers');
}, 60);

await lab.stop();
finish();
