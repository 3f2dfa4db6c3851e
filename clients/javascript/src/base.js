// What the cores share: times, requests, and the check of what servers send.
//
// A core has no clock, no timer and no connection. Times inside of it are whole nanoseconds of any
// clock that never goes back. A double is exact for 104 days of them, and after that rounds them to
// 2 ns.

export const SECOND = 1e9;
export const NEVER = Infinity;
export const AMOUNT_MAX = 1e15;
export const DURATION_MAX = 1e8 * SECOND;
export const GRAINS = 4096; // limiters and servers count in 1/4096 of a unit
const ID_BYTES_MAX = 256;
const REDIRECTS_MAX = 5;

/** A server has sent something that the protocol does not allow. */
export class InvalidResponse extends Error {}

/** A server has answered INVALID_ARGUMENT: the message is wrong, and the server works. */
export class MessageRefused extends InvalidResponse {}

/** Returns a duration in nanoseconds. */
export const nanoseconds = (value) => Math.round(value * SECOND);

/** Returns a duration in seconds. */
export const seconds = (time) => time / SECOND;

export const isNumber = (value) => typeof value === 'number' && Number.isFinite(value);

export const isObject = (value) =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

// ---- what the application gives

/** Returns the options with their defaults. Fails if there is one without a default. */
export function withDefaults(given, defaults) {
  if (given !== undefined && !isObject(given)) throw new TypeError('options: must be an object');
  const options = { ...defaults };
  for (const [name, value] of Object.entries(given ?? {})) {
    if (!Object.hasOwn(defaults, name)) {
      throw new RangeError(`${name}: is no option; there are ${Object.keys(defaults).join(', ')}`);
    }
    if (value !== undefined) options[name] = value;
  }
  return options;
}

/** Returns whether a value can be an id, or is empty. */
export const isId = (value) => typeof value === 'string' &&
  Buffer.byteLength(value) <= ID_BYTES_MAX && !/[\p{Cc}\p{Cs}]/u.test(value);

/** Returns a valid id. Throws a RangeError for anything else. */
export function checkId(name, value, mayBeEmpty = false) {
  const least = mayBeEmpty ? 0 : 1;
  if (typeof value !== 'string') throw new RangeError(`${name}: must be a string`);
  if (!isId(value) || value.length < least) {
    throw new RangeError(`${name}: must be ${least} to ${ID_BYTES_MAX} bytes of UTF-8 without ` +
      'control characters');
  }
  return value;
}

/** Returns a valid amount. Throws a RangeError for anything else. */
export function checkAmount(name, value, least = 0) {
  if (!isNumber(value) || value < least || value > AMOUNT_MAX) {
    throw new RangeError(`${name}: must be a number from ${least} to 1e15`);
  }
  return value;
}

/** Checks amounts, one for each item; the last ones may be absent. */
export function checkAmounts(name, values) {
  if (!Array.isArray(values)) throw new RangeError(`${name}: must be a list of numbers`);
  for (const value of values) checkAmount(name, value);
}

/** Returns a duration in nanoseconds. Throws a RangeError for anything but valid seconds. */
export function checkDuration(name, value, least = 0) {
  if (!isNumber(value) || value < least || value > 1e8) {
    throw new RangeError(`${name}: must be from ${least} to 1e8 seconds`);
  }
  return nanoseconds(value);
}

/** Returns an integer. Throws a RangeError for anything else. */
export function checkInteger(name, value, least, most) {
  if (!Number.isInteger(value) || value < least || value > most) {
    throw new RangeError(`${name}: must be an integer from ${least} to ${most}`);
  }
  return value;
}

/** Returns a value of a list. Throws a RangeError for anything else. */
export function checkOneOf(name, value, values) {
  if (!values.includes(value)) throw new RangeError(`${name}: must be ${values.join(' or ')}`);
  return value;
}

/** Returns an address of HTTP. Throws a RangeError for anything else. */
export function checkAddress(address) {
  const text = checkId('address', address);
  const parts = /^https?:\/\/([^/\s]+)(\/\S*)?$/i.exec(text);
  if (!parts) {
    throw new RangeError(
      `address: must be like http://HOST:PORT or https://HOST:PORT, not ${text}`);
  }
  const port = /:([^:\]]*)$/.exec(parts[1]);
  if (port && !(/^\d+$/.test(port[1]) && Number(port[1]) > 0 && Number(port[1]) < 65536)) {
    throw new RangeError(`address: the port must be a number from 1 to 65535, not ${text}`);
  }
  try {
    new URL(text);
  } catch {
    throw new RangeError(`address: is no URL: ${text}`);
  }
  return text;
}

// ---- what a server sends

/** Reads an object of a response. Throws InvalidResponse if a field has a wrong type or value.
 * Unknown fields are ignored. */
export class Reader {
  constructor(value, path) {
    if (!isObject(value)) throw new InvalidResponse(`${path}: must be an object`);
    this.value = value;
    this.path = path;
  }

  fail(key, rule) {
    return new InvalidResponse(`${this.path}.${key}: ${rule}`);
  }

  has(key) {
    return Object.hasOwn(this.value, key);
  }

  get(key) {
    return this.has(key) ? this.value[key] : undefined;
  }

  #read(key, absent, isValid, rule) {
    if (!this.has(key) && absent !== undefined) return absent;
    const value = this.get(key);
    if (!isValid(value)) throw this.fail(key, rule);
    return value;
  }

  amount(key, absent) {
    const isAmount = (value) => isNumber(value) && value >= 0 && value <= AMOUNT_MAX;
    return this.#read(key, absent, isAmount, 'must be an amount');
  }

  /** Returns a duration in nanoseconds. */
  duration(key, absent) {
    if (!this.has(key) && absent !== undefined) return absent;
    const isDuration = (value) => isNumber(value) && value >= 0 && value <= 1e8;
    return nanoseconds(this.#read(key, undefined, isDuration, 'must be a number of seconds'));
  }

  integer(key, most = 2 ** 53) {
    const isValid = (value) => Number.isInteger(value) && value >= 0 && value <= most;
    return this.#read(key, undefined, isValid, 'must be an integer');
  }

  text(key, absent) {
    return this.#read(key, absent, (value) => typeof value === 'string', 'must be a string');
  }

  /** Returns a text, or undefined if it is absent or empty. */
  optional(key) {
    return this.text(key, '') || undefined;
  }

  flag(key) {
    return this.#read(key, false, (value) => typeof value === 'boolean', 'must be true or false');
  }

  list(key, length) {
    const value = this.#read(key, undefined, Array.isArray, 'must be a list');
    if (length !== undefined && value.length !== length) {
      throw this.fail(key, `must have ${length} elements`);
    }
    return value;
  }

  object(key) {
    return new Reader(this.get(key), `${this.path}.${key}`);
  }
}

/** Returns the content of a response. Throws InvalidResponse for an error of the server. */
export function readBody(body, status) {
  if (!isObject(body)) {
    throw new InvalidResponse(`the status is ${status}, and the body is no object of JSON`);
  }
  const reader = new Reader(body, 'response');
  if (reader.has('error')) {
    const error = reader.object('error');
    const code = error.text('code', '');
    const Kind = code === 'INVALID_ARGUMENT' ? MessageRefused : InvalidResponse;
    throw new Kind(`${code}: ${error.text('message', '')}`);
  }
  if (status < 200 || status >= 300) throw new InvalidResponse(`the status is ${status}`);
  return reader;
}

// ---- addresses

export const isTls = (address) => /^https:/i.test(address);

/** The addresses of a node, and the master that one of them has named (K3). */
export class Addresses {
  constructor(own) {
    if (!Array.isArray(own) || own.length < 1 || own.length > 16) {
      throw new RangeError('addresses: must be 1 to 16');
    }
    this.own = own.map((address) => checkAddress(address).replace(/\/+$/, ''));
    this.index = 0;
    this.redirect = '';
    this.redirects = 0; // in a row
  }

  get current() {
    return this.redirect || this.own[this.index];
  }

  /** Goes to the master that a response has named. Returns false if it must not. */
  follow(master) {
    if (typeof master !== 'string' || this.redirects >= REDIRECTS_MAX) return false;
    try {
      checkAddress(master);
    } catch {
      return false;
    }
    if (isTls(this.current) && !isTls(master)) return false;
    this.redirects += 1;
    this.redirect = master.replace(/\/+$/, '');
    return true;
  }

  /** Goes to the next own address. */
  advance() {
    this.redirect = '';
    this.redirects = 0;
    this.index = (this.index + 1) % this.own.length;
  }
}

// ---- lists

/** Times in order. An entry is not valid any more if its owner has another `timer`. */
export class Timers {
  #heap = [];
  #count = 0;

  #isBefore(a, b) {
    return a.at < b.at || (a.at === b.at && a.order < b.order);
  }

  #isStale({ at, order, owner }) {
    return owner.timer !== at || owner.timerOrder !== order;
  }

  /** Sets the timer of an owner. NEVER: it has none. With the same time again, it keeps its
   * order. */
  set(owner, at) {
    if (owner.timer === at) return;
    owner.timer = at;
    if (at === NEVER) return;
    const heap = this.#heap;
    const entry = { at, order: this.#count++, owner };
    owner.timerOrder = entry.order;
    let i = heap.length;
    heap.push(entry);
    while (i > 0 && this.#isBefore(entry, heap[(i - 1) >> 1])) {
      heap[i] = heap[(i - 1) >> 1];
      i = (i - 1) >> 1;
    }
    heap[i] = entry;
  }

  /** Returns the earliest valid time, or NEVER. */
  due() {
    while (this.#heap.length && this.#isStale(this.#heap[0])) this.#pop();
    return this.#heap.length ? this.#heap[0].at : NEVER;
  }

  /** Takes out an owner whose time has come, and clears its timer. undefined: there is none. */
  take(now) {
    if (this.due() > now) return undefined;
    const { owner } = this.#pop();
    owner.timer = NEVER;
    return owner;
  }

  #pop() {
    const heap = this.#heap;
    const first = heap[0];
    const last = heap.pop();
    let i = 0;
    while (heap.length) {
      let child = 2 * i + 1;
      if (child + 1 < heap.length && this.#isBefore(heap[child + 1], heap[child])) child += 1;
      if (child >= heap.length || !this.#isBefore(heap[child], last)) break;
      heap[i] = heap[child];
      i = child;
    }
    if (heap.length) heap[i] = last;
    return first;
  }
}

/** A queue whose elements can leave it at any place. An element is in one queue at a time. */
export class Queue {
  first = undefined;
  #last = undefined;
  size = 0;

  push(element) {
    element.before = this.#last;
    element.after = undefined;
    if (this.#last) this.#last.after = element;
    else this.first = element;
    this.#last = element;
    this.size += 1;
  }

  unshift(element) {
    element.before = undefined;
    element.after = this.first;
    if (this.first) this.first.before = element;
    else this.#last = element;
    this.first = element;
    this.size += 1;
  }

  remove(element) {
    if (element.before) element.before.after = element.after;
    else this.first = element.after;
    if (element.after) element.after.before = element.before;
    else this.#last = element.before;
    element.before = element.after = undefined;
    this.size -= 1;
  }

  *[Symbol.iterator]() {
    for (let element = this.first; element; element = element.after) yield element;
  }
}
