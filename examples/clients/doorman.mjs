// A client of Doorman for one rate, over HTTP, with nothing but Node.js 18 or later.
//
//     const client = new Client(['http://127.0.0.1:15050'], 'db/orders', 50);
//     if (client.tryUse()) ...  // do one unit of work
//     await client.close();
//
// Copy this file into your program. The rules are those of examples/protocol.md, "How to write a
// client". The client renews the lease in the background.

import { randomUUID } from 'node:crypto';
import { hostname } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';

const BURST = 0.1; // seconds of the rate that an idle client saves
const TIMEOUT = 5; // seconds for one request
const REDIRECTS_MAX = 5;

const seconds = () => performance.now() / 1000; // a clock that never jumps
const random = (from, to) => from + Math.random() * (to - from);
const spread = (wait) => wait * random(1, 1.05);

export class Client {
  #headers = { 'Content-Type': 'application/json' };
  #lease = null; // the last `gets`
  #end = 0; // when the lease ends
  #paidUntil = seconds(); // a new client has saved nothing
  #backoff = 1;
  #stop = new AbortController();

  // wants and safeCapacity are rates, in units per second. A server can change the safe capacity.
  // The client uses it when it has no lease; -1 means unlimited.
  constructor(urls, resource, wants, { safeCapacity = 0, token = '' } = {}) {
    Object.assign(this, { urls, resource, wants, safeCapacity });
    this.id = `${hostname()}:${process.pid}:${randomUUID()}`;
    this.url = urls[0]; // the process that answered last
    this.refused = null; // the reason of the last response, such as 'UNMATCHED'
    if (token) this.#headers.Authorization = `Bearer ${token}`;
    this.running = this.#run();
  }

  get hasLease() {
    return seconds() < this.#end;
  }

  // How many units the client may use in a second, now.
  get rate() {
    if (this.hasLease) return this.#lease.capacity;
    return this.safeCapacity >= 0 ? this.safeCapacity : Infinity;
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
    await this.running;
    if (!this.hasLease) return;
    const resource = { resource_id: this.resource, id: this.#lease.id };
    await this.#post(this.url, 'release_capacity', resource).catch(() => {}); // it ends by itself
  }

  async #run() {
    const { signal } = this.#stop;
    while (!signal.aborted) {
      const wait = await this.#renew();
      await sleep(wait * 1000, null, { signal }).catch(() => {}); // close() ends the pause
    }
  }

  // Asks the process that answered last, then the other addresses, and follows the master. Returns
  // how many seconds to wait before the next call.
  async #renew() {
    let answered = false;
    for (let url of new Set([this.url, ...this.urls])) {
      for (let hop = 0; url && hop <= REDIRECTS_MAX && !this.#stop.signal.aborted; hop++) {
        const result = await this.#ask(url).catch(() => null);
        if (!result) break;
        answered = true;
        if (result.wait !== undefined) {
          this.#backoff = 1;
          return result.wait;
        }
        url = result.master;
      }
    }
    if (answered) return random(1, 4); // there is no master at present
    this.#backoff = Math.min(60, this.#backoff * 2);
    return random(1, this.#backoff);
  }

  // Sends one request. Returns how long to wait, or the address of the master.
  async #ask(url) {
    const item = { resource_id: this.resource, wants: this.wants };
    const sent = seconds();
    const end = this.#end;
    if (sent < end) { // what the request claims is what the client may use from now on
      this.#lease.capacity = Math.min(this.#lease.capacity, this.wants);
      item.has = { ...this.#lease, expires_in: end - sent };
    }
    const answer = await this.#post(url, 'get_capacity', item);
    if (answer.mastership) return { master: answer.mastership.http_address };
    if (seconds() - sent > TIMEOUT || (item.has && seconds() >= end)) {
      throw new Error('the response came too late');
    }
    this.url = url;
    const { gets, refused, safe_capacity: safe } = answer.response[0];
    if (safe !== undefined) this.safeCapacity = safe;
    this.refused = refused?.reason ?? null;
    if (refused) return { wait: spread(refused.refresh_interval) }; // the last lease stays
    const { id, node, capacity } = gets;
    const isSmaller = item.has && capacity < item.has.capacity;
    this.#lease = { id, node, capacity };
    this.#end = sent + gets.expires_in;
    // A smaller lease is confirmed at once, so that others get the difference.
    return { wait: isSmaller ? 0 : spread(gets.refresh_interval) };
  }

  async #post(url, method, resource) {
    const response = await fetch(`${url}/v1/${method}`, {
      method: 'POST',
      headers: this.#headers,
      body: JSON.stringify({ client_id: this.id, resource: [resource] }),
      redirect: 'manual',
      signal: AbortSignal.timeout(TIMEOUT * 1000),
    });
    if (!response.ok) throw new Error(`${url}: status ${response.status}`);
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
