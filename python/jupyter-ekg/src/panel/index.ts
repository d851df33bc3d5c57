import type { ILabShell, ILayoutRestorer, JupyterFrontEnd } from '@jupyterlab/application';
import type { ICommandPalette } from '@jupyterlab/apputils';
import type { INotebookTracker } from '@jupyterlab/notebook';
import { ServerConnection, type Contents } from '@jupyterlab/services';
import type { IStatusBar } from '@jupyterlab/statusbar';
import { LabIcon } from '@jupyterlab/ui-components';
import { Menu } from '@lumino/widgets';

import { COMMAND as RESTORE } from '../command';
import { fetchExecutions } from '../log';
import { Actions, KEEP_HOURS } from './actions';
import { Following } from './following';
import { Kernels, SAMPLE_TIME } from './kernels';
import { KernelsPanel } from './panel';
import { actionsOf, rowsOf, type IRow } from './rows';
import { openEvents, type Kept } from './server';
import { KernelStatus } from './status';
import { follow } from './stream';
import { Unsaved } from './unsaved';

/** The command that shows the panel. */
export const SHOW = 'jupyter-ekg:show-kernels';
const ACT = 'jupyter-ekg:kernel-action';
const KEEP = 'jupyter-ekg:keep-kernel';

/** The panel's place: behind JupyterLab's running panel, whose rank is 200. */
const RANK = 210;

const icon = new LabIcon({
  name: 'jupyter-ekg:kernels',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">
<g class="jp-icon3" fill="#616161">
<path d="M9 2v3H7a2 2 0 0 0-2 2v2H2v2h3v2H2v2h3v2a2 2 0 0 0 2 2h2v3h2v-3h2v3h2v-3h2a2 2 0 0 0 2-2v-2h3v-2h-3v-2h3V9h-3V7
a2 2 0 0 0-2-2h-2V2h-2v3h-2V2H9zM7 7h10v10H7V7z"/>
<path d="M8 13h2l1.5-4 2 6 1.2-3H16v-1.4h-2.2l-.4 1L11.500 6.800 9.200 11.600H8z"/></g></svg>`
});

export interface IParts {
  app: JupyterFrontEnd;
  tracker: INotebookTracker;
  palette: ICommandPalette | null;
  labShell: ILabShell | null;
  restorer: ILayoutRestorer | null;
  statusBar: IStatusBar | null;
}

/** Adds the panel of kernels, its commands, and the item in the status bar. */
export function addPanel({ app, tracker, palette, labShell, restorer, statusBar }: IParts): void {
  const { commands, serviceManager: services } = app;
  const kernels = new Kernels();
  const refresh = () => {
    panel.refresh();
    status.refresh();
  };
  const actions = new Actions(services, tracker, refresh);
  const unsaved = new Unsaved(
    {
      modified: path => modified(services.contents, path),
      notebook: async path => (await services.contents.get(path, { type: 'notebook', content: true })).content,
      executions: id => fetchExecutions(id, true)
    },
    refresh
  );
  const rows = (): IRow[] => {
    const uses = new Map([...services.sessions.running()].map(session => [session.kernel?.id, session]));
    return rowsOf(
      kernels.all.values(),
      kernels.user,
      id => uses.get(id),
      name => services.kernelspecs.specs?.kernelspecs[name]?.display_name ?? name
    );
  };
  const panel = new KernelsPanel({
    kernels,
    rows,
    problem: id => actions.problems.of(id),
    unsaved: id => (actions.notebook(id) ? 0 : unsaved.count(id)),
    open: ({ path }) => void commands.execute('docmanager:open', { path }),
    menu: (row, button) => openMenu(actionMenu(row), button),
    keepMenu: (row, what, button) => openMenu(keepMenu(row, what), button),
    unkeep: (row, what) => void actions.keep(row, what, null),
    shown: () => void unsaved.check(rows().filter(row => !row.foreign && !actions.notebook(row.kernel.id))),
    visibilityChanged: () => following.look()
  });
  panel.id = 'jupyter-ekg-kernels';
  panel.title.icon = icon;
  panel.title.caption = 'Kernels and GPUs';
  panel.node.setAttribute('role', 'region');
  panel.node.setAttribute('aria-label', 'Kernels and GPUs');

  const show = () => app.shell.activateById(panel.id);
  const current = () => tracker.currentWidget?.sessionContext.session?.kernel?.id;
  const status = new KernelStatus(() => {
    const id = current();
    return id === undefined ? undefined : kernels.all.get(id);
  }, show);
  // The item is hidden while it has nothing to say. The bar around it is not.
  const hasStatus = () => status.parent?.isVisible === true && current() !== undefined;
  let restored = false;
  const following = new Following(
    () => restored && document.visibilityState === 'visible' && (panel.isVisible || hasStatus()),
    signal => follow(kernels, openEvents, signal)
  );
  const row = (id: unknown) => rows().find(row => row.kernel.id === id);

  commands.addCommand(SHOW, { label: 'Show Kernels and GPUs', execute: show });
  palette?.addItem({ command: SHOW, category: 'Kernel Operations' });
  commands.addCommand(ACT, {
    label: args => String(args.label ?? 'Act on a Kernel'),
    execute: async args => {
      const target = row(args.id);
      if (target) {
        await actions.run(target, args.action as 'interrupt' | 'restart' | 'shutdown' | 'share');
      }
    }
  });
  commands.addCommand(KEEP, {
    label: ({ what, hours }) =>
      `Keep${what === 'keep_gpu_until' ? ' the GPU' : ''} for ${hours} ${hours === 1 ? 'Hour' : 'Hours'}`,
    execute: async args => {
      const target = row(args.id);
      if (target) {
        await actions.keep(target, args.what as Kept, Number(args.hours));
      }
    }
  });

  function keepMenu({ kernel }: IRow, what: Kept): Menu {
    const menu = new Menu({ commands });
    for (const hours of KEEP_HOURS) {
      menu.addItem({ command: KEEP, args: { id: kernel.id, what, hours } });
    }
    return menu;
  }

  function actionMenu(target: IRow): Menu {
    const { kernel } = target;
    const menu = new Menu({ commands });
    const labels = { interrupt: 'Interrupt…', restart: 'Restart…', shutdown: 'Shut Down…', share: 'Share…' };
    for (const action of actionsOf(target)) {
      if (action === 'keep' || action === 'keepGPU') {
        continue; // have their own buttons
      }
      menu.addItem({ command: ACT, args: { id: kernel.id, action, label: labels[action] } });
    }
    const notebook = actions.notebook(kernel.id);
    if (notebook && notebook === tracker.currentWidget) {
      menu.addItem({ type: 'separator' });
      menu.addItem({ command: RESTORE });
    }
    return menu;
  }

  app.shell.add(panel, 'left', { rank: RANK, type: 'Kernels' });
  restorer?.add(panel, panel.id);
  statusBar?.registerStatusItem('jupyter-ekg:status', {
    item: status,
    align: 'left',
    rank: 100, // at the end of its side, where its width moves nothing
    isActive: () => status.active,
    activeStateChanged: status.activeChanged
  });

  kernels.onChange(() => {
    actions.problems.forget(id => !kernels.all.has(id));
    refresh();
  });
  const changed = () => {
    refresh();
    following.look();
  };
  services.sessions.runningChanged.connect(changed);
  tracker.currentChanged.connect(changed);
  labShell?.currentChanged.connect(changed);
  document.addEventListener('visibilitychange', () => following.look());
  setInterval(() => {
    following.look(); // nothing says when the status bar is hidden
    if (following.active && document.visibilityState === 'visible') {
      kernels.sample(Date.now());
    }
  }, SAMPLE_TIME);
  void app.restored.then(() => {
    restored = true;
    following.look();
  });
}

/** When a file was saved, in ms since 1970; undefined if there is no such file. */
async function modified(contents: Contents.IManager, path: string): Promise<number | undefined> {
  try {
    return Date.parse((await contents.get(path, { content: false })).last_modified);
  } catch (error) {
    if (error instanceof ServerConnection.ResponseError && error.response.status === 404) {
      return undefined;
    }
    throw error;
  }
}

/** Opens a menu below a button, to which the focus returns. */
function openMenu(menu: Menu, button: HTMLElement): void {
  const box = button.getBoundingClientRect();
  menu.aboutToClose.connect(() => {
    button.focus();
    queueMicrotask(() => menu.dispose()); // the menu starts the chosen command right after this signal
  });
  menu.open(box.left, box.bottom);
}
