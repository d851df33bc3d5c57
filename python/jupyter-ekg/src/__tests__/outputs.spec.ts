import assert from 'node:assert/strict';
import { test } from 'node:test';

import { canonical, displayIdOf, outputOf, withoutTransient } from '../outputs';
import { iopub } from './fakes';

test('an iopub message becomes the output that a notebook stores', () => {
  assert.deepEqual(outputOf(iopub('stream', { name: 'stderr', text: 'a' }, 'r1')), {
    output_type: 'stream',
    name: 'stderr',
    text: 'a'
  });
  const error = { ename: 'E', evalue: 'v', traceback: ['t'] };
  assert.deepEqual(outputOf(iopub('error', { ...error, status: 'error' }, 'r1')), { output_type: 'error', ...error });
  const display = { data: { 'text/plain': 'x' }, metadata: { width: 1 } };
  assert.deepEqual(outputOf(iopub('display_data', { ...display, transient: { display_id: 'd' } }, 'r1')), {
    output_type: 'display_data',
    ...display
  });
  assert.deepEqual(outputOf(iopub('execute_result', { ...display, execution_count: 3 }, 'r1')), {
    output_type: 'execute_result',
    ...display,
    execution_count: 3
  });
});

test('a message without output becomes undefined', () => {
  for (const type of ['status', 'execute_input', 'clear_output', 'update_display_data', 'comm_msg']) {
    assert.equal(outputOf(iopub(type, {}, 'r1')), undefined, type);
  }
});

test('the display_id is read from a message and removed from an output', () => {
  assert.equal(displayIdOf(iopub('display_data', { transient: { display_id: 'd' } }, 'r1')), 'd');
  assert.equal(displayIdOf(iopub('display_data', {}, 'r1')), undefined);
  const output = { output_type: 'display_data', data: {}, metadata: {} };
  assert.deepEqual(withoutTransient({ ...output, transient: { display_id: 'd' } }), output);
});

test('equal outputs have the same canonical text', () => {
  const lines = [{ output_type: 'display_data', metadata: { b: 1, a: 2 }, data: { 'text/plain': ['a\n', 'b'] } }];
  const joined = [{ data: { 'text/plain': 'a\nb' }, output_type: 'display_data', metadata: { a: 2, b: 1 } }];
  assert.equal(canonical(lines), canonical(joined));
  const withId = [{ ...joined[0]!, transient: { display_id: 'd' } }];
  assert.equal(canonical(withId), canonical(joined));
});

test('different outputs have different canonical texts', () => {
  const stream = (text: string | string[]) => [{ output_type: 'stream', name: 'stdout', text }];
  assert.equal(canonical(stream(['a', 'b'])), canonical(stream('ab')));
  assert.notEqual(canonical(stream('ab')), canonical(stream('abc')));
  const json = (value: unknown) => [{ output_type: 'display_data', metadata: {}, data: { 'application/json': value } }];
  assert.notEqual(canonical(json(['a', 'b']) as any), canonical(json('ab') as any));
});
