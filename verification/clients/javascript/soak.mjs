// What both JavaScript clients share: the protocol between a client's program and its runner.
// `ok NAME` reports a part that passed. `kill` asks for a SIGKILL of the node; a line on standard
// input reports that it runs again, with the same region.
import assert from 'node:assert/strict';
import { createInterface } from 'node:readline';

export const host = process.env.NEARSTATE_HOST;
export const port = Number(process.env.NEARSTATE_PORT);
export const sentinelPort = Number(process.env.NEARSTATE_SENTINEL_PORT);

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

export async function part(name, run) {
  await run();
  console.log(`ok ${name}`);
}

export async function kill() {
  console.log('kill');
  const { value } = await lines.next();
  assert.equal(value, 'restarted');
}

// Waits until a condition holds.
export async function until(what, condition) {
  const end = Date.now() + 30_000;
  for (;;) {
    if (await condition()) return;
    assert.ok(Date.now() < end, `${what}: 30 s`);
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
}
