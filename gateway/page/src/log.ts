// A kernel's log as text: which text each message adds, and a bounded screen of the last lines.
import { kernelPath, Refused, request } from './api';

const LOG = 'Ekg-Log'; // header with the log's name

interface Message { number: number; channel?: string; lost?: number; header?: { msg_type?: string } | null; content?: Record<string, unknown> | null }

/** The text that a message adds to the output. A kernel's message may have any content. */
export function outputOf({ channel, lost, header, content }: Omit<Message, 'number'>): string {
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

/** The last lines of a text that grows. Like a terminal, it lets a carriage return overwrite the line, and knows no colors. */
export class Screen {
  private lines: string[] = [''];
  private cut = false;
  private returned = false; // the next character overwrites the last line
  constructor(private readonly most: number) {}

  add(text: string): void {
    for (const part of text.replace(/\x1b\[[0-9;?]*[A-Za-z]/g, '').split(/(\r\n|\n|\r)/)) {
      if (part === '') continue;
      if (part === '\r') { this.returned = true; continue; }
      if (part === '\n' || part === '\r\n') { this.lines.push(''); this.returned = false; continue; }
      if (this.returned) this.lines[this.lines.length - 1] = '';
      this.returned = false;
      this.lines[this.lines.length - 1] += part;
    }
    if (this.lines.length > 2 * this.most) this.trim();
  }

  private trim(): void {
    this.cut ||= this.lines.length > this.most;
    this.lines = this.lines.slice(-this.most);
  }

  text(): string {
    this.trim();
    return (this.cut ? '[earlier output is left out]\n' : '') + this.lines.join('\n');
  }
}

/** Where a reader of a log is. */
export interface Place { log: string; after: number }

/** Reads a log from a place on, and follows it until the kernel has ended or the signal is aborted. It updates the place
 * with each message. take returns false to stop. An answer that breaks off is an error; read on from the place. */
export async function readLog(id: string, place: Place, signal: AbortSignal, take: (text: string) => boolean): Promise<void> {
  const query = place.log ? `&after=${place.after}&log=${encodeURIComponent(place.log)}` : '';
  const answer = await request(kernelPath(id, `/log?follow=true${query}`), { signal });
  place.log = answer.headers.get(LOG) ?? '';
  const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const rows = (rest + value).split('\n');
    rest = rows.pop()!;
    let text = '';
    for (const row of rows) {
      if (!row) continue; // shows that the answer lives
      const message = JSON.parse(row) as Message;
      place.after = message.number;
      text += outputOf(message);
    }
    if (!take(text)) { await reader.cancel(); return; }
  }
}

/** Whether a log may be read again after this error: the gateway is away, and not the kernel or the right. */
export const passes = (e: unknown): boolean => !(e instanceof Refused) || e.status >= 500;
