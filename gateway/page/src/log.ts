// A kernel's log as text: which text each message adds, and a bounded screen of the last lines.
import { kernelPath, Refused, request } from './api';

const LOG = 'Ekg-Log'; // header with the log's name
const LONGEST = 8 << 20; // characters of a message as JSON. The gateway sends up to 256 MiB, which would block the tab
const LINE = 20_000; // characters of a line that are shown

interface Message { number: number; channel?: string; lost?: number; header?: { msg_type?: string } | null;
  content?: Record<string, unknown> | null }

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
    case 'error':
      return `${Array.isArray(content.traceback) ? content.traceback.join('\n') : String(content.evalue)}\n`;
    default: return '';
  }
}

/** The last lines of a text that grows, and the end of each. Like a terminal, it lets a carriage return overwrite the
 * line. It knows no colors. */
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
      const line = this.lines[this.lines.length - 1] + part;
      this.cut ||= line.length > LINE;
      this.lines[this.lines.length - 1] = line.slice(-LINE);
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

/** Reads a log from a place on, and follows it until the kernel has ended or the signal is aborted. It updates the
 * place with each message. take returns false to stop. An answer that breaks off is an error; read on from there. */
export async function readLog(id: string, place: Place, signal: AbortSignal,
  take: (text: string) => boolean): Promise<void> {
  const query = place.log ? `&after=${place.after}&log=${encodeURIComponent(place.log)}` : '';
  const answer = await request(kernelPath(id, `/log?follow=true${query}`), { signal });
  place.log = answer.headers.get(LOG) ?? '';
  const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
  try {
    let rest = '';
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const end = value.lastIndexOf('\n');
      const rows = end < 0 ? [] : (rest + value.slice(0, end)).split('\n');
      rest = end < 0 ? rest + value : value.slice(end + 1); // a long message is searched once, not with each piece
      if (rest.length > LONGEST || rows.some(row => row.length > LONGEST)) {
        throw new Unreadable(`A message is too long for this page. Read it with: ekg log ${id}`);
      }
      let text = '';
      for (const row of rows) {
        if (row) text += read(row, place); // an empty one shows that the answer lives
      }
      if (!take(text)) return;
    }
  } finally {
    void reader.cancel().catch(() => {}); // ends the request; it rejects if that has failed already
  }
}

/** The text that a row of the log adds. It moves the place behind the row. */
function read(row: string, place: Place): string {
  try {
    const message = JSON.parse(row) as Message;
    const text = outputOf(message);
    place.after = message.number;
    return text;
  } catch (e) {
    throw new Unreadable(`A message of the log cannot be read: ${(e as Error).message}`);
  }
}

/** A message that the page cannot show, now or later. */
export class Unreadable extends Error {}

/** Whether a log may be read again after this error: the gateway is away, and not the kernel, the right or a message
 * that can be read. */
export const passes = (e: unknown): boolean =>
  !(e instanceof Unreadable) && (!(e instanceof Refused) || e.status >= 500);
