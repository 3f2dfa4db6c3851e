// What the stories cannot show, because they have no jitter and their permits no details.

import assert from 'node:assert/strict';
import test from 'node:test';

import { SECOND } from '../src/base.js';
import { Item, LeaseCore, Permit, PermitCore } from '../src/cores.js';

/** Answers the next request of a core of leases with one lease. */
function answer(core, now, gets) {
  const request = core.next(now);
  const { resource_id } = request.message.resource[0];
  const body = { response: [{ resource_id, gets: { id: 1, node: 'eu', ...gets } }] };
  assert.equal(core.response(request, 200, body, now), undefined);
}

/** Lets requests fail until a time. Returns the times at which they were sent. */
function failUntil(core, from, until) {
  const times = [];
  for (let now = from; now <= until && times.length < 1000; now = core.due()) {
    const request = core.next(now);
    if (request) {
      times.push(now);
      core.failed(request, now);
    }
  }
  return times;
}

test('pauses after failures grow, and are at most a quarter of what is left of a lease (K2)', () => {
  const core = new LeaseCore('me', ['http://a:1'], 0, { random: () => 1 - 1e-9 });
  core.open('db', { wants: 5 }, 0);
  const pauses = failUntil(core, 0, 300 * SECOND).map((at, i, all) => all[i + 1] - at);
  assert.deepEqual(pauses.slice(0, 3).map((pause) => Math.round(pause / SECOND)), [2, 4, 8]);
  assert.ok(Math.max(...pauses.slice(0, -1)) <= 60 * SECOND);

  const leased = new LeaseCore('me', ['http://a:1'], 0, { random: () => 1 - 1e-9 });
  leased.open('db', { wants: 5 }, 0);
  answer(leased, 0, { capacity: 5, expires_in: 60, refresh_interval: 30 });
  const times = failUntil(leased, leased.due(), 58 * SECOND);
  assert.ok(times.length > 4);
  times.slice(1).forEach((at, i) => {
    const left = 60 * SECOND - times[i];
    assert.ok(at - times[i] <= Math.max(SECOND, left / 4), `${times[i] / SECOND}`);
  });
});

test('renewals of many clients spread by a twentieth of the interval', () => {
  for (const [random, late] of [[0, 0], [0.999, 0.5]]) {
    const core = new LeaseCore('me', ['http://a:1'], 0, { random: () => random });
    core.open('db', { wants: 5 }, 0);
    answer(core, 0, { capacity: 5, expires_in: 60, refresh_interval: 10 });
    assert.ok(Math.abs(core.due() / SECOND - 10 - late) < 0.01, `${core.due()}`);
  }
});

test('a lease that lacks a thousandth meets the wants', () => {
  for (const [capacity, next] of [[99.95, 0], [99.5, 1]]) {
    const core = new LeaseCore('me', ['http://a:1'], 0, { random: () => 0 });
    const resource = core.open('db', { wantsInitial: 100 }, 0);
    answer(core, 0, { capacity, expires_in: 600, refresh_interval: 100 });
    for (let i = 0; i < 1000; i += 1) core.take(resource, 1, SECOND / 2);
    let request;
    for (let now = SECOND / 2; now < 3 * SECOND && !request; now += SECOND / 10) {
      request = core.next(now);
    }
    assert.equal(request === undefined, next === 1, `${capacity}`);
  }
});

test('a refusal that is still valid has the figures of its limit', () => {
  const core = new PermitCore('me', ['http://a:1'], 0, { policy: { lanes: 0 } });
  const ask = () => core.acquire(new Permit([new Item('login')], { detail: true }), 1, 'me', 0);
  ask();
  const request = core.next(0);
  const limits = [{ name: 'other', limit: 9 }, { name: 'per-user', limit: 5, window: 50 }];
  core.response(request, 200, { permit: [{ decision: 'REFUSED', reason: 'RATE', valid_for: 2,
    limit: 'per-user', item: [{ limits }] }] }, 0);
  ask();
  const [first, second] = [core.decision(0), core.decision(0)];
  assert.deepEqual([first.by, first.quota, first.window], ['server', 5, 50]);
  assert.deepEqual([second.by, second.quota, second.window], ['refusal', 5, 50]);
  assert.equal(core.next(0), undefined);
});
