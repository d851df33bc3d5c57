import assert from 'node:assert/strict';
import { test } from 'node:test';

import { addRestorers, COMMAND } from '../command';
import type { Executions } from '../log';
import { Problem } from '../request';
import { execution, FakeCell, FakePanel, FakeSignal, settled } from './fakes';

/** A front end with these notebooks, of which the first is the current one, and what the command left in it. */
function frontEnd(panels: FakePanel[], fetchExecutions: () => Promise<Executions>) {
  const commands = new Map<string, any>();
  const menuGroups: any[] = [];
  const paletteItems: any[] = [];
  const messages: string[] = [];
  const notify = (kind: string) => (text: string) => {
    messages.push(`${kind}: ${text}`);
    return '';
  };
  const tracker: any = {
    currentWidget: panels[0] ?? null,
    forEach: (fn: (panel: any) => void) => panels.forEach(fn),
    widgetAdded: new FakeSignal<any>()
  };
  addRestorers(
    {
      app: { commands: { addCommand: (id: string, options: any) => commands.set(id, options) } } as any,
      tracker,
      palette: { addItem: (item: any) => paletteItems.push(item) } as any,
      menu: { kernelMenu: { addGroup: (items: any[], rank: number) => menuGroups.push([items, rank]) } } as any,
      notification: { info: notify('info'), error: notify('error') }
    },
    { fetchExecutions }
  );
  return { command: commands.get(COMMAND), menuGroups, paletteItems, messages, tracker };
}

/** A cell that has more output of its run than the log: it is restored on request only. */
const full = (id: string, source = 'code') =>
  new FakeCell(id, source, [{ output_type: 'stream', name: 'stdout', text: 'much more\n' }], 7);

test('the command is in the Kernel menu and in the palette', () => {
  const { command, menuGroups, paletteItems } = frontEnd([], async () => ({}));
  assert.equal(command.label, 'Restore Outputs from Kernel');
  assert.deepEqual(menuGroups, [[[{ command: 'jupyter-ekg:restore-outputs' }], 40]]);
  assert.deepEqual(paletteItems, [{ command: 'jupyter-ekg:restore-outputs', category: 'Notebook Operations' }]);
});

test('the command is disabled without a notebook, and does nothing then', async () => {
  const { command, messages } = frontEnd([], async () => ({}));
  assert.equal(command.isEnabled(), false);
  await command.execute();
  assert.deepEqual(messages, []);
});

test('the command restores all cells of the current notebook and reports their number', async () => {
  const cells = [full('c1'), full('c2')];
  const other = full('c1');
  const executions = { c1: execution('code', 'a\n'), c2: execution('code', 'b\n', { msg_id: 'r2' }) };
  const { command, messages } = frontEnd([new FakePanel(cells), new FakePanel([other])], async () => executions);
  await settled();
  assert.equal(command.isEnabled(), true);
  await command.execute();
  assert.deepEqual(cells.map(cell => cell.text), ['a\n', 'b\n']);
  assert.equal(other.text, 'much more\n');
  cells[0]!.outputs.clear();
  await command.execute();
  await command.execute();
  assert.deepEqual(messages, [
    'info: The outputs of 2 cells were restored.',
    'info: The outputs of 1 cell were restored.',
    'info: All outputs are up to date.'
  ]);
});

test('the command names the cells that keep their output', async () => {
  const executions = { c1: execution('code', 'a\n'), c2: execution('code', 'b\n', { msg_id: 'r2' }) };
  const cells = [full('c1', 'other'), full('c2')];
  const { command, messages } = frontEnd([new FakePanel(cells)], async () => executions);
  await settled();
  await command.execute();
  await command.execute();
  const kept = 'Kept as in the notebook: cell 1: its source was changed since it ran.';
  assert.deepEqual(messages, [`info: The outputs of 1 cell were restored. ${kept}`, `info: ${kept}`]);
});

test('the command reports an error', async () => {
  const { command, messages } = frontEnd([new FakePanel([full('c1')])], () => Promise.reject(new Problem('no log')));
  await command.execute();
  assert.deepEqual(messages, ['error: The outputs cannot be restored: no log']);
});

test('notebooks that are opened later are restored, too', async () => {
  const { tracker } = frontEnd([], async () => ({ c1: execution('code', 'a\n') }));
  const cell = new FakeCell('c1', 'code');
  tracker.widgetAdded.emit(new FakePanel([cell]));
  await settled();
  assert.equal(cell.text, 'a\n');
});
