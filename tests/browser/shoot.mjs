// Takes screenshots of pages in a headless Chromium. One browser takes all of them, because its
// start takes most of the time.
//
//     node tests/browser/shoot.mjs PROFILE FILE WIDTH HEIGHT THEME URL [FILE ...]...
//
// FILE is a PNG, and THEME is `dark` or `light`.

import { writeFileSync } from 'node:fs';
import { browser } from './browser.mjs';

const [profile, ...shots] = process.argv.slice(2);
const { send, load, close } = await browser(profile);

for (let i = 0; i < shots.length; i += 5) {
  const [file, width, height, theme, url] = shots.slice(i, i + 5);
  await send('Emulation.setEmulatedMedia',
    { features: [{ name: 'prefers-color-scheme', value: theme }] });
  await send('Emulation.setDeviceMetricsOverride',
    { width: Number(width), height: Number(height), deviceScaleFactor: 1.5, mobile: false });
  await load(() => send('Page.navigate', { url }));
  const { data } = await send('Page.captureScreenshot', { format: 'png' });
  writeFileSync(file, Buffer.from(data, 'base64'));
}
await close();
