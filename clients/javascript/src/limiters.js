// Limiters of a resource, which follow its lease, and limiters of a process, which need no server.
// The rules are those of the section >>limiters of doorman.h.

import {
  AMOUNT_MAX, DURATION_MAX, GRAINS, NEVER, SECOND, checkAmount, checkDuration, withDefaults,
} from './base.js';

const TICKS = 256; // in a nanosecond
const SAVED_MAX = 2 ** 62;
const REFRESH_MIN = SECOND / 4;
const MAX_KEYS = 1e6;
export const ALLOWED = 'allowed';
export const REFUSED = 'refused';
export const IMPOSSIBLE = 'impossible';

/** Returns units in 1/4096 of a unit, rounded up. */
export const grains = (units) => Math.ceil(units * GRAINS);

export const isAmount = (units) => units >= 0 && units <= AMOUNT_MAX;

/** What a limiter has counted, in grains, and what its client has told it. */
export class Usage {
  allowed = 0;
  refused = 0;
  excess = 0;
  unmet = 0; // of refused and excess; tries that are impossible are no demand (L2)
  unmetSince = NEVER; // the first refusal since the last look
  largest = 0; // the largest request since the last sample; 0: none was above one unit
  ceiling = 0; // the largest capacity that the limiter can ever get; 0: not known
  expected = 0; // the amount of the next lease; 0: no larger lease is expected
  refreshAt = NEVER; // when another amount may come
  growthTime = 0;
  ceilingAsked = 0;
  ceilingUntil = 0;
  shadow = false;
  killSwitch = false;

  /** Counts an attempt. Returns the decision that its caller gets. */
  count(units, decision, now) {
    if (decision !== IMPOSSIBLE && units > GRAINS) this.largest = Math.max(this.largest, units);
    if (decision === ALLOWED) {
      this.allowed += units;
      return ALLOWED;
    }
    if (decision === REFUSED) {
      this.unmet += units;
      this.unmetSince = Math.min(this.unmetSince, now);
    }
    if (this.shadow || this.killSwitch) {
      this.excess += units;
      return ALLOWED;
    }
    this.refused += units;
    return decision;
  }

  refreshIn(now) {
    return this.refreshAt === NEVER ? NEVER : Math.max(this.refreshAt - now, REFRESH_MIN);
  }
}

/** What a rate saves at one amount. `most` is in ticks; -1: the amount is 0 or unlimited. */
class Quota {
  constructor(amount, burst, burstUnits) {
    this.amount = amount;
    this.most = -1;
    this.unitTime = amount < 0 ? 0 : Infinity;
    if (amount > 0) {
      this.unitTime = (TICKS * SECOND) / amount;
      const depth = burstUnits > 0 ? burstUnits * this.unitTime : burst * TICKS;
      this.most = Math.ceil(Math.min(Math.max(depth, this.unitTime), 9e18));
    }
  }

  /** Limits what can be saved, so that a rise of the rate does not raise the saved units. */
  limitRise(before) {
    if (this.amount <= before.amount) return;
    const depth = before.most >= 0 ? before.most * (before.amount / this.amount) : 0;
    this.most = Math.min(this.most, Math.ceil(Math.max(depth, Math.min(this.unitTime, 9e18))));
  }

  /** Returns how many ticks can be saved for the largest request. */
  depth(largest) {
    if (this.most < 0) return SAVED_MAX;
    return Math.max(this.most, Math.ceil(Math.min(largest * this.unitTime, SAVED_MAX)));
  }
}

/** A token bucket whose rate is a lease (L1). It starts with nothing saved. What is saved is
 * `#saved` ticks at the time `#at`, so that numbers stay small and exact. */
export class Rate {
  isGauge = false;
  usage = new Usage();
  #at;
  #saved = 0;
  #until = NEVER;

  constructor(burst, burstUnits, now) {
    this.burst = burst;
    this.burstUnits = burstUnits;
    this.#at = now;
    this.before = this.after = this.#quotaOf(0);
  }

  #quotaOf(amount) {
    return new Quota(amount, this.burst, this.burstUnits);
  }

  #quota(now) {
    return now < this.#until ? this.before : this.after;
  }

  #level(most, now) {
    return Math.min(most, (now - this.#at) * TICKS + this.#saved);
  }

  #save(ticks, now) {
    this.#at = now;
    this.#saved = ticks;
  }

  /** Sets the rate: `amount` until `until`, and `after` it. What is saved stays, but no more than
   * fits. */
  set({ amount, until, after }, largest, now) {
    const old = this.#quota(now);
    const first = this.#quotaOf(amount);
    const second = this.#quotaOf(after);
    this.#carry(old, now < until ? first : second, largest, now);
    if (now < until) second.limitRise(first);
    this.before = first;
    this.after = second;
    this.#until = until;
  }

  /** Keeps what is saved when the rate changes: no units are gained by the change. */
  #carry(old, to, largest, now) {
    const inUnits = this.burstUnits > 0;
    const size = inUnits ? 0 : largest;
    const saved = this.#level(old.depth(size), now);
    const isEnd = (quota) => quota.unitTime === 0 || quota.unitTime === Infinity;
    let ratio;
    if (isEnd(old) || isEnd(to)) {
      if (to.unitTime === old.unitTime) return;
      ratio = to.unitTime > old.unitTime ? Infinity : 0;
    } else {
      ratio = to.unitTime / old.unitTime;
    }
    const unitsStay = (inUnits || largest > 0) && ratio < 1e12 && to.most >= 0;
    if (saved <= 0 || (ratio > 1 && !unitsStay)) return;
    const after = to.depth(size);
    if (ratio >= 1 && !unitsStay && this.#level(after, now) <= saved) return;
    this.#save(Math.trunc(Math.min(saved * ratio, after)), now);
  }

  /** Returns the price of n units in ticks, or -1 if the rate never saves so much. */
  #price(quota, n) {
    if (quota.amount <= 0) return -1;
    const price = n * quota.unitTime;
    const most = this.burstUnits > 0 ? quota.most : SAVED_MAX;
    if (!(price <= most * (1 + 1e-9))) return -1;
    return Math.min(Math.ceil(price), most);
  }

  #isPossible(n) {
    const { ceiling } = this.usage;
    if (ceiling > 0 && !((n * TICKS * SECOND) / ceiling <= SAVED_MAX)) return false;
    return this.burstUnits <= 0 || n <= Math.max(this.burstUnits, 1) * (1 + 1e-9);
  }

  /** Takes n units if they may be used now. Returns the decision. */
  take(n, now) {
    if (!isAmount(n)) return IMPOSSIBLE;
    if (n <= 0) return ALLOWED;
    const quota = this.#quota(now);
    const price = this.#price(quota, n);
    if (price < 0) {
      const refused = this.#isPossible(n) ? REFUSED : IMPOSSIBLE;
      return this.usage.count(grains(n), quota.amount < 0 ? ALLOWED : refused, now);
    }
    const left = this.#level(Math.max(quota.most, price), now) - price;
    if (left < 0) return this.usage.count(grains(n), REFUSED, now);
    this.#save(left, now);
    return this.usage.count(grains(n), ALLOWED, now);
  }

  /** Returns the time until n units are saved; NEVER if the rate in force never saves them. */
  delay(n, now) {
    const quota = this.#quota(now);
    const { shadow, killSwitch } = this.usage;
    if (quota.amount < 0 || n <= 0 || shadow || killSwitch) return 0;
    const price = isAmount(n) ? this.#price(quota, n) : -1;
    if (price < 0) return NEVER;
    const missing = price - this.#level(Math.max(quota.most, price), now);
    return Math.max(0, Math.ceil(missing / TICKS));
  }

  /** Returns how long to wait after a refusal; NEVER: no change is expected. */
  retryAfter(n, now) {
    const { usage } = this;
    const delay = this.delay(n, now);
    const refreshIn = usage.refreshIn(now);
    const mayGrow = usage.expected > 0 || delay === NEVER;
    if (!mayGrow || refreshIn === NEVER) return Math.max(delay, 1);
    const growth = this.#growth(n, usage.expected || usage.ceiling);
    return Math.max(1, Math.min(delay, refreshIn + growth));
  }

  #growth(n, expected) {
    if (expected <= 0) return 0;
    const slow = (n / expected) * SECOND;
    const { growthTime, ceiling } = this.usage;
    const grown = growthTime ? Math.max((n / ceiling) * SECOND, growthTime) : Infinity;
    return Math.trunc(Math.min(slow, grown, DURATION_MAX));
  }
}

/** Units in use at once, at most the lease (L1). `inUse` and `peak` are in grains. */
export class Gauge {
  isGauge = true;
  usage = new Usage();
  inUse = 0;
  peak = 0;
  overReleased = 0;
  #schedule = { amount: 0, until: NEVER, after: 0 };

  set(schedule) {
    this.#schedule = schedule;
  }

  #most(amount) {
    return Math.trunc((amount < 0 ? AMOUNT_MAX : amount) * GRAINS);
  }

  #room(now) {
    const { amount, until, after } = this.#schedule;
    return this.#most(now < until ? amount : after);
  }

  /** Takes n units if they may be used now. Returns the decision. */
  take(n, now) {
    if (!isAmount(n)) return IMPOSSIBLE;
    if (n <= 0) return ALLOWED;
    const units = grains(n);
    let decision = ALLOWED;
    if (this.inUse + units > this.#room(now)) {
      const ceiling = this.#most(this.usage.ceiling);
      decision = ceiling === 0 || units <= ceiling ? REFUSED : IMPOSSIBLE;
    }
    decision = this.usage.count(units, decision, now);
    if (decision === ALLOWED) {
      this.inUse += units;
      this.peak = Math.max(this.peak, this.inUse);
    }
    return decision;
  }

  /** Gives n units back. Throws a RangeError if more are given back than are in use. */
  release(n) {
    const units = grains(checkAmount('units', n));
    if (units > this.inUse) {
      this.overReleased += 1;
      throw new RangeError('units: more are released than are in use');
    }
    this.inUse -= units;
  }

  delay(n, now) {
    const fits = isAmount(n) && this.inUse + grains(n) <= this.#room(now);
    return fits || this.usage.shadow || this.usage.killSwitch ? 0 : NEVER;
  }

  retryAfter(n, now) {
    const refreshIn = this.usage.refreshIn(now);
    const wasAsked = n > this.usage.ceilingAsked;
    return wasAsked ? Math.max(refreshIn, this.usage.ceilingUntil - now) : refreshIn;
  }
}

// ---- limiters without a server

const LIMIT = { kind: '', rate: 0, size: 0, limit: 0, window: 0 };

/** Returns a valid limit of one process, for the fallback `local` of permits. Throws a RangeError
 * for anything else. */
export function checkLimit(given) {
  const limit = withDefaults(given, LIMIT);
  if (limit.kind === 'TOKEN_BUCKET') {
    if (!(checkAmount('local.rate', limit.rate) > 0 && checkAmount('local.size', limit.size) > 0)) {
      throw new RangeError('local: a TOKEN_BUCKET needs a rate and a size above 0');
    }
    if (limit.limit || limit.window) {
      throw new RangeError('local: a TOKEN_BUCKET has no limit and no window');
    }
  } else if (limit.kind === 'FIXED_WINDOW' || limit.kind === 'SLIDING_WINDOW') {
    if (!(limit.limit >= 0 && limit.limit <= 1e8)) {
      throw new RangeError('local.limit: must be from 0 to 1e8');
    }
    if (!(checkDuration('local.window', limit.window) > 0)) {
      throw new RangeError('local.window: must be more than 0');
    }
    if (limit.rate || limit.size) {
      throw new RangeError(`local: a ${limit.kind} has no rate and no size`);
    }
  } else {
    throw new RangeError('local.kind: must be TOKEN_BUCKET, FIXED_WINDOW or SLIDING_WINDOW');
  }
  return limit;
}

/** Returns a * b / c, rounded down. Products can be larger than the integers of a double. */
const mulDiv = (a, b, c) => Number((BigInt(a) * BigInt(b)) / BigInt(c));

/** Limiters by key, for as many keys as were used last. Each key has a limiter of its own. */
export class LocalLimiters {
  #states = new Map();

  constructor(limit, maxKeys = MAX_KEYS) {
    this.limit = limit;
    this.maxKeys = maxKeys;
  }

  /** Takes n units. Returns 0 if they are allowed, else the time until they could be; NEVER: they
   * never fit. */
  take(key, n, now) {
    let state = this.#states.get(key);
    this.#states.delete(key);
    if (!state && this.#states.size >= this.maxKeys) {
      this.#states.delete(this.#states.keys().next().value); // it was used the longest time ago
    }
    const isBucket = this.limit.kind === 'TOKEN_BUCKET';
    state ??= isBucket ? { at: now, saved: Infinity } : { number: -1, here: 0, last: 0 };
    this.#states.set(key, state);
    return isBucket ? this.#takeTokens(state, n, now) : this.#takeWindow(state, n, now);
  }

  #takeTokens(state, n, now) {
    const unitTime = (TICKS * SECOND) / this.limit.rate;
    const most = Math.ceil(this.limit.size * unitTime);
    state.saved = Math.min(most, (now - state.at) * TICKS + state.saved);
    state.at = now;
    let price = Math.ceil(n * unitTime);
    if (price > most * (1 + 1e-9)) return NEVER;
    price = Math.min(price, most);
    if (price > state.saved) return Math.max(1, Math.ceil((price - state.saved) / TICKS));
    state.saved -= price;
    return 0;
  }

  #takeWindow(state, n, now) {
    const length = Math.round(this.limit.window * SECOND);
    const number = Math.floor(now / length);
    const rest = length - (now % length);
    if (number !== state.number) {
      state.last = number === state.number + 1 ? state.here : 0;
      state.here = 0;
      state.number = number;
    }
    const most = Math.trunc(this.limit.limit * GRAINS);
    const units = grains(n);
    if (units > most) return NEVER;
    const slides = this.limit.kind === 'SLIDING_WINDOW';
    const carried = slides ? state.last - mulDiv(state.last, length - rest, length) : 0;
    if (state.here + carried + units <= most) {
      state.here += units;
      return 0;
    }
    return slides ? slidingDelay(state, most - units, rest, length) : rest;
  }
}

/** Returns the time until at most `room` of the units of two windows count. */
function slidingDelay(state, room, rest, length) {
  if (state.here > room) return rest + length - mulDiv(room, length, state.here);
  return Math.max(1, rest - mulDiv(room - state.here, length, state.last));
}
