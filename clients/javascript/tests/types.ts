// Uses the types of the package, as an application does. The compiler checks it; it never runs.

import { createServer, type IncomingMessage } from 'node:http';
import { Client, Refused, TimedOut, VERSION, newClientId, type Acquired } from 'doorman-client';
import { Item, LeaseCore, Permit, PermitCore } from 'doorman-client/cores';
import { headersOf, rateLimit } from 'doorman-client/web';

export async function use(): Promise<number> {
  const client = new Client(['http://a:1', 'http://b:1'], {
    token: () => 't', tls: { ca: 'x' }, clientId: newClientId(),
    permits: { fallback: 'local', local: { kind: 'TOKEN_BUCKET', rate: 1, size: 2 } },
    onWarning: (text) => console.log(text.length, VERSION.length) });
  // @ts-expect-error: a local limit of this kind has no window
  new Client('http://a:1', { permits: { local: { kind: 'TOKEN_BUCKET', window: 1 } } });
  // @ts-expect-error: an unknown option
  client.rate('db', { want: 1 });
  const rate = client.rate('db', { wants: 5, fallback: 'optimistic' });
  const gauge = client.gauge('conn', { window: 1 });
  const size: number = await gauge.use(() => gauge.info().inUse, { units: 2, timeout: 1 });
  const permit: Acquired = await client.acquire('login', 'alice', { cost: 2, detail: true });
  await client.acquire([{ resourceId: 'a', key: 'b', min: 0 }], { equal: true });
  await client.acquire('login', { signal: AbortSignal.timeout(10) });
  const hold = await client.hold('slots', 'acme', { maxWait: 3, onGone: (held) => held.units });
  const left: number = await hold.run((held) => held.left());
  const moved = await hold.transfer({ amounts: [1] });
  (await client.seize(moved.transferId, { signal: AbortSignal.timeout(10) })).release([1]);
  await hold.settle([2], { timeout: 1 });
  const reservation = await client.reserve('llm', 'acme', { cost: 5, settleWithin: 9 });
  reservation.cost = 3;
  await reservation.settle([2], { timeout: 1 });
  client.report('llm', 'acme', -1);
  client.killSwitch(true);
  await client.close(1);
  return size + left + (rate.retryAfter() ?? 0) + client.counts().granted + permit.units.length;
}

export async function release(): Promise<void> {
  await using client = new Client('http://a:1');
  await using hold = await client.hold('slots');
  using rate = client.rate('db');
  console.log(hold.granted, rate.tryUse());
}

export function serve(client: Client): void {
  const limit = rateLimit(client, (request) => request.url, {
    key: (request: IncomingMessage) => request.socket.remoteAddress ?? '', refuseStatus: 503 });
  rateLimit(client, 'login', { key: (request) => request.socket.remoteAddress });
  createServer((request, response) => limit(request, response, (error) => {
    response.end(error instanceof Refused || error instanceof TimedOut ? error.message : 'hello');
  }));
}

export function drive(now: number): Record<string, string> | undefined {
  const leases = new LeaseCore('me', ['http://a:1'], now, { random: () => 0 });
  const resource = leases.open('db', { kind: 'gauge' }, now);
  const permits = new PermitCore('me', ['http://a:1'], now, { policy: { lanes: 0 } });
  permits.acquire(new Permit([new Item('a', 'b', { cost: 2 })], { hold: true }), 1, {}, now);
  for (const core of [leases, permits]) {
    const request = core.next(now);
    if (request) core.response(request, 200, {}, core.due());
  }
  if (leases.take(resource, 1, now) === 'allowed') leases.close(resource, now);
  const decision = permits.decision(now);
  return decision && headersOf(decision);
}
