// What drives the cores of a client: a clock, timers and connections.

import { randomBytes } from 'node:crypto';
import os from 'node:os';

import { NEVER, SECOND, checkDuration } from './base.js';
import { Connections } from './http.js';
import { LeaseCore } from './leases.js';
import { PermitCore } from './permits.js';

const SLEEP_MAX = 60 * SECOND;
const PAUSE_MAX = SECOND / 5; // between two looks at a limiter
const UNMATCHED_MAX = 1000; // resources; applications may ask for names that others choose
const SUSPENDED_MIN = 1000; // ms by which clocks differ when the machine was suspended

/** Returns by how many ms the time since the start of the machine is ahead of performance.now(). */
function readAhead() {
  try {
    return os.uptime() * 1000 - performance.now();
  } catch {
    return NaN; // it cannot be read, so no suspension is noticed
  }
}

const aheadAtFirst = readAhead();
let lastMono = performance.now();
let lastAhead = Date.now() - lastMono;
let suspended = 0;

/** Returns nanoseconds of a clock that never goes back. performance.now() stands still while the
 * machine is suspended, so what the uptime has gained meanwhile is added. To read the uptime is
 * slow, so it is read once in a second, and when the time of day has leapt, which may have been
 * set. */
export function clock() {
  const mono = performance.now();
  const ahead = Date.now() - mono;
  if (Math.abs(ahead - lastAhead) > SUSPENDED_MIN || mono - lastMono > SUSPENDED_MIN) {
    lastMono = mono;
    lastAhead = ahead;
    const gained = readAhead() - aheadAtFirst;
    if (gained - suspended > SUSPENDED_MIN) suspended = gained;
  }
  return Math.round((mono + suspended) * 1e6);
}

/** Returns a name that no other client has, and that nobody can guess. */
export const newClientId = () =>
  `${os.hostname()}:${process.pid}:${randomBytes(8).toString('hex')}`;

/** Returns the time of the clock at which a timeout in seconds ends; undefined: never. */
export const deadlineIn = (timeout) =>
  (timeout === undefined ? NEVER : clock() + checkDuration('timeout', timeout));

const aborts = new WeakMap(); // by the signal: what to call when it aborts

/** Calls a function when a signal aborts. However many wait for a signal, it has one listener,
 * because Node.js warns of more than ten. Returns a function that ends this. */
function onAbort(signal, call) {
  if (!signal) return () => {};
  if (!aborts.has(signal)) {
    const calls = new Set();
    const listener = () => [...calls].forEach((each) => each());
    aborts.set(signal, { calls, listener });
    signal.addEventListener('abort', listener, { once: true });
  }
  const { calls, listener } = aborts.get(signal);
  calls.add(call);
  return () => {
    calls.delete(call);
    if (calls.size) return;
    signal.removeEventListener('abort', listener);
    aborts.delete(signal);
  };
}

/** Calls a function of the application, which may be asynchronous. failed: gets its error. */
function callSafely(work, argument, failed) {
  try {
    const result = work(argument);
    if (typeof result?.then === 'function') result.then(undefined, failed);
  } catch (error) {
    failed(error);
  }
}

/** Both cores of a client, and what they need of the world. */
export class Engine {
  onGone = new Map(); // functions by the number of a hold
  stopping = false;
  #stopped = false;
  #connections;
  #timer;
  #underWay = new Map(); // what aborts the request of each channel
  #waiters = new Set(); // functions that are called when something may have changed
  #turns = new Set(); // the same of callers behind others, which wait for their turn or the end
  #pending = 0; // promises that somebody waits for
  #onWarning;
  #unmatched = new Set(); // what is missing of which resources, as far as it was warned of

  constructor(addresses, options) {
    const now = clock();
    this.clientId = options.clientId ?? newClientId();
    this.leases = new LeaseCore(this.clientId, addresses, now, {
      requestTimeout: options.leaseTimeout });
    this.permits = new PermitCore(this.clientId, addresses, now, {
      policy: options.permits, requestTimeout: options.permitTimeout });
    this.#connections = new Connections(options);
    this.#onWarning = options.onWarning;
  }

  /** A warning that fails must end neither the process nor the loop. */
  #warn(text) {
    const failed = (error) => process.emitWarning(`doorman: onWarning has failed: ${error}`);
    callSafely(this.#onWarning, text, failed);
  }

  checkOpen() {
    if (this.stopping) throw new Error('the client is closed');
  }

  /** Checks that a settle can still be sent. close() waits for those that come while it runs. */
  checkSends() {
    if (this.#stopped) throw new Error('the client is closed');
  }

  // ---- the loop

  /** Does what is due, sends requests, and plans when to do it again. */
  step() {
    if (this.#stopped) return;
    const now = clock();
    for (const core of [this.leases, this.permits]) {
      for (let request; (request = core.next(now)); ) this.#send(core, request);
    }
    for (let acquired; (acquired = this.permits.decision(now)); ) {
      const resolve = acquired.context;
      acquired.context = undefined;
      if (acquired.unmatched) this.#noteUnmatched(acquired);
      resolve?.(acquired);
    }
    const told = [];
    for (let held; (held = this.permits.change(now)); ) told.push(held);
    this.#plan();
    for (const held of told) this.#tell(held);
  }

  /** Does a step, and wakes those that wait for units. */
  work() {
    this.step();
    for (const wake of [...this.#waiters]) wake();
  }

  /** Does a step, and wakes all that wait, because something has ended. */
  end() {
    this.work();
    for (const wake of [...this.#turns]) wake();
  }

  /** Sets the timer. It keeps the process alive only while somebody waits for a promise. */
  #plan() {
    clearTimeout(this.#timer);
    const due = Math.min(this.leases.due(), this.permits.due());
    const wait = Math.max(0, Math.min(due - clock(), SLEEP_MAX));
    this.#timer = setTimeout(() => this.work(), Math.ceil(wait / 1e6));
    if (!this.#pending) this.#timer.unref();
  }

  /** P23: the fallback has decided, because the servers have no limits for a resource. Its name may
   * be a typing error, so this is warned of once. */
  #noteUnmatched(acquired) {
    acquired.reason = 'UNMATCHED';
    this.#warnOfUnmatched(acquired.unmatched, 'limits', 'the fallback decides');
  }

  /** The same for leases, whose callers could wait for ever. */
  #noteUnmatchedLeases() {
    for (const [resourceId, { outcome }] of this.leases.resources) {
      if (outcome !== 'UNMATCHED') continue;
      this.#warnOfUnmatched(resourceId, 'capacity', 'the fallback is in force');
    }
  }

  #warnOfUnmatched(resourceId, missing, result) {
    const key = `${missing} ${resourceId}`;
    if (this.#unmatched.has(key) || this.#unmatched.size >= UNMATCHED_MAX) return;
    this.#unmatched.add(key);
    this.#warn(`${resourceId}: the servers have no ${missing} for this resource, so ${result}. ` +
      `Correct the name, or add ${missing} to the configuration of the servers`);
  }

  #tell(held) {
    const onGone = this.onGone.get(held.hold);
    if (held.gone) this.onGone.delete(held.hold);
    const failed = (error) => this.#warn(`onGone has failed: ${error?.stack ?? error}`);
    if (onGone) callSafely(onGone, held, failed);
  }

  async #send(core, request) {
    const name = core === this.leases ? 'leases' : `permits ${request.lane}`;
    this.#underWay.get(name)?.abort(); // the core has given this request up
    const abort = new AbortController();
    this.#underWay.set(name, abort);
    const timer = setTimeout(() => abort.abort(), Math.ceil(request.timeout / 1e6));
    const about = `${request.address}: ${request.method}`;
    try {
      const { status, body } = await this.#connections.post(request, abort.signal);
      const wrong = core.response(request, status, body, clock());
      if (wrong) this.#warn(`${about}: ${wrong}`);
      else if (!body?.mastership) {
        this.#other(core).retrySoon(clock());
        if (core === this.leases) this.#noteUnmatchedLeases();
      }
    } catch (error) { // of the network, TLS or HTTP
      if (!this.#stopped) this.#warn(`${about}: ${abort.signal.aborted ? 'no response' : error}`);
      core.failed(request, clock());
    }
    clearTimeout(timer);
    if (this.#underWay.get(name) === abort) this.#underWay.delete(name);
    this.work();
  }

  #other(core) {
    return core === this.leases ? this.permits : this.leases;
  }

  // ---- the calls

  /** Opens a resource. Warns if it is open already with other options (K5). */
  open(resourceId, options) {
    this.checkOpen();
    const resource = this.leases.open(resourceId, options, clock());
    if (resource.differs) {
      this.#warn(`${resourceId}: ${resource.differs}: not as in the first opening, which stays ` +
        'in force');
    }
    this.step();
    return resource;
  }

  /** Calls a function with what gets the decision on its call. Returns a promise of it.
   * abandon: what to do if the signal aborts the wait. */
  async decision(ask, signal, abandon = () => {}) {
    this.checkOpen();
    signal?.throwIfAborted();
    let ends;
    this.#pending += 1;
    try {
      return await new Promise((resolve, reject) => {
        ask(resolve);
        ends = onAbort(signal, () => {
          reject(signal.reason);
          abandon();
          this.step();
        });
        this.step();
      });
    } finally {
      ends?.();
      this.#pending -= 1;
      if (!this.#pending) this.#timer?.unref();
    }
  }

  /** Waits until something may have changed, at most for a time. turn: of a caller behind others,
   * which only turn.wake and the end wake, so that a crowd of callers does not look at each
   * change. */
  async changed(time, signal, turn) {
    const wait = Math.max(0, Math.min(time, SLEEP_MAX));
    const waiters = turn ? this.#turns : this.#waiters;
    let wake, ends;
    await new Promise((resolve) => {
      const timer = setTimeout(() => wake(), Math.ceil(wait / 1e6));
      wake = () => {
        clearTimeout(timer);
        resolve();
      };
      waiters.add(wake);
      if (turn) turn.wake = wake;
      ends = onAbort(signal, wake);
    });
    waiters.delete(wake);
    ends();
    signal?.throwIfAborted();
  }

  /** Returns how long to wait before the next try to take units. */
  pause(resource, units) {
    return Math.min(PAUSE_MAX, resource.limiter.delay(units, clock()));
  }

  // ---- the end

  /** Gives everything back. Waits up to `timeout` seconds until the servers know it. */
  async stop(timeout) {
    const deadline = deadlineIn(timeout);
    if (!this.stopping) {
      this.stopping = true;
      this.#giveBack(clock());
      this.end();
    }
    while (!this.#stopped && !this.#isIdle() && clock() < deadline) {
      await this.changed(deadline - clock());
    }
    this.#stopped = true; // what is sent after this is lost
    clearTimeout(this.#timer);
    for (const abort of this.#underWay.values()) abort.abort();
    this.#connections.close();
  }

  #isIdle() {
    return this.leases.isIdle() && this.permits.isIdle();
  }

  #giveBack(now) {
    for (const resource of [...this.leases.resources.values()]) {
      while (resource.opened) this.leases.close(resource, now, true);
      resource.requestAt = Math.min(resource.requestAt, now);
    }
    this.permits.stop(now);
  }
}
