// The client, with a real server and with a server that lies.

import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import os, { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { Client, Refused, TimedOut } from '../src/index.js';
import { asyncDispose } from '../src/handles.js';
import { FakeServer, Server, WAIT, eventually, noServer } from './server.js';

const FAR = 'http://127.0.0.1:1'; // nothing listens there
const timeout = WAIT;

/** Runs a function with a client, whose warnings it gets, and closes the client. */
async function withClient(addresses, options, work) {
  const warnings = [];
  const client = new Client(addresses, { onWarning: (text) => warnings.push(text), ...options });
  try {
    return await work(client, warnings);
  } finally {
    await client.close(0.5);
  }
}

test('with a server', { skip: noServer }, async (t) => {
  const server = await Server.start();
  t.after(() => server.stop());
  const run = (name, work) =>
    t.test(name, () => withClient([FAR, server.url], {}, work));

  await run('a rate gets a lease and gives it back', async (client) => {
    const rate = client.rate('db/orders', { wants: 50 });
    assert.ok(await rate.wait(5, { timeout }));
    await eventually(() => rate.info().leased, 'there is a lease');
    assert.equal(rate.info().capacity, 50);
    assert.ok(rate.info().allowed >= 5);
    await withClient(server.url, {}, async (other) => {
      const rest = other.rate('db/orders', { wants: 100 });
      await eventually(() => rest.info().leased, 'there is another lease');
      assert.ok(rest.info().capacity <= 50);
      rate.close();
      assert.equal(rate.tryUse(), false);
      await eventually(() => rest.info().capacity === 100, 'the other client gets the rest');
    });
  });

  await run('the wants of a rate follow its use', async (client) => {
    const rate = client.rate('db/follows');
    await eventually(() => {
      while (rate.tryUse());
      return rate.info().capacity > 2;
    }, 'the lease grows');
    assert.ok(rate.retryAfter() > 0);
  });

  await run('a gauge limits what is in use', async (client) => {
    const gauge = client.gauge('conn');
    const result = await gauge.use(async () => {
      assert.equal(gauge.info().inUse, 2);
      assert.ok(await gauge.wait(1, { timeout }));
      assert.equal(await gauge.wait(1, { timeout: 0.05 }), false);
      const late = gauge.use(() => assert.fail('it has no unit'), { timeout: 0.05 });
      await assert.rejects(late, TimedOut);
      await assert.rejects(gauge.wait(1, { signal: AbortSignal.timeout(20) }),
        { name: 'TimeoutError' });
      gauge.release();
      return 'done';
    }, { units: 2, timeout });
    assert.equal(result, 'done');
    assert.equal(gauge.info().inUse, 0);
    assert.throws(() => gauge.release(), RangeError);
  });

  await run('permits are granted and refused', async (client) => {
    const first = await client.acquire('login', 'alice', { cost: 4, timeout, detail: true });
    assert.deepEqual([first.granted, first.by, first.limit, first.quota],
      [true, 'server', 'per-user', 5]);
    const second = await client.acquire('login', 'alice', { cost: 4, timeout });
    assert.deepEqual([second.granted, second.reason], [false, 'RATE']);
    assert.ok(second.retryAfter > 1);
    const items = [{ resourceId: 'login', key: 'alice', cost: 3, min: 1 }, { resourceId: 'llm' }];
    assert.deepEqual((await client.acquire(items, { timeout })).units, [1, 1]);
    assert.match(client.metrics(), /^doorman_client_permits_granted_total 2$/m);
  });

  await run('many callers share a client', async (client) => {
    const calls = Array.from({ length: 20 }, () => client.acquire('login', 'crowd', { timeout }));
    const decisions = await Promise.all(calls);
    assert.equal(decisions.filter((decision) => decision.granted).length, 5);
    assert.ok(client.counts().messages < 20);
  });

  await run('a hold is released and waited for', async (client) => {
    let waited;
    const first = await client.hold('transcode', 'acme', { cost: 2, timeout });
    await first.run(async (hold) => {
      assert.ok(hold.left() > 1);
      assert.deepEqual(hold.units(), [2]);
      const refused = await client.hold('transcode', 'b', { timeout });
      await assert.rejects(refused.run(() => {}), (error) => error instanceof Refused &&
        error.decision.reason === 'CONCURRENCY');
      waited = client.hold('transcode', 'b', { maxWait: 50, timeout });
      await sleep(50);
      assert.equal((await client.acquire('login', 'dave', { timeout })).by, 'server');
    });
    const hold = await waited;
    assert.ok(hold.granted);
    const moved = await hold.transfer({ timeout });
    assert.ok(moved.granted);
    const seized = await client.seize(moved.transferId, { timeout });
    assert.deepEqual(seized.units(), [1]);
    assert.equal(hold.left(), 0);
    await seized[asyncDispose]();
    await eventually(() => client.counts().holds === 0, 'all holds are released');
  });

  await run('a wait for a hold that is aborted gives up its place', async (client) => {
    const first = await client.hold('transcode', 'acme', { cost: 2, timeout });
    const abort = new AbortController();
    const queued = client.hold('transcode', 'c', { maxWait: 50, timeout, signal: abort.signal });
    await sleep(50);
    abort.abort();
    await assert.rejects(queued, { name: 'AbortError' });
    first.release();
    const second = await client.hold('transcode', 'd', { cost: 2, maxWait: 50, timeout });
    await second.run(() => {}); // what was aborted does not stay taken
  });

  await run('a hold with settleWithin is settled and released', async (client) => {
    const items = [{ resourceId: 'llm', key: 'held', cost: 6 }, { resourceId: 'transcode' }];
    const hold = await client.hold(items, { settleWithin: 60, timeout });
    const settled = await hold.settle([1, 1], { timeout });
    assert.deepEqual([settled.granted, settled.units[0]], [true, -5]);
    assert.equal(await hold.settle([9, 9]), undefined);
    assert.equal(hold.left(), 0);
    await eventually(() => client.counts().holds === 0, 'the hold is released');
    const after = await client.acquire('llm', 'held', { cost: 0, timeout });
    assert.equal(after.remaining, 9);
  });

  await run('a reservation is settled', async (client) => {
    const first = await client.reserve('llm', 'acme', { cost: 6, timeout });
    await first.run((reservation) => {
      reservation.cost = 1;
    });
    const second = await client.reserve('llm', 'acme', { cost: 3, timeout });
    await assert.rejects(second.run((reservation) => {
      reservation.cost = 0;
      throw new RangeError('of the application');
    }), /of the application/);
    await eventually(() => client.counts().settled === 2, 'both are settled');
    assert.ok((await client.acquire('llm', 'acme', { cost: 6, timeout })).granted);
    assert.equal((await client.acquire('llm', 'acme', { timeout })).granted, false);
    client.report('llm', 'acme', 1);
    await eventually(() => client.counts().reported === 1, 'the report is answered');
    const third = await client.reserve('llm', 'other', { cost: 6, timeout });
    const settled = await third.settle(2, { timeout });
    assert.deepEqual([settled.granted, settled.units], [true, [-4]]);
  });
});

test('a client outlives a crash of the server', { skip: noServer }, async (t) => {
  const server = await Server.start();
  t.after(() => server.stop());
  await withClient(server.url, { permits: { fallback: 'closed' } }, async (client, warnings) => {
    const rate = client.rate('db/crash', { wants: 10 });
    await eventually(() => rate.info().leased, 'there is a lease');
    assert.equal((await client.acquire('login', 'a', { timeout })).by, 'server');
    await server.crash();
    assert.equal((await client.acquire('login', 'a', { timeout })).by, 'fallback');
    assert.ok(warnings.length);
    assert.ok(rate.info().leased);
    server.startAt(new URL(server.url).host);
    let by;
    for (const end = performance.now() + WAIT * 1000; by !== 'server'; await sleep(50)) {
      assert.ok(performance.now() < end, 'the server decides again');
      ({ by } = await client.acquire('login', 'b', { timeout: 1 }));
    }
    const hold = await client.hold('transcode', { timeout });
    await hold.run(() => assert.ok(hold.left() > 1));
  });
});

test('a token is sent, and a wrong one is refused', { skip: noServer }, async (t) => {
  const token = '0123456789abcdef0123456789abcdef';
  const server = await Server.start({ flags: ['--http-token', 'tokens'],
    files: { tokens: `write me ${token}\n` } });
  t.after(() => server.stop());
  await withClient(server.url, { token: () => token }, async (client) => {
    assert.equal((await client.acquire('login', 'a', { timeout })).by, 'server');
  });
  const wrong = { token: `wrong${token}`, permits: { fallback: 'closed' } };
  await withClient(server.url, wrong, async (client, warnings) => {
    assert.equal((await client.acquire('login', 'a', { timeout })).by, 'fallback');
    assert.match(warnings.join('\n'), /UNAUTHENTICATED/);
  });
});

const noOpenssl = spawnSync('openssl', ['version']).error ? 'there is no openssl' : false;

/** Makes a key and a certificate. Returns their paths. */
function makeCertificate(folder, name) {
  const [key, certificate] = [join(folder, `${name}_key.pem`), join(folder, `${name}.pem`)];
  execFileSync('openssl', ['req', '-x509', '-newkey', 'ec', '-pkeyopt',
    'ec_paramgen_curve:P-256', '-nodes', '-keyout', key, '-out', certificate, '-days', '2',
    '-subj', '/CN=doorman', '-addext', 'subjectAltName=IP:127.0.0.1'], { stdio: 'ignore' });
  return [key, certificate];
}

test('only a server with a known certificate is asked', { skip: noServer || noOpenssl },
  async (t) => {
    const folder = mkdtempSync(join(tmpdir(), 'doorman-'));
    t.after(() => rmSync(folder, { recursive: true }));
    const [key, certificate] = makeCertificate(folder, 'own');
    const [, other] = makeCertificate(folder, 'other');
    const server = await Server.start({ flags: ['--tls-cert', certificate, '--tls-key', key] });
    t.after(() => server.stop());
    assert.match(server.url, /^https:/);
    const permits = { fallback: 'closed' };
    for (const tls of [certificate, { ca: readFileSync(certificate) }]) {
      await withClient(server.url, { tls, permits }, async (client) => {
        assert.equal((await client.acquire('login', 'tls', { timeout })).by, 'server');
      });
    }
    const named = server.url.replace('127.0.0.1', 'localhost'); // which the certificate lacks
    for (const [url, tls] of [[server.url, undefined], [server.url, other], [named, certificate]]) {
      await withClient(url, { tls, permits }, async (client, warnings) => {
        assert.equal((await client.acquire('login', 'tls', { timeout })).by, 'fallback');
        assert.match(warnings.join('\n'), /certificate/i);
      });
    }
  });

test('the fallback decides without a server', async () => {
  for (const [fallback, granted] of [['open', true], ['closed', false]]) {
    await withClient(FAR, { permits: { fallback } }, async (client, warnings) => {
      const decision = await client.acquire('login', 'a', { timeout });
      assert.deepEqual([decision.granted, decision.by], [granted, 'fallback']);
      assert.match(warnings.join('\n'), /ECONNREFUSED/);
    });
  }
});

test('a local limit decides without a server', async () => {
  const local = { kind: 'FIXED_WINDOW', limit: 2, window: 1e6 };
  await withClient(FAR, { permits: { fallback: 'local', local } }, async (client) => {
    const granted = [];
    for (let i = 0; i < 3; i += 1) {
      granted.push((await client.acquire('x', { timeout: 0 })).granted);
    }
    assert.deepEqual(granted, [true, true, false]);
  });
});

test('the safe capacity is used without a lease', () => withClient(FAR, {}, async (client) => {
  const rate = client.rate('db', { wants: 100, safeCapacity: 1000 });
  assert.ok(await rate.wait(1, { timeout }));
  assert.equal(rate.info().leased, false);
}));

test('the kill switch grants everything', () => withClient(FAR,
  { permits: { fallback: 'closed' } }, async (client) => {
    const rate = client.rate('db', { wants: 100 });
    assert.equal(rate.tryUse(), false);
    client.killSwitch(true);
    assert.ok(rate.tryUse());
    assert.equal((await client.acquire('x', { timeout })).by, 'bypass');
  }));

test('answers that are not valid are failures', async () => {
  const items = [{ granted: 1, limits: 7 }];
  const answers = [[200, '<html>'], [200, {}], [200, { permit: [{}, {}] }], [500, {}],
    [200, '['.repeat(100000)], [302, {}], [200, { permit: [{ decision: 7 }] }], undefined,
    [200, { permit: [{ decision: 'GRANTED', item: items }] }], [200, 'x'.repeat(5 << 20)],
    [401, { error: { code: 'UNAUTHENTICATED', message: 'no' } }]];
  for (const answer of answers) {
    const fake = await FakeServer.start(() => answer);
    await withClient(fake.url, {}, async (client, warnings) => {
      const decision = await client.acquire('login', 'a', { timeout, detail: true });
      assert.equal(decision.by, 'fallback', JSON.stringify(answer)?.slice(0, 60));
      assert.ok(warnings.length);
    });
    await fake.stop();
  }
});

test('a redirect is followed with the token', async () => {
  const grants = { permit: [{ decision: 'GRANTED', item: [{ granted: 1 }] }] };
  const master = await FakeServer.start(() => [200, grants]);
  const other = await FakeServer.start(() => [200, { mastership: { http_address: master.url } }]);
  await withClient(other.url, { token: 't', headers: { 'X-Team': 'a' } }, async (client) => {
    assert.equal((await client.acquire('login', { timeout })).by, 'server');
    assert.equal((await client.acquire('login', { timeout })).by, 'server');
  });
  assert.equal(other.seen.length, 1);
  assert.equal(master.seen[0].headers.authorization, 'Bearer t');
  assert.equal(master.seen[0].headers['x-team'], 'a');
  await other.stop();
  await master.stop();
});

test('a connection that the server has closed is no failure', async () => {
  const grants = { permit: [{ decision: 'GRANTED', item: [{ granted: 1 }] }] };
  const fake = await FakeServer.start(() => [200, grants]);
  await withClient(fake.url, {}, async (client, warnings) => {
    for (let i = 0; i < 5; i += 1) {
      assert.equal((await client.acquire('login', { timeout })).by, 'server');
      fake.server.closeIdleConnections?.();
    }
    assert.deepEqual(warnings, []);
  });
  await fake.stop();
});

test('a server that hangs delays no later call', async () => {
  let goOn;
  const waits = new Promise((resolve) => { goOn = resolve; });
  const fake = await FakeServer.start(async (_, message) => {
    if (message.permit[0].item[0].resource_id === 'slow') await waits;
    return [200, { permit: message.permit.map(() => (
      { decision: 'GRANTED', item: [{ granted: 1 }] })) }];
  });
  await withClient(fake.url, { permitTimeout: 0.1 }, async (client) => {
    assert.equal((await client.acquire('slow', { timeout: 0.1 })).by, 'fallback');
    let by;
    for (const end = performance.now() + WAIT * 1000; by !== 'server'; await sleep(20)) {
      assert.ok(performance.now() < end, 'another call is decided');
      ({ by } = await client.acquire('x', { timeout }));
    }
  });
  goOn();
  await fake.stop();
});

test('a resource without limits is named once, and the fallback decides', async () => {
  const fake = await FakeServer.start((_, message) => [200, { permit: message.permit.map(() => (
    { decision: 'REFUSED', reason: 'UNMATCHED', item_index: 0, valid_for: 1 })) }]);
  for (const [fallback, granted] of [['open', true], ['closed', false]]) {
    await withClient(fake.url, { permits: { fallback } }, async (client, warnings) => {
      for (let i = 0; i < 3; i += 1) {
        const decision = await client.acquire('logn', 'a', { timeout });
        assert.deepEqual([decision.granted, decision.by, decision.reason, decision.unmatched],
          [granted, 'fallback', 'UNMATCHED', 'logn']);
      }
      assert.equal(warnings.length, 1, warnings.join('\n'));
      assert.match(warnings[0], /^logn: the servers have no limits for this resource/);
    });
  }
  await fake.stop();
});

test('a warning names the status of what is no server of Doorman', async () => {
  const proxy = await FakeServer.start(() => [502, '<html>']);
  await withClient(proxy.url, {}, async (client, warnings) => {
    await client.acquire('login', { timeout });
    assert.match(warnings[0], /the status is 502/);
  });
  await proxy.stop();
});

test('a function for warnings that fails harms nothing', () => {
  const program = `import { Client } from ${JSON.stringify(new URL('../src/index.js',
    import.meta.url))};
    for (const onWarning of [() => { throw new Error('no log'); }, () => Promise.reject('no')]) {
      const client = new Client('${FAR}', { onWarning });
      for (let i = 0; i < 3; i += 1) console.log((await client.acquire('x')).by);
      await client.close(0);
    }`;
  const ended = spawnSync(process.execPath, ['--input-type=module', '-e', program],
    { timeout: WAIT * 1000, encoding: 'utf8' });
  assert.deepEqual([ended.status, ended.stdout], [0, 'fallback\n'.repeat(6)], ended.stderr);
  assert.match(ended.stderr, /onWarning has failed: Error: no log/);
});

const HOLD = { id: 7, node: 'eu', waited: 0, expires_in: 3000 };

test('a step of the time of day is no suspension of the machine', async (t) => {
  const fake = await FakeServer.start((method) => (method === 'acquire'
    ? [200, { permit: [{ decision: 'GRANTED', item: [{ granted: 1 }], hold: HOLD }] }]
    : [200, { entry: [{ gone: true }] }]));
  t.after(() => fake.stop());
  await withClient(fake.url, {}, async (client) => {
    const hold = await client.hold('t', 'k', { timeout });
    const { now } = Date;
    t.after(() => { Date.now = now; });
    for (const step of [-7200, 0, 7200, 0]) {
      Date.now = () => now() + step * 1000;
      assert.ok(hold.left() > 1000, `after a step of ${step} s it has ${hold.left()} s`);
    }
  });
});

test('the time of a suspension of the machine counts', async (t) => {
  const fake = await FakeServer.start((method) => (method === 'acquire'
    ? [200, { permit: [{ decision: 'GRANTED', item: [{ granted: 1 }], hold: HOLD }] }]
    : [200, { entry: [{ gone: true }] }]));
  t.after(() => fake.stop());
  await withClient(fake.url, {}, async (client) => {
    const hold = await client.hold('t', 'k', { timeout });
    assert.ok(hold.left() > 1000);
    const [{ now }, { uptime }] = [Date, os];
    t.after(() => {
      Date.now = now;
      os.uptime = uptime;
    });
    Date.now = () => now() + 7200 * 1000;
    os.uptime = () => uptime() + 7200;
    assert.equal(hold.left(), 0);
  });
});

test('amounts that are not valid leave a hold as it was', async (t) => {
  const fake = await FakeServer.start(() => [200, { permit: [{ decision: 'GRANTED',
    item: [{ granted: 2 }], hold: HOLD }] }]);
  t.after(() => fake.stop());
  await withClient(fake.url, {}, async (client) => {
    const hold = await client.hold('t', 'k', { cost: 2, timeout });
    for (const amounts of [[-1], [NaN], ['1'], [null], 1]) {
      await assert.rejects(hold.transfer({ amounts }), /amounts: must be/);
      assert.throws(() => hold.release(amounts), /keep: must be/);
    }
    assert.deepEqual(hold.units(), [2]);
  });
});

test('what is seized after its caller has given up is released', async (t) => {
  const abort = new AbortController();
  let answer;
  const waits = new Promise((resolve) => { answer = resolve; });
  const fake = await FakeServer.start(async (method) => {
    if (method === 'seize') await waits;
    return [200, { entry: [{ ...HOLD, item: [{ resource_id: 't', amount: 1 }] }] }];
  });
  t.after(() => fake.stop());
  await withClient(fake.url, { permitTimeout: WAIT }, async (client) => {
    const seized = client.seize(9, { timeout, signal: abort.signal });
    await eventually(() => fake.seen.length, 'the request is sent');
    abort.abort();
    await assert.rejects(seized, { name: 'AbortError' });
    answer();
    await eventually(() => client.counts().holds === 0, 'it is released');
    assert.deepEqual(fake.seen.map(({ method }) => method), ['seize', 'release']);
    assert.equal(fake.seen[1].message.entry[0].id, 7);
  });
});

test('a settle that nobody can send any more is an error', async () => {
  const fake = await FakeServer.start(() => [200, { permit: [{ decision: 'GRANTED',
    item: [{ granted: 5 }], reservation: { settle_within: 60 } }] }]);
  const client = new Client(fake.url, { onWarning: () => {} });
  const reservation = await client.reserve('llm', 'a', { cost: 5, timeout });
  await client.close(0);
  await assert.rejects(reservation.settle(1), /the client is closed/);
  await assert.rejects(reservation.settle(1, { timeout }), /the client is closed/);
  await assert.rejects(reservation.run(() => {}), /the client is closed/);
  await assert.rejects(reservation.run(() => {
    throw new Error('of the application');
  }), /of the application/);
  assert.equal(client.counts().waiting, 0); // so a second close has nothing to wait for
  await fake.stop();
});

test('a hold that is gone is told', async () => {
  const hold = { id: 7, node: 'eu', waited: 0, expires_in: 0.3 };
  const fake = await FakeServer.start((method) => (method === 'acquire'
    ? [200, { permit: [{ decision: 'GRANTED', item: [{ granted: 1 }], hold }] }]
    : [200, { entry: [{ gone: true }] }]));
  await withClient(fake.url, {}, async (client, warnings) => {
    const gone = [];
    const onGone = (held) => {
      gone.push(held);
      throw new Error('of the application');
    };
    const lost = await client.hold('t', 'k', { timeout, onGone });
    await eventually(() => gone.length, 'the application is told');
    assert.ok(gone[0].gone);
    await eventually(() => lost.left() === 0, 'the hold ends');
    assert.equal(client.counts().holdsLost, 1);
    assert.match(warnings.join('\n'), /onGone has failed: Error: of the application/);
  });
  await fake.stop();
});

test('options of a second opening that are not in force are warned of', () => withClient(FAR, {},
  async (client, warnings) => {
    client.rate('db', { wants: 5 });
    client.rate('db', { wants: 5 });
    assert.equal(warnings.length, 0);
    const second = client.rate('db', { wants: 7 });
    assert.match(warnings[0], /db: wants: not as in the first opening/);
    assert.deepEqual([second.info().wants, second.info().optionsDiffer], [5, 'wants']);
    assert.throws(() => client.gauge('db'), /kind: db is open as a rate/);
  }));

test('a reservation that is aborted is settled with a cost of 0', async () => {
  const abort = new AbortController();
  let answer;
  const waits = new Promise((resolve) => { answer = resolve; });
  const fake = await FakeServer.start(async (method) => {
    if (method === 'settle') return [200, { entry: [{ item: [{ charged: 0, returned: 5 }] }] }];
    await waits;
    return [200, { permit: [{ decision: 'GRANTED', reservation: { settle_within: 60 },
      item: [{ granted: 5 }] }] }];
  });
  await withClient(fake.url, { permitTimeout: WAIT }, async (client) => {
    const reserved = client.reserve('llm', 'a', { cost: 5, timeout, signal: abort.signal });
    await eventually(() => fake.seen.length, 'the request is sent');
    abort.abort();
    await assert.rejects(reserved, { name: 'AbortError' });
    answer();
    await eventually(() => client.counts().settled === 1, 'it is settled');
    assert.equal(fake.seen[1].message.entry[0].item[0].cost, 0);
  });
  await fake.stop();
});

/** Grants a lease of db, and a hold of t. Permits for anything else have no answer. */
function grant(method, message) {
  if (method === 'get_capacity') {
    return [200, { response: [{ resource_id: 'db', gets: { id: 5, node: 'eu', capacity: 5,
      expires_in: 60, refresh_interval: 15 } }] }];
  }
  if (method !== 'acquire') return [200, method === 'release' ? { entry: [{ amount: [] }] } : {}];
  if (message.permit[0].item[0].resource_id !== 't') return new Promise(() => {});
  return [200, { permit: [{ decision: 'GRANTED', item: [{ granted: 1 }],
    hold: { id: 7, node: 'eu', waited: 0, expires_in: 60 } }] }];
}

test('close gives back leases and holds', async () => {
  const fake = await FakeServer.start(grant);
  const client = new Client(fake.url);
  const rate = client.rate('db', { wants: 5 });
  await eventually(() => rate.info().leased, 'there is a lease');
  assert.ok((await client.hold('t', 'k', { timeout })).granted);
  await client.close(WAIT);
  const message = (method) => fake.seen.find((seen) => seen.method === method)?.message;
  assert.deepEqual(message('release_capacity').resource, [{ resource_id: 'db', id: 5 }]);
  assert.equal(message('release').entry[0].id, 7);
  await fake.stop();
});

test('close refuses a permit that waits for a server', async () => {
  const fake = await FakeServer.start(grant);
  const client = new Client(fake.url, { onWarning: () => {} });
  const waiting = client.acquire('x', 'k', { timeout });
  await eventually(() => fake.seen.length, 'the request is sent');
  await client.close(0);
  const decision = await waiting;
  assert.deepEqual([decision.granted, decision.by], [false, 'fallback']);
  await fake.stop();
});

test('a master that answers leases brings the test of the breaker forward', async (t) => {
  let fails = true;
  const fake = await FakeServer.start((method, message) => {
    if (method === 'get_capacity') fails = false;
    return fails ? [503, '{}'] : grant(method, message);
  });
  const [{ now }, policy] = [performance, { fallback: 'closed', maxPause: 3600 }];
  let leap = 0;
  performance.now = () => now.call(performance) + leap;
  t.after(() => { performance.now = now; });
  await withClient(fake.url, { permits: policy }, async (client) => {
    const ask = () => client.acquire('t', 'k', { timeout });
    for (; client.counts().pauses < 9; leap += 300000) await ask();
    leap -= 300000; // the breaker is open for 256 s
    const rate = client.rate('db', { wants: 5 });
    await eventually(() => rate.info().leased, 'there is a lease');
    const end = performance.now() + WAIT * 1000;
    while (!(await ask()).granted && performance.now() < end) await sleep(20);
    assert.ok((await ask()).granted);
  });
  await fake.stop();
});

test('a response that is too large is a failure', async () => {
  const decision = { decision: 'GRANTED', item: [{ granted: 1 }], more: 'x'.repeat(5 << 20) };
  const fake = await FakeServer.start(() => [200, { permit: [decision] }]);
  await withClient(fake.url, {}, async (client) => {
    assert.equal((await client.acquire('login', 'a', { timeout })).by, 'fallback');
  });
  await fake.stop();
});

test('a client that is closed says so', async () => {
  const client = new Client(FAR, { onWarning: () => {} });
  const rate = client.rate('db', { wants: 1, safeCapacity: -1 });
  await client.close(0);
  assert.equal(rate.tryUse(), false);
  assert.equal(await rate.wait(), false);
  await assert.rejects(client.acquire('x'), /the client is closed/);
});

test('a client does not keep a process alive', () => {
  const program = `import { Client } from ${JSON.stringify(new URL('../src/index.js',
    import.meta.url))};
    const client = new Client('${FAR}', { onWarning: () => {} });
    client.rate('db', { wants: 1 });
    console.log((await client.acquire('x')).by);
    await new Promise((wake) => setTimeout(wake, 1500)); // another request fails meanwhile`;
  const ended = spawnSync(process.execPath, ['--input-type=module', '-e', program],
    { timeout: WAIT * 1000, encoding: 'utf8' });
  assert.deepEqual([ended.status, ended.stdout, ended.stderr], [0, 'fallback\n', '']);
});

test('wrong arguments name what is wrong', () => {
  assert.throws(() => new Client([]), /addresses: must be 1 to 16/);
  assert.throws(() => new Client('tcp://127.0.0.1:15000'), /address: must be like http:\/\//);
  assert.throws(() => new Client('http://127.0.0.1:99999'), /the port must be a number/);
  assert.throws(() => new Client('http://[::1'), /address: is no URL/);
  assert.throws(() => new Client('http://:15050'), /address: is no URL/);
  assert.throws(() => new Client(FAR, { permits: { fallback: 'local' } }), /local: is needed/);
  assert.throws(() => new Client(FAR, { tokens: 'x' }), /tokens: is no option/);
  for (const token of [7, 'a b', 'a\n', 'é']) {
    assert.throws(() => new Client(FAR, { token }), /token: must be a string of ASCII/);
  }
  assert.throws(() => new Client(FAR, { headers: { 'X-Team': 'a\nb' } }), /"X-Team"/);
  return withClient(FAR, {}, async (client) => {
    assert.throws(() => client.rate('db', { wants: -1 }), /wants: must be a number from 0/);
    assert.throws(() => client.gauge('db', { wish: 1 }), /wish: is no option/);
    await assert.rejects(client.rate('db').wait(NaN), /units: must be a number from 0/);
    assert.throws(() => client.rate('db').tryUse(null), /units: must be a number from 0/);
    assert.throws(() => client.rate('db').retryAfter('1'), /units: must be a number from 0/);
    for (const key of [42, null, true, ['a']]) {
      await assert.rejects(client.acquire('x', key), /key: must be a string/);
    }
    await assert.rejects(client.acquire('x', {}, { cost: 1 }), /key: must be a string/);
    await assert.rejects(client.acquire('x', 'k'.repeat(257)), /key: must be 0 to 256 bytes/);
    await assert.rejects(client.rate('db').wait(1, { timeOut: 1 }), /timeOut: is no option/);
    await assert.rejects(client.acquire(''), /resourceId: must be 1 to 256 bytes/);
    await assert.rejects(client.acquire('x', { cost: 1, min: 2 }), /min: must be at most cost/);
    await assert.rejects(client.acquire('x', 'k', { maxwait: 2 }), /maxwait: is no option/);
    await assert.rejects(client.acquire([{ resourceId: 'x' }], 'k'), /belong into the items/);
  });
});
