// Exits with 1 and prints each diagnostic if the parser of the AsyncAPI project does not accept a document.
import { readFileSync } from 'node:fs';
import { AvroSchemaParser } from '@asyncapi/avro-schema-parser';
import { Parser } from '@asyncapi/parser';

const parser = new Parser();
parser.registerSchemaParser(AvroSchemaParser());
const { document, diagnostics } = await parser.parse(readFileSync(process.argv[2], 'utf8'));
for (const { severity, path, message } of diagnostics) console.log(severity, path.join('.'), message);
process.exit(document && diagnostics.length === 0 ? 0 : 1);
