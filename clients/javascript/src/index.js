// A client of Doorman over HTTP: leases, permits, holds and reservations.

export { Client } from './client.js';
export { newClientId } from './engine.js';
export { Refused, TimedOut } from './errors.js';
export { VERSION } from './version.js';
