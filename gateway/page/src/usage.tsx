// Usage per user over time: a plot of steps, and a table with the same numbers as sums.
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import uPlot from 'uplot';

import type { Series, UsageAnswer } from './api';
import { number, span, time } from './format';

const HEIGHT = 240; // px
export const COLORS = 12; // that the style sheet has, --s0 and so on; the gateway sends no more groups

/** The times of which usage is shown, with the length of a step. */
export const ranges = [
  { name: 'Last 24 hours', since: '24h', step: '30m' },
  { name: 'Last 7 days', since: '168h', step: '3h' },
] as const;

export const measures = [
  { name: 'Kernels', key: 'kernel_seconds' },
  { name: 'GPUs held', key: 'held_seconds' },
  { name: 'GPUs busy', key: 'busy_seconds' },
] as const;
type Key = typeof measures[number]['key'];

const sum = (numbers: readonly number[]): number => numbers.reduce((a, b) => a + b, 0);

/** The groups and others, each with its color. */
function groupsOf(usage: UsageAnswer): { name: string; color: string; series: Series }[] {
  const all = usage.steps!.groups.map((series, i) =>
    ({ name: series.name || 'all', color: `--s${i % COLORS}`, series }));
  if (usage.steps!.others) all.push({ name: 'others', color: '--others', series: usage.steps!.others });
  return all;
}

/** Stacks series for the plot: the first row is the time of each step, and each other row has its own series and those
 * below it. The last step is still going on, so its mean is over the part that is over. */
export function stack(usage: UsageAnswer, series: readonly Series[], key: Key): number[][] {
  const begin = Date.parse(usage.since) / 1000, end = Date.parse(usage.until) / 1000, step = usage.steps!.seconds;
  const times = (series[0]?.[key] ?? []).map((_, i) => begin + i * step);
  const below = times.map(() => 0);
  return [times, ...series.map(s => s[key].map((seconds, i) => below[i] += seconds / Math.min(step, end - times[i])))];
}

type Properties = { usage: UsageAnswer | undefined; range: number; choose: (range: number) => void };

export function Usage({ usage, range, choose }: Properties) {
  const [wanted, setWanted] = useState<Key>();
  const groups = useMemo(() => usage ? groupsOf(usage) : [], [usage]);
  const key = wanted ?? (groups.some(g => sum(g.series.held_seconds) > 0) ? 'held_seconds' : 'kernel_seconds');
  return <section aria-labelledby="usage">
    <div class="tools">
      <h2 id="usage">Usage per user</h2>
      <select aria-label="Shown use" value={key} onChange={e => setWanted(e.currentTarget.value as Key)}>
        {measures.map(m => <option key={m.key} value={m.key}>{m.name}</option>)}
      </select>
      <select aria-label="Time of usage" value={range} onChange={e => choose(Number(e.currentTarget.value))}>
        {ranges.map((r, i) => <option key={r.since} value={i}>{r.name}</option>)}
      </select>
    </div>
    {usage && groups.length === 0 ? <p class="soft">No kernel lived.</p> : <>
      <Plot usage={usage} groups={groups} shown={key} />
      <Table usage={usage} groups={groups} />
    </>}
  </section>;
}

type Groups = ReturnType<typeof groupsOf>;

function Plot({ usage, groups, shown }: { usage: UsageAnswer | undefined; groups: Groups; shown: Key }) {
  const box = useRef<HTMLDivElement>(null);
  const [at, setAt] = useState<number>();
  const dark = useDark();
  const name = measures.find(m => m.key === shown)!.name;
  useEffect(() => {
    if (!usage) return;
    const element = box.current!;
    const color = (of: string): string => {
      element.style.color = `var(${of})`;
      return getComputedStyle(element).color;
    };
    const [times, ...sums] = stack(usage, groups.map(g => g.series), shown);
    const axis: uPlot.Axis = { stroke: color('--soft'), grid: { stroke: color('--line'), width: 1 },
      ticks: { show: false },
      font: '12px system-ui, sans-serif' };
    const stepped = uPlot.paths.stepped!({ align: 1 });
    // Each series is painted over those above it, so the highest comes first.
    const plot = new uPlot({
      width: element.clientWidth, height: HEIGHT, legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { show: false } },
      scales: { y: { range: (_, __, most) => [0, Math.max(1, most * 1.05)] } },
      axes: [{ ...axis, values: hours }, { ...axis, size: 44, values: (_, all) => all.map(n => number(n)) }],
      series: [{}, ...groups.map(g => ({ stroke: color('--back'), width: 1, fill: color(g.color), paths: stepped,
        points: { show: false } })).reverse()],
      hooks: { setCursor: [u => setAt(u.cursor.idx ?? undefined)] },
    }, [times, ...sums.reverse()] as uPlot.AlignedData, element);
    element.style.color = '';
    const watch = new ResizeObserver(() => plot.setSize({ width: element.clientWidth, height: HEIGHT }));
    watch.observe(element);
    return () => { watch.disconnect(); plot.destroy(); setAt(undefined); };
  }, [usage, groups, shown, dark]);
  return <>
    <div class="plot" ref={box} role="img" aria-label={`${name} of each user over time. The table has the sums.`} />
    <p class="soft reading">{usage && at !== undefined && reading(usage, groups, shown, at)}</p>
  </>;
}

/** The numbers of the step at which the pointer is. */
function reading(usage: UsageAnswer, groups: Groups, shown: Key, at: number): string {
  const begin = new Date(Date.parse(usage.since) + at * usage.steps!.seconds * 1000).toISOString();
  const rows = stack(usage, groups.map(g => g.series), shown).slice(1);
  const parts = groups.map((g, i) => ({ name: g.name, value: rows[i][at] - (rows[i - 1]?.[at] ?? 0) }))
    .filter(p => p.value > 0.001);
  return `${time(begin)}: ${parts.map(p => `${p.name} ${number(p.value)}`).join(', ') || 'none'}`;
}

function hours(_: uPlot, ticks: number[]): string[] {
  const day = new Intl.DateTimeFormat(undefined, { day: 'numeric', month: 'short' });
  const hour = new Intl.DateTimeFormat(undefined, { hour: '2-digit', minute: '2-digit' });
  return ticks.map(t => {
    const at = new Date(t * 1000);
    return (at.getHours() || at.getMinutes() ? hour : day).format(at);
  });
}

function useDark(): boolean {
  const query = useMemo(() => matchMedia('(prefers-color-scheme: dark)'), []);
  const [dark, setDark] = useState(query.matches);
  useEffect(() => {
    const changed = () => setDark(query.matches);
    query.addEventListener('change', changed);
    return () => query.removeEventListener('change', changed);
  }, []);
  return dark;
}

function Table({ usage, groups }: { usage: UsageAnswer | undefined; groups: Groups }) {
  const measured = (name: string): boolean => (usage?.usage.find(r => r.name === name)?.measured_seconds ?? 0) > 0;
  return <div class="wide" tabIndex={0} role="region" aria-label="Table of usage"><table>
    <thead><tr><th scope="col">User</th><th scope="col" class="num">Kernel time</th>
      <th scope="col" class="num">GPU time held</th>
      <th scope="col" class="num">GPU time busy</th></tr></thead>
    <tbody>{groups.map(g => {
      const held = sum(g.series.held_seconds);
      return <tr key={g.color}><td><span class="swatch" style={{ background: `var(${g.color})` }} />{g.name}</td>
        <td class="num">{span(sum(g.series.kernel_seconds))}</td>
        <td class="num">{held > 0 ? span(held) : ''}</td>
        <td class="num">{held > 0 && (g.color === '--others' || measured(g.series.name)
          ? span(sum(g.series.busy_seconds)) : 'not measured')}</td></tr>;
    })}</tbody>
  </table></div>;
}
