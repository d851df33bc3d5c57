import assert from 'node:assert/strict';
import { mock, test } from 'node:test';

import { Ahead, LONG_PAUSE, PAUSE } from '../ahead';
import { settled } from './fakes';

test('one message for each kernel in ten seconds, and fewer about one that is not parked', async t => {
  mock.timers.enable({ apis: ['Date'] });
  t.after(() => mock.timers.reset());
  const sent: string[] = [];
  const ahead = new Ahead(async id => {
    sent.push(id);
    return id === 'fails' ? Promise.reject(new Error('away')) : id === 'parks';
  });
  /** Types for so many ms, and returns what was sent. */
  const types = async (ms: number) => {
    sent.length = 0;
    for (let at = 0; at < ms; at += 500) {
      ['parks', 'other', 'fails'].forEach(id => ahead.sign(id));
      await settled();
      mock.timers.tick(500);
    }
    const count = (id: string) => sent.filter(other => other === id).length;
    return [count('parks'), count('other'), count('fails')];
  };
  assert.deepEqual(await types(PAUSE), [1, 1, 1]);
  assert.deepEqual(await types(3 * PAUSE), [3, 0, 0]);
  assert.deepEqual(await types(LONG_PAUSE), [LONG_PAUSE / PAUSE, 1, 1]);
});

test('while no answer has come, nothing more is said', async t => {
  mock.timers.enable({ apis: ['Date'] });
  t.after(() => mock.timers.reset());
  let answer = (_: boolean) => {};
  let sent = 0;
  const ahead = new Ahead(() => {
    sent++;
    return new Promise(resolve => (answer = resolve));
  });
  ahead.sign('a');
  mock.timers.tick(LONG_PAUSE);
  ahead.sign('a');
  assert.equal(sent, 1);
  answer(true);
  await settled();
  ahead.sign('a');
  assert.equal(sent, 1);
  mock.timers.tick(PAUSE);
  ahead.sign('a');
  assert.equal(sent, 2);
});
