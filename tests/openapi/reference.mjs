// Compares server/pages/openapi.json with the reference of the protocol, docs/protocol.md: the
// examples, the tables of the fields, the reasons and the errors. They must be equal, so that
// neither changes without the other.
//
//     node tests/openapi/reference.mjs

import { isDeepStrictEqual } from 'node:util';
import { readFileSync } from 'node:fs';
import { checker, description, fault, finish, operations, resolve } from './description.mjs';

const page = readFileSync('docs/protocol.md', 'utf8');
const { schemas } = description.components;

// ---- examples

// The blocks "```json KIND" of the page. A GET has no message, and lines as its response.
const all = [...page.matchAll(/^```json (\S+)(.*)\n([^]*?)\n```/gm)];
const lines = all.filter(([, kind, to]) => kind === 'response' && to === ' get')
  .flatMap(([, , , text]) => text.split('\n').map((line) => JSON.parse(line)));
const blocks = all.filter(([, , to]) => to !== ' get')
  .map(([, kind, , text]) => ({ kind, value: JSON.parse(text) }));
const pairs = blocks.filter(({ kind }) => kind === 'request')
  .map((request) => [request.value, blocks[blocks.indexOf(request) + 1].value]);

const checkRequest = checker({ $ref: '#/components/schemas/RequestMessage' });
const checkResponse = checker({ $ref: '#/components/schemas/ResponseMessage' });
const checkError = checker({ $ref: '#/components/schemas/Error' });
const checkConfiguration = checker({ $ref: '#/components/schemas/Configuration' });

const checkLine = checker({ $ref: '#/components/schemas/CounterLine' });
for (const line of lines) {
  const errors = checkLine(line);
  if (errors) fault('the schema refuses a line:', JSON.stringify(line), errors);
}

// A request that gets an error does not fit its schema, and any other request does.
function checkPair([request, response]) {
  const errors = checkRequest(request);
  const text = JSON.stringify(request);
  if (response.error && !errors) fault('the schema allows a refused request:', text);
  if (!response.error && errors) fault('the schema refuses a request:', text, errors);
  const bad = (response.error ? checkError : checkResponse)(response);
  if (bad) fault('the schema refuses a response:', JSON.stringify(response), bad);
}

// Whether the page has this example, as a whole message or without its method.
function isOnPage(value) {
  return pairs.flat().some((message) =>
    isDeepStrictEqual(message, value) ||
    isDeepStrictEqual(Object.values(message)[0], value));
}

function checkExamples(where, { content }) {
  const examples = Object.entries(content['application/json']?.examples ?? {});
  const check = checker(content['application/json']?.schema ?? true);
  for (const [name, { value }] of examples) {
    if (check(value)) fault(where, name, 'does not fit its schema:', check(value));
    if (!isOnPage(value)) fault(where, name, 'is not on the page:', JSON.stringify(value));
  }
  return examples.length;
}

pairs.forEach(checkPair);
if (pairs.length < 12) fault('the page has only', pairs.length, 'examples');
for (const { kind, value } of blocks) {
  if (kind === 'configuration' && checkConfiguration(value)) fault(checkConfiguration(value));
}
// The paths of messages have examples, which protocol_test.c sends.
const isMessage = ({ tags }) => tags.includes('protocol') || tags.includes('permits');
for (const [path, verb, operation, responses] of operations()) {
  const needs = verb === 'post' && isMessage(operation);
  if (needs && !checkExamples(path, operation.requestBody)) fault(path, 'has no example');
  for (const [code, response] of Object.entries(responses)) {
    const count = checkExamples(`${path} ${code}`, response);
    if (needs && code === '200' && !count) fault(path, 'has no example of a response');
  }
}

// ---- tables

// The tables of the page are lists of rows. A row is a list of cells. The first row is the head.
const tables = page.split(/\n\n+/).filter((part) => part.startsWith('| '))
  .map((part) => part.split('\n').filter((line) => /^\| (?!---)/.test(line))
    .map((line) => line.split(/ *\| */).slice(1, -1).map((cell) => cell.trim())));
const tablesWith = (...head) =>
  tables.filter(([first]) => head.every((cell, index) => first[index].match(cell)));

const TYPES = { list: 'array', lease: 'object', object: 'object', string: 'string',
  number: 'number', integer: 'integer', boolean: 'boolean' };
const name = (cell) => cell.replaceAll('`', '');

// Returns the schema of a field such as "resource[].wants", and whether the field is required.
function fieldOf(schema, path) {
  const [key, ...rest] = path.split(/[.]/);
  const field = resolve(schema).properties?.[key.replace('[]', '')];
  if (!field) return {};
  if (rest.length > 0) return fieldOf(resolve(field).items, rest.join('.'));
  return { field, required: (resolve(schema).required ?? []).includes(key.replace('[]', '')) };
}

// Only the tables of requests say which fields are required.
const isRequest = (schemaName) => /Request$|^HeldLease$/.test(schemaName);

// Compares one row with its field in a schema.
function checkRow(schemaName, [cell, type, meaning]) {
  const { field, required } = fieldOf(schemas[schemaName], name(cell));
  const where = `${schemaName}.${name(cell)}:`;
  if (!field) return fault(where, 'is only on the page');
  const target = resolve(field);
  const words = type.split(', ');
  const word = (text) => words.find((each) => each.startsWith(text));
  const list = type.match(/list of (\d+) to (\d+) strings/);
  const value = word('default')?.split(' ')[1];
  if (target.type !== TYPES[words[0].split(' ')[0]]) fault(where, 'another type:', target.type);
  if (list && (`${target.minItems},${target.maxItems}` !== `${list[1]},${list[2]}` ||
      resolve(target.items).type !== 'string')) fault(where, 'another list');
  const isWrong = isRequest(schemaName) && required !== words.includes('required');
  if (isWrong) fault(where, 'required:', required);
  if (value !== undefined && String(field.default) !== value) fault(where, 'default', value);
  if (value === undefined && field.default !== undefined) fault(where, 'the page has no default');
  if (meaning && field.description !== meaning) {
    fault(where, `\n  page:        ${meaning}\n  description: ${field.description}`);
  }
}

// Compares a table with schemas. `others` are the fields that another part of the page has.
function checkTable(table, schemaNames, { rows = () => true, others = [] } = {}) {
  const used = table?.slice(1).filter(rows) ?? [];
  if (used.length === 0) fault('no table for', schemaNames[0]);
  for (const row of used) checkRow(schemaNames[0], row);
  const known = [...others, ...used.map(([cell]) => name(cell).split('.').pop().replace('[]', ''))];
  for (const schemaName of schemaNames) {
    for (const key of Object.keys(schemas[schemaName].properties)) {
      if (!known.includes(key)) fault(`${schemaName}.${key} is not on the page`);
    }
  }
}

const [request, lease, response] = tablesWith(/^field$/, /^type$/);
const [serverRequest] = tablesWith(/^field of the request$/);
const [serverResponse] = tablesWith(/^field of the response$/);
checkTable(request, ['GetCapacityRequest', 'CapacityRequest']);
checkTable(lease, ['Lease']);
checkTable(lease, ['HeldLease'], { rows: ([, type]) => !type.includes('in `gets`') });
checkTable(response, ['CapacityResponse']);
checkTable(tablesWith(/^field of `mastership`$/)[0], ['Mastership']);
checkTable(serverRequest, ['GetServerCapacityRequest', 'ServerCapacityRequest'],
  { others: ['resource', 'resource_id'] });
checkTable(serverResponse, ['ServerCapacityResponse'],
  { others: Object.keys(schemas.CapacityResponse.properties) });

// ---- names

function checkNames(what, rows, names) {
  const left = rows.map(([cell]) => name(cell)).sort();
  if (!isDeepStrictEqual(left, [...names].sort())) fault(`other ${what}: ${left}`);
}

const [errors] = tablesWith(/^code$/, /^meaning$/, /^HTTP$/);
const { code } = schemas.Error.properties.error.properties;
const [reasons] = tablesWith(/^reason$/);
const [permitReasons] = tablesWith(/^reason of a permit$/);
const [methods] = tablesWith(/^method$/, /^sender$/);
checkNames('codes', errors.slice(1), code.enum);
checkNames('reasons', reasons.slice(1), schemas.Refusal.properties.reason.enum);
checkNames('reasons of a permit', permitReasons.slice(1), schemas.PermitReason.enum);
checkNames('methods', methods.slice(1), Object.keys(schemas.RequestMessage.properties));
for (const [cell, meaning] of reasons.slice(1)) {
  const text = `${name(cell)}: ${meaning}.`;
  if (!schemas.Refusal.properties.reason.description.includes(text)) fault('no text:', text);
}

// Each error of the page is a response to each method that can have it.
const responses = Object.fromEntries(operations().map(([path, , , all]) => [path, all]));
for (const [cell, , status] of errors.slice(1)) {
  const all = name(cell) === 'NOT_FOUND' ? ['/v1'] :
    ['/v1', ...methods.slice(1).map(([method]) => `/v1/${name(method)}`)];
  for (const path of all) {
    const text = responses[path]?.[status]?.description ?? '';
    if (!text.startsWith(`${name(cell)}: `)) fault(path, 'does not have', status, cell);
  }
}
finish();
