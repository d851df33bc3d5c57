// Tests that the operator's page lists the replicas of a cluster, in Chromium.
//
// EKG_URL leads to all replicas in turn, and EKG_TOKEN is an admin's token. EKG_REPLICAS are their names, and
// EKG_VERSION is their version. POST EKG_CONTROL kills EKG_KILLED, one of them, which the cluster starts again.
import { join } from 'node:path';

import { check, equal, finish, rest, TOKEN, until, URL } from '../js/checks.mjs';
import { ARTIFACTS } from './lab.mjs';
import { browser, open } from './operator.mjs';

const { EKG_CONTROL: CONTROL, EKG_KILLED: KILLED, EKG_VERSION: VERSION } = process.env;
const names = process.env.EKG_REPLICAS.split(',');
const page = await open(`${URL}/#token=${TOKEN}`);
const replica = name => page.getByRole('region', { name: 'Table of gateways' }).getByRole('row')
  .filter({ hasText: name });

/** The texts of a replica's row: name, health, version and start. */
const cells = async name => (await replica(name).getByRole('cell').allTextContents()).map(t => t.trim());

const bothReady = async () => {
  const rows = await Promise.all(names.map(cells));
  return rows.every(([, health, version, started]) => health === 'ready' && version === VERSION && started !== '');
};

await check('the page lists all replicas with health, version and start', async () => {
  await until(bothReady, 40, 'all are ready');
  const self = (await Promise.all(names.map(cells))).filter(([name]) => name.endsWith('(this one)'));
  equal(self.length, 1, 'replicas that have answered');
}, 60);

await check('a replica that is killed is shown as not ready, and is ready again', async () => {
  const started = (await cells(KILLED))[3];
  let known = false;
  await until(async () => {
    await fetch(CONTROL, { method: 'POST' });
    if (!known) {
      const one = (await rest('/api/gateways').catch(() => [])).find(g => g.name === KILLED);
      known = one?.ready === false && Boolean(one.problem);
    }
    const [, health] = await cells(KILLED);
    return known && health?.startsWith('not ready ');
  }, 60, 'the API and the page say that it is not ready, and why');
  await page.screenshot({ path: join(ARTIFACTS, 'replicas.png'), fullPage: true });
  await until(bothReady, 100, 'all are ready again');
  const again = (await cells(KILLED))[3];
  if (again === started) throw new Error(`its start is still ${started}`);
  const others = (await rest('/api/gateways')).map(g => g.name).sort();
  equal(others, names, 'the replicas');
}, 180);
await browser.close();
finish();
