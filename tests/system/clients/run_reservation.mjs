// Runs the reservations in JavaScript for reservation_clients_test.c: see run_reservation.py.
import { once } from 'node:events';

import { Reservations } from '../../../examples/clients/reservation.mjs';

const [urls, resource] = process.argv.slice(2);
const alive = setInterval(() => {}, 1000);
const [settles, ends] = [once(process, 'SIGUSR2'), once(process, 'SIGTERM')];
const client = new Reservations(urls.split(','));
const first = await client.reserve(resource, 'acme', 6);
console.log(first.granted ? 'granted' : 'refused');
await settles;
first.settle(1);
const second = await client.reserve(resource, 'acme', 3);
let cost;
try {
  throw new Error(second.granted ? 'failed' : 'refused');
} catch (error) {
  console.log(error.message);
} finally {
  second.settle(cost);
}
second.settle(0); // no effect
await ends;
await client.close();
console.log(`lost ${client.lost}`);
clearInterval(alive);
