// A client of Doorman for one rate, over HTTP, with nothing but Node.js 18 or later.
//
//     const client = new Client(['http://127.0.0.1:15050'], 'db/orders', 50);
//     if (client.tryUse()) ...  // do one unit of work
//     await client.close();
//
// Copy this file into your program. The client renews the lease in the background.
// Numbers such as (4) name the "Rules for a client" of docs/protocol.md.

import { randomUUID } from 'node:crypto';
import { hostname } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';

const now = () => performance.now() / 1000; // stops while the machine is suspended
const today = () => Date.now() / 1000; // so the time of day counts too (1)
const random = (from, to) => from + Math.random() * (to - from);

export class Client {
  #lease; // the last `gets`
  #ends = [0, 0]; // its end on both clocks
  #cuts = 0; // how many leases in a row were smaller than the one before
  #pause = 2; // a longest pause after failures, in seconds (6)
  #interval = 60; // another one
  #paid = now(); // the rate has paid for the units used until then
  #stop = new AbortController();

  // wants and safeCapacity are units per second. Without a lease the client uses the safe capacity,
  // which a server can change. -1 means unlimited.
  constructor(urls, resource, wants, safeCapacity = 0, headers = {}) {
    Object.assign(this, { urls, resource, wants, safeCapacity, headers, master: urls[0] });
    this.id = `${hostname()}:${process.pid}:${randomUUID()}`;
    this.running = this.#run();
  }

  // The seconds to the end of the lease. At 0 or less there is no lease.
  get left() {
    return Math.min(this.#ends[0] - now(), this.#ends[1] - today());
  }

  // How many units the client may use in a second, now.
  get rate() {
    const capacity = this.left > 0 ? this.#lease.capacity : this.safeCapacity; // (4) (8)
    return capacity >= 0 ? capacity : 1e15;
  }

  // Takes n units and returns true, or returns false if the rate does not allow them now. The rate
  // saves up to 0.1 s, or the time of these n units if that is longer.
  tryUse(n = 1) {
    const cost = n / this.rate; // in seconds, as what is saved
    const saved = Math.min(this.#saved, Math.max(0.1, cost));
    if (!(saved >= cost) || this.rate <= 0 || this.#stop.signal.aborted) return false;
    this.#paid = now() - saved + cost;
    return true;
  }

  get #saved() {
    return now() - Math.max(this.#paid, this.left > 0 ? 0 : this.#ends[0]);
  }

  // Stops using the lease, and gives it back. If this fails, the lease ends by itself.
  async close() {
    this.#stop.abort();
    await this.running; // after the response in flight (9)
    if (this.left <= 0) return;
    await this.#post(this.master, 'release_capacity', { id: this.#lease.id }).catch(console.error);
  }

  async #run() {
    const { signal } = this.#stop;
    while (!signal.aborted) {
      await sleep(1000 * await this.#renew(), null, { signal }).catch(() => {}); // close() ends it
    }
  }

  // Asks the last master, and then all addresses. Returns the seconds to wait.
  async #renew() {
    for (const url of new Set([this.master, ...this.urls])) {
      if (this.#stop.signal.aborted) return 0;
      try {
        return await this.#ask(url);
      } catch (error) { // of the network, or a response with another content
        console.error(`doorman: ${url}: ${error}`);
      }
    }
    const longest = Math.min(this.#pause, this.#interval, this.left > 0 ? this.left / 4 : 60);
    this.#pause = Math.min(2 * this.#pause, 60);
    return random(1, Math.max(1, longest)); // (6)
  }

  // Asks for a lease, and follows the master. Returns the seconds to wait.
  async #ask(url, hops = 0) {
    const [entry, sent, sentAt, left, has] =
      [{ wants: this.wants }, now(), today(), this.left, this.#lease];
    if (left > 0) entry.has = { ...has, expires_in: left }; // (3)
    const { mastership, response } = await this.#post(url, 'get_capacity', entry);
    if (mastership) { // (7)
      const master = mastership.http_address;
      if (!master || hops === 5 || (url.startsWith('https:') && !master.startsWith('https:'))) {
        this.#pause = Math.min(this.#pause, 4);
        throw new Error('there is no master');
      }
      return this.#ask(master, hops + 1);
    }
    if (left > 0 && this.left <= 0) throw new Error('the response came too late'); // (2)
    const { gets, refused, safe_capacity: safe } = response[0];
    if (!(refused ?? gets).refresh_interval) throw new Error('the response is not valid');
    const units = this.#saved * this.rate;
    [this.master, this.#pause, this.safeCapacity] = [url, 2, safe ?? this.safeCapacity];
    this.#lease = gets ?? this.#lease;
    if (gets) this.#ends = [sent + gets.expires_in, sentAt + gets.expires_in];
    this.#paid = now() - units / (this.rate || 1e15); // the same units are saved
    if (refused) return refused.refresh_interval * random(1, 1.05); // the lease stays until its end
    this.#interval = Math.min(gets.refresh_interval, Math.max(1, gets.expires_in / 2)); // (5)
    this.#cuts = left > 0 && gets.capacity < has.capacity ? this.#cuts + 1 : 0;
    // A smaller lease is confirmed, so that others get the difference (4).
    return this.#cuts ? Math.min(this.#cuts - 1, 1) : this.#interval * random(1, 1.05);
  }

  async #post(url, method, entry) {
    const resource = [{ resource_id: this.resource, ...entry }];
    const response = await fetch(`${url}/v1/${method}`, {
      method: 'POST',
      headers: { 'Content-Type': 'application/json', Connection: 'close', ...this.headers },
      body: JSON.stringify({ client_id: this.id, resource }),
      redirect: 'manual',
      signal: AbortSignal.timeout(5000),
    });
    if (!response.ok) throw new Error(await response.text());
    return response.json();
  }
}
