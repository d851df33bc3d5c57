// Follows docs/from-enterprise-gateway.md with two JupyterLabs. One is open when ekg takes over the address of Enterprise
// Gateway. The other one was connected to ekg before.
//
// EKG_CONTROL is the address of the test, which runs the commands of the document. EKG_URL is the address of Enterprise
// Gateway. Screenshots and logs go to EKG_ARTIFACTS.
import { check, equal, finish, rest, until } from '../js/checks.mjs';
import { Lab } from './lab.mjs';

/** Lets the test run the commands of a step. Returns what they print. */
async function step(name) {
  const response = await fetch(`${process.env.EKG_CONTROL}/${name}`, { method: 'POST' });
  const text = await response.text();
  if (!response.ok) throw new Error(`step ${name}: ${text}`);
  return text;
}

const env = { KERNEL_USERNAME: 'ann' };
const before = await Lab.start({ name: 'before', env });
const labs = [before];
let notebook;
await check('a kernel of Enterprise Gateway runs a cell', async () => {
  before.write('a.ipynb', ['x = 41', 'x += 1; print(x)', "print('x' in globals())"], 'python_kubernetes');
  for (let tries = 1; ; tries++) { // Enterprise Gateway drops a page's first websocket if a second one follows at once
    notebook = await before.open('a.ipynb');
    const failed = await notebook.connected(30).catch(e => e);
    if (!failed) break;
    if (tries === 4) throw failed;
    await notebook.close();
  }
  await notebook.run(0);
  await notebook.finished(0, 60);
}, 240);

let team;
await check('ekg runs the kernels of all kernelspecs, and that of Enterprise Gateway goes on', async () => {
  for (const name of ['2', '3', '4']) await step(name);
  const [url, token] = (await step('5')).trim().split('\n').slice(-2);
  const lab = await Lab.start({
    name: 'beside', gateway: '', token, env: { ...env, JUPYTER_GATEWAY_URL: url, JUPYTER_GATEWAY_AUTH_TOKEN: token },
  });
  labs.push(lab);
  const cells = ["import os\nprint(os.environ.get('TEAM'), os.path.ismount('/scratch'), os.environ['EKG_KERNEL_ID'] != '')", 'y = 1', 'print(y)'];
  const kernels = { python_kubernetes: 'None False True', python_tf_kubernetes: 'None False True', team: 'ml True True' };
  for (const [kernel, printed] of Object.entries(kernels)) {
    lab.write(`${kernel}.ipynb`, cells, kernel);
    team = team ? await team.openBeside(`${kernel}.ipynb`) : await lab.open(`${kernel}.ipynb`);
    await team.connected(90);
    await team.run(0);
    await team.printed(0, printed, 30);
  }
  await team.run(1);
  await team.finished(1);
  await notebook.run(1);
  await notebook.printed(1, '42', 30);
}, 400);

await check('an open JupyterLab loses its kernel, and starts one of ekg with the next cell', async () => {
  await step('6');
  const switched = Date.now();
  const sessions = () => [...window.jupyterapp.serviceManager.sessions.running()].length;
  let shown;
  await until(async () => {
    const status = await notebook.status();
    if (status !== shown) console.log(`# ${(Date.now() - switched) / 1000} s after the switch the page shows "${status}"`);
    shown = status;
    return await notebook.page.evaluate(sessions) === 0;
  }, 60, 'the page has noticed that its session is gone');
  console.log(`# ${(Date.now() - switched) / 1000} s after the switch the session is gone`);
  equal((await notebook.status()).split(' | ')[1], 'Disconnected', 'the status bar');
  await notebook.screenshot('switched');
  equal(notebook.dialogs, [], 'dialogs');
  await notebook.run(2);
  await notebook.printed(2, 'False', 90);
  await notebook.connected(30);
  equal((await rest('/api/kernels')).length, 4, 'kernels');
}, 200);

await check('kernels of ekg are not affected', async () => {
  await team.run(2);
  await team.printed(2, '1', 30);
  await team.finished(2, 30); // the number comes after what was printed
  equal(await team.prompt(2), '[3]:', 'the prompt');
}, 60);

for (const lab of labs) await lab.stop();
finish();
