// Reads {"schema": ..., "documents": [...]} and prints for each document the faults that ajv finds,
// as an array of texts. In strict mode, ajv refuses unknown words in a schema.
const Ajv = require("ajv");

const { schema, documents } = JSON.parse(require("fs").readFileSync(0, "utf8"));
const validate = new Ajv({ strict: true, strictTypes: false, strictRequired: false }).compile(schema);
const faults = documents.map((document) =>
  validate(document) ? [] : validate.errors.map((e) => `${e.instancePath} ${e.message}`),
);
process.stdout.write(JSON.stringify(faults));
