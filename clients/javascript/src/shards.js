// The map of shards: which node decides for a key. The rules (N) are those of doorman_permits.h.

import { Reader, checkAddress, isTls } from './base.js';

const RESOURCES_MAX = 10000; // whose rule is remembered
const SHARDS_MAX = 1024;
const NODES_MAX = 256;
const ADDRESSES_MAX = 16;

// ---- SipHash-1-3. Each of the four numbers of 64 bits is a low and a high half.

function add(v, i, j) {
  const low = v[i] + v[j];
  v[i] = low;
  v[i + 1] = v[i + 1] + v[j + 1] + (low > 0xffffffff ? 1 : 0);
}

/** Rotates a number to the left, by less than 32 bits, and takes its XOR with another one. */
function turn(v, i, bits, j) {
  const [low, high] = [v[i], v[i + 1]];
  v[i] = ((low << bits) | (high >>> (32 - bits))) ^ v[j];
  v[i + 1] = ((high << bits) | (low >>> (32 - bits))) ^ v[j + 1];
}

function swap(v, i) {
  [v[i], v[i + 1]] = [v[i + 1], v[i]];
}

function round(v) {
  add(v, 0, 2);
  turn(v, 2, 13, 0);
  swap(v, 0);
  add(v, 4, 6);
  turn(v, 6, 16, 4);
  add(v, 0, 6);
  turn(v, 6, 21, 0);
  add(v, 4, 2);
  turn(v, 2, 17, 4);
  swap(v, 4);
}

function take(v, low, high) {
  v[6] ^= low;
  v[7] ^= high;
  round(v);
  v[0] ^= low;
  v[1] ^= high;
}

/** Returns the low and the high half of SipHash-1-3 of some bytes.
 * key: the halves of its two numbers, low ones first. */
export function sipHash(key, bytes) {
  const v = new Uint32Array([0x70736575, 0x736f6d65, 0x6e646f6d, 0x646f7261,
    0x6e657261, 0x6c796765, 0x79746573, 0x74656462]);
  for (let i = 0; i < 8; i += 1) v[i] ^= key[i % 4];
  const padded = new Uint8Array(bytes.length - (bytes.length % 8) + 8);
  padded.set(bytes);
  padded[padded.length - 1] = bytes.length;
  const view = new DataView(padded.buffer);
  for (let i = 0; i < padded.length; i += 8) {
    take(v, view.getUint32(i, true), view.getUint32(i + 4, true));
  }
  v[4] ^= 0xff;
  for (let i = 0; i < 3; i += 1) round(v);
  return [(v[0] ^ v[2] ^ v[4] ^ v[6]) >>> 0, (v[1] ^ v[3] ^ v[5] ^ v[7]) >>> 0];
}

/** Returns what is hashed of a text: what its first braces enclose, or all of it (N1). */
export function hashedText(text) {
  return /^[^{]*\{([^}]+)\}/.exec(text)?.[1] ?? text;
}

// ---- globs: a list of what each character must be; undefined: any text

const is = (character) => ({ ranges: [[character, character]], negated: false });

/** Reads what follows a `[`. Returns undefined if there is no `]`. */
function readBracket(glob, start) {
  const negated = glob[start] === '!' || glob[start] === '^';
  const ranges = [];
  let at = start + (negated ? 1 : 0);
  const next = () => {
    if (glob[at] === '\\' && at + 1 < glob.length) at += 1;
    at += 1;
    return glob[at - 1];
  };
  for (let first = true; at < glob.length && (first || glob[at] !== ']'); first = false) {
    const low = next();
    let high = low;
    if (glob[at] === '-' && at + 1 < glob.length && glob[at + 1] !== ']') {
      at += 1;
      high = next();
    }
    ranges.push([low, high]);
  }
  return at < glob.length ? { element: { ranges, negated }, end: at + 1 } : undefined;
}

/** Reads a glob as the shell does. `*` matches `/` too. */
export function readGlob(text) {
  const glob = [...text];
  const out = [];
  for (let at = 0; at < glob.length; ) {
    const character = glob[at];
    at += 1;
    const bracket = character === '[' ? readBracket(glob, at) : undefined;
    if (character === '*') {
      out.push(undefined);
    } else if (bracket) {
      out.push(bracket.element);
      at = bracket.end;
    } else if (character === '?') {
      out.push({ ranges: [], negated: true });
    } else if (character === '\\' && at < glob.length) {
      out.push(is(glob[at]));
      at += 1;
    } else {
      out.push(is(character));
    }
  }
  return out;
}

function matches({ ranges, negated }, character) {
  const code = character.codePointAt(0);
  return ranges.some(([low, high]) => (
    low.codePointAt(0) <= code && code <= high.codePointAt(0))) !== negated;
}

/** Returns whether a glob matches a whole text. After a failure the last `*` takes more. */
export function globMatches(glob, whole) {
  const text = [...whole];
  let [at, place, star, resume] = [0, 0, -1, 0];
  while (at < glob.length || place < text.length) {
    if (at < glob.length && glob[at] === undefined) {
      at += 1;
      [star, resume] = [at, place];
    } else if (at < glob.length && place < text.length && matches(glob[at], text[place])) {
      at += 1;
      place += 1;
    } else if (star < 0 || resume === text.length) {
      return false;
    } else {
      resume += 1;
      [at, place] = [star, resume];
    }
  }
  return true;
}

// ---- the map

/** Which node decides for each shard.
 * seed: 32 hexadecimal digits. owners: the name of a node for each shard. nodes: the HTTP addresses
 * of each node. rules: glob, and byResource: whether the resource is hashed. */
export class ShardMap {
  #key;
  #rules;
  #byResource = new Map();

  constructor({ epoch, seed, owners, nodes, rules }) {
    this.epoch = epoch;
    this.owners = owners;
    this.nodes = nodes;
    this.#key = [8, 0, 24, 16].map((at) => Number.parseInt(seed.slice(at, at + 8), 16));
    this.#rules = rules.map((rule) => ({ ...rule, parts: readGlob(rule.glob) }));
  }

  /** Returns the node that decides for a key. */
  ownerOf(resourceId, key) {
    return this.owners[this.shardOf(resourceId, key)];
  }

  /** Returns the node that has a hold or a transfer (N4). */
  ownerOfId(id) {
    return this.owners[id % this.owners.length];
  }

  /** Returns the shard of a key (N1). */
  shardOf(resourceId, key) {
    const text = key && !this.#isByResource(resourceId) ? key : resourceId;
    const [low, high] = sipHash(this.#key, new TextEncoder().encode(hashedText(text)));
    const count = this.owners.length;
    return ((high % count) * (2 ** 32 % count) + low) % count;
  }

  #isByResource(resourceId) {
    const known = this.#byResource.get(resourceId);
    if (known !== undefined) return known;
    const rule = this.#rules.find(({ glob }) => glob === resourceId) ??
      this.#rules.find(({ parts }) => globMatches(parts, resourceId));
    const byResource = rule?.byResource ?? false;
    if (this.#byResource.size < RESOURCES_MAX) this.#byResource.set(resourceId, byResource);
    return byResource;
  }
}

/** Reads the map of a response. Throws InvalidResponse. */
export function readMap(body) {
  const value = body.object('map');
  const seed = value.text('seed');
  if (!/^[0-9a-f]{32}$/.test(seed)) throw value.fail('seed', 'must have 32 hexadecimal digits');
  const nodes = new Map();
  for (const each of value.list('nodes')) {
    const node = new Reader(each, 'map.nodes[]');
    nodes.set(node.text('name'), node.has('http_addresses') ? node.list('http_addresses') : []);
  }
  const owners = value.list('shards').map((each) => new Reader(each, 'map.shards[]').text('owner'));
  const isValid = nodes.size === value.list('nodes').length && nodes.size <= NODES_MAX &&
    owners.every((owner) => nodes.has(owner));
  if (!isValid || owners.length < 1 || owners.length > SHARDS_MAX) {
    throw value.fail('shards', 'each must have one of the nodes as its owner');
  }
  const rules = (value.has('rules') ? value.list('rules') : []).map((each) => {
    const rule = new Reader(each, 'map.rules[]');
    return { glob: rule.text('glob'), byResource: rule.text('by', 'key') === 'resource' };
  });
  return new ShardMap({ epoch: value.integer('epoch'), seed, owners, nodes, rules });
}

/** Returns the addresses that a client may ask. A map leads as little from TLS to plain text as a
 * redirect does (K3). */
export function usable(addresses, needsTls) {
  const isUsable = (address) => {
    try {
      return isTls(checkAddress(address)) || !needsTls;
    } catch {
      return false;
    }
  };
  return addresses.filter(isUsable).map((address) => address.replace(/\/+$/, ''))
    .slice(0, ADDRESSES_MAX);
}
