// Checks server/pages/openapi.json with a public validator, and each schema in it against the meta-schema
// of JSON Schema 2020-12.
//
//     node tests/openapi/validate.mjs

import { readFileSync } from 'node:fs';
import { Validator, checker, description, fault, finish } from './description.mjs';

const validator = new Validator();
const result = await validator.validate(JSON.parse(JSON.stringify(description)));
if (!result.valid) fault(JSON.stringify(result.errors, null, 1));
if (validator.version !== '3.1') fault('the version is not 3.1:', validator.version);
validator.resolveRefs(); // throws if a reference leads nowhere

for (const name of Object.keys(description.components.schemas)) {
  checker({ $ref: `#/components/schemas/${name}` });
}

const version = readFileSync('doorman.h', 'utf8').match(/^#define DOORMAN_VERSION "(.*)"$/m)[1];
if (description.info.version !== version) fault('info.version is not', version);

// The build embeds only characters of ASCII.
const text = readFileSync('server/pages/openapi.json', 'utf8');
if (/[^\n -~]/.test(text)) fault('a character is not ASCII');
finish();
