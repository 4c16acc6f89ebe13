// The fields of a message of protobuf: [number, number or bytes] each.
function fields(bytes) {
  const out = [];
  let i = 0;
  const varint = () => {
    let value = 0, factor = 1;
    for (;;) {
      const b = bytes[i++];
      value += (b & 127) * factor;
      factor *= 128;
      if (b < 128) return value;
    }
  };
  while (i < bytes.length) {
    const tag = varint();
    if (tag % 8 === 0) out.push([tag >> 3, varint()]);
    else {
      const length = varint();
      out.push([tag >> 3, bytes.subarray(i, i + length)]);
      i += length;
    }
  }
  return out;
}

const first = (bytes, number) => (fields(bytes).find(([n]) => n === number) ?? [])[1];

// What details of an error say: their types, and their bytes.
export function read(details) {
  let retry = -1, policy = "";
  for (const { type, value } of details) {
    if (type.endsWith("google.rpc.RetryInfo")) retry = first(first(value, 1), 1) ?? 0;
    if (type.endsWith("google.rpc.QuotaFailure")) policy = new TextDecoder().decode(first(first(value, 1), 1));
  }
  return { retry, policy };
}

// The details of a google.rpc.Status.
export const detailsOf = (status) =>
  fields(status).filter(([n]) => n === 3).map(([, any]) => ({ type: new TextDecoder().decode(first(any, 1)), value: first(any, 2) }));
