import assert from 'node:assert/strict';
import { test } from 'node:test';

import { ServerConnection } from '@jupyterlab/services';

import { Kernels, MAX_SAMPLES, useOf, type IKernelModel } from '../panel/kernels';
import { Problems } from '../panel/problems';
import { actionsOf, lists, MOST_ROWS, question, rowsOf } from '../panel/rows';
import { follow, parse, type Open } from '../panel/stream';
import * as texts from '../panel/texts';
import { countCells, Unsaved } from '../panel/unsaved';
import { explain, Problem } from '../request';
import { execution } from './fakes';

const NOW = Date.parse('2026-01-02T12:00:00Z');
const later = (minutes: number) => new Date(NOW + minutes * 60_000).toISOString();
const kernel = (more: Partial<IKernelModel> = {}): IKernelModel => ({
  id: '3f2a1b2c-0000-4000-8000-000000000000',
  name: 'python3',
  execution_state: 'idle',
  ...more
});
const gpu = (utilization: number | null, more = {}) => ({
  uuid: 'GPU-1',
  memory_used: 3 * 2 ** 30,
  utilization,
  ...more
});

test('an update counts when it is complete', () => {
  const kernels = new Kernels();
  let changes = 0;
  const stop = kernels.onChange(() => changes++);
  kernels.take('reset', { user: 'ann' });
  kernels.take('kernels', { kernels: [kernel({ id: 'a' }), kernel({ id: 'b' })], removed: [] });
  assert.deepEqual([kernels.loaded, kernels.all.size, changes], [false, 0, 0]);
  kernels.take('complete', {});
  assert.deepEqual([kernels.loaded, kernels.user, [...kernels.all.keys()], changes], [true, 'ann', ['a', 'b'], 1]);
  kernels.take('unavailable', { message: 'the gateway is away' });
  assert.deepEqual([kernels.problem, kernels.all.size, changes], ['the gateway is away', 2, 2]);
  kernels.take('kernels', { kernels: [], removed: ['a'] });
  kernels.take('complete', {});
  assert.deepEqual([kernels.problem, [...kernels.all.keys()]], ['', ['b']]);
  stop();
  kernels.fail('later');
  assert.equal(changes, 3);
});

test('samples of GPUs are bounded, have gaps, and go with their kernel', () => {
  const kernels = new Kernels();
  kernels.take('reset', {});
  const models = [kernel({ id: 'a', gpu: [gpu(0.5), gpu(null)] }), kernel({ id: 'b' })];
  kernels.take('kernels', { kernels: models, removed: [] });
  kernels.take('complete', {});
  for (let i = 0; i < MAX_SAMPLES + 5; i++) {
    kernels.sample(i);
  }
  kernels.fail('away');
  kernels.sample(100);
  assert.equal(kernels.history('a').length, MAX_SAMPLES);
  assert.deepEqual(kernels.history('a').slice(-2), [{ at: MAX_SAMPLES + 4, use: 0.5 }, { at: 100, use: null }]);
  assert.deepEqual(kernels.history('b'), []);
  kernels.take('kernels', { kernels: [], removed: ['a'] });
  kernels.take('complete', {});
  assert.deepEqual(kernels.history('a'), []);
  assert.equal(useOf([gpu(null)]), null);
});

test('events are parsed at any cut, and comments are skipped', () => {
  const text = ': alive\n\nevent: a\ndata: {"x":"\\n"}\n\nevent: b\ndata: {}\n\n';
  for (let cut = 0; cut <= text.length; cut++) {
    const events: string[] = [];
    const event = (name: string, data: string) => events.push(`${name} ${data}`);
    assert.equal(parse(parse(text.slice(0, cut), event) + text.slice(cut), event), '');
    assert.deepEqual(events, ['a {"x":"\\n"}', 'b {}']);
  }
});

test('the stream is opened again after an end and an error, until it is stopped', async () => {
  const kernels = new Kernels();
  const stop = new AbortController();
  const problems: string[] = [];
  kernels.onChange(() => problems.push(kernels.problem));
  let opened = 0;
  await follow(
    kernels,
    async () => {
      switch (++opened) {
        case 1:
          throw new Problem('The Jupyter server cannot be reached.');
        case 2:
          return new Response('event: reset\ndata: {}\n\nevent: complete\ndata: {}\n\n');
        default:
          stop.abort();
          throw new Error('stopped');
      }
    },
    stop.signal
  );
  assert.equal(opened, 3);
  assert.deepEqual(problems, [
    'The Jupyter server cannot be reached.',
    '',
    'The connection to the Jupyter server has ended.'
  ]);
});

test('rows: names, order and whose they are', () => {
  const uses: Record<string, any> = {
    a: { path: 'work/train.ipynb', name: 'x', type: 'notebook' },
    b: { path: 'console-1', name: 'y', type: 'console' }
  };
  const rows = rowsOf(
    [
      kernel({ created: later(3) }),
      kernel({ id: 'b', created: later(2) }),
      kernel({ id: 'a', owner: 'ann', shared_with: [], created: later(2) }),
      kernel({ id: 'c0000000', owner: 'bob', created: '2026-01-02T12:01:59.5Z' })
    ],
    'ann',
    id => uses[id],
    name => (name === 'python3' ? 'Python 3' : name)
  );
  assert.deepEqual(
    rows.map(row => [row.title, row.path, row.foreign, row.owned]),
    [
      ['Python 3, c0000000', undefined, true, false],
      ['train.ipynb', 'work/train.ipynb', false, true],
      ['console-1', undefined, false, true],
      ['Python 3, 3f2a1b2c', undefined, false, true]
    ]
  );
});

test('a row keeps its place when its session appears, and when its state changes', () => {
  const order = (uses: Record<string, any>, state: string) =>
    rowsOf(
      ['c', 'a', 'b'].map(id => kernel({ id, created: later(id === 'c' ? 1 : 2), execution_state: state })),
      '',
      id => uses[id],
      name => name
    ).map(row => row.kernel.id);
  assert.deepEqual(order({}, 'starting'), ['c', 'a', 'b']);
  assert.deepEqual(order({ a: { path: 'zz.ipynb', type: 'notebook' } }, 'idle'), ['c', 'a', 'b']);
});

test('at most so many rows are in the page, own ones first, and the filter finds the others', () => {
  const models = Array.from({ length: 2000 }, (_, i) =>
    kernel({
      id: `k${String(i).padStart(4, '0')}`,
      owner: i < 1960 ? `user${i % 10}` : 'ann',
      execution_state: i % 100 ? 'idle' : 'busy',
      shared_with: []
    })
  );
  const rows = rowsOf(
    models,
    'ann',
    id => (id === 'k1970' ? { path: 'Deep/Train.ipynb', name: '', type: 'notebook' } : undefined),
    name => name
  );
  const ids = (filter: string) => {
    const { own, foreign } = lists(rows, filter);
    return [own.rows.map(row => row.kernel.id), own.found, foreign.rows.map(row => row.kernel.id), foreign.found];
  };
  const { own, foreign } = lists(rows, '');
  assert.deepEqual([own.rows.length, own.all, foreign.rows.length, foreign.found], [40, 40, MOST_ROWS - 40, 1960]);
  assert.equal(foreign.rows[0]!.kernel.id, 'k0000');
  assert.deepEqual(ids(' deep  TRAIN '), [['k1970'], 1, [], 0]);
  assert.deepEqual(ids('user3 k1893'), [[], 0, ['k1893'], 1]);
  assert.equal(ids('BUSY')[3], 20);
  assert.deepEqual(ids('nothing'), [[], 0, [], 0]);
  assert.equal(lists(rows, '', 30).own.rows.length, 30);
  assert.equal(lists(rows, '', 30).foreign.rows.length, 0);
});

test('actions that the gateway would refuse are not offered', () => {
  const actions = (more: Partial<IKernelModel>) =>
    actionsOf(rowsOf([kernel(more)], 'ann', () => undefined, name => name)[0]!);
  assert.deepEqual(actions({}), ['interrupt', 'restart', 'shutdown', 'keep']);
  assert.deepEqual(actions({ execution_state: 'busy' }), ['interrupt', 'restart', 'shutdown', 'keep']);
  assert.deepEqual(actions({ cull_at: later(20) }), ['interrupt', 'restart', 'shutdown', 'keep']);
  assert.deepEqual(actions({ owner: 'ann', shared_with: [] }), ['interrupt', 'restart', 'shutdown', 'keep', 'share']);
  assert.deepEqual(actions({ owner: 'bob', cull_at: later(20) }), ['interrupt', 'restart']);
  assert.deepEqual(actions({ execution_state: 'starting' }), ['shutdown']);
  const parked = { parked: { state: 'held' } };
  assert.deepEqual(actions(parked), ['interrupt', 'restart', 'shutdown', 'keep', 'keepGPU']);
  assert.deepEqual(actions({ ...parked, owner: 'bob' }), ['interrupt', 'restart']);
  assert.deepEqual(actions({ ...parked, execution_state: 'dead' }), ['restart', 'shutdown']);
  assert.deepEqual(actions({ execution_state: 'dead' }), ['restart', 'shutdown']);
});

test('questions name what is lost', () => {
  const [row] = rowsOf([kernel()], '', () => undefined, name => name);
  assert.deepEqual(question('restart', row!), [
    'Restart the kernel of python3, 3f2a1b2c?',
    'All variables are lost, and the cell that runs now is ended.'
  ]);
  assert.match(question('shutdown', row!)[1], /All variables are lost, and output/);
  assert.match(question('shutdown', { ...row!, kernel: kernel({ execution_state: 'dead' }) })[0], /^Remove/);
});

test('a job in a kernel', () => {
  const job = (cell: number) => ({ job: { id: 'j', name: 'train', cell, cells: 5 } });
  const [row] = rowsOf([kernel(job(2))], '', () => undefined, name => name);
  assert.deepEqual([{}, job(0), job(2)].map(more => texts.job(kernel(more))), ['', 'Job train', 'Job train, cell 2 of 5']);
  assert.match(texts.details(row!.kernel, NOW), /^Job train, cell 2 of 5$/m);
  assert.match(question('restart', row!)[1], /ended\. The job train, which runs in it, may fail\.$/);
  assert.equal(lists([row!], 'TRAIN').own.found, 1);
});

test('times and amounts', () => {
  assert.deepEqual([30, 61, 20 * 60, 3700, 3 * 86_400, -5].map(texts.span), [
    '',
    '1 min',
    '20 min',
    '1 h 1 min',
    '3 days',
    ''
  ]);
  assert.equal(texts.state(kernel({ last_activity: later(-20) }), NOW), 'Idle for 20 min');
  assert.equal(texts.state(kernel({ execution_state: 'busy' }), NOW), 'Busy');
  assert.equal(texts.state(kernel({ execution_state: '<b>' }), NOW), '<b>');
  assert.match(texts.ending(kernel({ cull_at: later(1) }), NOW), /^Ends at \d+:\d+/);
  assert.match(texts.ending(kernel({ cull_at: later(60 * 48) }), NOW), /Jan/);
  assert.match(texts.ending(kernel({ cull_at: later(20), keep_until: later(60) }), NOW), /^Kept until/);
  assert.equal(texts.ending(kernel({ execution_state: 'dead', cull_at: later(20) }), NOW), '');
  assert.match(texts.local(`at most ${later(1)}.`, NOW), /^at most \d+:\d+[^TZ]*$/);
  assert.equal(texts.use([gpu(0.6), gpu(0.2)]), '40 %');
  assert.equal(texts.use([gpu(null)]), '? %');
  assert.equal(texts.memory([gpu(0, { memory_total: 15 * 2 ** 30 })]), '3 of 15 GiB');
  assert.equal(texts.models([gpu(0, { model: 'T4' }), gpu(0, { model: 'T4' }), gpu(0)]), '2 × T4, GPU');
});

test('a parked kernel says what has become of its GPU', () => {
  const of = (state?: string, reason?: string) => kernel({ gpus: 1, parked: { state, since: later(-12), reason } });
  assert.deepEqual(
    ['parked', 'none', 'parking', 'waking', 'held', undefined].map(state => texts.parked(of(state), NOW)),
    ['GPU parked 12 min', 'GPU given back 12 min ago', 'Gives its GPU back', 'Gets its GPU again', '', '']
  );
  assert.equal(texts.parked(of('waking', 'another kernel has it'), NOW), 'Waits for its GPU: another kernel has it');
  assert.equal(texts.parked(of('failed', 'several processes use CUDA'), NOW), 'Keeps its GPU: several processes use CUDA');
  assert.match(texts.summary(of('parked'), NOW), /^GPU parked 12 min · Idle/);
  assert.match(texts.summary(of('failed', 'its program'), NOW), /^GPU: 1 · Idle/);
  assert.match(texts.details(of('failed', 'its program'), NOW), /^Keeps its GPU: its program$/m);
  const kept = kernel({ parked: { state: 'held', keep_gpu_until: later(120) } });
  assert.match(texts.gpuKept(kept, NOW), /^GPU kept until \d+:\d+/);
  assert.match(texts.details(kept, NOW), /^GPU kept until \d+:\d+/m);
  assert.equal(texts.gpuKept(of('held'), NOW), '');
});

test('the status bar says what JupyterLab does not say itself', () => {
  assert.equal(texts.summary(kernel({ last_activity: later(-20) }), NOW), '');
  assert.equal(texts.summary(kernel({ execution_state: 'starting', reason: 'no GPU is free' }), NOW), 'Kernel waits');
  assert.match(
    texts.summary(kernel({ last_activity: later(-20), cull_at: later(40), gpu: [gpu(0.6)] }), NOW),
    /^GPU 60 % · Idle for 20 min · Ends at/
  );
  assert.match(texts.details(kernel({ execution_state: 'starting', reason: 'no GPU is free' }), NOW), /no GPU is free/);
});

test('a curve ends at the right, and unknown values leave a gap', () => {
  const at = (minutes: number, use: number | null) => ({ at: NOW - minutes * 60_000, use });
  const samples = [at(11, 1), at(5.1, 0), at(5, 1), at(4.9, null), at(4.8, 0.5), at(1, 2), at(0, 0.5)];
  assert.equal(texts.curve(samples, NOW, 100, 10), 'M49.0 10.0L50.0 0.0M52.0 5.0M90.0 0.0M100.0 5.0');
  assert.equal(texts.curve([], NOW, 100, 10), '');
});

const cell = (id: string, source: string | string[], execution_count: number | null): any => ({
  cell_type: 'code',
  id,
  source,
  execution_count,
  outputs: [],
  metadata: {}
});

test('cells whose output is not in the file are those that opening restores', () => {
  const notebook: any = {
    cells: [
      cell('ran', ['a\n', 'b'], null),
      cell('saved', 'c', 7),
      cell('edited', 'd2', null),
      cell('later', 'f', 3),
      cell('older', 'g', 9),
      cell('never', 'e', null)
    ]
  };
  const executions = {
    ran: execution('a\nb', ''),
    saved: execution('c', ''),
    edited: execution('d', ''),
    later: execution('f', '', { counts: [3, 7] }),
    older: execution('g', ''),
    gone: execution('h', '')
  };
  assert.equal(countCells(notebook, executions), 2);
  assert.equal(countCells(notebook, { later: execution('f', '', { counts: [3, 7], beginning_lost: true }) }), 0);
});

test('a log is read once for each activity and each time of the file', async () => {
  let reads = 0;
  let changes = 0;
  let saved: number | undefined = NOW;
  let ran = ['ran'];
  const unsaved = new Unsaved(
    {
      modified: async () => saved,
      notebook: async () => ({ cells: ran.map(id => cell(id, 'a', null)) }) as any,
      executions: async () => {
        reads++;
        return { ran: execution('a', ''), too: execution('a', '') };
      }
    },
    () => changes++
  );
  const rows = (activity: string, path = 'a.ipynb') =>
    rowsOf([kernel({ last_activity: activity })], '', () => ({ path, name: '', type: 'notebook' }), name => name);
  const { id } = kernel();
  const now = () => [unsaved.count(id), reads, changes];
  await unsaved.check(rows(later(-1)));
  assert.deepEqual(now(), [0, 0, 0]);
  await unsaved.check(rows(later(5)));
  await unsaved.check(rows(later(5)));
  assert.deepEqual(now(), [1, 1, 1]);
  [saved, ran] = [NOW + 60_000, ['ran', 'too']]; // another version of the file
  await unsaved.check(rows(later(5)));
  await unsaved.check(rows(later(5)));
  assert.deepEqual(now(), [2, 2, 2]);
  saved = NOW + 6 * 60_000; // saved after the activity
  await unsaved.check(rows(later(5)));
  assert.deepEqual(now(), [0, 2, 3]);
  await unsaved.check(rows(later(9)));
  assert.deepEqual(now(), [2, 3, 4]);
  saved = undefined; // no such file
  await unsaved.check(rows(later(9)));
  assert.deepEqual(now(), [0, 3, 5]);
  await unsaved.check([]);
  assert.equal(unsaved.count(id), 0);
});

test('a comparison that fails is repeated after growing pauses, and changes no count', async () => {
  let asked = 0;
  let fails = false;
  const unsaved = new Unsaved(
    {
      modified: async () => NOW,
      notebook: async () => ({ cells: [cell('ran', 'a', null)] }) as any,
      executions: async () => {
        asked++;
        return fails ? Promise.reject(new Error('away')) : { ran: execution('a', '') };
      }
    },
    () => undefined
  );
  const { id } = kernel();
  const check = (activity: number, path = 'a.ipynb') =>
    unsaved.check(
      rowsOf(
        [kernel({ last_activity: later(activity) })],
        '',
        () => ({ path, name: '', type: 'notebook' }),
        name => name
      )
    );
  await check(1);
  fails = true;
  const attempts: number[] = [];
  for (let look = 0; look < 120; look++) {
    const before = asked;
    await check(2);
    assert.equal(unsaved.count(id), 1);
    if (asked > before) {
      attempts.push(look);
    }
  }
  assert.deepEqual(attempts, [0, 2, 5, 10, 19, 36, 69, 102]);
  await check(2, 'renamed.ipynb'); // another file: nothing is known about it
  assert.equal(unsaved.count(id), 0);
  fails = false;
  await check(2, 'renamed.ipynb');
  await check(2, 'renamed.ipynb');
  assert.equal(unsaved.count(id), 1);
});

test('problems are plain sentences, and never a text of the browser', async () => {
  const failing: Open[] = [
    () => Promise.reject(new TypeError('Failed to fetch')),
    async () => new Response(new ReadableStream({ pull: stream => stream.error(new TypeError('network error')) })),
    async () => new Response('event: kernels\ndata: <html>\n\n'),
    async () => new Response('event: kernels\ndata: {}\n\n')
  ];
  const seen: string[] = [];
  for (const open of failing) {
    const kernels = new Kernels();
    const stop = new AbortController();
    kernels.onChange(() => {
      seen.push(kernels.problem);
      stop.abort();
    });
    await follow(kernels, open, stop.signal);
  }
  const ended = 'The connection to the Jupyter server has ended.';
  const unreadable = 'The answer of the Jupyter server cannot be read.';
  assert.deepEqual(seen, [ended, ended, unreadable, unreadable]);

  const { NetworkError, ResponseError } = ServerConnection;
  const refused = (status: number, message?: string) => new ResponseError(new Response('', { status }), message);
  assert.deepEqual(
    [
      new NetworkError(new TypeError('NetworkError when attempting to fetch resource.')),
      new TypeError('x is undefined'),
      new Error('Kernel 3f2a is disposed'),
      new Problem('The gateway says so.'),
      refused(403, 'You may only look at this kernel.'),
      refused(403, 'Forbidden'),
      refused(401),
      refused(502)
    ].map(explain),
    [
      'The Jupyter server cannot be reached.',
      unreadable,
      'It has failed.',
      'The gateway says so.',
      'You may only look at this kernel.',
      'The Jupyter server asks you to log in. Reload the page.',
      'The Jupyter server asks you to log in. Reload the page.',
      'The Jupyter server has answered with the error 502.'
    ]
  );
});

test('what failed on a kernel is forgotten with it', async () => {
  const problems = new Problems();
  await problems.attempt('a', () => Promise.reject(new Problem('It is of bob.')));
  problems.forget(id => id !== 'a');
  assert.equal(problems.of('a'), 'It is of bob.');
  problems.forget(id => id === 'a');
  assert.equal(problems.of('a'), '');
  await problems.attempt('b', () => Promise.reject(new Problem('It is of bob.')));
  await problems.attempt('b', async () => undefined);
  assert.equal(problems.of('b'), '');
});
