// Runs the client in JavaScript for clients_test.c. Prints 20 lines a second: the time, the units
// that were used since the last line, the rate, and whether the rate is a lease.

import { setTimeout as sleep } from 'node:timers/promises';
import { Client } from '../../../examples/clients/doorman.mjs';

const [urls, resource, wants] = process.argv.slice(2);
const client = new Client(urls.split(','), resource, Number(wants));
let stopped = false;
process.on('SIGTERM', () => { stopped = true; });
while (!stopped) {
  await sleep(50);
  let used = 0;
  while (used < 100 && client.tryUse()) used++;
  const source = client.left > 0 ? 'lease' : 'fallback';
  console.log(`${(Date.now() / 1000).toFixed(3)} ${used} ${client.rate.toFixed(3)} ${source}`);
}
await client.close();
