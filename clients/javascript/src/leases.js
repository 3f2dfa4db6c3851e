// The core of a client of leases: it has no clock, no timer and no connection.
//
//     const core = new LeaseCore('web-7', ['http://127.0.0.1:15050'], now);
//     const resource = core.open('db/orders', { wants: 50 }, now);
//     for (let request; (request = core.next(now)); ) {
//       ...  // send it, and pass what comes to core.response or core.failed
//     }
//     core.due();  // when to call next() again
//
// Times are in nanoseconds of any clock that never goes back. `Client` has a core, so most programs
// do not need this module. The rules (K, R, L) are those of doorman.h.

import {
  AMOUNT_MAX, Addresses, GRAINS, InvalidResponse, NEVER, Reader, SECOND, checkAmount,
  checkDuration, checkId, checkInteger, checkOneOf, readBody, withDefaults,
} from './base.js';
import { Estimator, LOOK_MIN } from './demand.js';
import { Gauge, Rate, isAmount } from './limiters.js';

const UNLIMITED = -1; // a capacity without a limit
const ITEMS_MAX = 500; // of a request
const MET = 0.999;
const LOOK_INTERVAL = SECOND / 5;
const ROUNDS_MAX = 6;
const ROUNDS_MAX_ALIVE = 2;
const GET = 'get_capacity';
const RELEASE = 'release_capacity';

const OPTIONS = {
  kind: 'rate', wants: undefined, wantsMinimum: undefined, wantsMaximum: AMOUNT_MAX,
  wantsInitial: undefined, window: 10, priority: 1, burst: 0.1, burstUnits: 0, fallback: 'safe',
  safeCapacity: undefined, shadow: false,
};

/** Returns the options of a resource, checked and complete. index.d.ts explains them. */
function resourceOptions(resourceId, given) {
  const options = { resourceId: checkId('resourceId', resourceId),
    ...withDefaults(given, OPTIONS) };
  checkOneOf('kind', options.kind, ['rate', 'gauge']);
  checkOneOf('fallback', options.fallback, ['safe', 'pessimistic', 'optimistic']);
  checkInteger('priority', options.priority, 0, 15);
  if (options.safeCapacity !== undefined) {
    if (options.fallback !== 'safe') {
      throw new RangeError('safeCapacity: needs the fallback safe');
    }
    if (options.safeCapacity !== UNLIMITED) checkAmount('safeCapacity', options.safeCapacity);
  }
  options.windowTime = checkDuration('window', options.window, 0.01);
  options.burstTime = checkDuration('burst', options.burst, 1e-6);
  checkAmount('burstUnits', options.burstUnits);
  return wantsOptions(options);
}

/** Checks the wants. Their minimum is what an idle resource wants (K6). */
function wantsOptions(options) {
  const most = checkAmount('wantsMaximum', options.wantsMaximum);
  if (options.wants !== undefined) {
    if (checkAmount('wants', options.wants) > most) {
      throw new RangeError('wants: must be at most wantsMaximum');
    }
    if (options.wantsMinimum !== undefined || options.wantsInitial !== undefined) {
      throw new RangeError('wantsMinimum, wantsInitial: need wants that follow use');
    }
  }
  options.wantsMinimum ??= options.kind === 'gauge' ? 0 : 1;
  options.wantsInitial ??= options.wantsMinimum;
  const least = checkAmount('wantsMinimum', options.wantsMinimum);
  const initial = checkAmount('wantsInitial', options.wantsInitial);
  if (options.wants === undefined && (initial < least || initial > most)) {
    throw new RangeError('wantsInitial: must be from wantsMinimum to wantsMaximum');
  }
  return options;
}

const newLimiter = (options, now) =>
  (options.kind === 'gauge' ? new Gauge() : new Rate(options.burstTime, options.burstUnits, now));

/** A resource of a client: its lease, its limiter, and its wants. Only its core changes it. The
 * states of a held lease: open and closing wait until they are due, and closed is freed. */
export class Resource {
  opened = 0;
  state = 'open';
  lease = undefined; // id, node, capacity, end
  inRequest = false;
  confirmAt = NEVER;
  requestedAt = 0;
  refreshInterval = 0;
  requestedWants = 0;
  claimed = 0;
  met = false;
  cut = false;
  whole = false;
  learning = false;
  outcome = undefined;
  reason = undefined;
  safeCapacity = undefined;
  differs = undefined; // an option of a later opening that is not in force
  waiting = 0;
  waitingPeak = 0;
  waited = 0;
  lookAt = NEVER; // when to look at a refusal that the core has noticed
  publishedLeased = false;
  publishedCapacity = 0;

  constructor(core, options, now) {
    this.core = core;
    this.requestAt = this.renewAt = this.waitingAt = now;
    this.options = options;
    this.limiter = newLimiter(options, now);
    this.start(options, now);
  }

  /** Starts with the options of a first opening. */
  start(options, now) {
    if (options.kind !== this.options.kind) this.limiter = newLimiter(options, now);
    this.options = options;
    this.differs = undefined;
    this.followsUse = options.wants === undefined;
    this.wants = options.wants ?? options.wantsInitial;
    const { usage } = this.limiter;
    usage.shadow = options.shadow;
    usage.killSwitch = this.core.killed;
    usage.unmetSince = NEVER;
    this.estimator = new Estimator(this.#sampled(now), options.kind === 'gauge', {
      minimum: options.wantsMinimum, maximum: options.wantsMaximum,
      initial: options.wantsInitial, window: options.windowTime });
  }

  // ---- what is in force

  isLeased(now) {
    return this.lease !== undefined && now < this.lease.end;
  }

  /** Returns the capacity without a lease (K4). */
  fallback() {
    if (this.options.fallback === 'pessimistic') return 0;
    return this.options.fallback === 'optimistic' ? this.wants : this.#knownSafeCapacity();
  }

  #knownSafeCapacity() {
    return this.safeCapacity ?? this.options.safeCapacity ?? 0;
  }

  inUse() {
    return this.limiter.isGauge ? this.limiter.inUse / GRAINS : 0;
  }

  /** Tells the limiter what is in force. */
  publish(now) {
    const leased = this.isLeased(now);
    const amount = leased ? this.lease.capacity : 0;
    const until = leased ? this.lease.end : 0;
    let largest = this.limiter.usage.largest / GRAINS;
    if (this.followsUse) largest = Math.max(largest, this.estimator.largest);
    this.limiter.set({ amount, until, after: this.fallback() }, largest, now);
    this.publishedLeased = leased;
    this.publishedCapacity = leased ? amount : this.fallback();
    this.announce();
  }

  /** Tells the limiter what may come next, for retryAfter. */
  announce() {
    const { usage } = this.limiter;
    const { core, estimator, publishedCapacity: capacity } = this;
    const grows = this.followsUse && this.met;
    let at = grows ? 0 : this.requestAt;
    if (core.state === 'backing_off') at = Math.max(at, core.retryAt);
    else if (core.state === 'requested' && core.failures) at = core.sentAt + core.timeout;
    usage.ceiling = Math.max(this.followsUse ? estimator.maximum : this.wants, capacity);
    usage.ceilingAsked = Math.max(estimator.ceiling, capacity);
    usage.expected = !this.publishedLeased || grows ? this.wants : 0;
    usage.growthTime = this.followsUse ? Math.floor(estimator.window / 5) : 0;
    usage.ceilingUntil = this.followsUse ? estimator.ceilingUntil : 0;
    usage.refreshAt = at === NEVER ? 0 : at;
  }

  // ---- wants that follow use

  /** Says how many units callers wait for. */
  setWaiting(units, now) {
    this.waited += (this.waiting * (now - this.waitingAt)) / SECOND;
    this.waitingAt = now;
    this.waiting = units;
    this.waitingPeak = Math.max(this.waitingPeak, units);
  }

  #reading(now) {
    const { usage, isGauge, peak } = this.limiter;
    const waited = this.waited + (this.waiting * (now - this.waitingAt)) / SECOND;
    return { at: now, unmetSince: usage.unmetSince, allowed: usage.allowed,
      refused: usage.unmet, largest: usage.largest / GRAINS,
      waiting: this.waiting, waited: isGauge ? 0 : waited,
      waitingPeak: isGauge ? 0 : this.waitingPeak, peak: isGauge ? peak / GRAINS : 0,
      inUse: this.inUse() };
  }

  /** Returns a reading with the largest values since the last sample, and resets them. */
  #sampled(now) {
    const reading = this.#reading(now);
    this.limiter.usage.largest = 0;
    this.waitingPeak = this.waiting;
    if (this.limiter.isGauge) this.limiter.peak = this.limiter.inUse;
    return reading;
  }

  #supply(now) {
    return { amount: Math.max(this.publishedCapacity, this.#knownSafeCapacity()),
      exhausted: this.isLeased(now) && !this.met,
      idleAfter: Math.floor(this.refreshInterval / 2) };
  }

  /** Notes when to look at the counts after a refusal. A gauge has no rate to measure. Without more
   * capacity, refusals wait for a sample. */
  #notice(supply) {
    const since = this.limiter.usage.unmetSince;
    const measures = since !== NEVER && !this.limiter.isGauge;
    this.lookAt = measures ? since + LOOK_MIN : since;
    if (supply.exhausted) this.lookAt = NEVER;
  }

  noticeRefusal(now) {
    if (this.limiter.usage.unmetSince !== NEVER) this.#notice(this.#supply(now));
  }

  /** Returns when the core has work for the resource, except requests. */
  wakeAt(now) {
    const at = this.lease && this.publishedLeased ? this.lease.end : NEVER;
    if (!this.followsUse) return at;
    const { estimator } = this;
    return Math.min(at, this.lookAt, estimator.due(), estimator.checkAt(this.#supply(now)));
  }

  /** Does what is due. */
  work(now) {
    if (this.followsUse) this.#updateWants(now);
    if (this.publishedLeased && !this.isLeased(now)) this.publish(now);
  }

  #updateWants(now) {
    const { estimator, limiter: { usage } } = this;
    const supply = this.#supply(now);
    this.#notice(supply);
    const due = estimator.due();
    const look = this.lookAt;
    if (now < Math.min(due, look, estimator.checkAt(supply))) return;
    const reading = this.#reading(now);
    if (now >= look) {
      usage.unmetSince = this.lookAt = NEVER;
      estimator.look(reading, supply);
    }
    if (now >= due) {
      if (supply.exhausted) usage.unmetSince = NEVER;
      estimator.sample(this.#sampled(now), supply);
    } else if (now < look) {
      estimator.check(reading, supply);
    }
    this.applyWants(estimator.wants, now);
    if (estimator.isIdle(now, supply) && this.wants < this.requestedWants) {
      this.#expedite(0, now); // L4: asks at once
    }
    this.#grow(now);
  }

  /** Sets the wants, and asks sooner if they have changed by more than a tenth (K1). */
  applyWants(wants, now) {
    this.wants = wants;
    this.noteWants(now);
    if (this.options.fallback === 'optimistic') this.publish(now);
    this.announce();
  }

  noteWants(now) {
    const wants = this.#asked();
    const tenth = this.requestedWants / 10;
    if (wants < this.requestedWants - tenth || wants > this.requestedWants + tenth) {
      this.#expedite(Math.min(5 * SECOND, Math.floor(this.refreshInterval / 2)), now);
    }
  }

  /** Returns the wants of a request. If leases are whole units, so are they. */
  #asked() {
    return this.whole ? Math.ceil(this.wants * (1 - 1e-12)) : this.wants;
  }

  /** K1: asks at once after unmet demand, if the last response granted all wants. */
  #grow(now) {
    const { estimator } = this;
    const largest = estimator.isGauge ? estimator.largest : 0;
    const worth = largest <= this.publishedCapacity ? 1.1 : 1 + 1e-9;
    if (estimator.unmet && this.wants > this.requestedWants * worth && this.met) {
      this.#expedite(0, now);
    }
  }

  #expedite(minimum, now) {
    if (this.outcome === undefined) return;
    this.requestAt = Math.min(this.requestAt, Math.max(now, this.requestedAt + minimum));
  }

  // ---- requests and responses

  /** Returns when the resource wants to be in a request. */
  due() {
    if (this.inRequest || this.state === 'closed') return NEVER;
    return Math.min(this.requestAt, this.confirmAt);
  }

  /** R3: lowers the lease to what is wanted, if servers answer. */
  #giveBack(now) {
    if (this.isLeased(now) && !this.core.failures && this.#asked() < this.lease.capacity) {
      this.lease.capacity = this.#asked();
      this.publish(now);
    }
  }

  /** Returns when half of the refresh interval has passed. */
  half() {
    return this.requestedAt + Math.floor(this.refreshInterval / 2);
  }

  /** Returns the item of a request, or undefined if there is nothing to confirm (R3). */
  renewal(now) {
    const wants = this.#asked();
    this.#giveBack(now);
    const lease = this.isLeased(now) ? this.lease : undefined;
    const claim = Math.max(lease?.capacity ?? 0, this.inUse());
    if (this.confirmAt <= now && now < this.requestAt && claim >= this.claimed) {
      this.confirmAt = now + SECOND;
      return undefined;
    }
    this.claimed = claim;
    this.requestedWants = wants;
    this.inRequest = true;
    const item = { resource_id: this.options.resourceId, wants, priority: this.options.priority };
    if (this.inUse() > 0) item.outstanding = this.inUse();
    if (lease) {
      item.has = { id: lease.id, node: lease.node, capacity: lease.capacity,
        expires_in: (lease.end - now) / SECOND };
    }
    return item;
  }

  /** Returns the item of a release, or undefined while units are in use (R10). */
  release(now) {
    this.#giveBack(now);
    if (this.inUse() > 0) {
      this.requestAt = Math.min(this.lease.end, now + SECOND);
      return undefined;
    }
    const item = { resource_id: this.options.resourceId, id: this.lease.id };
    this.lease = undefined;
    this.inRequest = true;
    return item;
  }

  /** Processes the item of a response. If the lease that the request reported has ended meanwhile,
   * the item has no effect (R2). */
  process(item, reported, sentAt, now) {
    if (reported && !this.isLeased(now)) {
      this.requestAt = now;
      return;
    }
    this.outcome = item.outcome;
    this.learning = item.learning;
    const granted = item.outcome === 'GRANTED';
    this.met = granted && item.capacity >= this.requestedWants * MET;
    if (item.safeCapacity !== undefined) this.safeCapacity = item.safeCapacity;
    let interval = item.refreshInterval;
    if (granted) {
      this.#takeLease(item, sentAt + item.expiresIn, now);
      interval = Math.min(interval, Math.floor(item.expiresIn / 2));
    }
    this.#schedule(interval, sentAt, now);
    if (this.state === 'closed') return;
    this.noteWants(now);
    this.publish(now);
    if (this.followsUse && this.met) this.#grow(now);
  }

  #takeLease(item, end, now) {
    this.whole = item.whole;
    this.reason = item.reason;
    const last = this.isLeased(now) && this.lease.node === item.node ? this.lease.end : end; // R9
    this.lease = { id: item.id, node: item.node, capacity: item.capacity,
      end: Math.max(now, end, last) };
  }

  #schedule(interval, sentAt, now) {
    const late = 1 + 0.05 * this.core.random();
    const cut = this.isLeased(now) && this.lease.capacity < this.claimed;
    this.refreshInterval = Math.max(interval, SECOND / 100);
    this.requestedAt = Math.min(now, sentAt + Math.floor(this.refreshInterval / 2));
    this.renewAt = this.requestedAt + Math.round(this.refreshInterval * late);
    const closing = this.state === 'closing';
    this.requestAt = closing ? Math.max(this.requestAt, now) : this.renewAt;
    this.confirmAt = NEVER;
    if (cut && !closing) this.confirmAt = this.cut ? now + SECOND : now;
    this.cut = cut;
  }

  /** Takes the resource out of a request that has ended. */
  endRequest(now) {
    this.inRequest = false;
    if (this.state === 'closing' && !this.isLeased(now)) this.state = 'closed';
  }
}

/** Reads one entry of a response to get_capacity. */
function readItem(value, resourceId) {
  const entry = new Reader(value, 'response[]');
  if (entry.text('resource_id') !== resourceId) {
    throw entry.fail('resource_id', `must be ${resourceId}`);
  }
  const item = { learning: entry.flag('learning'), safeCapacity: undefined, expiresIn: 0 };
  if (entry.has('safe_capacity')) {
    const unlimited = entry.get('safe_capacity') === UNLIMITED;
    item.safeCapacity = unlimited ? UNLIMITED : entry.amount('safe_capacity');
  }
  if (entry.has('refused')) {
    const refused = entry.object('refused');
    item.outcome = refused.text('reason');
    item.refreshInterval = refused.duration('refresh_interval');
    const known = ['TRY_LATER', 'UNMATCHED', 'FULL'].includes(item.outcome);
    if (!known || item.refreshInterval <= 0) throw entry.fail('refused', 'is not valid');
    return item;
  }
  const gets = entry.object('gets');
  Object.assign(item, { outcome: 'GRANTED', refreshInterval: gets.duration('refresh_interval'),
    id: gets.integer('id'), node: gets.text('node'), capacity: gets.amount('capacity'),
    expiresIn: gets.duration('expires_in'), whole: gets.flag('whole'),
    reason: gets.optional('reason') });
  if (!item.id || !item.node || item.refreshInterval <= 0) throw entry.fail('gets', 'is not valid');
  return item;
}

const least = (values) => values.reduce((a, b) => Math.min(a, b), NEVER);

/** Requests leases for the resources of an application. One request at a time is under way. */
export class LeaseCore {
  resources = new Map();
  state = 'ready'; // or "requested", or "backing_off" until retryAt
  lookAt = NEVER;
  killed = false;
  sentAt = 0;
  retryAt = 0;
  number = 0;
  failures = 0; // in a row
  failureCount = 0; // since the start
  #tried = 0;
  #rounds = 0;
  #roundsMax = ROUNDS_MAX;
  #interval = 0; // the shortest refresh interval of the last response
  #method = RELEASE;
  #underWay = []; // resources, each with whether the request reports a lease

  /** options: requestTimeout and releaseDelay in seconds, and random, which returns a number in
   * [0, 1) that spreads the requests of many clients. */
  constructor(clientId, addresses, now, options = {}) {
    const { requestTimeout = 5, releaseDelay = 0.1, random = Math.random } = options;
    this.clientId = checkId('clientId', clientId);
    this.addresses = new Addresses(addresses);
    this.timeout = checkDuration('requestTimeout', requestTimeout, 0.001);
    this.releaseDelay = checkDuration('releaseDelay', releaseDelay);
    this.random = random;
    this.now = now;
  }

  // ---- the calls of the application

  /** Opens a resource. A resource that is open already stays as it is (K5). */
  open(resourceId, given, now) {
    this.#tick(now);
    const options = resourceOptions(resourceId, given);
    let resource = this.resources.get(resourceId);
    const changesKind = resource && resource.options.kind !== options.kind;
    if (resource?.opened) {
      if (changesKind) {
        throw new RangeError(`kind: ${resourceId} is open as a ${resource.options.kind}`);
      }
      resource.opened += 1;
      resource.differs ??= Object.keys(OPTIONS).find((name) => (
        options[name] !== resource.options[name]));
      return resource;
    }
    if (changesKind && resource.inUse() > 0) {
      throw new RangeError(`kind: ${resourceId} has units in use`);
    }
    if (!resource || resource.state === 'closed') {
      resource = new Resource(this, options, this.now);
      this.resources.set(resourceId, resource);
    } else {
      this.#reopen(resource, options);
    }
    resource.opened = 1;
    if (resource.followsUse) this.lookAt = Math.min(this.lookAt, this.now + LOOK_INTERVAL);
    resource.publish(this.now);
    return resource;
  }

  #reopen(resource, options) {
    const keeps = resource.isLeased(this.now) && !resource.inRequest &&
      options.priority === resource.options.priority && this.releaseDelay > 0;
    resource.state = 'open';
    resource.cut = false;
    resource.requestAt = keeps ? resource.renewAt : this.now;
    resource.start(options, this.now);
    if (keeps) resource.noteWants(this.now);
  }

  /** Ends one opening. The last one releases the lease, after releaseDelay. */
  close(resource, now, atOnce = false) {
    this.#tick(now);
    if (resource.opened === 0) {
      throw new RangeError(`${resource.options.resourceId}: is closed already`);
    }
    resource.opened -= 1;
    if (resource.opened) return;
    resource.state = 'closing';
    resource.confirmAt = NEVER;
    resource.renewAt = resource.requestAt;
    resource.requestAt = this.now + (atOnce ? 0 : this.releaseDelay);
    if (!resource.inRequest && !resource.isLeased(this.now)) resource.state = 'closed';
    this.#forgetClosed();
  }

  /** Sets constant wants. After this call the wants do not follow use. */
  setWants(resource, wants, now) {
    this.#tick(now);
    if (checkAmount('wants', wants) > resource.options.wantsMaximum) {
      throw new RangeError('wants: must be at most wantsMaximum');
    }
    resource.followsUse = false;
    resource.applyWants(wants, this.now);
  }

  /** Takes units. Returns "allowed", "refused" or "impossible". */
  take(resource, units, now) {
    return resource.limiter.take(units, Math.max(now, this.now));
  }

  /** Returns the time after a refusal until the same call can be allowed, or NEVER. */
  retryAfter(resource, units, now) {
    return isAmount(units) ? resource.limiter.retryAfter(units, now) : NEVER;
  }

  /** While it is on, what would be refused is allowed, and counts as excess (L5). */
  killSwitch(on) {
    this.killed = on;
    for (const resource of this.resources.values()) resource.limiter.usage.killSwitch = on;
  }

  /** Returns the state of a resource. */
  read(resource, at) {
    const now = Math.max(at, this.now);
    const { limiter } = resource;
    const { usage } = limiter;
    const lease = resource.isLeased(now) ? resource.lease : undefined;
    return { resourceId: resource.options.resourceId, leased: lease !== undefined,
      capacity: lease ? lease.capacity : resource.fallback(), wants: resource.wants,
      inUse: resource.inUse(), expiresIn: lease ? (lease.end - now) / SECOND : undefined,
      outcome: resource.outcome, reason: lease ? resource.reason : undefined,
      learning: resource.learning, safeCapacity: resource.safeCapacity,
      allowed: usage.allowed / GRAINS, refused: usage.refused / GRAINS,
      excess: usage.excess / GRAINS, overReleased: limiter.overReleased ?? 0,
      failures: this.failureCount, optionsDiffer: resource.differs };
  }

  /** Returns whether all leases are released, and no request is under way. */
  isIdle() {
    return this.resources.size === 0 && this.state !== 'requested';
  }

  // ---- the loop

  /** Returns when next() wants to be called, or NEVER. */
  due() {
    const resources = [...this.resources.values()];
    let at = least(resources.map((resource) => resource.due()));
    if (this.state === 'requested') at = this.sentAt + this.timeout;
    else if (this.state === 'backing_off') at = Math.max(at, this.retryAt);
    return Math.min(at, this.lookAt, least(resources.map((r) => r.wakeAt(this.now))));
  }

  /** Does what is due. Returns a request to send, or undefined. */
  next(at) {
    this.#tick(at);
    const { now } = this;
    this.#look();
    for (const resource of this.resources.values()) {
      if (resource.wakeAt(now) <= now) resource.work(now);
    }
    if (this.state === 'requested') {
      if (now < this.sentAt + this.timeout) return undefined;
      this.#backOff(ROUNDS_MAX);
    }
    if (this.state === 'backing_off' && now < this.retryAt) return undefined;
    const request = this.#request();
    this.#forgetClosed();
    return request;
  }

  /** Processes a response. Returns what is wrong with it, or undefined.
   * body: the parsed JSON; anything else, such as undefined, is not valid. */
  response(request, status, body, now) {
    this.#tick(now);
    if (this.state !== 'requested' || request.number !== this.number) return undefined;
    let wrong;
    try {
      this.#accept(readBody(body, status));
    } catch (error) {
      if (!(error instanceof InvalidResponse)) throw error;
      this.#backOff(ROUNDS_MAX);
      wrong = error.message;
    }
    this.#forgetClosed();
    return wrong;
  }

  /** Says that a request got no response. */
  failed(request, now) {
    this.#tick(now);
    if (this.state !== 'requested' || request.number !== this.number) return;
    this.#backOff(ROUNDS_MAX);
    this.#forgetClosed();
  }

  /** Ends a pause early, because a master has answered permits. The next request comes at least a
   * second after the last one, in case it fails again. */
  retrySoon(now) {
    if (this.state !== 'backing_off') return;
    this.retryAt = Math.min(this.retryAt, Math.max(now, this.sentAt + SECOND));
  }

  // ---- private

  #tick(now) {
    this.now = Math.max(this.now, now);
  }

  #forgetClosed() {
    for (const [name, resource] of this.resources) {
      if (resource.state === 'closed') this.resources.delete(name);
    }
  }

  /** Checks for refusals, which make wants rise. */
  #look() {
    const following = [...this.resources.values()].filter((resource) => resource.followsUse);
    this.lookAt = following.length ? this.now + LOOK_INTERVAL : NEVER;
    for (const resource of following) resource.noticeRefusal(this.now);
  }

  /** Makes a request, of renewals or of releases. If both are due, they alternate. */
  #request() {
    const first = this.#method === RELEASE ? GET : RELEASE;
    for (const method of [first, first === GET ? RELEASE : GET]) {
      this.#underWay = [];
      const items = method === GET ? this.#renewals() : this.#releases();
      if (items.length) {
        this.#method = method;
        this.state = 'requested';
        this.sentAt = this.now;
        this.number += 1;
        return { address: this.addresses.current, method, number: this.number, lane: undefined,
          message: { client_id: this.clientId, resource: items }, timeout: this.timeout };
      }
    }
    return undefined;
  }

  /** K1: renews those that are due, and then those past half their refresh interval. */
  #renewals() {
    const { now } = this;
    const items = [];
    const add = (resources) => {
      for (const resource of resources) {
        const item = items.length < ITEMS_MAX ? resource.renewal(now) : undefined;
        if (!item) continue;
        items.push(item);
        this.#underWay.push({ resource, reported: 'has' in item });
      }
    };
    const idle = [...this.resources.values()].filter((r) => r.state === 'open' && !r.inRequest);
    add(idle.filter((r) => r.due() <= now).sort((a, b) => a.due() - b.due()));
    if (items.length) {
      const halves = idle.filter((r) => !r.inRequest && r.half() <= now);
      add(halves.sort((a, b) => a.half() - b.half()));
    }
    return items;
  }

  #releases() {
    const items = [];
    for (const resource of this.resources.values()) {
      const waits = resource.state !== 'closing' || resource.due() > this.now;
      if (waits || items.length === ITEMS_MAX) continue;
      if (!resource.isLeased(this.now)) {
        resource.state = 'closed';
        continue;
      }
      const item = resource.release(this.now);
      if (!item) continue;
      items.push(item);
      this.#underWay.push({ resource, reported: false });
    }
    return items;
  }

  #endItems(answered) {
    const underWay = this.#underWay;
    this.#underWay = [];
    for (const { resource } of underWay) {
      if (!answered) resource.requestAt = this.now;
      resource.endRequest(this.now);
    }
  }

  #accept(body) {
    if (body.has('mastership')) {
      this.#redirect(body.object('mastership').get('http_address'));
      return;
    }
    let items = [];
    if (this.#method === GET) {
      items = body.list('response', this.#underWay.length).map((entry, i) => (
        readItem(entry, this.#underWay[i].resource.options.resourceId)));
    }
    this.failures = this.#tried = this.#rounds = 0;
    this.addresses.redirects = 0;
    this.state = 'ready';
    if (this.#method === RELEASE) {
      this.#endItems(true);
      return;
    }
    const granted = items.filter((item) => item.expiresIn);
    if (granted.length) {
      this.#interval = least(granted.map((item) => (
        Math.min(item.refreshInterval, Math.floor(item.expiresIn / 2)))));
    }
    const underWay = this.#underWay;
    this.#underWay = [];
    underWay.forEach(({ resource, reported }, i) => {
      resource.inRequest = false;
      resource.process(items[i], reported, this.sentAt, this.now);
      resource.endRequest(this.now);
    });
  }

  #redirect(master) {
    if (this.addresses.follow(master)) {
      this.state = 'ready';
      this.#endItems(false);
    } else {
      this.#backOff(ROUNDS_MAX_ALIVE);
    }
  }

  /** K2: the next address is asked at once. After a round of failures a pause follows. */
  #backOff(roundsMax) {
    this.state = 'backing_off';
    this.#endItems(false);
    this.#roundsMax = this.#tried === 0 ? roundsMax : Math.min(roundsMax, this.#roundsMax);
    this.failures += 1;
    this.failureCount += 1;
    this.#tried += 1;
    this.addresses.advance();
    this.retryAt = this.now;
    if (this.#tried === this.addresses.own.length) {
      this.#rounds = Math.min(this.#rounds + 1, this.#roundsMax);
      this.#tried = 0;
      this.retryAt = this.now + this.#pause();
    }
  }

  #pause() {
    let most = Math.min(SECOND * 2 ** this.#rounds, 60 * SECOND);
    if (this.#interval > 0) most = Math.min(most, this.#interval);
    most = Math.max(most, SECOND);
    const spread = Math.trunc((most - SECOND) * this.random());
    const ends = [...this.resources.values()].map((resource) => resource.lease?.end ?? 0);
    const next = least(ends.filter((end) => end > this.now));
    const quarter = Math.floor((next - this.now) / 4);
    return Math.max(Math.min(SECOND + spread, quarter), SECOND);
  }
}
