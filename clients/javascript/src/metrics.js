// Writes the counters of a client in the text format of Prometheus.

const PERMITS = {
  granted: 'Permits that servers have granted.',
  refused: 'Permits that servers have refused.',
  refusedLocally: 'Permits refused because a server has refused the same.',
  prefetchGranted: 'Permits granted out of units that were taken ahead.',
  fallbackGranted: 'Permits that the fallback has granted.',
  fallbackRefused: 'Permits that the fallback has refused.',
  bypassed: 'Refusals that the kill switch or shadow has prevented.',
  timedOut: 'Permits without a decision within their timeout.',
  reported: 'Reports that servers have answered.',
  lost: 'Reports that were given up.',
  uncharged: 'Units of reports that did not fit into a limit.',
  settled: 'Settles that servers have counted.',
  unsettled: 'Settles that were refused or given up.',
  messages: 'Messages on permits that were sent.',
  failures: 'Messages on permits that have failed.',
  pauses: 'How often the breaker has opened.',
  holdsLost: 'Holds that ended or were gone before their release.',
  moved: 'Calls that were sent again, because their shard moved.',
};
const GAUGES = {
  waiting: 'Permits, reports and settles without a result.',
  holds: 'Holds that the client keeps, asks for, or has to release.',
  isPausing: '1: the breaker is open.',
};
const RESOURCES = {
  capacity: ['gauge', 'The capacity in force; -1: unlimited.'],
  wants: ['gauge', 'What the resource wants.'],
  inUse: ['gauge', 'Units of a gauge in use.'],
  leased: ['gauge', '1: there is a lease. 0: the fallback is in force.'],
  allowed: ['counter', 'Units that were allowed.'],
  refused: ['counter', 'Units that were refused.'],
  excess: ['counter', 'Units allowed only because of shadow mode or the kill switch.'],
};

const snake = (name) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);

const escape = (text) =>
  text.replaceAll('\\', '\\\\').replaceAll('"', '\\"').replaceAll('\n', '\\n');

/** Returns the lines of one metric. values: pairs of labels and a number. */
function family(name, kind, about, values) {
  const full = name + (kind === 'counter' ? '_total' : '');
  const lines = values.map(([labels, value]) => `${full}${labels} ${Number(value)}`);
  return [`# HELP ${full} ${about}`, `# TYPE ${full} ${kind}`, ...lines];
}

/** Returns all counters of a client. */
export function writeMetrics({ leases, permits }, now) {
  const counts = permits.read();
  const lines = [];
  for (const [kind, table] of [['counter', PERMITS], ['gauge', GAUGES]]) {
    for (const [name, about] of Object.entries(table)) {
      const full = `doorman_client_permits_${snake(name)}`;
      lines.push(...family(full, kind, about, [['', counts[name]]]));
    }
  }
  const infos = [...leases.resources.values()].map((resource) => leases.read(resource, now));
  for (const [name, [kind, about]] of infos.length ? Object.entries(RESOURCES) : []) {
    const values = infos.map((info) => [`{resource="${escape(info.resourceId)}"}`, info[name]]);
    lines.push(...family(`doorman_client_resource_${snake(name)}`, kind, about, values));
  }
  lines.push(...family('doorman_client_lease_failures', 'counter',
    'Requests for leases without a useful response.', [['', leases.failureCount]]));
  return `${lines.join('\n')}\n`;
}
