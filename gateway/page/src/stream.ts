// The stream of events, read with fetch, since EventSource cannot send the token in a header.
import { type Kernel, Refused, request } from './api';

export interface Totals { kernels: number; states: Record<string, number> }
export type Health = { state: 'live' } | { state: 'connecting' | 'stale' | 'refused'; message: string };
export interface Watcher {
  kernels(all: ReadonlyMap<string, Kernel>): void; // a new map each time
  totals(totals: Totals): void;
  health(health: Health): void;
}

const SILENCE = 40_000; // ms; the gateway sends a comment every 15 s
const FIRST_WAIT = 500;
const LONGEST_WAIT = 10_000;
const MOST = 64 << 20; // characters that wait for the end of an event

/** Splits the stream's text into events. Returns the text of the event that is not complete yet. */
export function parse(text: string, event: (name: string, data: string) => void): string {
  for (;;) {
    const end = text.indexOf('\n\n');
    if (end < 0) return text;
    let name = '', data = '';
    for (const line of text.slice(0, end).split('\n')) {
      if (line.startsWith('event: ')) name = line.slice(7);
      if (line.startsWith('data: ')) data = line.slice(6);
    }
    if (name) event(name, data);
    text = text.slice(end + 2);
  }
}

/** Follows the kernels until the signal is aborted, or the token is refused. It reconnects after every other error. */
export async function follow(to: Watcher, signal: AbortSignal): Promise<void> {
  let wait = FIRST_WAIT;
  while (!signal.aborted) {
    try {
      await once(to, signal, () => { wait = FIRST_WAIT; });
      to.health({ state: 'connecting', message: 'The connection to the gateway has ended. The page reconnects.' });
    } catch (e) {
      if (signal.aborted) return;
      if (e instanceof Refused && e.status === 403) {
        to.health({ state: 'refused', message: e.message });
        return;
      }
      const why = e instanceof Refused ? ` ${e.message}` : '';
      to.health({ state: 'connecting', message: `The gateway cannot be reached. The page tries again.${why}` });
    }
    await new Promise<void>(resolve => {
      const timer = setTimeout(done, wait * (0.75 + Math.random() / 2));
      function done() { clearTimeout(timer); signal.removeEventListener('abort', done); resolve(); }
      signal.addEventListener('abort', done);
    });
    wait = Math.min(2 * wait, LONGEST_WAIT);
  }
}

async function once(to: Watcher, signal: AbortSignal, connected: () => void): Promise<void> {
  const silent = new AbortController();
  let timer = setTimeout(() => silent.abort(), SILENCE);
  try {
    const answer = await request('api/events', { signal: AbortSignal.any([signal, silent.signal]) });
    const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
    let kernels = new Map<string, Kernel>();
    let text = '', changed = false;
    const event = (name: string, data: string): void => {
      const value = JSON.parse(data);
      switch (name) {
        case 'reset': kernels = new Map(); changed = true; break;
        case 'kernels':
          for (const k of value.kernels as Kernel[]) kernels.set(k.id, k);
          for (const id of value.removed as string[]) kernels.delete(id);
          changed = true;
          break;
        case 'totals': to.totals(value); break;
        case 'unavailable': to.health({ state: 'stale', message: value.message }); break;
        case 'complete':
          connected();
          to.health({ state: 'live' });
          if (changed) to.kernels(new Map(kernels));
          changed = false;
      }
    };
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(() => silent.abort(), SILENCE);
      text = parse(text + value, event);
      if (text.length > MOST) throw new Error('an event is too long');
    }
  } finally {
    clearTimeout(timer);
  }
}
