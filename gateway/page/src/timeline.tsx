// A kernel's life: a strip of when it was busy, and a list of events.
import { useEffect, useState } from 'preact/hooks';

import { kernelPath, problemOf, read, type Timeline as Life } from './api';
import { span, time } from './format';

const EVERY = 10_000; // ms between two requests while nothing changes
const marks: Record<string, string> = { dead: 'bad', died: 'bad', warning: 'wait', waiting: 'wait', ready: 'good' };

/** The part of each step in which the kernel was busy, from 0 to 1. The last step may still be going on. */
export function parts(t: Life): number[] {
  const begin = Date.parse(t.since), end = Date.parse(t.until);
  return t.busy_seconds.map((busy, i) => {
    const over = Math.min(t.step_seconds, (end - begin) / 1000 - i * t.step_seconds);
    return over > 0 ? Math.min(1, busy / over) : 0;
  });
}

/** state is the kernel's present state: after a change the timeline is read at once. */
export function Timeline({ id, state }: { id: string; state: string }) {
  const [life, setLife] = useState<Life>();
  const [problem, setProblem] = useState('');
  useEffect(() => {
    let over = false;
    const load = async (): Promise<void> => {
      if (document.hidden) return;
      try {
        const now = await read<Life>(kernelPath(id, '/timeline'));
        if (!over) { setLife(now); setProblem(''); }
      } catch (e) {
        if (!over) setProblem(problemOf(e));
      }
    };
    void load();
    const timer = setInterval(() => void load(), EVERY);
    return () => { over = true; clearInterval(timer); };
  }, [id, state]);
  const strip = life ? parts(life) : [];
  const busy = life ? life.busy_seconds.reduce((a, b) => a + b, 0) : 0;
  const whole = life ? (Date.parse(life.until) - Date.parse(life.since)) / 1000 : 0;
  return <section aria-labelledby="timeline">
    <div class="tools">
      <h3 id="timeline">Timeline</h3>
      <span class="soft">{life && !life.missing ? `busy for ${span(busy)} of ${span(whole)}` : ''}</span>
    </div>
    <p class={`notice ${problem ? 'bad' : 'soft'}`} role="status">{problem || life?.missing}</p>
    <div class="strip" role="img" aria-label={`Busy for ${span(busy)} of ${span(whole)}`}>
      {strip.map((part, i) => <span key={i} style={{ opacity: part > 0 ? 0.15 + 0.85 * part : 0 }} />)}
    </div>
    <div class="ends soft"><span>{time(life?.since)}</span><span>{time(life?.until)}</span></div>
    <ol class="events" tabIndex={0} aria-label="Events">
      {life?.events.map((e, i) => <li key={i}><span class="soft">{time(e.at)}</span>
        <span><span class={`pill ${marks[e.kind] ?? ''}`}>{e.kind}</span></span><span>{e.text}</span></li>)}
    </ol>
    {life && life.events_dropped > 0 && <p class="soft">{life.events_dropped} earlier events are no longer kept.</p>}
  </section>;
}
