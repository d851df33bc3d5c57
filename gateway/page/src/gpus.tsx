// GPUs per node and device, with who holds them. Bars show what is allocated, and of that what computes.
import type { Amounts, GPUView, Holder } from './api';
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

export function GPUs({ view, show }: { view: GPUView | undefined; show: (id: string) => void }) {
  return <section aria-labelledby="gpus">
    <h2 id="gpus">GPUs</h2>
    {!view ? <p class="soft">…</p> : <>
      {view.totals.map(t => <p key={`${t.resource} ${t.unit}`}>
        All nodes, {t.resource}: {number(t.held)} of {number(t.total)} {t.unit} allocated
        {t.measured > 0 ? `, ${number(t.busy)} busy` : ''}
        {t.unhealthy > 0 ? `, ${number(t.unhealthy)} unhealthy` : ''}</p>)}
      {view.nodes.length === 0 && view.missing.length === 0 && <p class="soft">There are no GPUs.</p>}
      {view.missing.map(text => <p class="soft" key={text}>{text}</p>)}
      {view.nodes.map(n => <div key={n.name} class="wide" tabIndex={0} role="region" aria-label={`GPUs of ${n.name}`}>
        <h3>{n.name}{n.status && n.status !== 'Ready' ? ` (${n.status})` : ''}</h3>
        <table>
          <thead><tr>
            <th scope="col">GPU</th><th scope="col">Allocated and busy</th><th scope="col">Holders</th>
          </tr></thead>
          <tbody>{n.pools.flatMap(p => {
            const name = `${p.model ?? p.resource}`;
            const holders = (of: Holder[], others: number) => <>
              {of.map(h => <div key={`${h.kernel} ${h.pod}`}>{h.kernel
                ? <button class="plain" type="button" onClick={() => show(h.kernel!)}>
                  {h.owner || 'kernel'} {h.kernel.slice(0, 8)}</button>
                : `pod ${h.namespace}/${h.pod}`}{' '}
                {number(h.amount)} {p.unit}, {use(h)}{h.ending ? ', ending' : ''}</div>)}
              {others > 0 && <div class="soft">{number(others)} {p.unit} by others</div>}
            </>;
            const sum = <tr key={`${p.resource} ${p.model}`}><td>{name}</td>
              <td>{number(p.held)} of {number(p.total)} {p.unit}<Bar a={p} unit={p.unit} name={name} /></td>
              <td>{holders(p.devices ? [] : p.holders, p.others)}</td></tr>;
            const devices = (p.devices ?? []).map(d => {
              const of = p.holders.filter(h => h.devices?.[d.index] !== undefined);
              const part = of.map(h => h.devices![d.index] / (h.amount || 1));
              const a = { total: d.total, held: d.held, unhealthy: 0,
                measured: of.reduce((s, h, i) => s + h.measured * part[i], 0),
                busy: of.reduce((s, h, i) => s + h.busy * part[i], 0) };
              return <tr key={`${p.resource} ${d.index}`}><td title={d.uuid}>Device {d.index}</td>
                <td>{number(d.held)} of {number(d.total)}<Bar a={a} unit={p.unit} name={`device ${d.index}`} /></td>
                <td>{holders(of, 0)}</td></tr>;
            });
            return [sum, ...devices];
          })}</tbody>
        </table>
      </div>)}
    </>}
  </section>;
}
