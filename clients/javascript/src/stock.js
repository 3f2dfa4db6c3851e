// Units that are taken ahead for keys that are used often (P24).

import { NEVER } from './base.js';

const STOCKS_MAX = 10000;
const SLICES = 4;

/** The use of a resource and key, and the units that were taken ahead for it. A lot has the units
 * of one time, which are lost at `until`. */
class Stock {
  until = 0;
  asking = false; // a call that takes units ahead is queued or under way
  warning = false;
  slice = 0;
  unitsUsed = new Array(SLICES).fill(0);
  timesUsed = new Array(SLICES).fill(0);
  lots = [{ units: 0, until: 0 }, { units: 0, until: 0 }];
  grantedMost = 0; // the most units that a server has granted to one permit
  remaining = 0;
  resetAt = 0;
  limit = undefined;

  constructor(pair) {
    this.pair = pair;
  }

  units() {
    return this.lots[0].units + this.lots[1].units;
  }

  /** Returns how many units to take ahead now: whole units, or 0. */
  missing() {
    const sum = (list) => list.reduce((total, value) => total + value, 0);
    const used = sum(this.unitsUsed);
    const stored = this.units();
    if (this.asking || sum(this.timesUsed) < 2 || stored > used / 2) return 0;
    return Math.trunc(Math.min(used - stored, this.remaining / 2));
  }
}

/** The stocks of a client. `prefetch` is in nanoseconds; 0: there are none. */
export class Stocks {
  #all = new Map();
  #end = 0;

  constructor(prefetch, counts) {
    this.prefetch = prefetch;
    this.counts = counts;
  }

  find(item) {
    return this.#all.get(item.pair);
  }

  /** Returns when all stocks can be forgotten. */
  due() {
    return this.#all.size ? this.#end : NEVER;
  }

  /** Forgets all stocks when the time of the last one has passed. */
  forget(now) {
    if (this.#all.size && this.#end <= now) this.#forgetOldest(now);
  }

  #forgetOldest(now) {
    for (const [pair, stock] of this.#all) {
      if (stock.until > now && this.#all.size < STOCKS_MAX) return;
      this.#all.delete(pair);
      this.counts.lapsed += stock.units();
    }
  }

  open(item, now) {
    let stock = this.find(item);
    if (!stock) {
      this.#forgetOldest(now);
      stock = new Stock(item.pair);
      stock.until = now;
      this.#all.set(item.pair, stock);
    }
    return stock;
  }

  #keep(stock, now) {
    stock.until = now + 2 * this.prefetch;
    this.#end = Math.max(this.#end, stock.until);
    if (this.#all.delete(stock.pair)) this.#all.set(stock.pair, stock);
  }

  /** Loses the units whose time has passed. */
  lapse(stock, now) {
    for (const lot of stock.lots) {
      if (lot.until <= now) {
        this.counts.lapsed += lot.units;
        lot.units = 0;
      }
    }
  }

  /** Takes units out of the stock of an item. Returns undefined if it has not enough. */
  spend(item, cost, now) {
    const stock = this.find(item);
    if (!stock) return undefined;
    this.lapse(stock, now);
    if (cost > stock.units() || item.cost > stock.grantedMost) return undefined;
    const first = Math.min(cost, stock.lots[0].units);
    stock.lots[0].units -= first;
    stock.lots[1].units -= cost - first;
    return stock;
  }

  /** Counts units that were used. */
  use(stock, units, now) {
    const number = Math.floor(now / Math.floor(this.prefetch / SLICES));
    for (let i = 1; i <= Math.min(number - stock.slice, SLICES); i += 1) {
      stock.unitsUsed[(stock.slice + i) % SLICES] = 0;
      stock.timesUsed[(stock.slice + i) % SLICES] = 0;
    }
    stock.slice = number;
    stock.unitsUsed[number % SLICES] += units;
    stock.timesUsed[number % SLICES] += 1;
    this.#keep(stock, now);
  }

  /** Stores units that a server has granted ahead, for a message that was sent at `sentAt`. With a
   * wait, nobody waits for them. */
  receive(item, units, wait, sentAt, now) {
    const stock = this.find(item);
    this.counts.prefetched += units;
    if (!stock || wait > 0) {
      this.counts.lapsed += units;
      return stock;
    }
    this.lapse(stock, now);
    if (!stock.lots[0].units) {
      stock.lots.reverse();
      stock.lots[1].units = 0;
    }
    const lot = stock.lots[stock.lots[0].units ? 1 : 0];
    if (!lot.units) lot.until = sentAt + 2 * this.prefetch;
    lot.units += units;
    this.lapse(stock, now);
    this.#keep(stock, now);
    return stock;
  }

  learnRefusal(item, reason) {
    const stock = this.find(item);
    if (!stock) return;
    stock.remaining = 0;
    if (reason === 'BANNED') {
      this.counts.lapsed += stock.units();
      this.#all.delete(item.pair);
    }
  }
}
