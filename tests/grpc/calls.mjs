// Calls of all methods with gRPC for Node.js, a second implementation of gRPC.
//
//     node tests/grpc/calls.mjs HOST:PORT
//
// The limits are those of tests/grpc_check.sh.

import { strict as assert } from 'node:assert';
import { createRequire } from 'node:module';
import { resolve } from 'node:path';

const require = createRequire(resolve('build/grpcjs/node_modules') + '/');
const grpc = require('@grpc/grpc-js');
const protobuf = require('protobufjs');

const [address] = process.argv.slice(2);
const TIMEOUT = 60; // seconds
const types = protobuf.loadSync('server/grpc/messages.proto');
const type = (name) => types.lookupType(`grpc_wire.${name}`);
const envoy = '/envoy.service.ratelimit.v3.RateLimitService/';
const kuadrant = '/kuadrant.service.ratelimit.v1.RateLimitService/';
const health = '/grpc.health.v1.Health/';
const [OK, OVER] = [1, 2];
const client = new grpc.Client(address, grpc.credentials.createInsecure());
const later = () => ({ deadline: Date.now() + TIMEOUT * 1000 });

const encoder = (name) => (message) => Buffer.from(type(name).encode(message).finish());
const decoder = (name) => (bytes) => type(name).decode(bytes);

function unary(path, message, names = ['LimitRequest', 'LimitResponse']) {
  return new Promise((done, fail) => {
    client.makeUnaryRequest(path, encoder(names[0]), decoder(names[1]), message,
      new grpc.Metadata(), later(), (error, answer) => (error ? fail(error) : done(answer)));
  });
}

const shop = (descriptors) => ({
  domain: Buffer.from('shop'),
  descriptors: descriptors.map((entries) => ({
    entries: entries.map(([key, value]) => ({ key: Buffer.from(key), value: Buffer.from(value) })),
  })),
});
const limit = (path, descriptors, hits = 0) =>
  unary(path, { ...shop(descriptors), hitsAddend: hits });
const reserve = (descriptors, amount) => unary(`${kuadrant}Reserve`,
  { ...shop(descriptors), amount, ttl: { seconds: 30 } }, ['ReserveRequest', 'ReserveResponse']);
const commit = (descriptors, actualAmount, id) => unary(`${kuadrant}Commit`,
  { ...shop(descriptors), actualAmount, reservationId: Buffer.from(id) },
  ['CommitRequest', 'CommitResponse']);

async function code(promise) {
  try {
    await promise;
    return grpc.status.OK;
  } catch (error) {
    return error.code;
  }
}

const should = `${envoy}ShouldRateLimit`, check = `${kuadrant}CheckRateLimit`;
const own = [[['path', '/node']]];
for (const left of [4, 3, 2, 1, 0]) {
  const answer = await limit(should, own);
  assert.equal(answer.overallCode, OK);
  assert.equal(answer.statuses[0].limitRemaining, left);
}
assert.equal((await limit(should, own)).overallCode, OVER);
assert.equal((await limit(check, own)).overallCode, OVER);
assert.equal((await limit(check, [[['path', '/node2']]])).overallCode, OK);
assert.equal((await limit(`${kuadrant}Report`, [[['path', '/node2']]], 9)).overallCode, OK);
assert.equal((await limit(check, [[['path', '/node2']]])).overallCode, OVER);
const cost = [[['path', '/node4']]];
const reserved = await reserve(cost, 5);
assert.equal(reserved.code, OK);
assert.equal((await reserve(cost, 1)).code, OVER);
assert.equal((await commit(cost, 4, reserved.reservationId)).reservationReleased, true);
assert.equal((await commit(cost, 1, 'unknown')).reservationReleased, false);
assert.equal((await reserve(cost, 1)).code, OVER);
assert.equal(await code(limit(should, [])), grpc.status.INVALID_ARGUMENT);

const many = await Promise.all(
  Array.from({ length: 300 }, () => limit(should, [[['path', '/node3']]])));
assert.equal(many.filter((answer) => answer.overallCode === OK).length, 5);

const names = ['HealthRequest', 'HealthResponse'];
assert.equal((await unary(`${health}Check`, {}, names)).status, 1);
const watch = client.makeServerStreamRequest(
  `${health}Watch`, encoder(names[0]), decoder(names[1]), {}, new grpc.Metadata(), later());
watch.on('error', () => {}); // it is cancelled below
assert.equal(await new Promise((done) => {
  watch.on('data', (answer) => done(answer.status));
}), 1);
watch.cancel();
client.close();
