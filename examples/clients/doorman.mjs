// A client of Doorman for one rate, over HTTP, with nothing but Node.js 18 or later.
//
//     const client = new Client(['http://127.0.0.1:15050'], 'db/orders', 50);
//     if (client.tryUse()) ...  // do one unit of work
//     await client.close();
//
// Copy this file into your program. Numbers such as (4) name the "Rules for a client" of
// examples/protocol.md. The client renews the lease in the background.

import { randomUUID } from 'node:crypto';
import { hostname } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';

const BURST = 0.1; // seconds of the rate that an idle client saves
const TIMEOUT = 5; // seconds for one request
const seconds = () => performance.now() / 1000; // it stops while the machine is suspended
const random = (from, to) => from + Math.random() * (to - from);

export class Client {
  #lease = null; // the last `gets`
  #ends = [0, 0]; // its end on both clocks
  #paidUntil = seconds(); // a new client has saved nothing
  #wasCut = false;
  #next = 1; // the next address
  #tried = 0;
  #rounds = 0;
  #most = 60; // bounds a pause, in seconds (6)
  #interval = 60; // does too
  #stop = new AbortController();

  // wants and safeCapacity are rates, in units per second. Without a lease the client uses the safe
  // capacity, which a server can change; -1 means unlimited.
  constructor(urls, resource, wants, safeCapacity = 0, headers = {}) {
    Object.assign(this, { urls, resource, wants, safeCapacity, headers, url: urls[0] });
    this.id = `${hostname()}:${process.pid}:${randomUUID()}`;
    this.running = this.#run();
  }

  // The seconds to the end of the lease; 0 or less: there is none. The time of day counts too (1).
  get left() {
    return Math.min(this.#ends[0] - seconds(), this.#ends[1] - Date.now() / 1000);
  }

  // How many units the client may use in a second, now.
  get rate() {
    if (this.left > 0) return this.#lease.capacity; // also if it is 0 (4)
    return this.safeCapacity >= 0 ? this.safeCapacity : Infinity; // (8)
  }

  // Takes n units and returns true, or returns false if the rate does not allow them now. The rate
  // has paid up to paidUntil. The time since then is saved, but at most BURST.
  tryUse(n = 1) {
    const { rate } = this;
    if (this.#stop.signal.aborted || rate <= 0) return false;
    const [now, cost] = [seconds(), n / rate];
    const paidUntil = Math.max(this.#paidUntil, now - Math.max(BURST, cost)) + cost;
    if (paidUntil <= now) this.#paidUntil = paidUntil;
    return paidUntil <= now;
  }

  // Stops using the lease, and gives it back. If this fails, the lease ends by itself.
  async close() {
    this.#stop.abort();
    await this.running; // after the response in flight (9)
    if (this.left > 0) await this.#post('release_capacity', { id: this.#lease.id }).catch(() => {});
  }

  async #run() {
    const { signal } = this.#stop;
    while (!signal.aborted) {
      let wait;
      try {
        wait = await this.#ask();
        [this.#tried, this.#rounds, this.#most] = [0, 0, 60];
      } catch (error) {
        console.error(`doorman: ${this.url}: ${error}`);
        wait = this.#fail();
      }
      await sleep(wait * 1000, null, { signal }).catch(() => {}); // close() ends the pause
    }
  }

  // Goes to the next address. Returns how long to wait: only after all have failed (6).
  #fail() {
    this.url = this.urls[this.#next++ % this.urls.length];
    if (++this.#tried < this.urls.length) return 0;
    this.#rounds = Math.min(this.#rounds + 1, 6);
    const wait = random(1, Math.max(1, Math.min(2 ** this.#rounds, this.#most, this.#interval)));
    [this.#tried, this.#most] = [0, 60];
    return this.left > 0 ? Math.max(1, Math.min(wait, this.left / 4)) : wait;
  }

  // Sends a request, and follows the master. Returns how many seconds to wait.
  async #ask(hops = 0) {
    const item = { wants: this.wants };
    const [sent, sentAt, { left }] = [seconds(), Date.now() / 1000, this];
    if (left > 0) item.has = { ...this.#lease, expires_in: left }; // (3)
    const { mastership, response } = await this.#post('get_capacity', item);
    if (mastership) { // (7)
      const master = mastership.http_address ?? '';
      const isPlain = this.url.startsWith('https:') && !master.startsWith('https:');
      this.#most = 4; // until a master answers
      if (!master || isPlain || hops === 5) throw new Error('there is no master');
      this.url = master;
      return this.#ask(hops + 1);
    }
    if (left > 0 && this.left <= 0) return 0; // ask again without the lease (2)
    const { gets, refused, safe_capacity: safe } = response[0];
    this.safeCapacity = safe ?? this.safeCapacity;
    if (refused) return refused.refresh_interval * random(1, 1.05); // the last lease stays
    const wasCut = this.#wasCut;
    this.#wasCut = left > 0 && gets.capacity < item.has.capacity;
    this.#lease = { id: gets.id, node: gets.node, capacity: gets.capacity };
    this.#ends = [sent + gets.expires_in, sentAt + gets.expires_in];
    this.#interval = Math.min(gets.refresh_interval, Math.max(1, gets.expires_in / 2)); // (5)
    // A smaller lease is confirmed at once, so that others get the difference (4).
    if (this.#wasCut) return wasCut ? 1 : 0;
    return this.#interval * random(1, 1.05);
  }

  async #post(method, item) {
    const resource = [{ resource_id: this.resource, ...item }];
    const response = await fetch(`${this.url}/v1/${method}`, {
      method: 'POST',
      headers: { 'Content-Type': 'application/json', Connection: 'close', ...this.headers },
      body: JSON.stringify({ client_id: this.id, resource }),
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
  let [used, lineDue, stopped] = [0, Date.now() + 100, false];
  for (const name of ['SIGTERM', 'SIGINT']) process.on(name, () => { stopped = true; });
  while (!stopped) {
    const isAllowed = client.tryUse();
    if (isAllowed) used++; // here is the work
    await sleep(isAllowed ? 0 : 5);
    if (Date.now() < lineDue) continue;
    const source = client.left > 0 ? 'lease' : 'fallback';
    console.log(`${(Date.now() / 1000).toFixed(3)} ${used} ${client.rate.toFixed(3)} ${source}`);
    [used, lineDue] = [0, Date.now() + 100];
  }
  await client.close();
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) main(process.argv.slice(2));
