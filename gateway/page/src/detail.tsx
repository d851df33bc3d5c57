// One kernel: its details, its life, and the end of its output.
import { useLayoutEffect, useRef } from 'preact/hooks';

import { Announced } from './announce';
import type { Kernel } from './api';
import { Curve, kernelKey, type Uses } from './curve';
import { type Action, Actions } from './dialogs';
import { bytes, gibibytes, number, since, time } from './format';
import { jobText, parkedText, stateClass } from './kernels';
import { Output } from './output';
import { Timeline } from './timeline';

const NONE = '–'; // keeps the row of what comes and goes, so that nothing below it moves

type Properties = { kernel: Kernel; now: number; live: boolean; uses: Uses; entered: boolean;
  open: (a: Action) => void; back: () => void };

export function Detail({ kernel: k, now, live, uses, entered, open, back }: Properties) {
  const at = (when: string): string => `${time(when)} (${since(when, now)} ago)`;
  const facts: [string, string | undefined][] = [
    ['Id', k.id], ['Kernelspec', k.name], ['Owner', k.owner], ['Reason', k.reason ?? NONE],
    ['Job', jobText(k) || undefined], ['Flavor', k.flavor], ['GPUs', k.gpus ? number(k.gpus) : undefined],
    ['GPU now', k.parked?.state && (parkedText(k, now) || 'held')],
    ['GPU kept until', k.parked?.keep_gpu_until && time(k.parked.keep_gpu_until)], ['Clients', String(k.connections)],
    ['Memory', k.memory ? bytes(k.memory) : NONE],
    ['Shared with', k.shared_with?.map(g => `${g.user ?? `group ${g.group}`} (${g.right})`).join(', ') || undefined],
    ['Created', at(k.created)], ['Last activity', at(k.last_activity)],
    ['Ends if unused', k.cull_at ? time(k.cull_at) : NONE],
    ['Kept until', k.keep_until && time(k.keep_until)],
  ];
  return <section aria-labelledby="detail">
    <div class="tools">
      <button type="button" onClick={back}>All kernels</button>
      <Heading kernel={k} focused={entered} />
      <Actions kernel={k} open={open} />
    </div>
    <Announced text={`Kernel ${k.id.slice(0, 8)} is ${k.execution_state}${k.reason ? `: ${k.reason}` : ''}`} />
    <dl>{facts.filter(f => f[1]).map(([name, text]) =>
      [<dt key={name}>{name}</dt>, <dd key={`${name}.`}>{text}</dd>])}</dl>
    {k.gpu?.map(g => <p key={g.uuid}>{g.model ?? 'GPU'} {g.uuid}: {gibibytes(g.memory_used)}
      {g.memory_total ? ` of ${gibibytes(g.memory_total)}` : ''}
      {g.busy_since ? `, busy since ${time(g.busy_since)}` : ''}
      {g.idle_since ? `, idle since ${time(g.idle_since)}` : ''}{g.error ? `, ${g.error}` : ''}
      <Curve samples={uses.of.get(kernelKey(k.id, g.uuid))} use={live ? g.utilization : null}
        name={g.model ?? 'GPU'} /></p>)}
    <Timeline id={k.id} state={k.execution_state} />
    <Output id={k.id} />
  </section>;
}

/** focused gives the focus to it at first: who comes from the list reads on here. */
function Heading({ kernel: k, focused }: { kernel: Kernel; focused: boolean }) {
  const title = useRef<HTMLHeadingElement>(null);
  useLayoutEffect(() => { if (focused) title.current!.focus(); }, []);
  return <h2 id="detail" ref={title} tabIndex={-1}>Kernel <span class="mono">{k.id.slice(0, 8)}</span>{' '}
    <span class={`pill ${stateClass(k)}`}>{k.execution_state}</span></h2>;
}
