import assert from 'node:assert/strict';
import { mock, test } from 'node:test';

import { Following, UNNEEDED_TIME } from '../panel/following';

test('a stream begins when it is needed, and ends when it was not needed for a while', t => {
  mock.timers.enable({ apis: ['setTimeout'] });
  t.after(() => mock.timers.reset());
  let needed = false;
  const signals: AbortSignal[] = [];
  const following = new Following(
    () => needed,
    async signal => void signals.push(signal)
  );
  const streams = () => signals.map(signal => (signal.aborted ? 'ended' : 'open'));
  const look = (now: boolean, time: number) => {
    needed = now;
    following.look();
    following.look(); // changes nothing
    mock.timers.tick(time);
  };
  look(false, UNNEEDED_TIME);
  assert.deepEqual([streams(), following.active], [[], false]);
  look(true, 10 * UNNEEDED_TIME);
  assert.deepEqual([streams(), following.active], [['open'], true]);
  look(false, UNNEEDED_TIME - 1);
  look(true, 1);
  look(false, UNNEEDED_TIME - 2);
  following.look(); // does not begin the time again
  mock.timers.tick(1);
  assert.deepEqual(streams(), ['open']);
  mock.timers.tick(1);
  assert.deepEqual([streams(), following.active], [['ended'], false]);
  look(true, 1);
  assert.deepEqual(streams(), ['ended', 'open']);
});
