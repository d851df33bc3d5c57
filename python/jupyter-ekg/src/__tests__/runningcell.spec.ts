import assert from 'node:assert/strict';
import { test } from 'node:test';

import type { IExecution } from '../log';
import { RunningCell } from '../runningcell';
import { execution, FakeCell, FakePanel, iopub, status, stream } from './fakes';

/** A cell that runs, with the outputs that the log had. */
function running(more: Partial<IExecution> = {}) {
  const logged = execution('code', 'a\n', { running: true, ...more });
  const cell = new FakeCell('c1', 'code', logged.outputs.map(output => ({ ...output })));
  const panel = new FakePanel([cell]);
  let ended = 0;
  const follower = new RunningCell(cell.model, panel.panel, logged, () => ended++);
  return { cell, panel, follower, ended: () => ended };
}

test('the cell is shown as running until its request is idle', () => {
  const { cell, panel, follower, ended } = running();
  assert.equal(cell.executionState, 'running');
  assert.deepEqual(panel.prompts, ['*']);
  follower.handle(status('busy', 'r1'));
  assert.equal(ended(), 0);
  follower.handle(status('idle', 'r1'));
  assert.equal(ended(), 1);
  assert.equal(cell.executionState, 'idle');
  assert.equal(cell.executionCount, 7);
  assert.deepEqual(panel.prompts, ['7']);
});

test('output is appended as it arrives, and repeated messages are ignored', () => {
  const { cell, follower } = running();
  const b = stream('b\n', 'r1');
  for (const msg of [b, stream('c\n', 'r1'), b]) {
    follower.handle(msg);
  }
  assert.equal(cell.text, 'a\nb\nc\n');
});

test('messages that the log had are ignored', () => {
  const a = stream('a\n', 'r1');
  const { cell, follower } = running({ seen: [a.header.msg_id] });
  follower.handle(a);
  assert.equal(cell.text, 'a\n');
});

test('a display is updated in each of its places', () => {
  const display = (text: string) => ({ data: { 'text/plain': text }, metadata: {}, transient: { display_id: 'd' } });
  const { cell, follower } = running({ outputs: [{ output_type: 'display_data', ...display('1') }] });
  follower.handle(iopub('display_data', display('2'), 'r1'));
  follower.handle(iopub('update_display_data', display('3'), 'r1'));
  follower.handle(iopub('update_display_data', { ...display('4'), transient: { display_id: 'unknown' } }, 'r1'));
  assert.deepEqual(cell.outputs.list.map(output => output.data['text/plain']), ['3', '3']);
});

test('clear_output clears at once, or before the next output', () => {
  const { cell, follower } = running();
  follower.handle(iopub('clear_output', { wait: true }, 'r1'));
  assert.equal(cell.text, 'a\n');
  follower.handle(stream('b\n', 'r1'));
  assert.equal(cell.text, 'b\n');
  follower.handle(iopub('clear_output', { wait: false }, 'r1'));
  assert.equal(cell.text, '');
});

test('a clear_output that the log read last takes effect before the next output', () => {
  const { cell, follower } = running({ clear_next: true });
  assert.equal(cell.text, 'a\n');
  follower.handle(stream('b\n', 'r1'));
  assert.equal(cell.text, 'b\n');
});

test('displays before a clear_output are not updated', () => {
  const display = { data: { 'text/plain': '1' }, metadata: {}, transient: { display_id: 'd' } };
  const { cell, follower } = running({ outputs: [{ output_type: 'display_data', ...display }] });
  follower.handle(iopub('clear_output', { wait: false }, 'r1'));
  follower.handle(stream('b\n', 'r1'));
  follower.handle(iopub('update_display_data', display, 'r1'));
  assert.equal(cell.outputs.list[0].data, undefined);
});

/** The kernel's message that sets the msg_id of an Output widget. */
const aim = (comm: string, msg_id: string) =>
  iopub('comm_msg', { comm_id: comm, data: { method: 'update', state: { msg_id } } }, 'r1');
const clear = (wait: boolean) => iopub('clear_output', { wait }, 'r1');

test("what an Output widget takes is not the cell's, and clear_output in it clears no line of the cell", () => {
  const { cell, follower } = running();
  follower.handle(aim('w1', 'r1'));
  for (const msg of [clear(true), stream('round 1\n', 'r1'), clear(false), stream('round 2\n', 'r1')]) {
    follower.handle(msg);
  }
  assert.equal(cell.text, 'a\n');
  assert.equal(follower.captured, true);
  follower.handle(aim('w1', ''));
  follower.handle(stream('b\n', 'r1'));
  assert.equal(cell.text, 'a\nb\n');
});

test('widgets inside each other, and changes of others, take what JupyterLab gives them', () => {
  const { cell, follower } = running();
  follower.handle(stream('own\n', 'r1'));
  for (const msg of [aim('outer', 'r1'), aim('inner', 'r1'), aim('inner', ''), aim('slider', 'other')]) {
    follower.handle(msg);
    follower.handle(stream('taken\n', 'r1'));
  }
  follower.handle(iopub('comm_msg', { comm_id: 'outer', data: { method: 'update', state: { value: 1 } } }, 'r1'));
  follower.handle(stream('taken\n', 'r1'));
  follower.handle(aim('outer', ''));
  follower.handle(stream('own\n', 'r1'));
  assert.equal(cell.text, 'a\nown\nown\n');
});

test('a widget that took outputs when the log was read goes on', () => {
  const { cell, follower } = running({ takers: ['w1'], untold: true });
  assert.equal(follower.captured, true);
  follower.handle(stream('taken\n', 'r1'));
  follower.handle(aim('w1', ''));
  follower.handle(stream('b\n', 'r1'));
  assert.equal(cell.text, 'a\nb\n');
  assert.equal(running().follower.captured, false);
});

test('a cell that was deleted ends without being touched', () => {
  const { cell, follower, ended } = running();
  cell.isDisposed = true;
  follower.end();
  assert.equal(ended(), 1);
  assert.equal(cell.executionCount, null);
});
