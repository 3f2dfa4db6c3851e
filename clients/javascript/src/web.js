// Limits the requests of a server of node:http, or of Express and its like.
//
//     const limit = rateLimit(client, 'login', { key: (request) => request.socket.remoteAddress });
//     app.use(limit);                                                            // Express
//     createServer((request, response) => limit(request, response, () => ...));  // node:http

import { createHash } from 'node:crypto';

import { isId, withDefaults } from './base.js';

const INTEGER_MAX = 999999999999999; // of a structured field (RFC 9651, 3.3.1)
const STATUSES = [429, 403, 503];
const OPTIONS = { key: () => '', cost: 1, timeout: 1, refuseStatus: 429 };

const integer = (units) => Math.trunc(Math.min(Math.max(units, 0), INTEGER_MAX));

/** Returns a name as a structured field has it: only printable characters of ASCII. */
function quote(text) {
  const out = [...Buffer.from(text)].map((byte) => {
    const char = String.fromCharCode(byte);
    if (char === '"' || char === '\\') return `\\${char}`;
    if (char >= ' ' && char <= '~') return char;
    return `%${byte.toString(16).toUpperCase().padStart(2, '0')}`;
  });
  return `"${out.join('')}"`;
}

/** Returns RateLimit-Policy, RateLimit and Retry-After of a decision. A decision without a server
 * has only Retry-After, or none. */
export function headersOf(decision) {
  const headers = {};
  let retryAfter;
  if (!decision.granted && decision.retryAfter !== undefined) {
    retryAfter = Math.max(1, Math.ceil(decision.retryAfter));
  }
  if (decision.limit && decision.quota > 0) {
    const name = quote(decision.limit);
    const window = decision.window > 0 ? `;w=${Math.ceil(decision.window)}` : '';
    headers['RateLimit-Policy'] = `${name};q=${integer(decision.quota)}${window}`;
    const reset = retryAfter ?? Math.ceil(decision.resetAfter);
    headers.RateLimit = `${name};r=${integer(decision.remaining)};t=${reset}`;
  }
  if (retryAfter !== undefined) headers['Retry-After'] = String(retryAfter);
  return headers;
}

function refuse(response, decision, status) {
  const body = JSON.stringify({ decision: 'REFUSED', reason: decision.reason,
    limit: decision.limit });
  response.statusCode = status;
  response.setHeader('Content-Type', 'application/json');
  response.setHeader('Content-Length', Buffer.byteLength(body));
  response.setHeader('Cache-Control', 'no-store');
  response.end(body);
}

/** Returns the SHA-256 of a text in UTF-8. Half of a pair of surrogates counts as the three bytes of
 * its code, as in the other packages. Buffer would make all halves the same. */
function digestOf(text) {
  const hash = createHash('sha256');
  text.split(/(\p{Cs})/u).forEach((part, index) => {
    const code = part.charCodeAt(0);
    const isHalf = index % 2 === 1; // split returns what has matched at each odd index
    hash.update(isHalf ? Buffer.of(0xed, 0x80 | ((code >> 6) & 0x3f), 0x80 | (code & 0x3f)) : part);
  });
  return hash.digest('hex');
}

/** Returns the key of a request. One that a permit cannot have is replaced by its hash: what anybody
 * can put into a header must be limited, and not end in an error. A key that is no string is a fault
 * of the request, since a query can have a list. Express and others send the status of the error. */
function keyOf(given) {
  const key = given ?? '';
  if (typeof key === 'string') return isId(key) ? key : `sha256:${digestOf(key)}`;
  throw Object.assign(new RangeError('key: must be a string'), { status: 400, statusCode: 400 });
}

/** Returns whether the application has answered during the wait, or the peer has gone. */
const isOver = (response) => response.headersSent || response.destroyed;

/** Returns a middleware (request, response, next) that asks for a permit for each request. The
 * decision is in request.doorman. index.d.ts explains the options. */
export function rateLimit(client, resource, given = {}) {
  const options = withDefaults(given, OPTIONS);
  if (!STATUSES.includes(options.refuseStatus)) {
    throw new RangeError('refuseStatus: must be 429, 403 or 503');
  }
  const read = (value, request) => (typeof value === 'function' ? value(request) : value);
  const decide = async (request) => {
    const name = read(resource, request);
    if (name === undefined || name === null) return undefined;
    return client.acquire(name, keyOf(read(options.key, request)), {
      cost: read(options.cost, request), timeout: options.timeout, detail: true });
  };
  const apply = (decision, request, response) => {
    request.doorman = decision;
    for (const [name, value] of Object.entries(headersOf(decision))) {
      response.setHeader(name, value);
    }
    if (!decision.granted) refuse(response, decision, options.refuseStatus);
    return decision.granted;
  };
  return async function limit(request, response, next) {
    try {
      const decision = await decide(request);
      if (isOver(response)) return;
      if (decision && !apply(decision, request, response)) return;
    } catch (error) {
      if (!isOver(response)) next(error);
      return;
    }
    next();
  };
}
