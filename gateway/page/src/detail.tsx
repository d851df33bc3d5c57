// One kernel: its details, its times, and the end of its output.
import { useState } from 'preact/hooks';

import { type Kernel, kernelPath, request } from './api';
import { type Action, Actions } from './dialogs';
import { gibibytes, number, since, time } from './format';

const LINES = 400; // of the output that is shown
const MOST = 32 << 20; // characters of the log that are read

export function Detail({ kernel: k, now, open, back }: { kernel: Kernel; now: number; open: (a: Action) => void; back: () => void }) {
  const facts: [string, string | undefined][] = [
    ['Id', k.id], ['Kernelspec', k.name], ['Owner', k.owner], ['State', k.execution_state], ['Reason', k.reason],
    ['Flavor', k.flavor], ['GPUs', k.gpus ? number(k.gpus) : undefined], ['Clients', String(k.connections)],
    ['Shared with', k.shared_with?.map(g => `${g.user ?? `group ${g.group}`} (${g.right})`).join(', ') || undefined],
  ];
  const times: [string, string | undefined][] = [['Started', k.created], ['Last activity', k.last_activity],
    ['Ends if unused', k.cull_at], ['Kept until', k.keep_until]];
  return <section aria-labelledby="detail">
    <p><button type="button" onClick={back}>All kernels</button></p>
    <h2 id="detail">Kernel {k.id.slice(0, 8)}</h2>
    <Actions kernel={k} open={open} />
    <dl>{facts.filter(f => f[1]).map(([name, text]) => [<dt key={name}>{name}</dt>, <dd key={`${name}.`}>{text}</dd>])}</dl>
    <h3>Times</h3>
    <ol>{times.filter(t => t[1]).sort((a, b) => a[1]! < b[1]! ? -1 : 1).map(([name, at]) =>
      <li key={name}>{name}: {time(at)}{Date.parse(at!) < now ? ` (${since(at!, now)} ago)` : ''}</li>)}</ol>
    {k.gpu?.map(g => <p key={g.uuid}>{g.model ?? 'GPU'} {g.uuid}: {gibibytes(g.memory_used)}
      {g.memory_total ? ` of ${gibibytes(g.memory_total)}` : ''}{g.busy_since ? `, busy since ${time(g.busy_since)}` : ''}
      {g.idle_since ? `, idle since ${time(g.idle_since)}` : ''}{g.error ? `, ${g.error}` : ''}</p>)}
    <Output id={k.id} />
  </section>;
}

function Output({ id }: { id: string }) {
  const [text, setText] = useState<string | undefined>();
  const [problem, setProblem] = useState('');
  const [working, setWorking] = useState(false);
  const load = async (): Promise<void> => {
    setWorking(true);
    setProblem('');
    try {
      setText(await readOutput(id));
    } catch (e) {
      setProblem(e instanceof Error ? e.message : String(e));
    } finally {
      setWorking(false);
    }
  };
  return <>
    <h3>Output</h3>
    <p><button type="button" disabled={working} onClick={load}>{text === undefined ? 'Show the output' : 'Read it again'}</button></p>
    <p class="bad notice" role="alert">{problem}</p>
    {text !== undefined && <pre tabIndex={0} aria-label="Output">{text || 'There is no output.'}</pre>}
  </>;
}

interface LogLine { channel?: string; lost?: number; header?: { msg_type?: string } | null; content?: Record<string, unknown> | null }

/** The text that one line of the log adds to the output. A kernel's message may have any content. */
export function outputOf(row: string): string {
  const { channel, lost, header, content } = JSON.parse(row) as LogLine;
  if (lost !== undefined) return `[${lost} messages are no longer kept]\n`;
  if (channel !== 'iopub' || !content) return '';
  switch (header?.msg_type) {
    case 'stream': return String(content.text ?? '');
    case 'execute_result': case 'display_data': {
      const data = (content.data ?? {}) as Record<string, unknown>;
      return `${String(data['text/plain'] ?? `<${Object.keys(data).join(', ')}>`)}\n`;
    }
    case 'error': return `${Array.isArray(content.traceback) ? content.traceback.join('\n') : String(content.evalue)}\n`;
    default: return '';
  }
}

async function readOutput(id: string): Promise<string> {
  const stop = new AbortController();
  const answer = await request(kernelPath(id, '/log'), { signal: stop.signal });
  const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '', lines: string[] = [''], size = 0, cut = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const rows = (rest + value).split('\n');
    rest = rows.pop()!;
    for (const row of rows) {
      if (!row) continue;
      const text = lines.pop() + outputOf(row).replace(/\x1b\[[0-9;]*[A-Za-z]/g, '');
      lines.push(...text.split('\n'));
      if (lines.length > LINES) { lines = lines.slice(-LINES); cut = '[earlier output is left out]\n'; }
    }
    if ((size += value.length) > MOST) {
      stop.abort();
      return `${cut}${lines.join('\n')}\n[the log is longer; read the rest with: ekg log ${id}]`;
    }
  }
  return cut + lines.join('\n').trimEnd();
}
