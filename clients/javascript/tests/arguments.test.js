// Arguments that are not valid are refused by name, before anything is sent.

import assert from 'node:assert/strict';
import test from 'node:test';

import { Client } from '../src/index.js';
import { Item, LeaseCore, Permit, PermitCore } from '../src/cores.js';

const ADDRESSES = ['http://127.0.0.1:1'];

/** Checks that each argument is refused with its text. */
function refuses(make, rows) {
  for (const [options, text] of rows) {
    assert.throws(() => make(options), (error) => (
      (error instanceof RangeError || error instanceof TypeError) && text.test(error.message)),
    `${JSON.stringify(options)} must be refused: ${text}`);
  }
}

test('the options of permits', () => refuses(
  (policy) => new PermitCore('me', ADDRESSES, 0, { policy }),
  [
    [{ fallback: 'half' }, /fallback/],
    [{ fallback: 'local' }, /local: is needed/],
    [{ local: { kind: 'TOKEN_BUCKET', rate: 1, size: 1 } }, /local: is needed .* only there/],
    [{ fallback: 'local', local: { kind: 'LEAKY' } }, /local.kind/],
    [{ fallback: 'local', local: { kind: 'TOKEN_BUCKET', rate: 1 } }, /rate and a size/],
    [{ drift: 0 }, /drift/], [{ drift: 1.1 }, /drift/], [{ drift: NaN }, /drift/],
    [{ prefetch: 0.0009 }, /prefetch/], [{ prefetch: 61 }, /prefetch/],
    [{ maxPause: 0.9 }, /maxPause/], [{ maxPause: 3601 }, /maxPause/],
    [{ lanes: -1 }, /lanes/], [{ lanes: 65 }, /lanes/], [{ lanes: 1.5 }, /lanes/],
    [{ pauses: 1 }, /pauses: is no option/],
  ]));

test('the options of a resource', () => {
  const core = new LeaseCore('me', ADDRESSES, 0);
  refuses((options) => core.open('db', options, 0), [
    [{ kind: 'bucket' }, /kind/],
    [{ fallback: 'open' }, /fallback/],
    [{ priority: -1 }, /priority/], [{ priority: 16 }, /priority/], [{ priority: 0.5 }, /priority/],
    [{ fallback: 'pessimistic', safeCapacity: 1 }, /safeCapacity: needs/],
    [{ safeCapacity: -2 }, /safeCapacity/], [{ safeCapacity: Infinity }, /safeCapacity/],
    [{ window: 0.009 }, /window/], [{ burst: 0 }, /burst/], [{ burstUnits: -1 }, /burstUnits/],
    [{ wants: -1 }, /wants/], [{ wants: 5, wantsMaximum: 4 }, /wants: must be at most/],
    [{ wants: 5, wantsMinimum: 1 }, /need wants that follow/],
    [{ wants: 5, wantsInitial: 5 }, /need wants that follow/],
    [{ wantsMinimum: 3, wantsInitial: 2 }, /wantsInitial/],
    [{ wantsMaximum: 3, wantsInitial: 4 }, /wantsInitial/],
  ]);
  assert.equal(core.resources.size, 0);
});

test('items and permits', () => {
  refuses((options) => new Item('r', 'k', options), [
    [{ cost: -1 }, /cost/], [{ cost: 2e15 }, /cost/], [{ cost: '1' }, /cost/],
    [{ cost: 1, min: 2 }, /min: must be at most cost/], [{ min: -1 }, /min/],
  ]);
  refuses((key) => new Item('r', key), [['k'.repeat(257), /key/], ['a\nb', /key/]]);
  const one = [new Item('r')];
  refuses((items) => new Permit(items), [
    [[], /items: must be 1 to 100/], [Array(101).fill(one[0]), /items: must be 1 to 100/]]);
  refuses((options) => new Permit(one, options), [
    [{ maxWait: -1 }, /maxWait/], [{ timeToLive: -1 }, /timeToLive/],
    [{ settleWithin: 3601 }, /settleWithin/],
    [{ priority: 16 }, /priority/], [{ priority: -1 }, /priority/],
  ]);
  refuses((items) => new Permit(items, { share: true }), [[[...one, ...one], /share/]]);
  refuses((items) => new Permit(items, { equal: true }), [
    [[new Item('r', 'k', { cost: 0.5 })], /equal: no whole number/]]);
});

test('calls', () => {
  const core = new PermitCore('me', ADDRESSES, 0);
  const item = new Item('r');
  const calls = [
    [() => core.report(item, NaN, 0), /cost/], [() => core.report(item, 2e15, 0), /cost/],
    [() => core.report(item, -2e15, 0), /cost/],
    [() => core.acquire(new Permit([item]), -1, 'me', 0), /timeout/],
    [() => core.release(1, [-1], 0), /keep/], [() => core.release(1, 1, 0), /keep/],
    [() => core.transfer(1, [NaN], 1, 'me', 0), /amounts/],
    [() => core.transfer(1, undefined, 0, 'me', 0), /timeout/],
    [() => core.transfer(1, undefined, 1, 'me', 0, -1), /timeToLive/],
    ...[0, 1.5, 2 ** 53].map((id) => [() => core.seize(id, 1, 'me', 0), /transferId/]),
    [() => core.seize(1, 0, 'me', 0), /timeout/],
    [() => core.seize(1, 1, 'me', 0, -1), /timeToLive/],
  ];
  refuses((call) => call(), calls);
  assert.equal(core.next(0), undefined); // nothing is sent
  assert.ok(core.isIdle());
});

test('a client', () => refuses((options) => new Client(ADDRESSES, options), [
  [{ clientId: '' }, /clientId/], [{ clientId: 'a\nb' }, /clientId/],
  [{ leaseTimeout: 0 }, /requestTimeout|leaseTimeout/],
  [{ permitTimeout: 0 }, /requestTimeout|permitTimeout/],
  [{ tls: 7 }, /tls/],
]));
