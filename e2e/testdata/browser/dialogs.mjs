// Tests what JupyterLab's dialog says about kernels that do not start, with jupyter-ekg. Its text is the gateway's alone.
//
// EKG_CONTROL is the address of the test that started the gateway. Screenshots and logs go to EKG_ARTIFACTS.
import { check, equal, finish, URL } from '../js/checks.mjs';
import { Lab } from './lab.mjs';

const WIDTH = 80;
const lab = await Lab.start();

async function control(what) {
  const response = await fetch(`${process.env.EKG_CONTROL}/${what}`, { method: 'POST' });
  if (!response.ok) throw new Error(`${what}: ${await response.text()}`);
}

/** Checks the dialog of a notebook: the words are its whole text, in lines that fit. It can be
 * scrolled to its end if it overflows the window. */
async function says(notebook, words, title, overflows = false) {
  await notebook.dialog.waitFor({ timeout: 30000 });
  await notebook.screenshot(title);
  const text = notebook.dialog.locator('.jp-Dialog-body pre');
  equal(await text.count(), 1, 'texts in the dialog');
  const said = await text.innerText();
  equal(said.split(/\s+/).join(' '), words, 'the text');
  for (const line of said.split('\n')) {
    if (line.length > WIDTH && line.includes(' ')) throw new Error(`a line has ${line.length} characters: ${line}`);
  }
  const fits = await text.evaluate(pre => {
    const { left, right, top, bottom } = pre.getBoundingClientRect();
    const inPage = left >= 0 && right <= innerWidth && top >= 0 && bottom <= innerHeight;
    const wraps = pre.scrollWidth <= pre.clientWidth;
    pre.scrollTop = pre.scrollHeight;
    const scrolls = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 1;
    return { inPage, wraps, scrolls, overflows: pre.scrollHeight > pre.clientHeight };
  });
  equal(fits, { inPage: true, wraps: true, scrolls: true, overflows }, 'the layout');
  await notebook.dialog.locator('button').last().click();
}

const LAST_WORDS = `No module named ${'x'.repeat(150)}`;
const ENDED = "the kernel's process ended with exit code 3:";
for (const [kernel, words, viewport] of [
  ['missing-program', 'the kernel\'s program "/opt/no-such-program" does not exist'],
  ['exits-at-once', `${ENDED} these are my last words`],
  ['long-words', `${ENDED} ${LAST_WORDS}`],
  ['long-words', `${ENDED} ${LAST_WORDS}`, { width: 400, height: 200 }],
]) {
  const title = `${kernel} in ${viewport ? 'a small' : 'a large'} window`;
  await check(title, async () => {
    const window = await lab.window(viewport && { viewport });
    lab.write('a.ipynb', ['1'], kernel);
    const notebook = await lab.open('a.ipynb', { window });
    await says(notebook, words, title, viewport !== undefined);
    await window.close();
  }, 90);
}

await check('a gateway that is away', async () => {
  lab.write('b.ipynb', ['1']);
  const first = await lab.open('b.ipynb');
  await first.connected(60);
  await control('kill');
  lab.write('c.ipynb', ['1']);
  const notebook = await first.openBeside('c.ipynb'); // a new page would not know the kernelspecs
  await says(notebook, `The gateway ${URL} cannot be reached: Connection refused.`, 'gateway away');
  await control('start');
}, 90);

await lab.stop();
finish();
