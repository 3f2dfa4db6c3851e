// A client of Doorman over HTTP.
//
//     const client = new Client('http://127.0.0.1:15050');
//     const permit = await client.acquire('login', 'alice');

import { checkId, isObject, withDefaults } from './base.js';
import { Item, Permit } from './calls.js';
import { Engine, clock } from './engine.js';
import { Gauge, Hold, Rate, Reservation, asyncDispose } from './handles.js';
import { writeMetrics } from './metrics.js';

const OPTIONS = {
  token: undefined, tls: undefined, headers: {}, clientId: undefined, permits: undefined,
  leaseTimeout: 5, permitTimeout: 1, onWarning: (text) => console.warn(`doorman: ${text}`),
};
const CLOSE_TIMEOUT = 5;

/** Returns the items and the options of a call (resource, key, options), (resource, options) or
 * (items, options). */
function readCall(resource, key, given, defaults) {
  const hasKey = !isObject(key);
  if (!hasKey && given !== undefined) checkId('key', key, true);
  const options = withDefaults(hasKey ? given : key,
    { cost: undefined, min: undefined, ...defaults });
  const { cost, min, ...rest } = options;
  if (typeof resource === 'string') {
    return { items: [new Item(resource, hasKey ? key : '', { cost, min })], options: rest };
  }
  if (cost !== undefined || min !== undefined || (hasKey && key !== undefined)) {
    throw new RangeError('key, cost and min: belong into the items');
  }
  const items = (Array.isArray(resource) ? resource : [resource]).map((item) => {
    const fields = withDefaults(item,
      { resourceId: undefined, key: '', cost: undefined, min: undefined });
    return new Item(fields.resourceId, fields.key, fields);
  });
  return { items, options: rest };
}

/** Leases, permits, holds and reservations. index.d.ts explains all options. */
export class Client {
  #engine;
  #waiters = new WeakMap(); // of each resource

  /** addresses: such as http://HOST:PORT, of all processes of a node, which are tried in turn. */
  constructor(addresses, options = {}) {
    const given = typeof addresses === 'string' ? [addresses] : addresses;
    this.#engine = new Engine(given, withDefaults(options, OPTIONS));
  }

  /** The name of this client at the servers. */
  get clientId() {
    return this.#engine.clientId;
  }

  /** Opens a rate, in units per second. */
  rate(resourceId, options = {}) {
    return this.#open(Rate, resourceId, { ...options, kind: 'rate' });
  }

  /** Opens a gauge: units in use at once. */
  gauge(resourceId, options = {}) {
    return this.#open(Gauge, resourceId, { ...options, kind: 'gauge' });
  }

  #open(Handle, resourceId, options) {
    const resource = this.#engine.open(resourceId, options);
    if (!this.#waiters.has(resource)) this.#waiters.set(resource, new Set());
    return new Handle(this.#engine, resource, this.#waiters.get(resource));
  }

  /** Asks for a permit. Returns a promise of the decision, which comes within `timeout` seconds. */
  async acquire(resource, key, given) {
    const { items, options } = readCall(resource, key, given, { timeout: 1, maxWait: 0,
      equal: false, detail: false, signal: undefined });
    const { timeout, signal, ...rest } = options;
    return this.#acquire(new Permit(items, rest), timeout, signal);
  }

  /** Asks for units that stay taken until they are released. Returns a promise of a Hold. A wait
   * that the signal aborts gives up its place in the queue. */
  async hold(resource, key, given) {
    const { items, options } = readCall(resource, key, given, { timeout: undefined, maxWait: 0,
      timeToLive: 0, priority: 1, share: false, settleWithin: 0, onGone: undefined,
      signal: undefined });
    const { timeout, onGone, signal, ...rest } = options;
    const permit = new Permit(items, { ...rest, hold: true });
    const decision = await this.#acquire(permit, timeout ?? rest.maxWait + 5, signal, onGone);
    return new Hold(this.#engine, items, decision);
  }

  /** Charges what an action may cost, before its cost is known. Returns a promise of a
   * Reservation. */
  async reserve(resource, key, given) {
    const { items, options } = readCall(resource, key, given, { settleWithin: 60, timeout: 1,
      detail: false, signal: undefined });
    const { timeout, signal, ...rest } = options;
    const decision = await this.#acquire(new Permit(items, rest), timeout, signal);
    return new Reservation(this.#engine, items, decision);
  }

  /** Says what an action has cost. Does not wait. Negative: units come back. */
  report(resourceId, key = '', cost = 1) {
    this.#engine.checkOpen();
    this.#engine.permits.report(new Item(resourceId, key), cost, clock());
    this.#engine.step();
  }

  /** Makes the units of a transfer a hold of this client. Returns a promise of a Hold. What is
   * seized after the signal has aborted the wait is released. */
  async seize(transferId, given = {}) {
    const { timeout, timeToLive, onGone, signal } = withDefaults(given,
      { timeout: 1, timeToLive: 0, onGone: undefined, signal: undefined });
    const { permits } = this.#engine;
    let call;
    const ask = (resolve) => {
      call = this.#watch(onGone, (decide) => (
        permits.seize(transferId, timeout, decide, clock(), timeToLive)), resolve);
    };
    const decision = await this.#engine.decision(ask, signal, () => this.#abandon(call));
    return new Hold(this.#engine, [], decision);
  }

  /** While it is on, nothing is refused. Refusals are still counted. */
  killSwitch(on) {
    this.#engine.leases.killSwitch(on);
    this.#engine.permits.killSwitch(on);
    this.#engine.work();
  }

  /** Returns the counters of the permits of this client. */
  counts() {
    return this.#engine.permits.read();
  }

  /** Returns all counters in the text format of Prometheus. */
  metrics() {
    return writeMetrics(this.#engine, clock());
  }

  /** Gives all leases and holds back. Waits up to `timeout` seconds. What servers do not learn ends
   * by itself. */
  async close(timeout = CLOSE_TIMEOUT) {
    await this.#engine.stop(timeout);
  }

  async [asyncDispose]() {
    await this.close();
  }

  /** Makes a call that may get a hold, and watches the hold from the start. ask: makes the call, of
   * a function that gets the decision. Returns the call. */
  #watch(onGone, ask, resolve) {
    const call = ask((decision) => {
      if (!decision.hold) this.#engine.onGone.delete(call.number);
      resolve(decision);
    });
    if (onGone) this.#engine.onGone.set(call.number, onGone);
    return call;
  }

  #acquire(permit, timeout, signal, onGone = undefined) {
    const { permits } = this.#engine;
    let call;
    let isAbandoned = false;
    const ask = (resolve) => {
      const decide = (decision) => {
        if (isAbandoned) this.#giveBack(permit, decision);
        resolve(decision);
      };
      call = this.#watch(onGone, (sink) => permits.acquire(permit, timeout, sink, clock()),
        decide);
    };
    const abandon = () => {
      isAbandoned = true;
      this.#abandon(call);
    };
    return this.#engine.decision(ask, signal, abandon);
  }

  /** Releases the hold of a call that nobody waits for any more. */
  #abandon(call) {
    this.#engine.onGone.delete(call.number);
    this.#engine.permits.release(call.hold?.number ?? call.acquired.hold, undefined, clock());
  }

  /** Settles a reservation that nobody gets, because its signal has aborted the wait. */
  #giveBack(permit, { reservation }) {
    const items = permit.items.map((item) => item.withCost(0));
    if (reservation) this.#engine.permits.settle(reservation, items, 0, undefined, clock());
  }
}
