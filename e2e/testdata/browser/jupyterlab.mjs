// Tests the newest JupyterLab in Chromium, through a jupyter server in gateway mode: the page and the saved file.
//
// EKG_CONTROL is the address of the test that started the gateway: POST /kill does kill -9, POST /start starts it again.
// EKG_ONLY, a regular expression, picks scenarios by name. Screenshots and logs go to EKG_ARTIFACTS.
import { check, equal, finish, rest, until } from '../js/checks.mjs';
import { Lab } from './lab.mjs';

const lab = await Lab.start();
let count = 0;
const pause = seconds => new Promise(resolve => setTimeout(resolve, seconds * 1000));

/** Runs one scenario on its own notebook. It always ends with a screenshot, and its kernels are ended. */
async function scenario(name, cells, fn, { kernel = 'python3', seconds = 90 } = {}) {
  if (process.env.EKG_ONLY && !new RegExp(process.env.EKG_ONLY, 'i').test(name)) return;
  const file = `n${++count}.ipynb`;
  lab.write(file, cells, kernel);
  let notebook;
  await check(name, async () => {
    notebook = await lab.open(file);
    await fn(notebook, file);
  }, seconds);
  await notebook?.screenshot(name);
  await notebook?.close();
  for (const k of await rest('/api/kernels').catch(() => [])) await rest(`/api/kernels/${k.id}`, { method: 'DELETE' }).catch(() => {});
}

async function control(what) {
  const response = await fetch(`${process.env.EKG_CONTROL}/${what}`, { method: 'POST' });
  if (!response.ok) throw new Error(`${what}: ${await response.text()}`);
}

/** Checks that a text has the lines "line 0" to "line N-1" in order. A lost connection may repeat lines. */
function allLines(text, n, where) {
  const got = [...text.matchAll(/^line (\d+)$/gm)].map(m => Number(m[1]));
  const first = [...new Set(got)];
  const missing = Array.from({ length: n }, (_, i) => i).filter(i => !first.includes(i));
  if (missing.length) throw new Error(`${where}: ${missing.length} of ${n} lines are missing, the first is ${missing[0]}`);
  equal(first, [...first].sort((a, b) => a - b), `${where}: order`);
  if (got.length > n) console.log(`# ${where}: ${got.length - n} lines stand twice`);
}

await scenario('eight notebooks in a row connect within 10 s each', ["print('first of all')"], async first => {
  await first.connected(60); // the page itself is loading, and other tests run beside this one
  for (let i = 0, notebook = first; i < 8; i++) {
    if (i > 0) {
      const name = `row${i}.ipynb`;
      lab.write(name, [`print('notebook', ${i})`]);
      notebook = await notebook.openBeside(name);
      const began = Date.now();
      await notebook.connected(10);
      console.log(`# notebook ${i} connected after ${((Date.now() - began) / 1000).toFixed(1)} s`);
    }
    await notebook.run(0);
    await notebook.printed(0, i === 0 ? 'first of all' : `notebook ${i}`);
    await notebook.finished(0);
  }
  equal((await rest('/api/kernels')).length, 8, 'kernels at the gateway');
}, { seconds: 150 });

await scenario('text, plot and slider', [
  "print('ünïcode ✓')\n'the value'",
  'import matplotlib.pyplot as plt\nplt.plot([1, 4, 9, 16])\nplt.show()',
  'from ipywidgets import IntSlider\nslider = IntSlider(value=30, min=0, max=100)\nslider',
  "print('slider at', slider.value)",
], async (notebook, file) => {
  await notebook.connected(15);
  await notebook.run(0);
  await notebook.printed(0, 'ünïcode ✓');
  await notebook.printed(0, "'the value'");
  await notebook.run(1);
  const image = notebook.cell(1).locator('.jp-RenderedImage img');
  await image.waitFor({ timeout: 40000 });
  const width = await until(() => image.evaluate(i => i.naturalWidth), 10, 'the plot is drawn');
  if (width < 100) throw new Error(`the plot is ${width} pixels wide`);
  await notebook.run(2);
  await notebook.cell(2).locator('.widget-readout').waitFor({ timeout: 30000 });
  equal((await notebook.cell(2).locator('.widget-readout').innerText()).trim(), '30', 'the slider');
  await notebook.cell(2).locator('.noUi-handle').focus();
  for (let i = 0; i < 3; i++) await notebook.page.keyboard.press('ArrowRight');
  await until(async () => (await notebook.cell(2).locator('.widget-readout').innerText()).trim() === '33', 10, 'the slider at 33');
  await notebook.run(3);
  await notebook.printed(3, 'slider at 33');
  await notebook.save();
  equal(lab.saved(file, 1)[0].data['image/png'].length > 1000, true, 'the plot is saved');
});

await scenario('input() asks and gets its answer', ["name = input('who? ')\nprint('hello', name)"], async notebook => {
  await notebook.connected(15);
  await notebook.run(0);
  const box = notebook.cell(0).locator('.jp-Stdin-input');
  await box.waitFor();
  await box.fill('Ada');
  await box.press('Enter');
  await notebook.printed(0, 'hello Ada');
  await notebook.finished(0);
});

await scenario('interrupt', ["import time\nprint('begun', flush=True)\nfor i in range(600): time.sleep(0.1)", "print('goes on')"], async notebook => {
  await notebook.connected(15);
  await notebook.run(0);
  await notebook.printed(0, 'begun');
  await notebook.command('notebook:interrupt-kernel');
  await notebook.printed(0, 'KeyboardInterrupt', 15);
  await notebook.run(1);
  await notebook.printed(1, 'goes on');
});

await scenario('restart while busy, and a cell right after', [
  "import time\nkept = 1\nprint('begun', flush=True)\nfor i in range(600): time.sleep(0.1)",
  "print('kept' in dir())",
], async notebook => {
  await notebook.connected(15);
  await notebook.run(0);
  await notebook.printed(0, 'begun');
  await notebook.restart();
  await notebook.run(1);
  await notebook.printed(1, 'False', 20);
  await notebook.finished(1);
  await notebook.connected();
});

await scenario('a kernel that dies is restarted, and the page says so', ["import os\nos.kill(os.getpid(), 9)", "print('alive again')"], async notebook => {
  await notebook.connected(15);
  await notebook.run(0);
  await notebook.dialog.waitFor({ timeout: 20000 });
  const text = await notebook.dialog.innerText();
  if (!/died|restart/i.test(text)) throw new Error(`the dialog says ${text}`);
  await notebook.screenshot('dialog of a kernel that died');
  await notebook.dialog.locator('.jp-mod-accept').first().click();
  await notebook.connected(30);
  await pause(2);
  if (await notebook.dialog.count()) throw new Error('the dialog came a second time');
  await notebook.run(1);
  await notebook.printed(1, 'alive again', 30);
});

if (process.env.EKG_STAND_IN !== '1') {
  for (const [kernel, title, words] of [
    ['missing-program', 'a program that is missing: the dialog says which', ['no-such-program']],
    ['exits-at-once', 'a program that exits at once: the dialog has its last words', ['these are my last words']],
  ]) {
    await scenario(title, ['1'], async notebook => {
      await notebook.dialog.waitFor({ timeout: 20000 });
      const text = await notebook.dialog.innerText();
      for (const w of words) if (!text.includes(w)) throw new Error(`the dialog does not say ${JSON.stringify(w)}: ${text}`);
      await notebook.screenshot(`dialog ${kernel}`);
      await notebook.dialog.locator('button').last().click();
    }, { kernel });
  }
}

await scenario('20,000 displays in a loop', [
  "from IPython.display import display\nfor i in range(20000): display(i)", "print('after the flood')",
], async (notebook, file) => {
  await notebook.connected(15);
  await notebook.run(0);
  await notebook.finished(0, 150);
  await notebook.run(1);
  await notebook.printed(1, 'after the flood', 60);
  const saved = async () => {
    await notebook.save();
    const outputs = lab.saved(file, 0);
    const shown = outputs.filter(o => o.output_type === 'display_data').map(o => Number(String(o.data['text/plain'])));
    equal(shown, [...new Set(shown)].sort((a, b) => a - b), 'order');
    const notices = outputs.filter(o => o.output_type === 'stream').map(o => [o.text].flat().join(''));
    return { missing: 20000 - shown.length, notices };
  };
  // A kernel drops output in its own sockets if it is not read fast enough. The gateway cannot prevent that, but it
  // must report the loss in the cell.
  const { missing, notices } = await saved();
  const counts = [...notices.join('').matchAll(/^\[ekg\] (\d+) messages? w/gm)].map(m => Number(m[1]));
  const said = counts.reduce((a, b) => a + b, 0);
  if (missing) console.log(`# ${missing} of 20000 displays are missing; the cell says: ${notices.join(' ').trim().replaceAll('\n', ' ') || 'nothing'}`);
  if (said < missing || said > missing + 5) throw new Error(`${missing} of 20000 displays are missing in what is saved, and the cell says ${said}`);
}, { seconds: 280 });

if (process.env.EKG_CONTROL) {
  await scenario('kill -9 of the gateway while a cell prints', [
    "kept = 42",
    "import time\nfor i in range(300):\n    print('line', i, flush=True)\n    time.sleep(0.1)",
    "print('kept', kept)",
  ], async (notebook, file) => {
    await notebook.connected(15);
    await notebook.run(0);
    await notebook.finished(0);
    await notebook.run(1);
    await notebook.printed(1, 'line 50');
    await control('kill');
    await pause(10);
    await control('start');
    await notebook.finished(1, 90);
    allLines(await notebook.output(1), 300, 'in the page');
    await notebook.run(2);
    await notebook.printed(2, 'kept 42', 30);
    await notebook.connected();
    await notebook.save();
    allLines(lab.saved(file, 1).map(o => [o.text ?? ''].flat().join('')).join(''), 300, 'in what is saved');
  }, { seconds: 200 });
}

await lab.stop();
finish();
