// The use of GPUs over the last minutes, as small curves. They begin when the page is opened.
import type { GPUView, Holder, Kernel, Pool, PoolDevice } from './api';
import { span } from './format';

export const CLOCK = 5_000; // ms between two samples
const MOST = 120; // samples of a curve: 10 minutes
const SERIES = 8192; // curves that are kept: 8 MB at most
const OF_KERNEL = 16; // GPUs of a kernel that have a curve, since a kernel may invent some
const HEIGHT = 32; // of the coordinates of a curve

/** A sample is the part of its time in which a GPU computed, from 0 to 1; null if that is not known. */
export type Sample = number | null;

/** The samples of all curves, the newest last, and when that one was taken, in ms. */
export interface Uses { at: number; of: ReadonlyMap<string, readonly Sample[]> }

export const kernelKey = (id: string, uuid: string): string => `kernel ${id} ${uuid}`;

export const deviceKey = (node: string, p: Pool, d: PoolDevice): string =>
  `${node} ${p.resource} ${p.model} ${d.index}`;

const higher = (a: Sample, b: Sample): Sample => a === null ? b : b === null ? a : Math.max(a, b);

/** The use of a device as the kernels report it that hold it; the highest if they share it. A kernel that names
 * another device is ignored. */
export function useOf(d: PoolDevice, holders: readonly Holder[], kernels: ReadonlyMap<string, Kernel>): Sample {
  let use: Sample = null;
  for (const h of holders) {
    if (h.kernel === undefined || h.devices?.[d.index] === undefined) continue;
    const all = kernels.get(h.kernel)?.gpu ?? [];
    const alone = Object.keys(h.devices).length === 1 && all.length === 1; // it can be no other one
    for (const g of all) if (alone || g.uuid === d.uuid) use = higher(use, g.utilization);
  }
  return use;
}

/** Adds a sample of each GPU of a kernel, and of each device that its node tells apart. A curve without a sample in 10
 * minutes is dropped. */
export function takeSamples(before: Uses, at: number, kernels: ReadonlyMap<string, Kernel>,
  view: GPUView | undefined): Uses {
  const now = new Map<string, Sample>();
  for (const n of view?.nodes ?? []) {
    for (const p of n.pools) {
      for (const d of p.devices ?? []) now.set(deviceKey(n.name, p, d), useOf(d, p.holders, kernels));
    }
  }
  for (const k of kernels.values()) {
    for (const g of k.gpu?.slice(0, OF_KERNEL) ?? []) now.set(kernelKey(k.id, g.uuid), g.utilization);
  }
  // A browser runs the clock of a hidden tab less often. The samples that it left out are not known.
  const left = Math.min(MOST, Math.max(0, Math.round((at - before.at) / CLOCK) - 1));
  const gap = Array<Sample>(before.of.size ? left : 0).fill(null);
  const of = new Map<string, readonly Sample[]>();
  for (const [key, samples] of before.of) {
    const more = [...samples, ...gap, now.get(key) ?? null].slice(-MOST);
    if (more.some(s => s !== null)) of.set(key, more);
  }
  for (const [key, use] of now) {
    if (use !== null && !of.has(key) && of.size < SERIES) of.set(key, [use]);
  }
  return { at, of };
}

/** The lines of a curve as SVG points, the newest sample at the right. One that is not known leaves a gap. */
export function lines(samples: readonly Sample[]): string[] {
  const all: string[][] = [[]];
  samples.forEach((use, i) => {
    if (use === null) { all.push([]); return; }
    const y = HEIGHT - 1 - (HEIGHT - 2) * Math.min(1, Math.max(0, use));
    all[all.length - 1].push(`${MOST - samples.length + i},${y.toFixed(1)}`);
  });
  return all.filter(l => l.length > 0).map(l => l.length === 1 ? `${l[0]} ${l[0]}` : l.join(' '));
}

const percent = (use: number): string => `${Math.round(100 * use)} %`;

/** What a curve shows, in words. */
export function describe(samples: readonly Sample[], use: Sample): string {
  const now = use === null ? 'use is not measured now' : `${percent(use)} busy now`;
  const known = samples.filter(s => s !== null);
  if (known.length === 0) return now;
  const mean = known.reduce((sum, s) => sum + s, 0) / known.length;
  return `${now}; in the last ${span(samples.length * CLOCK / 1000)} ${percent(mean)} on average, ` +
    `${percent(Math.max(...known))} at most`;
}

/** use is the present use. A small curve fits into a table. */
export function Curve({ samples, use, name, small }: { samples: readonly Sample[] | undefined; use: Sample;
  name: string; small?: boolean }) {
  const text = `${name}: ${describe(samples ?? [], use)}`;
  return <span class="curve" title={text}>
    <svg role="img" aria-label={text} width={small ? MOST : 2 * MOST} height={small ? HEIGHT / 2 : HEIGHT}
      viewBox={`0 0 ${MOST} ${HEIGHT}`} preserveAspectRatio="none">
      {lines(samples ?? []).map((l, i) => <polyline key={i} points={l} />)}
    </svg>
    <span class="soft">{use === null ? 'not measured' : percent(use)}</span>
  </span>;
}
