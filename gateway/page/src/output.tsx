// The end of a kernel's output, following.
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';

import { Refused } from './api';
import { passes, type Place, readLog, Screen } from './log';

const LINES = 400; // that are shown
const MOST = 32 << 20; // characters of output that are read before the viewer is asked
const PAUSE = 250; // ms between two changes of the text
const AGAIN = 2_000; // ms until the next request after a failed one

type State = 'off' | 'following' | 'paused' | 'ended';
const words: Record<State, string> = { off: '', following: 'Following', ended: 'The kernel has ended, and this is all.',
  paused: 'The log is longer.' };

export function Output({ id }: { id: string }) {
  const [state, setState] = useState<State>('off');
  const [text, setText] = useState('');
  const [problem, setProblem] = useState('');
  const kept = useRef({ place: { log: '', after: 0 } as Place, screen: new Screen(LINES) });
  const box = useRef<HTMLPreElement>(null);
  const atEnd = useRef(true);
  useEffect(() => {
    if (state !== 'following') return;
    const end = new AbortController();
    void follow(id, kept.current, end.signal, { text: setText, problem: setProblem, state: setState });
    return () => end.abort();
  }, [id, state]);
  useLayoutEffect(() => {
    if (box.current && atEnd.current) box.current.scrollTop = box.current.scrollHeight;
  }, [text]);
  return <section aria-labelledby="output">
    <div class="tools">
      <h3 id="output">Output</h3>
      {state === 'following'
        ? <button type="button" onClick={() => setState('off')}>Stop following</button>
        : <button type="button" onClick={() => setState('following')}>
          {text || state === 'ended' ? 'Follow on' : 'Show the output'}
        </button>}
      <span class="soft" role="status">{problem ? '' : words[state]}</span>
    </div>
    <p class="bad notice" role="alert">{problem}</p>
    {state !== 'off' || text
      ? <pre ref={box} tabIndex={0} role="region" aria-label="Text of the output" onScroll={e => {
        const { scrollTop, scrollHeight, clientHeight } = e.currentTarget;
        atEnd.current = scrollHeight - scrollTop - clientHeight < 8;
      }}>{text || 'There is no output yet.'}</pre>
      : <p class="soft">It is read when you ask for it.</p>}
  </section>;
}

interface To { text(text: string): void; problem(text: string): void; state(state: State): void }

/** Follows the output until the signal is aborted, the kernel has ended, or a lot was read. */
async function follow(id: string, kept: { place: Place; screen: Screen }, signal: AbortSignal, to: To): Promise<void> {
  let size = 0, timer: ReturnType<typeof setTimeout> | undefined;
  const show = (): void => { timer = undefined; if (!signal.aborted) to.text(kept.screen.text()); };
  const take = (text: string): boolean => {
    to.problem('');
    kept.screen.add(text);
    size += text.length;
    timer ??= setTimeout(show, PAUSE);
    return size < MOST;
  };
  try {
    while (!signal.aborted) {
      try {
        await readLog(id, kept.place, signal, take);
        to.state(size < MOST ? 'ended' : 'paused');
        return;
      } catch (e) {
        if (signal.aborted) return;
        if (e instanceof Refused && e.status === 409) { // its supervisor and log are other ones now
          kept.place = { log: '', after: 0 };
          kept.screen.add('[the kernel was started again, and its log is new]\n');
          continue;
        }
        if (!passes(e)) {
          to.problem((e as Error).message);
          to.state('off');
          return;
        }
        to.problem('The gateway cannot be reached. The page tries again.');
        await new Promise(resolve => setTimeout(resolve, AGAIN));
      }
    }
  } finally {
    if (timer !== undefined) { clearTimeout(timer); show(); }
  }
}
