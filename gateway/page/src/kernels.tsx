// The table of kernels. Only the rows in view are in the document, so thousands of kernels cost as much as twenty.
import { useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';

import { Announced } from './announce';
import type { Kernel } from './api';
import { bytes, gibibytes, number, since, time } from './format';

const ROW = 40; // px, as --row in the style sheet
const BEYOND = 8; // rows above and below the view

/** The kernels while none are known yet. */
export const NONE: ReadonlyMap<string, Kernel> = new Map();

type Column = { name: string; key: (k: Kernel) => string | number; text: (k: Kernel, now: number) => string;
  title?: (k: Kernel, now: number) => string; more?: boolean };

const memory = (k: Kernel): number => (k.gpu ?? []).reduce((sum, g) => sum + g.memory_used, 0);

/** What has become of the GPU of a kernel that may be parked; empty while the kernel has it. */
export function parkedText({ parked: p }: Kernel, now: number): string {
  const why = p?.reason ? `: ${p.reason}` : '';
  switch (p?.state) {
    case 'none': return p.since ? `GPU given back ${since(p.since, now)} ago` : 'GPU given back';
    case 'parking': return 'gives its GPU back';
    case 'parked': return p.since ? `GPU parked ${since(p.since, now)}` : 'GPU parked';
    case 'waking': return p.reason ? `waits for its GPU${why}` : 'gets its GPU again';
    case 'failed': return `keeps its GPU${why}`;
    default: return '';
  }
}

const gpuText = (k: Kernel, now: number): string => {
  const parts = [k.flavor, k.gpus ? number(k.gpus) : '', parkedText(k, now), k.gpu?.length ? gibibytes(memory(k)) : ''];
  return parts.filter(Boolean).join(' · ');
};

const end = (k: Kernel): string =>
  k.cull_at ? `ends ${time(k.cull_at)}` : k.keep_until ? `kept until ${time(k.keep_until)}` : '';

/** What a job does with the kernel: which cell runs, of how many. */
export const jobText = (k: Kernel): string =>
  k.job ? `job ${k.job.name}${k.job.cell ? `, cell ${k.job.cell} of ${k.job.cells}` : ''}` : '';

const columns: Column[] = [
  { name: 'Kernel', key: k => k.id, text: k => k.id.slice(0, 8), title: k => k.id },
  { name: 'Owner', key: k => k.owner ?? '', text: k => k.owner ?? '' },
  { name: 'Spec', key: k => k.name, text: k => k.name },
  { name: 'State', key: k => k.execution_state, text: k => k.execution_state },
  { name: 'Age', key: k => -Date.parse(k.created), title: k => time(k.created),
    text: (k, now) => since(k.created, now) },
  { name: 'Idle', key: k => -Date.parse(k.last_activity), more: true, title: k => `since ${time(k.last_activity)}`,
    text: (k, now) => k.execution_state === 'idle' ? since(k.last_activity, now) : '' },
  { name: 'Memory', key: k => k.memory ?? 0, text: k => k.memory ? bytes(k.memory) : '', more: true },
  { name: 'GPU', key: k => memory(k) || k.gpus || 0, text: gpuText, title: gpuText, more: true },
  { name: 'Clients', key: k => k.connections, text: k => String(k.connections), more: true },
  { name: 'Reason, job or end', key: k => k.reason ?? (jobText(k) || k.cull_at || ''), more: true,
    title: k => [k.reason, jobText(k)].filter(Boolean).join(', '), text: k => k.reason ?? (jobText(k) || end(k)) },
];

/** The kernels that contain all words, in the order of a column. */
export function choose(all: Iterable<Kernel>, words: string, state: string, by: number, down: boolean): Kernel[] {
  const want = words.toLowerCase().split(/\s+/).filter(Boolean);
  const list: { k: Kernel; key: string | number }[] = [];
  for (const k of all) {
    if (state && k.execution_state !== state) continue;
    const text = [k.id, k.name, k.owner, k.flavor, k.execution_state, k.reason, jobText(k)].join(' ').toLowerCase();
    if (want.every(w => text.includes(w))) list.push({ k, key: columns[by].key(k) });
  }
  const sign = down ? -1 : 1;
  list.sort((a, b) => sign * (a.key < b.key ? -1 : a.key > b.key ? 1 : 0) || (a.k.id < b.k.id ? -1 : 1));
  return list.map(e => e.k);
}

type Shown = { kernels: ReadonlyMap<string, Kernel>; now: number; show: (id: string) => void };

/** The place to which a key leads from a row; undefined if the key leads nowhere. */
export function moveBy(key: string, from: number, rows: number, page: number): number | undefined {
  const steps: Record<string, number> =
    { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -rows, End: rows };
  const by = steps[key];
  return by === undefined || rows === 0 ? undefined : Math.min(rows - 1, Math.max(0, from + by));
}

/** before is the kernel that was shown before: its row gets the focus. Of all rows, Tab reaches only the current one,
 * so that a list of thousands can be left. It is always in the document, so that it keeps the focus. */
export function Kernels({ kernels, now, show, before }: Shown & { before: string }) {
  const [words, setWords] = useState('');
  const [state, setState] = useState('');
  const [by, setBy] = useState(4);
  const [down, setDown] = useState(true);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  const [current, setCurrent] = useState(before);
  const enter = useRef(before !== ''); // the current row gets the focus
  const box = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const element = box.current!; // the reference is gone before the last call
    const watch = new ResizeObserver(() => setHeight(element.clientHeight));
    watch.observe(element);
    return () => watch.disconnect();
  }, []);
  const rows = useMemo(() => choose(kernels.values(), words, state, by, down), [kernels, words, state, by, down]);
  const first = Math.max(0, Math.min(Math.floor(top / ROW), rows.length - 1) - BEYOND);
  const last = Math.min(rows.length, Math.ceil((top + height) / ROW) + BEYOND);
  const found = rows.findIndex(k => k.id === current);
  const at = found < 0 ? Math.min(Math.floor(top / ROW), rows.length - 1) : found;
  const places = Array.from({ length: last - first }, (_, i) => first + i);
  if (at >= 0 && at < first) places.unshift(at);
  if (at >= last) places.push(at);
  useLayoutEffect(() => {
    if (!enter.current || found < 0) return;
    enter.current = false;
    const element = box.current!;
    element.scrollTop = Math.min(at * ROW, Math.max((at + 2) * ROW - element.clientHeight, element.scrollTop));
    element.querySelector<HTMLElement>('.row button[tabindex="0"]')!.focus({ preventScroll: true });
  });
  const move = (e: KeyboardEvent): void => {
    const to = moveBy(e.key, at, rows.length, Math.max(1, Math.floor(height / ROW) - 2));
    if (to === undefined || e.altKey || e.ctrlKey || e.metaKey) return;
    e.preventDefault();
    enter.current = to !== at;
    setCurrent(rows[to].id);
  };
  const [wait, dead] = useMemo(() => ['starting', 'dead'].map(s =>
    [...kernels.values()].filter(k => k.execution_state === s).length), [kernels]);
  return <section aria-labelledby="kernels">
    <div class="tools">
      <h2 id="kernels">Kernels</h2>
      <input type="search" aria-label="Search kernels" placeholder="Search id, owner, spec, job, reason" value={words}
        onInput={e => setWords(e.currentTarget.value)} />
      <select aria-label="State" value={state} onChange={e => setState(e.currentTarget.value)}>
        <option value="">all states</option>
        {['starting', 'idle', 'busy', 'restarting', 'dead', 'unknown'].map(s => <option key={s} value={s}>{s}</option>)}
      </select>
      <span class="soft">{rows.length} of {kernels.size}</span>
    </div>
    <Announced asked={`${state} ${words}`} text={kernels === NONE ? ''
      : `Listed kernels: ${rows.length}. Of all, ${wait} wait and ${dead} are dead.`} />
    <p id="keys" class="heard">Arrow keys, Page Up, Page Down, Home and End move between kernels.</p>
    <div class="scroll" ref={box} tabIndex={0} role="region" aria-label="Table of kernels" aria-describedby="keys"
      onScroll={e => setTop(e.currentTarget.scrollTop)}>
      <div role="table" aria-label="Kernels" aria-rowcount={rows.length + 1}>
        <div role="rowgroup">
          <div class="head" role="row" aria-rowindex={1}>
            {columns.map((c, i) => <div key={c.name} role="columnheader" class={c.more ? 'more' : ''}
              aria-sort={i === by ? (down ? 'descending' : 'ascending') : 'none'}>
              <button type="button" onClick={() => { setDown(i === by && !down); setBy(i); }}>
                {c.name}{i === by ? <span aria-hidden="true">{down ? ' ↓' : ' ↑'}</span> : ''}</button>
            </div>)}
          </div>
        </div>
        {rows.length > 0 && <div class="body" role="rowgroup" style={{ height: `${rows.length * ROW}px` }}
          onKeyDown={move}>
          {places.map(i => [i, rows[i]] as const).map(([i, k]) => <div key={k.id} class="row" role="row"
            aria-rowindex={i + 2} style={{ top: `${i * ROW}px` }}>
            {columns.map((c, n) => <div key={c.name} role="cell" class={c.more ? 'more' : ''} title={c.title?.(k, now)}>
              {n === 0
                ? <button class="plain mono" type="button" aria-label={`Kernel ${k.id}`} tabIndex={i === at ? 0 : -1}
                  onFocus={() => setCurrent(k.id)} onClick={() => show(k.id)}>
                  {c.text(k, now)}</button>
                : n === 3 ? <span class={`pill ${stateClass(k)}`}>{c.text(k, now)}</span> : c.text(k, now)}
            </div>)}
          </div>)}
        </div>}
      </div>
    </div>
  </section>;
}

const classes: Record<string, string> =
  { dead: 'bad', unknown: 'bad', busy: 'good', starting: 'wait', restarting: 'wait' };

export const stateClass = (k: Kernel): string => classes[k.execution_state] ?? '';

/** Those that wait for their start, the oldest first. A scheduler may start a later one first, so their order is only
 * that of age, and the column says so. */
export function Waiting({ kernels, now, show }: Shown) {
  const list = choose(kernels.values(), '', 'starting', 4, true).filter(k => k.reason);
  return <section aria-labelledby="waiting">
    <h2 id="waiting">Waiting</h2>
    {list.length === 0 ? <p class="soft">No kernel waits.</p>
      : <div class="wide" tabIndex={0} role="region" aria-label="Table of waiting kernels">
      <table>
        <thead><tr>
          <th scope="col">By age</th><th scope="col">Kernel</th><th scope="col">For</th><th scope="col">Reason</th>
        </tr></thead>
        <tbody>{list.slice(0, 50).map((k, i) => <tr key={k.id}><td>{i + 1} of {list.length}</td>
          <td><button class="plain" type="button" onClick={() => show(k.id)}>
            {k.name}{k.owner ? ` of ${k.owner}` : ''} {k.id.slice(0, 8)}</button></td>
          <td>{since(k.created, now)}</td><td>{k.reason}</td></tr>)}</tbody>
      </table>
      {list.length > 50 && <p class="soft">{list.length - 50} more wait; choose the state “starting” above.</p>}
    </div>}
  </section>;
}
