// Runs the hold in JavaScript for hold_clients_test.c. Prints "held", "refused" or "gone". Releases
// the hold after SIGUSR2, and before it ends, after SIGTERM.

import { setTimeout as sleep } from 'node:timers/promises';
import { Hold } from '../../../examples/clients/hold.mjs';

const [urls, resource, maxWait] = process.argv.slice(2);
let ended = false;
process.on('SIGTERM', () => { ended = true; });
const options = { maxWait: Number(maxWait), onGone: () => console.log('gone') };
const hold = new Hold(urls.split(','), resource, '', options);
process.on('SIGUSR2', () => { hold.release(); });
console.log(await hold.acquire() ? 'held' : 'refused');
while (!ended) await sleep(50);
await hold.release();
console.log('released');
