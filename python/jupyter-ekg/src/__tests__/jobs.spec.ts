import assert from 'node:assert/strict';
import { test } from 'node:test';

import { jobOf, Jobs, nameJob } from '../jobs/following';
import { choiceAt, choices, extent, isOnEkg, nameOf, progress, show, submitted } from '../jobs/rest';
import type { IJob, IRun } from '../jobs/server';
import { Problem } from '../request';
import { FakeCell, FakePanel } from './fakes';

const code = (source: string | string[], more = {}): any => ({
  cell_type: 'code',
  source,
  metadata: {},
  outputs: ['old'],
  execution_count: 1,
  ...more
});
const text: any = { cell_type: 'markdown', source: '# Title', metadata: {} };
const notebook = (...cells: any[]): any => ({ nbformat: 4, nbformat_minor: 5, metadata: {}, cells });

const job = (more: Partial<IJob> = {}): IJob => ({
  id: '3f2a1b2c-0000-4000-8000-000000000000',
  name: 'train',
  state: 'running',
  cell: 2,
  cells: 5,
  then: 'keep',
  kernel_id: 'k1',
  ...more
});
const run = (more: Partial<IRun> = {}): IRun => ({
  code: 'a',
  count: 7,
  count_before: 3,
  outputs: [{ output_type: 'stream', name: 'stdout', text: ['1\n'] }],
  trusted: true,
  ...more
});

test('a job can begin with each cell with code that runs', () => {
  const all = choices(
    notebook(
      text,
      code(['\n', '  import os\n', 'x']),
      code('y', { metadata: { tags: ['skip-execution'] } }),
      code('z'.repeat(100)),
      text,
      code('')
    )
  );
  assert.deepEqual(all, [
    { number: 2, label: 'Cell 2: import os' },
    { number: 4, label: `Cell 4: ${'z'.repeat(59)}…` },
    { number: 6, label: 'Cell 6: empty' }
  ]);
  assert.deepEqual([1, 2, 3, 5, 7].map(number => choiceAt(all, number)?.number), [2, 2, 4, 6, 6]);
  assert.equal(choiceAt([], 1), undefined);
  assert.equal(extent(all, 2), '3 cells with code are run: cells 2 to 6.');
  assert.equal(extent(all, 6), '1 cell with code is run: cell 6.');
});

test('outputs that the job replaces are not submitted', () => {
  const whole = notebook(code('a'), text, code('b'));
  const { cells } = submitted(whole, 2);
  assert.deepEqual([cells[0], cells[1], cells[2]], [code('a'), text, code('b', { outputs: [] })]);
  assert.deepEqual(whole.cells[2].outputs, ['old']);
});

test('a cell is named by its id, since another one may have a number as its id', () => {
  assert.deepEqual([1, 2].map(number => nameOf(notebook(code('a', { id: '2' }), code('b', { id: 'x' })), number)), [
    '2',
    'x'
  ]);
  assert.equal(nameOf(notebook(code('a'), code('b')), 2), 2);
});

test('the command is for kernels of ekg', () => {
  const running: any[] = [{ id: 'a', created: '2026-01-02T12:00:00Z' }, { id: 'b' }];
  assert.deepEqual(['a', 'b', 'c'].map(id => isOnEkg(running, id)), [true, false, false]);
});

test('progress in words', () => {
  const says = (more: Partial<IJob>) => progress(job(more), 'train.ipynb').replace('Job 3f2a1b2c of train.ipynb ', '');
  assert.deepEqual(
    [
      { state: 'queued', reason: 'no GPU is free' },
      { state: 'running', cell: 0 },
      {},
      { state: 'succeeded' },
      { state: 'failed', reason: 'the kernel was restarted' },
      { state: 'stopped' },
      { state: 'starting' }
    ].map(says),
    [
      'is queued: no GPU is free',
      'is running.',
      'is running, cell 2 of 5.',
      'has succeeded.',
      'has failed: the kernel was restarted',
      'was stopped.',
      'is starting.'
    ]
  );
});

test('a cell that was changed or run since the submission keeps its output', () => {
  const own = [{ output_type: 'stream', name: 'stdout', text: 'own' }];
  const shows = (cell: FakeCell, made: IRun | undefined = run()) => {
    const shown = show(cell.model, made);
    return [shown, cell.executionCount, cell.trusted];
  };
  assert.deepEqual(shows(new FakeCell('c', 'a', own, 3)), [true, 7, true]); // as it was submitted
  assert.deepEqual(shows(new FakeCell('c', 'a', [], null), run({ trusted: false })), [true, 7, false]); // saved while it ran
  assert.deepEqual(shows(new FakeCell('c', 'a', [], 7)), [true, 7, true]); // has less of the same run
  assert.deepEqual(shows(new FakeCell('c', 'a', run().outputs, 7)), [false, 7, false]);
  assert.deepEqual(shows(new FakeCell('c', 'a', own, 8)), [false, 8, false]); // run since
  assert.deepEqual(shows(new FakeCell('c', 'a2', own, 3)), [false, 3, false]); // changed since
  assert.equal(show(new FakeCell('c', 'a').model, undefined), false);
  const running = new FakeCell('c', 'a', [], null);
  running.executionState = 'running';
  assert.deepEqual(shows(running), [false, null, false]);
});

/** A notebook that names the job, the states in which the job is read one after the other, and what its page shows. */
function followed(states: (IJob | Error)[], cells: FakeCell[], kernel: string) {
  const panel = new FakePanel(cells) as any;
  panel.context.path = 'work/train.ipynb';
  panel.sessionContext.session = { kernel: { id: kernel, status: 'idle' } };
  const metadata = new Map<string, any>();
  panel.content.model.getMetadata = (name: string) => metadata.get(name);
  panel.content.model.setMetadata = (name: string, value: any) => metadata.set(name, value);
  panel.content.model.deleteMetadata = (name: string) => metadata.delete(name);
  nameJob(panel, job().id);
  const said: any[] = [];
  const closed = new Set<string>();
  const connected: string[] = [];
  panel.sessionContext.changeKernel = async ({ id }: any) => void connected.push(id);
  let waited: number[] = [];
  const jobs = new Jobs({
    read: async () => {
      const next = states.shift()!;
      return next instanceof Error ? Promise.reject(next) : next;
    },
    runs: async () => ({ c1: run() }),
    connect: async id => void connected.push(id),
    notification: {
      emit: (message: string, type: any, { actions }: any = {}) => {
        said.push(['new', type, message, actions]);
        return 'n';
      },
      update: ({ id, message, type, actions }: any) => {
        said.push(['update', type, message, actions]);
        return !closed.has(id);
      }
    } as any,
    wait: async time => {
      waited.push(time);
      f.onWait(waited.length);
    }
  });
  const f = { panel, jobs, said, closed, connected, waited, metadata, onWait: (_waits: number): void => undefined };
  return f;
}

test('a notebook that was opened shows its job, its outputs, and its kernel', async () => {
  const cell = new FakeCell('c1', 'a', [], 3);
  const f = followed([job(), job(), job({ state: 'succeeded' })], [cell], 'another');
  await f.jobs.follow(f.panel, jobOf(f.panel)!);
  assert.deepEqual(
    f.said.map(([how, type, message, actions]) => [how, type, message, actions.map((a: any) => a.label)]),
    [
      ['new', 'in-progress', 'Job 3f2a1b2c of train.ipynb is running, cell 2 of 5.', ['Use its kernel']],
      ['update', 'success', 'Job 3f2a1b2c of train.ipynb has succeeded.', ['Use its kernel']]
    ]
  );
  assert.equal(cell.executionCount, 7);
  assert.equal(jobOf(f.panel), undefined);
  f.said[1][3][0].callback();
  await new Promise(resolve => setImmediate(resolve));
  assert.deepEqual(f.connected, [job().id, 'k1']);
});

test('outputs of the kernel to which a page is connected are left to the kernel while the job runs', async () => {
  const cell = new FakeCell('c1', 'a', [], 3);
  const f = followed([job(), new Problem('The job does not exist.', 404)], [cell], 'k1');
  await f.jobs.follow(f.panel, job().id);
  assert.equal(cell.executionCount, 3);
});

test('a job that has ended is followed until all its outputs are in the page', async () => {
  const cell = new FakeCell('c1', 'a', [], 3);
  cell.executionState = 'running'; // the connection to the kernel is away
  const end = job({ state: 'failed', reason: 'no' });
  const f = followed([job(), end, end], [cell], 'k1');
  f.closed.add('n');
  f.onWait = waits => {
    assert.equal(jobOf(f.panel), job().id);
    cell.executionState = waits === 2 ? 'idle' : cell.executionState;
  };
  await f.jobs.follow(f.panel, job().id);
  assert.equal(cell.executionCount, 7);
  assert.equal(jobOf(f.panel), undefined);
  assert.deepEqual(
    f.said.map(([how, type, , actions]) => [how, type, actions.length]),
    [['new', 'in-progress', 0], ['update', 'error', 0], ['new', 'error', 0]]
  );
});

test('a job that cannot be read is read again after growing pauses, and one that is gone is not', async () => {
  const away = () => new Problem('The gateway is away.', 503);
  const f = followed([away(), away(), job(), new Problem('The job does not exist.', 404)], [], 'another');
  await f.jobs.follow(f.panel, job().id);
  assert.deepEqual(f.waited, [10_000, 20_000, 5_000]);
  assert.equal(f.said.length, 1);
  assert.equal(jobOf(f.panel), job().id);
});
