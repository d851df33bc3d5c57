// JupyterLab as a user sees it: a Jupyter server with --gateway-url, Chromium, and the actions of a user in a notebook.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, mkdirSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { require, TOKEN, until, URL } from '../js/checks.mjs';
import { Network } from './network.mjs';

const { chromium } = require('playwright-core');

export const ARTIFACTS = process.env.EKG_ARTIFACTS ?? mkdtempSync(join(tmpdir(), 'ekg-artifacts-'));
mkdirSync(ARTIFACTS, { recursive: true });

export const startChromium = () => chromium.launch({
  executablePath: '/usr/bin/chromium', headless: true,
  args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
    '--disable-component-update', '--disable-sync', '--disable-dev-shm-usage'],
});

async function freePort() {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address();
  server.close();
  await once(server, 'close');
  return port;
}

// The folder into which hack/env/notebook has installed Notebook 7; empty where no script needs it.
const NOTEBOOK7 = process.env.EKG_NOTEBOOK7 ?? '';

// The folder into which hack/env/extension has installed jupyter-ekg; empty for a server without it.
export const EXTENSION = process.env.EKG_EXTENSION ?? '';

/** Returns the environment variables with which a process finds what is installed in these folders. */
const finding = (...folders) => {
  const path = (...parts) => folders.filter(folder => folder).map(folder => join(folder, ...parts)).join(':');
  return path() && {
    PYTHONPATH: path(), JUPYTER_CONFIG_PATH: path('etc/jupyter'), JUPYTER_PATH: path('share/jupyter'),
  };
};

/** The environment variables with which a process finds the extension of EKG_EXTENSION. */
export const extended = finding(EXTENSION);

/** The newest JupyterLab with its own folder, home and settings. Its kernels are the gateway's, or without a gateway its
 * own processes. With `notebook7` it is Notebook 7. `files` is a folder that outlives it. */
export class Lab {
  static async start({
    token = TOKEN, name = 'jupyterlab', options = [], gateway = URL, extension = EXTENSION, env = {}, tracker = {}, notebook7 = false,
    files,
  } = {}) {
    const lab = new Lab();
    if (gateway) options = ['--gateway-url', gateway, ...options];
    lab.dir = mkdtempSync(join(tmpdir(), 'ekg-lab-'));
    lab.files = files ?? join(lab.dir, 'files');
    mkdirSync(lab.files, { recursive: true });
    const settings = (path, value) => {
      mkdirSync(join(lab.dir, 'settings', path, '..'), { recursive: true });
      writeFileSync(join(lab.dir, 'settings', path), JSON.stringify(value));
    };
    // All cells stay in the page so that the script can read them. No request leaves this machine.
    settings('@jupyterlab/notebook-extension/tracker.jupyterlab-settings', { windowingMode: 'none', ...tracker });
    settings('@jupyterlab/apputils-extension/notification.jupyterlab-settings', { fetchNews: 'false', checkForUpdates: false });
    settings('@jupyterlab/docmanager-extension/plugin.jupyterlab-settings', { autosave: false });
    const port = await freePort();
    lab.port = port;
    lab.url = `http://127.0.0.1:${port}`;
    lab.networks = [];
    lab.log = `${name}.log`;
    const app = notebook7
      ? ['notebook', '--JupyterNotebookApp.expose_app_in_browser=True']
      : ['jupyterlab', '--LabApp.expose_app_in_browser=True', '--LabApp.news_url='];
    lab.arguments = ['-m', ...app, '--no-browser', '--allow-root',
      '--ip=127.0.0.1', `--port=${port}`, '--ServerApp.port_retries=0', '--IdentityProvider.token=',
      `--ServerApp.root_dir=${lab.files}`, ...options];
    lab.env = {
      ...process.env, ...finding(extension, notebook7 && NOTEBOOK7), HOME: lab.dir, JUPYTER_GATEWAY_AUTH_TOKEN: token, JUPYTERLAB_SETTINGS_DIR: join(lab.dir, 'settings'),
      JUPYTERLAB_WORKSPACES_DIR: join(lab.dir, 'workspaces'), JUPYTER_CONFIG_DIR: join(lab.dir, 'config'),
      ...notebook7 && { JUPYTERLAB_DIR: join(NOTEBOOK7, 'share/jupyter/lab') }, ...env,
    };
    await lab.serve('w');
    lab.browser = await startChromium();
    lab.context = await lab.window();
    return lab;
  }

  /** Starts the server. With the flag 'a' its log is continued. */
  async serve(flag) {
    const log = openSync(join(ARTIFACTS, this.log), flag);
    this.process = spawn(join(process.env.EKG_LAB, 'bin/python'), this.arguments, { env: this.env, stdio: ['ignore', log, log] });
    closeSync(log);
    await until(async () => {
      if (this.process.exitCode !== null) throw new Error(`JupyterLab ended; see ${this.log}`);
      try {
        return (await fetch(`${this.url}/api`)).ok;
      } catch {
        return false;
      }
    }, 180, 'JupyterLab answers');
  }

  /** Kills the server, and returns when it has ended. Files and settings stay. */
  async kill() {
    const ended = once(this.process, 'exit');
    this.process.kill('SIGKILL');
    await ended;
  }

  /** Opens a window of the browser, with its own cookies and network. Only the front page of a window is drawn. */
  window(options = {}) {
    return this.browser.newContext({ viewport: { width: 1200, height: 900 }, ...options });
  }

  /** Writes a notebook whose cells have these sources. */
  write(name, cells, kernel = 'python3') {
    writeFileSync(join(this.files, name), JSON.stringify({
      nbformat: 4, nbformat_minor: 5,
      metadata: { kernelspec: { name: kernel, display_name: kernel, language: 'python' }, language_info: { name: 'python' } },
      cells: cells.map((source, i) => ({ cell_type: 'code', id: `c${i}`, metadata: {}, execution_count: null, outputs: [], source })),
    }));
  }

  /** Returns a cell's outputs in the saved file. */
  saved(name, index) {
    return JSON.parse(readFileSync(join(this.files, name), 'utf8')).cells[index].outputs;
  }

  /** Opens a page with the notebook, in an empty workspace. */
  async open(name, { window = this.context, network } = {}) {
    const page = await window.newPage();
    page.setDefaultTimeout(60000); // a page that draws thousands of lines answers late on a busy machine
    page.setDefaultNavigationTimeout(60000);
    page.on('dialog', dialog => dialog.accept()); // "leave this page?"
    const notebook = new Notebook(this, page, name);
    await notebook.watchDialogs();
    this.workspaces = (this.workspaces ?? 0) + 1;
    await page.goto(`${network?.url ?? this.url}/lab/workspaces/w${this.workspaces}/tree/${name}`);
    await notebook.shown();
    return notebook;
  }

  /** Creates a network between a browser and the server, which can be cut. */
  async network() {
    const network = await Network.to(this.port);
    this.networks.push(network);
    return network;
  }

  async stop() {
    await this.browser?.close();
    for (const network of this.networks) network.close();
    this.process.kill('SIGTERM');
    const timer = setTimeout(() => this.process.kill('SIGKILL'), 15000);
    if (this.process.exitCode === null && this.process.signalCode === null) await once(this.process, 'exit');
    clearTimeout(timer);
    rmSync(this.dir, { recursive: true, force: true });
  }
}

/** Writes a picture of the part of a page that holds all of these elements into EKG_PICTURES. `padding` is around them, in
 * pixels of the page. */
export async function picture(page, name, elements, padding = 16) {
  const { width, height } = page.viewportSize();
  await page.mouse.move(width - 1, height - 1); // no tooltip and no hover
  const boxes = await Promise.all(elements.map(element => element.boundingBox()));
  const left = Math.max(0, Math.min(...boxes.map(b => b.x)) - padding);
  const top = Math.max(0, Math.min(...boxes.map(b => b.y)) - padding);
  const right = Math.min(width, Math.max(...boxes.map(b => b.x + b.width)) + padding);
  const bottom = Math.min(height, Math.max(...boxes.map(b => b.y + b.height)) + padding);
  await page.screenshot({
    path: join(process.env.EKG_PICTURES, `${name}.png`), animations: 'disabled', caret: 'hide',
    clip: { x: left, y: top, width: right - left, height: bottom - top },
  });
}

/** The notebook in the front tab of a page. */
export class Notebook {
  constructor(lab, page, name) {
    Object.assign(this, { lab, page, name });
    this.panel = page.locator('.jp-NotebookPanel:not(.lm-mod-hidden)');
    this.dialog = page.locator('.jp-Dialog');
    this.dialogs = []; // the texts of all dialogs so far
  }

  async watchDialogs() {
    await this.page.exposeFunction('ekgDialog', text => { this.dialogs.push(text); });
    await this.page.addInitScript(() => {
      new MutationObserver(changes => {
        for (const node of changes.flatMap(c => [...c.addedNodes])) {
          if (node.classList?.contains('jp-Dialog')) window.ekgDialog(node.innerText);
        }
      }).observe(document, { childList: true, subtree: true });
    });
  }

  async shown() {
    await this.panel.locator('.jp-Cell').first().waitFor({ timeout: 60000 });
  }

  cell(index) {
    return this.panel.locator('.jp-CodeCell').nth(index);
  }

  /** Returns the kernel's state in the status bar: "Python 3 (ipykernel) | Idle". The toolbar is not used, because it
   * shows idle before a kernel exists. */
  async status() {
    const items = await this.page.locator('.jp-StatusBar-TextItem').allInnerTexts();
    return items.find(t => t.includes(' | ')) ?? 'no status';
  }

  /** Waits until the page shows the kernel as idle. */
  async connected(seconds = 10) {
    const idle = async () => {
      const status = await this.status();
      return status.endsWith('| Idle') && !status.startsWith('No Kernel');
    };
    await until(idle, seconds, `the kernel of ${this.name} shown as idle`)
      .catch(async e => { throw new Error(`${e.message}; it is "${await this.status()}"`); });
  }

  /** Clicks into a cell and presses Shift-Enter. */
  async run(index, keys = 'Shift+Enter') {
    await this.cell(index).locator('.cm-content').click();
    await this.page.keyboard.press(keys);
  }

  /** Returns the text in a cell's prompt: '[*]:', '[3]:' or '[ ]:'. */
  async prompt(index) {
    return (await this.cell(index).locator('.jp-InputPrompt').innerText()).trim();
  }

  async finished(index, seconds = 20) {
    await until(async () => /^\[\d+\]:?$/.test(await this.prompt(index)), seconds, `cell ${index} of ${this.name} has ended`)
      .catch(async e => { throw new Error(`${e.message}; its prompt is ${await this.prompt(index)}, its output ${(await this.output(index)).slice(-200)}`); });
  }

  /** Returns all text in a cell's outputs. */
  async output(index) {
    return (await this.cell(index).locator('.jp-OutputArea-output').allInnerTexts()).join('\n');
  }

  async printed(index, text, seconds = 20) {
    await until(async () => (await this.output(index)).includes(text), seconds, `cell ${index} shows ${JSON.stringify(text)}`)
      .catch(async e => { throw new Error(`${e.message}; it shows ${JSON.stringify((await this.output(index)).slice(-300))}`); });
  }

  /** Starts a menu command. Does not wait: some commands end only with their dialog. */
  async command(id, args = {}) {
    await this.page.evaluate(([id, args]) => { window.jupyterapp.commands.execute(id, args); }, [id, args]);
  }

  /** Restarts the kernel and confirms the dialog. */
  async restart() {
    await this.command('notebook:restart-kernel');
    await this.dialog.locator('.jp-mod-accept').click();
    await this.dialog.waitFor({ state: 'detached' });
  }

  /** Opens another notebook in a tab of the same page. */
  async openBeside(name) {
    await this.command('docmanager:open', { path: name, factory: 'Notebook' });
    const notebook = new Notebook(this.lab, this.page, name);
    await this.page.locator(`.lm-TabBar-tab.lm-mod-current[title*="${name}"], .lm-TabBar-tab.jp-mod-current[title*="${name}"]`).first().waitFor();
    await notebook.shown();
    return notebook;
  }

  async save() {
    await this.page.evaluate(() => window.jupyterapp.commands.execute('docmanager:save'));
  }

  async screenshot(name) {
    await this.page.screenshot({ path: join(ARTIFACTS, `${name.replace(/[^a-z0-9]+/gi, '-')}.png`) });
  }

  async close() {
    await this.page.close({ runBeforeUnload: false });
  }
}
