// Limits, and kernels that have ended.
import type { Ended, Kernel, Limit } from './api';
import { number, time } from './format';

const SHOWN = 100;

/** Kernels that were ended for being idle, and those that died. What the list does not have yet is taken from
 * kernels. */
export function EndedKernels({ ended, kernels }: { ended: Ended[] | undefined; kernels: ReadonlyMap<string, Kernel> }) {
  const named = (k: { name: string; owner?: string }): string => k.owner ? `${k.name} of ${k.owner}` : k.name;
  const known = new Set((ended ?? []).map(e => e.id));
  const rows = (ended ?? []).map(e => ({ id: e.id, name: named(e), at: e.ended_at, reason: e.reason }));
  for (const k of kernels.values()) {
    if (k.execution_state === 'dead' && !known.has(k.id)) {
      rows.push({ id: k.id, name: named(k), at: k.last_activity, reason: k.reason ?? '' });
    }
  }
  rows.sort((a, b) => a.at < b.at ? 1 : -1);
  return <section aria-labelledby="ended">
    <h2 id="ended">Ended in the last days</h2>
    {rows.length === 0 ? <p class="soft">No kernel.</p>
      : <div class="wide" tabIndex={0} role="region" aria-label="Table of ended kernels"><table>
      <thead><tr><th scope="col">At</th><th scope="col">Kernel</th><th scope="col">Reason</th></tr></thead>
      <tbody>{rows.slice(0, SHOWN).map(r => <tr key={r.id}>
        <td>{time(r.at)}</td><td title={r.id}>{r.name} {r.id.slice(0, 8)}</td><td>{r.reason}</td></tr>)}</tbody>
    </table>{rows.length > SHOWN && <p class="soft">{rows.length - SHOWN} more are not shown.</p>}</div>}
  </section>;
}

/** The limits, the fullest first. */
export function Limits({ list }: { list: Limit[] | undefined }) {
  const part = (l: Limit): number => l.most > 0 ? Math.min(1, l.used / l.most) : 1;
  const rows = [...list ?? []].sort((a, b) => part(b) - part(a));
  return <section aria-labelledby="limits">
    <h2 id="limits">Limits</h2>
    {rows.length === 0 ? <p class="soft">There are no limits.</p>
      : <div class="wide" tabIndex={0} role="region" aria-label="Table of limits"><table>
      <thead><tr><th scope="col">Limit</th><th scope="col">Of</th><th scope="col">Used</th></tr></thead>
      <tbody>{rows.slice(0, SHOWN).map(l => {
        const text = `${number(l.used)} of ${number(l.most)} ${l.unit}s`;
        return <tr key={`${l.limit} ${l.of}`}><td>{l.limit}</td><td>{l.of ?? ''}</td>
          <td>{text}<span class="bar" role="img" aria-label={text}>
            <span style={{ width: `${100 * part(l)}%` }} /></span></td></tr>;
      })}</tbody>
    </table>{rows.length > SHOWN && <p class="soft">{rows.length - SHOWN} more are not shown.</p>}</div>}
  </section>;
}
