// The description of the API, and what the checks of it share. A check that finds a fault calls
// fault. `finish` prints all faults, and sets the exit code.

import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

// .ci/deps installs the validator here. It contains ajv, which checks values against schemas.
const load = createRequire(`${process.cwd()}/build/openapi/package.json`);
const validator = load.resolve('@seriousme/openapi-schema-validator');
const loadMore = createRequire(validator);
const Ajv = loadMore('ajv/dist/2020').default;
export const { Validator } = await import(pathToFileURL(validator));

const ROOT = 'https://doorman.invalid/description';
const copy = (value) => JSON.parse(JSON.stringify(value));

export const description = JSON.parse(readFileSync('server/pages/openapi.json', 'utf8'));

let faults = 0;
export function fault(...words) {
  console.log(...words);
  faults++;
}

export function finish() {
  console.log(`${faults} faults`);
  process.exitCode = faults > 0 ? 1 : 0;
}

// Returns the object that a reference names, or the object itself without a reference.
export function resolve(object) {
  if (!object.$ref) return object;
  return object.$ref.slice(2).split('/').reduce((at, key) => at[key], description);
}

// Returns [path, verb, operation, responses] of each operation. `responses` has no references.
export function operations() {
  return Object.entries(description.paths).flatMap(([path, item]) =>
    ['get', 'post'].filter((verb) => item[verb]).map((verb) => [
      path, verb, item[verb], Object.fromEntries(Object.entries(item[verb].responses)
        .map(([code, response]) => [code, resolve(response)])),
    ]));
}

// A client ignores fields that it does not know, but the tests want to know all fields. So an
// object may have only the fields of its schema.
function refuseOtherFields(schema) {
  if (Array.isArray(schema)) schema.forEach(refuseOtherFields);
  if (schema === null || typeof schema !== 'object') return;
  if (schema.type === 'object' && schema.properties) schema.additionalProperties = false;
  Object.values(schema).forEach(refuseOtherFields);
}

const schemas = copy(description.components.schemas);
refuseOtherFields(schemas);
const ajv = new Ajv({
  strict: true, strictTypes: false, strictRequired: false, allErrors: true,
});
loadMore('ajv-formats').default(ajv);
ajv.addKeyword('components');
ajv.addSchema({ $id: ROOT, components: { schemas } });

// Returns a function that checks a value against a schema of the description. The function returns
// a text with the errors: '' if there are none.
export function checker(schema) {
  const whole = JSON.stringify(schema).replaceAll('"#/components/', `"${ROOT}#/components/`);
  const check = ajv.compile(JSON.parse(whole));
  return (value) => (check(value) ? '' : ajv.errorsText(check.errors));
}

// The fields of the schemas that any value has had.
const seen = new Set();

// Notes which fields of the schemas a value has. Precondition: the value is valid.
export function noteFields(schema, value, name = '') {
  if (schema.$ref) name = schema.$ref.split('/').pop();
  const { oneOf = [], items, properties = {} } = resolve(schema);
  for (const each of oneOf) if (each.$ref && !checker(each)(value)) noteFields(each, value);
  if (items) for (const item of value) noteFields(items, item, name);
  for (const [key, field] of Object.entries(properties)) {
    if (value[key] === undefined) continue;
    seen.add(`${name}.${key}`);
    noteFields(field, value[key], `${name}.${key}`);
  }
}

// Returns the fields that no value has had, of a schema and of all schemas that it refers to.
export function fieldsNotSeen(schema, name = '', visited = new Set()) {
  if (schema.$ref) name = schema.$ref.split('/').pop();
  if (schema.$ref && visited.has(name)) return [];
  if (schema.$ref) visited.add(name);
  const { oneOf = [], items, properties = {} } = resolve(schema);
  return [
    ...oneOf.flatMap((each) => (each.$ref ? fieldsNotSeen(each, name, visited) : [])),
    ...(items ? fieldsNotSeen(items, name, visited) : []),
    ...Object.entries(properties).flatMap(([key, field]) => [
      ...(seen.has(`${name}.${key}`) ? [] : [`${name}.${key}`]),
      ...fieldsNotSeen(field, `${name}.${key}`, visited),
    ]),
  ];
}
