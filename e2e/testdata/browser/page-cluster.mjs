// Tests the operator's page in Chromium with kernels in pods.
//
// EKG_URL is the gateway's base URL and EKG_TOKEN an admin's token. These are kernels, those of ann with (ann):
// EKG_FIRST has printed. No node can take EKG_SECOND and EKG_LACKS (ann). EKG_COMPUTES (ann) and EKG_IDLES use and do
// not use a share of a GPU. EKG_FAILS cannot be started, and EKG_CULLED (ann) is culled. POST EKG_OTHER_CONTROL/kill
// and /start end and start the gateway EKG_OTHER.
import { join } from 'node:path';

import { check, equal, finish, rest, TOKEN, until, URL } from '../js/checks.mjs';
import { ARTIFACTS } from './lab.mjs';
import { accessible, act, browser, confirm, live, open, row } from './operator.mjs';

const { EKG_FIRST: FIRST, EKG_SECOND: SECOND, EKG_COMPUTES: COMPUTES, EKG_IDLES: IDLES, EKG_LACKS: LACKS,
  EKG_FAILS: FAILS, EKG_CULLED: CULLED } = process.env;
const short = id => id.slice(0, 8);
const table = (page, name) => page.getByRole('region', { name: `Table of ${name}` }).getByRole('row');
// FIRST runs in a pod and has printed, and no node can take SECOND.
const cluster = await open(`${URL}/#token=${TOKEN}`);
await check('kernels that wait have their place and reason', async () => {
  await row(cluster, FIRST).waitFor({ timeout: 30000 });
  const waiting = id => table(cluster, 'waiting kernels').filter({ hasText: short(id) });
  const large = 'no node can take it (no node has so much cpu)';
  await waiting(SECOND).filter({ hasText: large }).waitFor({ timeout: 30000 });
  const none = '0 of at most 0 kernels with the flavor slice run';
  await waiting(LACKS).filter({ hasText: none }).waitFor({ timeout: 30000 });
  for (const [id, place, of] of [[SECOND, '1 of 2', 'operator'], [LACKS, '2 of 2', 'ann']]) {
    equal(await waiting(id).getByRole('cell').first().textContent(), place, 'the place by age');
    await waiting(id).getByRole('button', { name: ` of ${of} ${short(id)}` }).waitFor();
  }
  await table(cluster, 'gateways').getByText('ready').waitFor();
});
await check('nodes and devices with GPUs, what is allocated, what computes and who holds it', async () => {
  await until(async () => (await Promise.all([COMPUTES, IDLES].map(id => rest(`/api/kernels/${id}`))))
    .every(k => typeof k.gpu?.[0]?.utilization === 'number'), 60, 'both GPUs are measured');
  const node = cluster.getByRole('region', { name: 'GPUs of node1' });
  await cluster.getByText('All nodes, aliyun.com/gpu-mem: 8 of 28 GiB allocated, 4 busy').waitFor({ timeout: 30000 });
  const pool = node.getByRole('row').filter({ hasText: '8 of 28 GiB' });
  await pool.getByRole('img', { name: '8 of 28 GiB allocated, 4 of 8 measured are busy' }).waitFor();
  for (const [device, id, owner, busy, use] of [[0, COMPUTES, 'ann', 4, 60], [1, IDLES, 'operator', 0, 0]]) {
    const held = node.getByRole('row').filter({ hasText: `Device ${device}` });
    await held.getByRole('img', { name: `device ${device}: 4 of 14 GiB allocated, ${busy} of 4 measured` }).waitFor();
    const state = busy ? 'busy' : 'idle since ';
    await held.filter({ hasText: `${owner} ${short(id)} 4 GiB, ${state}` }).waitFor();
    const curve = `^device ${device} of node1: ${use} % busy now; in the last .* on average, ${use} % at most$`;
    await held.getByRole('img', { name: new RegExp(curve) }).waitFor({ timeout: 30000 });
  }
  const free = node.getByRole('row').filter({ hasText: 'nvidia.com/gpu' }).first(); // other tests may hold some
  await free.filter({ hasText: / of 4 GPU/ }).waitFor();
  await node.getByRole('button', { name: `ann ${short(COMPUTES)}` }).click();
  await cluster.getByText('GPU of tests GPU-of-tests').waitFor({ timeout: 20000 });
  await cluster.getByRole('img', { name: /^GPU of tests: 60 % busy now/ }).waitFor({ timeout: 30000 });
  await cluster.getByRole('button', { name: 'All kernels' }).click();
}, 150);
await check('limits of a user and a group, and how far each is reached', async () => {
  const limit = (name, of) => table(cluster, 'limits').filter({ hasText: name }).filter({ hasText: of });
  for (const [name, of, text] of [['kernels-per-user', 'ann', '2 of 7 kernels'],
    ['kernels-per-group', 'vision', '2 of 5 kernels'], ['gpus-per-group', 'vision', /^1\.2[89] of 2 GPUs$/]]) {
    await limit(name, of).getByRole('img', { name: text, exact: true }).waitFor({ timeout: 60000 });
  }
  const bar = await limit('gpus-per-group', 'vision').locator('.bar > span').evaluate(b => parseFloat(b.style.width));
  equal(Math.round(bar), 64, 'percent of the bar');
}, 90);
await check('kernels that were culled and that failed are listed with their reasons', async () => {
  const endings = async () => {
    const all = await rest('/api/kernels?ended=1');
    return [CULLED, FAILS].every(id => all.some(k => k.id === id));
  };
  await until(endings, 60, 'both have ended');
  await cluster.reload(); // the list is read once a minute
  const ended = id => table(cluster, 'ended kernels').filter({ hasText: short(id) });
  for (const [id, name, reason] of [[CULLED, 'pod of ann', 'it was idle for '],
    [FAILS, 'exits of operator', 'these are my last words']]) {
    await ended(id).filter({ hasText: name }).filter({ hasText: reason }).waitFor({ timeout: 20000 });
  }
}, 120);
await check('usage of each user, as a table and as a plot', async () => {
  const measured = async () => {
    const { usage } = await rest('/api/usage?since=24h');
    const of = name => usage.find(u => u.name === name);
    return of('ann')?.busy_seconds > 1 && of('operator')?.measured_seconds > 1;
  };
  await until(measured, 100, 'the use of both users is measured');
  await cluster.reload();
  for (const [user, busy] of [['ann', /^([1-9]\d* s|\d+ min)$/], ['operator', /^0 s$/]]) {
    const cells = table(cluster, 'usage').filter({ hasText: user }).getByRole('cell');
    await cells.first().waitFor({ timeout: 20000 });
    const [, lived, held, used] = await cells.allTextContents();
    for (const [what, got, want] of [['kernel time', lived, /^([1-9]\d* s|\d+ min)$/],
      ['held', held, /^([1-9]\d* s|\d+ min)$/], ['busy', used, busy]]) {
      if (!want.test(got)) throw new Error(`${what} of ${user}: ${got}`);
    }
  }
  await cluster.getByRole('img', { name: 'GPUs held of each user over time' }).locator('canvas').waitFor();
  await cluster.getByLabel('Shown use').selectOption('Kernels');
  await cluster.getByLabel('Time of usage').selectOption('Last 24 hours');
  const plot = cluster.getByRole('img', { name: 'Kernels of each user over time' });
  const both = /: (ann 0\.\d+, operator|operator 0\.\d+, ann) 0\.\d+/;
  const reading = cluster.locator('.reading').filter({ hasText: both });
  let right = 0;
  await until(async () => { // the step of now is at the right, and all before it are empty
    await plot.scrollIntoViewIfNeeded();
    const box = await plot.boundingBox();
    right = (right + 4) % 40;
    await cluster.mouse.move(box.x + box.width - right, box.y + 100);
    return await reading.count() === 1;
  }, 20, 'the plot tells the numbers of both users');
  await accessible(cluster, 'a cluster');
  await cluster.screenshot({ path: join(ARTIFACTS, 'cluster.png'), fullPage: true });
}, 180);
await check('a kernel in a pod has its timeline, memory and output', async () => {
  await row(cluster, FIRST).click();
  for (const kind of ['created', 'pulled', 'started', 'ready']) {
    await cluster.getByRole('list', { name: 'Events' }).getByText(kind, { exact: true }).waitFor({ timeout: 20000 });
  }
  await cluster.getByText(/^\d+ MiB$/).waitFor({ timeout: 40000 });
  await cluster.getByRole('button', { name: 'Show the output' }).click();
  await cluster.locator('pre').filter({ hasText: 'from a pod' }).waitFor({ timeout: 20000 });
}, 90);
await check('a kernel in a pod is shared, kept, interrupted and restarted', async () => {
  await act(cluster, 'Share');
  await cluster.getByRole('textbox').fill('user ann read');
  await confirm(cluster, 'Share');
  await cluster.getByText('ann (read)').waitFor({ timeout: 10000 });
  for (const name of ['Keep', 'Interrupt', 'Restart']) {
    await act(cluster, name);
    await confirm(cluster, name);
  }
  for (const kind of ['kept', 'interrupted', 'restarted']) {
    await cluster.getByRole('list', { name: 'Events' }).getByText(kind, { exact: true }).waitFor({ timeout: 30000 });
  }
  const ann = await open(`${URL}/#token=token-ann`);
  await row(ann, FIRST).waitFor({ timeout: 20000 });
  equal(await row(ann, SECOND).count(), 0, 'rows of a kernel that is not shared');
  await ann.context().close();
  await cluster.getByRole('button', { name: 'All kernels' }).click();
}, 120);
await check('a second gateway shows the same kernels, is killed and comes back', async () => {
  const other = await open(`${process.env.EKG_OTHER}/#token=${TOKEN}`);
  await row(other, FIRST).waitFor({ timeout: 20000 });
  await row(other, SECOND).waitFor({ timeout: 20000 });
  await fetch(`${process.env.EKG_OTHER_CONTROL}/kill`, { method: 'POST' });
  await other.getByText('The page').waitFor({ timeout: 20000 });
  await row(other, FIRST).waitFor(); // what was known stays
  await live(cluster);
  const answer = await fetch(`${process.env.EKG_OTHER_CONTROL}/start`, { method: 'POST' });
  if (!answer.ok) throw new Error(await answer.text());
  await live(other);
  await row(other, FIRST).waitFor();
  await other.context().close();
}, 90);
await check('a kernel that waits has a timeline, and is stopped', async () => {
  await row(cluster, SECOND).click();
  await cluster.getByText('The kernel has no supervisor yet.').waitFor({ timeout: 20000 });
  await act(cluster, 'Stop');
  await confirm(cluster, 'Stop');
  await cluster.getByText('This kernel does not exist any more.').waitFor({ timeout: 30000 });
  equal(cluster.elsewhere, [], 'requests to other places');
  equal(cluster.problems.filter(p => !p.includes('404')), [], 'problems in the console');
}, 90);
await browser.close();
finish();
