// Tests --compress-websockets with a page in Chromium that connects to the gateway itself, in both framings. The page
// reaches the gateway through a relay, which counts the bytes of each direction.
import { once } from 'node:events';
import { connect, createServer } from 'node:net';

import { check, equal, finish, KERNELS, rest, TOKEN, URL } from '../js/checks.mjs';
import { startChromium } from './lab.mjs';

const LINES = 20_000;
const CELL = `for i in range(${LINES}): print('step', i, 'loss 0.25 accuracy 0.75')`;
const WANT = Array.from({ length: LINES }, (_, i) => `step ${i} loss 0.25 accuracy 0.75\n`).join('');

/** Forwards TCP connections to the gateway. It adds a line to the head of each connection's first request. */
class Relay {
  static async start(line) {
    const relay = new Relay();
    relay.sent = relay.received = 0; // bytes of the page, and of the gateway
    const { hostname, port } = new globalThis.URL(URL);
    relay.server = createServer(page => {
      const gateway = connect(port, hostname);
      for (const socket of [page, gateway]) {
        socket.on('error', () => undefined);
        socket.on('close', () => [page, gateway].forEach(s => s.destroy()));
      }
      page.once('data', first => {
        relay.sent += first.length;
        gateway.write(first.toString('latin1').replace('\r\n', `\r\n${line}`), 'latin1');
        page.on('data', data => { relay.sent += data.length; });
        page.pipe(gateway);
      });
      gateway.on('data', data => { relay.received += data.length; });
      gateway.pipe(page);
    }).listen(0, '127.0.0.1');
    await once(relay.server, 'listening');
    relay.address = `127.0.0.1:${relay.server.address().port}`;
    return relay;
  }
}

/** In the page: runs a cell. Returns what it printed, and the extensions and the close of the websocket. */
function run({ address, kernel, token, code, subprotocol }) {
  const ws = new WebSocket(`ws://${address}/api/kernels/${kernel}/channels?token=${token}`, subprotocol ? [subprotocol] : []);
  ws.binaryType = 'arraybuffer';
  const header = {
    msg_id: crypto.randomUUID(), session: 'page', username: '', version: '5.3', msg_type: 'execute_request',
    date: new Date().toISOString(),
  };
  const content = { code, silent: false, store_history: false, allow_stdin: false, stop_on_error: true };
  const encode = () => {
    if (!subprotocol) {
      return JSON.stringify({ channel: 'shell', header, parent_header: {}, metadata: {}, content });
    }
    const parts = ['shell', ...[header, {}, {}, content].map(part => JSON.stringify(part))].map(s => new TextEncoder().encode(s));
    const size = 8 * (parts.length + 2), frame = new Uint8Array(parts.reduce((n, part) => n + part.length, size));
    const numbers = new DataView(frame.buffer);
    numbers.setBigUint64(0, BigInt(parts.length + 1), true);
    let at = size;
    parts.forEach((part, i) => {
      numbers.setBigUint64(8 * (i + 1), BigInt(at), true);
      frame.set(part, at);
      at += part.length;
    });
    numbers.setBigUint64(8 * (parts.length + 1), BigInt(at), true);
    return frame;
  };
  const decode = data => {
    if (typeof data === 'string') return JSON.parse(data);
    const numbers = new DataView(data);
    const offset = i => Number(numbers.getBigUint64(8 * (i + 1), true));
    const part = i => JSON.parse(new TextDecoder().decode(data.slice(offset(i), offset(i + 1))));
    return { header: part(1), parent_header: part(2), content: part(4) };
  };
  return new Promise((resolve, reject) => {
    let printed = '', replied = false, idle = false;
    ws.onopen = () => ws.send(encode());
    ws.onmessage = ({ data }) => {
      const m = decode(data);
      if (m.parent_header?.msg_id !== header.msg_id) return;
      if (m.header.msg_type === 'stream') printed += m.content.text;
      replied ||= m.header.msg_type === 'execute_reply' && m.content.status === 'ok';
      idle ||= m.content.execution_state === 'idle';
      if (replied && idle) ws.close();
    };
    ws.onerror = () => reject(new Error('the websocket failed'));
    ws.onclose = ({ code, wasClean }) =>
      resolve({ printed, extensions: ws.extensions, protocol: ws.protocol, close: `${code} ${wasClean}` });
  });
}

const near = await Relay.start('');
const far = await Relay.start('X-Forwarded-For: 192.0.2.1\r\n'); // as a proxy for a client of another machine
const browser = await startChromium();
const { id } = await rest('/api/kernels', { method: 'POST', body: JSON.stringify({ name: KERNELS[0] }) });

for (const subprotocol of ['', 'v1.kernel.websocket.jupyter.org']) {
  await check(`output arrives whole, in fewer bytes: ${subprotocol || 'JSON'}`, async () => {
    const bytes = {};
    for (const [name, relay] of Object.entries({ near, far })) {
      const context = await browser.newContext({ bypassCSP: true });
      const page = await context.newPage();
      await page.goto(`http://${relay.address}/api`); // a page of the websocket's origin, and of the same network
      relay.sent = relay.received = 0;
      const code = `${CELL}  # ${'a long comment '.repeat(5000)}`;
      const ran = await page.evaluate(run, { address: relay.address, kernel: id, token: TOKEN, code, subprotocol });
      equal(ran.printed.length, WANT.length, `${name}: characters`);
      equal(ran.printed === WANT, true, `${name}: the output is that of the cell`);
      equal(ran.extensions.startsWith('permessage-deflate'), name === 'far', `${name}: compressed ("${ran.extensions}")`);
      equal([ran.protocol, ran.close], [subprotocol, '1005 true'], `${name}: the subprotocol and the close`);
      bytes[name] = { sent: relay.sent, received: relay.received };
      await context.close();
    }
    console.log(JSON.stringify(bytes));
    for (const direction of ['sent', 'received']) {
      if (!(bytes.far[direction] < bytes.near[direction] / 3)) throw new Error(`${direction}: ${JSON.stringify(bytes)}`);
    }
  }, 40);
}

await rest(`/api/kernels/${id}`, { method: 'DELETE' });
await browser.close();
near.server.close();
far.server.close();
finish();
