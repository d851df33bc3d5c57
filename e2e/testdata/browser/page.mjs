// Tests the operator's page in Chromium.
//
// EKG_URL is the gateway's base URL and EKG_TOKEN an admin's token. EKG_FIRST and EKG_SECOND are kernels; the first has
// printed EKG_HOSTILE. POST EKG_CONTROL/kill and /start end and start the gateway. EKG_BUILT has the page's files.
// Screenshots go to EKG_ARTIFACTS. EKG_PICTURES is a folder for the documentation's picture; then nothing is tested.
import { join } from 'node:path';

import { check, equal, finish, rest, TOKEN, until, URL } from '../js/checks.mjs';
import { DEVICES, fakeGateway, MANY, NODES } from './fakepage.mjs';
import { ARTIFACTS } from './lab.mjs';
import { accessible, act, browser, confirm, live, open, row } from './operator.mjs';
import { keyboardChecks } from './page-keyboard.mjs';

const { EKG_FIRST: FIRST, EKG_SECOND: SECOND, EKG_CONTROL: CONTROL, EKG_HOSTILE: HOSTILE, EKG_PICTURES: PICTURES } =
  process.env;

if (PICTURES) {
  await check('the pictures', async () => {
    const page = await open(`${URL}/#token=${TOKEN}`, { viewport: { width: 1200, height: 760 } });
    await row(page, FIRST).waitFor({ timeout: 30000 });
    await live(page);
    await page.screenshot({ path: join(PICTURES, 'page.png'), animations: 'disabled' });
    await row(page, FIRST).click();
    await page.getByRole('list', { name: 'Events' }).getByText('restarted').waitFor({ timeout: 20000 });
    await page.getByRole('button', { name: 'Show the output' }).click();
    await page.locator('pre').filter({ hasText: 'epoch 2' }).waitFor({ timeout: 30000 });
    await page.screenshot({ path: join(PICTURES, 'page-kernel.png'), animations: 'disabled', fullPage: true });
  }, 120);
  await browser.close();
  finish();
}

await check('a token is asked for, sent in a header only, and kept in the tab only', async () => {
  const page = await open(`${URL}/`);
  const field = page.getByLabel('Token');
  await field.waitFor({ timeout: 20000 });
  await accessible(page, 'the form');
  await field.fill('wrong');
  await field.press('Enter');
  await page.getByText('no valid token').waitFor({ timeout: 10000 });
  await page.getByLabel('Token').fill(TOKEN);
  const asked = page.waitForRequest(r => r.url().endsWith('/api/events'));
  await page.getByLabel('Token').press('Enter');
  equal((await asked).headers().authorization, `token ${TOKEN}`, 'the header');
  await row(page, FIRST).waitFor({ timeout: 20000 });
  equal(await page.context().cookies(), [], 'cookies');
  equal(await page.evaluate(() => localStorage.length), 0, 'entries of localStorage');
  equal((await page.content()).includes(TOKEN), false, 'the token is in the document');
  await page.reload();
  await row(page, FIRST).waitFor({ timeout: 20000 });
  const other = await page.context().newPage();
  await other.goto(`${URL}/`);
  await other.getByLabel('Token').waitFor({ timeout: 20000 });
  await page.context().close();
});

await check('the URL without a slash leads to the page', async () => {
  const page = await open(URL);
  equal(page.url(), `${URL}/`, 'the address');
  await page.goto(`${URL}/?token=${TOKEN}`); // as ekg prints it
  await row(page, FIRST).waitFor({ timeout: 20000 });
  equal(page.url(), `${URL}/`, 'the address with a token');
  await page.context().close();
});

const readyGateways = of =>
  of.getByRole('region', { name: 'Table of gateways' }).getByRole('row').filter({ hasText: 'ready' });

const page = await open(`${URL}/#token=${TOKEN}`);
await check('list, search and order; the fragment has no token', async () => {
  await row(page, FIRST).waitFor({ timeout: 20000 });
  await row(page, SECOND).waitFor({ timeout: 20000 });
  equal(await page.evaluate(() => location.href.includes('token')), false, 'the token is in the address');
  await page.getByText('2 of 7 kernels').waitFor({ timeout: 15000 });
  await page.getByRole('img', { name: 'Kernels of each user over time' }).locator('canvas').waitFor();
  await page.getByRole('region', { name: 'Table of usage' }).getByText('operator').waitFor();
  await accessible(page, 'the list');
  await page.getByLabel('Search kernels').fill(FIRST);
  await row(page, SECOND).waitFor({ state: 'detached' });
  await page.getByText('1 of 2').waitFor();
  await page.getByLabel('Search kernels').fill('');
  await page.getByLabel('State').selectOption('dead');
  await page.getByText('0 of 2').waitFor();
  await page.getByLabel('State').selectOption('');
  await page.getByRole('button', { name: 'Owner' }).press('Enter');
  equal(await page.getByRole('columnheader', { name: 'Owner' }).getAttribute('aria-sort'), 'ascending', 'the order');
});

await check('details and output, whose text is not HTML', async () => {
  await row(page, FIRST).click();
  await page.getByRole('button', { name: 'Show the output' }).click();
  await page.locator('pre').filter({ hasText: HOSTILE }).waitFor({ timeout: 20000 });
  equal(await page.evaluate(() => window.hacked), undefined, 'the script in the output ran');
  for (const kind of ['created', 'started', 'ready']) {
    await page.getByRole('list', { name: 'Events' }).getByText(kind).waitFor();
  }
  await page.getByRole('img', { name: /^Busy for/ }).waitFor();
  await page.getByText(/^\d+ MiB$/).waitFor({ timeout: 30000 });
  await accessible(page, 'a kernel');
});

await keyboardChecks(FIRST, SECOND);

await check('share, keep, restart and interrupt', async () => {
  await act(page, 'Share');
  const lines = page.getByRole('textbox');
  await lines.fill('user ann look');
  await page.getByRole('dialog').getByRole('button', { name: 'Share' }).click();
  await page.getByText('Line 1 is not').waitFor();
  await lines.fill('user ann read');
  await confirm(page, 'Share');
  await page.getByText('ann (read)').waitFor({ timeout: 10000 });
  await act(page, 'Keep');
  await accessible(page, 'a dialog');
  await confirm(page, 'Keep');
  await page.getByText('Kept until').first().waitFor({ timeout: 10000 });
  await act(page, 'Interrupt');
  await confirm(page, 'Interrupt');
  await act(page, 'Restart');
  await page.getByRole('dialog').getByText("All variables and results in the kernel's memory are lost").waitFor();
  await confirm(page, 'Restart');
  for (const kind of ['kept', 'interrupted', 'restarted']) {
    const events = page.getByRole('list', { name: 'Events' }).getByText(kind, { exact: true });
    await events.last().waitFor({ timeout: 20000 }); // it was kept before, with the keyboard
  }
  await act(page, 'Stop');
  await page.keyboard.press('Escape');
  await page.getByRole('dialog').waitFor({ state: 'detached' });
  equal((await rest(`/api/kernels/${FIRST}`)).id, FIRST, 'the kernel after Escape');
}, 120);

await check('a user sees what is shared, and the reason why an action is refused', async () => {
  const ann = await open(`${URL}/#token=token-ann`);
  await row(ann, FIRST).click({ timeout: 20000 });
  equal(await ann.getByRole('button', { name: 'Stop…' }).count(), 0, 'buttons to stop');
  await act(ann, 'Restart');
  await ann.getByRole('dialog').getByRole('button', { name: 'Restart' }).click();
  await ann.getByText('You may only look at this kernel.').waitFor({ timeout: 10000 });
  await ann.context().close();
});

await check('a second gateway shows the same kernels, and each shows both', async () => {
  const other = await open(`${process.env.EKG_OTHER}/#token=${TOKEN}`);
  await row(other, FIRST).waitFor({ timeout: 20000 });
  await row(other, SECOND).waitFor({ timeout: 20000 });
  const gateways = readyGateways(other);
  await until(async () => await gateways.count() === 2, 20, 'both gateways are ready');
  await gateways.filter({ hasText: '(this one)' }).waitFor();
  await accessible(other, 'two gateways');
  equal(other.problems, [], 'problems in the console');
  await other.context().close();
  await page.getByRole('button', { name: 'All kernels' }).click();
  const seen = readyGateways(page);
  await until(async () => await seen.count() === 2, 20, 'this gateway shows both, too');
  await fetch(`${process.env.EKG_OTHER_CONTROL}/kill`, { method: 'POST' });
  await until(async () => await seen.count() === 1, 20, 'the one that was killed is gone');
  await row(page, FIRST).click();
}, 90);

await check('the gateway is killed and comes back', async () => {
  // The output of a kernel that prints without end is followed meanwhile.
  const output = await open(`${URL}/#token=${TOKEN}&kernel=${SECOND}`);
  await output.getByRole('button', { name: 'Show the output' }).click({ timeout: 20000 });
  const shown = () => output.getByLabel('Text of the output').textContent();
  const last = async () => Number(/tick (\d+)\s*$/.exec(await shown())?.[1] ?? -1);
  await until(async () => await last() >= 1, 20, 'two lines are shown');
  await page.getByRole('button', { name: 'All kernels' }).click();
  await row(page, SECOND).waitFor();
  await fetch(`${CONTROL}/kill`, { method: 'POST' });
  await page.getByText('The page').waitFor({ timeout: 20000 });
  await row(page, SECOND).waitFor(); // what was known stays
  const answer = await fetch(`${CONTROL}/start`, { method: 'POST' });
  if (!answer.ok) throw new Error(await answer.text());
  await live(page);
  const begin = await last();
  await until(async () => await last() > begin + 1, 20, 'the output goes on');
  const lines = (await shown()).match(/tick \d+/g);
  equal(lines, lines.map((_, i) => `tick ${i}`), 'the lines of the output');
  page.problems = []; // requests failed meanwhile
  await row(page, SECOND).click();
  await act(page, 'Stop');
  await confirm(page, 'Stop');
  await page.getByText('This kernel does not exist any more.').waitFor({ timeout: 20000 });
  await output.context().close();
  await page.getByRole('button', { name: 'All kernels' }).click();
  await row(page, FIRST).waitFor();
  equal(await row(page, SECOND).count(), 0, 'rows of the kernel that was stopped');
}, 90);

await check('dark and on a narrow screen', async () => {
  const small = await open(`${URL}/#token=${TOKEN}`, { viewport: { width: 360, height: 700 }, colorScheme: 'dark' });
  await row(small, FIRST).waitFor({ timeout: 20000 });
  await accessible(small, 'a narrow screen');
  const fits = await small.evaluate(() => document.documentElement.scrollWidth <= innerWidth);
  equal(fits, true, 'the page fits the screen');
  await small.screenshot({ path: join(ARTIFACTS, 'narrow.png') });
  await row(small, FIRST).click();
  await accessible(small, 'a kernel on a narrow screen');
  await small.context().close();
});

await check(`${MANY} kernels with hostile texts`, async () => {
  const fake = await fakeGateway();
  const began = Date.now();
  const many = await open(fake.url);
  await many.getByText(`${MANY} of ${MANY}`).waitFor({ timeout: 20000 });
  const shown = Date.now() - began;
  const rows = () => many.locator('.body .row').count();
  if (await rows() > 60) throw new Error(`${await rows()} rows are in the document`);
  // While the stream changes 50 kernels a second, every key is shown soon. Chromium reports tasks of 50 ms and more.
  await many.evaluate(() => {
    window.longest = 0;
    const note = list => { window.longest = Math.max(window.longest, ...list.getEntries().map(e => e.duration)); };
    new PerformanceObserver(note).observe({ type: 'longtask' });
  });
  const search = Date.now();
  await many.getByLabel('Search kernels').pressSequentially('000000004321');
  await many.getByText(`1 of ${MANY}`).waitFor();
  const typed = Date.now() - search;
  await many.getByLabel('Search kernels').fill('');
  await many.getByRole('button', { name: 'Kernel', exact: true }).click();
  await many.locator('.scroll').evaluate(box => { box.scrollTop = box.scrollHeight; });
  await row(many, '00000000-0000-4000-8000-000000004999').waitFor({ timeout: 5000 });
  const longest = await many.evaluate(() => window.longest);
  console.log(`# shown after ${shown} ms, 12 keys took ${typed} ms, the longest task ${longest} ms`);
  if (shown > 10000 || typed > 6000 || longest > 1000) throw new Error('the page is slow');
  // A curve is drawn for each device. It grows by a sample in five seconds.
  const curve = many.getByRole('img', { name: /^device 5 of .*: 63 % busy now; in the last \d+ s 63 % on average/ });
  await curve.first().waitFor({ timeout: 30000 });
  await many.evaluate(() => { window.longest = 0; });
  const begun = await curve.first().locator('polyline').getAttribute('points');
  await until(async () => await curve.first().locator('polyline').getAttribute('points') !== begun, 20, 'it grows');
  const drawn = await many.evaluate(() => window.longest);
  console.log(`# ${NODES * DEVICES} devices: the longest task ${drawn} ms`);
  equal([await many.locator('.curve svg').count(), drawn < 1000], [NODES * DEVICES, true], 'curves, drawn soon');
  const height = await many.evaluate(() => document.documentElement.scrollHeight);
  if (height > 20000) throw new Error(`long texts make the page ${height} pixels high`);
  await many.getByText('Usage per user').scrollIntoViewIfNeeded();
  await many.getByText(HOSTILE).first().waitFor();
  equal(await many.evaluate(() => window.hacked), undefined, 'a script in a text ran');
  equal(await many.locator('main img, main script').count(), 0, 'elements that texts have made');
  await accessible(many, 'thousands of kernels');
  await many.screenshot({ path: join(ARTIFACTS, 'many.png'), fullPage: true });
  equal(many.problems, [], 'problems in the console');
  equal(many.elsewhere, [], 'requests to other places');
  await many.context().close();
  fake.stop();
}, 120);

await check('nothing was loaded from elsewhere, and the policy was not violated', async () => {
  equal(page.elsewhere, [], 'requests to other places');
  // The timeline of a kernel that was stopped may have been asked for.
  equal(page.problems.filter(p => !p.includes('404')), [], 'problems in the console');
  await page.screenshot({ path: join(ARTIFACTS, 'list.png') });
});
await browser.close();
finish();
