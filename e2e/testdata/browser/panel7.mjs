// Tests jupyter-ekg's panel of kernels in Notebook 7, which has a left sidebar in each page and no status bar.
//
// EKG_NOTEBOOK7 is the folder of hack/env/notebook. Screenshots go to EKG_ARTIFACTS.
import { check, equal, finish, rest, until } from '../js/checks.mjs';
import { Lab, Notebook } from './lab.mjs';

const lab = await Lab.start({ notebook7: true, name: 'notebook7' });
lab.write('train.ipynb', ["print('once')", '6 * 7']);
const problems = [];
const streams = []; // pages that have asked for the stream of kernels

/** Opens a page of Notebook 7. */
async function open(path) {
  const page = await lab.context.newPage();
  page.setDefaultTimeout(20000);
  page.on('pageerror', e => /ekg/.test(e.stack) && problems.push(`${path}: ${e.stack}`)); // Notebook has errors of its own
  page.on('console', m => m.type() === 'error' && /ekg/.test(m.text()) && problems.push(`${path}: ${m.text()}`));
  page.on('dialog', dialog => dialog.accept());
  page.on('request', r => r.url().includes('/jupyter-ekg/events') && streams.push(path));
  const notebook = new Notebook(lab, page, path);
  await page.goto(`${lab.url}/${path}`);
  await page.waitForFunction(() => window.jupyterapp?.commands.hasCommand('jupyter-ekg:show-kernels'));
  return notebook;
}

const panelOf = notebook => notebook.page.locator('.jp-ekg-Kernels');
const rowOf = (notebook, text) => panelOf(notebook).locator('.jp-ekg-row', { hasText: text });

const notebook = await open('notebooks/train.ipynb');

await check('the panel is in the sidebar of a notebook', async () => {
  await notebook.shown();
  await until(async () => (await rest('/api/kernels')).some(k => k.execution_state === 'idle'), 60, 'the kernel is idle');
  equal(streams, [], 'pages that follow the kernels before the panel was shown');
  await notebook.command('jupyter-ekg:show-kernels');
  await rowOf(notebook, 'train.ipynb').waitFor();
  await rowOf(notebook, 'Idle').waitFor();
  equal(streams, ['notebooks/train.ipynb'], 'pages that follow the kernels then');
  await notebook.screenshot('notebook7');
  equal(await notebook.page.locator('.jp-ekg-Status').count(), 0, 'items of a status bar');
}, 120);

await check('its menus and dialogs work', async () => {
  await rowOf(notebook, 'train.ipynb').getByRole('button', { name: /^Keep/ }).click();
  await notebook.page.locator('.lm-Menu-item').filter({ hasText: 'Keep for 4 Hours' }).click();
  await rowOf(notebook, 'Kept until').waitFor();
  await rowOf(notebook, 'train.ipynb').getByRole('button', { name: /^Actions/ }).click();
  await notebook.page.locator('.lm-Menu-item').filter({ hasText: 'Interrupt…' }).click();
  await notebook.page.locator('.jp-Dialog').getByText('Variables stay').waitFor();
  await notebook.page.locator('.jp-Dialog .jp-mod-accept').click();
});

await check('the page is reloaded', async () => {
  await notebook.save();
  await notebook.page.reload();
  await notebook.shown();
  await notebook.command('jupyter-ekg:show-kernels');
  await rowOf(notebook, 'train.ipynb').waitFor();
});

await check('the page of files has it, too, and opens the notebook with its output', async () => {
  await notebook.run(0);
  await notebook.printed(0, 'once');
  await notebook.page.close({ runBeforeUnload: false }); // unsaved
  const tree = await open('tree');
  await tree.command('jupyter-ekg:show-kernels');
  await rowOf(tree, 'Output of 1 cell is not in the file').waitFor({ timeout: 40000 });
  await tree.screenshot('notebook7-tree');
  const opened = lab.context.waitForEvent('page');
  await rowOf(tree, 'train.ipynb').getByRole('button', { name: 'Open and restore train.ipynb' }).click();
  const page = await opened;
  await page.locator('.jp-OutputArea-output').filter({ hasText: 'once' }).waitFor({ timeout: 30000 });
}, 120);

await check('no page reports an error', async () => equal(problems, [], 'errors'));
await lab.stop();
finish();
