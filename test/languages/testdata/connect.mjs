// Asks three times as anna and once as never with @connectrpc/connect-node, and prints what the refusals
// say.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { read } from "./details.mjs";

const [modules, baseUrl, protocol, descriptors] = process.argv.slice(2);
const require = createRequire(modules + "/");
const { createClient } = require("@connectrpc/connect");
const { createConnectTransport, createGrpcTransport, createGrpcWebTransport } = require("@connectrpc/connect-node");
const { createFileRegistry, fromBinary } = require("@bufbuild/protobuf");
const { FileDescriptorSetSchema } = require("@bufbuild/protobuf/wkt");

const registry = createFileRegistry(fromBinary(FileDescriptorSetSchema, readFileSync(descriptors)));
const transport = {
  connect: () => createConnectTransport({ baseUrl, httpVersion: "1.1" }),
  web: () => createGrpcWebTransport({ baseUrl, httpVersion: "1.1" }),
  grpc: () => createGrpcTransport({ baseUrl }),
}[protocol]();
const client = createClient(registry.getService("grpc.health.v1.Health"), transport);

async function ask(user) {
  try {
    await client.check({}, { headers: { user } });
  } catch (error) {
    return error;
  }
}

const told = (error) => ({
  code: String(error.code),
  ...read(error.details),
  pushback: error.metadata.get("grpc-retry-pushback-ms") ?? "",
  after: error.metadata.get("retry-after") ?? "",
});

for (let i = 0; i < 2; i++) {
  const error = await ask("anna");
  if (error) throw error;
}
console.log(JSON.stringify([told(await ask("anna")), told(await ask("never"))]));
process.exit(0);
