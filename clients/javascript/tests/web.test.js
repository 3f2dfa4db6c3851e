// The middleware, with a server whose answers are known.

import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import test from 'node:test';

import { Client } from '../src/index.js';
import { headersOf, rateLimit } from '../src/web.js';
import { FakeServer, WAIT } from './server.js';

const LIMIT = { name: 'per-user', limit: 5, used: 0.5, remaining: 4.5, reset_after: 9.2,
  window: 50 };
const GRANTED = { permit: [{ decision: 'GRANTED', item: [
  { granted: 1, limit: 'per-user', remaining: 4.5, reset_after: 9.2, limits: [LIMIT] }] }] };
const REFUSED = { permit: [{ decision: 'REFUSED', resource_id: 'login', limit: 'per-user',
  reason: 'RATE', retry_after: 3.1, item: [{ limits: [
    { ...LIMIT, used: 5, remaining: 0, reset_after: 50, refused: true }] }] }] };

const answer = (_, message) => [200, message.permit[0].item[0].key === 'bob' ? REFUSED : GRANTED];

test('requests are limited, and responses have the headers', async (t) => {
  const fake = await FakeServer.start(answer);
  const client = new Client(fake.url);
  const limit = rateLimit(client, (request) => (request.url === '/free' ? undefined : 'login'), {
    key: (request) => {
      if (request.url === '/wrong') throw new Error('it has no key');
      return request.url.slice(2);
    },
    cost: () => 2, timeout: WAIT });
  const web = createServer((request, response) => limit(request, response, (error) => {
    if (error) response.statusCode = 500;
    response.end(error ? error.message : String(request.doorman?.by));
  }));
  await new Promise((resolve) => web.listen(0, '127.0.0.1', resolve));
  t.after(async () => {
    web.close();
    web.closeAllConnections?.();
    await client.close();
    await fake.stop();
  });
  const ask = async (path) => {
    const response = await fetch(`http://127.0.0.1:${web.address().port}${path}`);
    return { response, text: await response.text(), headers: response.headers };
  };

  const granted = await ask('/?alice');
  assert.equal(granted.text, 'server');
  assert.equal(granted.headers.get('RateLimit-Policy'), '"per-user";q=5;w=50');
  assert.equal(granted.headers.get('RateLimit'), '"per-user";r=4;t=10');
  assert.equal(fake.seen[0].message.permit[0].item[0].cost, 2);
  const refused = await ask('/?bob');
  assert.equal(refused.response.status, 429);
  assert.equal(refused.headers.get('Retry-After'), '4');
  assert.equal(refused.headers.get('RateLimit'), '"per-user";r=0;t=4');
  assert.equal(refused.headers.get('Cache-Control'), 'no-store');
  assert.deepEqual(JSON.parse(refused.text),
    { decision: 'REFUSED', reason: 'RATE', limit: 'per-user' });
  const free = await ask('/free');
  assert.deepEqual([free.text, free.headers.get('RateLimit')], ['undefined', null]);
  const wrong = await ask('/wrong');
  assert.deepEqual([wrong.response.status, wrong.text], [500, 'it has no key']);
});

/** Starts a web server with the middleware, which asks a server of Doorman with these answers.
 * wrap: gets the middleware, the request and the response. Returns what asks for a path. */
async function serve(t, answers, options, wrap) {
  const fake = await FakeServer.start(answers);
  const client = new Client(fake.url, { onWarning: () => {} });
  const limit = rateLimit(client, 'login', { timeout: WAIT, ...options });
  const web = createServer((request, response) => wrap(limit, request, response));
  await new Promise((resolve) => web.listen(0, '127.0.0.1', resolve));
  t.after(async () => {
    web.close();
    web.closeAllConnections?.();
    await client.close();
    await fake.stop();
  });
  return (path) => fetch(`http://127.0.0.1:${web.address().port}${path}`);
}

test('a response that the application has sent during the wait is left alone', async (t) => {
  let goOn;
  const waits = new Promise((resolve) => { goOn = resolve; });
  let limited;
  const ask = await serve(t, () => waits.then(() => [200, GRANTED]), {},
    (limit, request, response) => {
      limited = limit(request, response, () => assert.fail('the request was answered already'));
      response.statusCode = 503;
      response.end('too slow');
    });
  const response = await ask('/');
  assert.deepEqual([response.status, await response.text()], [503, 'too slow']);
  goOn();
  await limited;
});

/** Sends a request with each key. Returns their statuses, and the keys that the server of Doorman was
 * asked for. It refuses those that begin with sha256:. */
async function askWithKeys(t, ...keys) {
  const asked = [];
  const answers = (_, message) => {
    asked.push(message.permit[0].item[0].key);
    return [200, asked.at(-1)?.startsWith('sha256:') ? REFUSED : GRANTED];
  };
  const ask = await serve(t, answers, { key: (request) => keys[Number(request.url.slice(1))] },
    (limit, request, response) => limit(request, response, (error) => {
      response.statusCode = error ? 500 : 200;
      response.end();
    }));
  const statuses = [];
  for (const index of keys.keys()) statuses.push((await ask(`/${index}`)).status);
  return { statuses, asked };
}

test('a key that a permit cannot have is limited too', async (t) => {
  const { statuses } = await askWithKeys(t, 'x'.repeat(257), 'a\nb', '\ud800');
  assert.deepEqual(statuses, [429, 429, 429]);
});

test('keys that a permit cannot have stay different', async (t) => {
  const { asked } = await askWithKeys(t, 'x'.repeat(257), 'x'.repeat(258), '\ud800', '\ud801');
  assert.equal(new Set(asked).size, 4);
});

test('the longest key that a permit can have stays as it is', async (t) => {
  const longest = 'é'.repeat(128);
  assert.deepEqual((await askWithKeys(t, longest)).asked, [longest]);
});

test('a key has the same hash as in the other packages', async (t) => {
  assert.deepEqual((await askWithKeys(t, 'a\tb\ud800c\u{1f600}')).asked,
    ['sha256:e0030ff6a4bf6f8b788e9e7459b0fd956eeb6776873d5c78f9158fcd8c178071']);
});

test('a key that is no string is a fault of the request', async (t) => {
  const keys = { '/number': 7, '/list': ['a', 'b'], '/object': {} };
  const ask = await serve(t, () => [200, GRANTED], { key: (request) => keys[request.url] },
    (limit, request, response) => limit(request, response, (error) => {
      response.statusCode = error ? error.status ?? 500 : 200;
      response.end(error?.message);
    }));
  for (const path of Object.keys(keys)) {
    const response = await ask(path);
    assert.equal(response.status, 400, path);
    assert.equal(await response.text(), 'key: must be a string');
  }
});

test('requests without a key share one', async (t) => {
  const { statuses, asked } = await askWithKeys(t, undefined, null, '');
  assert.deepEqual(statuses, [200, 200, 200]);
  assert.deepEqual(asked, [undefined, undefined, undefined]);
});

test('names of limits are escaped', () => {
  const decision = { granted: true, limit: 'a"\\é', quota: 5, window: 0, remaining: 2,
    resetAfter: 0 };
  assert.equal(headersOf(decision)['RateLimit-Policy'], '"a\\"\\\\%C3%A9";q=5');
  assert.deepEqual(headersOf({ granted: true, by: 'fallback' }), {});
  assert.deepEqual(headersOf({ granted: false, retryAfter: 0 }), { 'Retry-After': '1' });
  assert.deepEqual(headersOf({ granted: false, retryAfter: 1.5 }), { 'Retry-After': '2' });
  assert.throws(() => rateLimit(undefined, 'x', { refuseStatus: 200 }), /refuseStatus/);
});
