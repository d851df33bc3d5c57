// Dialogs for actions. Each names what is lost, and shows the gateway's sentence if it refuses.
import type { ComponentChildren } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';

import { type Grant, type Kernel, kernelPath, request } from './api';
import { time } from './format';

export type Action = 'interrupt' | 'restart' | 'stop' | 'keep' | 'keep GPU' | 'share';

const AWAY = 'The gateway does not answer. The action may have been done.';

const titles: Record<Action, string> =
  { interrupt: 'Interrupt', restart: 'Restart', stop: 'Stop', keep: 'Keep', 'keep GPU': 'Keep GPU', share: 'Share' };

/** Lists what the user may try. Only the owner and admins are told who a kernel is shared with. */
export function actionsFor(k: Kernel): Action[] {
  const alive = k.execution_state !== 'dead';
  const all: Action[] = alive ? ['interrupt', 'restart'] : ['restart'];
  if (k.owner === undefined || k.shared_with !== undefined) {
    all.push('stop');
    if (alive) all.push('keep');
    if (alive && k.parked?.state) all.push('keep GPU');
    if (k.shared_with !== undefined) all.push('share');
  }
  return all;
}

export function Actions({ kernel, open }: { kernel: Kernel; open: (action: Action) => void }) {
  return <div class="tools">{actionsFor(kernel).map(a =>
    <button key={a} type="button" class={a === 'stop' ? 'danger' : ''} onClick={() => open(a)}>
      {titles[a]}…</button>)}</div>;
}

export function ActionDialog({ kernel, action, close }: { kernel: Kernel; action: Action; close: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [problem, setProblem] = useState('');
  const [working, setWorking] = useState(false);
  const [hours, setHours] = useState('8');
  const [grants, setGrants] = useState(() => (kernel.shared_with ?? []).map(line).join('\n'));
  useEffect(() => { dialog.current?.showModal(); }, []);

  const run = async (e: Event): Promise<void> => {
    e.preventDefault();
    if (working) return;
    setProblem('');
    setWorking(true);
    try {
      await send(kernel, action, hours, grants);
      dialog.current?.close();
    } catch (error) {
      // fetch reports a gateway that is away as a TypeError, with a browser's own words
      setProblem(error instanceof TypeError ? AWAY : (error as Error).message);
    } finally {
      setWorking(false);
    }
  };
  return <dialog ref={dialog} onClose={close} aria-labelledby="action-title">
    <form onSubmit={run}>
      <h2 id="action-title">{action === 'keep GPU' ? 'Keep the GPU of' : titles[action]} this kernel?</h2>
      <p>{kernel.name}{kernel.owner ? ` of ${kernel.owner}` : ''}, <code>{kernel.id}</code></p>
      {explain(kernel, action)}
      {(action === 'keep' || action === 'keep GPU') && <label>Hours; 0 ends keeping it{' '}
        <input type="number" min="0" max="8760" step="any" required value={hours}
          onInput={e => setHours(e.currentTarget.value)} />
      </label>}
      {action === 'share' && <label>One line for each user or group, such as “user ann read” or “group team use”
        <textarea rows={5} value={grants} onInput={e => setGrants(e.currentTarget.value)} />
      </label>}
      <p class="bad notice" role="alert">{problem}</p>
      <div class="tools">
        <button type="submit" aria-disabled={working}>{titles[action]}</button>
        <button type="button" onClick={() => dialog.current?.close()}>Cancel</button>
      </div>
    </form>
  </dialog>;
}

function explain(k: Kernel, action: Action): ComponentChildren {
  const clients = k.connections === 1 ? 'One client is' : `${k.connections} clients are`;
  switch (action) {
    case 'interrupt': return <p>The cell that runs now is interrupted, and its result is lost. Variables stay.</p>;
    case 'restart': return <p>All variables and results in the kernel's memory are lost, and what runs now is
      ended. {clients} connected.</p>;
    case 'stop': return <p>The kernel ends. All its variables and the output that no notebook has saved are lost.{' '}
      {clients} connected.</p>;
    case 'keep': return <p>The kernel is not ended for being idle until then.
      {k.keep_until ? ` It is kept until ${time(k.keep_until)}.` : ''}</p>;
    case 'keep GPU': return <p>The kernel keeps its GPU until then, also if it is idle and another kernel waits.
      {k.parked?.keep_gpu_until ? ` It is kept until ${time(k.parked.keep_gpu_until)}.` : ''}</p>;
    case 'share': return <p>Users with “read” see its output. Users with “use” also run code in it, with its owner's
      rights and files.</p>;
  }
}

const line = (g: Grant): string => `${g.user !== undefined ? 'user' : 'group'} ${g.user ?? g.group} ${g.right}`;

/** Reads the lines of the dialog. The error names the line. */
export function readGrants(text: string): Grant[] {
  const grants: Grant[] = [];
  text.split('\n').forEach((raw, i) => {
    const row = raw.trim();
    if (!row) return;
    const m = /^(user|group)\s+(\S.*?)\s+(read|use)$/.exec(row);
    if (!m) throw new Error(`Line ${i + 1} is not “user NAME read”, “user NAME use” or the same with “group”.`);
    grants.push({ [m[1]]: m[2], right: m[3] as 'read' | 'use' });
  });
  return grants;
}

async function send(k: Kernel, action: Action, hours: string, grants: string): Promise<void> {
  const patch = (body: object) => request(kernelPath(k.id), { method: 'PATCH', body: JSON.stringify(body) });
  switch (action) {
    case 'interrupt': await request(kernelPath(k.id, '/interrupt'), { method: 'POST' }); return;
    case 'restart': await request(kernelPath(k.id, '/restart'), { method: 'POST' }); return;
    case 'stop': await request(kernelPath(k.id), { method: 'DELETE' }); return;
    case 'share': await patch({ shared_with: readGrants(grants) }); return;
    case 'keep':
    case 'keep GPU': {
      const h = Number(hours);
      await patch({ [action === 'keep' ? 'keep_until' : 'keep_gpu_until']: h > 0 ? new Date(Date.now() + h * 3_600_000).toISOString() : null });
    }
  }
}
