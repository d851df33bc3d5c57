// Unit tests of what needs no browser; e2e/testdata/browser/page.mjs tests the page itself.
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { type GPU, type GPUView, type Holder, type Kernel, problemOf, Refused, type UsageAnswer } from '../api';
import { Curve, describe, lines, type Sample, takeSamples, type Uses } from '../curve';
import { Detail } from '../detail';
import { actionsFor, readGrants } from '../dialogs';
import { span } from '../format';
import { aheadText, keptReady, parkedOn } from '../gpus';
import { endedRows } from '../history';
import { choose, moveBy, parkedText } from '../kernels';
import { outputOf, passes, type Place, readLog, Screen } from '../log';
import { parse } from '../stream';
import { parts } from '../timeline';
import { stack } from '../usage';

const kernel = (id: string, more: Partial<Kernel> = {}): Kernel => ({ id, name: 'python3',
  last_activity: '2026-01-02T03:04:05Z', execution_state: 'idle', connections: 0, created: '2026-01-02T03:04:05Z',
  ...more });

test('events are complete, whatever the pieces of the stream are', () => {
  const text = 'retry: 2000\n\nevent: reset\ndata: {}\n\n: alive\n\nevent: totals\ndata: {"kernels":1}\n\n';
  for (let size = 1; size <= text.length; size++) {
    const events: string[] = [];
    let rest = '';
    for (let at = 0; at < text.length; at += size) {
      rest = parse(rest + text.slice(at, at + size), (n, d) => events.push(n + d));
    }
    assert.deepEqual([rest, ...events], ['', 'reset{}', 'totals{"kernels":1}'], `pieces of ${size}`);
  }
});

test('kernels are searched by all words, filtered and ordered', () => {
  const all = [kernel('a', { owner: 'ann', connections: 2 }), kernel('b', { owner: 'bob', execution_state: 'busy' }),
    kernel('c', { owner: 'ann', flavor: 'big', connections: 2, job: { id: 'j', name: 'train', cell: 3, cells: 9 } })];
  const ids = (words: string, state = '', by = 0, down = false): string =>
    choose(all, words, state, by, down).map(k => k.id).join('');
  assert.equal(ids(''), 'abc');
  assert.equal(ids('', '', 0, true), 'cba');
  assert.equal(ids('ANN big'), 'c');
  assert.equal(ids('train, cell 3 of 9'), 'c');
  assert.equal(ids('ann', 'busy'), '');
  assert.equal(ids('', 'busy'), 'b');
  assert.equal(ids('', '', 8, true), 'acb', 'the same number of clients is ordered by id');
});

test('keys move between the rows of a list, and stay in it', () => {
  const to = (key: string, from = 5, rows = 10): number | undefined => moveBy(key, from, rows, 3);
  assert.deepEqual(['ArrowDown', 'ArrowUp', 'PageDown', 'PageUp', 'Home', 'End', 'Tab'].map(k => to(k)),
    [6, 4, 8, 2, 0, 9, undefined]);
  assert.deepEqual([to('ArrowUp', 0), to('PageDown', 8), to('End', -1, 0)], [0, 9, undefined]);
});

test('a failed request has plain words, and not those of a browser', () => {
  assert.equal(problemOf(new Refused(404, 'There is no such kernel.')), 'There is no such kernel.');
  const away = 'The gateway does not answer. The page tries again.';
  for (const e of [new TypeError('Failed to fetch'), new SyntaxError('Unexpected end'), 'network error']) {
    assert.equal(problemOf(e), away);
  }
});

const samplesOf = (u: Uses): Record<string, readonly Sample[]> => Object.fromEntries(u.of);

test('curves have a bound, gaps where use is not known, and end when there is nothing to show', () => {
  let uses: Uses = { at: 0, of: new Map() };
  const take = (seconds: number, ...gpu: GPU[]): Uses =>
    uses = takeSamples(uses, 1000 * seconds, new Map([['a', kernel('a', { gpu })]]), undefined);
  const gpu = (utilization: Sample, uuid = 'u'): GPU => ({ uuid, memory_used: 0, utilization });
  for (let i = 0; i < 300; i++) take(5 * i, gpu(i / 1000));
  const all = uses.of.get('kernel a u')!;
  assert.deepEqual([all.length, all[0], all.at(-1)], [120, 0.18, 0.299]);
  take(1500, gpu(null));
  take(1520.9, gpu(0.5)); // the clock was slow, as in a hidden tab
  assert.deepEqual(uses.of.get('kernel a u')!.slice(-6), [0.299, null, null, null, null, 0.5]);
  take(1e6);
  assert.deepEqual(samplesOf(uses), {}, 'after a long time nothing is known');
  const many = Array.from({ length: 100 }, (_, i) => gpu(0, String(i)));
  assert.equal(take(2e6, ...many).of.size, 16, 'a kernel invents GPUs');
  const crowd = new Map(Array.from({ length: 1000 }, (_, i) => [String(i), kernel(String(i), { gpu: many })]));
  uses = takeSamples(uses, 2e9 + 5000, crowd, undefined);
  assert.equal(uses.of.size, 8192);
});

test('the use of a device is that which its holders report', () => {
  const gpu = (uuid: string, utilization: Sample): GPU => ({ uuid, memory_used: 0, utilization });
  const kernels = new Map([['a', kernel('a', { gpu: [gpu('u0', 0.25), gpu('u1', null)] })],
    ['b', kernel('b', { gpu: [gpu('u0', 0.75), gpu('u2', 1)] })], ['c', kernel('c', { gpu: [gpu('CUDA 0', 0.5)] })],
    ['d', kernel('d', { gpu: [gpu('u2', 0.1)] })]]);
  const holder = (id: string, ...devices: number[]): Holder => ({ kernel: id, amount: devices.length, busy: 0,
    measured: 0, devices: Object.fromEntries(devices.map(d => [d, 1])) });
  const amounts = { total: 4, held: 4, measured: 0, busy: 0, unhealthy: 0 };
  const view = (...holders: Holder[]): GPUView => ({ totals: [], missing: [], nodes: [{ name: 'n', pools: [
    { ...amounts, resource: 'r', unit: 'GPU', others: 0, holders,
      devices: [0, 1, 2, 3].map(index => ({ index, uuid: `u${index}`, total: 1, held: 1 })) },
    { ...amounts, resource: 'whole', unit: 'GPU', others: 0, holders: [] }] }] });
  const uses = takeSamples({ at: 0, of: new Map() }, 1, kernels,
    view(holder('a', 0, 1), holder('b', 0), holder('c', 3)));
  const devices = Object.entries(samplesOf(uses)).filter(([key]) => !key.startsWith('kernel '));
  assert.deepEqual(devices, [['n r undefined 0', [0.75]], ['n r undefined 3', [0.5]]],
    'the highest of two; not those that no kernel holds or that are not measured');
  assert.equal(takeSamples(uses, 5001, new Map(), undefined).of.get('n r undefined 0')!.length, 2, 'the view is away');
});

test('a curve is a line, and words', () => {
  assert.deepEqual(lines([]), []);
  assert.deepEqual(lines([null, 2]), ['119,1.0 119,1.0'], 'a lone sample is a point within the frame');
  assert.deepEqual(lines([0, null, -5, 1]), ['116,31.0 116,31.0', '118,31.0 119,1.0']);
  assert.equal(describe([], null), 'use is not measured now');
  assert.equal(describe([], 0.6), '60 % busy now');
  assert.equal(describe([0.2, null, 0.6, 0.4], null),
    'use is not measured now; in the last 20 s 40 % on average, 60 % at most');
});

test('a kernel shows its GPUs, and no present use while the stream is not live', () => {
  const gpu = { uuid: 'u', memory_used: 0, utilization: 0.4 };
  const found = (live: boolean): unknown[] => {
    const curves: unknown[] = [];
    const walk = (v: any): void => {
      if (Array.isArray(v)) v.forEach(walk);
      else if (v?.type === Curve) curves.push([v.props.use, v.props.samples]);
      else if (v?.props) walk(v.props.children);
    };
    const uses = { at: 0, of: new Map([['kernel a u', [0.4]]]) };
    walk(Detail({ kernel: kernel('a', { gpu: [gpu] }), now: 0, live, uses, entered: false, open: () => {},
      back: () => {} }));
    return curves;
  };
  assert.deepEqual([found(true), found(false)], [[[0.4, [0.4]]], [[null, [0.4]]]]);
});

test('a kernel says in words what has become of its GPU, and a GPU how many kernels belong to it', () => {
  const since = '2026-01-02T03:04:05Z', now = Date.parse('2026-01-02T03:16:05Z');
  const text = (state: any, reason?: string): string => parkedText(kernel('a', { parked: { state, since, reason } }), now);
  assert.deepEqual(['parked', 'none', 'parking', 'waking', 'held', undefined].map(s => text(s)),
    ['GPU parked 12 min', 'GPU given back 12 min ago', 'gives its GPU back', 'gets its GPU again', '', '']);
  assert.equal(text('waking', 'another kernel has it'), 'waits for its GPU: another kernel has it');
  assert.equal(text('failed', 'several processes use CUDA'), 'keeps its GPU: several processes use CUDA');
  assert.equal(parkedText(kernel('a'), now), '');
  const on = (id: string, state: any, uuid: string): Kernel =>
    kernel(id, { parked: { state }, gpu: [{ uuid, memory_used: 0, utilization: null }] });
  assert.deepEqual([...parkedOn([on('a', 'parked', 'u0'), on('b', 'none', 'u0'), on('c', 'waking', 'u0'),
    on('d', 'held', 'u0'), on('e', 'failed', 'u1'), on('f', 'parking', 'u1'), kernel('g')])],
  [['u0', { parked: 2, wait: 1 }]]);
});

test('warm kernels are shown apart from what is held, with why some wait', () => {
  assert.deepEqual(keptReady({ warm: 1.5 }, 'GPU'), ['1.5 GPU by warm kernels']);
  assert.deepEqual(keptReady({ warm: 0 }, 'GPU'), []);
  assert.equal(aheadText({ kind: 'warm', kernelspec: 'torch', flavor: 'a100', wanted: 2, ready: 2, waiting: 0 }),
    'Warm kernels of kernelspec torch, flavor a100: 2 of 2 ready');
  assert.equal(aheadText({ kind: 'warm', kernelspec: 'jax', wanted: 3, ready: 1, waiting: 2, reason: 'no node' }),
    'Warm kernels of kernelspec jax: 1 of 3 ready, 2 of 3 wait for a node: no node');
  assert.equal(aheadText({ kind: 'warm', kernelspec: 'r', wanted: 1, ready: 0, waiting: 0, reason: 'it fails' }),
    'Warm kernels of kernelspec r: 0 of 1 ready: it fails');
});

test('kernels that have ended are those of the list that do not live again, and the dead ones', () => {
  const at = (minute: number): string => `2026-01-02T03:0${minute}:00.000000Z`;
  const ended = (id: string, ended_at: string) => ({ id, name: 'python3', owner: 'ann', reason: 'idle', ended_at });
  const list = [ended('culled', at(1)), ended('again', at(2)), ended('twice', at(3)), ended('once', at(4)),
    { ...kernel('ordinary') } as any];
  const dead = (id: string, minute: number, reason?: string): [string, Kernel] =>
    [id, kernel(id, { execution_state: 'dead', last_activity: at(minute), reason })];
  const live = new Map([['again', kernel('again')], dead('twice', 6, 'killed'), dead('once', 0), dead('new', 5)]);
  assert.deepEqual(endedRows(list, live).map(r => [r.id, r.name, r.at, r.reason]), [
    ['twice', 'python3', at(6), 'killed'], ['new', 'python3', at(5), ''], ['once', 'python3', at(4), 'idle'],
    ['culled', 'python3 of ann', at(1), 'idle']]);
});

test('grants are read line by line', () => {
  assert.deepEqual(readGrants(' user ann b read \n\ngroup team use'),
    [{ user: 'ann b', right: 'read' }, { group: 'team', right: 'use' }]);
  assert.throws(() => readGrants('user ann read\nuser bob write'), /Line 2 is not/);
});

test('actions are those of the viewer', () => {
  assert.deepEqual(actionsFor(kernel('a')), ['interrupt', 'restart', 'stop', 'keep']);
  assert.deepEqual(actionsFor(kernel('a', { owner: 'ann' })), ['interrupt', 'restart'], 'of another user');
  assert.deepEqual(actionsFor(kernel('a', { owner: 'ann', shared_with: [] })),
    ['interrupt', 'restart', 'stop', 'keep', 'share']);
  assert.deepEqual(actionsFor(kernel('a', { execution_state: 'dead' })), ['restart', 'stop']);
  const parked = { parked: { state: 'held' } } as const;
  assert.deepEqual(actionsFor(kernel('a', parked)), ['interrupt', 'restart', 'stop', 'keep', 'keep GPU']);
  assert.deepEqual(actionsFor(kernel('a', { ...parked, owner: 'ann' })), ['interrupt', 'restart'], 'of another user');
});

test('messages become text, whatever their content is', () => {
  const of = (type: string, content: Record<string, unknown> | null): string =>
    outputOf({ channel: 'iopub', header: { msg_type: type }, content });
  assert.equal(of('stream', { text: '<b>' }), '<b>');
  assert.equal(of('display_data', { data: { 'image/png': 'x', 'text/html': '<b>' } }), '<image/png, text/html>\n');
  assert.equal(of('execute_result', { data: { 'text/plain': ['a'] } }), 'a\n');
  assert.equal(of('error', { traceback: ['a', 'b'] }), 'a\nb\n');
  assert.equal(of('error', { traceback: 7, evalue: { x: 1 } }), '[object Object]\n');
  assert.equal(of('stream', null), '');
  assert.equal(of('status', { execution_state: 'idle' }), '');
  assert.equal(outputOf({ channel: 'shell', header: null, content: {} }), '');
  assert.equal(outputOf({ lost: 3 }), '[3 messages are no longer kept]\n');
});

test('a screen keeps the last lines, and a carriage return overwrites', () => {
  const screen = new Screen(3);
  screen.add('\x1b[31mred\x1b[0m\n10 %\r');
  assert.equal(screen.text(), 'red\n10 %');
  screen.add('20');
  screen.add(' %\r\nend');
  assert.equal(screen.text(), 'red\n20 %\nend');
  for (let i = 0; i < 10; i++) screen.add(`\n${i}`);
  assert.equal(screen.text(), '[earlier output is left out]\n7\n8\n9');
});

test('usage is stacked, and the last step counts as far as it is over', () => {
  const usage: UsageAnswer = { since: '2026-01-02T00:00:00Z', until: '2026-01-02T01:30:00Z', usage: [],
    steps: { seconds: 3600, groups: [
    { name: 'ann', kernel_seconds: [7200, 1800], held_seconds: [0, 0], busy_seconds: [0, 0] },
    { name: 'bob', kernel_seconds: [0, 900], held_seconds: [0, 0], busy_seconds: [0, 0] }] } };
  const begin = Date.parse(usage.since) / 1000;
  assert.deepEqual(stack(usage, usage.steps!.groups, 'kernel_seconds'), [[begin, begin + 3600], [2, 1], [2, 1.5]]);
});

test('a step of a timeline is full if the kernel was busy all the time, and the last one may go on', () => {
  const life = { since: '2026-01-02T00:00:00Z', until: '2026-01-02T00:00:21Z', events: [],
    events_dropped: 0, step_seconds: 8 };
  assert.deepEqual(parts({ ...life, busy_seconds: [8, 2, 5] }), [1, 0.25, 1]);
  assert.deepEqual(parts({ ...life, until: life.since, busy_seconds: [0] }), [0]);
});

test('lengths of time have one unit or two', () => {
  assert.deepEqual([-5, 59, 60, 3600, 90_000, 172_800].map(span),
    ['0 s', '59 s', '1 min', '1 h 0 min', '25 h 0 min', '2 days']);
});

/** Reads a log that the gateway sends in these pieces. Returns the text and where the reader is. */
async function readPieces(pieces: string[]): Promise<{ text: string; place: Place; cancelled: boolean }> {
  const globals = globalThis as any, saved = [globals.document, globals.sessionStorage, globals.fetch];
  const place = { log: '', after: 0 };
  let text = '', cancelled = false;
  globals.document = { baseURI: 'http://gateway/' };
  globals.sessionStorage = { getItem: () => null };
  globals.fetch = async () => new Response(new ReadableStream({
    pull: c => {
      const next = pieces.shift();
      if (next === undefined) c.close(); else c.enqueue(new TextEncoder().encode(next));
    },
    cancel: () => { cancelled = true; },
  }));
  try {
    await readLog('the-id', place, new AbortController().signal, more => { text += more; return true; });
  } catch (e) {
    await new Promise(setImmediate);
    throw Object.assign(e as Error, { place, cancelled });
  } finally {
    [globals.document, globals.sessionStorage, globals.fetch] = saved;
  }
  return { text, place, cancelled };
}

const row = (number: number, text: unknown): string =>
  `${JSON.stringify({ number, channel: 'iopub', header: { msg_type: 'stream' }, content: { text } })}\n`;

test('a log is read, whatever its pieces are', async () => {
  const all = `${row(1, 'a\n')}\n${row(2, 'b\n')}${row(3, 'c\n')}`;
  for (const size of [1, 7, 100, all.length]) {
    const { text, place } = await readPieces(all.match(new RegExp(`[^]{1,${size}}`, 'g'))!);
    assert.deepEqual([text, place.after], ['a\nb\nc\n', 3], `pieces of ${size}`);
  }
});

test('a message that would block the page ends the reading for good', async () => {
  const long = 'x'.repeat(1 << 20);
  const endless = [row(1, 'a\n'), '{"number":2,', ...Array<string>(300).fill(long)];
  const whole = [row(1, 'a\n'), row(2, long.repeat(9))];
  for (const [pieces, want] of [[endless, /^A message is too long for this page. Read it with: ekg log the-id$/],
    [whole, /too long/], [[row(1, 'a\n'), '{"number":\n'], /cannot be read/],
    [[row(1, 'a\n'), 'null\n'], /cannot be read/],
    [[row(1, 'a\n'), row(2, { toString: 1 })], /cannot be read/]] as [string[], RegExp][]) {
    await assert.rejects(readPieces(pieces), (e: any) => {
      assert.match(e.message, want);
      assert.deepEqual([passes(e), e.place.after, e.cancelled || !pieces.length], [false, 1, true]);
      return true;
    });
  }
  assert.ok(endless.length > 280); // the rest was not read
  assert.ok(passes(new TypeError('Failed to fetch')));
});

test('a line that grows is bounded', () => {
  const screen = new Screen(3);
  for (let i = 0; i < 100; i++) screen.add('x'.repeat(1000));
  screen.add('end');
  assert.equal(screen.text(), `[earlier output is left out]\n${'x'.repeat(19_997)}end`);
  screen.add(`\r${'y'.repeat(30_000)}`);
  assert.match(screen.text(), /\ny{20000}$/);
});
