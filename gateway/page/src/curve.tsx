// A GPU's use over the last minutes, as a small curve. It begins when the page shows the kernel.
import { useEffect, useState } from 'preact/hooks';

const MOST = 120; // samples, one for each change of the page's clock: 10 minutes
const WIDTH = 240, HEIGHT = 32; // px

/** A sample is the use of a GPU in percent; null if it was not measured, or is not known. */
export type Sample = number | null;

/** Adds a sample, and drops the oldest one when there are too many. */
export const addSample = (samples: readonly Sample[], now: Sample): Sample[] => [...samples, now].slice(-MOST);

/** The lines of the curve as SVG points, the newest sample at the right. One that was not measured leaves a gap. */
export function lines(samples: readonly Sample[]): string[] {
  const all: string[][] = [[]];
  samples.forEach((use, i) => {
    if (use === null) { all.push([]); return; }
    const x = WIDTH - (samples.length - 1 - i) * WIDTH / (MOST - 1);
    const y = HEIGHT - 1 - (HEIGHT - 2) * Math.min(100, Math.max(0, use)) / 100;
    all[all.length - 1].push(`${x.toFixed(1)},${y.toFixed(1)}`);
  });
  return all.filter(l => l.length > 0).map(l => l.length === 1 ? `${l[0]} ${l[0]}` : l.join(' '));
}

/** now is the page's clock: with each change a sample is taken. */
export function Curve({ use, now, name }: { use: Sample; now: number; name: string }) {
  const [samples, setSamples] = useState<Sample[]>([]);
  useEffect(() => setSamples(s => addSample(s, use)), [now]); // the use between two samples is not shown
  const text = use === null ? `${name}: use is not measured` : `${name}: ${Math.round(use)} % busy now`;
  return <span class="curve">
    <svg role="img" aria-label={text} width={WIDTH} height={HEIGHT} viewBox={`0 0 ${WIDTH} ${HEIGHT}`}>
      {lines(samples).map((l, i) => <polyline key={i} points={l} />)}
    </svg>
    <span class="soft">{use === null ? 'not measured' : `${Math.round(use)} %`}</span>
  </span>;
}
