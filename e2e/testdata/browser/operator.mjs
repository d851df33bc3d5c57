// The operator's page in Chromium: what its scripts share.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import { require } from '../js/checks.mjs';
import { ARTIFACTS, startChromium } from './lab.mjs';

const AXE = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');
export const browser = await startChromium();

/** Opens the page in a new context. What the browser's console reports as an error is collected. */
export async function open(address, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1200, height: 900 }, ...options });
  const page = await context.newPage();
  page.problems = [];
  page.elsewhere = [];
  page.on('console', m => m.type() === 'error' && page.problems.push(m.text()));
  page.on('pageerror', e => page.problems.push(String(e)));
  page.on('request', r => !r.url().startsWith(new globalThis.URL(address).origin) && !r.url().startsWith('data:')
    && page.elsewhere.push(r.url()));
  await page.goto(address);
  return page;
}

export const row = (page, id) => page.getByRole('button', { name: `Kernel ${id}` });
export const live = page => page.getByRole('status').filter({ hasText: 'Live' }).waitFor({ timeout: 20000 });

/** Fails for every finding of axe-core about the page as it is. */
export async function accessible(page, where) {
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ['violations'] }));
  const found = violations.map(v => `${v.id}: ${v.help}: ${v.nodes.slice(0, 3).map(n => n.html).join(' ')}`);
  if (found.length) {
    await page.screenshot({ path: join(ARTIFACTS, `axe ${where}.png`) });
    throw new Error(`axe-core finds in ${where}: ${found.join('; ')}`);
  }
}

export async function act(page, name) {
  await page.getByRole('button', { name: `${name}…` }).click();
  await page.getByRole('dialog').waitFor();
}

export const confirm = async (page, name) => {
  await page.getByRole('dialog').getByRole('button', { name, exact: true }).click();
  await page.getByRole('dialog').waitFor({ state: 'detached', timeout: 60000 });
};

