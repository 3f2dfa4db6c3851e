// Helpers of the tests: a real server, and a server whose answers a test writes.

import { spawn } from 'node:child_process';
import {
  closeSync, existsSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync,
} from 'node:fs';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

const ROOT = fileURLToPath(new URL('../../../', import.meta.url));
const PROGRAM = process.env.DOORMAN_SERVER ?? join(ROOT, 'build/doorman_server');
export const WAIT = 60; // seconds; the longest time for something to happen on a busy machine
export const noServer = existsSync(PROGRAM) ? false : `there is no ${PROGRAM}`;

const FAIR = { kind: 'FAIR_SHARE', lease_length: 60, refresh_interval: 1,
  learning_mode_duration: 0 };
const CONFIG = { unmatched: 'reject', resources: [
  { identifier_glob: 'db/*', capacity: 100, safe_capacity: 10, algorithm: FAIR },
  { identifier_glob: 'conn', capacity: 3, algorithm: { ...FAIR, refresh_interval: 15 } },
  { identifier_glob: 'login', limits: [
    { name: 'per-user', kind: 'TOKEN_BUCKET', rate: 0.001, size: 5 }] },
  { identifier_glob: 'llm', limits: [
    { name: 'tokens', kind: 'FIXED_WINDOW', limit: 10, window: 100000000 }] },
  { identifier_glob: 'transcode', limits: [
    { name: 'slots', kind: 'CONCURRENCY', per: 'resource', limit: 2, time_to_live: 30, queue: 100,
      max_wait: 60, on_restart: 'full' }] }] };

/** Waits until a condition is true, and returns its value. */
export async function eventually(condition, what) {
  const end = performance.now() + WAIT * 1000;
  while (performance.now() < end) {
    const value = condition();
    if (value) return value;
    await sleep(20);
  }
  throw new Error(`this did not happen within ${WAIT} s: ${what}`);
}

/** A process of doorman_server in a temporary folder. `url` is its address. */
export class Server {
  static async start({ flags = [], config = CONFIG, files = {} } = {}) {
    const server = new Server();
    server.folder = mkdtempSync(join(tmpdir(), 'doorman-'));
    const all = { 'config.json': JSON.stringify(config), ...files };
    for (const [name, text] of Object.entries(all)) {
      writeFileSync(join(server.folder, name), text, { mode: 0o600 });
    }
    server.flags = flags;
    server.startAt('127.0.0.1:0');
    server.url = await eventually(() => server.#findUrl(), 'the server listens');
    return server;
  }

  /** Starts the process. After crash() it can start again at the address that it had. */
  startAt(address) {
    const log = openSync(join(this.folder, 'log'), 'a');
    this.process = spawn(PROGRAM, ['--config', 'config.json', '--listen', 'tcp://127.0.0.1:0',
      '--http', address, '--node', 'eu', ...this.flags],
    { cwd: this.folder, stdio: ['ignore', log, log] });
    closeSync(log);
    this.ended = new Promise((resolve) => this.process.on('exit', resolve));
  }

  /** Kills the process. */
  async crash() {
    this.process.kill('SIGKILL');
    await this.ended;
  }

  #findUrl() {
    const text = readFileSync(join(this.folder, 'log'), 'utf8');
    if (this.process.exitCode !== null) throw new Error(`the server has ended: ${text}`);
    return /http=(https?:\/\/[^\s/]+:\d+)/.exec(text)?.[1];
  }

  async stop() {
    this.process.kill();
    await this.ended;
    rmSync(this.folder, { recursive: true });
  }
}

/** A server whose answers come from a function of the method, the message and the headers. An
 * answer is a status and a body: an object, or a text. undefined: the connection is closed. */
export class FakeServer {
  seen = [];

  static async start(answer) {
    const fake = new FakeServer();
    fake.server = createServer(async (request, response) => {
      const chunks = [];
      for await (const chunk of request) chunks.push(chunk);
      const message = JSON.parse(Buffer.concat(chunks));
      const method = request.url.split('/').pop();
      fake.seen.push({ method, message, headers: request.headers });
      const reply = await answer(method, message, request.headers);
      if (!reply) {
        request.socket.destroy();
        return;
      }
      const [status, body] = reply;
      response.writeHead(status).end(typeof body === 'string' ? body : JSON.stringify(body));
    });
    await new Promise((resolve) => fake.server.listen(0, '127.0.0.1', resolve));
    fake.url = `http://127.0.0.1:${fake.server.address().port}`;
    return fake;
  }

  async stop() {
    const closed = new Promise((resolve) => this.server.close(resolve));
    this.server.closeAllConnections?.();
    await closed;
  }
}
