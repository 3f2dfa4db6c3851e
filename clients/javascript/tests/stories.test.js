// The cores behave as the stories of clients/stories say.

import assert from 'node:assert/strict';
import test from 'node:test';

import { StoryFailed, load, run } from './stories.js';

const stories = load();

test('there are stories', () => assert.ok(stories.length > 60));

for (const story of stories) test(story.story, () => run(story));

test('a story that is wrong fails', () => {
  const opens = { opens: { resource_id: 'a', wants: 5 } };
  const asks = { acquires: { call: 'p', item: [{ resource_id: 'a' }] } };
  const wrong = [
    { client: {}, steps: [opens, { sends: { message: { resource: [{ wants: 6 }] } } }] },
    { client: {}, steps: [opens, { sends: {} }, { breaks: {} }, { at: [1.5, 2], sends: {} }] },
    { client: {}, steps: [opens, { at: 1, waits: {} }] },
    { client: {}, steps: [opens, { sends: { message: { client_id: null } } }] },
    { client: {}, steps: [opens, { sends: {} }, { reads: { resource_id: 'a', capacity: 5 } }] },
    { client: { kind: 'permits' },
      steps: [asks, { sends: {} }, { at: 0.5, decides: { call: 'p' } }] },
    { client: { kind: 'permits' }, steps: [asks, { sends: {} }, { at: 2, waits: {} }] },
    { client: {}, steps: [{ sings: {} }] },
    { client: {}, steps: [{ waits: { long: true } }] },
  ];
  for (const story of wrong) {
    assert.throws(() => run({ story: 'wrong', why: '', ...story }), StoryFailed);
  }
});
