import type * as nbformat from '@jupyterlab/nbformat';
import type { KernelMessage } from '@jupyterlab/services';

/** An output of the kernel's log. A display that may still be updated carries its display_id under `transient`. */
export type LoggedOutput = nbformat.IOutput & { transient?: { display_id?: string } };

/** Converts an iopub message to the output that a notebook stores. Returns undefined for a message without output. */
export function outputOf(msg: KernelMessage.IIOPubMessage): nbformat.IOutput | undefined {
  const content = msg.content as Record<string, any>;
  switch (msg.header.msg_type) {
    case 'stream':
      return { output_type: 'stream', name: content.name, text: content.text };
    case 'error':
      return {
        output_type: 'error',
        ename: content.ename,
        evalue: content.evalue,
        traceback: content.traceback
      };
    case 'display_data':
      return {
        output_type: 'display_data',
        data: content.data,
        metadata: content.metadata
      };
    case 'execute_result':
      return {
        output_type: 'execute_result',
        data: content.data,
        metadata: content.metadata,
        execution_count: content.execution_count
      };
    default:
      return undefined;
  }
}

/** The display_id of a display_data, execute_result or update_display_data message. */
export function displayIdOf(msg: KernelMessage.IIOPubMessage): string | undefined {
  const content = msg.content as { transient?: { display_id?: string } };
  return content.transient?.display_id;
}

/** Removes the display_id: a notebook does not store it. */
export function withoutTransient(output: LoggedOutput): nbformat.IOutput {
  const { transient, ...stored } = output;
  return stored as nbformat.IOutput;
}

/** Serializes outputs so that equal outputs give equal text: keys are sorted, split text is joined. */
export function canonical(outputs: readonly nbformat.IOutput[]): string {
  return JSON.stringify(outputs.map(output => sortKeys(joinText(withoutTransient(output)))));
}

function joinText(output: nbformat.IOutput): nbformat.IOutput {
  const joined: Record<string, any> = { ...output };
  if (output.text !== undefined) {
    joined.text = joinLines(output.text);
  }
  if (output.data !== undefined) {
    joined.data = Object.fromEntries(
      Object.entries(output.data as Record<string, unknown>).map(([mime, value]) => [
        mime,
        mime.startsWith('text/') ? joinLines(value) : value
      ])
    );
  }
  return joined as nbformat.IOutput;
}

function joinLines(text: unknown): unknown {
  return Array.isArray(text) ? text.join('') : text;
}

/** Returns the value with the keys of its objects sorted. */
export function sortKeys(value: unknown): unknown {
  if (Array.isArray(value)) {
    return value.map(sortKeys);
  }
  if (value === null || typeof value !== 'object') {
    return value;
  }
  const entries = Object.entries(value).sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));
  return Object.fromEntries(entries.map(([key, item]) => [key, sortKeys(item)]));
}
