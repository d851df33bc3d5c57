import { explain, Problem } from '../request';
import type { Kernels } from './kernels';

const FIRST_PAUSE = 500; // ms
const LONGEST_PAUSE = 10_000;
const SILENCE = 40_000; // ms; the server sends a comment every 15 to 20 s
const MAX_EVENT = 64 << 20; // characters

const ENDED = 'The connection to the Jupyter server has ended.';
const SILENT = 'The Jupyter server does not answer.';

/** Sends the request for the stream. Rejects with a sentence if the server refuses or cannot be reached. */
export type Open = (signal: AbortSignal) => Promise<Response>;

/** Splits a text into server-sent events. Returns the text of the event that is not complete yet. */
export function parse(text: string, event: (name: string, data: string) => void): string {
  for (;;) {
    const end = text.indexOf('\n\n');
    if (end < 0) {
      return text;
    }
    let name = '';
    for (const line of text.slice(0, end).split('\n')) {
      if (line.startsWith('event: ')) {
        name = line.slice(7);
      } else if (line.startsWith('data: ')) {
        event(name, line.slice(6));
      }
    }
    text = text.slice(end + 2);
  }
}

/** Follows the stream until the signal is aborted. Reconnects after each end, with growing pauses. */
export async function follow(kernels: Kernels, open: Open, signal: AbortSignal): Promise<void> {
  let pause = FIRST_PAUSE;
  while (!signal.aborted) {
    try {
      await once(kernels, open, signal, () => {
        pause = FIRST_PAUSE;
      });
      kernels.fail(ENDED);
    } catch (error) {
      if (signal.aborted) {
        return;
      }
      kernels.fail(explain(error));
    }
    await wait(pause * (0.75 + Math.random() / 2), signal);
    pause = Math.min(2 * pause, LONGEST_PAUSE);
  }
}

async function once(kernels: Kernels, open: Open, signal: AbortSignal, connected: () => void): Promise<void> {
  const silent = new AbortController();
  const abort = () => silent.abort();
  signal.addEventListener('abort', abort);
  let timer = setTimeout(abort, SILENCE);
  // The text of a browser's own error is replaced.
  const orProblem = <T>(reading: Promise<T>): Promise<T> =>
    reading.catch(error => {
      throw error instanceof Problem ? error : new Problem(silent.signal.aborted ? SILENT : ENDED);
    });
  try {
    const response = await orProblem(open(silent.signal));
    const reader = response.body!.getReader();
    const decoder = new TextDecoder();
    let text = '';
    for (;;) {
      const { value, done } = await orProblem(reader.read());
      if (done) {
        return;
      }
      clearTimeout(timer);
      timer = setTimeout(abort, SILENCE);
      text = parse(text + decoder.decode(value, { stream: true }), (name, data) => {
        kernels.take(name, JSON.parse(data));
        connected();
      });
      if (text.length > MAX_EVENT) {
        throw new Problem('The Jupyter server sends an event that is too long.');
      }
    }
  } finally {
    clearTimeout(timer);
    signal.removeEventListener('abort', abort);
    silent.abort(); // ends the request if an event could not be read
  }
}

function wait(time: number, signal: AbortSignal): Promise<void> {
  return new Promise(resolve => {
    const done = () => {
      clearTimeout(timer);
      signal.removeEventListener('abort', done);
      resolve();
    };
    const timer = setTimeout(done, time);
    signal.addEventListener('abort', done);
  });
}
