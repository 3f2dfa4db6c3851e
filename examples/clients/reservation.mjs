// A client of Doorman for reservations, over HTTP, with nothing but Node.js 18 or later.
//
//     const client = new Reservations(['http://127.0.0.1:15050']);
//     const reservation = await client.reserve('llm/tokens', 'acme', 4000);
//     if (reservation.granted) {
//       let cost; // what the work has really cost; undefined: what was reserved
//       try {
//         cost = ...
//       } finally {
//         reservation.settle(cost);
//       }
//     }
//     await client.close();
//
// Copy this file into your program. Numbers such as (P27) name the rules of doorman_permits.h.

import { randomUUID } from 'node:crypto';
import { hostname } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';

const now = () => performance.now() / 1000;
const REPEAT = 45; // seconds; a server remembers a settlement for a minute (P27)
const WAITING_MAX = 10000; // settles that wait; others are lost

// The server has read the request, and refuses it. To repeat it is of no use.
class Refused extends Error {}

export class Reservations {
  #last = 0;
  #stop = new AbortController();
  #settles = new Set();
  lost = 0; // settles that no server has counted

  // Without a server, reserve() grants if failOpen is true. What it grants is charged later, if a
  // server takes it.
  constructor(urls, options = {}) {
    const defaults = { settleWithin: 60, timeout: 1, failOpen: true, headers: {} };
    Object.assign(this, defaults, options, { urls, master: urls[0] });
    this.client = `${hostname()}:${process.pid}:${randomUUID()}`;
  }

  // Charges the most that the work may cost. `granted` says whether the work may be done. If not,
  // `refusal` is the answer of the server, or undefined. settle(cost) says what the work has cost,
  // and does not wait. Later calls have no effect.
  async reserve(resource, key = '', cost = 1) {
    this.#last += 1;
    const item = { resource_id: resource, key, cost };
    let number = this.#last;
    const permit = { request_id: number, settle_within: this.settleWithin, item: [item] };
    const answer = await this.#everywhere('acquire', { permit: [permit] });
    const decision = answer?.permit[0];
    if (!decision && !this.failOpen) this.#settle(number, { ...item, cost: 0 }); // perhaps charged
    const granted = decision ? decision.decision === 'GRANTED' : this.failOpen;
    if (!granted || (decision && !decision.reservation)) number = undefined;
    const settle = (used = cost) => {
      if (number) this.#settle(number, { ...item, cost: used });
      number = undefined;
    };
    return { granted, refusal: decision, settle };
  }

  // Sends what is left, once.
  async close() {
    this.#stop.abort();
    await Promise.all(this.#settles);
  }

  #settle(number, item) {
    const entry = { request_id: number, item: [item] };
    if (this.#settles.size >= WAITING_MAX) {
      this.#lose(entry);
      return;
    }
    const sent = this.#send(entry).finally(() => this.#settles.delete(sent));
    this.#settles.add(sent);
  }

  #lose(entry) {
    this.lost += 1;
    console.error(`doorman: nobody has counted ${JSON.stringify(entry)}`);
  }

  // Sends a settle until a server has answered. It is repeated for less than a server remembers it.
  async #send(entry) {
    const end = now() + REPEAT;
    for (;;) {
      const answer = await this.#everywhere('settle', { entry: [entry] });
      const none = answer === null ? 'REFUSED' : 'LEARNING';
      const reason = answer ? answer.entry[0].reason : none;
      if (!reason) return;
      const isLater = reason === 'LEARNING' || reason === 'MOVED'; // another try can succeed
      if (!isLater || this.#stop.signal.aborted || now() + this.timeout + 1 >= end) {
        this.#lose(entry);
        return;
      }
      await sleep(1000, null, { signal: this.#stop.signal }).catch(() => {});
    }
  }

  // Asks the last master, and then all addresses. Returns the answer, null if it is refused, or
  // undefined.
  async #everywhere(method, message) {
    for (const url of new Set([this.master, ...this.urls])) {
      try {
        return await this.#post(url, method, message);
      } catch (error) { // of the network, or a response with another content
        console.error(`doorman: ${url}: ${error}`);
        if (error instanceof Refused) return null;
      }
    }
    return undefined;
  }

  // Sends a message, and follows the master.
  async #post(url, method, message, hops = 0) {
    const response = await fetch(`${url}/v1/${method}`, {
      method: 'POST',
      headers: { 'Content-Type': 'application/json', Connection: 'close', ...this.headers },
      body: JSON.stringify({ client_id: this.client, ...message }),
      redirect: 'manual',
      signal: AbortSignal.timeout(Math.ceil(1000 * this.timeout)),
    });
    if (!response.ok) {
      const again = response.status >= 500 || [408, 429].includes(response.status);
      throw new (again ? Error : Refused)(await response.text());
    }
    const answer = await response.json();
    if (!answer.mastership) {
      this.master = url;
      return answer;
    }
    const master = answer.mastership.http_address;
    if (!master || hops === 5 || (url.startsWith('https:') && !master.startsWith('https:'))) {
      throw new Error('there is no master');
    }
    return this.#post(master, method, message, hops + 1);
  }
}
