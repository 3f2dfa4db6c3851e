/// <reference lib="esnext.disposable" />
// The types of the package. Durations are in seconds.

/** A decision, or the result of a settle, transfer or seizure. */
export interface Acquired {
  granted: boolean;
  /** "server"; "refusal": a server has refused the same a short time ago; "fallback": no server has
   * decided; "bypass": the kill switch or shadow; "caller": released before the decision;
   * "prefetch": granted out of units that were taken ahead. */
  by: 'server' | 'refusal' | 'fallback' | 'bypass' | 'caller' | 'prefetch';
  /** Of each item. Of a settle: what was charged in addition, or, if negative, what came back. */
  units: number[];
  /** The limit with the fewest units left, or that refuses. The next two are its figures. */
  limit?: string;
  remaining: number;
  resetAfter: number;
  /** With `detail`, further figures of this limit; 0: not known. */
  quota: number;
  window: number;
  /** A limit has few units left. */
  warning: boolean;
  /** A grant whose caller timed out must wait this much longer before it uses the units. */
  wait: number;
  reason?: string;
  /** The resource for which the servers have no limits. The fallback has decided, and the reason is
   * UNMATCHED, also of a grant. */
  unmatched?: string;
  /** Absent: waiting does not help, or it is not known. */
  retryAfter?: number;
  /** The item that was refused. */
  itemIndex: number;
  /** Of a settle: it came after its time; the server did not know the reservation. */
  late: boolean;
  unknown: boolean;
  /** The number of the hold; 0: nothing is held. */
  hold: number;
  /** The number of the reservation; 0: there is nothing to settle. */
  reservation: number;
  transferId: number;
  /** Of the hold, and of the reservation, in nanoseconds of the clock of the core. */
  endsAt?: number;
  settleBy?: number;
  context?: unknown;
}

/** A hold, as its application may use it, until endsAt. */
export interface Held {
  hold: number;
  gone: boolean;
  /** Of each item. If the hold is gone: what it had, which must not be used any more. */
  units: number[];
  /** In nanoseconds of the clock of the core. Hold.left() has the seconds that are left. */
  endsAt?: number;
}

/** One item of a permit: units of one resource for one key. */
export interface ItemOptions {
  resourceId: string;
  /** On whose behalf. The default is "". */
  key?: string;
  /** The units; 0 only looks. The default is 1. */
  cost?: number;
  /** The item accepts this many units or more. The default is the cost. */
  min?: number;
}

export interface CallOptions {
  /** Of the only item. */
  cost?: number;
  min?: number;
  /** After it the fallback decides. The default is 1; for a hold it is maxWait + 5. */
  timeout?: number;
  /** Ends the wait. A hold gives up its place in the queue. */
  signal?: AbortSignal;
}

export interface AcquireOptions extends CallOptions {
  /** How long the caller can wait until it uses the units. */
  maxWait?: number;
  /** All items get the same whole number of units. */
  equal?: boolean;
  /** The decision has the figures of its limit. */
  detail?: boolean;
}

export interface HoldOptions extends CallOptions {
  /** How long to wait in the queue of the server. */
  maxWait?: number;
  /** Of the hold; 0: that of the limits. */
  timeToLive?: number;
  /** From 0 to 15; the default is 1. Higher ones leave the queue first. */
  priority?: number;
  /** The wait ends with the reason SHARED when a hold of the same resource and key is released. */
  share?: boolean;
  /** More than 0: the hold is a reservation too, which Hold.settle settles. */
  settleWithin?: number;
  /** Is called when the hold has become smaller, or is gone, without a call of this program. */
  onGone?: (held: Held) => void;
}

export interface ReserveOptions extends CallOptions {
  /** Within which time to settle, at most 3600. The default is 60. */
  settleWithin?: number;
  detail?: boolean;
}

/** A limit of this process, for each resource and key. TOKEN_BUCKET has `rate` in units per second
 * and `size` in units, and the others have `limit` in units and `window` in seconds. */
export type Limit =
  | { kind: 'TOKEN_BUCKET'; rate: number; size: number }
  | { kind: 'FIXED_WINDOW' | 'SLIDING_WINDOW'; limit: number; window: number };

/** How a client treats its permits. */
export interface PermitPolicy {
  /** What a permit gets if no server decides: "open" (granted, the default), "closed" (refused) or
   * "local" (decided by the limit `local`). */
  fallback?: 'open' | 'closed' | 'local';
  local?: Limit;
  /** Each permit is granted at once, and a copy is sent to count refusals. */
  shadow?: boolean;
  /** At least that of the servers. The default is 0.05. */
  drift?: number;
  /** How far ahead units are taken for keys that are used often; 0, the default: never. */
  prefetch?: number;
  /** The longest time for which the breaker opens. The default is 30. */
  maxPause?: number;
  /** Reports have a request_id, so each counts once. */
  reportOnce?: boolean;
  /** How many holds may wait in queues of a server at the same time. The default is 4. */
  lanes?: number;
}

/** How a resource is used. */
export interface ResourceOptions {
  /** Constant wants. Without it the wants follow use, within the next three bounds. */
  wants?: number;
  /** What an idle resource wants. The default is 1 for a rate, and 0 for a gauge. */
  wantsMinimum?: number;
  wantsMaximum?: number;
  /** The least in the first window. The default is wantsMinimum. */
  wantsInitial?: number;
  /** How long use counts. The default is 10. */
  window?: number;
  /** From 0 to 15; the default is 1. */
  priority?: number;
  /** How much time a rate saves. The default is 0.1. */
  burst?: number;
  /** Replaces burst, if more than 0. */
  burstUnits?: number;
  /** What may be used without a lease: "safe" (the safe capacity that a server has sent last, and
   * before it safeCapacity), "pessimistic" (nothing) or "optimistic" (all wants). */
  fallback?: 'safe' | 'pessimistic' | 'optimistic';
  /** The default is 0; -1 is unlimited. */
  safeCapacity?: number;
  /** What would be refused is allowed, and counts as excess. */
  shadow?: boolean;
}

/** The state of a resource. */
export interface ResourceInfo {
  resourceId: string;
  leased: boolean;
  /** In force; -1: unlimited. */
  capacity: number;
  wants: number;
  inUse: number;
  /** Absent without a lease. */
  expiresIn?: number;
  /** Of the last response. */
  outcome?: 'GRANTED' | 'TRY_LATER' | 'UNMATCHED' | 'FULL';
  /** Why the lease is less than the wants. */
  reason?: string;
  learning: boolean;
  safeCapacity?: number;
  allowed: number;
  refused: number;
  excess: number;
  overReleased: number;
  failures: number;
  /** An option of a later opening that is not in force. */
  optionsDiffer?: string;
}

/** The counters of permits, with the meanings of doorman_permit_client_info. */
export interface Counts {
  granted: number;
  refused: number;
  refusedLocally: number;
  prefetchGranted: number;
  prefetched: number;
  lapsed: number;
  fallbackGranted: number;
  fallbackRefused: number;
  bypassed: number;
  timedOut: number;
  reported: number;
  lost: number;
  uncharged: number;
  settled: number;
  unsettled: number;
  messages: number;
  failures: number;
  pauses: number;
  holdsLost: number;
  moved: number;
  waiting: number;
  holds: number;
  isPausing: number;
}

export interface ClientOptions {
  /** Of the server, or a function that returns it, for tokens that change. */
  token?: string | (() => string | undefined);
  /** The path of a file of authorities in PEM, or options such as ca, cert and key of
   * tls.connect. */
  tls?: string | object;
  /** Further headers of each request. */
  headers?: Record<string, string>;
  /** The default is a name that nobody can guess. */
  clientId?: string;
  permits?: PermitPolicy;
  /** How long a request for leases may take. The default is 5. */
  leaseTimeout?: number;
  /** How long a request for permits may take. The default is 1. */
  permitTimeout?: number;
  /** Gets a text for each failure. The default prints it with console.warn. */
  onWarning?: (text: string) => void;
}

interface WaitOptions {
  /** The default is to wait without an end. */
  timeout?: number;
  signal?: AbortSignal;
}

interface Resource extends Disposable {
  /** Takes units if they may be used now. Does not wait. */
  tryUse(units?: number): boolean;
  /** Takes units, and waits for them, in the order of the calls. */
  wait(units?: number, options?: WaitOptions): Promise<boolean>;
  /** Seconds after a refusal until the same call can be allowed; undefined: never. */
  retryAfter(units?: number): number | undefined;
  /** Sets the wants. After this call they do not follow use. */
  setWants(wants: number): void;
  info(): ResourceInfo;
  /** Ends this opening. The last one gives the lease back. */
  close(): void;
}

/** Units per second. */
export interface Rate extends Resource {}

/** Units in use at once. What is taken must be given back. */
export interface Gauge extends Resource {
  /** Gives units back. Throws a RangeError if more are given back than are in use. */
  release(units?: number): void;
  /** Takes units while a function runs. Throws TimedOut if they do not come in time. */
  use<T>(work: () => T | Promise<T>, options?: WaitOptions & { units?: number }): Promise<T>;
}

/** Units that stay taken until they are released. The client renews them. `using` and `await using`
 * release them. */
export interface Hold extends Disposable, AsyncDisposable {
  readonly decision: Acquired;
  readonly granted: boolean;
  /** Seconds until the units may not be used any more; 0: now. */
  left(): number;
  /** The units of each item that are held now. */
  units(): number[];
  /** Gives the units back. Stop using them before. keep: what is kept of each item. */
  release(keep?: number[]): void;
  /** Says what a hold with settleWithin has really cost: of the only item, or of each item.
   * Releases the hold. With a timeout the promise has the result. */
  settle(costs?: number | number[], options?: { timeout?: number }): Promise<Acquired | undefined>;
  /** Moves units into a transfer. Who learns its transferId can seize them. amounts: of each item;
   * the default is all units. */
  transfer(options?: { amounts?: number[]; timeout?: number; timeToLive?: number }):
    Promise<Acquired>;
  /** Runs a function while the units are held, and releases them. Throws Refused if they were
   * refused. */
  run<T>(work: (hold: Hold) => T | Promise<T>): Promise<T>;
}

/** An amount that was charged before the cost is known. `await using` settles `costs`. */
export interface Reservation extends AsyncDisposable {
  readonly decision: Acquired;
  readonly granted: boolean;
  /** What the only item, or the first one, has really cost. */
  cost: number;
  costs: number[];
  /** Says what the action has really cost. With a timeout the promise has the result. Rejects with
   * an error if the client is closed, because then nobody learns the cost. */
  settle(costs?: number | number[], options?: { timeout?: number }): Promise<Acquired | undefined>;
  /** Runs a function, and settles `cost` at its end. If it throws, it costs what was reserved.
   * Throws Refused if the amount was refused. */
  run<T>(work: (reservation: Reservation) => T | Promise<T>): Promise<T>;
}

/** Leases, permits, holds and reservations. Wrong arguments throw a RangeError or a TypeError. */
export class Client implements AsyncDisposable {
  /** addresses: such as http://HOST:PORT, of all processes of a node, which are tried in turn. */
  constructor(addresses: string | string[], options?: ClientOptions);
  /** The name of this client at the servers. */
  readonly clientId: string;
  /** Opens a rate, in units per second. */
  rate(resourceId: string, options?: ResourceOptions): Rate;
  /** Opens a gauge: units in use at once. */
  gauge(resourceId: string, options?: ResourceOptions): Gauge;
  /** Asks for a permit. The decision comes within the timeout. */
  acquire(resource: string, key?: string, options?: AcquireOptions): Promise<Acquired>;
  acquire(resource: string | ItemOptions | ItemOptions[], options?: AcquireOptions):
    Promise<Acquired>;
  /** Asks for units that stay taken until they are released. */
  hold(resource: string, key?: string, options?: HoldOptions): Promise<Hold>;
  hold(resource: string | ItemOptions | ItemOptions[], options?: HoldOptions): Promise<Hold>;
  /** Charges what an action may cost, before its cost is known. */
  reserve(resource: string, key?: string, options?: ReserveOptions): Promise<Reservation>;
  reserve(resource: string | ItemOptions | ItemOptions[], options?: ReserveOptions):
    Promise<Reservation>;
  /** Says what an action has cost. Does not wait. Negative: units come back. */
  report(resourceId: string, key?: string, cost?: number): void;
  /** Makes the units of a transfer a hold of this client. What is seized after the signal has
   * aborted the wait is released. */
  seize(transferId: number, options?: { timeout?: number; timeToLive?: number;
    onGone?: (held: Held) => void; signal?: AbortSignal }): Promise<Hold>;
  /** While it is on, nothing is refused. Refusals are still counted. */
  killSwitch(on: boolean): void;
  /** The counters of the permits of this client. */
  counts(): Counts;
  /** All counters in the text format of Prometheus. */
  metrics(): string;
  /** Gives all leases and holds back. Waits up to `timeout` seconds; the default is 5. */
  close(timeout?: number): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** A hold or a reservation was refused. `decision` says by whom, and why. */
export class Refused extends Error {
  constructor(decision: Acquired);
  readonly decision: Acquired;
}

/** Units of a gauge did not come in time. */
export class TimedOut extends Error {
  constructor(resourceId: string);
}

/** A name that no other client has, and that nobody can guess. */
export function newClientId(): string;

export const VERSION: string;
