import assert from 'node:assert/strict';
import { test } from 'node:test';

import { DuplicateFilter, hideDuplicates, MAX_REMEMBERED } from '../duplicates';
import { FakeKernel, stream } from './fakes';

test('a message is new once', () => {
  const filter = new DuplicateFilter();
  const [a, b] = [stream('a', 'r1'), stream('b', 'r1')];
  assert.deepEqual([a, b, a, b].map(msg => filter.isNew(msg)), [true, true, false, false]);
});

test('messages that were restored from the log are not new', () => {
  const msg = stream('a', 'r1');
  assert.equal(new DuplicateFilter([msg.header.msg_id]).isNew(msg), false);
});

test('the newest messages are remembered, and no more than the bound', () => {
  const filter = new DuplicateFilter();
  const all = Array.from({ length: MAX_REMEMBERED + 1 }, () => stream('a', 'r1'));
  for (const msg of all) {
    assert.equal(filter.isNew(msg), true);
  }
  assert.equal(filter.isNew(all[1]), false);
  assert.equal(filter.isNew(all[0]), true);
});

test('repeated messages of a request that this page sent are hidden', async () => {
  const kernel = new FakeKernel();
  hideDuplicates(kernel as any);
  const request = { header: { msg_id: 'r1', msg_type: 'execute_request' } } as any;
  kernel.anyMessage.emit({ msg: request, direction: 'send' });
  assert.equal(kernel.hooks.size, 0, 'hooks before JupyterLab has a future for the request');
  await Promise.resolve();
  const hook = kernel.hooks.get('r1')!;
  const msg = stream('a', 'r1');
  assert.deepEqual([hook(msg), hook(msg)], [true, false]);
});

test('other messages get no hook', async () => {
  const kernel = new FakeKernel();
  hideDuplicates(kernel as any);
  const message = (type: string) => ({ header: { msg_id: 'r1', msg_type: type } }) as any;
  kernel.anyMessage.emit({ msg: message('kernel_info_request'), direction: 'send' });
  kernel.anyMessage.emit({ msg: message('execute_request'), direction: 'recv' });
  await Promise.resolve();
  assert.equal(kernel.hooks.size, 0);
});

test('a connection that was disposed meanwhile gets no hook', async () => {
  const kernel = new FakeKernel();
  hideDuplicates(kernel as any);
  kernel.anyMessage.emit({ msg: { header: { msg_id: 'r1', msg_type: 'execute_request' } } as any, direction: 'send' });
  kernel.isDisposed = true;
  await Promise.resolve();
  assert.equal(kernel.hooks.size, 0);
});
