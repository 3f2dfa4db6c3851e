// Estimates how much a resource should want, out of its use (L4).
//
// The section >>client of doorman.h, "client: demand", explains the estimate. An estimator is a
// pure structure: its input is what a limiter has counted, and what the responses of the server
// show.
//
// A reading is what the limiter of a resource has counted up to the time `at`: `allowed` and
// `refused` in grains, and in units `largest`, `waiting` (callers wait for them now), `waited` (the
// integral of `waiting` over time, in units * seconds), `waitingPeak`, `peak` and `inUse`.
// `unmetSince` is the first refusal since the last look.
//
// A supply is what the responses of the server show: `amount`, the larger of the capacity in force
// and the safe capacity; `exhausted`, whether the server granted less than what was wanted; and
// `idleAfter`: a gauge without use for this long is idle (0: for a window).

import { AMOUNT_MAX, GRAINS, NEVER, SECOND } from './base.js';

const SAMPLES = 11;
const REMEMBERED = 10; // windows
const SHORT = 2;
export const LOOK_MIN = SECOND / 10; // from a refusal to a look; a shorter time shows no rate

const NO_USE = { seconds: 0, rate: 0, peak: 0, unmet: false, bounded: false };
const units = (before, after) => (after - before) / GRAINS;

/** The wants of one resource. `wants` is the result. */
export class Estimator {
  /** bounds: minimum, maximum and initial in units, and window in nanoseconds. */
  constructor(first, isGauge, bounds) {
    Object.assign(this, bounds);
    this.isGauge = isGauge;
    this.initialUntil = first.at + this.window;
    this.samples = [{ reading: first, use: NO_USE }]; // the newest one is the first
    this.looked = this.noted = first;
    this.raised = this.raisedUntil = 0;
    this.largest = this.largestUntil = 0;
    this.served = false;
    this.shortSince = NEVER;
    this.ceiling = this.ceilingUntil = 0;
    this.usedAt = first.at;
    this.refusedUntil = 0;
    this.wants = this.initial;
    this.unmet = false;
  }

  due() {
    return this.samples[0].reading.at + Math.floor(this.window / 10);
  }

  /** Returns when to check whether a gauge has become idle. */
  checkAt(supply) {
    if (!this.isGauge || this.wants <= this.minimum) return NEVER;
    return this.noted.at + Math.max(Math.floor(this.#idleAfter(supply) / 4), SECOND / 100);
  }

  /** Returns whether this is a gauge without use for long enough. */
  isIdle(at, supply) {
    const since = Math.max(this.usedAt + this.#idleAfter(supply), this.refusedUntil);
    return this.isGauge && at >= since;
  }

  /** Adds a sample. Call it at due(). */
  sample(reading, supply) {
    const last = this.samples[0].reading;
    const futile = this.#remember(reading, supply);
    this.#noteUse(reading);
    const use = this.isGauge
      ? this.#gaugeUse(last, reading, supply, futile)
      : this.#rateUse(reading, supply);
    this.samples = [{ reading, use }, ...this.samples.slice(0, SAMPLES - 1)];
    this.unmet = use.unmet;
    const isNear = reading.unmetSince !== NEVER && reading.at < reading.unmetSince + LOOK_MIN;
    if (!isNear || supply.exhausted) this.looked = reading;
    this.#conclude(reading, supply, futile);
  }

  /** Looks at a reading between two samples, after a refusal or while a caller waits. */
  look(reading, supply) {
    const futile = this.#remember(reading, supply);
    this.#noteUse(reading);
    let raised;
    if (this.isGauge) {
      const use = this.#gaugeUse(this.looked, reading, supply, futile);
      raised = futile ? 0 : use.peak + reading.waiting;
      this.unmet = use.unmet;
    } else {
      raised = this.#lookAtRate(reading, supply);
    }
    if (reading.at < this.raisedUntil) raised = Math.max(raised, this.raised);
    this.raised = raised;
    this.raisedUntil = reading.at + Math.floor(this.window / 5);
    this.looked = reading;
    this.#conclude(reading, supply, futile);
  }

  /** Checks between two samples whether a gauge has become idle. */
  check(reading, supply) {
    this.#noteUse(reading);
    if (this.isIdle(reading.at, supply)) this.#conclude(reading, supply, false);
  }

  #base() {
    return Math.min(this.minimum > 0 ? this.minimum : 1, this.maximum);
  }

  #idleAfter(supply) {
    return supply.idleAfter ? Math.min(this.window, supply.idleAfter) : this.window;
  }

  #noteUse(reading) {
    const refused = reading.refused !== this.noted.refused;
    const used = reading.inUse > 0 || reading.allowed !== this.noted.allowed;
    if (used || reading.waiting > 0) this.usedAt = reading.at;
    if (used) this.refusedUntil = 0;
    if (refused) this.refusedUntil = reading.at + this.window;
    this.noted = reading;
  }

  #gaugeUse(before, reading, supply, futile) {
    const least = Math.max(this.#base(), supply.amount);
    const refused = futile ? 0 : units(before.refused, reading.refused);
    let most = 7 * Math.max(reading.peak, least);
    if (!supply.exhausted) most = Math.max(most, reading.largest);
    const unmet = !futile && (refused > 0 || reading.waiting > 0);
    return { ...NO_USE, peak: reading.peak + Math.min(refused, most), unmet };
  }

  #rateUse(reading, supply) {
    const last = this.samples[0].reading;
    const seconds = (reading.at - last.at) / SECOND;
    const peaks = this.samples.map((sample) => sample.reading.waitingPeak);
    const workers = Math.max(reading.waitingPeak, ...peaks);
    const minimum = this.#base();
    const allowed = units(last.allowed, reading.allowed);
    let unmet = units(last.refused, reading.refused);
    const most = 7 * Math.max(allowed, Math.max(minimum, supply.amount) * seconds);
    const waiting = (reading.waited - last.waited) / seconds;
    const busy = workers - waiting;
    if (waiting > 0) {
      unmet += busy * most > allowed * waiting ? (allowed * waiting) / busy : most;
    }
    let known = Math.max(allowed, minimum * seconds);
    if (!supply.exhausted) known = Math.max(known, reading.largest);
    const counts = supply.exhausted ? Math.min(unmet, most) : unmet;
    const rate = (allowed + counts) / seconds;
    return { seconds, rate, peak: 0, unmet: unmet > 0, bounded: unmet >= 7 * known };
  }

  #uses() {
    return this.samples.slice(0, -1).map((sample) => sample.use);
  }

  /** Returns the mean rate over the window. Newer intervals count more. */
  #mean() {
    let rate = 0;
    let weights = 0;
    this.#uses().forEach((use, age) => {
      if (use.bounded) return;
      const weight = use.seconds * (SAMPLES - 1 - age);
      rate += weight * use.rate;
      weights += weight;
    });
    return weights > 0 ? rate / weights : 0;
  }

  /** Returns a lower bound of the wants, so that they rise sooner than they fall. */
  #recent() {
    const uses = this.#uses().slice(0, 3);
    const recent = uses.length && uses[0].unmet ? uses[0].rate : 0;
    return uses.length === 3 ? Math.max(recent, Math.min(...uses.map((use) => use.rate))) : recent;
  }

  /** Remembers the largest request. Returns whether that of a gauge can never fit. */
  #remember(reading, supply) {
    const { at } = reading;
    if (reading.largest >= this.largest || at >= this.largestUntil) {
      this.largest = reading.largest;
      this.served = false;
      this.largestUntil = at + REMEMBERED * this.window;
    }
    if (!this.isGauge) return false;
    this.served = this.served || reading.peak >= this.largest;
    const isShort = supply.exhausted && this.largest > supply.amount;
    this.shortSince = isShort ? Math.min(this.shortSince, at) : NEVER;
    if (isShort && at - this.shortSince >= SHORT * this.window) {
      this.ceiling = supply.amount;
      this.ceilingUntil = at + REMEMBERED * this.window;
    }
    const most = at < this.ceilingUntil ? Math.min(this.maximum, this.ceiling) : this.maximum;
    if (this.largest > most) this.largest = 0;
    return reading.largest > most;
  }

  #conclude(reading, supply, futile) {
    const { at } = reading;
    const mean = this.#mean();
    const minimum = at < this.initialUntil ? this.initial : this.minimum;
    let raised = at < this.raisedUntil ? this.raised : 0;
    const largest = this.isGauge ? 0 : Math.max(reading.largest, this.largest);
    let least = largest / (this.window / (5 * SECOND)); // saves the largest request in a fifth
    let peak = Math.max(0, ...this.#uses().map((use) => use.peak));
    if (this.isIdle(at, supply)) {
      peak = raised = 0;
      if (this.served) this.largest = 0;
    }
    if (this.isGauge && !futile) peak = Math.max(peak + reading.waiting, this.largest);
    const base = this.#base();
    if (supply.exhausted) {
      const most = 8 * Math.max(mean, base, supply.amount);
      raised = Math.min(raised, most);
      least = Math.min(least, most);
    }
    let wants = Math.max(1.05 * Math.max(mean, this.#recent()), peak, raised, least);
    if (wants > 0) wants = Math.max(wants, base);
    this.wants = Math.max(minimum, Math.min(this.maximum, wants, AMOUNT_MAX));
  }

  /** Returns the least that a rate wants by the counts since the last look. */
  #lookAtRate(reading, supply) {
    const last = this.looked;
    const since = Math.min(reading.unmetSince, reading.at - LOOK_MIN);
    const before = Math.min(last.at, since);
    const base = this.#base();
    const refused = units(last.refused, reading.refused);
    const allowed = units(last.allowed, reading.allowed) / ((reading.at - before) / SECOND);
    const seconds = (reading.at - since) / SECOND;
    let more = Math.max(0, refused - Math.max(1, last.largest, reading.largest)) / seconds;
    const waiting = (reading.waited - last.waited) / seconds;
    const allWait = reading.waiting > 0 && waiting >= 0.875 * reading.waiting;
    if (allWait) more = Math.max(more, 7 * Math.max(allowed, base, supply.amount));
    this.unmet = refused > 0 || allWait;
    return Math.max(1.05 * (allowed + more), refused > 0 ? base : 0);
  }
}
