// A client of Doorman for one rate, over HTTP, with nothing but Node.js 18 or later.
//
//     const client = new Client(['http://127.0.0.1:15050'], 'db/orders', 50);
//     if (client.tryUse()) ...  // do one unit of work
//     await client.close();
//
// Copy this file into your program. Numbers such as (4) name the "Rules for a client" of
// examples/protocol.md. The client renews the lease in the background, and wants a fixed rate.

import { randomUUID } from 'node:crypto';
import { hostname } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';

const BURST = 0.1; // seconds of the rate that an idle client saves
const TIMEOUT = 5; // seconds for one request
const REDIRECTS_MAX = 5;
const seconds = () => performance.now() / 1000; // a clock that never jumps
// Both clocks count, because the first one stops while the machine is suspended (1).
const clocks = () => [seconds(), Date.now() / 1000];
const random = (from, to) => from + Math.random() * (to - from);
const late = (wait) => wait * random(1, 1.05);

export class Client {
  #headers = { 'Content-Type': 'application/json', Connection: 'close' }; // no reuse
  #lease = null; // the last `gets`
  #ends = [0, 0]; // its end on both clocks
  #paidUntil = seconds(); // a new client has saved nothing
  #failures = 0;
  #wasCut = false;
  #stop = new AbortController();

  // wants and safeCapacity are rates, in units per second. A server can change the safe capacity.
  // The client uses it when it has no lease; -1 means unlimited.
  constructor(urls, resource, wants, { safeCapacity = 0, token = '' } = {}) {
    Object.assign(this, { urls, resource, wants, safeCapacity });
    this.id = `${hostname()}:${process.pid}:${randomUUID()}`;
    this.url = urls[0];
    this.problem = null; // why the last request got no lease, for people
    if (token) this.#headers.Authorization = `Bearer ${token}`;
    this.running = this.#run();
  }

  get #left() {
    const now = clocks();
    return Math.min(...this.#ends.map((end, i) => end - now[i]));
  }

  get hasLease() { return this.#left > 0; }

  // How many units the client may use in a second, now.
  get rate() {
    if (this.hasLease) return this.#lease.capacity; // also if it is 0 (4)
    return this.safeCapacity >= 0 ? this.safeCapacity : Infinity; // (8)
  }

  // Takes n units and returns true, or returns false if the rate does not allow them now.
  //
  // paidUntil is the time up to which the rate has paid for the units that were used. The time
  // since then is saved, but at most BURST, or the time of these n units if that is longer.
  tryUse(n = 1) {
    const rate = this.rate;
    if (this.#stop.signal.aborted || rate <= 0) return false;
    const now = seconds();
    const cost = n / rate;
    const paidUntil = Math.max(this.#paidUntil, now - Math.max(BURST, cost)) + cost;
    if (paidUntil > now) return false;
    this.#paidUntil = paidUntil;
    return true;
  }

  // Stops using the lease, and gives it back, so that others need not wait for its end.
  async close() {
    this.#stop.abort();
    await this.running; // after the response in flight (9)
    if (!this.hasLease) return;
    const resource = { resource_id: this.resource, id: this.#lease.id };
    await this.#post('release_capacity', resource).catch(() => {}); // it ends by itself
  }

  async #run() {
    const { signal } = this.#stop;
    while (!signal.aborted) {
      const wait = await this.#renew();
      await sleep(wait * 1000, null, { signal }).catch(() => {}); // close() ends the pause
    }
  }

  // Asks, and follows the master. Returns how many seconds to wait before the next call.
  async #renew() {
    let failuresMax = 6;
    for (let hop = 0; hop <= REDIRECTS_MAX; hop++) {
      const result = await this.#ask().catch((error) => ({ problem: String(error) }));
      this.problem = result.problem ?? null;
      if (result.wait !== undefined) {
        this.#failures = 0;
        return result.wait;
      }
      failuresMax = result.isAlive ? 2 : 6;
      const { master } = result;
      if (!master || (this.url.startsWith('https:') && !master.startsWith('https:'))) break;
      this.url = master; // (7)
    }
    this.#failures = Math.min(this.#failures + 1, failuresMax); // (6)
    this.url = this.urls[(this.urls.indexOf(this.url) + 1) % this.urls.length];
    const wait = random(1, Math.min(60, 2 ** this.#failures));
    return this.hasLease ? Math.max(1, Math.min(wait, this.#left / 4)) : wait;
  }

  // Sends one request. Returns how long to wait, or the address of the master.
  async #ask() {
    const item = { resource_id: this.resource, wants: this.wants };
    const sent = clocks();
    if (this.hasLease) item.has = { ...this.#lease, expires_in: this.#left }; // (3)
    const answer = await this.#post('get_capacity', item);
    const master = answer.mastership?.http_address;
    if (answer.mastership) return { master, isAlive: true, problem: 'there is no master' };
    if (item.has && !this.hasLease) return { wait: 0 }; // ask again without the lease (2)
    const { gets, refused, safe_capacity: safe } = answer.response[0];
    if (safe !== undefined) this.safeCapacity = safe;
    if (refused) return { wait: late(refused.refresh_interval), problem: refused.reason };
    const { id, node, capacity, expires_in: length, refresh_interval: interval } = gets;
    const wasCut = this.#wasCut;
    this.#wasCut = item.has !== undefined && capacity < item.has.capacity;
    this.#lease = { id, node, capacity };
    this.#ends = sent.map((time) => time + length);
    // A smaller lease is confirmed at once, so that others get the difference (4).
    if (this.#wasCut) return { wait: wasCut ? 1 : 0 };
    return { wait: late(Math.min(interval, Math.max(1, length / 2))) }; // (5)
  }

  async #post(method, resource) {
    const response = await fetch(`${this.url}/v1/${method}`, {
      method: 'POST',
      headers: this.#headers,
      body: JSON.stringify({ client_id: this.id, resource: [resource] }),
      redirect: 'manual',
      signal: AbortSignal.timeout(TIMEOUT * 1000),
    });
    if (!response.ok) throw new Error(`status ${response.status}: ${await response.text()}`);
    return response.json();
  }
}

// Uses as much as the server allows. Ten times a second, prints the time, the units that were used
// since the last line, the rate, and whether the rate is a lease.
async function main([urls, resource, wants]) {
  if (!wants) throw new Error('Usage: doorman.mjs URL[,URL...] RESOURCE WANTS');
  const client = new Client(urls.split(','), resource, Number(wants));
  let stopped = false;
  process.on('SIGTERM', () => { stopped = true; });
  process.on('SIGINT', () => { stopped = true; });
  let used = 0;
  for (let lineDue = Date.now() + 100; !stopped;) {
    const isAllowed = client.tryUse();
    if (isAllowed) used++; // here is the work
    await sleep(isAllowed ? 0 : 5);
    const now = Date.now();
    if (now < lineDue) continue;
    const source = client.hasLease ? 'lease' : 'fallback';
    console.log(`${(now / 1000).toFixed(3)} ${used} ${client.rate.toFixed(3)} ${source}`);
    used = 0;
    lineDue = now + 100;
  }
  await client.close();
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) main(process.argv.slice(2));
