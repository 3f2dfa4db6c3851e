// A client of Doorman for a hold, over HTTP, with nothing but Node.js 18 or later.
//
//     const hold = new Hold(['http://127.0.0.1:15050'], 'transcode', 'acme', { maxWait: 30 });
//     if (await hold.acquire()) {
//       ...  // work; stop when hold.left <= 0
//       await hold.release();
//     }
//
// Copy this file into your program. The client renews the hold in the background.
// Numbers such as (H3) name the "Rules for a holder" of docs/protocol.md.

import { randomUUID } from 'node:crypto';
import { hostname } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';

const now = () => performance.now() / 1000; // stops while the machine is suspended
const today = () => Date.now() / 1000; // so the time of day counts too
const random = (from, to) => from + Math.random() * (to - from);
const DRIFT = 1.05;

// The server has read the request, and refuses it. To repeat it is of no use.
class Refused extends Error {}

export class Hold {
  #request = 0;
  #id;
  #life; // expires_in of the grant
  #ends = [0, 0]; // the end on both clocks
  #stop = new AbortController();
  #renewal = Promise.resolve(); // the renewal under way

  // onGone is called once if the hold cannot be renewed. The units may still be used until `left`
  // is 0.
  constructor(urls, resource, key = '', options = {}) {
    const defaults = { units: 1, maxWait: 0, onGone: () => {}, headers: {} };
    Object.assign(this, defaults, options, { urls, resource, key, master: urls[0] });
    this.client = `${hostname()}:${process.pid}:${randomUUID()}`; // (H1)
    this.#stop.abort();
  }

  // The seconds to the end of the hold. At 0 or less the units may not be used.
  get left() {
    if (this.#stop.signal.aborted) return 0;
    return Math.min(this.#ends[0] - now(), this.#ends[1] - today());
  }

  // Waits up to maxWait. Returns false if the hold was refused, or if release() was called. Then
  // `refusal` is the answer of the server, or undefined.
  async acquire() {
    const stop = new AbortController();
    this.#request += 1;
    [this.#id, this.#ends, this.#stop] = [undefined, [0, 0], stop];
    const giveUp = now() + this.maxWait;
    let permit;
    while (!stop.signal.aborted && !(permit = await this.#ask(giveUp))) {
      if (permit === null || now() >= giveUp) break;
      await sleep(random(500, 1000), null, { signal: stop.signal }).catch(() => {});
    }
    if (this.left > 0) {
      this.#run(stop.signal);
      return true;
    }
    this.refusal = permit ?? undefined;
    if (!permit || this.#id) await this.release(); // perhaps granted meanwhile (H6)
    stop.abort();
    return false;
  }

  // Gives the units back. Stop using them before. Also ends an acquire() that waits.
  async release() {
    this.#stop.abort();
    const entry = this.#id ? { id: this.#id } : { request_id: Math.max(1, this.#request) };
    await this.#renewal;
    await this.#everywhere('release', { entry: [entry] }, 5); // else the hold ends by itself
  }

  // Asks for the hold. Returns the decision, or undefined if no server has answered.
  async #ask(giveUp) {
    const wait = Math.max(0, giveUp - now());
    const item = [{ resource_id: this.resource, key: this.key, cost: this.units }];
    const permit = { request_id: this.#request, max_wait: wait, item };
    if (this.timeToLive) permit.time_to_live = this.timeToLive;
    const reply = await this.#everywhere('acquire', { permit: [permit] }, wait + 5); // (H2)
    const hold = reply?.answer.permit[0].hold;
    if (hold) {
      [this.#id, this.#life] = [hold.id, hold.expires_in];
      this.#ends = reply.sent.map((sent) => sent + hold.waited / DRIFT + this.#life); // (H3)
    }
    return reply && reply.answer.permit[0];
  }

  async #run(signal) {
    const item = [{ resource_id: this.resource, key: this.key, amount: this.units }]; // (H5)
    let wait = this.#life / 3; // (H4)
    for (;;) {
      const pause = 1000 * Math.max(0, Math.min(wait, this.left));
      await sleep(pause, null, { signal }).catch(() => {}); // release() ends it
      if (signal.aborted) return;
      const timeout = Math.min(5, Math.max(0.1, this.left / 4));
      this.#renewal = this.#everywhere('renew', { entry: [{ id: this.#id, item }] }, timeout);
      const reply = await this.#renewal;
      if (signal.aborted) return;
      const entry = reply?.answer.entry[0];
      const result = entry?.reason ? undefined : entry; // MOVED: another node will know the hold
      const less = result && !(result.amount?.[0] >= this.units);
      if (this.left <= 0 || less || reply === null) return this.onGone(); // (H7), or refused
      if (result) {
        this.#ends = reply.sent.map((t, i) => Math.max(this.#ends[i], t + result.expires_in));
      }
      wait = result ? this.#life / 3 : this.#life * random(0.05, 0.1);
    }
  }

  // Asks the last master, and then all addresses. Returns the answer, and when the request was sent
  // on both clocks; null if the request is refused; or undefined.
  async #everywhere(method, message, timeout) {
    for (const url of new Set([this.master, ...this.urls])) {
      try {
        return await this.#post(url, method, message, timeout);
      } catch (error) { // of the network, or a response with another content
        console.error(`doorman: ${url}: ${error}`);
        if (error instanceof Refused) return null;
      }
    }
    return undefined;
  }

  // Sends a message, and follows the master.
  async #post(url, method, message, timeout, hops = 0) {
    const sent = [now(), today()];
    const response = await fetch(`${url}/v1/${method}`, {
      method: 'POST',
      headers: { 'Content-Type': 'application/json', Connection: 'close', ...this.headers },
      body: JSON.stringify({ client_id: this.client, ...message }),
      redirect: 'manual',
      signal: AbortSignal.timeout(Math.ceil(1000 * timeout)),
    });
    if (!response.ok) {
      const again = response.status >= 500 || [408, 429].includes(response.status);
      throw new (again ? Error : Refused)(await response.text());
    }
    const answer = await response.json();
    if (!answer.mastership) {
      this.master = url;
      return { sent, answer };
    }
    const master = answer.mastership.http_address;
    if (!master || hops === 5 || (url.startsWith('https:') && !master.startsWith('https:'))) {
      throw new Error('there is no master');
    }
    return this.#post(master, method, message, timeout, hops + 1);
  }
}
