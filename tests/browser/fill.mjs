// Does in a headless Chromium what a person does with a form, and prints the last page. Each step
// loads a URL, runs an expression of JavaScript in the page, and waits for the page that follows.
//
//     node tests/browser/fill.mjs PROFILE URL EXPRESSION [URL EXPRESSION]...
//
// The browser listens on two pipes (--remote-debugging-pipe): a message of the Chrome DevTools
// Protocol ends with a 0 byte.

import { spawn } from 'node:child_process';

const [profile, ...steps] = process.argv.slice(2);
const TIMEOUT = 240; // seconds

const browser = spawn('chromium', ['--headless=new', '--no-sandbox', '--disable-gpu',
  `--user-data-dir=${profile}`, '--remote-debugging-pipe', 'about:blank'],
{ stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'] });
const [, , , commands, answers] = browser.stdio;

function fail(text) {
  console.error(text);
  browser.kill('SIGKILL');
  process.exit(1);
}
setTimeout(() => fail('the browser does not answer'), TIMEOUT * 1000).unref();
browser.on('error', (error) => fail(`${error}`));

const waiting = new Map(); // functions by the id of a command
let loaded = () => {}; // is called when a page was loaded
let received = '', last = 0;

answers.setEncoding('utf8').on('data', (data) => {
  const messages = (received + data).split('\0');
  received = messages.pop();
  for (const message of messages.map((text) => JSON.parse(text))) {
    if (message.method === 'Page.loadEventFired') loaded();
    waiting.get(message.id)?.(message);
  }
});

// Sends a command, and returns its result.
function send(method, params, sessionId) {
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

// Does something that loads a page, and waits until it is loaded.
async function load(action) {
  const done = new Promise((resolve) => { loaded = resolve; });
  await action();
  await done;
}

const { targetId } = await send('Target.createTarget', { url: 'about:blank' });
const { sessionId } = await send('Target.attachToTarget', { targetId, flatten: true });
const evaluate = async (expression) => {
  const { result, exceptionDetails } = await send('Runtime.evaluate',
    { expression, userGesture: true }, sessionId);
  if (exceptionDetails) fail(`${expression}: ${exceptionDetails.exception?.description}`);
  return result.value;
};

await send('Page.enable', {}, sessionId);
for (let i = 0; i < steps.length; i += 2) {
  await load(() => send('Page.navigate', { url: steps[i] }, sessionId));
  await load(() => evaluate(steps[i + 1]));
}
console.log(await evaluate('location.href'));
console.log(await evaluate('document.documentElement.outerHTML'));
await send('Browser.close', {});
process.exit(0);
