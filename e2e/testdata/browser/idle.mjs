// Tests JupyterLab with several open notebooks whose user only switches between them. Their kernels are culled on time,
// the page shows the reason, and a culled kernel can be started again.
//
// EKG_IDLE is the gateway's idle timeout in seconds. Screenshots and logs go to EKG_ARTIFACTS.
import { check, equal, finish, rest, until } from '../js/checks.mjs';
import { Lab } from './lab.mjs';

const IDLE = Number(process.env.EKG_IDLE);
// Seconds for a busy machine. Each tab is shown every few seconds: a kernel for which that counted would live on.
const SLACK = 20;
const TABS = 10;
const pause = seconds => new Promise(resolve => setTimeout(resolve, seconds * 1000));

const lab = await Lab.start();
await check('idle tabs while a user switches between them', async () => {
  const tabs = [];
  const ran = {}; // by kernel: when its cell was run, and when the page had shown its end
  const seen = new Set();
  for (let i = 0; i < TABS; i++) {
    const name = `tab${i}.ipynb`;
    lab.write(name, ["kept = 1\nprint('run')", "print('kept' in dir())"]);
    tabs.push(i === 0 ? await lab.open(name) : await tabs[0].openBeside(name));
    await tabs[i].connected(60);
    const began = Date.now();
    await tabs[i].run(0);
    await tabs[i].finished(0);
    const ended = Date.now();
    const fresh = (await rest('/api/kernels')).find(k => !seen.has(k.id));
    seen.add(fresh.id);
    ran[fresh.id] = { began, ended };
  }
  // Every switch makes JupyterLab send requests to the kernel.
  const last = Date.now();
  let culled = [];
  for (let i = 0; culled.length < TABS && Date.now() < last + (IDLE + SLACK) * 1000; i++) {
    await tabs[0].command('docmanager:open', { path: `tab${i % TABS}.ipynb`, factory: 'Notebook' });
    await pause(0.7);
    if (await tabs[0].dialog.count()) await tabs[0].dialog.locator('button').last().click();
    culled = await rest('/api/kernels?culled=1');
  }
  equal(culled.map(k => k.id).sort(), Object.keys(ran).sort(), 'culled kernels');
  for (const k of culled) {
    const [early, late] = [ran[k.id].began, ran[k.id].ended].map(at => (Date.parse(k.culled_at) - at) / 1000 - IDLE);
    console.log(`# ${k.id} was culled ${late.toFixed(1)} s after its time: ${k.reason}`);
    if (early < 0 || late > SLACK) throw new Error(`${k.id} was culled ${late} s after its time`);
  }
  await tabs[0].command('docmanager:open', { path: 'tab0.ipynb', factory: 'Notebook' });
  await tabs[0].printed(0, '[ekg] This kernel was ended at', 30);
  await tabs[0].printed(0, `it was idle for ${IDLE}s`, 30);
  equal((await tabs[0].output(0)).includes('will be ended'), false, 'the warning is still there');
  await tabs[0].screenshot('idle tab');
  const first = Object.keys(ran)[0];
  await rest(`/api/kernels/${first}/restart`, { method: 'POST' });
  // A new page is needed: a reloaded page shows the tab of its last saved layout, which may be seconds old.
  await tabs[0].close();
  const late = await lab.open('tab1.ipynb'); // a page that is opened afterwards shows a dialog
  await late.dialog.getByText(`it was idle for ${IDLE}s`).waitFor({ timeout: 60000 })
    .catch(async e => { await late.screenshot('no dialog'); throw e; });
  await late.close();
  const again = await lab.open('tab0.ipynb');
  await again.connected(30);
  await again.run(1);
  await again.printed(1, 'False', 30);
  const state = async () => (await rest('/api/kernels')).find(k => k.id === first)?.execution_state;
  await until(async () => await state() === 'idle', 60, 'the kernel under its id is idle');
}, 400);
await lab.stop();
finish();
