// The types of the middleware.

import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Acquired, Client } from './index.js';

export interface RateLimitOptions<Request> {
  /** On whose behalf. The default is one key for all, which undefined and null mean too. Behind a
   * proxy, the address of the socket is that of the proxy. A key that a permit cannot have, such as
   * one of more than 256 bytes, is replaced by its hash. A key that is no string is an error with
   * the status 400. */
  key?: string | ((request: Request) => string | undefined | null);
  /** Units. The default is 1. */
  cost?: number | ((request: Request) => number);
  /** Seconds, after which the fallback of the client decides. The default is 1. */
  timeout?: number;
  refuseStatus?: 429 | 403 | 503;
}

/** What the middleware adds to a request. */
export interface Limited {
  doorman?: Acquired;
}

/** Returns a middleware that asks for a permit for each request. It does nothing more if the
 * response was sent during the wait.
 * resource: a name, or a function that returns it; undefined: no limit. */
export function rateLimit<Request extends IncomingMessage = IncomingMessage & Limited>(
  client: Client, resource: string | ((request: Request) => string | undefined | null),
  options?: RateLimitOptions<Request>,
): (request: Request, response: ServerResponse, next: (error?: unknown) => void) => Promise<void>;

/** Returns RateLimit-Policy, RateLimit and Retry-After of a decision. */
export function headersOf(decision: Acquired): Record<string, string>;
