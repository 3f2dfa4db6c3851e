// What an application has of a client: rates, gauges, holds and reservations.

import { NEVER, SECOND, checkAmount, withDefaults } from './base.js';
import { clock, deadlineIn } from './engine.js';
import { Refused, TimedOut } from './errors.js';

// Node.js 18 has no such symbol before 18.18.
export const asyncDispose = Symbol.asyncDispose ?? Symbol.for('Symbol.asyncDispose');
const dispose = Symbol.dispose ?? Symbol.for('Symbol.dispose');

/** What rates and gauges share. */
class Handle {
  #isOpen = true;
  #waiters;

  /** waiters: of the resource, in the order in which they have come. */
  constructor(engine, resource, waiters) {
    this.engine = engine;
    this.resource = resource;
    this.#waiters = waiters;
  }

  #isUsable() {
    return this.#isOpen && !this.engine.stopping;
  }

  /** Takes units if they may be used now. Does not wait. */
  tryUse(units = 1) {
    checkAmount('units', units);
    if (!this.#isUsable()) return false;
    return this.engine.leases.take(this.resource, units, clock()) === 'allowed';
  }

  /** Takes units, and waits for them, in the order of the calls. Returns a promise of whether it
   * has them. */
  async wait(units = 1, options = {}) {
    const { timeout, signal } = withDefaults(options, { timeout: undefined, signal: undefined });
    const deadline = deadlineIn(timeout);
    checkAmount('units', units);
    signal?.throwIfAborted();
    const ticket = { wake: () => {} };
    this.#waiters.add(ticket);
    this.#addWaiting(units);
    try {
      return await this.#waitAs(ticket, units, deadline, signal);
    } finally {
      this.#waiters.delete(ticket);
      this.#addWaiting(-units);
      const [next] = this.#waiters;
      next?.wake();
      this.engine.work();
    }
  }

  async #waitAs(ticket, units, deadline, signal) {
    const { limiter } = this.resource;
    while (this.#isUsable()) {
      const [first] = this.#waiters;
      if (first === ticket && limiter.delay(units, clock()) === 0) {
        return limiter.take(units, clock()) === 'allowed';
      }
      if (clock() >= deadline) return false;
      limiter.usage.unmetSince = Math.min(limiter.usage.unmetSince, clock());
      const left = deadline - clock();
      if (first === ticket) {
        await this.engine.changed(Math.min(this.engine.pause(this.resource, units), left), signal);
      } else {
        await this.engine.changed(left, signal, ticket);
      }
    }
    return false;
  }

  /** Says how many units callers wait for, so that the wants rise (L4). */
  #addWaiting(units) {
    this.resource.setWaiting(Math.max(0, this.resource.waiting + units), clock());
  }

  /** Returns how many seconds after a refusal the same call can be allowed; undefined: never. */
  retryAfter(units = 1) {
    checkAmount('units', units);
    const wait = this.engine.leases.retryAfter(this.resource, units, clock());
    return wait === NEVER ? undefined : wait / SECOND;
  }

  /** Sets the wants. After this call they do not follow use. */
  setWants(wants) {
    this.engine.leases.setWants(this.resource, wants, clock());
    this.engine.step();
  }

  /** Returns the state of the resource. */
  info() {
    return this.engine.leases.read(this.resource, clock());
  }

  /** Ends this opening. The last one gives the lease back. */
  close() {
    if (this.#isUsable()) this.engine.leases.close(this.resource, clock());
    this.#isOpen = false;
    this.engine.end();
  }

  [dispose]() {
    this.close();
  }
}

/** Units per second. */
export class Rate extends Handle {}

/** Units in use at once. What is taken must be given back. */
export class Gauge extends Handle {
  /** Gives units back. Throws a RangeError if more are given back than are in use. */
  release(units = 1) {
    this.resource.limiter.release(units);
    this.engine.work();
  }

  /** Takes units while a function runs. Returns a promise of its result. Throws TimedOut if the
   * units do not come in time. */
  async use(work, options = {}) {
    const { units = 1, ...rest } = options;
    if (!(await this.wait(units, rest))) throw new TimedOut(this.resource.options.resourceId);
    try {
      return await work();
    } finally {
      this.release(units);
    }
  }
}

/** Says once what the items of a permit have really cost. */
class Settling {
  #engine;
  #items;
  #decision;
  #isDone = false;

  constructor(engine, items, decision) {
    this.#engine = engine;
    this.#items = items;
    this.#decision = decision;
  }

  /** Returns a promise of the result, or of undefined if there is no timeout or it was done before.
   * costs: of the only item, or of each item. asked: is called when the core has been asked. */
  async settle(costs, options, asked = () => {}) {
    const { timeout } = withDefaults(options, { timeout: 0 });
    const list = Array.isArray(costs) ? costs : [costs];
    if (list.length !== this.#items.length) {
      throw new RangeError('costs: must have one cost for each item');
    }
    const items = this.#items.map((item, i) => item.withCost(list[i]));
    if (this.#isDone) return undefined;
    const ask = (resolve) => {
      this.#engine.permits.settle(this.#decision.reservation, items, timeout, resolve, clock());
      this.#isDone = true;
      asked();
    };
    if (timeout > 0) return this.#engine.decision(ask);
    this.#engine.checkSends();
    ask();
    this.#engine.step();
    return undefined;
  }
}

/** Units that stay taken until they are released. The client renews them. */
export class Hold {
  #engine;
  #settling;
  #reserved;

  /** items: those of the permit. */
  constructor(engine, items, decision) {
    this.#engine = engine;
    this.#settling = new Settling(engine, items, decision);
    this.#reserved = items.map((item) => item.cost);
    this.decision = decision;
    this.granted = decision.granted;
  }

  /** Returns the seconds until the units may not be used any more; 0: now. */
  left() {
    if (!this.granted) return 0;
    if (!this.decision.hold) return Infinity;
    const held = this.#engine.permits.hold(this.decision.hold);
    if (held.gone) return 0;
    return held.endsAt === undefined ? Infinity : Math.max(0, (held.endsAt - clock()) / SECOND);
  }

  /** Returns the units of each item that are held now. */
  units() {
    if (!this.decision.hold) return [...this.decision.units];
    return this.#engine.permits.hold(this.decision.hold).units;
  }

  /** Gives the units back. Stop using them before. keep: what is kept of each item. */
  release(keep = undefined) {
    if (keep === undefined) this.#engine.onGone.delete(this.decision.hold);
    this.#engine.permits.release(this.decision.hold, keep, clock());
    this.#engine.step();
  }

  /** Says what a hold with settleWithin has really cost: of the only item, or of each item.
   * Releases the hold. With a timeout the promise has the result. Later calls have no effect. */
  async settle(costs = this.#reserved, options = {}) {
    return this.#settling.settle(costs, options, () => this.release());
  }

  /** Moves units into a transfer. Who learns its transferId can seize them. Returns a promise of
   * the result. */
  transfer(options = {}) {
    const { amounts, timeout, timeToLive } = withDefaults(options,
      { amounts: undefined, timeout: 1, timeToLive: 0 });
    return this.#engine.decision((resolve) => this.#engine.permits.transfer(
      this.decision.hold, amounts, timeout, resolve, clock(), timeToLive));
  }

  /** Runs a function while the units are held, and releases them. Returns a promise of its result.
   * Throws Refused if the units were refused. */
  async run(work) {
    if (!this.granted) throw new Refused(this.decision);
    try {
      return await work(this);
    } finally {
      this.release();
    }
  }

  [dispose]() {
    this.release();
  }

  async [asyncDispose]() {
    this.release();
  }
}

/** An amount that was charged before the cost is known. */
export class Reservation {
  #settling;
  #reserved;

  constructor(engine, items, decision) {
    this.#settling = new Settling(engine, items, decision);
    this.#reserved = items.map((item) => item.cost);
    this.decision = decision;
    this.granted = decision.granted;
    this.costs = [...this.#reserved];
  }

  /** What the only item, or the first one, has really cost. */
  get cost() {
    return this.costs[0];
  }

  set cost(cost) {
    this.costs[0] = cost;
  }

  /** Says what the action has really cost: of the only item, or of each item. With a timeout the
   * promise has the result. Later calls have no effect. */
  async settle(costs = this.costs, options = {}) {
    return this.#settling.settle(costs, options);
  }

  /** Runs a function, and settles `cost` at its end. If it throws, it costs what was reserved.
   * Returns a promise of its result. Throws Refused if the amount was refused. */
  async run(work) {
    if (!this.granted) throw new Refused(this.decision);
    try {
      const result = await work(this);
      await this.settle();
      return result;
    } catch (error) {
      await this.settle(this.#reserved).catch(() => {}); // the first error says more
      throw error;
    }
  }

  async [asyncDispose]() {
    await this.settle();
  }
}
