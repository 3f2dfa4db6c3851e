// The errors of this package.

/** A hold or a reservation was refused. `decision` says by whom, and why. */
export class Refused extends Error {
  constructor(decision) {
    const reason = decision.reason ?? `by the ${decision.by}`;
    super(`refused: ${reason}${decision.limit ? ` (${decision.limit})` : ''}`);
    this.name = 'Refused';
    this.decision = decision;
  }
}

/** Units of a rate or a gauge did not come in time. */
export class TimedOut extends Error {
  constructor(resourceId) {
    super(`${resourceId}: no units in time`);
    this.name = 'TimedOut';
  }
}
