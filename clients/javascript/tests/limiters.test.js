// Limiters, lists and names, beyond what the stories show.

import assert from 'node:assert/strict';
import test from 'node:test';

import { Addresses, NEVER, Queue, SECOND, Timers, checkAddress, checkId } from '../src/base.js';
import { Gauge, LocalLimiters, Rate, checkLimit } from '../src/limiters.js';

const HOUR = 3600 * SECOND;
const YEAR = 365 * 24 * HOUR;

function rateOf(amount, burstUnits = 0) {
  const rate = new Rate(SECOND / 10, burstUnits, 0);
  rate.set({ amount, until: NEVER, after: 0 }, 0, 0);
  rate.usage.ceiling = amount;
  return rate;
}

function taken(rate, now, units = 1) {
  let count = 0;
  while (count < 10000 && rate.take(units, now) === 'allowed') count += 1;
  return count;
}

test('a rate never allows more than rate times time and burst', () => {
  for (const start of [0, HOUR, YEAR]) {
    const rate = new Rate(SECOND / 10, 0, start);
    rate.set({ amount: 100, until: NEVER, after: 0 }, 0, start);
    let allowed = 0;
    for (let step = 1; step <= 1000; step += 1) allowed += taken(rate, start + step * 1e7);
    assert.ok(allowed <= 100 * 10 + 10 && allowed >= 100 * 10 - 1, `${allowed}`);
  }
});

test('a slow rate saves one unit', () => {
  const rate = rateOf(0.5);
  assert.equal(taken(rate, SECOND), 0);
  assert.equal(taken(rate, 2 * SECOND), 1);
  assert.equal(taken(rate, HOUR), 1);
});

test('a large request fits when enough time has passed', () => {
  const rate = rateOf(100);
  assert.equal(rate.take(20, SECOND / 10), 'refused');
  assert.equal(rate.delay(20, SECOND / 10), SECOND / 10);
  assert.equal(rate.take(20, SECOND / 5), 'allowed');
  assert.equal(rate.take(NaN, HOUR), 'impossible');
  assert.equal(rate.take(-1, HOUR), 'impossible');
});

test('a burst in units is a hard bound', () => {
  const rate = rateOf(10, 4);
  assert.equal(taken(rate, HOUR), 4);
  assert.equal(rate.take(5, HOUR), 'impossible');
});

test('the end of a lease needs no call', () => {
  const rate = rateOf(0);
  rate.set({ amount: 1000, until: 10 * SECOND, after: 0 }, 0, 0);
  assert.equal(taken(rate, 10 * SECOND - 1), 100);
  assert.equal(taken(rate, 10 * SECOND), 0);
  assert.equal(taken(rate, HOUR), 0);
});

test('a change of the rate gains no units', () => {
  for (const [before, after] of [[10, 1000], [1000, 10], [10, 0.1], [0.1, 10]]) {
    const rate = rateOf(before);
    const saved = taken(rateOf(before), HOUR);
    rate.set({ amount: after, until: NEVER, after: 0 }, 0, HOUR);
    assert.ok(taken(rate, HOUR) <= Math.max(1, saved), `from ${before} to ${after}`);
  }
});

test('a larger capacity after the end of a lease gains no units', () => {
  const rate = rateOf(0);
  rate.set({ amount: 10, until: 10 * SECOND, after: 1000 }, 0, 0);
  assert.equal(taken(rate, 10 * SECOND), 1);
});

test('a gauge follows its lease', () => {
  const gauge = new Gauge();
  gauge.set({ amount: 2, until: SECOND, after: 1 });
  assert.deepEqual([1, 1, 1].map((n) => gauge.take(n, 0)), ['allowed', 'allowed', 'refused']);
  gauge.release(1);
  assert.equal(gauge.take(1, SECOND), 'refused');
  gauge.release(1);
  assert.equal(gauge.take(1, SECOND), 'allowed');
  assert.throws(() => gauge.release(2), /more are released/);
});

const local = (limit, maxKeys) => new LocalLimiters(checkLimit(limit), maxKeys);

test('a local bucket starts full', () => {
  const limiters = local({ kind: 'TOKEN_BUCKET', rate: 1, size: 3 });
  assert.deepEqual([1, 1, 1, 1].map((n) => limiters.take('k', n, 0)), [0, 0, 0, SECOND]);
  assert.equal(limiters.take('k', 1, SECOND), 0);
  assert.equal(limiters.take('k', 4, HOUR), NEVER);
});

test('a sliding window counts part of the last one', () => {
  const limiters = local({ kind: 'SLIDING_WINDOW', limit: 4, window: 10 });
  for (let i = 0; i < 4; i += 1) assert.equal(limiters.take('k', 1, 5 * SECOND), 0);
  assert.equal(limiters.take('k', 1, 5 * SECOND), 7.5 * SECOND);
  assert.equal(limiters.take('k', 1, 10 * SECOND), 2.5 * SECOND);
  assert.equal(limiters.take('k', 1, 12.5 * SECOND), 0);
});

test('a wait of a window is exact', () => {
  for (const [kind, limit] of [['SLIDING_WINDOW', 7], ['FIXED_WINDOW', 7],
    ['SLIDING_WINDOW', 1e8]]) {
    const limiters = local({ kind, limit, window: 3 });
    const scale = limit / 7;
    let now = 0;
    for (let step = 0; step < 200; step += 1) {
      const units = (1 + (step % 3)) * scale;
      const wait = limiters.take('k', units, now);
      if (wait === 0) {
        now += (step * SECOND) / 50;
        continue;
      }
      assert.ok(limiters.take('k', units, now + wait - SECOND / 1000) > 0, `${kind} ${step}`);
      now += wait;
      assert.equal(limiters.take('k', units, now), 0, `${kind}, step ${step}`);
    }
  }
});

test('the key that was used the longest time ago is forgotten', () => {
  const limiters = local({ kind: 'FIXED_WINDOW', limit: 1, window: 100 }, 2);
  for (const key of ['a', 'b', 'c']) assert.equal(limiters.take(key, 1, 0), 0);
  assert.ok(limiters.take('c', 1, 0) > 0);
  assert.equal(limiters.take('a', 1, 0), 0);
});

test('wrong local limits name what is wrong', () => {
  for (const [limit, text] of [[{ kind: 'TIERS' }, /local.kind/],
    [{ kind: 'TOKEN_BUCKET', rate: 1 }, /needs a rate and a size/],
    [{ kind: 'FIXED_WINDOW', limit: 1 }, /local.window/],
    [{ kind: 'FIXED_WINDOW', limit: -1, window: 1 }, /local.limit/],
    [{ kind: 'FIXED_WINDOW', limits: 1 }, /limits: is no option/]]) {
    assert.throws(() => checkLimit(limit), text);
  }
});

test('timers come in order, and only the last one of an owner counts', () => {
  const timers = new Timers();
  const owners = Array.from({ length: 200 }, (_, i) => ({ i, timer: NEVER }));
  for (const owner of owners) timers.set(owner, 5);
  for (const owner of owners) timers.set(owner, 1 + ((owner.i * 37) % 100));
  timers.set(owners[0], NEVER);
  let last = 0;
  let count = 0;
  for (let owner; (owner = timers.take(100)); count += 1) {
    const at = 1 + ((owner.i * 37) % 100);
    assert.ok(at >= last);
    assert.equal(owner.timer, NEVER);
    last = at;
  }
  assert.equal(count, 199);
  assert.equal(timers.due(), NEVER);
});

test('an element leaves a queue at any place', () => {
  const queue = new Queue();
  const [a, b, c, d] = ['a', 'b', 'c', 'd'].map((name) => ({ name }));
  const names = () => [...queue].map(({ name }) => name).join('');
  for (const element of [a, b, c]) queue.push(element);
  queue.unshift(d);
  assert.equal(names(), 'dabc');
  queue.remove(b);
  queue.remove(d);
  queue.remove(c);
  queue.push(d);
  assert.deepEqual([names(), queue.size, queue.first], ['ad', 2, a]);
  queue.remove(a);
  queue.remove(d);
  assert.deepEqual([names(), queue.size, queue.first], ['', 0, undefined]);
});

test('ids have bounds', () => {
  checkId('id', 'é'.repeat(128));
  for (const wrong of ['', 'é'.repeat(129), 'a\nb', '\x7f', '\ud800']) {
    assert.throws(() => checkId('id', wrong), /id: must be 1 to 256 bytes/);
  }
  for (const other of [7, null, undefined]) {
    assert.throws(() => checkId('id', other), /id: must be a string$/);
  }
});

test('addresses are those of HTTP', () => {
  for (const good of ['http://a', 'https://a:1', 'http://[::1]:5000', 'http://a:1/path',
    'http://[::1]']) {
    checkAddress(good);
  }
  for (const wrong of ['a:1', 'ftp://a', 'http://', 'http://a:0', 'http://a:99999', 'http://a b',
    'http://[::1]:x', 7]) {
    assert.throws(() => checkAddress(wrong), RangeError, String(wrong));
  }
});

test('a redirect keeps to TLS', () => {
  const addresses = new Addresses(['HTTPS://a:1/']);
  assert.equal(addresses.current, 'HTTPS://a:1');
  for (const wrong of ['http://b:1', 'nonsense', null]) {
    assert.equal(addresses.follow(wrong), false);
  }
  assert.ok(addresses.follow('https://b:1'));
  assert.equal(addresses.current, 'https://b:1');
});
