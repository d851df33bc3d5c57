import assert from 'node:assert/strict';
import { test } from 'node:test';

import { MAX_WAITING, Prompts } from '../prompts';
import { FakeCell, FakeKernel, FakePanel, status } from './fakes';

let numbers = 0;

function prompt(text: string, parent: string): any {
  return {
    header: { msg_id: `p${++numbers}`, msg_type: 'input_request' },
    parent_header: { msg_id: parent },
    content: { prompt: text, password: false }
  };
}

/** A page whose cells have output areas that record their prompts. */
function opened(...cells: FakeCell[]) {
  const kernel = new FakeKernel() as any;
  kernel.replies = [];
  kernel.sendInputReply = (content: any, parent: any) => kernel.replies.push([content.value, parent.msg_id]);
  const panel = new FakePanel(cells, kernel);
  const areas = cells.map(() => {
    const area: any = { widgets: [], asked: [] };
    area.onInputRequest = (msg: any, future: any) => {
      area.asked.push({ msg, future });
      const widget = { dispose: () => area.widgets.splice(area.widgets.indexOf(widget), 1) };
      area.widgets.push(widget);
    };
    return area;
  });
  panel.content.widgets = cells.map((model, i) => ({ model, outputArea: areas[i] }));
  const prompts = new Prompts(panel.panel);
  prompts.attach(kernel);
  const recv = (msg: any) => kernel.anyMessage.emit({ msg, direction: 'recv' });
  return { kernel, areas, prompts, recv };
}

test('a prompt that waits is shown when its cell is followed, and its answer is sent', () => {
  const [one, two] = [new FakeCell('c1', 'one'), new FakeCell('c2', 'two')];
  const { kernel, areas, prompts, recv } = opened(one, two);
  const waiting = prompt('Name?', 'r2');
  recv(waiting);
  assert.equal(areas[1].asked.length, 0);
  prompts.follow('r2', two.model);
  recv(waiting); // repeated by the server
  assert.deepEqual([areas[0].asked.length, areas[1].asked.length, kernel.hasPendingInput], [0, 1, true]);
  areas[1].asked[0].future.sendInputReply({ status: 'ok', value: 'Ann' }, waiting.header);
  assert.deepEqual(kernel.replies, [['Ann', waiting.header.msg_id]]);
});

test('the next prompt of a followed cell replaces the one that another page has answered', () => {
  const cell = new FakeCell('c1', 'one');
  const { areas, prompts, recv } = opened(cell);
  prompts.follow('r1', cell.model);
  recv(prompt('first', 'r1'));
  recv(prompt('second', 'r1'));
  assert.deepEqual(areas[0].asked.map((a: any) => a.msg.content.prompt), ['first', 'second']);
  assert.equal(areas[0].widgets.length, 1);
});

test('the end of a cell removes its prompt', () => {
  const cell = new FakeCell('c1', 'one');
  for (const how of ['idle', 'end', 'detach']) {
    const { kernel, areas, prompts, recv } = opened(cell);
    recv(prompt('before', 'r1'));
    prompts.follow('r1', cell.model);
    assert.equal(areas[0].widgets.length, 1);
    recv(status('busy', 'r1'));
    recv(status('idle', 'another'));
    assert.equal(areas[0].widgets.length, 1);
    if (how === 'idle') {
      recv(status('idle', 'r1'));
    } else if (how === 'end') {
      prompts.end('r1');
    } else {
      prompts.detach();
      assert.equal(kernel.anyMessage.connected, 0);
    }
    assert.deepEqual([areas[0].widgets.length, kernel.hasPendingInput], [0, false], how);
  }
});

test('a repeated prompt of a cell that this page executed reaches JupyterLab once', () => {
  const { areas, recv } = opened(new FakeCell('c1', 'one'));
  const shown: any[] = [];
  const future = { msg: { header: { msg_id: 'r1' } }, onStdin: (msg: any) => shown.push(msg) };
  areas[0].future = future;
  const [first, second] = [prompt('first', 'r1'), prompt('second', 'r1')];
  for (const msg of [first, first, second, first]) {
    recv(msg);
    future.onStdin(msg); // JupyterLab handles the message after the signal
  }
  assert.deepEqual(shown, [first, second]);
  assert.equal(areas[0].asked.length, 0);
});

test('prompts of cells that are not followed are bounded', () => {
  const cell = new FakeCell('c1', 'one');
  const { areas, prompts, recv } = opened(cell);
  for (let i = 0; i <= MAX_WAITING; i++) {
    recv(prompt('?', `r${i}`));
  }
  prompts.follow('r0', cell.model);
  prompts.follow(`r${MAX_WAITING}`, cell.model);
  assert.deepEqual(areas[0].asked.map((a: any) => a.msg.parent_header.msg_id), [`r${MAX_WAITING}`]);
});
