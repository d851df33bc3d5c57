// Measures a cell with many displays in JupyterLab: through the gateway with jupyter-ekg, through it without, and with
// a kernel of the Jupyter server itself. The three take turns on one machine. A line is printed for each turn, and the
// medians at the end. A cell without an end fails, and so do missing displays that ekg does not announce.
//
// EKG_EXTENSION is the folder into which hack/env/extension has installed jupyter-ekg. EKG_ROUNDS is the number of
// turns, EKG_DISPLAYS that of displays. EKG_SHOWN is how many of them the page renders, by default as many as
// JupyterLab does. EKG_GATEWAY is the gateway's process id. EKG_ONLY, a regular expression, picks ways by name.
import { execFileSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';

import { check, finish, rest } from '../js/checks.mjs';
import { Lab } from './lab.mjs';

const DISPLAYS = Number(process.env.EKG_DISPLAYS || 20000);
const ROUNDS = Number(process.env.EKG_ROUNDS || 3);
const LIMIT = 150; // seconds of one cell
const shown = process.env.EKG_SHOWN ? { maxNumberOutputs: Number(process.env.EKG_SHOWN) } : {};
const TICKS = Number(execFileSync('getconf', ['CLK_TCK'])); // a second

// The server's own kernels have a bound of 1,000 messages a second, beyond which it drops output. A gateway's do not.
const unbounded = ['--ZMQChannelsWebsocketConnection.limit_rate=False'];
const kernelspecs = { JUPYTER_PATH: join(dirname(process.env.EKG_LAB), 'share/jupyter') };
const ways = {
  'with jupyter-ekg': {},
  'without jupyter-ekg': { extension: '' },
  'no gateway': { extension: '', gateway: '', options: unbounded, env: kernelspecs },
};

const readProcess = (pid, file) => {
  try {
    return readFileSync(`/proc/${pid}/${file}`, 'utf8');
  } catch {
    return ''; // it has ended
  }
};

/** Returns a process's parent and its seconds of CPU. */
function statOf(pid) {
  const fields = readProcess(pid, 'stat').replace(/^.*\) /s, '').split(' ');
  return { parent: Number(fields[1]), cpu: (Number(fields[11]) + Number(fields[12])) / TICKS };
}

/** Returns all processes with their command lines. */
function processes() {
  return readdirSync('/proc').filter(name => /^\d+$/.test(name))
    .map(pid => ({ pid: Number(pid), cmdline: readProcess(pid, 'cmdline').replaceAll('\0', ' ') }));
}

/** Returns the process ids of what takes part in a turn, by name. */
function involved(lab, kernel) {
  const all = processes();
  const browser = all.filter(p => p.cmdline.includes('chromium'));
  const one = text => all.filter(p => p.cmdline.includes(text) && p.cmdline.includes(kernel.id)).map(p => p.pid);
  return {
    renderer: browser.filter(p => p.cmdline.includes('--type=renderer')).map(p => p.pid),
    browser: browser.filter(p => !p.cmdline.includes('--type=renderer')).map(p => p.pid),
    server: [lab.process.pid],
    gateway: [Number(process.env.EKG_GATEWAY)],
    supervisor: one('ekg-supervisor --config '),
    kernel: [kernel.pid],
  };
}

/** Returns the seconds of CPU that each group of processes has used, and all other processes together. */
function cpuOf(groups) {
  const [user, nice, system, , , irq, softirq] = readFileSync('/proc/stat', 'utf8').split(/\s+/).slice(1).map(Number);
  const used = Object.fromEntries(Object.entries(groups)
    .map(([name, pids]) => [name, pids.reduce((sum, pid) => sum + statOf(pid).cpu, 0)]));
  const ours = Object.values(used).reduce((a, b) => a + b);
  return { ...used, others: (user + nice + system + irq + softirq) / TICKS - ours };
}

/** Makes the page note when the cell's prompt shows its number, and when it has drawn that. */
function noteEnd(index) {
  const prompt = document.querySelectorAll('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell')[index]
    .querySelector('.jp-InputPrompt');
  window.ekgTimes = {};
  new MutationObserver((_, observer) => {
    if (!/\d/.test(prompt.textContent)) return;
    observer.disconnect();
    window.ekgTimes.ended = Date.now();
    requestAnimationFrame(() => setTimeout(() => { window.ekgTimes.drawn = Date.now(); }));
  }).observe(prompt, { childList: true, characterData: true, subtree: true });
}

/** Counts the displays in a cell's model, and what ekg says is missing. */
function countOutputs(index) {
  const { outputs } = window.jupyterapp.shell.currentWidget.content.widgets[index].model;
  const counted = { displays: 0, said: '' };
  for (let i = 0; i < outputs.length; i++) {
    const output = outputs.get(i).toJSON();
    if (output.output_type === 'display_data') counted.displays++;
    else counted.said += [output.text ?? ''].flat().join('');
  }
  return counted;
}

const cells = [
  'import os, time\nprint(os.getpid())',
  `began = time.time()\nfor i in range(${DISPLAYS}):\n    display(i)\ntook = time.time() - began`,
  'print(took)',
];

async function turn(way, round, lab) {
  const name = `${way.replace(/\W+/g, '-')}-${round}`;
  lab.write(`${name}.ipynb`, cells);
  const notebook = await lab.open(`${name}.ipynb`);
  await notebook.connected(60);
  await notebook.run(0);
  await notebook.finished(0, 30);
  const session = (await (await fetch(`${lab.url}/api/sessions`)).json()).find(s => s.path === notebook.name);
  const groups = involved(lab, { id: session.kernel.id, pid: Number(await notebook.output(0)) });
  await notebook.page.evaluate(noteEnd, 1);
  const before = cpuOf(groups);
  const began = Date.now();
  await notebook.run(1);
  const times = () => notebook.page.evaluate(() => window.ekgTimes);
  for (;;) { // rarely, since a question costs the page time
    await new Promise(resolve => setTimeout(resolve, 1000));
    if ((await times()).drawn) break;
    if (Date.now() - began > LIMIT * 1000) {
      throw new Error(`the cell has not ended: ${JSON.stringify(await notebook.page.evaluate(countOutputs, 1))}`);
    }
  }
  const { ended, drawn } = await times();
  const cpu = Object.entries(cpuOf(groups)).map(([who, seconds]) => [who, seconds - before[who]]);
  const counted = await notebook.page.evaluate(countOutputs, 1);
  await notebook.run(2);
  await notebook.finished(2, 60);
  const result = {
    seconds: (ended - began) / 1000, drawn: (drawn - began) / 1000, kernel: Number(await notebook.output(2)),
    displays: counted.displays, cpu: Object.fromEntries(cpu),
  };
  const announced = [...counted.said.matchAll(/\[ekg\] (\d+) messages/g)].reduce((sum, [, n]) => sum + Number(n), 0);
  const { seconds, drawn: shownAfter, kernel, displays } = result;
  console.log(`# ${way}: the cell's end after ${seconds.toFixed(1)} s, drawn after ${shownAfter.toFixed(1)} s,`
    + ` the kernel took ${kernel.toFixed(1)} s; ${displays} of ${DISPLAYS} displays, ${announced} announced as lost;`
    + ` CPU ${cpu.map(([who, used]) => `${who} ${used.toFixed(1)}`).join(', ')} s`);
  if (groups.supervisor.length && displays + announced < DISPLAYS) {
    throw new Error('displays are missing, and the cell does not say so');
  }
  await notebook.close();
  if (groups.supervisor.length) await rest(`/api/kernels/${session.kernel.id}`, { method: 'DELETE' });
  return result;
}

const median = values => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)];

const chosen = Object.entries(ways).filter(([way]) => new RegExp(process.env.EKG_ONLY || '', 'i').test(way));
const results = {};
for (let round = 0; round < ROUNDS; round++) {
  for (const [way, options] of chosen) {
    await check(`${way}, turn ${round + 1}`, async () => {
      const lab = await Lab.start({ tracker: shown, name: way.replace(/\W+/g, '-'), ...options });
      try {
        (results[way] ??= []).push(await turn(way, round, lab));
      } finally {
        await lab.stop();
      }
    }, LIMIT + 120);
  }
}
for (const [way, all] of Object.entries(results)) {
  console.log(`# median of ${all.length}, ${way}: ${median(all.map(r => r.seconds)).toFixed(1)} s,`
    + ` ${median(all.map(r => r.displays))} displays,`
    + ` ${median(all.map(r => r.cpu.server)).toFixed(2)} s of CPU in the server,`
    + ` ${median(all.map(r => r.cpu.renderer)).toFixed(2)} s in the page`);
}
finish();
