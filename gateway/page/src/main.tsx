// The operator's page. Every text of a kernel or user becomes a text node; nothing is parsed as HTML.
import { render } from 'preact';
import { useCallback, useEffect, useMemo, useState } from 'preact/hooks';

import { type Ended, type GPUView, hasToken, type Kernel, type Limit, problemOf, read, type Replica, setToken,
  takeToken, type UsageAnswer } from './api';
import { CLOCK, takeSamples, type Uses } from './curve';
import { Detail } from './detail';
import { type Action, ActionDialog } from './dialogs';
import { keepFocus } from './focus';
import { number } from './format';
import { Gateways } from './gateways';
import { GPUs } from './gpus';
import { EndedKernels, Limits } from './history';
import { Kernels, NONE, Waiting } from './kernels';
import { follow, type Health, type Totals } from './stream';
import { ranges, Usage } from './usage';

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
        if (!over) setState(s => ({ ...s, problem: problemOf(e) }));
      }
    };
    const shown = () => void load();
    const timer = setInterval(shown, every);
    shown();
    document.addEventListener('visibilitychange', shown);
    return () => { over = true; clearInterval(timer); document.removeEventListener('visibilitychange', shown); };
  }, [path, every, live]);
  return state;
}

function useNow(): number {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), CLOCK); // ages change with it
    return () => clearInterval(timer);
  }, []);
  return now;
}

const chosen = (): string => new URLSearchParams(location.hash.slice(1)).get('kernel') ?? '';

function Page() {
  const [kernels, setKernels] = useState(NONE);
  const [totals, setTotals] = useState<Totals>();
  const [health, setHealth] = useState<Health>({ state: 'connecting', message: 'Connecting…' });
  const [login, setLogin] = useState(0);
  const [{ id, before }, setView] = useState<{ id: string; before?: string }>({ id: chosen() });
  const [range, setRange] = useState(1);
  const [asked, setAsked] = useState<{ kernel: Kernel; action: Action }>();
  const now = useNow();
  useEffect(() => {
    const end = new AbortController();
    void follow({ kernels: setKernels, totals: setTotals, health: setHealth }, end.signal);
    return () => end.abort();
  }, [login]);
  useEffect(() => {
    const moved = () => {
      takeToken();
      const to = chosen();
      setView(v => v.id === to ? v : { id: to, before: v.id });
    };
    addEventListener('hashchange', moved);
    return () => removeEventListener('hashchange', moved);
  }, []);
  const show = useCallback((to: string) => { location.hash = to ? `kernel=${to}` : ''; }, []);
  const live = health.state === 'live';
  const me = usePolled<{ identity: { username: string; name: string } }>('api/me', HISTORY, live);
  const version = usePolled<{ version: string }>('api', HISTORY, live);
  const gpus = usePolled<GPUView>('api/gpus', GPUS, live);
  const limits = usePolled<Limit[]>('api/limits', GPUS, live);
  const ended = usePolled<Ended[]>('api/kernels?ended=1', HISTORY, live);
  const { since, step } = ranges[range];
  const usage = usePolled<UsageAnswer>(`api/usage?since=${since}&step=${step}`, HISTORY, live);
  const gateways = usePolled<Replica[]>('api/gateways', GPUS, live);
  const [uses, setUses] = useState<Uses>({ at: now, of: new Map() });
  useEffect(() => setUses(u => takeSamples(u, now, live ? kernels : NONE, gpus.value)), [now]); // not with each update
  // It is drawn only after a request for GPUs, since it may have thousands of devices.
  const list = useMemo(() => <GPUs view={gpus.value} kernels={kernels} live={live} uses={uses} show={show} />,
    [gpus.value, live]);
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
      <p class={`live ${live && !problem ? 'soft' : 'bad'}`} role="status">
        {live ? problem ?? 'Live' : health.message}</p>
      <div class="end">
        <span class="soft">{version.value ? `ekg ${version.value.version}` : ''}</span>
        <span>{me.value?.identity.name}</span>
        {hasToken() && <button type="button" onClick={() => { setToken(''); location.reload(); }}>
          Forget the token
        </button>}
      </div>
    </header>
    <main tabIndex={-1}>
      {id ? kernel
        ? <Detail key={id} kernel={kernel} now={now} live={live} uses={uses} entered={before !== undefined}
          open={action => setAsked({ kernel, action })} back={() => show('')} />
        : <section><p><button type="button" onClick={() => show('')}>All kernels</button></p>
          <p>{live ? 'This kernel does not exist any more.' : ''}</p></section>
        : <>
          <Tiles totals={totals} gpus={gpus.value} />
          <Kernels kernels={kernels} now={now} show={show} before={before ?? ''} />
          <Waiting kernels={kernels} now={now} show={show} />
          {list}
          <Usage usage={usage.value} range={range} choose={setRange} />
          <div class="columns">
            <Limits list={limits.value} />
            <EndedKernels ended={ended.value} kernels={kernels} />
          </div>
          <Gateways list={gateways.value} />
        </>}
      {asked && <ActionDialog {...asked} close={() => setAsked(undefined)} />}
    </main>
  </>;
}

/** How many kernels of all users there are, by state, and how many GPUs are held. */
function Tiles({ totals, gpus }: { totals: Totals | undefined; gpus: GPUView | undefined }) {
  const of = (state: string): string => totals ? number(totals.states[state] ?? 0) : '…';
  const whole = gpus?.totals.filter(t => t.unit === 'GPU') ?? [];
  const sum = (key: 'held' | 'total'): string => number(whole.reduce((n, t) => n + t[key], 0));
  const tiles: [string, string][] = [['kernels in all', totals ? number(totals.kernels) : '…'], ['busy', of('busy')],
    ['idle', of('idle')], ['starting', of('starting')], ['dead', of('dead')]];
  if (whole.length > 0) tiles.push(['GPUs held', `${sum('held')} of ${sum('total')}`]);
  return <ul class="tiles" aria-label="Numbers of all users">
    {tiles.map(([name, value]) => <li key={name}><b>{value}</b><span>{name}</span></li>)}
  </ul>;
}

function Login({ message, done }: { message: string; done: (token: string) => void }) {
  const [token, setText] = useState('');
  return <form class="login" onSubmit={e => { e.preventDefault(); done(token.trim()); }}>
    <h1>Kernels</h1>
    <label>Token{' '}
      <input type="password" autocomplete="off" required value={token} onInput={e => setText(e.currentTarget.value)} />
    </label>
    <p class="soft">It is kept in this tab until the tab is closed.</p>
    <p class="bad notice" role="alert">{message}</p>
    <button type="submit">Show the kernels</button>
  </form>;
}

takeToken();
const root = document.getElementById('page')!;
root.replaceChildren();
keepFocus(root);
render(<Page />, root);
