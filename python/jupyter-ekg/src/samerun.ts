import type * as nbformat from '@jupyterlab/nbformat';

import { sortKeys } from './outputs';

/** Begins a line that no kernel has sent. */
const NOTICE = '[ekg] ';

/**
 * Whether the run that has these outputs can have had the saved ones: each line of text and each other output must be
 * one that the run had. So a cell may lack some, or have some twice. jupyter_ekg/samerun.py is the same rule for files.
 */
export function couldHave(run: readonly nbformat.IOutput[], saved: readonly nbformat.IOutput[]): boolean {
  const had = new Set<string>();
  const lines: string[] = [];
  for (const output of run) {
    const { pieces, last } = piecesOf(output);
    pieces.forEach(piece => had.add(piece));
    if (output.output_type === 'stream') {
      lines.push(...pieces, last);
    }
  }
  lines.sort(); // by UTF-16, as < compares
  return saved.map(piecesOf).every(
    ({ pieces, last }) =>
      pieces.every(piece => !piece || had.has(piece)) && (!last || someStarts(lines, last)) // saved within a line
  );
}

/** Whether one of the sorted lines starts with the text. */
function someStarts(lines: readonly string[], text: string): boolean {
  let [from, to] = [0, lines.length];
  while (from < to) {
    const middle = (from + to) >> 1;
    [from, to] = lines[middle]! < text ? [middle + 1, to] : [from, middle];
  }
  return lines[from]?.startsWith(text) ?? false;
}

/** An output as comparable texts, and the last line of a stream, which may go on. */
function piecesOf(output: nbformat.IOutput): { pieces: string[]; last: string } {
  if (output.output_type === 'stream') {
    const lines = joined(output.text ?? '').split('\n');
    const pieces = lines.map(line => (!line || line.startsWith(NOTICE) ? '' : `${output.name}:${line}`));
    return { pieces: pieces.slice(0, -1), last: pieces.at(-1)! };
  }
  if (output.output_type === 'error') {
    return { pieces: [`error:${output.ename}:${output.evalue}`], last: '' };
  }
  const data = Object.entries((output.data ?? {}) as Record<string, unknown>).map(
    ([mime, value]) => [mime, joined(value).replace(/\n+$/, '')] as const
  );
  if (data.length === 0 || data.some(([mime, text]) => mime === 'text/plain' && text.startsWith(NOTICE))) {
    return { pieces: [], last: '' };
  }
  return { pieces: [`data:${JSON.stringify(data.sort(([a], [b]) => (a < b ? -1 : 1)))}`], last: '' };
}

function joined(value: unknown): string {
  if (Array.isArray(value) && value.every(part => typeof part === 'string')) {
    return value.join('');
  }
  return typeof value === 'string' ? value : JSON.stringify(sortKeys(value));
}
