// The core of a client of permits: it has no clock, no timer and no connection.
//
//     const core = new PermitCore('web-7', ['http://127.0.0.1:15050'], now);
//     core.acquire(new Permit([new Item('login', 'alice')]), 1, me, now);
//     for (let request; (request = core.next(now)); ) {
//       ...  // send it, and pass what comes to core.response or core.failed
//     }
//     for (let acquired; (acquired = core.decision(now)); ) {
//       ...  // tell acquired.context
//     }
//     core.due();  // when to call next() again
//
// Times are in nanoseconds of any clock that never goes back. `Client` has a core, so most programs
// do not need this module. The rules (P) are those of doorman_permits.h.

import {
  Addresses, GRAINS, InvalidResponse, MessageRefused, NEVER, SECOND, Timers, checkAmounts,
  checkDuration, checkId, checkInteger, checkOneOf, isNumber, isTls, readBody, seconds,
  withDefaults,
} from './base.js';
import {
  Acquired, Batch, Call, DECIDED, Hold, KINDS, METHODS, NEW, NOTHING, PERMIT, Permit, QUEUED,
  RELEASE, RENEWAL, REPORT, REQUEST_ID_MAX, SEIZURE, SENT, SETTLE, TRANSFER, WAIT, WAITING, entryOf,
  listOf, readDecision, readHoldResult, readReported, readSettled,
} from './calls.js';
import { LocalLimiters, checkLimit, grains } from './limiters.js';
import { readMap, usable } from './shards.js';
import { Stocks } from './stock.js';

export { Item, Permit } from './calls.js';

const MESSAGE_ITEMS = 4000;
const MESSAGE_TEXT = 256 * 1024;
const DETAILS_MAX = 100;
const REFUSALS_MAX = 10000;
const COPIES_MAX = 10000;
const CALLS_MAX = 100000;
const REPORTS_MAX = 10000;
const SETTLES_MAX = 10000;
const SETTLE_FAILURES = 60;
const SETTLE_WAIT = 300 * SECOND;
const SETTLE_TIME = 45 * SECOND;
const REPORT_TIME = 660 * SECOND;
const RELEASE_TIME = 60 * SECOND;
const RENEWAL_GAP = SECOND / 100;
const MESSAGE_WAIT_MIN = SECOND / 10;
const BREAKER_FAILURES = 5;
const DOUBLINGS = 12;
const DOUBLINGS_ALIVE = 2;
const MOVED_PAUSE = SECOND / 20;
const MOVES_MAX = 10;
const MAP_PAUSE = 60 * SECOND; // after a server has refused to tell its map

const COUNTS = {
  granted: 0, refused: 0, refusedLocally: 0, prefetchGranted: 0, prefetched: 0, lapsed: 0,
  fallbackGranted: 0, fallbackRefused: 0, bypassed: 0, timedOut: 0, reported: 0, lost: 0,
  uncharged: 0, settled: 0, unsettled: 0, messages: 0, failures: 0, pauses: 0, holdsLost: 0,
  moved: 0,
};

const POLICY = {
  fallback: 'open', local: undefined, shadow: false, drift: 0.05, prefetch: 0, maxPause: 30,
  reportOnce: false, lanes: 4,
};

/** Returns how a client treats its permits, checked and complete. index.d.ts explains it. */
function checkPolicy(given) {
  const policy = withDefaults(given, POLICY);
  checkOneOf('fallback', policy.fallback, ['open', 'closed', 'local']);
  if ((policy.fallback === 'local') !== (policy.local !== undefined)) {
    throw new RangeError('local: is needed for the fallback local, and only there');
  }
  if (policy.local) policy.local = checkLimit(policy.local);
  if (!(policy.drift > 0 && policy.drift <= 1)) {
    throw new RangeError('drift: must be above 0, and at most 1');
  }
  policy.prefetchTime = checkDuration('prefetch', policy.prefetch);
  if (policy.prefetch && !(policy.prefetch >= 0.001 && policy.prefetch <= 60)) {
    throw new RangeError('prefetch: must be 0, or from 1 ms to 60 s');
  }
  if (!(policy.maxPause >= 1 && policy.maxPause <= 3600)) {
    throw new RangeError('maxPause: must be from 1 s to 3600 s');
  }
  checkInteger('lanes', policy.lanes, 0, 64);
  return policy;
}

const isPermit = (kind) => kind === PERMIT || kind === WAIT;
const hasFallback = (kind) => isPermit(kind) || kind === REPORT || kind === SEIZURE;

/** Asks servers for permits on behalf of many callers. */
export class PermitCore {
  #main;
  #lanes;
  #nodes = []; // batches of the nodes of the map, and unused ones
  #byName = new Map(); // those of the map
  #map;
  #mapBatch; // asks for a map next, or now
  #mapAskAt = 0; // no server is asked for a map before this time
  #laneTurn = 0; // the index of the batch whose permit a lane has sent last
  #local;
  #lastNumber;
  #killed = false;
  #counts = { ...COUNTS };
  #decided = [];
  #changes = new Set();
  #timers = new Timers();
  #holds = new Map();
  #refusals = new Map();
  #copies = new Map();
  #learning = new Set();
  #moved = new Set(); // calls that wait because they were refused as MOVED
  #calls = new Set(); // without a result, except renewals and releases
  #settles = 0;
  #stocks;

  /** options: policy, requestTimeout in seconds, and firstNumber, the first request_id; by default
   * it is random. */
  constructor(clientId, addresses, now, options = {}) {
    const { policy, requestTimeout = 1, firstNumber } = options;
    this.clientId = checkId('clientId', clientId);
    this.policy = checkPolicy(policy);
    this.now = now;
    this.messageTimeout = checkDuration('requestTimeout', requestTimeout, 0.001);
    this.#main = new Batch(undefined, new Addresses(addresses));
    this.#lanes = Array.from({ length: this.policy.lanes }, (_, lane) => (
      new Batch(lane, new Addresses(addresses), true)));
    this.#lastNumber = (firstNumber ?? 1 + Math.floor(Math.random() * REQUEST_ID_MAX)) - 1;
    this.#local = this.policy.local && new LocalLimiters(this.policy.local);
    this.#stocks = new Stocks(this.policy.prefetchTime, this.#counts);
  }

  // ---- the calls of the application

  /** Asks for a permit. decision() returns the decision within `timeout` seconds. At 0 the call
   * waits for no server. */
  acquire(permit, timeout, context, now) {
    this.#tick(now);
    const limit = checkDuration('timeout', timeout);
    const hold = permit.hold ? this.#newHold(permit) : undefined;
    const waits = hold !== undefined && permit.maxWait > 0;
    const call = new Call(waits ? WAIT : PERMIT, permit, { context, alone: waits });
    if (hold) this.#ask(call, hold);
    else if (permit.settleWithin) call.number = this.#number();
    call.deadline = this.now + (limit || this.messageTimeout);
    if (this.policy.shadow || this.#killed) {
      this.#bypass(call);
    } else if (!this.#spendStock(call) && this.#start(call) && !limit) {
      this.#counts.timedOut += 1;
      this.#fallBack(call);
    }
    return call;
  }

  /** Says what an action has really cost. Negative: units come back. */
  report(item, cost, now) {
    this.#tick(now);
    if (!isNumber(cost) || Math.abs(cost) > 1e15) {
      throw new RangeError('cost: must be a number from -1e15 to 1e15');
    }
    const permit = { ...NOTHING, items: [item.withCost(0)] };
    const call = new Call(REPORT, permit, { cost, attended: false });
    if (this.policy.reportOnce) call.number = this.#number();
    this.#start(call);
  }

  /** Says what a reservation has really cost (P27), and releases the hold of the same permit. With
   * a timeout of more than 0, decision() returns the result. A reservation of 0 has no effect. */
  settle(reservation, items, timeout, context, now) {
    this.#tick(now);
    const limit = checkDuration('timeout', timeout);
    let result;
    if (limit > 0) {
      result = new Call(SETTLE, { ...NOTHING, items }, { context, deadline: this.now + limit });
      this.#calls.add(result);
    }
    if (this.#settleIsLocal(reservation, result)) return;
    const call = this.#queueSettle(items, reservation);
    if (result) {
      call.peer = result;
      result.peer = call;
      result.acquired.by = 'fallback';
      this.#move(result, WAITING);
      this.#timers.set(result, result.deadline);
    }
    this.release(reservation, undefined, this.now);
  }

  /** Releases a hold, also before the decision on its permit.
   * keep: what is kept of each item; undefined: nothing. */
  release(number, keep, now) {
    this.#tick(now);
    if (keep !== undefined) checkAmounts('keep', keep);
    const hold = this.#holds.get(number);
    if (!hold) return;
    this.#setChanged(hold, false);
    const { call } = hold;
    if (hold.state === 'asked') {
      this.#endHold(hold, hold.wasSent);
    } else if (hold.state === 'in_use') {
      hold.amounts = hold.amounts.map((has, i) => Math.min(has, keep?.[i] ?? 0));
      hold.mustRelease = true;
      if (hold.isEmpty()) this.#endHold(hold, true);
    }
    if (call && hold.state === 'ending') this.#revoke(call);
    this.#plan(hold);
  }

  /** Moves units of a hold into a transfer, which another client can seize. amounts: of each item;
   * undefined: all units. */
  transfer(number, amounts, timeout, context, now, timeToLive = 0) {
    this.#tick(now);
    const hold = this.#holds.get(number);
    checkDuration('timeToLive', timeToLive);
    if (amounts !== undefined) checkAmounts('amounts', amounts);
    const deadline = this.now + checkDuration('timeout', timeout, 0.001);
    const result = new Call(TRANSFER, NOTHING, { context, deadline });
    this.#calls.add(result);
    const moved = this.#takeUnits(hold, amounts);
    if (!hold || !moved.some((amount) => amount > 0)) {
      this.#revoke(result);
      return;
    }
    const call = new Call(TRANSFER, NOTHING, { attended: false, hold, amounts: moved,
      number: this.#number(), timeToLive, peer: result });
    result.peer = call;
    result.acquired.by = 'fallback';
    hold.transfers += 1;
    this.#calls.add(call);
    this.#move(call, QUEUED);
    this.#move(result, WAITING);
    this.#timers.set(result, result.deadline);
    this.#plan(hold);
  }

  /** Makes the units of a transfer a hold of this client. */
  seize(transferId, timeout, context, now, timeToLive = 0) {
    this.#tick(now);
    checkInteger('transferId', transferId, 1, REQUEST_ID_MAX);
    checkDuration('timeToLive', timeToLive);
    const deadline = this.now + checkDuration('timeout', timeout, 0.001);
    const call = new Call(SEIZURE, NOTHING, { context, transferId, timeToLive, deadline });
    const hold = this.#newHold(undefined);
    hold.transferId = transferId;
    this.#ask(call, hold);
    this.#start(call);
    return call;
  }

  /** Returns the state of a hold. */
  hold(number) {
    const hold = this.#holds.get(number);
    return hold ? hold.describe() : { hold: number, gone: true, units: [], endsAt: undefined };
  }

  /** While it is on, each permit is granted at once, and a copy is sent (P25). */
  killSwitch(on) {
    if (on) for (const call of this.#attendedCalls()) this.#endGranted(call);
    this.#killed = on;
  }

  /** Refuses all calls that wait, and releases all holds. Run the loop until isIdle(). */
  stop(now) {
    this.#tick(now);
    for (const call of this.#attendedCalls()) {
      if (call.state !== DECIDED) this.#fallBack(call, 'closed');
    }
    for (const number of [...this.#holds.keys()]) this.release(number, undefined, this.now);
  }

  /** Returns whether nothing is left to send. */
  isIdle() {
    return this.#calls.size === 0 && this.#holds.size === 0;
  }

  /** Returns the counters, and how many calls wait, and how many holds there are. */
  read() {
    let waiting = 0;
    for (const call of this.#calls) waiting += call.prefetches ? 0 : 1;
    return { ...this.#counts, waiting, holds: this.#holds.size, isPausing: this.#isOpen() ? 1 : 0 };
  }

  // ---- the loop

  /** Returns when next() wants to be called, or NEVER. */
  due() {
    if (this.#decided.length || this.#changes.size) return this.now;
    let due = Math.min(this.#timers.due(), this.#stocks.due());
    for (const batch of this.#batches()) due = Math.min(due, this.#batchDue(batch));
    return due;
  }

  /** Does what is due. Returns a request to send, or undefined. */
  next(now) {
    this.#tick(now);
    this.#work();
    for (const batch of this.#batches()) {
      const request = this.#batchRequest(batch);
      if (request) return request;
    }
    return undefined;
  }

  /** Processes a response. Returns what is wrong with it, or undefined.
   * body: the parsed JSON; anything else, such as undefined, is not valid. */
  response(request, status, body, now) {
    this.#tick(now);
    const batch = this.#batchOf(request);
    if (batch.state !== 'requested' || batch.number !== request.number) return undefined;
    try {
      this.#accept(batch, status, body);
    } catch (error) {
      if (!(error instanceof InvalidResponse)) throw error;
      if (batch.asksMap) this.#refuseMap(batch);
      else this.#fail(batch, false, error instanceof MessageRefused);
      return error.message;
    }
    return undefined;
  }

  /** Says that a request got no response. */
  failed(request, now) {
    this.#tick(now);
    const batch = this.#batchOf(request);
    if (batch.state === 'requested' && batch.number === request.number) this.#fail(batch, false);
  }

  /** P23: lets the test of an open breaker come early, because a master has answered leases. It
   * comes at least a second after the last message. */
  retrySoon(now) {
    const main = this.#main;
    if (main.state !== 'backing_off') return;
    main.retryAt = Math.min(main.retryAt, Math.max(now, main.sentAt + SECOND));
  }

  /** Returns the next decision, or undefined. */
  decision(now) {
    this.#tick(now);
    this.#work();
    const call = this.#decided.shift();
    if (!call) return undefined;
    const { acquired } = call;
    acquired.context = call.context;
    while (acquired.units.length < Math.max(1, call.items.length)) acquired.units.push(0);
    return acquired;
  }

  /** Returns the next hold that has become smaller, or is gone, without a call of the application;
   * or undefined. */
  change(now) {
    this.#tick(now);
    this.#work();
    const [hold] = this.#changes;
    if (!hold) return undefined;
    this.#setChanged(hold, false);
    const held = hold.describe();
    this.#plan(hold);
    return held;
  }

  // ---- calls

  #tick(now) {
    this.now = Math.max(this.now, now);
  }

  #number() {
    this.#lastNumber = (this.#lastNumber % REQUEST_ID_MAX) + 1;
    return this.#lastNumber;
  }

  /** Takes a call out of the list of its state. */
  #leave(call) {
    if (call.state === QUEUED) {
      call.port.queues[call.kind].remove(call);
    } else if (call.state === WAITING) {
      this.#learning.delete(call);
      this.#moved.delete(call);
    } else if (call.state === SENT && call.batch) {
      call.batch.sent[call.position].call = undefined;
      call.batch = undefined;
    }
  }

  /** Moves a call to another state. One whose message had no answer becomes the first one in its
   * queue. */
  #move(call, state) {
    const returns = call.state === SENT;
    this.#leave(call);
    call.state = state;
    call.isMoved = false;
    if (state !== QUEUED) return;
    call.port = this.#route(call);
    if (returns) call.port.queues[call.kind].unshift(call);
    else call.port.queues[call.kind].push(call);
  }

  /** Ends a call. If a caller waits for it, decision() returns it. */
  #finish(call) {
    call.timer = NEVER;
    this.#part(call);
    this.#move(call, DECIDED);
    this.#calls.delete(call);
    if (call.kind === SETTLE && !call.attended) this.#settles -= 1;
    if (call.hold?.call === call) call.hold.call = undefined;
    if (call.attended) this.#decided.push(call);
    else if (call.hold?.action === call) call.state = NEW;
  }

  #part(call) {
    const { peer } = call;
    call.peer = undefined;
    if (peer) peer.peer = undefined;
    return peer;
  }

  #finishPeer(call) {
    const peer = this.#part(call);
    if (peer) this.#finish(peer);
  }

  /** Queues a new call, or decides on it at once. Returns whether it is queued. */
  #start(call) {
    this.#calls.add(call);
    const isReport = call.kind === REPORT;
    const port = this.#route(call);
    const queued = port.queues[call.kind].size + (isReport ? this.#learning.size : 0);
    const full = queued >= (isReport ? REPORTS_MAX : CALLS_MAX);
    const known = isReport ? undefined : this.#knownRefusal(call);
    if (known && known.refusal.reason !== 'UNMATCHED') { // UNMATCHED is no decision
      this.#refuse(call, known);
      return false;
    }
    if (known) call.acquired.unmatched = call.items[known.index].resourceId;
    if (known || full || this.#isOpen(port)) {
      this.#fallBack(call);
      return false;
    }
    this.#move(call, QUEUED);
    this.#timers.set(call, call.deadline);
    return true;
  }

  /** Ends a call that gets no hold, and the hold that it asked for. */
  #endAsk(call) {
    const { hold } = call;
    if (hold) this.#endHold(hold, hold.wasSent);
    this.#finish(call);
    if (hold) this.#plan(hold);
  }

  #attendedCalls() {
    return [...this.#calls].filter((call) => call.attended);
  }

  // ---- decisions without a server

  #grant(call, inFull) {
    const { permit, acquired } = call;
    acquired.granted = true;
    this.#noteReservation(call, this.now + permit.settleTime);
    acquired.units = permit.items.map((item, i) => (inFull ? item.cost : permit.least(i)));
  }

  #noteReservation(call, settleBy) {
    if (!call.permit.settleWithin) return;
    call.acquired.reservation = call.number;
    call.acquired.settleBy = settleBy;
  }

  /** P23: decides on a call without a server. A report is lost. */
  #fallBack(call, given = undefined) {
    if (call.prefetches) {
      this.#endPrefetch(call);
      return;
    }
    let fallback = given ?? this.policy.fallback;
    const { acquired } = call;
    acquired.by = 'fallback';
    if (call.kind === REPORT) this.#counts.lost += 1;
    else if (!isPermit(call.kind)) fallback = 'closed';
    if (call.attended) this.#decideByFallback(call, fallback);
    if (fallback === 'closed' && this.#main.state === 'backing_off') {
      acquired.retryAfter = seconds(Math.max(this.#main.retryAt - this.now, 0));
    }
    if (call.kind === SETTLE || call.kind === TRANSFER) this.#finish(call);
    else this.#endAsk(call);
  }

  #decideByFallback(call, fallback) {
    if (fallback === 'open' || (fallback === 'local' && this.#isLocal(call))) {
      this.#grant(call, false);
      this.#counts.fallbackGranted += 1;
    } else {
      this.#giveBack(call);
      this.#counts.fallbackRefused += 1;
    }
  }

  /** Returns whether the local limiters allow all items. */
  #isLocal(call) {
    return call.items.every((item, index) => {
      const wait = this.#local.take(item.pair, call.permit.least(index), this.now);
      if (wait === 0) return true;
      call.acquired.itemIndex = index;
      call.acquired.retryAfter = wait === NEVER ? undefined : seconds(wait);
      return false;
    });
  }

  #refuse(call, { index, refusal }) {
    const { acquired } = call;
    acquired.by = 'refusal';
    acquired.itemIndex = index;
    acquired.reason = refusal.reason;
    acquired.limit = refusal.limit;
    if (call.permit.detail) {
      acquired.quota = refusal.quota;
      acquired.window = refusal.window;
    }
    if (refusal.retryAt !== NEVER) {
      acquired.retryAfter = seconds(Math.max(refusal.retryAt - this.now, 0));
    }
    this.#counts.refusedLocally += 1;
    if (!call.attended) this.#refuseCopy(call);
    this.#endAsk(call);
  }

  /** P25: grants a permit in full, and sends a copy that no caller waits for. */
  #bypass(call) {
    const { hold } = call;
    this.#calls.add(call);
    const copy = new Call(call.kind, call.permit, { attended: false, alone: call.alone,
      deadline: call.deadline, number: call.number });
    this.#grant(call, true);
    call.acquired.by = 'bypass';
    if (hold) {
      call.acquired.hold = hold.number;
      this.#detach(hold);
    }
    this.#finish(call);
    if (hold) this.#ask(copy, hold);
    this.#start(copy);
  }

  /** Refuses a call, because its caller has released the hold. */
  #revoke(call) {
    this.#giveBack(call);
    call.acquired = new Acquired('caller');
    if (call.state !== DECIDED) this.#finish(call);
  }

  /** Ends a permit because of the kill switch: it is granted in full, or as a server has granted it
   * already. */
  #endGranted(call) {
    const { hold, state } = call;
    const isQueued = state === QUEUED || call.isMoved;
    if (!isPermit(call.kind)) return;
    if (isQueued || state !== WAITING) {
      call.acquired.by = 'bypass';
      this.#grant(call, true);
    }
    if (hold && !isQueued) {
      call.acquired.hold = hold.number;
      this.#detach(hold);
    } else if (hold) {
      this.#endHold(hold, hold.state === 'in_use' || hold.wasSent);
    }
    this.#finish(call);
    if (hold) this.#plan(hold);
  }

  // ---- refusals that are still valid (P22)

  #knownRefusal(call) {
    if (!this.#refusals.size || !isPermit(call.kind)) return undefined;
    for (let index = 0; index < call.items.length; index += 1) {
      const refusal = this.#refusals.get(call.items[index].pair);
      if (refusal && this.now < refusal.until && call.permit.maxWaitTime <= refusal.maxWait &&
          call.permit.least(index) >= refusal.least) {
        return { index, refusal };
      }
    }
    return undefined;
  }

  #rememberRefusal(call, decision, sentAt) {
    const until = sentAt + decision.validFor;
    if (call.items.length !== 1 || until <= this.now) return;
    for (const [pair, oldest] of this.#refusals) {
      if (oldest.until > this.now && this.#refusals.size < REFUSALS_MAX) break;
      this.#refusals.delete(pair);
    }
    const { pair } = call.items[0];
    const figures = decision.figures[0]?.find((limit) => (
      !limit.shadow && limit.name === (decision.limit ?? '')));
    this.#refusals.delete(pair); // so that it becomes the newest one
    this.#refusals.set(pair, { until, least: call.permit.least(0), maxWait: call.sentMaxWait,
      retryAt: decision.retryAfter === undefined ? NEVER : this.now + decision.retryAfter,
      reason: decision.reason, limit: decision.limit, quota: figures?.quota ?? 0,
      window: seconds(figures?.window ?? 0) });
  }

  // ---- reservations (P27)

  #queueSettle(items, number) {
    const deadline = this.now + SETTLE_WAIT;
    const call = new Call(SETTLE, { ...NOTHING, items }, { attended: false, number, deadline,
      waitsUntil: deadline });
    this.#calls.add(call);
    this.#settles += 1;
    this.#move(call, QUEUED);
    this.#timers.set(call, call.deadline);
    return call;
  }

  /** Settles a reservation that its caller does not get, with a cost of 0. */
  #giveBack(call) {
    const granted = call.acquired.granted && call.acquired.by === 'server';
    if (!call.attended || !call.permit.settleWithin) return;
    if (!granted && !call.unanswered) return;
    call.unanswered = false;
    call.acquired.reservation = 0;
    if (this.#settles >= SETTLES_MAX) return;
    this.#queueSettle(call.items.map((item) => item.withCost(0)), call.number);
  }

  /** Decides on a settle that needs no message. Returns false if it needs one. */
  #settleIsLocal(number, result) {
    const isCopy = this.#copies.delete(number);
    const full = this.#settles >= SETTLES_MAX;
    if (number && !isCopy && !full) return false;
    if (number && !isCopy) this.#counts.unsettled += 1;
    if (result) {
      result.acquired.granted = isCopy;
      result.acquired.by = 'caller';
      if (isCopy) result.acquired.by = 'bypass';
      else if (number) result.acquired.by = 'fallback';
      this.#finish(result);
    }
    return true;
  }

  /** Notes that the copy of a permit was refused: its settle has no effect. */
  #refuseCopy(call) {
    this.#counts.bypassed += 1;
    if (!call.permit.settleWithin) return;
    for (const [number, until] of this.#copies) {
      if (until > this.now && this.#copies.size < COPIES_MAX) break;
      this.#copies.delete(number);
    }
    this.#copies.set(call.number, this.now + call.permit.settleTime + SETTLE_WAIT);
  }

  #loseSettle(call) {
    this.#counts.unsettled += 1;
    this.#finishPeer(call);
    this.#finish(call);
  }

  #decideSettle(call, result) {
    if (result.reason === 'LEARNING') {
      if (!call.failures) call.deadline = call.waitsUntil;
      this.#move(call, WAITING);
      this.#timers.set(call, Math.min(this.now + SECOND, call.deadline));
      return;
    }
    if (result.reason) this.#counts.unsettled += 1;
    else this.#counts.settled += 1;
    result.items.forEach(({ charged }, i) => {
      const missing = call.items[i].cost - charged;
      if (result.unknown && missing > 0) this.#counts.uncharged += missing;
    });
    if (call.peer) {
      const out = call.peer.acquired;
      out.by = 'server';
      out.granted = !result.reason;
      out.reason = result.reason;
      out.late = result.late;
      out.unknown = result.unknown;
      out.units = result.items.map(({ charged, returned }) => charged - returned);
    }
    this.#finishPeer(call);
    this.#finish(call);
  }

  // ---- units taken ahead (P24)

  #usesStock(call) {
    const { permit } = call;
    return this.policy.prefetch > 0 && call.kind === PERMIT && call.attended && !call.hold &&
      !permit.settleWithin && permit.items.length === 1 && !permit.equal &&
      permit.items[0].cost > 0;
  }

  /** Grants a permit out of the stock. Returns false if this is not possible. */
  #spendStock(call) {
    if (!this.#usesStock(call)) return false;
    const [item] = call.items;
    const cost = grains(item.cost) / GRAINS;
    const stock = this.#stocks.spend(item, cost, this.now);
    if (!stock) return false;
    this.#grant(call, true);
    Object.assign(call.acquired, { by: 'prefetch', warning: stock.warning, limit: stock.limit,
      remaining: stock.remaining, resetAfter: seconds(Math.max(stock.resetAt - this.now, 0)) });
    this.#counts.prefetchGranted += 1;
    this.#finish(call);
    this.#stocks.use(stock, cost, this.now);
    this.#refillStock(item);
    return true;
  }

  /** Takes units ahead, if the stock has few and the key is used often. */
  #refillStock(item) {
    const stock = this.#stocks.find(item);
    const missing = stock ? stock.missing() : 0;
    if (missing < 1) return;
    const permit = new Permit([item.withCost(missing, 0)]);
    const call = new Call(PERMIT, permit, { attended: false, prefetches: true });
    const port = this.#route(call);
    if (port.queues[PERMIT].size >= CALLS_MAX || port.failures >= BREAKER_FAILURES) return;
    stock.asking = true;
    this.#calls.add(call);
    this.#move(call, QUEUED);
  }

  #endPrefetch(call) {
    const stock = this.#stocks.find(call.items[0]);
    if (stock) stock.asking = false;
    this.#finish(call);
  }

  #learnStock(call, decision, sentAt) {
    if (!decision.granted) {
      this.#stocks.learnRefusal(call.items[decision.itemIndex], decision.reason);
      return;
    }
    const [item] = call.items;
    const [grant] = decision.grants;
    let stock;
    if (call.prefetches) {
      const units = Math.min(decision.units[0], item.cost);
      stock = this.#stocks.receive(item, units, decision.wait, sentAt, this.now);
    } else if (this.#usesStock(call)) {
      stock = this.#stocks.open(item, this.now);
    }
    if (!stock) return;
    stock.warning = decision.warning;
    stock.remaining = grant.remaining;
    stock.resetAt = this.now + grant.resetAfter;
    stock.limit = grant.limit;
    if (call.prefetches) return;
    stock.grantedMost = Math.max(stock.grantedMost, decision.units[0]);
    this.#stocks.lapse(stock, this.now);
    this.#stocks.use(stock, decision.units[0], this.now);
    this.#refillStock(item);
  }

  // ---- holds

  #newHold(permit) {
    const number = this.#number();
    const hold = new Hold(number, new Call(RENEWAL, NOTHING, { attended: false }));
    if (permit) {
      hold.items = permit.items.map(({ resourceId, key }) => ({ resourceId, key }));
      hold.amounts = permit.items.map(() => 0);
    }
    this.#holds.set(number, hold);
    return hold;
  }

  #ask(call, hold) {
    call.hold = hold;
    hold.call = call;
    call.number = hold.number;
  }

  #detach(hold) {
    if (!hold.call) return;
    hold.call.hold = undefined;
    hold.call = undefined;
  }

  #setChanged(hold, changed) {
    if (changed) this.#changes.add(hold);
    else this.#changes.delete(hold);
    hold.changed = changed;
  }

  /** Queues the renewal or the release of a hold. */
  #act(hold, kind) {
    hold.action.kind = kind;
    hold.action.moves = 0;
    this.#move(hold.action, QUEUED);
  }

  /** Does what a hold needs next, or plans when to look at it. */
  #plan(hold) {
    const { action } = hold;
    const ending = hold.state === 'ending';
    const over = ending && this.now >= hold.giveUpAt;
    if (over) hold.mustRelease = false;
    const stays = action.kind === RELEASE && !hold.transfers;
    const obsolete = stays ? over : ending || hold.mustRelease;
    const waits = action.state === QUEUED || action.state === WAITING;
    if (waits && obsolete) this.#finish(action);
    if (action.state === NEW && hold.mustRelease && !hold.transfers) this.#act(hold, RELEASE);
    const idle = action.state === NEW;
    const busy = hold.mustRelease || hold.asking || hold.transfers || hold.changed;
    if (ending && idle && !busy) {
      this.#detach(hold);
      hold.timer = NEVER;
      this.#holds.delete(hold.number);
      return;
    }
    let at = ending && !over ? hold.giveUpAt : NEVER;
    if (hold.state === 'in_use') {
      at = idle && !hold.isEmpty() ? Math.min(hold.end, hold.renewAt) : hold.end;
    }
    this.#timers.set(hold, at);
  }

  /** Ends a hold that its application no longer uses. */
  #endHold(hold, mustRelease) {
    const inUse = hold.state === 'in_use';
    if (hold.state === 'ending') return;
    this.#detach(hold);
    hold.state = 'ending';
    hold.mustRelease = mustRelease;
    hold.giveUpAt = inUse ? hold.end + hold.life : this.now + RELEASE_TIME;
  }

  /** P8: sets the end of a hold that a server has granted or renewed. */
  #extend(hold, begin, life) {
    hold.begin = begin;
    hold.life = life;
    hold.end = Math.max(hold.end, begin + life);
    hold.renewAt = Math.max(begin + Math.floor(life / 3), this.now + RENEWAL_GAP);
  }

  #loseHold(hold, mustRelease) {
    this.#endHold(hold, mustRelease);
    if (hold.isEmpty()) return;
    this.#counts.holdsLost += 1;
    this.#setChanged(hold, true);
  }

  /** Queues the renewals of all holds that are past half of the time to their renewal. */
  #renewHolds() {
    for (const hold of this.#holds.values()) {
      const due = Math.min(hold.begin + Math.floor(hold.life / 6), hold.renewAt) <= this.now;
      if (hold.state === 'in_use' && hold.action.state === NEW && due && hold.end > this.now &&
          !hold.isEmpty()) {
        this.#act(hold, RENEWAL);
        this.#timers.set(hold, hold.end);
      }
    }
  }

  #workHold(hold) {
    if (hold.state === 'in_use' && hold.end > this.now) {
      this.#renewHolds();
      return;
    }
    if (hold.state === 'in_use') this.#loseHold(hold, true);
    this.#plan(hold);
  }

  /** Takes units out of a hold, for a transfer. Returns them. */
  #takeUnits(hold, amounts) {
    if (hold?.state !== 'in_use') return [];
    const moved = hold.amounts.map((has, i) => (
      amounts === undefined ? has : Math.min(has, amounts[i] ?? 0)));
    hold.amounts = hold.amounts.map((has, i) => has - moved[i]);
    return moved;
  }

  #endTransfer(call) {
    const { hold } = call;
    hold.transfers -= 1;
    this.#finishPeer(call);
    this.#finish(call);
    if (hold.state === 'in_use' && !hold.transfers && hold.isEmpty()) {
      this.#endHold(hold, hold.mustRelease);
    }
    this.#plan(hold);
  }

  // ---- which node a call goes to (N9)

  /** Returns where a call goes: to the owner of its shard. If its node is not known or does not
   * answer, or if the call has failed once, a server of the options forwards it. No call waits to
   * find out whether a node answers, because this client may not reach it. */
  #route(call) {
    if (!this.#map || call.failures) return this.#main;
    const node = this.#byName.get(this.#ownerOf(call));
    if (node && !node.answers && this.now >= node.retryAt) node.probes = true;
    return node?.answers ? node : this.#main;
  }

  /** The ids of holds and transfers tell their shard. All other calls have items. */
  #ownerOf(call) {
    const { hold, kind } = call;
    const acts = hold?.action === call;
    const id = acts || kind === TRANSFER ? hold.id || hold.transferId : call.transferId;
    if (id) return this.#map.ownerOfId(id);
    const { resourceId, key } = acts ? hold.items[0] : call.items[0];
    return this.#map.ownerOf(resourceId, key);
  }

  #isNode(batch) {
    return batch !== this.#main && !batch.isLane;
  }

  /** Takes a later map, and moves the calls in the queues. A node without an address that may be
   * used has no batch. */
  #useMap(map) {
    const needsTls = this.#main.addresses.own.some(isTls);
    const nodes = [...map.nodes].map(([name, all]) => [name, usable(all, needsTls)])
      .filter(([, addresses]) => addresses.length);
    const last = this.#byName;
    const stay = new Set(nodes.map(([name]) => last.get(name)));
    const idle = this.#nodes.filter((node) => !stay.has(node) && node.state !== 'requested');
    this.#map = map;
    this.#byName = new Map(nodes.map(([name, addresses]) => {
      const node = last.get(name) ?? idle.pop() ?? this.#newNode(addresses);
      const isSame = node.addresses.own.join(' ') === addresses.join(' ');
      if (node.node !== name || !isSame) {
        Object.assign(node, { node: name, addresses: new Addresses(addresses), answers: false,
          probes: false, failures: 0, retryAt: 0 });
      }
      return [name, node];
    }));
    for (const batch of this.#batches()) this.#follow(batch);
    for (const call of this.#moved) this.#timers.set(call, this.now);
  }

  #newNode(addresses) {
    const node = new Batch(this.#lanes.length + this.#nodes.length, new Addresses(addresses));
    this.#nodes.push(node);
    return node;
  }

  /** Moves the calls in the queues of a batch that go elsewhere now. */
  #follow(batch) {
    for (const call of batch.queues.flatMap((queue) => [...queue])) {
      const port = this.#route(call);
      if (port === batch) continue;
      this.#move(call, QUEUED);
      if (hasFallback(call.kind) && this.#isOpen(port)) this.#fallBack(call);
    }
  }

  /** Lets a server be asked for its map, unless another one is, or was a moment ago. */
  #askMap(batch) {
    if (this.#mapBatch || this.now < this.#mapAskAt || this.#isOpen(batch)) return;
    this.#mapBatch = batch;
  }

  /** A server that has a later map is asked for it. */
  #noteEpoch(batch, epoch) {
    if (Number.isInteger(epoch) && epoch > (this.#map?.epoch ?? 0)) this.#askMap(batch);
  }

  #mapRequest(batch) {
    batch.asksMap = true;
    batch.sent = [];
    batch.timeout = this.messageTimeout;
    return this.#send(batch, 'discovery', { map_epoch: this.#map?.epoch ?? 0 });
  }

  #endMapRequest(batch, pause) {
    batch.asksMap = batch.probes = false;
    batch.state = 'ready';
    if (this.#mapBatch !== batch) return;
    this.#mapBatch = undefined;
    this.#mapAskAt = this.now + pause;
  }

  /** Processes an answer without a map. The server may serve permits all the same. */
  #refuseMap(batch) {
    this.#endMapRequest(batch, MAP_PAUSE);
    if (this.#isNode(batch) && !batch.answers) this.#delay(batch);
  }

  /** Processes the answer to a DISCOVERY. A process that is not master tells its map too. */
  #acceptMap(batch, body) {
    const map = body.has('map') ? readMap(body) : undefined;
    batch.addresses.redirects = 0;
    if (body.flag('is_master')) {
      batch.failures = 0;
      batch.answers = true;
    } else if (this.#isNode(batch) && !batch.answers) {
      batch.answers = batch.addresses.follow(body.object('mastership').get('http_address'));
      if (!batch.answers) this.#delay(batch);
    }
    const isLater = map !== undefined && map.epoch > (this.#map?.epoch ?? 0);
    this.#endMapRequest(batch, isLater ? 0 : MOVED_PAUSE);
    if (isLater) this.#useMap(map);
  }

  // ---- messages

  /** Returns all that can have a message under way, or one to send. */
  #batches() {
    const busy = this.#nodes.filter((node) => !node.isIdle() || this.#wantsMap(node));
    return [this.#main, ...this.#lanes, ...busy];
  }

  #wantsMap(batch) {
    return batch.probes || batch === this.#mapBatch;
  }

  /** Returns whether no new call may wait for a message: the breaker is open. A node has none: while
   * it fails, its calls go to the servers of the options. */
  #isOpen(batch = this.#main) {
    if (batch !== this.#main) return false;
    if (this.#main.state === 'backing_off') return this.now < this.#main.retryAt;
    return this.#main.state === 'requested' && this.#main.failures >= BREAKER_FAILURES;
  }

  /** Returns the kind of the next message. The kinds alternate. Permits that may wait travel in
   * lanes, if there are lanes. */
  #nextKind(batch) {
    for (let i = 1; i <= KINDS; i += 1) {
      const kind = (batch.kind + i) % KINDS;
      if (batch.queues[kind].size && !(kind === WAIT && this.#lanes.length)) return kind;
    }
    return undefined;
  }

  #batchDue(batch) {
    if (batch.state === 'requested') return batch.sentAt + batch.timeout;
    if (batch.isLane) {
      const waiting = [this.#main, ...this.#nodes].filter((other) => other.queues[WAIT].size);
      return Math.min(NEVER, ...waiting.map((other) => this.#opensAt(other)));
    }
    const asks = this.#wantsMap(batch) || this.#nextKind(batch) !== undefined;
    return asks ? this.#opensAt(batch) : NEVER;
  }

  /** Returns when a message may be sent. */
  #opensAt(batch) {
    if (batch.state === 'backing_off') return Math.max(batch.retryAt, this.now);
    return this.#isOpen(batch) ? NEVER : this.now;
  }

  #batchOf({ lane }) {
    if (lane === undefined) return this.#main;
    return this.#lanes[lane] ?? this.#nodes[lane - this.#lanes.length];
  }

  /** Ends the calls and holds whose time has come, and renews holds. */
  #work() {
    for (let owner; (owner = this.#timers.take(this.now)); ) {
      if (owner instanceof Hold) this.#workHold(owner);
      else this.#workCall(owner);
    }
    this.#stocks.forget(this.now);
  }

  #workCall(call) {
    if (call.isMoved) {
      this.#resume(call);
    } else if (call.kind === SETTLE && !call.attended) {
      this.#workSettle(call);
    } else if (call.kind === REPORT && call.state === WAITING) {
      this.#workReport(call);
    } else if (call.state === WAITING) {
      this.#finish(call);
    } else {
      this.#counts.timedOut += 1;
      this.#fallBack(call);
    }
  }

  #workSettle(call) {
    if (this.now >= call.deadline) {
      this.#loseSettle(call);
    } else {
      this.#move(call, QUEUED);
      this.#timers.set(call, call.deadline);
    }
  }

  /** Sends a report again that waits because a server learns, or loses it. */
  #workReport(call) {
    if (this.now >= call.waitsUntil) {
      this.#fallBack(call);
    } else if (this.#isOpen(this.#route(call))) {
      this.#timers.set(call, this.now + SECOND);
    } else {
      this.#move(call, QUEUED);
      this.#timers.set(call, call.deadline);
    }
  }

  #batchRequest(batch) {
    if (batch.state === 'requested') {
      if (this.now < batch.sentAt + batch.timeout) return undefined;
      this.#fail(batch, false);
    }
    if (this.#wantsMap(batch) && !this.#isOpen(batch)) return this.#mapRequest(batch);
    const source = batch.isLane ? this.#findSource(batch) : batch;
    const kind = batch.isLane ? WAIT : this.#nextKind(batch);
    if (source === undefined || kind === undefined || this.#isOpen(source)) return undefined;
    batch.kind = kind;
    batch.source = source;
    const entries = this.#fill(batch, source.queues[kind]);
    return this.#send(batch, METHODS[kind], {
      client_id: this.clientId, [listOf(kind)]: entries });
  }

  #send(batch, method, message) {
    batch.sentAt = this.now;
    batch.state = 'requested';
    batch.number += 1;
    this.#counts.messages += 1;
    return { address: batch.addresses.current, method, number: batch.number, lane: batch.lane,
      message, timeout: batch.timeout };
  }

  /** Finds the batch whose permit a lane sends next, in turn. After a redirect a lane keeps its
   * batch, unless another lane has sent the permit. */
  #findSource(lane) {
    const others = [this.#main, ...this.#nodes];
    const isReady = (batch) => batch?.queues[WAIT].size && !this.#isOpen(batch);
    const keeps = lane.addresses.redirects && isReady(lane.source);
    const index = keeps
      ? others.indexOf(lane.source)
      : others.map((_, i) => (this.#laneTurn + 1 + i) % others.length)
        .find((i) => isReady(others[i]));
    if (index === undefined) return undefined;
    this.#laneTurn = index;
    if (!keeps) this.#beginLane(lane, others[index]);
    return others[index];
  }

  /** Gives the next message of a lane the address that its batch uses now, or another one if the
   * permit has failed before. */
  #beginLane(lane, source) {
    const { own, index, redirect } = source.addresses;
    const failed = source.queues[WAIT].first.failures % own.length;
    lane.addresses.own = own;
    lane.addresses.redirects = 0;
    lane.addresses.index = (index + failed) % own.length;
    lane.addresses.redirect = failed ? '' : redirect;
  }

  /** Fills a message with calls of one kind (P21). Sets how long to wait for its response. */
  #fill(batch, queue) {
    const entries = [];
    let [last, size, text, details] = [this.now, 0, 0, 0];
    batch.sent = [];
    for (let call; (call = queue.first); ) {
      size += call.size();
      text += call.textBytes();
      details += call.permit.detail ? call.size() : 0;
      const isFull = size > MESSAGE_ITEMS || text > MESSAGE_TEXT || details > DETAILS_MAX;
      if (batch.sent.length && (call.alone || batch.sent[0].call?.alone || isFull)) break;
      last = Math.max(last, this.#put(batch, call, entries));
    }
    let most = this.messageTimeout;
    if (batch.kind === WAIT) most += batch.sent[0].call?.sentMaxWait ?? 0;
    batch.timeout = Math.min(most, Math.max(last - this.now, MESSAGE_WAIT_MIN));
    return entries;
  }

  /** Puts a call into a message. Returns until when the message should wait. */
  #put(batch, call, entries) {
    const hold = call.hold?.call === call ? call.hold : undefined;
    this.#move(call, SENT);
    call.batch = batch;
    call.position = batch.sent.length;
    call.unanswered = true;
    batch.sent.push({ call, hold });
    if (hold) hold.asking = hold.wasSent = true;
    if (isPermit(call.kind)) {
      this.#setMaxWait(call);
      entries.push(call.permit.toMessage(call.sentMaxWait, call.number));
      return call.deadline;
    }
    if (call.kind === SETTLE && call.deadline === call.waitsUntil) {
      call.deadline = Math.min(call.waitsUntil, this.now + SETTLE_TIME);
      this.#timers.set(call, call.deadline);
    }
    entries.push(entryOf(call));
    return this.now + this.messageTimeout;
  }

  /** max_wait of a message is at most what is left of the timeout. For a permit that may queue,
   * some of this time is left for the answer. */
  #setMaxWait(call) {
    const maxWait = call.permit.maxWaitTime;
    let rest = Math.max(call.deadline - this.now, 0);
    if (call.kind === WAIT) {
      rest -= Math.min(Math.floor(rest / 4), SECOND);
      call.waitsUntil = call.waitsUntil || this.now + maxWait;
      rest = Math.min(rest, Math.max(call.waitsUntil - this.now, 0));
    }
    call.sentMaxWait = Math.min(maxWait, rest);
  }

  /** Ends a message that has failed. The breaker counts only those to the servers of the options. A
   * node that fails has a pause, and its shards may have moved.
   * alive: a server has answered that it knows no master. refused: a server has refused to read
   * the message, which does not count, unless the message is sent again as it is. */
  #fail(batch, alive, refused = false) {
    const isNode = this.#isNode(batch);
    batch.addresses.redirects = 0;
    if (!batch.isLane && !(isNode && batch.asksMap)) this.#counts.failures += 1;
    if (batch.asksMap) this.#endMapRequest(batch, isNode ? 0 : SECOND);
    if (refused && ![RENEWAL, RELEASE, TRANSFER].includes(batch.kind)) {
      batch.failures = 0;
    } else if (batch === this.#main) {
      const most = BREAKER_FAILURES + (alive ? DOUBLINGS_ALIVE : DOUBLINGS);
      batch.failures = Math.min(batch.failures + 1, most);
      batch.addresses.advance();
    } else if (isNode) {
      this.#delay(batch);
    }
    this.#returnAll(batch, true, refused && batch.sent.length === 1);
    batch.state = 'ready';
    if (batch === this.#main && batch.failures >= BREAKER_FAILURES) this.#openBreaker();
    if (isNode) this.#follow(batch);
    if (this.#isNode(batch.source ?? batch)) this.#askMap(this.#main);
  }

  /** Notes that a node does not answer. It is asked again at its next address, after a pause that
   * doubles each time. */
  #delay(node) {
    const longest = checkDuration('maxPause', this.policy.maxPause);
    node.answers = false;
    node.failures = Math.min(node.failures + 1, DOUBLINGS);
    node.retryAt = this.now + Math.min(SECOND * 2 ** (node.failures - 1), longest);
    node.addresses.advance();
  }

  #openBreaker() {
    const main = this.#main;
    const doublings = main.failures - BREAKER_FAILURES;
    const longest = checkDuration('maxPause', this.policy.maxPause);
    main.state = 'backing_off';
    main.retryAt = this.now + Math.min(SECOND * 2 ** doublings, longest);
    this.#counts.pauses += 1;
    for (const kind of [PERMIT, WAIT, REPORT, SEIZURE]) {
      while (main.queues[kind].size) this.#fallBack(main.queues[kind].first);
    }
    for (const kind of [TRANSFER, SETTLE]) {
      for (const call of main.queues[kind]) this.#finishPeer(call);
    }
  }

  /** Takes all calls out of a message that has no valid response of a master.
   * refused: a server has refused to read the only call. */
  #returnAll(batch, failed, refused = false) {
    const { sent } = batch;
    batch.sent = [];
    for (const { call, hold } of sent.reverse()) {
      if (call) {
        call.batch = undefined;
        this.#return(call, failed, refused);
      }
      if (!hold) continue;
      hold.asking = false;
      if (!hold.call && hold.state === 'asked') this.#endHold(hold, hold.wasSent);
      if (hold.state === 'ending') hold.mustRelease = this.now < hold.giveUpAt;
      this.#plan(hold);
    }
  }

  /** Puts a call back into its queue, or ends it. */
  #return(call, failed, refused) {
    if (call.kind === RENEWAL || call.kind === RELEASE) {
      const { hold } = call;
      hold.mustRelease = hold.mustRelease || call.kind === RELEASE;
      this.#finish(call);
      this.#plan(hold);
      return;
    }
    if (failed && call.kind !== TRANSFER && !call.prefetches) call.failures += 1;
    this.#move(call, QUEUED);
    if (call.kind === TRANSFER) {
      if (this.now >= call.hold.end) this.#endTransfer(call);
    } else if (failed && call.prefetches) {
      this.#endPrefetch(call);
    } else if (failed) {
      call.alone = true;
      if (call.kind === SETTLE) {
        if (refused || call.failures >= SETTLE_FAILURES) this.#loseSettle(call);
      } else if (refused || call.failures > this.#main.addresses.own.length) {
        this.#fallBack(call);
      }
    }
  }

  // ---- calls that were refused as MOVED (N9)

  /** Lets a call wait, and then be sent again: the shard of its key moves to another node. The
   * refusal has no effect. So if no answer was lost, no server has granted the call. */
  #pause(call) {
    this.#counts.moved += 1;
    if (!call.failures) call.unanswered = false;
    if (call.prefetches) {
      this.#endPrefetch(call);
      return;
    }
    if (hasFallback(call.kind) && call.moves >= MOVES_MAX) {
      this.#fallBack(call);
      return;
    }
    const pause = Math.min(MOVED_PAUSE * 2 ** call.moves, SECOND);
    call.moves = Math.min(call.moves + 1, MOVES_MAX);
    if (call.kind === SETTLE && !call.failures) call.deadline = call.waitsUntil;
    this.#move(call, WAITING);
    call.isMoved = true;
    this.#moved.add(call);
    if (call.kind === REPORT) this.#learning.add(call);
    this.#timers.set(call, Math.min(this.now + pause, this.#endOfMoved(call)));
  }

  /** Returns until when a call is sent again. The action of a hold ends with its hold. */
  #endOfMoved(call) {
    return call.kind === TRANSFER ? call.hold.end : call.deadline;
  }

  /** Sends a call again, or ends it. It waits for a map that was asked for. */
  #resume(call) {
    const end = this.#endOfMoved(call);
    if (this.#mapBatch && this.now < end) {
      this.#timers.set(call, Math.min(this.now + MOVED_PAUSE, end));
    } else if (call.kind === SETTLE) {
      this.#workSettle(call);
    } else if (this.now < end) {
      this.#move(call, QUEUED);
      this.#timers.set(call, call.deadline);
      if (hasFallback(call.kind) && this.#isOpen(call.port)) this.#fallBack(call);
    } else if (call.kind === TRANSFER) {
      this.#endTransfer(call);
    } else {
      this.#counts.timedOut += 1;
      this.#fallBack(call);
    }
  }

  /** Processes a refusal as MOVED. */
  #pauseSent(call, hold) {
    if (call) this.#pause(call);
    if (!hold) return;
    hold.asking = false;
    if (!hold.call && hold.state === 'asked') this.#endHold(hold, hold.wasSent);
    this.#plan(hold);
  }

  // ---- responses

  #accept(batch, status, value) {
    const body = readBody(value, status);
    if (batch.asksMap) {
      this.#acceptMap(batch, body);
      return;
    }
    if (body.has('mastership')) {
      if (batch.addresses.follow(body.object('mastership').get('http_address'))) {
        batch.state = 'ready';
        this.#returnAll(batch, false);
      } else {
        this.#fail(batch, true);
      }
      return;
    }
    const { sent, kind, sentAt } = batch;
    const entries = body.list(listOf(kind), sent.length);
    const results = entries.map((entry, i) => this.#read(kind, entry, sent[i]));
    batch.failures = batch.addresses.redirects = 0;
    batch.state = 'ready';
    this.#noteEpoch(batch.source, body.get('map_epoch'));
    batch.sent = [];
    for (const { call } of sent) if (call) call.batch = undefined;
    results.forEach((result, i) => this.#process(kind, sent[i], result, sentAt));
  }

  #read(kind, value, { call, hold }) {
    if (isPermit(kind)) {
      const count = call?.items.length ?? hold?.items.length;
      return count === undefined ? undefined : readDecision(value, count);
    }
    if (kind === REPORT) return readReported(value);
    if (kind === SETTLE) return readSettled(value, call?.items.length);
    return readHoldResult(value, kind, call);
  }

  #process(kind, sent, result, sentAt) {
    // A result before it can have ended this call.
    const call = sent.call?.state === SENT ? sent.call : undefined;
    if (result?.reason === 'MOVED') {
      this.#pauseSent(call, sent.hold);
    } else if (isPermit(kind)) {
      if (result) this.#decidePermit(call, sent.hold, result, sentAt);
    } else if (kind === SEIZURE) {
      if (sent.hold) this.#decideSeizure(call, sent.hold, result, sentAt);
    } else if (!call) {
      return;
    } else if (kind === REPORT) {
      this.#decideReport(call, result);
    } else if (kind === SETTLE) {
      this.#decideSettle(call, result);
    } else if (kind === TRANSFER) {
      this.#decideTransfer(call, result, sentAt);
    } else {
      this.#decideAction(call, result, sentAt);
    }
  }

  /** Processes the decision on a hold. Returns whether the application may use it. */
  #decideHold(hold, holdId, begin, life) {
    hold.asking = false;
    if (holdId) hold.id = holdId;
    if (holdId && hold.state === 'asked') {
      this.#extend(hold, begin, life);
      if (hold.end > this.now) {
        hold.state = 'in_use';
        return true;
      }
    }
    if (hold.state === 'asked') this.#endHold(hold, holdId > 0);
    hold.mustRelease = holdId > 0 && this.now < hold.giveUpAt;
    return false;
  }

  #decidePermit(asking, hold, decision, sentAt) {
    let call = asking;
    if (hold) {
      const begin = sentAt + Math.trunc(decision.waited / (1 + this.policy.drift));
      if (this.#decideHold(hold, decision.holdId, begin, decision.expiresIn)) {
        hold.amounts = [...decision.units];
      } else if (call && decision.holdId) { // it has ended already
        this.#fallBack(call);
        call = undefined;
      }
    }
    if (call) this.#decideCall(call, decision, sentAt);
    if (hold) this.#plan(hold);
  }

  #decideCall(call, decision, sentAt) {
    call.unanswered = false;
    if (!decision.granted) this.#rememberRefusal(call, decision, sentAt);
    if (this.policy.prefetch) this.#learnStock(call, decision, sentAt);
    if (call.prefetches) {
      this.#endPrefetch(call);
      return;
    }
    if (!decision.granted && decision.reason === 'UNMATCHED') {
      call.acquired.unmatched = call.items[decision.itemIndex].resourceId;
      this.#fallBack(call);
      return;
    }
    call.acquired.by = 'server';
    if (decision.granted) this.#noteGrant(call, decision, sentAt);
    else this.#noteRefusal(call, decision);
    if (call.permit.detail) this.#noteFigures(call.acquired, decision);
    const ready = this.now + decision.wait;
    const end = Math.min(ready, call.deadline);
    call.acquired.wait = seconds(ready - end);
    if (end <= this.now || !call.attended) {
      this.#finish(call);
    } else {
      this.#move(call, WAITING);
      this.#timers.set(call, end);
    }
  }

  #noteGrant(call, decision, sentAt) {
    const { acquired, hold } = call;
    this.#counts.granted += 1;
    acquired.granted = true;
    acquired.units = [...decision.units];
    acquired.warning = decision.warning;
    const limits = decision.grants.filter((grant) => grant.limit !== undefined);
    if (limits.length) {
      const least = limits.reduce((a, b) => (b.remaining < a.remaining ? b : a));
      acquired.limit = least.limit;
      acquired.remaining = least.remaining;
      acquired.resetAfter = seconds(least.resetAfter);
    }
    if (hold) {
      acquired.hold = hold.number;
      acquired.endsAt = hold.end;
    }
    if (decision.reservation) this.#noteReservation(call, sentAt + decision.settleWithin);
  }

  #noteRefusal(call, decision) {
    const { acquired } = call;
    this.#counts.refused += 1;
    acquired.reason = decision.reason;
    acquired.itemIndex = decision.itemIndex;
    acquired.limit = decision.limit;
    if (decision.retryAfter !== undefined) acquired.retryAfter = seconds(decision.retryAfter);
    if (!call.attended) this.#refuseCopy(call);
  }

  /** Copies the figures of the limit that the decision names. */
  #noteFigures(acquired, decision) {
    const { figures, itemIndex } = decision;
    for (const limit of decision.granted ? figures.flat() : figures[itemIndex] ?? []) {
      if (limit.shadow || limit.name !== (acquired.limit ?? '')) continue;
      if (acquired.quota > 0 && limit.remaining >= acquired.remaining) continue;
      acquired.quota = limit.quota;
      acquired.remaining = limit.remaining;
      acquired.window = seconds(limit.window);
      acquired.resetAfter = seconds(limit.resetAfter);
    }
  }

  /** P28: a report that a server cannot remember is sent without a request_id. */
  #decideReport(call, result) {
    if (result.reason === 'LEARNING') {
      call.waitsUntil = call.waitsUntil || this.now + REPORT_TIME;
      this.#move(call, WAITING);
      this.#learning.add(call);
      this.#timers.set(call, this.now + SECOND);
    } else if (result.reason && result.reason !== 'REPEATED' && call.number) {
      call.number = 0;
      this.#move(call, QUEUED);
    } else {
      this.#counts.uncharged += Math.max(0, call.cost - result.charged);
      this.#counts.reported += 1;
      this.#finish(call);
    }
  }

  /** Processes the answer to a renewal or a release. */
  #decideAction(action, result, sentAt) {
    const { hold } = action;
    const releases = action.kind === RELEASE;
    this.#finish(action);
    const renewed = !releases && hold.state === 'in_use' && !hold.isEmpty();
    if (releases && result.gone) {
      hold.renewAt = this.now;
    } else if (renewed && !result.gone) {
      hold.claims = false;
      this.#extend(hold, sentAt, result.expiresIn);
      result.amounts.forEach((amount, i) => {
        if (amount >= hold.amounts[i]) return;
        hold.amounts[i] = amount;
        this.#setChanged(hold, true);
      });
    } else if (renewed && hold.claims) {
      this.#loseHold(hold, false);
    } else if (renewed) {
      hold.claims = true;
      hold.renewAt = this.now;
    }
    this.#plan(hold);
  }

  #decideTransfer(call, result, sentAt) {
    const { hold } = call;
    if (result.reason && hold.state === 'in_use' && call.peer) {
      hold.amounts = hold.amounts.map((has, i) => has + call.amounts[i]);
    } else if (result.reason) {
      hold.mustRelease = true;
    }
    if (call.peer) {
      const out = call.peer.acquired;
      out.by = 'server';
      out.reason = result.reason;
      out.granted = !result.gone && !result.reason;
      if (out.granted) {
        out.transferId = result.id;
        out.endsAt = sentAt + result.expiresIn;
        out.units = [...call.amounts];
      }
    }
    this.#endTransfer(call);
  }

  #decideSeizure(call, hold, result, sentAt) {
    const granted = !result.gone && !result.reason;
    if (granted && hold.state === 'asked') {
      hold.items = result.items;
      hold.amounts = result.amounts;
    }
    const used = this.#decideHold(hold, granted ? result.id : 0, sentAt, result.expiresIn);
    if (call) {
      const out = call.acquired;
      out.by = 'server';
      out.granted = used;
      out.reason = result.reason;
      if (used) {
        out.hold = hold.number;
        out.endsAt = hold.end;
        out.units = [...hold.amounts];
        this.#counts.granted += 1;
      } else {
        this.#counts.refused += 1;
      }
      this.#finish(call);
    }
    this.#plan(hold);
  }
}
