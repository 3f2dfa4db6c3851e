// A headless Chromium, for programs that do what a person does. It listens on two pipes
// (--remote-debugging-pipe): a message of the Chrome DevTools Protocol ends with a 0 byte.

import { spawn } from 'node:child_process';

const TIMEOUT = 240; // seconds

// Starts the browser with one page.
//   send(method, params)   sends a command to the page, and returns its result
//   load(action)           does something that loads a page, and waits until it is loaded
//   fail(text)             ends this program and the browser
//   close()                ends both with success
export async function browser(profile) {
  const chromium = spawn('chromium', ['--headless=new', '--no-sandbox', '--disable-gpu',
    '--hide-scrollbars', `--user-data-dir=${profile}`, '--remote-debugging-pipe', 'about:blank'],
  { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'] });
  const [, , , commands, answers] = chromium.stdio;

  function fail(text) {
    console.error(text);
    chromium.kill('SIGKILL');
    process.exit(1);
  }
  setTimeout(() => fail('the browser does not answer'), TIMEOUT * 1000).unref();
  chromium.on('error', (error) => fail(`${error}`));

  const waiting = new Map(); // functions by the id of a command
  let loaded = () => {}; // is called when a page was loaded
  let received = '', last = 0, sessionId;

  answers.setEncoding('utf8').on('data', (data) => {
    const messages = (received + data).split('\0');
    received = messages.pop();
    for (const message of messages.map((text) => JSON.parse(text))) {
      if (message.method === 'Page.loadEventFired') loaded();
      waiting.get(message.id)?.(message);
    }
  });

  function send(method, params = {}) {
    last += 1;
    const id = last;
    commands.write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
    return new Promise((resolve) => {
      waiting.set(id, ({ result, error }) => {
        if (error) fail(`${method}: ${error.message}`);
        resolve(result);
      });
    });
  }

  async function load(action) {
    const done = new Promise((resolve) => { loaded = resolve; });
    await action();
    await done;
  }

  async function close() {
    sessionId = undefined; // a command to the browser
    await send('Browser.close');
    process.exit(0);
  }

  const { targetId } = await send('Target.createTarget', { url: 'about:blank' });
  ({ sessionId } = await send('Target.attachToTarget', { targetId, flatten: true }));
  await send('Page.enable');
  return { send, load, fail, close };
}
