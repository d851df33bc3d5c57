// Limits, and kernels that have ended.
import type { Ended, Kernel, Limit } from './api';
import { number, time } from './format';

const SHOWN = 100;

interface EndedRow { id: string; name: string; at: string; reason: string }

/** The kernels that have ended, the last first. The list may be a minute old: a kernel that lives again is left out,
 * and a dead kernel has its newer reason and time from kernels. An older gateway answers with its ordinary list, whose
 * entries have no ended_at: they are left out. */
export function endedRows(ended: readonly Ended[], kernels: ReadonlyMap<string, Kernel>): EndedRow[] {
  const named = (k: { name: string; owner?: string }): string => k.owner ? `${k.name} of ${k.owner}` : k.name;
  const rows = new Map<string, EndedRow>();
  for (const e of ended) {
    const now = kernels.get(e.id)?.execution_state;
    if (e.ended_at && (now === undefined || now === 'dead')) {
      rows.set(e.id, { id: e.id, name: named(e), at: e.ended_at, reason: e.reason });
    }
  }
  for (const k of kernels.values()) {
    if (k.execution_state !== 'dead') continue;
    const listed = rows.get(k.id);
    const at = listed && listed.at > k.last_activity ? listed.at : k.last_activity;
    rows.set(k.id, { id: k.id, name: named(k), at, reason: k.reason || listed?.reason || '' });
  }
  return [...rows.values()].sort((a, b) => a.at < b.at ? 1 : -1);
}

/** Kernels that were ended for being idle, and those that died. */
export function EndedKernels({ ended, kernels }: { ended: Ended[] | undefined; kernels: ReadonlyMap<string, Kernel> }) {
  const rows = endedRows(ended ?? [], kernels);
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
