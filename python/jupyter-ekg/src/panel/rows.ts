import type { IKernelModel } from './kernels';

/** What uses a kernel in this JupyterLab: the model of a session. */
export interface IUse {
  path: string;
  name: string;
  type: string;
}

/** A kernel as a row of the panel. */
export interface IRow {
  kernel: IKernelModel;
  /** The name of the notebook, or the kernelspec and the beginning of the id. */
  title: string;
  /** The path of the notebook; undefined for a kernel without one. */
  path: string | undefined;
  /** The kernelspec's name for people. */
  spec: string;
  /** Whether the kernel is of another user. */
  foreign: boolean;
  /** Whether the user may end, keep and share the kernel, as the gateway's model tells. */
  owned: boolean;
}

/** Makes the rows, the oldest kernel first. A row keeps its place when its kernel gets a notebook or another state. */
export function rowsOf(
  kernels: Iterable<IKernelModel>,
  user: string,
  useOf: (id: string) => IUse | undefined,
  specName: (name: string) => string
): IRow[] {
  const rows = [...kernels].map(kernel => {
    const use = useOf(kernel.id);
    const spec = specName(kernel.name);
    return {
      kernel,
      title: use?.path ? (use.path.split('/').pop() ?? use.path) : `${spec}, ${kernel.id.slice(0, 8)}`,
      path: use?.type === 'notebook' ? use.path : undefined,
      spec,
      foreign: kernel.owner !== undefined && kernel.owner !== user,
      // Without users each client is the owner. With users only the owner and admins see the grants.
      owned: kernel.owner === undefined || kernel.shared_with !== undefined
    };
  });
  const created = new Map(rows.map(({ kernel }) => [kernel.id, Date.parse(kernel.created ?? '') || 0]));
  return rows.sort(
    ({ kernel: a }, { kernel: b }) => created.get(a.id)! - created.get(b.id)! || (a.id < b.id ? -1 : 1)
  );
}

/** Bound on the rows that are in the page at a time. An admin sees all kernels of a gateway. */
export const MOST_ROWS = 100;

/** The rows of one list that are in the page. */
export interface IList {
  rows: IRow[];
  /** How many the filter finds. */
  found: number;
  /** How many there are. */
  all: number;
}

/** The list of the user's kernels and that of other users' kernels. The user's own come first within the bound. */
export function lists(rows: readonly IRow[], filter: string, most = MOST_ROWS): { own: IList; foreign: IList } {
  const words = filter.toLowerCase().split(/\s+/).filter(word => word);
  const list = (all: IRow[], most: number): IList => {
    const found = words.length ? all.filter(row => matches(row, words)) : all;
    return { rows: found.slice(0, most), found: found.length, all: all.length };
  };
  const own = list(
    rows.filter(row => !row.foreign),
    most
  );
  const foreign = list(
    rows.filter(row => row.foreign),
    most - own.rows.length
  );
  return { own, foreign };
}

function matches({ kernel, title, path, spec }: IRow, words: readonly string[]): boolean {
  const { id, owner, execution_state, flavor, job } = kernel;
  const text = [title, path, spec, id, owner, execution_state, flavor, job?.name].join('\n').toLowerCase();
  return words.every(word => text.includes(word));
}

/** Something that may be done with a kernel. */
export type Action = 'interrupt' | 'restart' | 'shutdown' | 'keep' | 'keepGPU' | 'share';

/** The actions that are offered for a row. The gateway decides again. */
export function actionsOf({ kernel, owned }: IRow): Action[] {
  const alive = kernel.execution_state !== 'dead';
  const running = alive && kernel.execution_state !== 'starting';
  return [
    ...(running ? (['interrupt'] as const) : []),
    ...(running || !alive ? (['restart'] as const) : []),
    ...(owned ? (['shutdown'] as const) : []),
    // Also without a planned end: the author of a long training keeps its kernel before it is idle.
    ...(owned && running ? (['keep'] as const) : []),
    ...(owned && running && kernel.parked?.state ? (['keepGPU'] as const) : []),
    ...(owned && kernel.shared_with ? (['share'] as const) : [])
  ];
}

/** The title and the text of the question before an action, which names what is lost. */
export function question(action: 'interrupt' | 'restart' | 'shutdown', row: IRow): [string, string] {
  const [title, text] = questionAboutKernel(action, row);
  const { job } = row.kernel;
  return [title, job ? `${text} The job ${job.name}, which runs in it, may fail.` : text];
}

function questionAboutKernel(action: 'interrupt' | 'restart' | 'shutdown', { kernel, title }: IRow): [string, string] {
  const dead = kernel.execution_state === 'dead';
  switch (action) {
    case 'interrupt':
      return [`Interrupt the kernel of ${title}?`, 'The cell that runs now is interrupted. Variables stay.'];
    case 'restart':
      return dead
        ? [`Start the kernel of ${title} again?`, 'It has no variables. Open its notebook again afterwards.']
        : [`Restart the kernel of ${title}?`, 'All variables are lost, and the cell that runs now is ended.'];
    case 'shutdown':
      return dead
        ? [`Remove the dead kernel of ${title}?`, 'Its output that no notebook has saved is lost.']
        : [
            `Shut down the kernel of ${title}?`,
            'All variables are lost, and output that no notebook has saved. Its GPU is free afterwards.'
          ];
  }
}
