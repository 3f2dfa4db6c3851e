// Does in a headless Chromium what a person does with a form, and prints the last page. Each step
// loads a URL, runs an expression of JavaScript in the page, and waits for the page that follows.
//
//     node tests/browser/fill.mjs PROFILE URL EXPRESSION [URL EXPRESSION]...

import { browser } from './browser.mjs';

const [profile, ...steps] = process.argv.slice(2);
const { send, load, fail, close } = await browser(profile);

const evaluate = async (expression) => {
  const { result, exceptionDetails } = await send('Runtime.evaluate',
    { expression, userGesture: true });
  if (exceptionDetails) fail(`${expression}: ${exceptionDetails.exception?.description}`);
  return result.value;
};

for (let i = 0; i < steps.length; i += 2) {
  await load(() => send('Page.navigate', { url: steps[i] }));
  await load(() => evaluate(steps[i + 1]));
}
console.log(await evaluate('location.href'));
console.log(await evaluate('document.documentElement.outerHTML'));
await close();
