import assert from 'node:assert/strict';
import { test } from 'node:test';

import { couldHave } from '../samerun';
import cases from './samerun.json';

/** An output in the short form of the cases, which the Python side reads, too. */
function output([kind, value]: any): any {
  if (kind === 'data') {
    return { output_type: 'display_data', data: value, metadata: {} };
  }
  return kind === 'error'
    ? { output_type: 'error', ename: 'E', evalue: value, traceback: [] }
    : { output_type: 'stream', name: kind, text: value };
}

for (const [name, run, saved, could] of cases as any) {
  test(`a run could have had in the file: ${name}`, () => {
    assert.equal(couldHave(run.map(output), saved.map(output)), could);
  });
}
