// Checks of the operator's page with the keyboard alone, and of what Chromium tells screen readers about it.
import { check, equal, rest, TOKEN, until, URL } from '../js/checks.mjs';
import { fakeGateway } from './fakepage.mjs';
import { live, open, row } from './operator.mjs';

const CONTROLS = 'a[href], button, input, select, textarea, [tabindex]';

/** A page with a session of Chromium's protocol for its accessibility tree. */
async function openSpoken(address) {
  const page = await open(address);
  page.protocol = await page.context().newCDPSession(page);
  await page.protocol.send('Accessibility.enable');
  return page;
}

/** All nodes of the accessibility tree, without those that screen readers ignore. */
const tree = async page => (await page.protocol.send('Accessibility.getFullAXTree')).nodes.filter(n => !n.ignored);

const property = (node, name) => node.properties?.find(p => p.name === name)?.value.value;

/** What has the keyboard's focus, as a screen reader is told: "button Stop…". It is empty if nothing has it. */
async function focused(page) {
  const { result } = await page.protocol.send('Runtime.evaluate', { expression: 'document.activeElement' });
  const { nodes } = await page.protocol.send('Accessibility.getPartialAXTree',
    { objectId: result.objectId, fetchRelatives: false });
  if (nodes[0].role.value === 'RootWebArea' || nodes[0].ignored) return '';
  return `${nodes[0].role.value} ${nodes[0].name?.value ?? ''}`.trim();
}

/** Presses a key until this has the focus: a text, or what matches a pattern. */
async function reach(page, what, key = 'Tab') {
  const seen = [];
  for (let i = 0; i < 80; i++) {
    await page.keyboard.press(key);
    seen.push(await focused(page));
    if (what instanceof RegExp ? what.test(seen.at(-1)) : seen.at(-1) === what) return;
  }
  throw new Error(`${key} does not reach ${what}, but ${seen.join(', ')}`);
}

const hasFocus = (page, what) => until(async () => await focused(page) === what, 10, `the focus is on ${what}`)
  .catch(async e => { throw new Error(`${e.message}; it is on ${await focused(page)}`); });

/** Presses Tab through the whole page. Each control must get the focus in the order of the document, and each node that
 * can have it needs a role and a name. */
async function walk(page) {
  await page.evaluate(() => {
    addEventListener('focusin', e => window.visited?.push(e.target));
  });
  const round = async () => { // up to the end of the page, after which the browser's own controls would come
    const names = [];
    for (let now; now !== ''; names.push(now)) {
      await page.keyboard.press('Tab');
      now = await focused(page);
      if (names.length > 200) throw new Error(`Tab goes on and on: ${names.slice(-20).join(', ')}`);
    }
    return names.slice(0, -1);
  };
  await round();
  await page.evaluate(() => { window.visited = []; });
  const names = await round();
  const missed = await page.evaluate(controls => {
    const all = [...document.querySelectorAll(controls)].filter(e => e.tabIndex >= 0 && e.checkVisibility());
    const order = all.map(e => window.visited.indexOf(e));
    return all.filter((_, i) => order[i] < 0 || order[i] < order[i - 1]).map(e => e.outerHTML.slice(0, 200));
  }, CONTROLS);
  equal(missed, [], 'controls that Tab does not reach in their order');
  const nameless = (await tree(page)).filter(n => property(n, 'focusable') && n.role.value !== 'RootWebArea')
    .filter(n => ['generic', 'none', 'Pre'].includes(n.role.value) || !n.name?.value.trim() && n.role.value !== 'main');
  equal(nameless.map(n => `${n.role.value} ${n.name?.value}`), [], 'nodes without a role or a name');
  return names;
}

/** Counts the announcements from now on. */
const listen = page => page.evaluate(() => {
  window.said = [];
  const regions = '[role=status], [role=alert], [role=log], [aria-live]';
  new MutationObserver(changes => changes.forEach(c => {
    const region = (c.target.closest ? c.target : c.target.parentElement)?.closest(regions);
    if (region?.textContent) window.said.push(region.textContent);
  })).observe(document.body, { childList: true, characterData: true, subtree: true });
});

const said = page => page.evaluate(() => window.said);

/** Runs the checks with two kernels of the gateway. */
export async function keyboardChecks(first, second) {
  const page = await openSpoken(`${URL}/#token=${TOKEN}`);
  const button = id => `button Kernel ${id}`;
  const [top, bottom] = [first, second].sort();

  await check('Tab reaches each control, which has a role and a name', async () => {
    await row(page, first).waitFor({ timeout: 20000 });
    await live(page);
    const names = await walk(page);
    for (const name of ['searchbox Search kernels', 'combobox State', 'region Table of kernels']) {
      if (!names.includes(name)) throw new Error(`${name} is not among ${names.join(', ')}`);
    }
    equal(names.filter(n => n.startsWith('button Kernel ')).length, 1, 'rows that Tab reaches');
    const regions = (await tree(page)).filter(n => property(n, 'live'))
      .map(n => `${n.role.value} ${property(n, 'live')}`);
    equal([...new Set(regions)], ['status polite'], 'the live regions');
  }, 90);

  await check('the list is searched, filtered, ordered and entered with keys', async () => {
    await page.evaluate(() => document.activeElement.blur());
    await reach(page, 'searchbox Search kernels');
    await page.keyboard.type(first);
    await page.getByRole('status').filter({ hasText: 'Listed kernels: 1.' }).waitFor({ timeout: 5000 });
    await page.keyboard.press('Control+A');
    await page.keyboard.press('Delete');
    await page.keyboard.press('Tab');
    equal(await focused(page), 'combobox State', 'the next control');
    await page.keyboard.press('ArrowDown');
    await page.getByText('0 of 2').waitFor(); // "starting"
    await page.keyboard.press('Home');
    await page.getByText('2 of 2').waitFor();
    await reach(page, 'button Kernel');
    const sorted = () => page.getByRole('columnheader', { name: 'Kernel', exact: true }).getAttribute('aria-sort');
    await page.keyboard.press('Enter');
    equal(await sorted(), 'ascending', 'the order');
    await page.keyboard.press('Space');
    equal(await sorted(), 'descending', 'the order');
    await page.keyboard.press('Space');
    await reach(page, /^button Kernel [0-9a-f-]{36}$/);
    await page.keyboard.press('Home');
    await hasFocus(page, button(top));
    for (const [key, id] of [['ArrowDown', bottom], ['ArrowDown', bottom], ['ArrowUp', top], ['End', bottom],
      ['PageUp', top]]) {
      await page.keyboard.press(key);
      await hasFocus(page, button(id));
    }
    if (first === bottom) await page.keyboard.press('End');
    await page.keyboard.press('Enter');
    await hasFocus(page, `heading Kernel ${first.slice(0, 8)} idle`);
  }, 90);

  await check('dialogs are used with keys, and give the focus back', async () => {
    await walk(page);
    await page.evaluate(() => document.activeElement.blur());
    for (const end of ['Escape', 'Cancel']) {
      await reach(page, 'button Interrupt…', 'Tab');
      await page.keyboard.press('Enter');
      await hasFocus(page, 'button Interrupt');
      const modal = (await tree(page)).find(n => n.role.value === 'dialog');
      equal([modal?.name?.value, property(modal, 'modal')], ['Interrupt this kernel?', true], 'the dialog');
      if (end === 'Cancel') await reach(page, 'button Cancel');
      await page.keyboard.press(end === 'Cancel' ? 'Enter' : 'Escape');
      await hasFocus(page, 'button Interrupt…');
    }
    await reach(page, 'button Keep…');
    await page.keyboard.press('Space');
    await hasFocus(page, 'spinbutton Hours; 0 ends keeping it');
    await page.keyboard.press('Control+A');
    await page.keyboard.type('2');
    await page.keyboard.press('Enter');
    await hasFocus(page, 'button Keep…');
    await page.getByText('Kept until').waitFor({ timeout: 10000 });
    await reach(page, 'button Show the output');
    await page.keyboard.press('Enter');
    await page.getByRole('status').filter({ hasText: 'Following' }).waitFor({ timeout: 10000 });
    await hasFocus(page, 'button Stop following');
    await reach(page, 'region Text of the output');
    await reach(page, 'button All kernels', 'Shift+Tab');
    await page.keyboard.press('Enter');
    await hasFocus(page, button(first));
  }, 90);

  await check('a list that changes is announced calmly, and keeps the focus', async () => {
    await listen(page);
    const { id } = await rest('/api/kernels', { method: 'POST', body: '{"name": "python3"}' });
    await row(page, id).waitFor({ timeout: 20000 });
    await hasFocus(page, button(first));
    const third = async () => (await said(page)).some(t => t.startsWith('Listed kernels: 3.'));
    await until(third, 30, 'the third is announced');
    const spoken = await said(page);
    if (spoken.length > 3) throw new Error(`too many announcements: ${spoken.join(' / ')}`);
    await page.keyboard.press('Home');
    while (await focused(page) !== button(id)) await page.keyboard.press('ArrowDown');
    await rest(`/api/kernels/${id}`, { method: 'DELETE' }); // by somebody else
    await row(page, id).waitFor({ state: 'detached', timeout: 20000 });
    await hasFocus(page, 'region Table of kernels');
  }, 120);

  await check('a kernel that is stopped takes no focus, and no dialog, with it', async () => {
    const { id } = await rest('/api/kernels', { method: 'POST', body: '{"name": "python3"}' });
    await row(page, id).waitFor({ timeout: 20000 });
    await row(page, id).focus();
    await page.keyboard.press('Enter');
    await reach(page, 'button Stop…');
    await page.keyboard.press('Enter');
    await hasFocus(page, 'button Stop');
    // The stream tells of the end before the request is answered.
    let answered;
    await page.route(`**/api/kernels/${id}`, async route => {
      const response = await route.fetch();
      await new Promise(resolve => { answered = resolve; });
      await route.fulfill({ response });
    });
    await page.keyboard.press('Enter');
    await page.getByText('This kernel does not exist any more.').waitFor({ state: 'attached', timeout: 30000 });
    await hasFocus(page, 'button Stop'); // its dialog waits for the answer
    answered();
    await page.getByRole('dialog').waitFor({ state: 'detached', timeout: 10000 });
    await hasFocus(page, 'main');
    await page.keyboard.press('Tab');
    equal(await focused(page), 'button All kernels', 'what Tab reaches');
    await page.keyboard.press('Enter');
    await row(page, first).focus();
    await page.keyboard.press('Enter');
    await hasFocus(page, `heading Kernel ${first.slice(0, 8)} idle`);
    equal(await page.getByRole('dialog').count(), 0, 'dialogs for another kernel');
  }, 90);
  await page.context().close();

  await check('thousands of kernels that change leave the focus, and are announced calmly', async () => {
    const fake = await fakeGateway();
    const many = await openSpoken(fake.url);
    await many.getByText('5000 of 5000').waitFor({ timeout: 20000 });
    await reach(many, 'button State');
    await many.keyboard.press('Enter');
    await many.keyboard.press('Enter'); // those that start come first, and the next ones to change are at the top
    await reach(many, /^button Kernel [0-9a-f-]{36}$/);
    await many.keyboard.press('Home'); // the kernel that changes last
    await many.keyboard.press('ArrowDown');
    await until(async () => /Kernel (?!.*0000$)/.test(await focused(many)), 10, 'the second row has the focus');
    const kernel = await focused(many);
    await many.getByRole('status').filter({ hasText: 'Listed kernels: 5000.' }).waitFor({ timeout: 5000 });
    await listen(many);
    const place = () => many.evaluate(() =>
      Number(document.activeElement.closest('.row')?.getAttribute('aria-rowindex')));
    await until(async () => await place() > 4000, 40, 'it is busy, and its row moves far away');
    equal(await focused(many), kernel, 'what has the focus');
    await until(async () => (await said(many)).length > 1, 40, 'two announcements');
    const began = Date.now();
    await until(async () => (await said(many)).length > 2, 40, 'another one');
    if (Date.now() - began < 12000) throw new Error(`it comes after ${Date.now() - began} ms`);
    await many.keyboard.press('ArrowUp');
    await until(async () => ![kernel, ''].includes(await focused(many)), 10, 'another row has the focus');
    await many.keyboard.press('Tab'); // leaves the list
    const next = await focused(many);
    if (/Kernel [0-9a-f-]{36}/.test(next)) throw new Error(`Tab reaches ${next}`);
    await many.context().close();
    fake.stop();
  }, 150);
}
