// Tests JupyterLab while something between it and the kernel is away, with and without jupyter-ekg in its server.
// Guarantees are checked. Other results are printed, and written to measured.json in EKG_ARTIFACTS.
//
// EKG_EXTENSION is the folder into which hack/env/extension has installed jupyter-ekg; it is empty without jupyter-ekg.
//
// EKG_CONTROL is the address of the test that started the gateway: POST /kill does kill -9, POST /start starts it again.
// EKG_LONG=1 is the long form. EKG_ONLY, a regular expression, picks scenarios by name.
import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { copyFileSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';

import { check, equal, finish, rest, until } from '../js/checks.mjs';
import { ARTIFACTS, EXTENSION, extended, Lab } from './lab.mjs';

const WITH = Boolean(EXTENSION);
const LONG = process.env.EKG_LONG === '1';
const LINES = 2000;
const SECONDS = 15; // duration of a printing cell
const pause = seconds => new Promise(resolve => setTimeout(resolve, seconds * 1000));

const prints = (seconds = SECONDS) => `import time
for i in range(${LINES}):
    print('line', i, flush=True)
    time.sleep(${seconds / LINES})
print('the end')`;

const lab = await Lab.start();
const measured = {};

/** Records a scenario's result. */
function note(scenario, what) {
  measured[scenario] = what;
  console.log(`# ${scenario}: ${what}`);
}

async function control(what) {
  const response = await fetch(`${process.env.EKG_CONTROL}/${what}`, { method: 'POST' });
  if (!response.ok) throw new Error(`${what}: ${await response.text()}`);
}

/** Counts missing and repeated numbered lines of a text. */
function linesIn(text) {
  const got = [...text.matchAll(/^line (\d+)$/gm)].map(m => Number(m[1]));
  const first = [...new Set(got)];
  return {
    missing: LINES - first.length, repeated: got.length - first.length,
    inOrder: first.every((n, i) => i === 0 || n > first[i - 1]), ended: /^the end$/m.test(text),
  };
}

const whole = { missing: 0, repeated: 0, inOrder: true, ended: true };

/** Returns the joined text of a cell's streams in the file. */
const savedText = (file, index) => lab.saved(file, index).map(o => [o.text ?? ''].flat().join('')).join('');

/** Checks a cell's lines in the page and in the file. With the extension each line is there once; without it the lines
 * are in order. */
async function checkLines(name, notebook, index) {
  const shown = linesIn(await notebook.output(index));
  await notebook.save();
  const saved = linesIn(savedText(notebook.name, index));
  for (const [where, lines] of Object.entries({ 'in the page': shown, 'in what is saved': saved })) {
    if (WITH) equal(lines, whole, where);
    else equal(lines.inOrder, true, `${where}: in order`);
  }
  note(name, JSON.stringify(saved) === JSON.stringify(whole) ? 'every line once'
    : `${saved.missing} of ${LINES} lines missing, ${saved.repeated} twice${saved.ended ? '' : ', and the cell never ends'}`);
}

/** Checks that the notice about the absent gateway disappears, from the page and from the saved file. */
async function checkSentenceGone(notebook, index) {
  await until(async () => !(await notebook.output(index)).includes('[ekg]'), 20, 'the sentence about the gateway is gone');
  await notebook.save();
  equal(JSON.stringify(lab.saved(notebook.name, index)).includes('[ekg]'), false, 'the sentence is in what is saved');
}

/** Runs the notebook's last cell, which prints the text. */
async function says(notebook, text) {
  const last = await notebook.panel.locator('.jp-CodeCell').count() - 1;
  await notebook.run(last, 'Control+Enter'); // Shift+Enter would add a cell
  await notebook.finished(last, 40);
  await notebook.printed(last, text);
}

/** The bound of a scenario in seconds, beside the pauses that its name says. Each of its waits has a bound of its own. */
const SCENARIO = 300;

/** Runs one check, unless EKG_ONLY excludes it. */
async function scenario(name, seconds, fn) {
  if (process.env.EKG_ONLY && !new RegExp(process.env.EKG_ONLY, 'i').test(name)) return;
  await check(name, () => fn(name), seconds);
}

/** Kills the gateway while a cell prints. */
async function killed(notebook, index, seconds) {
  await scenario(`the gateway is killed while a cell prints, and is back after ${seconds} s`, SCENARIO + seconds, async name => {
    await notebook.connected(40);
    await notebook.run(index);
    await notebook.printed(index, 'line 50', 40);
    await control('kill');
    const away = pause(seconds);
    if (WITH && seconds >= 5) {
      await notebook.printed(index, 'the connection to the gateway is lost', 60);
      await notebook.cell(index).getByText('the connection to the gateway is lost').scrollIntoViewIfNeeded();
      await notebook.screenshot(`${name} meanwhile`);
    }
    await away;
    await control('start');
    if (!WITH && seconds > 40) { // the server has given up
      await pause(20);
      note(name, `the cell ${/\*/.test(await notebook.prompt(index)) ? 'never ends' : 'has ended'}`);
      return;
    }
    await notebook.finished(index, 90);
    await checkLines(name, notebook, index);
    await says(notebook, 'goes on');
    if (WITH) await checkSentenceGone(notebook, index);
    if (WITH) equal(notebook.dialogs, [], 'dialogs');
    else if (notebook.dialogs.length) console.log(`# dialogs: ${JSON.stringify(notebook.dialogs)}`);
    await notebook.screenshot(name);
  });
  await control('start'); // it runs already unless the scenario failed
}

/** Runs three cells while the gateway is away. Each writes a mark to a file. */
async function sentMeanwhile(notebook, index, path) {
  const did = () => readFileSync(path, 'utf8').trim().split('\n').join(' ');
  const cells = [index, index + 1, index + 2];
  await scenario('three cells are run while the gateway is away for 3 s', SCENARIO, async name => {
    await notebook.connected(40);
    notebook.dialogs.length = 0;
    await control('kill');
    const away = pause(3);
    for (const i of cells) await notebook.run(i);
    await away;
    await control('start');
    if (WITH) {
      for (const i of cells) await notebook.finished(i, 30);
      for (const i of cells) await notebook.printed(i, `cell ${i} has run`);
      equal(did(), cells.join(' '), 'what the cells did');
      await says(notebook, 'goes on');
      equal(did(), cells.join(' '), 'what the cells did, later');
      for (const i of cells) await checkSentenceGone(notebook, i);
      equal(notebook.dialogs, [], 'dialogs');
      note(name, 'each runs once, in order');
      return;
    }
    const connected = async () => (await rest('/api/kernels')).some(k => k.connections > 0);
    await until(connected, 60, "the gateway has the server's connection again");
    await says(notebook, 'goes on');
    const ran = did().split(' ').filter(Boolean).map(Number);
    equal(ran, cells.filter(i => ran.includes(i)), 'what the cells did, at most once and in order');
    for (const i of cells) if (!ran.includes(i)) equal(await notebook.prompt(i), '[*]:', `the prompt of cell ${i}, which has not run`);
    equal(notebook.dialogs, [], 'dialogs');
    note(name, `${ran.length} of 3 run; the others show [*] forever, without another sign`);
  });
  await control('start');
}

/** Checks that a cell shows one prompt with the text, and returns it. */
async function prompted(notebook, index, text) {
  const prompt = notebook.cell(index).locator('.jp-Stdin');
  await until(async () => (await prompt.allInnerTexts()).join().includes(text), 30, `cell ${index} asks ${text}`);
  equal(await prompt.count(), 1, 'prompts');
  return prompt.locator('input');
}

async function answer(notebook, index, text, value) {
  const input = await prompted(notebook, index, text);
  await input.fill(value);
  await input.press('Enter');
}

/** Runs a cell that asks three times. Before each answer, something happens to the page or to the gateway. */
async function asked(notebook, index) {
  await scenario('input() waits while the gateway is killed, and while the page is reloaded', SCENARIO, async name => {
    await notebook.connected(40);
    await notebook.run(index, 'Control+Enter');
    await prompted(notebook, index, 'first?');
    await control('kill');
    await control('start');
    const connected = async () => (await rest('/api/kernels')).some(k => k.connections > 0);
    await until(connected, 60, "the gateway has the server's connection again");
    await pause(2); // for a prompt too many
    const prompts = await notebook.cell(index).locator('.jp-Stdin').count();
    equal(prompts, 1, 'prompts after the gateway was killed');
    const input = notebook.cell(index).locator('.jp-Stdin input').first();
    await input.fill('one');
    await input.press('Enter');
    await until(async () => (await notebook.cell(index).locator('.jp-Stdin').allInnerTexts()).join().includes('second?'), 30, 'the second prompt');
    await notebook.page.reload();
    await notebook.shown();
    if (!WITH) {
      await pause(5);
      equal(await notebook.cell(index).locator('.jp-Stdin').count(), 0, 'prompts after the page was reloaded');
      note(name, `${prompts} after the gateway was killed; none after the page was reloaded`);
      await notebook.command('notebook:interrupt-kernel');
      await notebook.connected(40);
      return;
    }
    await answer(notebook, index, 'second?', 'two');
    await answer(notebook, index, 'third?', 'three');
    await notebook.finished(index, 30);
    await notebook.printed(index, 'got one two three');
    equal(await notebook.cell(index).locator('.jp-Stdin').count(), 0, 'prompts after the cell');
    equal(notebook.dialogs, [], 'dialogs');
    await notebook.screenshot(name);
    note(name, 'one prompt, and its answer arrives');
  });
  await control('start');
}

async function offline() {
  await scenario('the browser is offline for 20 s while a cell prints', SCENARIO, async name => {
    const network = await lab.network();
    lab.write('offline.ipynb', [prints(), "print('goes on')"]);
    const window = await lab.window();
    const notebook = await lab.open('offline.ipynb', { window, network });
    await notebook.connected(40);
    await notebook.run(0);
    await notebook.printed(0, 'line 50', 40);
    network.cut();
    await window.setOffline(true); // the page is notified, too
    let before;
    await until(async () => { // lines that have arrived are drawn
      const earlier = before;
      before = linesIn(await notebook.output(0));
      await pause(1);
      return JSON.stringify(before) === JSON.stringify(earlier);
    }, 30, 'no more lines');
    await pause(20);
    equal(linesIn(await notebook.output(0)), before, 'lines while the browser was offline');
    network.restore();
    await window.setOffline(false);
    const ended = WITH ? notebook.finished(0, 120) : notebook.connected(90); // without, the cell's end may be lost
    const gaveUp = await ended.then(() => false, async error => {
      if (!(await notebook.status()).endsWith('| Unknown')) throw error;
      return true;
    });
    if (gaveUp) {
      // JupyterLab tries seven times, at random moments. In two of a hundred absences of 20 s all attempts fall into
      // the absence. JupyterLab then never tries again, and the user has to reload the page.
      console.log(`# ${name}: JupyterLab has given up; the page is reloaded`);
      await notebook.page.reload();
      await notebook.shown();
      await broughtBack(name, notebook, 0);
      await window.close();
      return;
    }
    await checkLines(name, notebook, 0);
    // JupyterLab itself reports that it cannot reach its server.
    equal(notebook.dialogs.filter(text => !text.includes('A connection to the Jupyter server could not be established')), [], 'other dialogs');
    if (await notebook.dialog.count()) await notebook.dialog.getByText('Close').click();
    await says(notebook, 'goes on');
    await notebook.screenshot(name);
    await window.close();
  });
}

/** Restores a copy of a notebook whose cell has ended by jupyter ekg restore, through the server with the extension.
 * Returns its name. */
async function restored(notebook) {
  const copy = `restored-${notebook.name}`;
  copyFileSync(join(lab.files, notebook.name), join(lab.files, copy));
  const sessions = await (await fetch(`${lab.url}/api/sessions`)).json();
  const { id } = sessions.find(s => s.path === notebook.name).kernel;
  await until(async () => (await rest(`/api/kernels/${id}`)).execution_state === 'idle', 60, 'the cell has ended');
  const { stdout } = await promisify(execFile)(join(EXTENSION, 'bin/jupyter-ekg'),
    ['restore', join(lab.files, copy), '--server', lab.url, '--kernel', id],
    { env: { ...process.env, ...extended, HOME: lab.dir }, timeout: 60000 });
  console.log(`# ${stdout.trim().replaceAll('\n', '; ')}`);
  return copy;
}

/** Checks that a cell which printed while no page was open has all its output, if the extension is there. */
async function broughtBack(name, notebook, index, prefix = '') {
  if (!WITH) {
    await notebook.connected(60); // the cell has ended
    await notebook.save();
    note(name, `${prefix}${linesIn(savedText(notebook.name, index)).missing} of ${LINES} lines missing`);
    return;
  }
  await notebook.finished(index, 60);
  equal(linesIn(await notebook.output(index)), whole, 'in the page');
  await says(notebook, 'goes on');
  await notebook.save();
  equal(linesIn(savedText(notebook.name, index)), whole, 'in what is saved');
  note(name, `${prefix}every line once`);
}

/** A file for which the cell of a reloaded page waits before its last line, for 40 s. A pod does not see the file. */
const SHOWN = join(lab.dir, 'shown');

async function reloaded(notebook, index) {
  await scenario('the page is reloaded while a cell prints', SCENARIO, async name => {
    await notebook.connected(40);
    await notebook.run(index);
    await notebook.printed(index, 'line 300', 40);
    await notebook.page.reload();
    await notebook.shown();
    const began = Date.now();
    await until(async () => (await notebook.status()).endsWith('| Busy'), 60, 'the kernel shown as busy');
    const busy = `the kernel is shown as busy after ${((Date.now() - began) / 1000).toFixed(1)} s; `;
    writeFileSync(SHOWN, '');
    await broughtBack(name, notebook, index, busy);
    await notebook.screenshot(name);
  });
  writeFileSync(SHOWN, ''); // it is there already unless the scenario failed
}

/** Closes the tab while a cell prints. Returns the notebook in its new tab. */
async function closed(notebook, index, seconds) {
  let again;
  await scenario(`the tab is closed for ${seconds} s while a cell prints`, SCENARIO + seconds, async name => {
    await notebook.connected(40);
    await notebook.run(index);
    await notebook.printed(index, 'line 300', 40);
    await notebook.save();
    await notebook.close();
    await pause(seconds);
    if (WITH) equal(linesIn(savedText(await restored(notebook), index)), whole, 'in the file that jupyter ekg restore has written');
    again = await lab.open(notebook.name);
    await broughtBack(name, again, index);
    await again.screenshot(name);
  });
  return again ?? notebook;
}

/** Returns the text of a cell that is no Output widget's, and that of its Output widgets. */
async function textsOf(notebook, index) {
  const text = inside => notebook.cell(index).locator('.jp-OutputArea-output').evaluateAll((all, inside) => all
    .filter(o => !o.querySelector('.widget-output') && Boolean(o.closest('.widget-output')) === inside)
    .map(o => o.innerText).join('\n'), inside);
  return { cell: await text(false), widget: await text(true) };
}

/** Closes the page while a cell prints into an Output widget, and opens it again before the cell ends, and afterwards. */
async function intoWidget() {
  await scenario('the tab is closed while a cell prints into an Output widget', SCENARIO, async name => {
    const back = join(lab.dir, 'back');
    lab.write('output.ipynb', [
      "import ipywidgets, os, time\nfrom IPython.display import display\nprint('before')\nout = ipywidgets.Output()\ndisplay(out)\n" +
      `with out:\n    for i in range(${LINES}):\n        print('line', i, flush=True)\n        time.sleep(0.005)\n` +
      `        while i == ${LINES - 10} and not os.path.exists(${JSON.stringify(back)}): time.sleep(0.1)\n` +
      "    print('the end')\nprint('behind')",
      "print('the kernel has', ''.join(o['text'] for o in out.outputs).count('line'))"]);
    let notebook = await lab.open('output.ipynb');
    await notebook.connected(40);
    await notebook.run(0);
    await until(async () => (await textsOf(notebook, 0)).widget.includes('line 300'), 40, 'the widget shows lines');
    equal((await textsOf(notebook, 0)).cell.trim(), 'before', "the cell's own output");
    await notebook.save();
    await notebook.close();
    notebook = await lab.open('output.ipynb');
    await until(async () => (await notebook.prompt(0)) === '[*]:', 40, 'the cell is shown as running');
    const own = (await textsOf(notebook, 0)).cell.replace('Loading widget...', ''); // a kernel that computes does not say its state
    equal(own.trim(), 'before', "the cell's own output while it is followed");
    writeFileSync(back, '');
    await notebook.finished(0, 60);
    for (const when of ['at the end', 'opened again']) {
      let texts;
      await until(async () => {
        texts = await textsOf(notebook, 0);
        return linesIn(texts.widget).ended;
      }, 60, `${when}, the widget shows its last line`);
      equal(linesIn(texts.widget), whole, `${when}, in the widget`);
      equal(texts.cell.trim().split(/\s+/), ['before', 'behind'], `${when}, in the cell`);
      await notebook.save();
      equal(savedText('output.ipynb', 0), 'before\nbehind\n', `${when}, in what is saved`);
      await notebook.screenshot(`${name} ${when}`);
      await notebook.close();
      notebook = await lab.open('output.ipynb');
      await notebook.connected(40);
    }
    await notebook.run(1, 'Control+Enter');
    await notebook.printed(1, `the kernel has ${LINES}`);
    note(name, 'every line once, in the widget');
    await notebook.close();
  });
}

const IMAGE = `import io, hashlib
import numpy, PIL.Image
def png(size):
    pixels = numpy.random.default_rng(1).integers(0, 256, (size, size, 3), dtype='uint8')
    data = io.BytesIO()
    PIL.Image.fromarray(pixels).save(data, 'png')
    return data.getvalue()
`;

async function binary(notebook, index) {
  await scenario('binary data of widgets, in both directions', SCENARIO, async name => {
    const file = join(lab.dir, 'upload.bin');
    writeFileSync(file, Buffer.from(Array.from({ length: 70000 }, (_, i) => i * 7 % 256)));
    await notebook.connected(40);
    await notebook.run(index);
    await notebook.finished(index, 60);
    await notebook.run(index + 1);
    const button = notebook.cell(index + 1).getByText('Upload (0)');
    await button.waitFor();
    const chooser = notebook.page.waitForEvent('filechooser');
    await button.click();
    await (await chooser).setFiles(file);
    await notebook.cell(index + 1).getByText('Upload (1)').waitFor();
    await notebook.run(index + 2);
    await notebook.finished(index + 2);
    const shown = () => notebook.cell(index).locator('img').evaluate(i => i.naturalWidth, null, { timeout: 5000 }).catch(() => 0);
    const width = WITH ? await until(shown, 60, 'the image is drawn') : await shown();
    const uploaded = (await notebook.output(index + 2)).trim() === createHash('sha256').update(readFileSync(file)).digest('hex');
    if (WITH) {
      equal(width, 64, "the image's width");
      equal(uploaded, true, 'the uploaded file arrived');
    }
    note(name, `the image ${width === 64 ? 'is shown' : 'is not shown'}, the uploaded file ${uploaded ? 'has arrived' : 'has not arrived'}`);
    await notebook.screenshot(name);
  });
}

async function large(notebook, index) {
  await scenario('a picture of 20 MB', SCENARIO, async name => {
    await notebook.connected(40);
    await notebook.run(index);
    await notebook.finished(index, 60);
    await says(notebook, 'goes on');
    await notebook.save();
    const saved = lab.saved(notebook.name, index);
    const [size, sha] = savedText(notebook.name, index).match(/^\d+ [0-9a-f]{64}$/m)[0].split(' ');
    const picture = saved.map(o => o.data?.['image/png']).find(Boolean);
    const got = picture && createHash('sha256').update(Buffer.from([picture].flat().join(''), 'base64')).digest('hex');
    if (WITH) {
      equal(got, sha, 'the picture in what is saved');
      const image = notebook.cell(index).locator('.jp-RenderedImage img');
      equal(await until(() => image.evaluate(i => i.naturalWidth), 30, 'the picture is drawn'), 2600, 'its width');
    } else if (got !== sha) {
      equal(JSON.stringify(saved).includes('[ekg]'), true, 'the cell says that something was left out');
    }
    note(name, `${(size / 1e6).toFixed(1)} MB ${got === sha ? 'arrive' : 'are left out, with a remark in the cell'}`);
    await notebook.screenshot(name);
  });
}

const GOES_ON = "print('goes on')"; // the last cell of each notebook

const opened = file => check(`${file} opens`, () => lab.open(file), 120);

/** Tests one notebook while the gateway is killed. */
async function withoutGateway() {
  const marks = join(lab.dir, 'marks');
  writeFileSync(marks, '');
  const mark = i => `with open(${JSON.stringify(marks)}, 'a') as f: print(${i}, file=f)\nprint('cell ${i} has run')`;
  lab.write('killed.ipynb', [prints(), prints(), mark(2), mark(3), mark(4), prints(),
    "print('got', *[input(q) for q in ('first?', 'second?', 'third?')])", GOES_ON]);
  const notebook = await opened('killed.ipynb');
  await killed(notebook, 0, 1);
  await killed(notebook, 1, 10);
  await sentMeanwhile(notebook, 2, marks);
  if (LONG) await killed(notebook, 5, 60);
  await asked(notebook, 6);
  await notebook.close();
}

/** Tests another notebook while its page is reloaded and closed. */
async function withoutPage() {
  const held = prints().replace("print('the end')",
    `import os\nfor i in range(400):\n    if os.path.exists(${JSON.stringify(SHOWN)}):\n        break\n    time.sleep(0.1)\n` +
    "print('the end')");
  lab.write('page.ipynb', [held, prints(),
    `${IMAGE}import ipywidgets\nipywidgets.Image(value=png(64))`, 'upload = ipywidgets.FileUpload()\nupload',
    "print(hashlib.sha256(upload.value[0]['content']).hexdigest() if upload.value else 'nothing')",
    `${IMAGE}from IPython.display import Image, display\ndata = png(2600)\ndisplay(Image(data))\nprint(len(data), hashlib.sha256(data).hexdigest())`,
    GOES_ON]);
  let notebook = await opened('page.ipynb');
  await reloaded(notebook, 0);
  notebook = await closed(notebook, 1, LONG ? 60 : 20);
  await binary(notebook, 2);
  await large(notebook, 5);
  await notebook.close();
}

try {
  await withoutGateway();
  await Promise.all([offline(), withoutPage(), WITH && intoWidget()]);
} finally {
  writeFileSync(join(ARTIFACTS, 'measured.json'), JSON.stringify(measured, null, 2));
  await lab.stop();
}
finish();
