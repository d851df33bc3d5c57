// A stand-in for a gateway with many kernels and GPUs, whose texts would run if the page parsed them as HTML.
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { join } from 'node:path';

import { URL } from '../js/checks.mjs';

const HOSTILE = process.env.EKG_HOSTILE;
const TYPES = { js: 'text/javascript', css: 'text/css', html: 'text/html' };
const DAY = 1.79e12; // ms
export const MANY = 5000;
export const NODES = 100, DEVICES = 8; // devices of a node, each of which a kernel holds

const time = ms => new Date(ms).toISOString();
const text = i => `${HOSTILE}&lt;b&gt;${'</script>'}${i}`;
const event = (name, data) => `event: ${name}\ndata: ${JSON.stringify(data)}\n\n`;

const idOf = i => `00000000-0000-4000-8000-${String(i).padStart(12, '0')}`;

/** The first kernels hold a device each, of which they use a part that depends on the device. */
const model = (i, state = i % 3 ? 'idle' : 'starting') => ({
  id: idOf(i), name: text('spec'), owner: text(i % 100), execution_state: state, connections: i % 4,
  created: time(DAY - i * 1000), last_activity: time(DAY), flavor: HOSTILE,
  ...(state === 'starting' && { reason: text(i) }),
  ...(i < NODES * DEVICES && { gpu: [{ uuid: `GPU-${i}`, memory_used: i, utilization: i % DEVICES / DEVICES }] }),
});

const node = n => {
  const kernels = Array.from({ length: DEVICES }, (_, d) => ({ index: d, i: n * DEVICES + d }));
  return { name: `${HOSTILE} ${n}`, pools: [{ resource: HOSTILE, unit: 'GPU', total: DEVICES, held: DEVICES,
    measured: DEVICES, busy: 3, unhealthy: 0, others: 1,
    holders: kernels.map(({ index, i }) =>
      ({ kernel: idOf(i), owner: HOSTILE, amount: 1, measured: 1, busy: 1, devices: { [index]: 1 } })),
    devices: kernels.map(({ index, i }) => ({ index, uuid: `GPU-${i}`, total: 1, held: 1 })) }] };
};

const answers = {
  api: { version: HOSTILE },
  'api/me': { identity: { name: HOSTILE } },
  'api/gpus': { totals: [], nodes: Array.from({ length: NODES }, (_, n) => node(n)), missing: [HOSTILE] },
  'api/gateways': [],
  'api/limits': [{ limit: 'kernels-per-user', of: HOSTILE, unit: 'kernel', most: 8, used: 3 }],
  'api/kernels?ended=1': [{ id: 'x'.repeat(36), name: HOSTILE, owner: HOSTILE, reason: HOSTILE, ended_at: time(0) }],
  'api/usage': { since: time(DAY), until: time(DAY + 7.2e6),
    usage: [{ name: HOSTILE, kernels: 1, held_seconds: 3600, measured_seconds: 10, busy_seconds: 5 }],
    steps: { seconds: 3600, groups: [
      { name: HOSTILE, kernel_seconds: [1800, 7200], held_seconds: [900, 3600], busy_seconds: [0, 5] }] } },
};

/** Serves the page with the gateway's own headers, and a stream in which 50 kernels change each second. */
export async function fakeGateway() {
  const policy = (await fetch(`${URL}/`, { headers: { Accept: 'text/html' } })).headers.get('content-security-policy');
  const timers = [];
  const server = createServer((request, response) => {
    const path = request.url.replace(/^\//, '');
    response.setHeader('Content-Security-Policy', policy);
    if (path === 'api/events') {
      response.setHeader('Content-Type', 'text/event-stream');
      let all = event('reset', {});
      for (let i = 0; i < MANY; i += 250) {
        all += event('kernels', { kernels: Array.from({ length: 250 }, (_, n) => model(i + n)), removed: [] });
      }
      response.write(all + event('complete', {}));
      let n = 0;
      timers.push(setInterval(() => response.write(event('kernels', { removed: [],
        kernels: Array.from({ length: 50 }, () => model(++n % MANY, 'busy')) }) + event('complete', {})), 1000));
    } else if (path.startsWith('api')) {
      response.setHeader('Content-Type', 'application/json');
      response.end(JSON.stringify(answers[path] ?? answers[path.split('?')[0]]));
    } else {
      const file = path.split('?')[0].replace('page/', '') || 'index.html';
      response.setHeader('Content-Type', TYPES[file.split('.').pop()]);
      response.end(readFileSync(join(process.env.EKG_BUILT, file)));
    }
  }).listen(0, '127.0.0.1');
  await new Promise(resolve => server.once('listening', resolve));
  return {
    url: `http://127.0.0.1:${server.address().port}/`,
    stop() {
      timers.forEach(clearInterval);
      server.closeAllConnections();
      server.close();
    },
  };
}
