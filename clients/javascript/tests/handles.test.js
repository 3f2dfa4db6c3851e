// What an application has of a client, without a server or with one that answers as a test says.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import test from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { Client, Refused } from '../src/index.js';
import { asyncDispose } from '../src/handles.js';
import { FakeServer, WAIT, eventually } from './server.js';

const FAR = 'http://127.0.0.1:1'; // nothing listens there
const dispose = Symbol.dispose ?? Symbol.for('Symbol.dispose');
const timeout = WAIT;

/** Returns a client without a server, which ends with the test. */
function clientOf(t, options = {}, addresses = FAR) {
  const client = new Client(addresses, { onWarning: () => {}, ...options });
  t.after(() => client.close(0));
  return client;
}

/** Returns a server that grants each reservation and each hold. */
async function granting(t) {
  const fake = await FakeServer.start((method) => [200, {
    acquire: { permit: [{ decision: 'GRANTED', item: [{ granted: 5 }],
      hold: { id: 7, node: 'eu', waited: 0, expires_in: 60 },
      reservation: { id: 9, settle_within: 60 } }] },
    settle: { entry: [{ id: 9, item: [{ returned: 0, charged: 0 }] }] },
    release: { entry: [{ amount: [] }] } }[method]]);
  t.after(() => fake.stop());
  return fake;
}

const settlesOf = (fake) => fake.seen.filter(({ method }) => method === 'settle')
  .map(({ message }) => message.entry[0].item[0].cost);

test('units come in the order of the calls', async (t) => {
  const gauge = clientOf(t).gauge('g', { safeCapacity: 2 });
  assert.ok(gauge.tryUse(2));
  const order = [];
  const wait = async (units) => {
    assert.ok(await gauge.wait(units, { timeout }));
    order.push(units);
  };
  const waits = [wait(2), wait(1)];
  gauge.release(1);
  await sleep(500); // the second call must not overtake the first one
  gauge.release(1);
  await waits[0];
  gauge.release(2);
  await waits[1];
  assert.deepEqual(order, [2, 1]);
});

test('units that nobody waits for any more are not wanted', async (t) => {
  const gauge = clientOf(t).gauge('g', { window: 1 });
  const waits = gauge.wait(5, { timeout: 0.5 });
  await eventually(() => gauge.info().wants === 5, 'they are wanted');
  assert.equal(await waits, false);
  await eventually(() => gauge.info().wants === 0, 'they are not wanted any more');
});

test('a refused rate says in seconds when to try again', (t) => {
  const rate = clientOf(t).rate('r', { safeCapacity: 2 });
  while (rate.tryUse());
  assert.ok(rate.retryAfter() > 0 && rate.retryAfter() <= 0.5);
});

test('a signal that has aborted before sends nothing', async (t) => {
  const fake = await granting(t);
  const client = clientOf(t, {}, fake.url);
  const signal = AbortSignal.abort();
  for (const ask of [client.acquire('x', { signal }), client.hold('x', { signal }),
    client.reserve('x', { signal }), client.seize(7, { signal })]) {
    await assert.rejects(ask, { name: 'AbortError' });
  }
  assert.equal(fake.seen.length, 0);
});

test('the end of a block closes a rate, and releases a hold', async (t) => {
  const fake = await granting(t);
  const client = clientOf(t, {}, fake.url);
  const rate = client.rate('r', { safeCapacity: -1 });
  rate[dispose]();
  assert.equal(rate.tryUse(), false);
  for (const end of [dispose, asyncDispose]) {
    const hold = await client.hold('t', 'k', { timeout });
    assert.ok(hold.left() > 0);
    await hold[end]();
    assert.equal(hold.left(), 0);
  }
});

test('the end of a block settles a reservation once', async (t) => {
  const fake = await granting(t);
  const client = clientOf(t, {}, fake.url);
  const reservation = await client.reserve('llm', 'a', { cost: 5, timeout });
  reservation.cost = 3;
  await reservation[asyncDispose]();
  await reservation.settle(4);
  const other = await client.reserve('llm', 'a', { cost: 5, timeout });
  await other.settle(2, { timeout });
  assert.deepEqual(settlesOf(fake), [3, 2]);
});

test('a settle of a hold releases it', async (t) => {
  const fake = await granting(t);
  const client = clientOf(t, {}, fake.url);
  const hold = await client.hold('t', 'k', { cost: 5, settleWithin: 30, timeout });
  await hold.settle(3, { timeout });
  assert.equal(hold.left(), 0);
  assert.deepEqual(settlesOf(fake), [3]);
});

test('the metrics are those of all packages', async (t) => {
  const names = readFileSync(new URL('../../stories/metrics.txt', import.meta.url), 'utf8');
  const client = clientOf(t);
  client.rate('db', { wants: 1 });
  await eventually(() => /lease_failures_total [1-9]/.test(client.metrics()), 'a request fails');
  const seen = client.metrics().split('\n').filter((line) => line.startsWith('#'));
  assert.deepEqual(seen.sort(), names.trim().split('\n').sort());
});

test('a hold that only the fallback has granted never ends', async (t) => {
  const hold = await clientOf(t).hold('t', 'k');
  assert.deepEqual([hold.granted, hold.left()], [true, Infinity]);
});

test('wants that are set are in force', (t) => {
  const rate = clientOf(t).rate('r', { wants: 5 });
  rate.setWants(7);
  assert.equal(rate.info().wants, 7);
});

test('a settle has a cost for each item', async (t) => {
  const reservation = await clientOf(t).reserve('llm', 'a', { cost: 5 });
  await assert.rejects(reservation.settle([1, 2]), /costs: must have one cost for each item/);
});

test('a hold waits for a while longer than its units', async (t) => {
  const fake = await granting(t);
  const client = clientOf(t, {}, fake.url);
  await client.hold('t', 'k', { maxWait: 50 });
  assert.equal(fake.seen[0].message.permit[0].max_wait, 50);
});

test('the end of a block closes a client', async () => {
  const client = new Client(FAR, { onWarning: () => {} });
  await client[asyncDispose]();
  await assert.rejects(client.acquire('x'), /the client is closed/);
});

test('what was refused does not run', async (t) => {
  const client = clientOf(t, { permits: { fallback: 'closed' } });
  const never = () => assert.fail('it runs');
  for (const ask of [client.reserve('llm'), client.hold('t')]) {
    await assert.rejects((await ask).run(never), Refused);
  }
});
