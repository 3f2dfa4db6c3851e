// Sends the requests of the cores over HTTP/1.1.

import { readFileSync } from 'node:fs';
import http from 'node:http';
import https from 'node:https';

const BODY_BYTES_MAX = 4 * 1024 * 1024;
const IDLE_MAX = 20000; // ms; servers close connections that are idle for 30 s

/** Returns parsed JSON; undefined: it is not valid. */
function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** Returns a token that a header can have. The error does not show it, because it is logged. */
function checkToken(token) {
  if (typeof token === 'string' && /^[!-~]*$/.test(token)) return token;
  throw new TypeError('token: must be a string of ASCII without spaces and line breaks, or a ' +
    'function that returns one (no promise)');
}

/** Returns the options of TLS: those that are given, or the authorities of a file in PEM. */
function tlsOptions(tls) {
  if (tls === undefined) return {};
  if (typeof tls === 'string') return { ca: readFileSync(tls) };
  if (typeof tls !== 'object' || tls === null) {
    throw new TypeError('tls: must be the path of a file, or options of tls.connect');
  }
  return tls;
}

/** The connections of a client. They are kept, and an idle one does not keep the process alive. */
export class Connections {
  #agents;
  #token;
  #headers;

  /** token: a text, or a function that returns it, for tokens that change. */
  constructor({ token, tls, headers }) {
    if (token !== undefined && typeof token !== 'function') checkToken(token);
    for (const [name, value] of Object.entries(headers ?? {})) {
      http.validateHeaderName(name);
      http.validateHeaderValue(name, value);
    }
    this.#token = token;
    this.#headers = headers;
    const keep = { keepAlive: true, timeout: IDLE_MAX };
    this.#agents = { 'http:': new http.Agent(keep),
      'https:': new https.Agent({ ...tlsOptions(tls), ...keep }) };
  }

  #allHeaders(length) {
    const token = typeof this.#token === 'function' ? this.#token() : this.#token;
    const headers = { 'Content-Type': 'application/json', 'Content-Length': length,
      ...this.#headers };
    if (token) headers.Authorization = `Bearer ${checkToken(token)}`;
    return headers;
  }

  /** Sends a request of a core. Returns a promise of the status and the parsed body. The signal
   * aborts it. */
  async post(request, signal) {
    const body = Buffer.from(JSON.stringify(request.message));
    try {
      return await this.#exchange(request, body, signal);
    } catch (error) {
      // The server has closed an idle connection: this is no failure.
      if (!error.wasIdle || signal.aborted) throw error;
      return this.#exchange(request, body, signal);
    }
  }

  #exchange(request, body, signal) {
    return new Promise((resolve, reject) => {
      const url = new URL(`${request.address}/v1/${request.method}`);
      const { request: send } = url.protocol === 'https:' ? https : http;
      const sent = send(url, { method: 'POST', agent: this.#agents[url.protocol], signal,
        headers: this.#allHeaders(body.length) });
      let answered = false;
      sent.on('error', (error) => {
        const closed = error.code === 'ECONNRESET' || error.code === 'EPIPE';
        error.wasIdle = closed && sent.reusedSocket && !answered;
        reject(error);
      });
      sent.on('response', (response) => {
        answered = true;
        receive(response).then(
          (text) => resolve({ status: response.statusCode, body: parse(text) }), reject);
      });
      sent.end(body);
    });
  }

  close() {
    for (const agent of Object.values(this.#agents)) agent.destroy();
  }
}

/** Returns the body of a response. */
async function receive(response) {
  const chunks = [];
  let size = 0;
  for await (const chunk of response) {
    size += chunk.length;
    if (size > BODY_BYTES_MAX) throw new Error('the response is too large');
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString('utf8');
}
