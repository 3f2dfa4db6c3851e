// Runs the package of clients/javascript for shard_clients_test.c: see run_shards.py.
import { once } from 'node:events';

import { Client } from '../../../clients/javascript/src/index.js';

const [url, token, ...keys] = process.argv.slice(2);
const alive = setInterval(() => {}, 1000);
let goesOn = true;
process.on('SIGTERM', () => {
  goesOn = false;
  process.emit('SIGUSR2');
});
process.on('SIGUSR2', () => {});
const client = new Client(url, { token, permitTimeout: 3 });
while (goesOn) {
  let granted = 0;
  for (let i = 0; i < 20; i += 1) {
    for (const key of keys) {
      const permit = await client.acquire('api', key, { timeout: 20 });
      if (permit.granted && permit.by === 'server') granted += 1;
    }
  }
  const reservation = await client.reserve('api', keys.at(-1), { cost: 5, timeout: 20 });
  const settled = await reservation.settle(2, { timeout: 20 });
  const next = once(process, 'SIGUSR2');
  const counted = settled.granted && settled.by === 'server';
  console.log(`round ${granted} ${counted ? 'settled' : 'lost'}`);
  if (goesOn) await next;
}
await client.close();
clearInterval(alive);
