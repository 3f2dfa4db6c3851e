// The cores of the client, for programs with a loop of their own.

export { LeaseCore, Resource } from './leases.js';
export { Item, Permit, PermitCore } from './permits.js';
