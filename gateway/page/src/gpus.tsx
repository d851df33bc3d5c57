// GPUs per node and device, with who holds them. Bars show what is allocated, and of that what computes. Curves show
// how much of the last minutes a device computed: at the device, or at its holder where a node has no single devices.
import { useMemo } from 'preact/hooks';

import type { Ahead, Amounts, GPUView, Holder, Kernel, Pool, PoolDevice, Ready } from './api';
import { Curve, deviceKey, kernelKey, useOf, type Uses } from './curve';
import { number, time } from './format';

function Bar({ a, unit, name }: { a: Amounts; unit: string; name: string }) {
  const most = Math.max(a.total, a.held) || 1;
  const text = `${name}: ${number(a.held)} of ${number(a.total)} ${unit} allocated, ` +
    (a.measured > 0 ? `${number(a.busy)} of ${number(a.measured)} measured are busy` : 'use is not measured');
  return <span class="bar" role="img" aria-label={text} title={text}>
    <span style={{ width: `${100 * a.held / most}%` }} /><span style={{ width: `${100 * a.busy / most}%` }} />
  </span>;
}

function use(h: Holder): string {
  if (h.measured === 0) return 'not measured';
  if (h.busy > 0) return 'busy';
  return h.idle_since ? `idle since ${time(h.idle_since)}` : 'idle';
}

/** What is kept ready of an amount: "1 GPU by warm kernels". */
export function keptReady(r: Ready, unit: string): string[] {
  return r.warm ? [`${number(r.warm)} ${unit} by warm kernels`] : [];
}

/** How many warm kernels of a kernelspec there are, and why not all. */
export function aheadText(a: Ahead): string {
  const of = `kernelspec ${a.kernelspec}${a.flavor ? `, flavor ${a.flavor}` : ''}`;
  const text = `Warm kernels of ${of}: ${a.ready} of ${a.wanted} ready`;
  if (a.waiting > 0) return `${text}, ${a.waiting} of ${a.wanted} wait for a node${a.reason ? `: ${a.reason}` : ''}`;
  return a.reason ? `${text}: ${a.reason}` : text;
}

/** For the UUID of each GPU, how many kernels belong to it and have given it back, and how many of them wait for it. */
export function parkedOn(kernels: Iterable<Kernel>): ReadonlyMap<string, { parked: number; wait: number }> {
  const of = new Map<string, { parked: number; wait: number }>();
  for (const { parked, gpu } of kernels) {
    const waits = parked?.state === 'waking';
    if (!waits && parked?.state !== 'parked' && parked?.state !== 'none') continue;
    for (const { uuid } of gpu ?? []) {
      const n = of.get(uuid) ?? { parked: 0, wait: 0 };
      of.set(uuid, waits ? { ...n, wait: n.wait + 1 } : { ...n, parked: n.parked + 1 });
    }
  }
  return of;
}

const kernelsText = (n: number): string => n === 1 ? '1 kernel' : `${number(n)} kernels`;

type Parking = ReturnType<typeof parkedOn>;
type Known = { kernels: ReadonlyMap<string, Kernel>; live: boolean; uses: Uses; show: (id: string) => void };

export function GPUs({ view, ...known }: Known & { view: GPUView | undefined }) {
  const parking = useMemo(() => parkedOn(known.kernels.values()), [known.kernels]);
  return <section aria-labelledby="gpus">
    <h2 id="gpus">GPUs</h2>
    {!view ? <p class="soft">…</p> : <>
      {view.totals.map(t => <p key={`${t.resource} ${t.unit}`}>
        All nodes, {t.resource}: {number(t.held)} of {number(t.total)} {t.unit} allocated
        {t.measured > 0 ? `, ${number(t.busy)} busy` : ''}
        {t.unhealthy > 0 ? `, ${number(t.unhealthy)} unhealthy` : ''}
        {keptReady(t, t.unit).map(text => `, ${text}`).join('')}</p>)}
      {(view.ahead ?? []).length > 0 && <ul class="soft" aria-label="Kept ready">
        {view.ahead!.map(a => <li key={a.kernelspec}>{aheadText(a)}</li>)}</ul>}
      {view.nodes.length === 0 && view.missing.length === 0 && <p class="soft">There are no GPUs.</p>}
      {view.missing.map(text => <p class="soft" key={text}>{text}</p>)}
      {view.nodes.length > 0 && <div class="nodes" tabIndex={0} role="region" aria-label="Nodes with GPUs">
        {view.nodes.map(n => <Node key={n.name} node={n} parking={parking} {...known} />)}
      </div>}
    </>}
  </section>;
}

function Node({ node: n, parking, ...known }: Known & { node: GPUView['nodes'][number]; parking: Parking }) {
  return <div class="wide" tabIndex={0} role="region" aria-label={`GPUs of ${n.name}`}>
    <h3>{n.name}{n.status && n.status !== 'Ready' ? ` (${n.status})` : ''}</h3>
    <table>
      <thead><tr>
        <th scope="col">GPU</th><th scope="col">Allocated and busy</th><th scope="col">Holders</th>
      </tr></thead>
      <tbody>{n.pools.flatMap(p => {
        const id = `${p.resource} ${p.model}`, name = p.model ?? p.resource;
        const whole = p.holders.filter(h => !p.devices || !h.devices); // those of which no device is known
        return [<tr key={id}><td>{name}</td>
          <td>{number(p.held)} of {number(p.total)} {p.unit}<Bar a={p} unit={p.unit} name={name} /></td>
          <td><Holders of={whole} unit={p.unit} curves {...known} />
            {p.others > 0 && <div class="soft">{number(p.others)} {p.unit} by others</div>}
            {keptReady(p, p.unit).map(text => <div class="soft" key={text}>{text}</div>)}</td></tr>,
          ...(p.devices ?? []).map(d =>
            <Device key={`${id} ${d.index}`} node={n.name} pool={p} device={d} parking={parking.get(d.uuid ?? '')}
              {...known} />)];
      })}</tbody>
    </table>
  </div>;
}

function Device({ node, pool: p, device: d, parking, ...known }: Known & { node: string; pool: Pool; device: PoolDevice;
  parking: { parked: number; wait: number } | undefined }) {
  const of = p.holders.filter(h => h.devices?.[d.index] !== undefined);
  const part = of.map(h => h.devices![d.index] / (h.amount || 1));
  const amounts = { total: d.total, held: d.held, unhealthy: 0,
    measured: of.reduce((sum, h, i) => sum + h.measured * part[i], 0),
    busy: of.reduce((sum, h, i) => sum + h.busy * part[i], 0) };
  const samples = known.uses.of.get(deviceKey(node, p, d)), now = known.live ? useOf(d, of, known.kernels) : null;
  return <tr><td title={d.uuid}>Device {d.index}</td>
    <td>{number(d.held)} of {number(d.total)}<Bar a={amounts} unit={p.unit} name={`device ${d.index}`} />
      {(samples || now !== null) &&
        <Curve small samples={samples} use={now} name={`device ${d.index} of ${node}`} />}</td>
    <td><Holders of={of} unit={p.unit} {...known} />
      {parking && parking.parked > 0 && <div class="soft">parked: {kernelsText(parking.parked)}</div>}
      {parking && parking.wait > 0 && <div class="soft">waiting for it: {kernelsText(parking.wait)}</div>}</td></tr>;
}

/** Those who hold something, with curves of their GPUs where the row shows no device. */
function Holders({ of, unit, curves, kernels, live, uses, show }: Known & { of: Holder[]; unit: string;
  curves?: boolean }) {
  return <>{of.map(h => {
    const name = `${h.owner || 'kernel'} ${h.kernel?.slice(0, 8)}`;
    const gpus = curves && h.kernel ? kernels.get(h.kernel)?.gpu ?? [] : [];
    return <div key={`${h.kernel} ${h.pod}`}>
      {h.kernel ? <button class="plain" type="button" onClick={() => show(h.kernel!)}>{name}</button>
        : `pod ${h.namespace}/${h.pod}`}{' '}
      {number(h.amount)} {unit}, {use(h)}{h.ending ? ', ending' : ''}
      {gpus.map(g => <Curve key={g.uuid} small samples={uses.of.get(kernelKey(h.kernel!, g.uuid))}
        use={live ? g.utilization : null} name={`${g.model ?? 'GPU'} of ${name}`} />)}
    </div>;
  })}</>;
}
