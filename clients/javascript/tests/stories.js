// Runs the stories of clients/stories with the cores of this package. The README of that folder has
// the form of a story. A runner throws StoryFailed with the step at which something was not as it
// must be.

import { readFileSync, readdirSync } from 'node:fs';
import { pathToFileURL } from 'node:url';

import { NEVER, SECOND, nanoseconds, seconds } from '../src/base.js';
import { LeaseCore } from '../src/leases.js';
import { Item, Permit, PermitCore } from '../src/permits.js';

const START = 1000 * SECOND;
const TURNS_MAX = 20000;
const TOLERANCE = 1000;
const FOLDER = process.env.STORIES
  ? pathToFileURL(`${process.env.STORIES}/`) : new URL('../../stories/', import.meta.url);

/** Something was not as the story says. */
export class StoryFailed extends Error {}

/** Returns all stories. Each gets the name of its file. */
export function load() {
  const names = readdirSync(FOLDER);
  if (names.includes('http')) {
    names.push(...readdirSync(new URL('http/', FOLDER)).map((name) => `http/${name}`));
  }
  const files = names.filter((file) => file.endsWith('.json')).sort();
  return files.flatMap((file) => {
    const { stories } = JSON.parse(readFileSync(new URL(file, FOLDER), 'utf8'));
    return stories.map((story) => ({ ...story, story: `${file}: ${story.story}` }));
  });
}

const isObject = (value) => typeof value === 'object' && value !== null && !Array.isArray(value);

/** Compares a value with what the story expects. `undefined` is an absent value. */
function match(path, actual, expected) {
  let good;
  if (isObject(expected) && 'between' in expected) {
    const [least, most] = expected.between;
    good = typeof actual === 'number' && actual >= least - 1e-6 && actual <= most + 1e-6;
  } else if (isObject(expected) && isObject(actual)) {
    for (const [key, value] of Object.entries(expected)) {
      match(`${path}.${key}`, actual[key], value);
    }
    return;
  } else if (Array.isArray(expected) && Array.isArray(actual)) {
    good = actual.length === expected.length;
    if (good) expected.forEach((value, i) => match(`${path}[${i}]`, actual[i], value));
  } else if (expected === null) {
    good = actual === undefined;
  } else if (typeof expected === 'number') {
    const tolerance = 1e-6 + 1e-9 * Math.abs(expected);
    good = typeof actual === 'number' && Math.abs(actual - expected) <= tolerance;
  } else {
    good = actual === expected;
  }
  if (good) return;
  const shown = actual === undefined ? 'absent' : JSON.stringify(actual);
  throw new StoryFailed(`${path} is ${shown}, expected ${JSON.stringify(expected)}`);
}

/** Fails if the story has a key that the form does not know. */
function keys(given, known) {
  for (const key of Object.keys(given)) {
    if (!known.split(' ').includes(key)) {
      throw new StoryFailed(`the story has an unknown key: ${key}`);
    }
  }
  return given;
}

/** Returns an object without some of its fields. */
const without = (given, names) =>
  Object.fromEntries(Object.entries(given).filter(([name]) => !names.split(' ').includes(name)));

const toCamel = (name) => name.replace(/_(.)/g, (_, letter) => letter.toUpperCase());

/** Returns options of a story as this package names them. */
const camel = (given) =>
  Object.fromEntries(Object.entries(given).map(([name, value]) => [toCamel(name), value]));

/** Returns what this package has named as stories name it. */
const snake = (given) => Object.fromEntries(Object.entries(given).map(([name, value]) => (
  [name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`), value])));

/** Returns entries in the order of another list, by their resource_id. */
function reorder(entries, order) {
  if (!Array.isArray(entries) || !Array.isArray(order)) return entries;
  const names = order.map((entry) => entry.resource_id);
  const place = (entry) => (names.includes(entry.resource_id)
    ? names.indexOf(entry.resource_id) : names.length);
  return [...entries].sort((a, b) => place(a) - place(b));
}

const since = (at) => (at === undefined ? undefined : seconds(at - START));

/** A core, a clock, and what the core has sent. Subclasses have the steps of each core. */
class World {
  looks = new Set(['counts']);
  expects = new Set(['sends']);
  sent = [];
  names = new Map();
  answered = new Set();
  seen = 0;
  step = {};

  constructor(core) {
    this.core = core;
    this.now = START;
  }

  // ---- time

  collect() {
    for (let turn = 0; turn < TURNS_MAX; turn += 1) {
      const request = this.core.next(this.now);
      if (!request) return;
      const message = JSON.parse(JSON.stringify(request.message)); // as a server reads it
      this.sent.push({ request, message, at: this.now });
    }
    throw new StoryFailed('the client never stops sending');
  }

  advance(until, isOver) {
    for (let turn = 0; turn < TURNS_MAX; turn += 1) {
      if (isOver()) return;
      const due = this.core.due();
      this.now = Math.max(this.now, Math.min(due, until));
      if (due > until) return;
      this.collect();
    }
    throw new StoryFailed('the client stays due, and does nothing');
  }

  advanceFor(isOver = () => false, tolerance = TOLERANCE) {
    const { at } = this.step;
    const [first, last] = Array.isArray(at) ? at : [at, at];
    const start = this.now;
    const until = last === undefined ? this.now : START + nanoseconds(last);
    if (until < this.now - TOLERANCE) throw new StoryFailed('the story goes back in time');
    this.advance(until + tolerance, isOver);
    return first === undefined ? start : START + nanoseconds(first);
  }

  checkTime(what, at, first) {
    if (at < first - TOLERANCE) {
      throw new StoryFailed(`${what} came at ${since(at)} s, expected at ${since(first)} s`);
    }
  }

  // ---- steps

  run(steps) {
    this.collect();
    steps.forEach((step, i) => {
      try {
        this.runStep(step);
      } catch (error) {
        error.message = `step ${i + 1}: ${error.message}`;
        throw error;
      }
    });
    this.checkEnd();
  }

  runStep(step) {
    this.step = step;
    const verbs = Object.keys(step).filter((key) => key !== 'at');
    const method = `step_${verbs[0]}`;
    if (verbs.length !== 1 || !this[method]) {
      throw new StoryFailed(`the story has an unknown step: ${verbs}`);
    }
    if (!this.expects.has(verbs[0])) {
      this.advanceFor(undefined, 0);
      if (!this.looks.has(verbs[0])) this.checkAllIsSeen();
    }
    this[method](step[verbs[0]]);
    this.collect();
  }

  checkAllIsSeen() {
    if (this.seen === this.sent.length) return;
    const { request, message, at } = this.sent[this.seen];
    throw new StoryFailed(`the story does not tell that the client sends ${request.method} at ` +
      `${since(at)} s: ${JSON.stringify(message)}`);
  }

  checkEnd() {
    this.checkAllIsSeen();
  }

  step_sends(expected) {
    keys(expected, 'address method message as');
    const first = this.advanceFor(() => this.seen < this.sent.length);
    if (this.seen === this.sent.length) {
      throw new StoryFailed(`the client sends nothing until ${since(this.now)} s`);
    }
    const { request, message, at } = this.sent[this.seen];
    if (message.resource) message.resource = reorder(message.resource, expected.message?.resource);
    match('the request', { address: request.address, method: request.method, message },
      without(expected, 'as'));
    this.checkTime('the request', at, first);
    this.names.set(this.seen, expected.as);
    this.seen += 1;
  }

  requestOf({ to }) {
    for (let i = this.seen - 1; i >= 0; i -= 1) {
      if (to ? this.names.get(i) === to : !this.answered.has(i)) {
        this.answered.add(i);
        return this.sent[i].request;
      }
    }
    throw new StoryFailed('there is no request to answer');
  }

  step_answers(answer) {
    keys(answer, 'to status body text');
    const request = this.requestOf(answer);
    let { body } = answer;
    if (body?.response) {
      body = { ...body, response: reorder(body.response, request.message.resource) };
    }
    if ('text' in answer) {
      try {
        body = JSON.parse(answer.text);
      } catch {
        body = undefined;
      }
    }
    this.core.response(request, answer.status ?? 200, body, this.now);
  }

  step_breaks(what) {
    this.core.failed(this.requestOf(keys(what, 'to')), this.now);
  }

  step_waits(nothing) {
    keys(nothing, '');
  }

  step_kill_switch(on) {
    this.core.killSwitch(on);
  }

  step_hears_master(nothing) {
    keys(nothing, '');
    this.core.retrySoon(this.now);
  }
}

/** Stories of leases. */
class LeaseWorld extends World {
  looks = new Set(['reads']);
  resources = new Map();

  constructor(options) {
    keys(options, 'kind client_id addresses request_timeout release_delay');
    super(new LeaseCore(options.client_id ?? 'me', options.addresses ?? ['http://a:1'], START, {
      requestTimeout: options.request_timeout ?? 5, releaseDelay: options.release_delay ?? 0,
      random: () => 0 }));
  }

  step_opens(options) {
    const resource = this.core.open(options.resource_id, camel(without(options, 'resource_id')),
      this.now);
    this.resources.set(options.resource_id, resource);
  }

  step_closes(what) {
    this.core.close(this.resources.get(keys(what, 'resource_id').resource_id), this.now);
  }

  step_wants(what) {
    keys(what, 'resource_id amount');
    this.core.setWants(this.resources.get(what.resource_id), what.amount, this.now);
  }

  step_tries(what) {
    keys(what, 'resource_id units times allowed impossible retry_after');
    const resource = this.resources.get(what.resource_id);
    const units = what.units ?? 1;
    let allowed = 0;
    let decision;
    for (let i = 0; i < (what.times ?? 1); i += 1) {
      decision = this.core.take(resource, units, this.now);
      if (decision === 'allowed') allowed += 1;
    }
    let wait = NEVER;
    if (decision === 'refused') wait = this.core.retryAfter(resource, units, this.now);
    match('the try', { allowed, impossible: decision === 'impossible',
      retry_after: wait === NEVER ? undefined : seconds(wait) },
    without(what, 'resource_id units times'));
  }

  step_returns(what) {
    keys(what, 'resource_id units');
    this.resources.get(what.resource_id).limiter.release(what.units ?? 1);
  }

  step_repeats(what) {
    keys(what, 'every times tries ignores_requests');
    const start = this.now;
    for (let i = 1; i <= what.times; i += 1) {
      this.advance(start + i * nanoseconds(what.every), () => false);
      if (what.ignores_requests) this.seen = this.sent.length;
      this.checkAllIsSeen();
      this.step_tries(what.tries);
    }
  }

  step_reads(what) {
    const info = this.core.read(this.resources.get(what.resource_id), this.now);
    const expiresAt = info.expiresIn === undefined ? undefined : since(this.now) + info.expiresIn;
    match('the resource', snake({ ...info, expiresAt }), without(what, 'resource_id'));
  }
}

/** Stories of permits, holds and reservations. */
class PermitWorld extends World {
  looks = new Set(['holds', 'counts']);
  expects = new Set(['sends', 'decides', 'changes']);
  calls = new Map();
  items = new Map();
  decisions = new Map();
  told = new Set();
  changes = [];
  changesSeen = 0;

  constructor(options) {
    keys(options, 'kind client_id addresses request_timeout fallback local shadow prefetch ' +
      'max_pause report_once lanes');
    const policy = camel(without(options, 'kind client_id addresses request_timeout'));
    super(new PermitCore(options.client_id ?? 'me', options.addresses ?? ['http://a:1'], START, {
      policy: { lanes: 0, ...policy }, firstNumber: 1,
      requestTimeout: options.request_timeout ?? 1 }));
  }

  collect() {
    for (let more = true; more; ) {
      super.collect();
      const acquired = this.core.decision(this.now);
      const held = this.core.change(this.now);
      if (acquired) this.decisions.set(acquired.context, { acquired, at: this.now });
      if (held) this.changes.push({ held, at: this.now });
      more = Boolean(acquired || held);
    }
  }

  checkEnd() {
    super.checkEnd();
    const untold = [...this.decisions.keys()].filter((name) => !this.told.has(name));
    if (untold.length) throw new StoryFailed(`the story does not tell the decisions on ${untold}`);
    if (this.changesSeen < this.changes.length) {
      throw new StoryFailed('the story does not tell a change');
    }
  }

  numberOf(name) {
    const decided = this.decisions.get(name);
    return decided ? decided.acquired.hold : this.calls.get(name).hold?.number ?? 0;
  }

  step_acquires(what) {
    keys(what, 'call item max_wait equal detail timeout hold time_to_live priority share ' +
      'settle_within');
    const items = what.item.map((item) => new Item(item.resource_id, item.key,
      without(keys(item, 'resource_id key cost min'), 'resource_id key')));
    const permit = new Permit(items, camel(without(what, 'call item timeout')));
    this.items.set(what.call, items);
    this.calls.set(what.call, this.core.acquire(permit, what.timeout ?? 1, what.call, this.now));
  }

  step_decides(what) {
    const first = this.advanceFor(() => this.decisions.has(what.call));
    const decided = this.decisions.get(what.call);
    if (!decided) throw new StoryFailed(`${what.call} has no decision at ${since(this.now)} s`);
    const { acquired, at } = decided;
    match(what.call, snake({ ...acquired, hold: acquired.granted && acquired.hold > 0,
      reservation: acquired.reservation > 0, endsAt: since(acquired.endsAt),
      settleBy: since(acquired.settleBy), transferId: acquired.transferId || undefined }),
    without(what, 'call'));
    this.checkTime('the decision', at, first);
    this.told.add(what.call);
  }

  step_reports(what) {
    keys(what, 'resource_id key cost');
    this.core.report(new Item(what.resource_id, what.key), what.cost ?? 1, this.now);
  }

  step_settles(what) {
    keys(what, 'call reservation cost timeout');
    const items = this.items.get(what.reservation).map((item, i) => item.withCost(what.cost[i]));
    this.core.settle(this.decisions.get(what.reservation).acquired.reservation, items,
      what.timeout ?? 0, what.call, this.now);
  }

  step_releases(what) {
    keys(what, 'call keep');
    this.core.release(this.numberOf(what.call), what.keep, this.now);
  }

  step_transfers(what) {
    keys(what, 'call hold amount time_to_live timeout');
    this.core.transfer(this.numberOf(what.hold), what.amount, what.timeout ?? 1, what.call,
      this.now, what.time_to_live);
  }

  step_seizes(what) {
    keys(what, 'call transfer_id time_to_live timeout');
    this.calls.set(what.call, this.core.seize(what.transfer_id, what.timeout ?? 1, what.call,
      this.now, what.time_to_live));
  }

  matchHold(held, what) {
    keys(what, 'call gone ends_at units');
    match('the hold', { ...held, ends_at: since(held.endsAt) }, without(what, 'call'));
  }

  step_changes(what) {
    const first = this.advanceFor(() => this.changesSeen < this.changes.length);
    if (this.changesSeen === this.changes.length) {
      throw new StoryFailed(`no hold has changed at ${since(this.now)} s`);
    }
    const { held, at } = this.changes[this.changesSeen];
    this.changesSeen += 1;
    if (held.hold !== this.numberOf(what.call)) throw new StoryFailed('another hold has changed');
    this.matchHold(held, what);
    this.checkTime('the change', at, first);
  }

  step_holds(what) {
    this.matchHold(this.core.hold(this.numberOf(what.call)), what);
  }

  step_counts(what) {
    match('the counts', snake(this.core.read()), what);
  }
}

/** Runs a story. Throws StoryFailed. */
export function run(story) {
  keys(story, 'story why client steps');
  const isLeases = (story.client.kind ?? 'leases') === 'leases';
  const world = isLeases ? new LeaseWorld(story.client) : new PermitWorld(story.client);
  world.run(story.steps);
}
