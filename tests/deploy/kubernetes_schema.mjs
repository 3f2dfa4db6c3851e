// Checks objects against the schema of Kubernetes, and those of the Prometheus operator against its
// schema. Prints each fault. Reads lists of objects in JSON:
//
//     node tests/deploy/kubernetes_schema.mjs FILE...
//
// The schema is that of the API of Kubernetes. The API ignores a field that it does not know, so a
// misspelt field would have no effect. Here it is a fault.

import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';

// .ci/deps installs the schemas here, as modules of Node.js.
const load = createRequire(`${process.cwd()}/build/kubernetes/package.json`);
const schemas = load('@kubernetes-models/validate');
const groups = { 'monitoring.coreos.com': '@kubernetes-models/prometheus-operator' };

// Returns a copy of a schema in which objects have no other fields than those that it names.
function close(schema) {
  if (Array.isArray(schema)) return schema.map(close);
  if (schema === null || typeof schema !== 'object') return schema;
  const closed = Object.fromEntries(
    Object.entries(schema).map(([name, value]) => [name, close(value)]));
  const isObject = typeof schema.properties === 'object' && schema.type === 'object';
  return isObject ? { additionalProperties: false, ...closed } : closed;
}

// A model registers its schema when it is used for the first time.
const { register } = schemas;
schemas.register = (id, schema) => register(id, close(schema));

function check(path, object) {
  const { apiVersion, kind, metadata } = object;
  const name = `${path}: ${kind} ${metadata?.name}`;
  const module = groups[apiVersion.split('/')[0]] ?? 'kubernetes-models';
  let Model;
  try {
    Model = load(`${module}/${apiVersion}/${kind}`)[kind];
  } catch {
    return [`${name}: no such kind in ${apiVersion}`];
  }
  try {
    new Model(object).validate();
    return [];
  } catch (error) {
    return error.errors.map(({ instancePath, message, params }) =>
      `${name}: ${instancePath} ${message} ${JSON.stringify(params)}`);
  }
}

const faults = process.argv.slice(2).flatMap((path) =>
  JSON.parse(readFileSync(path, 'utf8')).flatMap((object) => check(path, object)));
for (const fault of faults) console.log(fault);
console.log(`${faults.length} faults`);
process.exitCode = faults.length > 0 ? 1 : 0;
