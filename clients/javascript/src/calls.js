// What the core of permits works with: calls, holds, and what it writes into messages.
// The rules (P, H) are those of the section >>permit_client of doorman_permits.h.

import {
  AMOUNT_MAX, InvalidResponse, NEVER, Queue, Reader, SECOND, checkAmount, checkDuration, checkId,
  checkInteger, isNumber, seconds, withDefaults,
} from './base.js';

export const ITEMS_MAX = 100; // of a permit
export const REQUEST_ID_MAX = 2 ** 53 - 1;

/** What a call asks. The kinds alternate in the messages of a client, in this order. WAIT is a
 * permit that may wait in the queue of a server. */
export const PERMIT = 0;
export const REPORT = 1;
export const RENEWAL = 2;
export const RELEASE = 3;
export const TRANSFER = 4;
export const SEIZURE = 5;
export const SETTLE = 6;
export const WAIT = 7;
export const KINDS = 8;
export const METHODS = [
  'acquire', 'report', 'renew', 'release', 'transfer', 'seize', 'settle', 'acquire',
];

/** Returns the name that a message, or its response, has for the list of what it asks. */
export const listOf = (kind) => (METHODS[kind] === 'acquire' ? 'permit' : 'entry');

// The states of a call: see the table in >>permit_client.
export const NEW = 'new';
export const QUEUED = 'queued';
export const SENT = 'sent';
export const WAITING = 'waiting';
export const DECIDED = 'decided';

/** One item of a permit: units of one resource for one key. */
export class Item {
  /** options: cost, the units (0 only looks), and min: the item accepts this many or more. */
  constructor(resourceId, key = '', { cost = 1, min = undefined } = {}) {
    this.resourceId = checkId('resourceId', resourceId);
    this.key = checkId('key', key, true);
    this.cost = checkAmount('cost', cost);
    this.min = min;
    if (min !== undefined && checkAmount('min', min) > cost) {
      throw new RangeError('min: must be at most cost');
    }
  }

  /** A text that is different for each resource and key. Ids have no control characters. */
  get pair() {
    return `${this.resourceId}\0${this.key}`;
  }

  get least() {
    return this.min ?? this.cost;
  }

  /** Returns the same item with another cost. */
  withCost(cost, min = undefined) {
    return new Item(this.resourceId, this.key, { cost, min });
  }

  toJSON() {
    const out = { resource_id: this.resourceId, cost: this.cost };
    if (this.key) out.key = this.key;
    if (this.min !== undefined) out.min = this.min;
    return out;
  }
}

const PERMIT_OPTIONS = {
  maxWait: 0, equal: false, detail: false, hold: false, timeToLive: 0, priority: 1, share: false,
  settleWithin: 0,
};

/** What a permit asks. Durations are in seconds.
 * maxWait: how long the caller can wait. equal: all items get the same whole number of units.
 * detail: the decision has the figures of its limit. hold: the permit may hold units of
 * CONCURRENCY, which must be released. timeToLive: of the hold; 0: that of the limits. share: it
 * ends as SHARED when a hold of the same resource and key is released. settleWithin: more than 0:
 * it is a reservation, which must be settled within this time. */
export class Permit {
  constructor(items, options) {
    this.items = items;
    Object.assign(this, withDefaults(options, PERMIT_OPTIONS));
    if (items.length < 1 || items.length > ITEMS_MAX) {
      throw new RangeError(`items: must be 1 to ${ITEMS_MAX}`);
    }
    this.maxWaitTime = checkDuration('maxWait', this.maxWait);
    checkDuration('timeToLive', this.timeToLive);
    this.settleTime = checkDuration('settleWithin', this.settleWithin);
    if (this.settleTime > 3600 * SECOND) {
      throw new RangeError('settleWithin: must be at most an hour');
    }
    checkInteger('priority', this.priority, 0, 15);
    if (this.share && items.length !== 1) throw new RangeError('share: only for one item');
    if (this.equal && items.some((item) => item.cost < this.least(0))) {
      throw new RangeError('equal: no whole number is between min and cost of all items');
    }
  }

  /** Returns the least number of units that an item accepts. */
  least(index) {
    if (!this.equal) return this.items[index].least;
    return Math.ceil(Math.max(...this.items.map((item) => item.least)));
  }

  toMessage(maxWait, number) {
    const out = { item: this.items.map((item) => item.toJSON()) };
    if (number) out.request_id = number;
    if (this.equal) out.equal = true;
    if (this.detail) out.detail = true;
    if (this.share) out.share = true;
    if (this.timeToLive) out.time_to_live = this.timeToLive;
    if (this.settleWithin) out.settle_within = this.settleWithin;
    if (maxWait > 0) out.max_wait = seconds(maxWait);
    if (this.priority !== 1) out.priority = this.priority;
    return out;
  }
}

/** A decision, or the result of a settle, transfer or seizure. index.d.ts explains the fields. */
export class Acquired {
  granted = false;
  by = 'server';
  units = [];
  limit = undefined;
  remaining = 0;
  resetAfter = 0;
  quota = 0;
  window = 0;
  warning = false;
  wait = 0;
  reason = undefined;
  unmatched = undefined; // the resource for which the servers have no limits
  retryAfter = undefined;
  itemIndex = 0;
  late = false;
  unknown = false;
  hold = 0;
  reservation = 0;
  transferId = 0;
  endsAt = undefined; // of the hold, in nanoseconds of the clock of the core
  settleBy = undefined;
  context = undefined; // what the caller has passed

  constructor(by = 'server') {
    this.by = by;
  }
}

/** A permit, report, settle or request about a hold, from its beginning to its result. */
export class Call {
  state = NEW;
  number = 0; // the request_id
  deadline = NEVER;
  timer = NEVER;
  timerOrder = 0;
  attended = true; // a caller wants the result
  alone = false; // it is in a message of its own
  prefetches = false;
  unanswered = false; // a server may have granted it
  isMoved = false; // it is WAITING because it was refused as MOVED (N9)
  moves = 0; // how often it was, up to MOVES_MAX
  failures = 0;
  sentMaxWait = 0;
  waitsUntil = 0;
  hold = undefined;
  peer = undefined; // of a transfer or settle: the call that has its result
  cost = 0; // of a report
  amounts = []; // of a transfer
  transferId = 0; // of a seizure
  timeToLive = 0;
  port = undefined; // QUEUED: the batch in whose queue it is
  batch = undefined;
  position = 0;
  acquired = new Acquired();

  constructor(kind, permit, fields = {}) {
    this.kind = kind;
    this.permit = permit;
    this.context = undefined;
    Object.assign(this, fields);
  }

  get items() {
    return this.permit.items;
  }

  /** Returns how many items the message, or its response, has for the call. */
  size() {
    if (this.kind === SEIZURE) return ITEMS_MAX;
    return this.hold && !this.items.length
      ? this.hold.items.length
      : Math.max(1, this.items.length);
  }

  textBytes() {
    return this.items.reduce((sum, item) => sum + item.resourceId.length + item.key.length + 2, 0);
  }
}

/** What a call asks that is no permit. */
export const NOTHING = Object.freeze({
  items: [], maxWaitTime: 0, settleTime: 0, settleWithin: 0, detail: false, hold: false,
});

/** A hold of the application. Its states: asked, in_use, ending. */
export class Hold {
  items = []; // resourceId and key of each
  amounts = [];
  state = 'asked';
  id = 0; // chosen by the server; 0: not known
  transferId = 0; // of the transfer that is seized
  call = undefined; // asks for the hold
  begin = 0;
  life = 0;
  end = 0;
  renewAt = 0;
  giveUpAt = 0;
  timer = NEVER;
  timerOrder = 0;
  transfers = 0; // how many have no answer yet
  wasSent = false;
  asking = false; // a message that asks for the hold is under way
  mustRelease = false;
  claims = false; // the next renewal says what is held
  changed = false;

  constructor(number, action) {
    this.number = number;
    this.action = action;
    action.hold = this;
  }

  isEmpty() {
    return !this.amounts.some((amount) => amount > 0);
  }

  /** Returns the hold as its application may use it. */
  describe() {
    return { hold: this.number, gone: this.state === 'ending', units: [...this.amounts],
      endsAt: this.end || undefined };
  }
}

/** The messages to the servers of the options, to a node of the map, or of a lane. One message at a
 * time is under way. Its state: ready, requested, or, only for the options, backing_off. `sent` has
 * the calls of this message, each with the hold that it asks for. A call that has its result already
 * is undefined there. A lane has no calls in its queues: it takes those of others in turn. */
export class Batch {
  node = ''; // its name
  queues = Array.from({ length: KINDS }, () => new Queue());
  source = undefined; // of a lane: the batch whose call is in its message
  asksMap = false; // the message under way is a DISCOVERY
  answers = false; // a node: it has answered since its last failure
  probes = false; // a node: the next message is a DISCOVERY, which says whether it answers
  state = 'ready';
  sent = [];
  kind = WAIT;
  sentAt = 0;
  timeout = 0;
  retryAt = 0;
  number = 0;
  failures = 0;

  /** lane: of its requests; undefined: they are those of the options. */
  constructor(lane, addresses, isLane = false) {
    this.lane = lane;
    this.addresses = addresses;
    this.isLane = isLane;
  }

  isIdle() {
    return this.state !== 'requested' && !this.queues.some((queue) => queue.size);
  }
}

// ---- what a message has for a call

const withLife = (entry, timeToLive) =>
  (timeToLive ? { ...entry, time_to_live: timeToLive } : entry);

/** Returns what a message has for a call that is not a permit. */
export function entryOf(call) {
  const { hold } = call;
  switch (call.kind) {
    case REPORT: {
      const entry = { ...call.items[0].toJSON(), cost: call.cost };
      return call.number ? { ...entry, request_id: call.number } : entry;
    }
    case SETTLE:
      return { request_id: call.number, item: call.items.map((item) => item.toJSON()) };
    case SEIZURE:
      return withLife({ transfer_id: call.transferId, request_id: call.number }, call.timeToLive);
    case TRANSFER:
      return withLife({ id: hold.id, request_id: call.number, amount: call.amounts },
        call.timeToLive);
    case RELEASE: {
      hold.mustRelease = false;
      const entry = hold.id ? { id: hold.id } : { request_id: hold.number };
      return hold.state === 'in_use' ? { ...entry, keep: [...hold.amounts] } : entry;
    }
    default:
      return renewalOf(hold);
  }
}

function renewalOf(hold) {
  const entry = { id: hold.id };
  if (hold.claims) {
    entry.item = hold.items.map((item, i) => (
      { resource_id: item.resourceId, key: item.key, amount: hold.amounts[i] }));
  }
  return entry;
}

// ---- what a response has for a call

/** Reads the figures of the limits of one item, which a permit with `detail` gets. */
function readFigures(item) {
  const limits = item.has('limits') ? item.list('limits') : [];
  return limits.map((value) => {
    const limit = new Reader(value, 'limits[]');
    return { name: limit.text('name', ''), shadow: limit.flag('shadow'),
      quota: limit.amount('limit', 0), remaining: limit.amount('remaining', 0),
      window: limit.duration('window', 0), resetAfter: limit.duration('reset_after', 0) };
  });
}

function readGrant(item) {
  return { granted: item.amount('granted'), limit: item.optional('limit'),
    remaining: item.amount('remaining', 0), resetAfter: item.duration('reset_after', 0) };
}

/** Reads the decision on a permit of `count` items. `figures` has those of each item. Throws
 * InvalidResponse. */
export function readDecision(value, count) {
  const entry = new Reader(value, 'permit[]');
  const granted = entry.text('decision') === 'GRANTED';
  const items = granted || entry.has('item')
    ? entry.list('item', granted ? count : undefined).map((item) => new Reader(item, 'item[]'))
    : [];
  const decision = { granted, figures: items.map(readFigures), grants: [], units: [], holdId: 0,
    waited: 0, expiresIn: 0, reservation: false, settleWithin: 0, wait: 0, warning: false,
    itemIndex: 0, reason: undefined, limit: undefined, validFor: 0, retryAfter: undefined };
  if (!granted) {
    if (entry.has('item_index')) decision.itemIndex = entry.integer('item_index', count - 1);
    if (entry.has('retry_after')) decision.retryAfter = entry.duration('retry_after');
    decision.reason = entry.optional('reason');
    decision.limit = entry.optional('limit');
    decision.validFor = entry.duration('valid_for', 0);
    return decision;
  }
  decision.grants = items.map(readGrant);
  decision.units = decision.grants.map((grant) => grant.granted);
  decision.wait = entry.duration('wait', 0);
  decision.warning = entry.flag('warning');
  if (entry.has('hold')) {
    const hold = entry.object('hold');
    decision.holdId = hold.integer('id');
    decision.waited = hold.duration('waited', 0);
    decision.expiresIn = hold.duration('expires_in');
  }
  if (entry.has('reservation')) {
    decision.reservation = true;
    decision.settleWithin = entry.object('reservation').duration('settle_within');
  }
  return decision;
}

function readAmounts(entry, key) {
  const values = entry.has(key) ? entry.list(key) : [];
  if (!values.every((value) => isNumber(value) && value >= 0 && value <= AMOUNT_MAX)) {
    throw entry.fail(key, 'must be amounts');
  }
  return values;
}

/** Reads the result of a renew, release, transfer or seize. Throws InvalidResponse. */
export function readHoldResult(value, kind, call) {
  const entry = new Reader(value, 'entry[]');
  const result = { gone: entry.flag('gone'), reason: entry.optional('reason'), id: 0,
    expiresIn: 0, amounts: [], items: [] };
  if (result.gone || result.reason) return result;
  result.amounts = readAmounts(entry, 'amount');
  if (kind === RENEWAL) {
    result.expiresIn = entry.duration('expires_in');
    if (call?.hold && result.amounts.length !== call.hold.items.length) {
      throw entry.fail('amount', 'must have an amount for each item');
    }
  } else if (kind === TRANSFER || kind === SEIZURE) {
    result.expiresIn = entry.duration('expires_in');
    result.id = entry.integer(kind === TRANSFER ? 'transfer_id' : 'id');
    if (!result.id) throw entry.fail('id', 'must not be 0');
  }
  if (kind === SEIZURE) {
    const items = entry.list('item').map((item) => new Reader(item, 'item[]'));
    if (items.length < 1 || items.length > ITEMS_MAX) {
      throw entry.fail('item', 'must be a list of 1 to 100');
    }
    result.items = items.map((item) => (
      { resourceId: item.text('resource_id'), key: item.text('key', '') }));
    result.amounts = items.map((item) => item.amount('amount'));
  }
  return result;
}

/** Reads the answer to a settle: what each item was charged in addition, and what came back.
 * Throws InvalidResponse. count: how many items it must have; undefined: nobody reads them. */
export function readSettled(value, count) {
  const entry = new Reader(value, 'entry[]');
  const settled = { reason: entry.optional('reason'), late: entry.flag('late'),
    unknown: entry.flag('unknown'), items: [] };
  if (!settled.reason && count !== undefined) {
    const items = entry.list('item', count).map((item) => new Reader(item, 'item[]'));
    settled.items = items.map((item) => (
      { charged: item.amount('charged', 0), returned: item.amount('returned', 0) }));
  }
  return settled;
}

/** Reads the answer to a report. Throws InvalidResponse. */
export function readReported(value) {
  const entry = new Reader(value, 'entry[]');
  const charged = entry.get('charged') ?? 0;
  if (!isNumber(charged) || Math.abs(charged) > AMOUNT_MAX) {
    throw new InvalidResponse('entry[].charged: must be an amount');
  }
  return { charged, reason: entry.optional('reason') };
}
