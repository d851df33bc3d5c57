// Tests jupyter-ekg with two users, each with an own JupyterLab. Ann's kernel has run a cell whose output has a script.
//
// EKG_TOKEN_ANN and EKG_TOKEN_BOB are the users' tokens. Screenshots and logs go to EKG_ARTIFACTS.
import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import { check, equal, finish, URL } from '../js/checks.mjs';
import { EXTENSION, Lab } from './lab.mjs';

const ANN = process.env.EKG_TOKEN_ANN, BOB = process.env.EKG_TOKEN_BOB;
const CELL = `from IPython.display import HTML, display
display(HTML("<b>bold</b><script>window.scriptRan = true</script>"))`;

async function ask(token, method, path, body, base = URL) {
  const headers = { 'Content-Type': 'application/json', ...(token && { Authorization: `token ${token}` }) };
  const response = await fetch(base + path, { method, headers, body: body && JSON.stringify(body) });
  const text = await response.text();
  if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text.slice(0, 300)}`);
  return text ? JSON.parse(text) : undefined;
}

/** Opens a notebook whose saved cell has no output. Returns whether the script in the restored output ran. */
async function scriptRuns(lab, name, title) {
  const notebook = await lab.open(name);
  try {
    await notebook.printed(0, 'bold', 30);
    await notebook.screenshot(title);
    return await notebook.page.evaluate(() => window.scriptRan === true);
  } finally {
    await notebook.close();
  }
}

/** Runs `jupyter ekg restore` with Bob's token, and returns its output and errors. */
function restore(file, ...options) {
  const env = { ...process.env, PYTHONPATH: EXTENSION, JUPYTER_GATEWAY_URL: URL, JUPYTER_GATEWAY_AUTH_TOKEN: BOB };
  return new Promise(resolve => {
    execFile(join(EXTENSION, 'bin/jupyter-ekg'), ['restore', file, ...options], { env }, (_, out, err) => resolve(out + err));
  });
}

const ann = await Lab.start({ token: ANN, name: 'ann' });
const bob = await Lab.start({ token: BOB, name: 'bob', options: ['--ServerApp.disable_check_xsrf=True'] });
let kernel;

await check('a script in the output of one\'s own run is restored, too', async () => {
  ann.write('a.ipynb', [CELL]);
  const notebook = await ann.open('a.ipynb');
  await notebook.connected(60);
  await notebook.run(0);
  await notebook.finished(0);
  await notebook.close();
  [kernel] = await ask(ANN, 'GET', '/api/kernels');
  equal(await scriptRuns(ann, 'a.ipynb', 'own run'), true, 'the script ran');
}, 150);

await check('it does not run in the page of another user', async () => {
  await ask(ANN, 'PATCH', `/api/kernels/${kernel.id}`, { shared_with: [{ user: 'bob', right: 'use' }] });
  bob.write('b.ipynb', [CELL]);
  await ask('', 'POST', '/api/sessions', { path: 'b.ipynb', name: 'b', type: 'notebook', kernel: { id: kernel.id } }, bob.url);
  equal(await scriptRuns(bob, 'b.ipynb', 'run of another user'), false, 'the script ran');
}, 90);

await check('it does not run while another user may use the kernel', async () => {
  equal(await scriptRuns(ann, 'a.ipynb', 'shared kernel'), false, 'the script ran');
}, 90);

await check('jupyter ekg restore takes another user\'s run only from a named kernel', async () => {
  bob.write('c.ipynb', [CELL]);
  const file = join(bob.files, 'c.ipynb');
  const before = readFileSync(file, 'utf8');
  const said = await restore(file, '--gateway-url', URL);
  for (const words of [`are not searched: ${kernel.id}`, 'no kernel has run']) {
    if (!said.includes(words)) throw new Error(`the command does not say ${JSON.stringify(words)}: ${said}`);
  }
  const through = await restore(file, '--server', bob.url);
  if (!through.includes(`are not searched: ${kernel.id}`)) throw new Error(`through Bob's server: ${through}`);
  equal(readFileSync(file, 'utf8'), before, 'the file');
  const named = await restore(file, '--gateway-url', URL, '--kernel', kernel.id);
  if (!named.includes('cell 1 [1]: 1 output restored')) throw new Error(`with --kernel: ${named}`);
}, 60);

await check('it does not run after the right to use the kernel was withdrawn', async () => {
  await ask(ANN, 'PATCH', `/api/kernels/${kernel.id}`, { shared_with: [] });
  equal(await scriptRuns(ann, 'a.ipynb', 'withdrawn'), false, 'the script ran');
  await ask(ANN, 'POST', `/api/kernels/${kernel.id}/restart`);
  equal((await ask(ANN, 'GET', `/api/kernels/${kernel.id}`)).shared_to_use, true, 'shared_to_use after a restart');
}, 90);

await ask(ANN, 'DELETE', `/api/kernels/${kernel.id}`);
await ann.stop();
await bob.stop();
finish();
