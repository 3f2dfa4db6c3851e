// The types of the cores. Times are in nanoseconds of any clock that never goes back.

import type {
  Acquired, Counts, Held, PermitPolicy, ResourceInfo, ResourceOptions,
} from './index.js';

/** A request that a core wants to be sent: a POST of `message` to `address`/v1/`method`. */
export interface Request {
  address: string;
  method: string;
  message: object;
  number: number;
  /** The core itself notices when it has passed. */
  timeout: number;
  /** Of a node, or of a permit that may wait in the queue of a server. Each lane has one request at
   * a time. */
  lane?: number;
}

interface Core {
  /** When next() wants to be called; Infinity: never. */
  due(): number;
  /** Does what is due. Returns a request to send, or undefined. */
  next(now: number): Request | undefined;
  /** Processes a response. Returns what is wrong with it, or undefined. body: the parsed JSON;
   * anything else, such as undefined, is not valid. */
  response(request: Request, status: number, body: unknown, now: number): string | undefined;
  /** Says that a request got no response. */
  failed(request: Request, now: number): void;
  /** Ends a pause early, because a master has answered the other core. */
  retrySoon(now: number): void;
  killSwitch(on: boolean): void;
  /** Whether nothing is left to send. */
  isIdle(): boolean;
}

/** A resource of a LeaseCore. Only the core changes it. */
export class Resource {
  private constructor();
  readonly limiter: {
    readonly isGauge: boolean;
    /** The time until n units may be used; Infinity: the capacity in force never allows them. */
    delay(n: number, now: number): number;
    /** Gives n units of a gauge back. */
    release?(n: number): void;
  };
  /** Says how many units callers wait for, so that the wants rise. */
  setWaiting(units: number, now: number): void;
}

export class LeaseCore implements Core {
  constructor(clientId: string, addresses: string[], now: number,
    options?: { requestTimeout?: number; releaseDelay?: number; random?: () => number });
  open(resourceId: string, options: ResourceOptions & { kind?: 'rate' | 'gauge' } | undefined,
    now: number): Resource;
  close(resource: Resource, now: number, atOnce?: boolean): void;
  setWants(resource: Resource, wants: number, now: number): void;
  take(resource: Resource, units: number, now: number): 'allowed' | 'refused' | 'impossible';
  retryAfter(resource: Resource, units: number, now: number): number;
  read(resource: Resource, now: number): ResourceInfo;
  due(): number;
  next(now: number): Request | undefined;
  response(request: Request, status: number, body: unknown, now: number): string | undefined;
  failed(request: Request, now: number): void;
  retrySoon(now: number): void;
  killSwitch(on: boolean): void;
  isIdle(): boolean;
}

export class Item {
  constructor(resourceId: string, key?: string, options?: { cost?: number; min?: number });
  readonly resourceId: string;
  readonly key: string;
  readonly cost: number;
  readonly min?: number;
  withCost(cost: number, min?: number): Item;
}

export class Permit {
  constructor(items: Item[], options?: {
    maxWait?: number; equal?: boolean; detail?: boolean; hold?: boolean; timeToLive?: number;
    priority?: number; share?: boolean; settleWithin?: number;
  });
  readonly items: Item[];
}

/** What was asked. `hold` is the hold that it asks for, until the decision. */
export interface Call {
  readonly hold?: { readonly number: number };
  readonly acquired: Acquired;
}

export class PermitCore implements Core {
  constructor(clientId: string, addresses: string[], now: number,
    options?: { policy?: PermitPolicy; requestTimeout?: number; firstNumber?: number });
  acquire(permit: Permit, timeout: number, context: unknown, now: number): Call;
  report(item: Item, cost: number, now: number): void;
  settle(reservation: number, items: Item[], timeout: number, context: unknown, now: number): void;
  release(hold: number, keep: number[] | undefined, now: number): void;
  transfer(hold: number, amounts: number[] | undefined, timeout: number, context: unknown,
    now: number, timeToLive?: number): void;
  seize(transferId: number, timeout: number, context: unknown, now: number, timeToLive?: number):
    Call;
  hold(hold: number): Held;
  /** The next decision. Its `context` is what the caller has passed. */
  decision(now: number): Acquired | undefined;
  /** The next hold that has become smaller, or is gone, without a call of the application. */
  change(now: number): Held | undefined;
  /** Refuses all calls that wait, and releases all holds. Run the loop until isIdle(). */
  stop(now: number): void;
  read(): Counts;
  due(): number;
  next(now: number): Request | undefined;
  response(request: Request, status: number, body: unknown, now: number): string | undefined;
  failed(request: Request, now: number): void;
  retrySoon(now: number): void;
  killSwitch(on: boolean): void;
  isIdle(): boolean;
}
