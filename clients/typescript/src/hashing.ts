/**
 * Hashes that are the same in every SDK: of names, of definitions, and of what effects are about. They must equal the Rust
 * SDK's bit for bit, because a run's ledger has them. `clients/vectors/hashes.json` pins them.
 */

const U64 = (1n << 64n) - 1n;

/** Spreads the bits of a 64-bit value over all positions. */
export function mix(value: bigint): bigint {
  value = ((value ^ (value >> 30n)) * 0xbf58476d1ce4e5b9n) & U64;
  value = ((value ^ (value >> 27n)) * 0x94d049bb133111ebn) & U64;
  return value ^ (value >> 31n);
}

/** A 64-bit hash that never changes between releases: eight bytes at a time, mixed. */
export function stableHash(text: string): bigint {
  const data = Buffer.from(text);
  let value = 0x9e3779b97f4a7c15n ^ BigInt(data.length);
  const whole = data.length - (data.length % 8);
  for (let at = 0; at < whole; at += 8) value = mix(value ^ data.readBigUInt64LE(at));
  let rest = 0n;
  for (let at = data.length - 1; at >= whole; at -= 1) rest = (rest << 8n) | BigInt(data[at] ?? 0);
  return mix(value ^ rest);
}

/** The hash of a JSON value: the same for documents that differ only in white space and the order of keys. */
export function canonicalHash(value: unknown): bigint {
  return stableHash(canonicalText(value));
}

/** The hash that the ledger keeps of an input; never 0, which stands for none. */
export function inputHash(value: unknown): bigint {
  return canonicalHash(value) || 1n;
}

/** A hash as it is written. */
export function hex16(value: bigint): string {
  return value.toString(16).padStart(16, "0");
}

/** JSON with sorted keys, without white space, and with numbers as the engine writes them. */
export function canonicalText(value: unknown): string {
  if (typeof value === "bigint") return value.toString();
  if (Array.isArray(value)) return `[${value.map(canonicalText).join(",")}]`;
  if (typeof value !== "object" || value === null) return JSON.stringify(value);
  const fields = Object.entries(value).sort(([one], [other]) => byCodePoint(one, other));
  return `{${fields.map(([key, found]) => `${JSON.stringify(key)}:${canonicalText(found)}`).join(",")}}`;
}

/** The order of UTF-8, in which characters beyond 16 bits come last; that of JavaScript's own texts differs. */
function byCodePoint(one: string, other: string): number {
  return Buffer.compare(Buffer.from(one), Buffer.from(other));
}
