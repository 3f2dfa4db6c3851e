// The map of shards: each key is in the same shard as for the servers.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import test from 'node:test';

import { InvalidResponse, Reader } from '../src/base.js';
import { globMatches, readGlob, readMap, usable } from '../src/shards.js';

const mapOf = (fields) => readMap(new Reader({ map: {
  epoch: 1, seed: '0'.repeat(32), nodes: [{ name: 'a' }], shards: [{ owner: 'a' }], ...fields,
} }, 'response'));

test('keys are in the shards of the vectors', () => {
  const url = new URL('../../stories/vectors/shards.json', import.meta.url);
  const vectors = JSON.parse(readFileSync(url, 'utf8'));
  const shards = Array.from({ length: vectors.shards }, () => ({ owner: 'a' }));
  const map = mapOf({ ...vectors.map, shards });
  assert.ok(vectors.items.length > 40);
  for (const { resource_id: resource, key, shard } of vectors.items) {
    assert.equal(map.shardOf(resource, key), shard, `${resource} ${key}`);
  }
});

test('globs are those of the shell', () => {
  for (const [glob, text, expected] of [
    ['*', '', true], ['a*c', 'abbc', true], ['a*c', 'abcd', false], ['?', '', false],
    ['[a-c]', 'b', true], ['[^a-c]', 'b', false], ['\\*', '*', true], ['a\\', 'a\\', true],
    ['[a', '[a', true], ['[\\]]', ']', true], ['*b*c', 'abxbyc', true]]) {
    assert.equal(globMatches(readGlob(glob), text), expected, glob);
  }
});

test('wrong maps are not taken', () => {
  for (const wrong of [{ seed: '0' }, { shards: [] }, { shards: [{ owner: 'b' }] }, { epoch: 'x' },
    { nodes: [{ name: 'a' }, { name: 'a' }] }, { rules: [{ by: 'key' }] }]) {
    assert.throws(() => mapOf(wrong), InvalidResponse, JSON.stringify(wrong));
  }
});

test('a map leads as little to plain text as a redirect', () => {
  const addresses = ['http://a', 'https://b/', 'ftp://c', 5];
  assert.deepEqual(usable(addresses, true), ['https://b']);
  assert.deepEqual(usable(addresses, false), ['http://a', 'https://b']);
});
