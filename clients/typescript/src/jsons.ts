/**
 * JSON in and out. What is recorded is what a replay will see, so values are taken through JSON at once; whole numbers that
 * JavaScript cannot hold are read and written as `bigint`, because other workers' 64-bit numbers must pass unchanged.
 */

import { describe, saying, type StepError, terminal, Unencodable } from "./errors.js";
import type { ErrorInfo } from "./protocol.js";

export const PAYLOAD_BYTES_MAX = 4 * 1024 * 1024;
const DEPTH_MAX = 512;

/** Compact JSON text. */
export function dumps(value: unknown): string {
  let big = false;
  const text = JSON.stringify(value, (key, found: unknown) => {
    checkText(key);
    if (typeof found === "bigint") {
      checkBits(found);
      big = true;
      return 0;
    }
    return checked(found);
  }) as string | undefined;
  return big ? write(value) : (text ?? "null");
}

/** The value of a JSON text. */
export function loads(text: string): unknown {
  // Fifteen digits are always exact. What looks like more is read with care.
  return /[0-9]{16}/.test(text) ? new Reader(text).all() : (JSON.parse(text) as unknown);
}

/**
 * Compact JSON text, as it is sent.
 *
 * @throws {Unencodable} it has no JSON form.
 */
export function encode(what: string, value: unknown): string {
  try {
    return dumps(value);
  } catch (error) {
    throw new Unencodable(`${what} has no JSON form: ${saying(error)}`, { cause: error });
  }
}

/**
 * A value as it comes back from JSON; `undefined` is null.
 *
 * @throws {StepError} it has no JSON form, or is too large.
 */
export function plain(what: string, value: unknown): unknown {
  if (value === undefined || value === null) return null;
  if (typeof value === "boolean") return value;
  const text = encode(what, value);
  const size = Buffer.byteLength(text);
  if (size > PAYLOAD_BYTES_MAX) {
    throw terminal("too_large", `${what} is too large: expected at most ${PAYLOAD_BYTES_MAX} bytes, found ${size}`);
  }
  try {
    return loads(text);
  } catch (error) {
    throw new Unencodable(`${what} has no JSON form: ${saying(error)}`, { cause: error });
  }
}

/** An error as it is written, also where its details have no JSON form. */
export function written(error: StepError): ErrorInfo {
  const info = error.info();
  try {
    return plain("the error's details", info) as ErrorInfo;
  } catch (unencodable) {
    const { code, message } = unencodable as StepError;
    return { ...info, details: { [code]: message } };
  }
}

function checkText(text: string): void {
  if (!text.isWellFormed()) throw new TypeError("expected text, found half of a surrogate pair in it");
}

/** The engine makes the nearest number of what has more. */
function checkBits(value: bigint): void {
  if (BigInt.asIntN(64, value) === value || BigInt.asUintN(64, value) === value) return;
  const bits = (value < 0n ? -value : value).toString(2).length;
  throw new TypeError(`expected a whole number of 64 bits, found one of ${bits}; make text of it`);
}

/** What JSON would drop or change without a word is refused. */
function checked(value: unknown): unknown {
  const kind = typeof value;
  if (kind === "string") {
    checkText(value as string);
  } else if (kind === "number") {
    if (!Number.isFinite(value)) throw new TypeError(`expected a number that JSON has, found ${String(value)}`);
  } else if (kind === "function" || kind === "symbol") {
    throw new TypeError(`expected a value that JSON has, found ${describe(value)}`);
  } else if (typeof value === "object" && value !== null && isLossy(value)) {
    throw new TypeError(`expected a value that JSON has, found ${describe(value)}; make an array or an object of it`);
  }
  return value;
}

const LOSSY = [Map, Set, Promise, WeakMap, WeakSet, RegExp, Error, ArrayBuffer];

function isLossy(value: object): boolean {
  return ArrayBuffer.isView(value) || LOSSY.some((one) => value instanceof one);
}

/** Text of a value that has numbers which `JSON.stringify` does not write. */
function write(value: unknown): string {
  if (typeof value === "bigint") return value.toString();
  if (Array.isArray(value)) return `[${value.map((item) => write(item === undefined ? null : item)).join(",")}]`;
  if (typeof value !== "object" || value === null) return JSON.stringify(value);
  if ("toJSON" in value && typeof value.toJSON === "function") return write(value.toJSON());
  const fields = Object.entries(value).filter(([, found]) => found !== undefined);
  return `{${fields.map(([key, found]) => `${JSON.stringify(key)}:${write(found)}`).join(",")}}`;
}

/** Reads JSON whose whole numbers may be too large for a `number`. */
class Reader {
  private at = 0;

  constructor(private readonly text: string) {}

  all(): unknown {
    // What is no JSON is refused by who knows it best, with a message that says where.
    JSON.parse(this.text);
    return this.value(0);
  }

  private value(depth: number): unknown {
    if (depth > DEPTH_MAX) throw new SyntaxError(`expected JSON of at most ${DEPTH_MAX} levels, found more`);
    this.space();
    switch (this.text[this.at]) {
      case "{":
        return this.object(depth);
      case "[":
        return this.array(depth);
      case '"':
        return this.string();
      default:
        return this.scalar();
    }
  }

  private space(): void {
    while (" \t\n\r".includes(this.text[this.at] ?? "x")) this.at += 1;
  }

  private object(depth: number): unknown {
    const found: Record<string, unknown> = {};
    this.at += 1;
    while (this.hasMore("}")) {
      const key = this.string();
      this.space();
      this.at += 1;
      const value = this.value(depth + 1);
      // A key like any other, also where it is `__proto__`.
      Object.defineProperty(found, key, { value, enumerable: true, writable: true, configurable: true });
    }
    return found;
  }

  private array(depth: number): unknown {
    const found: unknown[] = [];
    this.at += 1;
    while (this.hasMore("]")) found.push(this.value(depth + 1));
    return found;
  }

  /** Goes to the next member, or over the end. */
  private hasMore(end: string): boolean {
    this.space();
    if (this.text[this.at] === ",") this.at += 1;
    this.space();
    if (this.text[this.at] !== end) return true;
    this.at += 1;
    return false;
  }

  private string(): string {
    const from = this.at;
    this.at += 1;
    while (this.text[this.at] !== '"') this.at += this.text[this.at] === "\\" ? 2 : 1;
    this.at += 1;
    return JSON.parse(this.text.slice(from, this.at)) as string;
  }

  private scalar(): unknown {
    const from = this.at;
    while (/[-+.0-9A-Za-z]/.test(this.text[this.at] ?? "")) this.at += 1;
    const text = this.text.slice(from, this.at);
    if (!/^-?[0-9]+$/.test(text)) return JSON.parse(text) as unknown;
    const number = Number(text);
    if (Number.isSafeInteger(number)) return number;
    const exact = BigInt(text);
    // Beyond 64 bits it is what the engine makes of it: the nearest number that it has.
    return BigInt.asIntN(64, exact) === exact || BigInt.asUintN(64, exact) === exact ? exact : number;
  }
}
