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
import { actionsOf, type IRow } from './rows';
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
  /** Opens the menu with the times for which a kernel can be kept. */
  keepMenu(row: IRow, button: HTMLElement): void;
  /** Ends keeping a kernel. */
  unkeep(row: IRow): void;
  /** Is called when the panel is shown, and then every few seconds. */
  shown(): void;
}

const CURVE = { width: 72, height: 16 };
const TICK = 10_000; // ms between two looks at the clock

/** The list of kernels in the sidebar. */
export class KernelsPanel extends ReactWidget {
  constructor(private readonly host: IHost) {
    super();
    this.addClass('jp-ekg-Kernels');
  }

  /** Shows what has changed, unless the panel is hidden. */
  refresh(): void {
    if (this.isVisible) {
      this.update();
    }
  }

  protected override onAfterAttach(msg: Message): void {
    super.onAfterAttach(msg);
    this.begin();
  }

  protected override onAfterShow(msg: Message): void {
    super.onAfterShow(msg);
    this.begin();
  }

  protected override onBeforeHide(msg: Message): void {
    super.onBeforeHide(msg);
    clearInterval(this.timer);
  }

  protected override onBeforeDetach(msg: Message): void {
    clearInterval(this.timer);
    super.onBeforeDetach(msg);
  }

  protected override render(): React.JSX.Element {
    const { kernels } = this.host;
    const rows = this.host.rows();
    const own = rows.filter(row => !row.foreign);
    const foreign = rows.filter(row => row.foreign);
    return (
      <>
        {kernels.loaded && <Section title="Kernels" rows={own} host={this.host} empty="No kernel is running." />}
        {foreign.length > 0 && <Section title="Kernels of other users" rows={foreign} host={this.host} empty="" />}
        <p className="jp-ekg-health" role="status">
          {kernels.problem && (kernels.loaded ? 'Not up to date: ' : '') + kernels.problem}
        </p>
      </>
    );
  }

  private begin(): void {
    clearInterval(this.timer);
    if (this.isVisible) {
      this.tick();
      this.timer = setInterval(() => this.tick(), TICK);
    }
  }

  private tick(): void {
    this.host.shown();
    this.update();
  }

  private timer: ReturnType<typeof setInterval> | undefined;
}

function Section(props: { title: string; rows: IRow[]; host: IHost; empty: string }): React.JSX.Element {
  const { title, rows, host, empty } = props;
  return (
    <section aria-label={title}>
      <h2 className="jp-ekg-section">
        {title}
        <span className="jp-ekg-count">{rows.length}</span>
      </h2>
      {rows.length === 0 && <p className="jp-ekg-empty">{empty}</p>}
      <ul>
        {rows.map(row => (
          <Row key={row.kernel.id} row={row} host={host} />
        ))}
      </ul>
    </section>
  );
}

function Row({ row, host }: { row: IRow; host: IHost }): React.JSX.Element {
  const { kernel, title, path, spec, foreign } = row;
  const now = Date.now();
  const shared = kernel.shared_with ?? [];
  const problem = host.problem(kernel.id);
  const unsaved = host.unsaved(kernel.id);
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
      {kernel.reason && <p className="jp-ekg-reason">{texts.local(kernel.reason, now)}</p>}
      <Ending row={row} host={host} now={now} />
      {kernel.gpu && kernel.gpu.length > 0 && <GPUs row={row} history={host.kernels.history(kernel.id)} />}
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

function Ending({ row, host, now }: { row: IRow; host: IHost; now: number }): React.JSX.Element | null {
  const { kernel, title } = row;
  const keep = actionsOf(row).includes('keep');
  const text = texts.ending(kernel, now) || (keep ? 'No end is planned' : '');
  if (!text) {
    return null;
  }
  const soon = !kernel.keep_until && kernel.cull_at && Date.parse(kernel.cull_at) - now < 10 * 60_000;
  return (
    <p className={`jp-ekg-line${soon ? ' jp-mod-soon' : ''}`}>
      <span>{text}</span>
      {keep &&
        (kernel.keep_until ? (
          <button
            type="button"
            className="jp-ekg-action"
            aria-label={`Undo keeping the kernel of ${title}`}
            onClick={() => host.unkeep(row)}
          >
            Undo
          </button>
        ) : (
          <button
            type="button"
            className="jp-ekg-action"
            aria-haspopup="menu"
            aria-label={`Keep the kernel of ${title}`}
            onClick={e => host.keepMenu(row, e.currentTarget)}
          >
            Keep
            <caretDownIcon.react tag="span" elementSize="small" aria-hidden="true" />
          </button>
        ))}
    </p>
  );
}

function GPUs({ row, history }: { row: IRow; history: readonly ISample[] }): React.JSX.Element {
  const gpus = row.kernel.gpu!;
  const models = texts.models(gpus);
  const errors = gpus.map(gpu => gpu.error).filter(error => error);
  const path = texts.curve(history, Date.now(), CURVE.width, CURVE.height - 2);
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
