// The gateways that serve the same kernels; only admins see them.
import type { Replica } from './api';
import { time } from './format';

export function Gateways({ list }: { list: Replica[] | undefined }) {
  if (!list?.length) return null;
  return <section aria-labelledby="gateways">
    <h2 id="gateways">Gateways</h2>
    <div class="wide" tabIndex={0} role="region" aria-label="Table of gateways"><table>
      <thead><tr>
        <th scope="col">Gateway</th><th scope="col">Health</th><th scope="col">Version</th><th scope="col">Started</th>
      </tr></thead>
      <tbody>{list.map(g => <tr key={g.name}><td>{g.name}{g.self ? <span class="soft"> (this one)</span> : ''}</td>
        <td><span class={`pill ${g.ready ? 'good' : 'bad'}`}>{g.ready ? 'ready' : 'not ready'}</span>
          {g.problem ? ` ${g.problem}` : ''}</td>
        <td>{g.version ?? 'not known'}</td><td>{time(g.started)}</td></tr>)}</tbody>
    </table></div>
  </section>;
}
