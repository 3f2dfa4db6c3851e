// Holds server/pages/openapi.json against running servers: each response must be one of the
// responses of its operation, and fit its schema. Each response of the description must also have been seen,
// except those in UNSEEN.
//
//     node tests/openapi/server.mjs MASTER STANDBY CHILD GUARDED VERSIONED
//
// The arguments are HTTP addresses. STANDBY is not the master, and knows no master. CHILD has the
// parent MASTER. GUARDED has a store and the tokens "read-1", "write-1", "support-1" and "admin-1",
// and accepts messages of 2,000 bytes. VERSIONED has the same tokens, and a configuration in a store
// that is empty.

import { readdirSync, readFileSync } from 'node:fs';
import { connect } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { isDeepStrictEqual } from 'node:util';
import { checker, description, fault, fieldsNotSeen, finish, noteFields, operations, resolve }
  from './description.mjs';

const [master, standby, child, guarded, versioned] = process.argv.slice(2);
const TIMEOUT = 60; // seconds

// These responses need a second process that is master, a lack of memory, a server that stops at
// this moment, a server without a store, or many requests at the same moment. These fields need an
// etcd, leaked descriptors, a dead etcd or parent, a file that cannot be written, a silent child, a
// lost mastership, 10,000 counters, or two processes with one id. Other tests have them.
const UNSEEN = new RegExp(`^(${[
  'post .* (307|429|500|503)', 'get (?!.readyz).* (500|503)', 'get .readyz 500', 'get .v1.allow 307',
  'get .v1.(audit|overrides|plans) (307|404)',
  'get .v1.config.versions.* 307', 'get .v1.shards 200', 'post .v1.shards (200|409)',
  'post .v1.batch (200|403|421)', 'post .v1.reset 409'].join('|')})$`);
const FIELDS_UNSEEN = [
  'Act.known', 'Act.moves', 'Act.node', 'Act.refused', 'Act.shard', 'Act.change', 'Act.written',
  'ActEntry.banned_before',
  'ChildStatus.lease_ends_in', 'ConfigurationChanged.warning_count',
  'ConfigurationCheck.leased_over_count', 'CountersNext.next', 'Drain.failure',
  'DrainStatus.failure',
  ...['ClientLeases', 'ResourceLeases'].flatMap(
    (name) => ['config', 'drain', 'etcd_failure', 'last_loss', 'load_failures', 'no_master'].map(
      (field) => `${name}.${field}`)),
  ...['ClientLeases', 'ResourceLeases', 'Status'].flatMap(
    (name) => ['descriptor_leak', 'etcd_answered_ago', 'master_http_address',
      'mastership_ends_in'].map(
      (field) => `${name}.${field}`)),
  'GetServerCapacityResponse.shared_id', 'InspectResponse.mastership', 'LastLoss.ago',
  'LastLoss.reason', 'LeaseStatus.other_peer', 'NotMaster.is_master', 'NotMaster.mastership',
  'Override.expires_in', 'Plan.expires_in', 'OverrideState.idle', 'PlanState.idle',
  'ParentStatus.failure', 'ParentStatus.shared_node', 'Permit.share', 'Refused.share',
  'ResetResponse.mastership',
  'ResetResponse.note',
  ...['epoch', 'is_master', 'moved_in', 'moved_out', 'moves', 'moving', 'node', 'nodes', 'owned',
    'rows_lost', 'shards', 'trouble'].map((field) => `Shards.${field}`),
  ...['addresses', 'answers', 'has_master', 'name', 'shards', 'without_master_seconds'].map(
    (field) => `ShardNode.${field}`),
  ...['from', 'owner', 'permits', 'shard', 'state', 'target'].map((field) => `ShardOwner.${field}`),
  ...['count', 'epoch', 'moving', 'owned', 'trouble'].map((field) => `ShardsStatus.${field}`),
  'LoadFailure.reason', 'LoadFailure.what', 'Status.config_failure', 'Status.load_failures',
  'Status.shards', 'ResponseMessage.inspect', 'ResponseMessage.reset',
  'StateStatus.failure', 'Status.last_loss',
  'TemplateDifference.is_reordered', 'Undone.had_ended', 'Undone.hides', 'Undone.then',
  ...['ago', 'by_rule', 'count', 'domain', 'key', 'resource_id'].map(
    (field) => `UnmatchedDescriptor.${field}`),
  // these need a map of shards
  'Act.row', 'OverrideState.audit', 'OverrideState.node', 'PlanState.node',
  'Permit.first_item', 'PermitFirstItem.key', 'PermitFirstItem.resource_id',
  ...['first_item', 'item_index', 'key', 'resource_id'].map((field) => `Settlement.${field}`),
  'DiscoveryResponse.map', 'ReleaseHoldsResult.reason', 'RenewResult.reason',
  ...['Acquire', 'Inspect', 'ReleaseHolds', 'Renew', 'Report', 'Reset', 'Seize', 'Settle',
    'Transfer'].map((method) => `${method}Response.map_epoch`),
  ...['epoch', 'nodes', 'nodes.addresses', 'nodes.election_key', 'nodes.http_addresses', 'nodes.name',
    'rules', 'rules.by', 'rules.glob', 'seed', 'shards', 'shards.from', 'shards.lost', 'shards.owner',
    'shards.target'].map((field) => `ShardMap.${field}`),
].sort();

// ---- requests

const RULES = { Host: 'localhost', Connection: 'close' };

const header = (response, name) =>
  response.head.match(new RegExp(`^${name}: (.*?)\r?$`, 'mi'))?.[1];

// Returns the status, the head and the body of a response, or null if it is not complete.
function readResponse(text, verb) {
  const [head, ...rest] = text.split('\r\n\r\n');
  const response = { status: head.split(' ')[1], head, body: rest.join('\r\n\r\n') };
  if (rest.length === 0) return null;
  const missing = Number(header(response, 'Content-Length')) - Buffer.byteLength(response.body);
  return verb === 'HEAD' || missing <= 0 ? response : null;
}

// Sends a request on a connection of its own, and returns the response. It does not wait until the
// server closes the connection, because a server first waits for the rest of a refused body.
function send(address, verb, path, { headers = {}, body = '', line = '' } = {}) {
  const { hostname, port } = new URL(address);
  const all = { ...RULES, ...(body ? { 'Content-Length': body.length } : {}), ...headers };
  const lines = Object.entries(all).map(([key, value]) => `${key}: ${value}\r\n`).join('');
  return new Promise((done, fail) => {
    let text = '';
    const socket = connect(Number(port), hostname);
    socket.setTimeout(TIMEOUT * 1000, () => socket.destroy(new Error(`${verb} ${path}: time-out`)));
    socket.setEncoding('utf8');
    socket.on('error', fail);
    socket.on('close', () => fail(new Error(`${verb} ${path}: no response, but "${text}"`)));
    socket.on('data', (part) => {
      text += part;
      const response = readResponse(text, verb);
      if (!response) return;
      done(response);
      socket.destroy();
    });
    socket.write(`${verb} ${path} HTTP/1.1\r\n${lines}${line}\r\n${body}`);
  });
}

const seen = new Set();
const all = operations();
const operationAt = (path, verb) => all.find((each) => each[0] === path && each[1] === verb);

const LINES = 'application/x-ndjson';

// Fails unless each line fits the schema. Returns the values of the lines.
function checkLines(where, { schema }, text) {
  const check = checker(schema);
  const values = text.split('\n').filter(Boolean).map((line) => JSON.parse(line));
  for (const value of values) {
    const errors = check(value);
    if (errors) fault(where, errors, JSON.stringify(value));
    else noteFields(schema, value);
  }
  return values;
}

// Fails unless a response is one of the responses of its operation. Returns the body, which is
// parsed if it is JSON.
function checkResponse(path, verb, response, query = '') {
  const [, , , responses] = operationAt(path, verb);
  const where = `${verb} ${path}${query} ${response.status}`;
  const expected = responses[response.status];
  if (!expected) return fault(where, 'is not in the description:', response.body.slice(0, 500));
  seen.add(`${verb} ${path} ${response.status}`);
  const type = header(response, 'Content-Type');
  const media = expected.content[type];
  if (!media) return fault(where, 'has another type:', type);
  if (type === LINES) return checkLines(where, media, response.body);
  const body = type === 'application/json' ? JSON.parse(response.body) : response.body;
  const errors = checker(media.schema)(body);
  if (errors) fault(where, errors, JSON.stringify(body).slice(0, 2000));
  else if (type === 'application/json') noteFields(media.schema, body);
  for (const [name, { required }] of Object.entries(expected.headers ?? {})) {
    if (required && !header(response, name)) fault(where, 'does not have the header', name);
  }
  return body;
}

const JSON_TYPE = { 'Content-Type': 'application/json' };
const FORM = { // of a request that a form sends
  'Content-Type': 'application/x-www-form-urlencoded', 'Sec-Fetch-Site': 'same-origin' };

// A path with the number of a version in it.
const filled = (path, version = 1) => path.replace('{version}', version);

async function get(address, path, query = '', more = {}) {
  const { version, ...rest } = more;
  const url = filled(path, version) + query;
  return checkResponse(path, 'get', await send(address, 'GET', url, rest), query);
}

async function post(address, path, value, more = {}) {
  const body = JSON.stringify(value);
  const response = await send(address, 'POST', path, { headers: JSON_TYPE, body, ...more });
  return checkResponse(path, 'post', response);
}

// ---- what the servers answer

// Returns a value for each parameter that an operation needs.
function queryOf(operation) {
  const needed = (operation.parameters ?? []).filter(({ required }) => required);
  return needed.map(({ name }) => `?${name}=db/orders`).join('');
}

const ask = (resource, wants, more = {}) =>
  ({ client_id: 'web-7', resource: [{ resource_id: resource, wants, ...more }] });

// Gets leases of all kinds, so that all fields of the responses occur.
async function getLeases() {
  const path = '/v1/get_capacity';
  const first = await post(master, path, ask('db/orders', 120));
  const { gets } = first.response[0];
  await post(master, path, { ...ask('db/orders', 80), client_id: 'web-8' });
  await post(master, path, ask('db/orders', 120, { has: gets, priority: 3, outstanding: 90 }));
  await post(master, path, ask('pool/db', 2.5));
  await post(master, path, ask('mail/send', 5));
  await post(master, path, ask('unknown', 1));
  await post(master, path, { client_id: 'web-7', resource: [] });
  const resource = ['db/users', 'mail/send', 'pool/db', 'unknown']
    .map((id) => ({ resource_id: id, learning: true, wants: [{ num_clients: 4, wants: 60 }] }));
  await post(master, '/v1/get_server_capacity', { server_id: 'eu-1', path: ['eu-1'], resource });
  await reportOverload(path);
}

// Servers behind a resource report that they refuse half of the requests.
async function reportOverload(path) {
  const wants = [{ num_clients: 4, wants: 60 }];
  const report = { interval: 16, arrived: 1000, finished: 500, refused: 500 };
  await post(master, path, ask('search', 50));
  await post(master, '/v1/get_server_capacity', {
    server_id: 'eu-1', path: ['eu-1'], resource: [{ resource_id: 'search', wants }] });
  await post(master, '/v1/report_overload', {
    client_id: 'search-3', resource: [{ resource_id: 'search', ...report }] });
}

// A server below another one gets a lease within some seconds. Then its status has more fields.
async function waitForChild() {
  for (let tries = 0; tries < 10 * TIMEOUT; tries++) {
    await post(child, '/v1/get_capacity', ask('db/orders', 5));
    const { resources } = await get(child, '/v1/status');
    if (resources[0]?.lease_expires_in !== undefined) return;
    await sleep(100);
  }
  fault('the child gets no lease');
}

async function getState() {
  const { next } = await get(master, '/v1/status', '?resource=db/orders&limit=1');
  await get(master, '/v1/status', `?resource=db/orders&limit=5000&filter=web&after=${next}`);
  await get(master, '/v1/status', '?filter=db');
  await get(master, '/v1/status', '?resource=none');
  await get(master, '/v1/status', '?resource=db/orders&limit=0');
  const part = await get(master, '/v1/status', '?client=web&limit=1');
  await get(master, '/v1/status', `?client=web&limit=1000&after=${part.next}`);
  await get(master, '/v1/status', '?client=');
  await get(child, '/v1/status', '?resource=db/orders');
  await get(child, '/v1/status', '?client=web-7');
  await get(master, '/clients', '?client=web');
  await get(master, '/clients', '?client=web&after=1-2-3-4');
  await get(master, '/resources', '?resource=none');
  await get(standby, '/readyz');
  await get(standby, '/readyz', '?master=1');
  await get(master, '/readyz', '?master=1');
}

// Gets decisions on permits of all kinds, so that all fields of the responses occur.
async function getPermits() {
  const item = (key, more = {}) => [{ resource_id: 'login', key, ...more }];
  const permit = [{ item: item('a', { cost: 5 }), detail: true }, { item: item('a', { cost: 5 }) },
    { item: [...item('b'), ...item('a')], detail: true },
    { item: item('a'), max_wait: 60 }];
  await post(master, '/v1/acquire', { client_id: 'web-7', permit });
  for (const query of ['cost=3', 'cost=9', 'cost=5', 'cost=1', 'refuse=403']) {
    await get(master, '/v1/allow', `?resource=login&key=c&${query}`);
  }
  const shared = { item: [{ resource_id: 'shared', key: 'a' }], detail: true };
  await post(master, '/v1/acquire', { client_id: 'web-7', permit: [shared] });
  await post(master, '/v1/acquire', { client_id: 'web-7', permit: [shared] }); // has a demand now
  await get(master, '/v1/allow', '?resource=soon&cost=2');
  await get(master, '/v1/allow', '?resource=soon&max_wait=25');
  const { limits } = await get(master, '/v1/limits');
  for (const { template, limit } of limits) {
    const query = `?template=${encodeURIComponent(template)}&limit=${encodeURIComponent(limit)}`;
    await get(master, '/v1/limits', query);
    await get(master, '/limits', query);
  }
  await get(master, '/v1/limits', '?limit=none');
  await get(master, '/limits', '?limit=none');
  const many = Array.from({ length: 12 }, () => ({ item: item('d', { cost: 5 }) })); // until a ban
  await post(master, '/v1/acquire', { client_id: 'web-7', permit: many });
  await get(master, '/v1/counters');
  await get(master, '/v1/counters', '?template=login');
  await get(master, '/v1/counters', '?limit=none');
  await get(master, '/v1/counters', '?after=1-2-3-4');
}

// Reserves and settles, so that all fields of reservations occur.
async function settle() {
  const item = (cost) => [{ resource_id: 'login', key: 'r', cost }];
  const entry = (request_id, cost) => ({ client_id: 'gw', entry: [{ request_id, item: item(cost) }] });
  const permit = (request_id) => ({ item: item(1), settle_within: 600, request_id });
  await post(master, '/v1/acquire', { client_id: 'gw', permit: [permit(1), permit(2)] });
  await get(master, '/v1/holds');
  await get(master, '/holds');
  await post(master, '/v1/settle', entry(1, 0));
  await post(master, '/v1/settle', entry(1, 1)); // REPEATED
  await post(master, '/v1/settle', entry(3, 0)); // unknown
  await post(master, '/v1/acquire', {
    client_id: 'gw', permit: [{ ...permit(4), settle_within: 0.01 }] });
  await sleep(1500); // the end comes with the next call
  await post(master, '/v1/settle', entry(4, 0)); // late
  const report = (cost) => ({ resource_id: 'login', key: 'r', cost, request_id: 1 });
  await post(master, '/v1/report', { client_id: 'gw', entry: [report(0), report(1)] });
}

// Checks configurations that are valid or not, with few mistakes and with many.
async function checkConfigurations() {
  const path = '/v1/config/check';
  const numbers = Array.from({ length: 25 }, (_, i) => i);
  const day = { name: 'other', kind: 'FIXED_WINDOW', limit: 1, window: 'day' };
  const hidden = numbers.map((i) => ({ identifier_glob: `db/*${i}`, capacity: 1 }));
  await post(master, path, { unmatched: 'allow', resources: [
    { identifier_glob: 'db/*', capacity: 1 }, ...hidden,
    { identifier_glob: 'login', limits: [day] }] });
  await post(master, path, { resources: 7 });
  await post(master, path,
    { resources: numbers.map((i) => ({ identifier_glob: `${i}`, capacity: -1 })) });
  await post(child, path, { resources: [] });
}

const holds = (client, entry) => ({ client_id: client, entry: [entry] });

const acquireSlots = (client, cost, more) => ({
  client_id: client,
  permit: [{ request_id: 1, item: [{ resource_id: 'slots', cost }], ...more }],
});

// Lets one permit wait while another has the units, so that all fields of holds occur.
async function getHolds() {
  const { permit } = await post(master, '/v1/acquire', acquireSlots('a', 1, { time_to_live: 60 }));
  const { id } = permit[0].hold;
  const wait = { max_wait: 600, priority: 2 };
  const waiting = post(master, '/v1/acquire', acquireSlots('b', 2, wait));
  for (let tries = 0; tries < 10 * TIMEOUT; tries++) {
    if ((await get(master, '/v1/holds')).waiting === 1) break;
    await sleep(100);
  }
  await get(master, '/holds');
  await post(master, '/v1/renew', holds('a', { id }));
  const move = { id, request_id: 2 };
  await post(master, '/v1/transfer', holds('a', { ...move, request_id: 1 })); // REPEATED
  const { entry } = await post(master, '/v1/transfer', holds('a', move));
  await get(master, '/v1/holds');
  await get(master, '/v1/descriptors', '?domain=shop&path=/login&ip=1.2.3.4');
  await get(master, '/v1/descriptors', '?domain=none');
  await get(master, '/v1/descriptors', '?path=/login'); // without a domain
  await get(master, '/descriptors', '?domain=shop&entries=path=/login');
  const seize = { transfer_id: entry[0].transfer_id, request_id: 1 };
  await post(master, '/v1/seize', holds('b', seize)); // REPEATED: it waits
  await post(master, '/v1/seize', holds('c', seize));
  await post(master, '/v1/release', holds('c', { request_id: 1 }));
  if ((await waiting).permit[0].decision !== 'GRANTED') fault('a permit that waits is not granted');
}

const ADMIN = ['/v1/inspect', '/v1/reset'];
const NEED_TOKENS = [
  ...ADMIN, '/audit', '/override', '/overrides', '/v1/audit', '/v1/overrides', '/v1/plans',
  '/v1/config/rollback', '/v1/audit/{id}/undo', '/v1/drain', '/v1/undrain', '/v1/shards', '/v1/holds/end',
  '/v1/reservations/end'];
const ADMIN_TOKEN = { Authorization: 'Bearer admin-1' };

// The methods of administrators need a token.
async function administer() {
  const headers = { ...JSON_TYPE, ...ADMIN_TOKEN };
  const login = { resource_id: 'login', key: 'a' };
  const acquire = { client_id: 'a', permit: [{ item: [{ ...login, cost: 5 }] },
    { item: [{ ...login, cost: 5 }] }] };
  await post(guarded, '/v1/acquire', acquire, { headers });
  const brings = { ...login, key: 'c', set: { 'per-user': { rate: 0.2, size: 6 } } };
  await post(guarded, '/v1/acquire', { client_id: 'a', permit: [{ detail: true, item: [brings] }] },
    { headers });
  for (const user of ['a', 'b']) { // REFUSED and GRANTED
    await get(guarded, '/v1/descriptors', `?domain=shop&path=/login&user=${user}`,
      { headers: ADMIN_TOKEN });
  }
  for (const [path, verb, operation] of all) {
    if (!ADMIN.includes(path)) continue;
    const { examples } = operation.requestBody.content['application/json'];
    for (const { value } of Object.values(examples)) await post(guarded, path, value, { headers });
  }
  await post(guarded, '/v1/inspect', { entry: [login] }, { headers });
  await post(guarded, '/v1/reset', { entry: [{ ...login, ban: 60 }] }, { headers });
  await get(guarded, '/keys', '?resource=login&key=a', { headers: ADMIN_TOKEN });
  await post(guarded, '/v1/inspect', { entry: [login] }, { headers });
  await get(guarded, '/v1/counters', '', { headers: ADMIN_TOKEN });
  for (const query of ['', '?key=a&who=ann&limit=1', '?limit=0']) {
    await get(guarded, '/v1/audit', query, { headers: ADMIN_TOKEN });
  }
  await get(guarded, '/v1/audit', '', { headers: { Authorization: 'Bearer read-1' } }); // 403
}

// Sends a PUT or a DELETE, whose response must be in the description.
async function change(path, verb, query, value, { to = guarded, more = {} } = {}) {
  const headers = { ...JSON_TYPE, ...ADMIN_TOKEN, ...more };
  const body = value ? JSON.stringify(value) : '';
  const response = await send(to, verb.toUpperCase(), path + query, { headers, body });
  const { responses } = description.paths[path][verb];
  const expected = responses[response.status] && resolve(responses[response.status]);
  const where = `${verb} ${path}${query} ${response.status}`;
  if (!expected) return fault(where, 'is not in the description:', response.body);
  const { schema } = expected.content['application/json'];
  const errors = checker(schema)(JSON.parse(response.body));
  if (errors) fault(where, errors, response.body);
  return response.status;
}

// Sets, lists and ends overrides.
async function override() {
  const { examples } = description.paths['/v1/overrides'].put.requestBody
    .content['application/json'];
  const of = { limit: 'per-user', key: 'acme', reason: 'a test' };
  const statuses = [
    await change('/v1/overrides', 'put', '', examples.raise.value),
    await change('/v1/overrides', 'put', '', { ...of, resource: 'login', add: 5, expires_in: 60 }),
    await change('/v1/overrides', 'put', '', { ...of, glob: 'login', set: { size: 9 }, expires_in: 60 }),
    await change('/v1/overrides', 'put', '', { ...of, resource: 'login', set: { size: -1 } }),
    await change('/v1/overrides', 'put', '', { ...of, resource: 'login', limit: 'none', set: { size: 1 } }),
  ];
  await get(guarded, '/v1/overrides', '', { headers: ADMIN_TOKEN });
  await get(guarded, '/v1/overrides', '?key=acme&limit=1', { headers: ADMIN_TOKEN });
  statuses.push(await change('/v1/overrides', 'delete', '?resource=login&limit=per-user&key=acme&reason=over'));
  statuses.push(await change('/v1/overrides', 'delete', '?resource=login&limit=per-user&key=nobody'));
  if (statuses.join() !== '200,200,200,400,404,200,404') fault('overrides:', statuses.join());
}

// Sets, lists and ends plans.
async function plan() {
  const { examples } = description.paths['/v1/plans'].put.requestBody.content['application/json'];
  const of = { glob: 'login', key: 'acme', reason: 'a test' };
  const statuses = [await change('/v1/plans', 'put', '', examples.one.value)];
  await get(guarded, '/v1/plans', '', { headers: ADMIN_TOKEN });
  statuses.push(
    await change('/v1/plans', 'put', '', examples.several.value),
    await change('/v1/plans', 'put', '', { ...of, plan: 'none' }),
    await change('/v1/plans', 'put', '', { ...of, plan: 5 }),
    await change('/v1/overrides', 'put', '',
      { ...of, glob: undefined, resource: 'login', limit: 'per-user', set: { size: 8 } }),
  );
  const headers = { ...JSON_TYPE, ...ADMIN_TOKEN };
  await post(guarded, '/v1/inspect', { entry: [{ resource_id: 'login', key: 'bob' }] }, { headers });
  await get(guarded, '/v1/plans', '', { headers: ADMIN_TOKEN });
  await get(guarded, '/v1/overrides', '?key=acme', { headers: ADMIN_TOKEN }); // it hides the plan
  await get(guarded, '/v1/plans', '?key=acme&limit=1', { headers: ADMIN_TOKEN });
  await get(guarded, '/v1/plans', '?limit=1', { headers: ADMIN_TOKEN });
  await get(guarded, '/v1/plans', '?limit=0', { headers: ADMIN_TOKEN });
  statuses.push(await change('/v1/plans', 'delete', '?glob=login&key=acme&reason=over'));
  statuses.push(await change('/v1/plans', 'delete', '?glob=login&key=nobody'));
  await get(guarded, '/v1/audit', '?key=bob', { headers: ADMIN_TOKEN });
  if (statuses.join() !== '200,200,404,400,200,200,404') fault('plans:', statuses.join());
}

// Changes the configuration, lists and compares its versions, and brings one back.
async function version() {
  const quota = (limit) => ({ name: 'quota', kind: 'FIXED_WINDOW', limit, window: 'day' });
  const maps = (limit, more) => ({ resources: [
    { identifier_glob: 'maps', capacity: limit, limits: [quota(limit)] },
    { identifier_glob: 'map?', capacity: 1 }], ...more });
  const put = (query, value, more) =>
    change('/v1/config', 'put', query, value, { to: versioned, more });
  const statuses = [
    await put('?reason=first', maps(5), { 'If-None-Match': '*' }),
    await put('?reason=second', maps(9, { unmatched: 'reject' }), { 'If-Match': '"1"' }),
    await put('?reason=stale', maps(7), { 'If-Match': '"1"' }),
    await put('?reason=wrong', maps(-1), { 'If-Match': '"2"' }),
    await put('', maps(7), { 'If-Match': '"2"' }),
    await change('/v1/config', 'put', '?reason=a', maps(7), { more: { 'If-Match': '"1"' } }),
  ];
  if (statuses.join() !== '200,200,412,400,400,409') fault('versions:', statuses.join());
  const back = async (query, expected, from = 2, to = versioned) => {
    const headers = { ...JSON_TYPE, ...ADMIN_TOKEN, 'If-Match': `"${from}"`, 'Content-Length': 0 };
    const response = await send(to, 'POST', `/v1/config/rollback${query}`, { headers });
    checkResponse('/v1/config/rollback', 'post', response, query);
    if (response.status !== expected) fault('rollback:', query, response.status, response.body);
  };
  await back('?version=1&reason=stale', '412', 1);
  await back('?version=9&reason=none', '404');
  await back('?version=1', '400');
  await back('?version=1&reason=file', '409', 2, guarded);
  await back('?version=1&reason=undo', '200');
  const read = { headers: ADMIN_TOKEN };
  for (const query of ['', '?limit=1', '?limit=0']) {
    await get(versioned, '/v1/config/versions', query, read);
  }
  for (const number of [1, 2, 3, 9]) {
    await get(versioned, '/v1/config/versions/{version}', '', { ...read, version: number });
    await get(versioned, '/v1/config/versions/{version}/diff', '', { ...read, version: number });
  }
  await get(versioned, '/v1/config/versions/{version}', '?limit=1', read);
  await get(versioned, '/v1/config/versions/{version}/diff', '?limit=1', read);
  for (const query of ['', '?version=2', '?version=9', '?after=3']) {
    await get(versioned, '/versions', query, read);
  }
  await get(versioned, '/v1/config', '', read);
  await get(versioned, '/v1/status', '', read);
  await get(versioned, '/v1/audit', '', read);
}

// Takes acts back.
async function undo() {
  const answer = async (id, query, to = guarded) => {
    const headers = { ...JSON_TYPE, ...ADMIN_TOKEN, 'Content-Length': 0 };
    const response = await send(to, 'POST', `/v1/audit/${id}/undo${query}`, { headers });
    checkResponse('/v1/audit/{id}/undo', 'post', response, query);
    return { ...JSON.parse(response.body), status: response.status };
  };
  const of = { resource: 'login', limit: 'per-user', key: 'undone', reason: 'a test' };
  await change('/v1/overrides', 'put', '', { ...of, set: { size: 8 }, expires_in: 60 });
  const lines = await send(guarded, 'GET', '/v1/audit?limit=1', { headers: ADMIN_TOKEN });
  const { id } = JSON.parse(lines.body.split('\n')[0]);
  const first = await answer(id, '?reason=wrong');
  if (first.status !== '200' || first.id !== id + 1) fault('undo:', first);
  const statuses = [];
  for (const [number, query] of [[id, '?reason=r'], [999999, '?reason=r'], [id, '']]) {
    statuses.push((await answer(number, query)).status);
  }
  if (statuses.join() !== '409,404,400') fault('undo:', statuses.join());
  await answer(3, '?reason=wrong', versioned);
  for (const path of ['/audit', '/overrides']) {
    for (const query of ['', '?key=acme&limit=1']) {
      await get(guarded, path, query, { headers: ADMIN_TOKEN });
    }
  }
  await get(guarded, '/v1/audit', '', { headers: ADMIN_TOKEN });
}

// Gives other figures with the form of the page, as an administrator.
async function fillIn() {
  const page = '?resource=login&key=formal';
  const body = await get(guarded, '/override', page, { headers: ADMIN_TOKEN });
  const nonce = body.match(/name=nonce value="([0-9a-f]{32})"/)[1];
  const fields = { resource: 'login', key: 'formal', limit: 'per-user', figures: 'size=9',
    number: '1', unit: 'days', reason: 'a test', nonce };
  const answer = async (more, site = 'same-origin', to = guarded) => {
    const headers = { ...ADMIN_TOKEN, ...FORM, 'Sec-Fetch-Site': site };
    const sent = new URLSearchParams({ ...fields, ...more }).toString();
    const response = await send(to, 'POST', '/override', { headers, body: sent });
    checkResponse('/override', 'post', response);
    return response.status;
  };
  const statuses = [];
  for (const [more, site] of [[{ figures: '9' }], [{ limit: 'none' }], [{}, 'cross-site'],
    [{ nonce: '0' }], [{}], [{}]]) statuses.push(await answer(more, site));
  if (statuses.join() !== '400,404,403,409,303,200') fault('the form:', statuses.join());
  await get(guarded, '/override', `${page}&done=${nonce}`, { headers: ADMIN_TOKEN });
}

// Sends a POST with a query, as an administrator.
async function postQuery(path, query, value) {
  const headers = { ...JSON_TYPE, ...ADMIN_TOKEN }, body = JSON.stringify(value);
  const response = await send(guarded, 'POST', `${path}${query}`, { headers, body });
  return checkResponse(path, 'post', response);
}

// Ends a hold, and lists what operators look for.
async function operate() {
  const headers = { ...JSON_TYPE, ...ADMIN_TOKEN };
  await post(guarded, '/v1/acquire', acquireSlots('ops', 1, { time_to_live: 60 }), { headers });
  const { longest_held: [{ id }] } = await get(guarded, '/v1/holds', '', { headers });
  const reset = { entry: [{ resource_id: 'slots', limit: 'slots' }] };
  await post(guarded, '/v1/reset', reset, { headers });
  const end = (value) => postQuery('/v1/holds/end', '?reason=stuck', value);
  await end({ id, key: 'other' });
  await end({ id, resource_id: 'slots' });
  await end({ id });
  const reserve = { item: [{ resource_id: 'login', key: 'r' }], request_id: 7, settle_within: 60 };
  await post(guarded, '/v1/acquire', { client_id: 'ops', permit: [reserve] }, { headers });
  const { oldest_reservations: [reserved] } = await get(guarded, '/v1/holds', '', { headers });
  const endReserved = (value) => postQuery('/v1/reservations/end', '?reason=stuck', value);
  await endReserved({ id: reserved.id });
  await endReserved({ id: reserved.id, unsettled: 'keep', key: 'other' });
  await endReserved({ id: reserved.id, unsettled: 'keep' });
  await endReserved({ id: reserved.id, unsettled: 'keep' });
  await get(guarded, '/v1/audit', '', { headers });
  const ban = (key) => ({ resource_id: 'login', key, ban: 60 });
  await post(guarded, '/v1/reset', { entry: [ban('x'), ban('y')] }, { headers });
  await get(guarded, '/v1/bans', '?limit=1', { headers });
  await post(guarded, '/v1/shards', { rebalance: true }, { headers }); // 404
  await post(guarded, '/v1/batch', {}, { headers }); // 404
  await get(master, '/v1/bans', '?resource=login');
  for (const query of ['?by=nearest', '?by=units&over=day', '?by=none']) {
    await get(master, '/v1/top', query);
  }
}

// Drains a process and ends that.
async function drain() {
  const headers = { ...JSON_TYPE, ...ADMIN_TOKEN };
  const become = async (state) => {
    const is = async () => (await get(guarded, '/v1/drain', '', { headers })).state === state;
    for (let tries = 0; tries < 10 * TIMEOUT && !await is(); tries++) await sleep(100);
  };
  await postQuery('/v1/drain', '', {});
  await postQuery('/v1/drain', '?force=1&reason=move', {});
  await become('drained');
  await get(guarded, '/v1/status', '', { headers });
  await postQuery('/v1/undrain', '', {});
  await become('serving');
  await get(guarded, '/v1/audit', '', { headers });
}

// A client that never confirms its leases is shown with its peer, and with the name of its token.
async function neverConfirm() {
  const headers = { ...JSON_TYPE, ...ADMIN_TOKEN };
  const demand = ask('db/orders', 5);
  for (let i = 0; i < 4; i++) await post(guarded, '/v1/get_capacity', demand, { headers });
  const { leases } = await get(guarded, '/v1/status', '?resource=db/orders', { headers });
  if (leases[0].token !== 'ann') fault('the token of a client that does not confirm:', leases[0]);
}

// Sends each example of the description, and a GET to each path, to all servers.
async function sendAll() {
  for (const address of [master, standby, child]) {
    for (const [path, verb, operation] of all) {
      if (verb === 'get') await get(address, path, queryOf(operation));
      const examples = operation.requestBody?.content['application/json']?.examples ?? {};
      for (const { value } of Object.values(examples)) {
        await post(address, path, value);
        if (path !== '/v1') await post(address, '/v1', { [path.slice('/v1/'.length)]: value });
      }
    }
  }
  await post(master, '/v1', { lend: {} });
  for (const [path, verb] of all) if (verb === 'post') await post(master, path, []);
}

// ---- what the servers refuse

// Requests that most operations refuse, and the status of the refusal. The probes refuse fewer.
const EMPTY = { ...JSON_TYPE, 'Content-Length': 0 };
const REFUSED = [
  [master, { headers: EMPTY, line: 'no field\r\n' }], // 400
  [guarded, { headers: EMPTY }], // 401
  [master, { headers: { ...EMPTY, Host: 'other.example' } }], // 403
  [guarded, { headers: {
    ...JSON_TYPE, 'Content-Length': 100000, ...ADMIN_TOKEN } }], // 413
  [master, { headers: { ...EMPTY, Expect: 'more' } }], // 417
  [master, { headers: { ...EMPTY, Long: 'x'.repeat(17000) } }], // 431
  [master, { headers: { ...JSON_TYPE, 'Transfer-Encoding': 'gzip' } }], // 501
];

// Requests that only a POST refuses.
const REFUSED_POSTS = [
  [guarded, { headers: { ...EMPTY, Authorization: 'Bearer read-1' } }], // 403
  [master, { headers: JSON_TYPE }], // 411
  [master, { headers: { 'Content-Length': 0 } }], // 415
];

async function refuse(path, verb, operation) {
  const isForm = operation.requestBody?.content[FORM['Content-Type']];
  for (const [address, more] of [...REFUSED, ...(verb === 'post' ? REFUSED_POSTS : [])]) {
    const url = filled(path) + queryOf(operation);
    const isOpen = ['get /v1/drain', 'get /v1/shards'].includes(`${verb} ${path}`);
    const asAdmin = address === master && NEED_TOKENS.includes(path) && !isOpen;
    const headers = { ...(asAdmin ? ADMIN_TOKEN : {}), ...more.headers };
    if (isForm) headers['Sec-Fetch-Site'] = FORM['Sec-Fetch-Site'];
    if (isForm && headers['Content-Type']) headers['Content-Type'] = FORM['Content-Type'];
    const to = asAdmin ? guarded : address;
    checkResponse(path, verb, await send(to, verb.toUpperCase(), url, { ...more, headers }));
  }
}

// A GET needs a token exactly if the description says so, and a token of this role is enough.
async function checkToken(path, verb, operation) {
  if (verb !== 'get') return;
  const security = operation.security ?? description.security;
  const schemes = security.flatMap(Object.keys);
  const role = security.find(({ token }) => token)?.token[0] ?? 'read';
  const without = await send(guarded, 'GET', filled(path) + queryOf(operation));
  const needs = schemes.includes('token');
  if (needs !== (without.status === '401')) fault(path, 'without a token:', without.status);
  const given = await send(guarded, 'GET', filled(path) + queryOf(operation),
    { headers: { Authorization: `Bearer ${role}-1` } });
  if (['401', '403'].includes(given.status)) fault(path, 'with a token:', given.status);
}

// Other verbs are refused. HEAD is the same as GET, without the body.
async function checkVerbs(path, verb, operation) {
  const url = filled(path) + queryOf(operation);
  const { get, post, put, delete: ends } = description.paths[path];
  const known = [[get, 'GET'], [get, 'HEAD'], [post ?? path === '/v1/allow', 'POST'], [put, 'PUT'],
    [ends, 'DELETE']].filter(([is]) => is).map(([, name]) => name);
  const allowed = known.join(', ');
  for (const other of ['GET', 'POST', 'PUT', 'DELETE', 'OPTIONS']) {
    if (known.includes(other)) continue;
    const response = await send(master, other, url, { headers: EMPTY });
    if (response.status !== '405' || header(response, 'Allow') !== allowed) {
      fault(other, path, response.head);
    }
  }
  if (verb === 'post') return;
  const [head, body] = [await send(master, 'HEAD', url), await send(master, 'GET', url)];
  if (head.status !== body.status || head.body !== '') fault('HEAD', path, head.head, head.body);
}

// ---- paths

// The source of the part HTTP of the server.
const source = ['http', 'pages', 'admin'].map((folder) => `server/${folder}`)
  .flatMap((folder) => readdirSync(folder).map((name) => `${folder}/${name}`))
  .filter((name) => name.endsWith('.c')).map((name) => readFileSync(name, 'utf8')).join('');

// The paths in the source of the server.
function pathsOfServer() {
  const routes = [...source.matchAll(/http_route \w+_routes\[\] = \{([^]*?)\{\.path = NULL\}\};/g)]
    .flatMap(([, list]) => [...list.matchAll(/\{"([^"]*)"/g)]);
  const methods = source
    .match(/server_message_names\[MESSAGE_KIND_COUNT\] = \{([^}]*)\}/)[1].matchAll(/"([^"]*)"/g);
  const names = [...methods].map(([, name]) => name).filter((name) => name !== 'unknown');
  // With a store, /v1/reset has a route of its own. These two paths continue with a number.
  const longer = {
    '/v1/config/versions/': ['/v1/config/versions/{version}', '/v1/config/versions/{version}/diff'],
    '/v1/audit/': ['/v1/audit/{id}/undo'],
  };
  const paths = routes.flatMap(([, path]) => longer[path] ?? [path]);
  return [...new Set(['/v1', ...paths,
    ...names.map((name) => `/v1/${name}`)])];
}

// The names of the parameters that the source of the server reads.
function parametersOfServer() {
  const reads = source.matchAll(
    /(?:_query_(?:read|is_set)\([\w>-]+, |(?:allow_read_\w+|query_text)\(\w+, \w+, )"(\w+)"/g);
  return [...new Set([...reads].map(([, name]) => name))];
}

async function checkPaths() {
  const read = parametersOfServer().sort();
  const parameters = [...new Set(Object.values(description.paths)
    .flatMap((item) => [item, item.get ?? {}, item.post ?? {}, item.put ?? {}, item.delete ?? {}])
    .flatMap((item) => item.parameters ?? []).map(resolve)
    .filter((parameter) => parameter.in === 'query').map(({ name }) => name))]
    .filter((name) => name !== 'entry') // stands for all names, so no code reads it
    .sort();
  if (!isDeepStrictEqual(read, parameters)) fault('other parameters:', read, parameters);
  const inServer = pathsOfServer().sort();
  const described = Object.keys(description.paths).sort();
  if (!isDeepStrictEqual(inServer, described)) fault('other paths:', inServer, described);
  for (const path of ['/v1/', '/v1/nothing', '/metrics/', '/openapi.json']) {
    const { status } = await send(master, 'GET', path);
    if (status !== '404') fault(path, status);
  }
  const served = await get(master, '/v1/openapi.json');
  if (!isDeepStrictEqual(served, description)) fault('the server has another description');
}

// ---- all

await checkPaths();
await getLeases();
await waitForChild();
await getPermits();
await settle();
await checkConfigurations();
await getHolds();
await administer();
await override();
await plan();
await version();
await undo();
await operate();
await fillIn();
await drain();
await neverConfirm();
await sendAll();
await getState();
for (const [path, verb, operation] of all) {
  await refuse(path, verb, operation);
  await checkToken(path, verb, operation);
  await checkVerbs(path, verb, operation);
}

for (const [path, verb, , responses] of all) {
  for (const status of Object.keys(responses)) {
    const name = `${verb} ${path} ${status}`;
    if (!seen.has(name) && !UNSEEN.test(name)) fault('no response was', name);
  }
}
const schemas = all.flatMap(([, , , responses]) => Object.values(responses))
  .flatMap(({ content }) => Object.values(content)).map(({ schema }) => schema);
const fields = [...new Set(schemas.flatMap((schema) => fieldsNotSeen(schema)))].sort();
const unseen = fields.filter((field) => !FIELDS_UNSEEN.includes(field));
const seenNow = FIELDS_UNSEEN.filter((field) => !fields.includes(field));
if (unseen.length) fault('no response had', unseen);
if (seenNow.length) fault('a response had, so FIELDS_UNSEEN must not name', seenNow);
finish();
