// Asks three times as anna and once as never with @grpc/grpc-js, and prints what the refusals say.
import { createRequire } from "node:module";
import { detailsOf, read } from "./details.mjs";

const [modules, address] = process.argv.slice(2);
const grpc = createRequire(modules + "/")("@grpc/grpc-js");
const client = new grpc.Client(address, grpc.credentials.createInsecure());
const asIs = (bytes) => bytes;

function ask(user) {
  const metadata = new grpc.Metadata();
  metadata.set("user", user);
  return new Promise((done) =>
    client.makeUnaryRequest("/grpc.health.v1.Health/Check", asIs, asIs, Buffer.alloc(0), metadata, (error) => done(error)));
}

function told(error) {
  const [status] = error.metadata.get("grpc-status-details-bin");
  return {
    code: String(error.code),
    ...read(detailsOf(status)),
    pushback: error.metadata.get("grpc-retry-pushback-ms").join(),
    after: error.metadata.get("retry-after").join(),
  };
}

for (let i = 0; i < 2; i++) if (await ask("anna")) throw new Error("refused");
console.log(JSON.stringify([told(await ask("anna")), told(await ask("never"))]));
client.close();
