import assert from 'node:assert/strict';
import { test } from 'node:test';

import type { Executions, IExecution } from '../log';
import { Restorer } from '../restorer';
import { execution, FakeCell, FakeKernel, FakePanel, FakeSignal, settled, status, stream } from './fakes';

/** An opened notebook whose kernel's log has these executions. */
function opened(cells: FakeCell[], executions: Executions, kernel: FakeKernel | null = new FakeKernel()) {
  const panel = new FakePanel(cells, kernel);
  const log = { executions, readings: [] as string[], next: Promise.resolve() };
  const executionScheduled = new FakeSignal<any>();
  const restorer = new Restorer(panel.panel, {
    fetchExecutions: async id => {
      log.readings.push(id);
      await log.next;
      return log.executions;
    },
    executionScheduled: executionScheduled as any
  });
  return { panel, log, restorer, executionScheduled, messages: panel.sessionContext.iopubMessage };
}

test('a cell that was executed after the last save gets its output and its count', async () => {
  const cells = [new FakeCell('c1', 'one'), new FakeCell('c2', 'two')];
  opened(cells, { c1: execution('one', 'a\n') });
  await settled();
  assert.deepEqual(cells.map(cell => [cell.text, cell.executionCount]), [['a\n', 7], ['', null]]);
  assert.equal(cells[0]!.trusted, true);
});

for (const trusted of [false, undefined]) {
  test(`outputs that another user may have caused are restored untrusted (${trusted})`, async () => {
    const cells = [new FakeCell('c1', 'one'), new FakeCell('c2', 'two'), new FakeCell('c3', 'three', [], 7)];
    cells.forEach(cell => (cell.trusted = true));
    opened(cells, {
      c1: execution('one', 'a\n', { trusted }),
      c2: execution('two', 'b\n', { trusted, msg_id: 'r2', running: true }),
      c3: execution('three', '', { trusted, msg_id: 'r3' })
    });
    await settled();
    assert.deepEqual(cells.map(cell => cell.text), ['a\n', 'b\n', '']);
    assert.deepEqual(cells.map(cell => cell.trusted), [false, false, true], 'the last cell was up to date');
  });
}

test('a running cell that another user may have caused is untrusted before its first output', async () => {
  const cell = new FakeCell('c1', 'one', [], 7);
  cell.trusted = true;
  opened([cell], { c1: execution('one', '', { trusted: false, running: true }) });
  await settled();
  assert.equal(cell.trusted, false);
});

test('the kernel is told once what a widget took while no page was open, and the widget shows it', async () => {
  const cell = new FakeCell('c1', 'one');
  const taken = [{ output_type: 'stream', name: 'stdout', text: 'taken\n' }];
  const kernel = new FakeKernel();
  const { log, restorer } = opened([cell], { c1: execution('one', 'taken\n', { widgets: { w1: taken } }) }, kernel);
  kernel.onMessage = () => (log.executions = { c1: execution('one', '') });
  await settled();
  await settled();
  assert.deepEqual(
    kernel.sent.map(({ header, content }) => [header.msg_type, header.session, content]),
    [
      [
        'comm_msg',
        'this-page',
        { comm_id: 'w1', data: { method: 'update', state: { outputs: taken }, buffer_paths: [] } }
      ]
    ]
  );
  assert.deepEqual([cell.text, cell.executionCount], ['', 7]);
  log.executions = { c1: execution('one', 'taken\n', { widgets: { w1: taken } }) }; // the kernel has not taken it
  await restorer.restore(false);
  assert.deepEqual([kernel.sent.length, cell.text], [1, 'taken\n']);
});

test('what is not trusted is not told the kernel, since widgets trust it', async () => {
  const cell = new FakeCell('c1', 'one');
  const kernel = new FakeKernel();
  opened([cell], { c1: execution('one', 'taken\n', { trusted: false, widgets: { w1: [] } }) }, kernel);
  await settled();
  assert.deepEqual([kernel.sent.length, cell.text], [0, 'taken\n']);
});

const OLD = [{ output_type: 'stream', name: 'stdout', text: 'old\n' }];

for (const [name, more, why] of [
  ['has another source', { code: 'two' }, 'its source was changed since it ran'],
  ['has a gap', { lost: 3, counts: [1, 7] }, 'the log has lost a part of its output'],
  ['has lost its beginning', { code: null, beginning_lost: true }, 'the log has lost a part of its output'],
  ['may be older', {}, 'the log has no run [1] of it, but only [7]']
] as const) {
  test(`a cell keeps its output where the log's run ${name}, and the user reads why`, async () => {
    const cell = new FakeCell('c1', 'one', OLD, 1);
    const { restorer } = opened([cell], { c1: execution('one', 'new\n', more as Partial<IExecution>) });
    await settled();
    assert.deepEqual(await restorer.restore(true), { changed: 0, kept: [`cell 1: ${why}`] });
    assert.equal(cell.text, 'old\n');
  });
}

test('a later run of the same session, and one that goes on, replace what the file has', async () => {
  const cells = [1, 2, 3].map(i => new FakeCell(`c${i}`, 'one', OLD, i === 3 ? null : 1));
  const { restorer } = opened(cells, {
    c1: execution('one', 'new\n', { counts: [1, 7] }),
    c2: execution('one', 'new\n', { msg_id: 'r2', running: true }),
    c3: execution('one', 'new\n', { msg_id: 'r3' })
  });
  await settled();
  assert.deepEqual(cells.map(cell => cell.text), ['new\n', 'new\n', 'new\n']);
  assert.deepEqual(await restorer.restore(true), { changed: 0, kept: [] });
});

test('what an Output widget took is shown with the cell when it has ended, as no page has told the kernel', async () => {
  const cell = new FakeCell('c1', 'one');
  const { log, messages } = opened([cell], { c1: execution('one', 'own\n', { running: true, takers: ['w1'] }) });
  await settled();
  messages.emit(stream('taken\n', 'r1'));
  assert.equal(cell.text, 'own\n');
  log.executions = { c1: execution('one', 'own\ntaken\n') };
  messages.emit(status('idle', 'r1'));
  await settled();
  assert.equal(cell.text, 'own\ntaken\n');
  assert.equal(log.readings.length, 2);
});

const other = [{ output_type: 'stream', name: 'stdout', text: 'other\n' }];
for (const [name, metadata, more, why] of [
  ['had other outputs', {}, {}, "the log's run [7] had other outputs"],
  ['may have had them', {}, { rewritten: true }, ''],
  ['began when the cell says', { 'iopub.execute_input': '2026-01-02T03:04:05.4Z' }, {}, ''],
  ['began later', { 'iopub.execute_input': '2026-01-01T00:00:00Z' }, {}, 'the log has no run of it that began at 2026-01-01T00:00:00.000Z']
] as const) {
  test(`run [7] of another session is told from the log's, which ${name}`, async () => {
    const cell = new FakeCell('c1', 'one', other, 7);
    cell.metadata = { execution: metadata };
    const begins = [Date.parse('2026-01-02T03:04:05Z') / 1000];
    const { restorer } = opened([cell], { c1: execution('one', 'new, longer\n', { begins, rewritten: false, ...more }) });
    await settled();
    assert.deepEqual((await restorer.restore(true)).kept, why ? [`cell 1: ${why}`] : []);
    assert.equal(cell.text, why ? 'other\n' : 'new, longer\n');
  });
}

test('more output of the same execution than the log has is kept', async () => {
  const cell = new FakeCell('c1', 'one', [{ output_type: 'stream', name: 'stdout', text: 'a\nb\n' }], 7);
  opened([cell], { c1: execution('one', 'a\n') });
  await settled();
  assert.equal(cell.text, 'a\nb\n');
});

test('a cell without output and number gets what the log still has', async () => {
  const cell = new FakeCell('c1', 'one');
  opened([cell], { c1: execution('one', 'z\n', { code: null, lost: 2, beginning_lost: true }) });
  await settled();
  assert.equal(cell.text, 'z\n');
});

test('a running cell goes on: held messages, new ones, then its end', async () => {
  const cell = new FakeCell('c1', 'one');
  const { panel, log, messages } = opened([cell], {});
  await settled();
  let answer = () => {};
  log.next = new Promise(resolve => (answer = resolve));
  const seen = stream('a\n', 'r1');
  log.executions = { c1: execution('one', 'a\n', { running: true, seen: [seen.header.msg_id] }) };
  panel.sessionContext.session = { kernel: new FakeKernel('k2') };
  panel.sessionContext.kernelChanged.emit({ newValue: panel.sessionContext.session.kernel });
  await settled();
  messages.emit(seen);
  messages.emit(stream('b\n', 'r1'));
  assert.equal(cell.text, '');
  answer();
  await settled();
  assert.equal(cell.text, 'a\nb\n');
  assert.deepEqual(panel.prompts, ['*']);
  messages.emit(stream('c\n', 'r1'));
  messages.emit(status('idle', 'r1'));
  messages.emit(stream('late\n', 'r1'));
  assert.deepEqual([cell.text, cell.executionCount, cell.executionState], ['a\nb\nc\n', 7, 'idle']);
});

test('the next cell that a closed page sent is followed when it starts', async () => {
  const cells = [new FakeCell('c1', 'one'), new FakeCell('c2', 'two')];
  const first = { c1: execution('one', '', { running: true }) };
  const { log, messages } = opened(cells, first);
  await settled();
  log.executions = { ...first, c2: execution('two', '', { msg_id: 'r2', running: true }) };
  messages.emit(status('idle', 'r1'));
  messages.emit(status('busy', 'r2'));
  await settled();
  messages.emit(stream('b\n', 'r2'));
  assert.equal(cells[1]!.text, 'b\n');
  const readings = log.readings.length;
  messages.emit(status('busy', 'r3', 'an unknown session'));
  await settled();
  assert.equal(log.readings.length, readings, 'readings after a request of an unknown session');
});

test('executions of this page are left to JupyterLab', async () => {
  const cells = [new FakeCell('c1', 'one'), new FakeCell('c2', 'two'), new FakeCell('c3', 'three')];
  cells[1]!.executionState = 'running';
  const { executionScheduled, messages } = opened(cells, {
    c1: execution('one', 'a\n', { running: true, session: 'this-page' }),
    c2: execution('two', 'b\n', { msg_id: 'r2' }),
    c3: execution('three', 'c\n', { msg_id: 'r3', running: true })
  });
  await settled();
  assert.deepEqual(cells.map(cell => cell.text), ['', '', 'c\n']);
  executionScheduled.emit({ cell: { model: cells[2] } });
  messages.emit(stream('d\n', 'r3'));
  assert.equal(cells[2]!.text, 'c\n', 'text of a cell that this page has executed meanwhile');
});

test('followed cells end when the kernel restarts', async () => {
  const cell = new FakeCell('c1', 'one');
  const { panel } = opened([cell], { c1: execution('one', 'a\n', { running: true }) });
  await settled();
  panel.sessionContext.statusChanged.emit('busy');
  assert.equal(cell.executionState, 'running');
  panel.sessionContext.statusChanged.emit('autorestarting');
  assert.equal(cell.executionState, 'idle');
});

test('the log of a kernel is read once on opening, and again for another kernel', async () => {
  const { panel, log } = opened([new FakeCell('c1', 'one')], {});
  await settled();
  panel.sessionContext.kernelChanged.emit({ newValue: panel.sessionContext.session!.kernel });
  await settled();
  assert.deepEqual(log.readings, ['k1']);
  panel.sessionContext.session = { kernel: new FakeKernel('k2') };
  panel.sessionContext.kernelChanged.emit({ newValue: panel.sessionContext.session.kernel });
  await settled();
  assert.deepEqual(log.readings, ['k1', 'k2']);
});

test('an answer for a kernel that was exchanged meanwhile is ignored', async () => {
  const cell = new FakeCell('c1', 'one');
  const { panel, log, restorer } = opened([cell], {});
  await settled();
  let answer = () => {};
  log.next = new Promise(resolve => (answer = resolve));
  log.executions = { c1: execution('one', 'a\n') };
  const changed = restorer.restore(true);
  await settled();
  panel.sessionContext.session = { kernel: new FakeKernel('k2') };
  answer();
  assert.equal((await changed).changed, 0);
  assert.equal(cell.text, '');
});

test('without a kernel, restoring is an error', async () => {
  const { restorer } = opened([], {}, null);
  await assert.rejects(restorer.restore(true), /The notebook has no kernel\./);
});

test('a failed reading does not stop the next', async () => {
  const cell = new FakeCell('c1', 'one');
  const { log, restorer } = opened([cell], {});
  await settled();
  log.next = Promise.reject(new Error('the log cannot be read'));
  await assert.rejects(restorer.restore(true), /the log cannot be read/);
  log.next = Promise.resolve();
  log.executions = { c1: execution('one', 'a\n') };
  assert.equal((await restorer.restore(true)).changed, 1);
});

test('a closed notebook leaves no slot connected', async () => {
  const { panel, restorer, executionScheduled } = opened([new FakeCell('c1', 'one')], {});
  await settled();
  panel.isDisposed = true;
  panel.disposed.emit();
  const { kernelChanged, iopubMessage, statusChanged } = panel.sessionContext;
  const signals = [kernelChanged, iopubMessage, statusChanged, executionScheduled];
  assert.deepEqual(signals.map(s => s.connected), [0, 0, 0, 0]);
  await assert.rejects(restorer.restore(true), /The notebook has no kernel\./);
});
