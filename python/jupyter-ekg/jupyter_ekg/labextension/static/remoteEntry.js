// Shows in a notebook's page what its cells have printed while no page looked: when it is opened, for cells that have run
// meanwhile, and on a command, for all. A cell that still runs is shown as running and gets its output as it comes. What the
// server sends again after the page's websocket broke is shown once.
//
// JupyterLab and Notebook 7 load this file as a module federation container: an object with init and get under its name in
// _JUPYTERLAB. It is written by hand, needs no build, and takes what it uses of JupyterLab from the scope that JupyterLab
// shares with its extensions.
(() => {
  'use strict';

  const NAME = 'jupyter-ekg';
  const COMMAND = 'jupyter-ekg:restore-outputs';
  const MOST_WAITING = 100000; // messages of running cells that are held while the log is read
  const MOST_REMEMBERED = 20000; // messages of a cell that are known when they come again: more than 4 MiB hold, which a server repeats at most

  let scope;

  /** A module that JupyterLab shares; there is one version of it in a page. */
  async function shared(name) {
    const versions = Object.values(scope[name] ?? {});
    if (!versions.length) throw new Error(`${NAME}: JupyterLab does not share ${name}`);
    const factory = await (versions.find(v => v.loaded) ?? versions[0]).get();
    return factory();
  }

  const joined = text => (Array.isArray(text) ? text.join('') : text);

  /** Outputs in a form in which equal ones are equal text. */
  function canonical(outputs) {
    const sorted = value => {
      if (Array.isArray(value)) return value.map(sorted);
      if (value === null || typeof value !== 'object') return value;
      return Object.fromEntries(Object.keys(value).sort().map(key => [key, sorted(value[key])]));
    };
    return JSON.stringify(outputs.map(({ transient, ...output }) => sorted({
      ...output,
      ...(output.text === undefined ? {} : { text: joined(output.text) }),
      ...(output.data === undefined ? {} : {
        data: Object.fromEntries(Object.entries(output.data).map(([mime, value]) => [mime, mime.startsWith('text/') ? joined(value) : value])),
      }),
    })));
  }

  /** The output that an iopub message is, as a notebook has it; undefined if it is none. */
  function outputOf(msg) {
    const { content } = msg;
    switch (msg.header.msg_type) {
      case 'stream':
        return { output_type: 'stream', name: content.name, text: content.text };
      case 'error':
        return { output_type: 'error', ename: content.ename, evalue: content.evalue, traceback: content.traceback };
      case 'display_data':
        return { output_type: 'display_data', data: content.data, metadata: content.metadata };
      case 'execute_result':
        return { output_type: 'execute_result', data: content.data, metadata: content.metadata, execution_count: content.execution_count };
      default:
        return undefined;
    }
  }

  /** Tells which messages of a cell come for the first time: what a browser had not acknowledged when its websocket broke comes again. */
  class Arrivals {
    constructor(ids = []) {
      this.ids = new Set(ids); // in the order of their arrival
    }

    isNew({ header: { msg_id: id } }) {
      if (this.ids.has(id)) return false;
      this.ids.add(id);
      if (this.ids.size > MOST_REMEMBERED) this.ids.delete(this.ids.values().next().value);
      return true;
    }
  }

  /** Leaves repeated messages out of the cells that a page runs by this connection to a kernel. */
  function showOnce(kernel) {
    kernel.anyMessage.connect((_, { msg, direction }) => {
      if (direction !== 'send' || msg.header.msg_type !== 'execute_request') return;
      const arrivals = new Arrivals();
      // JupyterLab begins to wait for the answers, which a hook needs, right after this.
      queueMicrotask(() => {
        if (!kernel.isDisposed) kernel.registerMessageHook(msg.header.msg_id, answer => arrivals.isNew(answer));
      });
    });
  }

  /** A cell whose execution another page began: shown as running, with its output as it comes. */
  class RunningCell {
    constructor(panel, model, execution, ended) {
      Object.assign(this, { panel, model, execution, ended });
      this.arrivals = new Arrivals(execution.seen);
      this.displays = new Map(); // display_id to the places of its outputs
      execution.outputs.forEach((output, i) => this.remember(output.transient?.display_id, i));
      if (execution.clear_next) model.outputs.clear(true);
      this.show(true);
    }

    remember(id, place) {
      if (id) this.displays.set(id, [...(this.displays.get(id) ?? []), place]);
    }

    /** Shows the cell as running or not. Its widget may come later, when it is scrolled to. */
    show(running) {
      if ('executionState' in this.model) this.model.executionState = running ? 'running' : 'idle';
      const widget = this.panel.content.widgets.find(w => w.model === this.model);
      if (running) widget?.setPrompt?.('*');
      else widget?.setPrompt?.(String(this.model.executionCount ?? ''));
    }

    /** Takes a message of the kernel whose parent is the cell's request. */
    take(msg) {
      if (!this.arrivals.isNew(msg)) return; // it was in the log, or comes again
      const { outputs } = this.model;
      const output = outputOf(msg);
      if (output) {
        outputs.add(output);
        this.remember(msg.content.transient?.display_id, outputs.length - 1);
      } else if (msg.header.msg_type === 'clear_output') {
        outputs.clear(msg.content.wait);
        if (!msg.content.wait) this.displays.clear();
      } else if (msg.header.msg_type === 'update_display_data') {
        for (const place of this.displays.get(msg.content.transient?.display_id) ?? []) {
          if (place < outputs.length) {
            outputs.set(place, { ...outputs.get(place).toJSON(), data: msg.content.data, metadata: msg.content.metadata });
          }
        }
      } else if (msg.header.msg_type === 'status' && msg.content.execution_state === 'idle') {
        this.end();
      }
    }

    end() {
      if (!this.model.isDisposed) {
        this.model.executionCount = this.execution.count;
        this.show(false);
      }
      this.ended();
    }
  }

  /** One notebook of the page and its kernel. */
  class Restorer {
    constructor(panel, { ServerConnection, URLExt, Notification, NotebookActions }) {
      Object.assign(this, { panel, ServerConnection, URLExt, Notification });
      this.running = new Map(); // msg_id of the request to RunningCell
      this.sessions = new Set(); // of pages that have gone and left running cells
      this.waiting = null; // messages that come while the log is read, or is about to be
      this.readings = 0; // that are wanted or under way
      this.last = Promise.resolve(); // the end of the last of them
      this.kernel = null;
      this.connection = null; // to the present kernel
      const context = panel.sessionContext;
      const executed = (_, { cell }) => this.release(cell.model);
      this.connect(context.session?.kernel);
      context.kernelChanged.connect(this.kernelChanged, this);
      context.iopubMessage.connect(this.message, this);
      context.statusChanged.connect(this.statusChanged, this);
      NotebookActions.executionScheduled?.connect(executed);
      panel.disposed.connect(() => {
        context.kernelChanged.disconnect(this.kernelChanged, this);
        context.iopubMessage.disconnect(this.message, this);
        context.statusChanged.disconnect(this.statusChanged, this);
        NotebookActions.executionScheduled?.disconnect(executed);
        this.running.clear();
      });
      void panel.context.ready.then(() => context.ready).then(() => this.begin());
    }

    connect(kernel) {
      if (!kernel || kernel === this.connection) return;
      this.connection = kernel;
      showOnce(kernel);
    }

    kernelChanged(_, { newValue }) {
      this.connect(newValue);
      this.endAll();
      this.sessions.clear();
      void this.begin();
    }

    /** Reads the log of the present kernel, once. */
    async begin() {
      const kernel = this.panel.isDisposed ? null : this.panel.sessionContext.session?.kernel;
      if (!kernel || kernel.id === this.kernel || !this.panel.content.model) return;
      this.kernel = kernel.id;
      try {
        // The answer that this waits for has come by the websocket. So what the kernel says from here on comes, too, and the
        // log, read after it, has all that is before.
        await kernel.info;
        await this.restore(false);
      } catch (error) {
        console.warn(`${NAME}: ${error.message}`); // the page is as it would be without
      }
    }

    message(_, msg) {
      const parent = msg.parent_header;
      const cell = this.running.get(parent?.msg_id);
      if (cell) {
        cell.take(msg);
        return;
      }
      // The next of several cells that a page ran before it went: it was not in the log yet.
      const begins = msg.header.msg_type === 'status' && msg.content.execution_state === 'busy' && parent?.msg_type === 'execute_request';
      if (begins && this.sessions.has(parent.session)) {
        void this.restore(false).catch(error => console.warn(`${NAME}: ${error.message}`));
      }
      if (this.waiting && parent?.msg_id && this.waiting.length < MOST_WAITING) this.waiting.push(msg);
    }

    statusChanged(_, status) {
      if (['starting', 'restarting', 'autorestarting', 'terminating', 'dead'].includes(status)) this.endAll();
    }

    endAll() {
      for (const cell of [...this.running.values()]) cell.end();
    }

    /** A cell that is run in this page is JupyterLab's again. */
    release(model) {
      for (const [id, cell] of this.running) if (cell.model === model) this.running.delete(id);
    }

    async read(kernel) {
      const settings = this.ServerConnection.makeSettings();
      const url = this.URLExt.join(settings.baseUrl, NAME, 'kernels', encodeURIComponent(kernel.id), 'outputs');
      const response = await this.ServerConnection.makeRequest(url, {}, settings);
      const body = await response.json();
      if (!response.ok) throw new Error(body.message ?? response.statusText);
      return body;
    }

    /** Brings the cells up to date: those that have run unseen, or all. Returns how many it has changed. */
    restore(all) {
      this.waiting ??= [];
      this.readings++;
      const reading = this.last.then(() => this.restoreNow(all)).finally(() => {
        if (--this.readings === 0) this.waiting = null;
      });
      this.last = reading.catch(() => undefined);
      return reading;
    }

    async restoreNow(all) {
      const kernel = this.panel.isDisposed ? null : this.panel.sessionContext.session?.kernel;
      if (!kernel) throw new Error('the notebook has no kernel');
      const { cells } = await this.read(kernel);
      if (this.panel.isDisposed || this.panel.sessionContext.session?.kernel?.id !== kernel.id) return 0;
      const models = this.panel.content.model.cells;
      let changed = 0;
      for (let i = 0; i < models.length; i++) {
        const model = models.get(i);
        const execution = model.type === 'code' ? cells[model.id] : undefined;
        if (execution && this.wanted(model, execution, kernel, all) && this.fill(model, execution)) changed++;
      }
      return changed;
    }

    wanted(model, execution, kernel, all) {
      if (this.running.has(execution.msg_id)) return false;
      // What runs in this page is shown by JupyterLab.
      if (execution.running && execution.session === kernel.clientId) return false;
      if (model.executionState === 'running') return false;
      const present = model.outputs.toJSON();
      if (execution.beheaded && present.length) return false; // the page has the part that the log has lost
      if (all || execution.running) return true;
      if (model.sharedModel.getSource() !== execution.code) return false;
      // A log that has less of the same execution than the page is no news.
      return model.executionCount !== execution.count || canonical(present).length < canonical(execution.outputs).length;
    }

    fill(model, execution) {
      const before = canonical(model.outputs.toJSON());
      const same = before === canonical(execution.outputs) && model.executionCount === execution.count;
      if (!same) {
        // The kernel has said this to this user, as if the cell had run in this page.
        model.trusted = true;
        model.outputs.fromJSON(execution.outputs.map(({ transient, ...output }) => output));
        if (execution.running) model.executionCount = null;
        else model.executionCount = execution.count;
      }
      if (execution.running) {
        const id = execution.msg_id;
        const cell = new RunningCell(this.panel, model, execution, () => this.running.delete(id));
        this.running.set(id, cell);
        this.sessions.add(execution.session);
        for (const msg of this.waiting ?? []) if (msg.parent_header.msg_id === id && this.running.has(id)) cell.take(msg);
      }
      return !same;
    }

    async command() {
      try {
        const changed = await this.restore(true);
        this.Notification.info(changed ? `The outputs of ${changed} cell${changed > 1 ? 's were' : ' was'} restored.` : 'All outputs are there already.', { autoClose: 3000 });
      } catch (error) {
        this.Notification.error(`The outputs cannot be restored: ${error.message}`);
      }
    }
  }

  async function plugin() {
    const [coreutils, services, apputils, notebook, mainmenu] = await Promise.all(
      ['@jupyterlab/coreutils', '@jupyterlab/services', '@jupyterlab/apputils', '@jupyterlab/notebook', '@jupyterlab/mainmenu'].map(shared));
    return {
      id: `${NAME}:outputs`,
      description: 'Shows what cells printed while no page looked.',
      autoStart: true,
      requires: [notebook.INotebookTracker],
      optional: [apputils.ICommandPalette, mainmenu.IMainMenu],
      activate: (app, tracker, palette, menu) => {
        if (coreutils.PageConfig.getOption('jupyterEkg') !== 'true') return; // the server uses no gateway
        const used = { ServerConnection: services.ServerConnection, URLExt: coreutils.URLExt, Notification: apputils.Notification, NotebookActions: notebook.NotebookActions };
        const restorers = new WeakMap();
        const add = panel => restorers.set(panel, new Restorer(panel, used));
        tracker.forEach(add);
        tracker.widgetAdded.connect((_, panel) => add(panel));
        app.commands.addCommand(COMMAND, {
          label: 'Restore Outputs from Kernel',
          caption: 'Show what the cells printed while no page looked',
          isEnabled: () => tracker.currentWidget !== null,
          execute: () => restorers.get(tracker.currentWidget)?.command(),
        });
        palette?.addItem({ command: COMMAND, category: 'Notebook Operations' });
        menu?.kernelMenu.addGroup([{ command: COMMAND }], 40);
      },
    };
  }

  (window._JUPYTERLAB ??= {})[NAME] = {
    init: shareScope => {
      scope = shareScope;
    },
    get: async () => {
      const exported = { __esModule: true, default: await plugin() };
      return () => exported;
    },
  };
})();
