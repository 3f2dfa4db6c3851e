// Many callers that wait for units, names that no server knows, and tokens that are none.

import assert from 'node:assert/strict';
import test from 'node:test';

import { Client } from '../src/index.js';
import { Server, WAIT, eventually, noServer } from './server.js';

const FAR = 'http://127.0.0.1:1'; // nothing listens there
const COUNT = 100;

/** Runs a function with a client, whose warnings it gets, and closes the client. */
async function withClient(address, options, work) {
  const warnings = [];
  const client = new Client(address, { onWarning: (text) => warnings.push(text), ...options });
  try {
    return await work(client, warnings);
  } finally {
    await client.close(0);
  }
}

test('a release wakes the first of those that wait, and not all of them', async (t) => {
  await withClient(FAR, {}, async (client) => {
    const gauge = client.gauge('g', { safeCapacity: 1 });
    let timers = 0;
    const before = globalThis.setTimeout;
    t.after(() => { globalThis.setTimeout = before; });
    globalThis.setTimeout = (...args) => {
      timers += 1; // each look of a caller that finds no units sets one
      return before(...args);
    };
    const work = () => gauge.use(() => new Promise((resolve) => { setImmediate(resolve); }),
      { timeout: WAIT });
    await Promise.all(Array.from({ length: COUNT }, work));
    assert.equal(gauge.info().allowed, COUNT);
    assert.ok(timers < 20 * COUNT, `${timers} timers`);
  });
});

test('callers take their turn when those before them give up', async () => {
  await withClient(FAR, {}, async (client) => {
    const gauge = client.gauge('g', { safeCapacity: 1 });
    const impossible = gauge.wait(2, { timeout: 0.2 });
    const abort = new AbortController();
    const aborted = gauge.wait(2, { signal: abort.signal });
    const possible = gauge.wait(1, { timeout: WAIT });
    assert.equal(await impossible, false);
    abort.abort();
    await assert.rejects(aborted, { name: 'AbortError' });
    assert.equal(await possible, true);
  });
});

test('one signal ends a crowd of waits, without a warning', { timeout: 10000 }, async (t) => {
  const warnings = [];
  const warn = (warning) => warnings.push(warning.name);
  process.on('warning', warn);
  t.after(() => process.off('warning', warn));
  await withClient(FAR, {}, async (client) => {
    const gauge = client.gauge('g', { safeCapacity: 0 });
    const abort = new AbortController();
    const { signal } = abort;
    const crowd = Array.from({ length: 50 }, (_, i) => (i % 2 ? gauge.wait(1, { signal })
      : client.acquire('x', { timeout: WAIT, signal })));
    const ends = Promise.allSettled(crowd);
    await new Promise((resolve) => { setImmediate(resolve); });
    abort.abort();
    for (const end of await ends) assert.equal(end.reason?.name, 'AbortError');
  });
  assert.deepEqual(warnings, []);
});

test('all that wait return when the client, or the gauge, closes', { timeout: 10000 }, async () => {
  for (const close of [(client) => client.close(0), (_, gauge) => gauge.close()]) {
    await withClient(FAR, {}, async (client) => {
      const gauge = client.gauge('g', { safeCapacity: 0 });
      const waits = Array.from({ length: 5 }, () => gauge.wait());
      await close(client, gauge);
      assert.deepEqual(await Promise.all(waits), Array(5).fill(false));
    });
  }
});

test('a lease that no server knows is warned of once', { skip: noServer }, async (t) => {
  const server = await Server.start();
  t.after(() => server.stop());
  await withClient(server.url, {}, async (client, warnings) => {
    const pools = [client.gauge('dbb/orders'), client.gauge('login')];
    for (const pool of pools) {
      assert.equal(await pool.wait(1, { timeout: 0.01 }), false);
      await eventually(() => pool.info().outcome === 'UNMATCHED', 'the server has answered');
    }
    pools[0].setWants(5); // it asks again
    assert.equal(await pools[0].wait(1, { timeout: 1 }), false);
    assert.equal(warnings.length, 2, warnings.join('\n'));
    assert.match(warnings[0], /^dbb\/orders: the servers have no capacity for this resource/);
  });
});

test('a function that returns no token is named, and what it returns is not', async () => {
  const secret = '0123456789abcdef';
  for (const token of [async () => secret, () => `${secret}\n`]) {
    await withClient(FAR, { token }, async (client, warnings) => {
      assert.equal((await client.acquire('x', { timeout: WAIT })).by, 'fallback');
      assert.match(warnings[0], /token: must be a string of ASCII/);
      assert.doesNotMatch(warnings.join(''), new RegExp(secret));
    });
  }
});
