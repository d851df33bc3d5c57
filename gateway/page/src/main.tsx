// The operator's page. Every text of a kernel or user becomes a text node; nothing is parsed as HTML.
import { render } from 'preact';
import { useCallback, useEffect, useState } from 'preact/hooks';

import { type Ended, type GPUView, hasToken, type Kernel, type Limit, read, setToken, takeToken, type UsageRow } from './api';
import { Detail } from './detail';
import { type Action, ActionDialog } from './dialogs';
import { GPUs } from './gpus';
import { EndedKernels, Limits, Usage } from './history';
import { Kernels, Waiting } from './kernels';
import { follow, type Health, type Totals } from './stream';

const CLOCK = 5_000; // ms between two changes of ages
const GPUS = 10_000; // ms between two requests for GPUs
const HISTORY = 60_000;

/** Reads a path again and again while the page is shown. */
function usePolled<T>(path: string, every: number, live: boolean): { value?: T; problem: string } {
  const [state, setState] = useState<{ value?: T; problem: string }>({ problem: '' });
  useEffect(() => {
    if (!live) return;
    let over = false;
    const load = async (): Promise<void> => {
      if (document.hidden) return;
      try {
        const value = await read<T>(path);
        if (!over) setState({ value, problem: '' });
      } catch (e) {
        if (!over) setState(s => ({ ...s, problem: e instanceof Error ? e.message : String(e) }));
      }
    };
    const shown = () => void load();
    shown();
    const timer = setInterval(shown, every);
    document.addEventListener('visibilitychange', shown);
    return () => { over = true; clearInterval(timer); document.removeEventListener('visibilitychange', shown); };
  }, [path, every, live]);
  return state;
}

function useNow(): number {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), CLOCK);
    return () => clearInterval(timer);
  }, []);
  return now;
}

const chosen = (): string => new URLSearchParams(location.hash.slice(1)).get('kernel') ?? '';

function Page() {
  const [kernels, setKernels] = useState<ReadonlyMap<string, Kernel>>(new Map());
  const [totals, setTotals] = useState<Totals>();
  const [health, setHealth] = useState<Health>({ state: 'connecting', message: 'Connecting…' });
  const [login, setLogin] = useState(0);
  const [id, setID] = useState(chosen);
  const [action, setAction] = useState<Action>();
  const now = useNow();
  useEffect(() => {
    const end = new AbortController();
    void follow({ kernels: setKernels, totals: setTotals, health: setHealth }, end.signal);
    return () => end.abort();
  }, [login]);
  useEffect(() => {
    const moved = () => { takeToken(); setID(chosen()); };
    addEventListener('hashchange', moved);
    return () => removeEventListener('hashchange', moved);
  }, []);
  const show = useCallback((to: string) => { location.hash = to ? `kernel=${to}` : ''; }, []);
  const live = health.state === 'live';
  const me = usePolled<{ identity: { username: string; name: string } }>('api/me', HISTORY, live);
  const version = usePolled<{ version: string }>('api', HISTORY, live);
  const gpus = usePolled<GPUView>('api/gpus', GPUS, live);
  const limits = usePolled<Limit[]>('api/limits', GPUS, live);
  const ended = usePolled<Ended[]>('api/kernels?culled=1', HISTORY, live);
  const usage = usePolled<{ usage: UsageRow[] }>('api/usage?since=168h&by=user', HISTORY, live);
  const problem = [gpus, limits, ended, usage].map(p => p.problem).find(Boolean);

  if (health.state === 'refused') {
    return <main><Login message={hasToken() ? health.message : ''} done={token => {
      setToken(token);
      setHealth({ state: 'connecting', message: 'Connecting…' });
      setLogin(n => n + 1);
    }} /></main>;
  }
  const kernel = kernels.get(id);
  return <>
    <header>
      <h1>Kernels</h1>
      <span>{me.value?.identity.name}</span>
      <span class="soft">{version.value ? `ekg ${version.value.version}` : ''}</span>
      {totals && <span class="soft">{totals.kernels} in all{Object.entries(totals.states).map(([s, n]) => `, ${n} ${s}`)}</span>}
      {hasToken() && <button type="button" onClick={() => { setToken(''); location.reload(); }}>Forget the token</button>}
      <p class={`notice ${live && !problem ? 'soft' : 'bad'}`} role="status">{live ? problem ?? 'Live' : health.message}</p>
    </header>
    <main>
      {id ? kernel ? <Detail key={id} kernel={kernel} now={now} open={setAction} back={() => show('')} />
        : <section><p><button type="button" onClick={() => show('')}>All kernels</button></p>
          <p>{live ? 'This kernel does not exist any more.' : ''}</p></section>
        : <>
          <Kernels kernels={kernels} now={now} show={show} />
          <Waiting kernels={kernels} now={now} show={show} />
          <GPUs view={gpus.value} show={show} />
          <Limits list={limits.value} />
          <EndedKernels ended={ended.value} kernels={kernels} />
          <Usage rows={usage.value?.usage} />
        </>}
      {kernel && action && <ActionDialog kernel={kernel} action={action} close={() => setAction(undefined)} />}
    </main>
  </>;
}

function Login({ message, done }: { message: string; done: (token: string) => void }) {
  const [token, setText] = useState('');
  return <form onSubmit={e => { e.preventDefault(); done(token.trim()); }}>
    <h1>Kernels</h1>
    <label>Token <input type="password" autocomplete="off" required value={token} onInput={e => setText(e.currentTarget.value)} /></label>
    <p class="soft">It is kept in this tab until the tab is closed.</p>
    <p class="bad notice" role="alert">{message}</p>
    <button type="submit">Show the kernels</button>
  </form>;
}

takeToken();
const root = document.getElementById('page')!;
root.replaceChildren();
render(<Page />, root);
