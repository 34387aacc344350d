/** JSON, durations and errors: what may be recorded, and what is said of what may not. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { BadDuration, StepError, Unencodable } from "abide";

import { asStepError } from "../dist/errors.js";
import { canonicalText } from "../dist/hashing.js";
import { dumps, loads, PAYLOAD_BYTES_MAX, plain, written } from "../dist/jsons.js";
import { durationMs, moment, readInstant, writeInstant } from "../dist/times.js";

test("whole numbers that a double cannot hold are exact, and others are numbers", () => {
  const text = ' {"a" : [ -9223372036854775808 , 1.5e3,{} , "x,\\\\\\"]" ], "b":9007199254740993 , "c":[], "d":1234567890123456} ';
  const value = { a: [-9223372036854775808n, 1500, {}, 'x,\\"]'], b: 9007199254740993n, c: [], d: 1234567890123456 };
  assert.deepEqual(loads(text), value);
  assert.deepEqual(loads(dumps(value)), value);
  assert.equal(loads("18446744073709551616"), 2 ** 64, "beyond 64 bits it is the nearest number");
  assert.deepEqual(Object.keys(loads('{"__proto__": 12345678901234567890}') as object), ["__proto__"]);
  for (const bad of ['{"a": 12345678901234567890,}', "[12345678901234567890", "1234567890123456 7", ""]) {
    assert.throws(() => loads(bad), SyntaxError, bad);
  }
  assert.equal(dumps({ n: 1n, when: new Date(0), not: undefined, list: [undefined] }), '{"n":1,"when":"1970-01-01T00:00:00.000Z","list":[null]}');
});

test("keys are in the order of their code points, which is not that of UTF-16", () => {
  assert.equal(canonicalText({ "\u{1f600}": 1, "\uff5e": 2, a: 3 }), '{"a":3,"\uff5e":2,"\u{1f600}":1}');
});

test("what JSON would change without a word is refused, with what was found", () => {
  const cycle: { big: bigint; self?: unknown } = { big: 1n };
  cycle.self = cycle;
  const refused: [unknown, RegExp][] = [
    [NaN, /found NaN/],
    [{ a: [Infinity] }, /found Infinity/],
    [new Map([[1, 2]]), /found a Map; make an array or an object of it/],
    [{ then: Promise.resolve(1) }, /found a Promise \(is an await missing\?\)/],
    [() => 1, /found the function/],
    [Symbol("x"), /JSON/],
    ["half \ud83d", /half of a surrogate pair/],
    [{ in: [{ "half \ud83d": 1 }] }, /half of a surrogate pair/],
    [2n ** 64n, /expected a whole number of 64 bits, found one of 65/],
    [{ a: [-(2n ** 63n) - 1n] }, /expected a whole number of 64 bits/],
    [10n ** 400n, /expected a whole number of 64 bits/],
    [{ toJSON: () => { throw null; } }, /has no JSON form: null/],
    [cycle, /circular/],
    [new Uint8Array(2), /found an? Uint8Array/],
    [new Error("no"), /found an Error/],
  ];
  for (const [value, said] of refused) {
    assert.throws(() => plain("the value", value), (error) => {
      assert.ok(error instanceof Unencodable && error instanceof StepError);
      assert.equal(error.code, "unencodable");
      assert.match(error.message, said);
      return true;
    });
  }
  assert.throws(
    () => plain("the value", "x".repeat(PAYLOAD_BYTES_MAX)),
    (error) => error instanceof StepError && error.code === "too_large" && !error.retryable,
  );
  assert.equal(plain("nothing", undefined), null);
});

test("durations are milliseconds or a number with a unit", () => {
  const durations = ["250ms", "30s", "5m", "2h", "14d", "1w", "1.5s", 7, 0] as const;
  const expected = [250, 30_000, 300_000, 7_200_000, 1_209_600_000, 604_800_000, 1_500, 7, 0];
  assert.deepEqual(durations.map(durationMs), expected);
  for (const bad of ["30", "s", "-1s", "1y", "", -1, NaN, null, undefined] as never[]) {
    assert.throws(() => durationMs(bad), (error) => error instanceof BadDuration && /expected milliseconds, or text like "30s"/.test(error.message));
  }
  assert.deepEqual(moment(new Date(1_767_225_600_125)), { at: "2026-01-01T00:00:00.125Z" });
  assert.throws(() => moment(new Date("no")), BadDuration);
  assert.equal(readInstant(writeInstant(1_767_225_600_125)), 1_767_225_600_125);
  assert.equal(readInstant("2026-01-01T01:00:00.1+01:00"), 1_767_225_600_100);
});

test("anything that is thrown becomes an error that tells where it came from", () => {
  const found = asStepError(new TypeError("fetch failed", { cause: new Error("connect ECONNREFUSED") }));
  assert.deepEqual([found.code, found.message, found.retryable], ["error", "TypeError: fetch failed: connect ECONNREFUSED", true]);
  assert.match((found.details as { traceback: string }).traceback, /jsons\.test/);
  assert.match(asStepError("text").message, /expected an Error to be thrown, found "text"/);
  const broken = new Error("x");
  Object.defineProperty(broken, "stack", { get: () => { throw new Error("no stack"); } });
  assert.match(asStepError(broken).message, /what was thrown cannot be told: no stack/);
  const half = new StepError("half \ud83d", { code: "half \ud83d", details: { "half \ud83d": 1n << 80n } });
  assert.deepEqual([half.info().code, half.info().message], ["half \ufffd", "half \ufffd"]);
  assert.match((written(half).details as { unencodable: string }).unencodable, /the error's details has no JSON form/);
  const long = new StepError(`${"é".repeat(9_000)}`).info().message;
  assert.equal(Buffer.byteLength(long), 16 * 1024);
});
