import {
  caretDownIcon,
  ellipsesIcon,
  kernelIcon,
  notebookIcon,
  ReactWidget,
  usersIcon
} from '@jupyterlab/ui-components';
import type { Message } from '@lumino/messaging';
import * as React from 'react';

import { type ISample, type Kernels } from './kernels';
import { actionsOf, lists, type IList, type IRow } from './rows';
import type { Kept } from './server';
import * as texts from './texts';

/** What the panel needs of JupyterLab. */
export interface IHost {
  kernels: Kernels;
  /** The rows as they are now. */
  rows(): IRow[];
  /** Why the last action on a kernel failed; empty otherwise. */
  problem(id: string): string;
  /** How many cells of a closed notebook have output that opening it restores. */
  unsaved(id: string): number;
  /** Opens the notebook of a row. */
  open(row: IRow): void;
  /** Opens the menu with the actions of a row below the button. */
  menu(row: IRow, button: HTMLElement): void;
  /** Opens the menu with the times for which a kernel or its GPU can be kept. */
  keepMenu(row: IRow, what: Kept, button: HTMLElement): void;
  /** Ends keeping a kernel or its GPU. */
  unkeep(row: IRow, what: Kept): void;
  /** Is called when the panel is shown, and then every few seconds. */
  shown(): void;
  /** Is called when the panel was shown or hidden. */
  visibilityChanged(): void;
}

const CURVE = { width: 72, height: 16 };
const TICK = 10_000; // ms between two looks at the clock
const FILTER_FROM = 10; // the filter is shown with more rows than these

/** The list of kernels in the sidebar. */
export class KernelsPanel extends ReactWidget {
  constructor(private readonly host: IHost) {
    super();
    this.addClass('jp-ekg-Kernels');
    this.node.tabIndex = -1;
  }

  /** Shows what has changed, unless the panel is hidden. */
  refresh(): void {
    if (this.isVisible) {
      this.update();
    }
  }

  /** Takes the focus, so that the next Tab reaches the first button. */
  protected override onActivateRequest(msg: Message): void {
    super.onActivateRequest(msg);
    this.node.focus();
  }

  protected override onAfterAttach(msg: Message): void {
    super.onAfterAttach(msg);
    this.look();
  }

  protected override onAfterShow(msg: Message): void {
    super.onAfterShow(msg);
    this.look();
  }

  protected override onAfterHide(msg: Message): void {
    super.onAfterHide(msg);
    this.look();
  }

  protected override onAfterDetach(msg: Message): void {
    super.onAfterDetach(msg);
    this.look();
  }

  protected override render(): React.JSX.Element {
    const { kernels } = this.host;
    const rows = this.host.rows();
    const { own, foreign } = lists(rows, this.filter);
    const more = own.found + foreign.found - own.rows.length - foreign.rows.length;
    const parts = { host: this.host, now: this.now };
    const filtered = rows.length > FILTER_FROM || this.filter !== '';
    return (
      <>
        {filtered && this.filterBox()}
        {kernels.loaded && <Section title="Kernels" list={own} {...parts} />}
        {foreign.all > 0 && <Section title="Kernels of other users" list={foreign} {...parts} />}
        {filtered && (
          <p className="jp-ekg-rest" role="status">
            {more > 0 && `${texts.count(more)} more. Filter by notebook, kernelspec, owner or state to find one.`}
          </p>
        )}
        <p className="jp-ekg-health" role="status">
          {kernels.problem && texts.sentence((kernels.loaded ? 'Not up to date: ' : '') + kernels.problem)}
        </p>
      </>
    );
  }

  private filterBox(): React.JSX.Element {
    return (
      <div className="jp-ekg-filter">
        <input
          type="search"
          className="jp-mod-styled"
          aria-label="Filter kernels"
          placeholder="Filter kernels"
          defaultValue={this.filter}
          onChange={e => {
            this.filter = e.target.value;
            this.update();
          }}
        />
      </div>
    );
  }

  /** Looks at the clock while the panel is shown. */
  private look(): void {
    clearInterval(this.timer);
    if (this.isVisible) {
      this.tick();
      this.timer = setInterval(() => this.tick(), TICK);
    }
    this.host.visibilityChanged();
  }

  private tick(): void {
    this.now = Date.now();
    this.host.shown();
    this.update();
  }

  private filter = '';
  private now = Date.now();

  private timer: ReturnType<typeof setInterval> | undefined;
}

function Section(props: { title: string; list: IList; host: IHost; now: number }): React.JSX.Element {
  const { title, list, host, now } = props;
  const { rows, found, all } = list;
  return (
    <section aria-label={title}>
      <h2 className="jp-ekg-section">
        {title}
        <span className="jp-ekg-count">
          {found === all ? texts.count(all) : `${texts.count(found)} of ${texts.count(all)}`}
        </span>
      </h2>
      {found === 0 && (
        <p className="jp-ekg-empty">{all > 0 ? 'The filter finds no kernel.' : 'No kernel is running.'}</p>
      )}
      <ul>
        {rows.map(row => (
          <Row
            key={row.kernel.id}
            row={row}
            host={host}
            now={now}
            problem={host.problem(row.kernel.id)}
            unsaved={host.unsaved(row.kernel.id)}
            history={host.kernels.history(row.kernel.id)}
          />
        ))}
      </ul>
    </section>
  );
}

interface IRowProps {
  row: IRow;
  host: IHost;
  /** The time of the panel's last look at the clock. */
  now: number;
  problem: string;
  unsaved: number;
  history: readonly ISample[];
}

/** A row that is rendered again only if something in it has changed: a list of hundreds changes many times a second. */
const Row = React.memo(
  WholeRow,
  ({ row: before, ...rest }, { row: after, ...more }) => isSame(before, after) && isSame(rest, more)
);

function isSame<T extends object>(a: T, b: T): boolean {
  return (Object.keys(a) as (keyof T)[]).every(key => a[key] === b[key]);
}

function WholeRow({ row, host, now, problem, unsaved, history }: IRowProps): React.JSX.Element {
  const { kernel, title, path, spec, foreign } = row;
  const shared = kernel.shared_with ?? [];
  const icon = path === undefined ? kernelIcon : notebookIcon;
  return (
    <li className="jp-ekg-row" data-state={kernel.execution_state} data-kernel={kernel.id}>
      <div className="jp-ekg-head">
        <icon.react tag="span" className="jp-ekg-icon" elementSize="normal" aria-hidden="true" />
        {path === undefined ? (
          <span className="jp-ekg-title" title={`${title}\n${kernel.id}`}>
            {title}
          </span>
        ) : (
          <button type="button" className="jp-ekg-title" title={`${path}\n${kernel.id}`} onClick={() => host.open(row)}>
            {title}
          </button>
        )}
        {actionsOf(row).length > 0 && (
          <button
            type="button"
            className="jp-ekg-more"
            aria-haspopup="menu"
            aria-label={`Actions for the kernel of ${title}`}
            title="Actions"
            onClick={e => host.menu(row, e.currentTarget)}
          >
            <ellipsesIcon.react tag="span" elementSize="normal" aria-hidden="true" />
          </button>
        )}
      </div>
      <p className="jp-ekg-state">
        <span className="jp-ekg-dot" aria-hidden="true" />
        {texts.state(kernel, now)}
        {path !== undefined && <span className="jp-ekg-spec">{spec}</span>}
        {foreign && <span className="jp-ekg-spec">{kernel.owner}</span>}
      </p>
      {kernel.job && (
        <p className="jp-ekg-shared" title={`${texts.job(kernel)}\n${kernel.job.id}`}>
          {texts.job(kernel)}
        </p>
      )}
      {kernel.reason && <p className="jp-ekg-reason">{texts.local(kernel.reason, now)}</p>}
      {texts.parked(kernel, now) && <p className="jp-ekg-reason">{texts.parked(kernel, now)}</p>}
      <GPUKept row={row} host={host} now={now} />
      <Ending row={row} host={host} now={now} />
      {kernel.gpu && kernel.gpu.length > 0 && <GPUs row={row} history={history} now={now} />}
      {shared.length > 0 && (
        <p className="jp-ekg-shared" title={shared.map(texts.grant).join('\n')}>
          <usersIcon.react tag="span" className="jp-ekg-icon" elementSize="small" aria-hidden="true" />
          Shared with {shared.map(texts.grant).join(', ')}
        </p>
      )}
      {unsaved > 0 && (
        <p className="jp-ekg-line">
          <span>{unsaved === 1 ? 'Output of 1 cell' : `Output of ${unsaved} cells`} is not in the file</span>
          <button
            type="button"
            className="jp-ekg-action"
            aria-label={`Open and restore ${title}`}
            onClick={() => host.open(row)}
          >
            Open and restore
          </button>
        </p>
      )}
      {problem && (
        <p className="jp-ekg-problem" role="alert">
          {texts.local(problem, now)}
        </p>
      )}
    </li>
  );
}

function Ending({ row, host, now }: Pick<IRowProps, 'row' | 'host' | 'now'>): React.JSX.Element | null {
  const { kernel, title } = row;
  const can = actionsOf(row).includes('keep');
  const text = texts.ending(kernel, now) || (can ? 'No end is planned' : '');
  if (!text) {
    return null;
  }
  const kept = kernel.keep_until !== undefined;
  const soon = !kept && kernel.cull_at !== undefined && Date.parse(kernel.cull_at) - now < 10 * 60_000;
  return <Keep what="keep_until" of={`the kernel of ${title}`} {...{ row, host, text, can, kept, soon }} />;
}

/** Until when the GPU of a kernel that may be parked is kept. */
function GPUKept({ row, host, now }: Pick<IRowProps, 'row' | 'host' | 'now'>): React.JSX.Element | null {
  const can = actionsOf(row).includes('keepGPU');
  const until = texts.gpuKept(row.kernel, now);
  const text = until || (can ? 'GPU not kept' : '');
  return text ? (
    <Keep what="keep_gpu_until" of={`the GPU of ${row.title}`} {...{ row, host, text, can }} kept={until !== ''} />
  ) : null;
}

interface IKeepProps {
  row: IRow;
  host: IHost;
  what: Kept;
  /** What the line says. */
  text: string;
  /** Whether the user may keep it, and end that. */
  can: boolean;
  /** Whether it is kept now. */
  kept: boolean;
  /** Whether the line is a warning. */
  soon?: boolean;
  /** What is kept, for screen readers. */
  of: string;
}

/** A line with the button that keeps something, or ends that. */
function Keep({ row, host, what, text, can, kept, soon, of }: IKeepProps): React.JSX.Element {
  return (
    <p className={`jp-ekg-line${soon ? ' jp-mod-soon' : ''}`}>
      <span>{text}</span>
      {can &&
        (kept ? (
          <button
            type="button"
            className="jp-ekg-action"
            aria-label={`Undo keeping ${of}`}
            onClick={() => host.unkeep(row, what)}
          >
            Undo
          </button>
        ) : (
          <button
            type="button"
            className="jp-ekg-action"
            aria-haspopup="menu"
            aria-label={`Keep ${of}`}
            onClick={e => host.keepMenu(row, what, e.currentTarget)}
          >
            Keep
            <caretDownIcon.react tag="span" elementSize="small" aria-hidden="true" />
          </button>
        ))}
    </p>
  );
}

function GPUs({ row, history, now }: Pick<IRowProps, 'row' | 'history' | 'now'>): React.JSX.Element {
  const gpus = row.kernel.gpu!;
  const models = texts.models(gpus);
  const errors = gpus.map(gpu => gpu.error).filter(error => error);
  const path = texts.curve(history, now, CURVE.width, CURVE.height - 2);
  return (
    <>
      <p className="jp-ekg-line jp-ekg-gpu">
        <span title={models}>{models}</span>
        <span className="jp-ekg-use">
          {texts.use(gpus)}
          <svg
            role="img"
            aria-label={`Use of the GPU in the last ten minutes, now ${texts.use(gpus)}`}
            width={CURVE.width}
            height={CURVE.height}
            viewBox={`0 -1 ${CURVE.width} ${CURVE.height}`}
          >
            <path className="jp-ekg-axis" d={`M0 ${CURVE.height - 2}H${CURVE.width}`} />
            <path className="jp-ekg-curve" d={path} />
          </svg>
        </span>
      </p>
      <p className="jp-ekg-memory">{texts.memory(gpus)}</p>
      {errors.length > 0 && <p className="jp-ekg-reason">{errors.join(', ')}</p>}
    </>
  );
}
