// The examples of the README run with a real server, and its links lead to files. This file also
// runs with the package that was installed: DOORMAN_PACKAGE is the folder of the package.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import {
  existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import { fileURLToPath } from 'node:url';

import { Server, WAIT, eventually, noServer } from './server.js';

const HERE = new URL('../', import.meta.url);
const TEXT = readFileSync(new URL('README.md', HERE), 'utf8');
const blocks = [...TEXT.matchAll(/```js\n(.*?)```/gs)].map((found) => found[1]);

test('links lead to files', () => {
  const links = [...TEXT.matchAll(/\]\(([^)#]+)\)/g)].map((found) => found[1]);
  assert.ok(links.length > 1);
  for (const link of links) assert.ok(existsSync(new URL(link, HERE)), link);
});

/** Starts a block as a program in a folder. `output` is what it has printed. */
function start(folder, block, number, url) {
  const text = block.replaceAll('http://127.0.0.1:15050', url).replace('listen(8080)',
    "listen(0, '127.0.0.1', () => console.log(server.address().port))");
  const head = /^import .*doorman-client'/m.test(text)
    ? '' : "import { Client } from 'doorman-client';\n";
  writeFileSync(join(folder, `${number}.mjs`), head + text);
  const child = spawn(process.execPath, [join(folder, `${number}.mjs`)], { cwd: folder });
  const program = { child, output: '' };
  for (const stream of [child.stdout, child.stderr]) {
    stream.on('data', (data) => { program.output += data; });
  }
  program.ended = new Promise((resolve) => child.on('close', resolve));
  return program;
}

test('examples run', { skip: noServer, timeout: 3 * WAIT * 1000 }, async (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'doorman-'));
  t.after(() => rmSync(folder, { recursive: true }));
  mkdirSync(join(folder, 'node_modules'));
  symlinkSync(process.env.DOORMAN_PACKAGE ?? fileURLToPath(HERE),
    join(folder, 'node_modules/doorman-client'));
  const config = JSON.parse(readFileSync(new URL('demo.json', HERE), 'utf8'));
  const server = await Server.start({ config });
  t.after(() => server.stop());

  const printed = [];
  for (const [number, block] of blocks.slice(0, 6).entries()) {
    const program = start(folder, block, number, server.url);
    assert.equal(await program.ended, 0, program.output);
    printed.push(program.output);
  }
  assert.equal(printed[0].match(/welcome/g).length, 5);
  assert.equal(printed[0].match(/too many attempts/g).length, 2);
  assert.match(printed[1], /one query to the database/);
  assert.match(printed[2], /a connection of/);
  assert.match(printed[3], /true \[ 1, 3 \] undefined/);
  assert.match(printed[4], /ends in/);

  assert.match(blocks[6], /createServer/);
  const web = start(folder, blocks[6], 'web', server.url);
  t.after(() => web.child.kill('SIGKILL'));
  const port = await eventually(() => /^\d+$/m.exec(web.output)?.[0], 'the example listens');
  const statuses = [];
  for (let i = 0; i < 7; i += 1) {
    const response = await fetch(`http://127.0.0.1:${port}`);
    statuses.push(response.status);
    assert.match(response.headers.get('RateLimit'), /^"per-user";r=\d;t=\d+$/);
  }
  assert.deepEqual(statuses, [200, 200, 200, 200, 200, 429, 429]);
  web.child.kill();
  assert.equal(await web.ended, 0, web.output); // and not killed by the signal
});
