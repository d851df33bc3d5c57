// Tests the operator's page in Chromium with kernels in pods.
//
// EKG_URL is the gateway's base URL and EKG_TOKEN an admin's token. EKG_FIRST is a kernel in a pod that has printed. No
// node can take EKG_SECOND. POST EKG_OTHER_CONTROL/kill and /start end and start the gateway EKG_OTHER.
import { check, equal, finish, TOKEN, URL } from '../js/checks.mjs';
import { accessible, act, browser, confirm, live, open, row } from './operator.mjs';

const { EKG_FIRST: FIRST, EKG_SECOND: SECOND } = process.env;
// FIRST runs in a pod and has printed, and no node can take SECOND.
const cluster = await open(`${URL}/#token=${TOKEN}`);
await check('a kernel that waits has its place and reason', async () => {
  await row(cluster, FIRST).waitFor({ timeout: 30000 });
  const waiting = cluster.getByRole('region', { name: 'Table of waiting kernels' }).getByRole('row')
    .filter({ hasText: SECOND.slice(0, 8) });
  await waiting.filter({ hasText: 'no node can take it' }).waitFor({ timeout: 30000 });
  equal(await waiting.getByRole('cell').first().textContent(), '1 of 1', 'the place by age');
  await cluster.getByRole('region', { name: 'Table of gateways' }).getByText('ready').waitFor();
  await accessible(cluster, 'a cluster');
});
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
