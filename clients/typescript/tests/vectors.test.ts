/** The conformance vectors that all SDKs pass. */

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  awaitSignals,
  child,
  continueAsNew,
  done,
  nextStep,
  Problem,
  replay,
  sleep,
  spawn,
  StepError,
  stop,
  terminal,
  Worker,
  workflow,
} from "abide";

import { canonicalHash, canonicalText, hex16, inputHash, stableHash } from "../dist/hashing.js";
import { loads, plain } from "../dist/jsons.js";
import { claimNumber, Ledger } from "../dist/ledger.js";
import { type Executable, type Link, setAside } from "../dist/link.js";
import type { Attempt, Entry, LedgerEntry, ProblemBody } from "../dist/protocol.js";
import { retryMessage } from "../dist/retry.js";
import { readInstant } from "../dist/times.js";
import { tokenHash } from "../dist/worker.js";
import { complete, failed, identity } from "../dist/workflow.js";
import { type Case, Script } from "./script.js";
import { vectors } from "./support.js";

const RUN = "run_0193f2c4a1b20000000000000000000a";
const CHILD = "run_0193f2c4a1b20000000000000000000b";

/** An attempt as a worker gets it, with what the case says. */
function attemptOf(told: Case): Attempt {
  const ledger = (told.ledger ?? []).map((entry) => ({ ...entry, visit: entry.visit ?? 1, at: entry.at ?? told.clock }));
  return {
    claim: `claim_${RUN.slice(4)}_2`,
    lease_until: told.clock,
    run: RUN,
    workflow: "script",
    version: 1,
    queue: "default",
    step: "run",
    epoch: 0,
    visit: 1,
    attempt: 1,
    retries: 0,
    reclaims: 0,
    input: null,
    state: null,
    signals: [],
    children: [],
    ledger,
    next_op: ledger.length + 1,
    ended: Math.max(0, ...ledger.map((entry) => entry.end?.ended ?? 0)),
    begun_at: "2026-11-16T12:00:00.000Z",
    cancelling: false,
    ...told.attempt,
  };
}

interface Found {
  written: Entry[];
  calls: Script["calls"];
  outcome?: Record<string, any>;
  fail?: object;
}

/** Executes an attempt of a case. Everything is recorded at once, and the clock stands still. */
async function attempted(told: Case, script: Script, code: Executable) {
  const written: Entry[] = [];
  const children: object[] = [];
  const link: Link = {
    lost: new AbortController().signal,
    now: () => readInstant(told.clock),
    progress: () => assert.fail("nobody says so here"),
    startChild: async (key, start) => {
      children.push({ key, start });
      return CHILD;
    },
    record: async (entries) => {
      written.push(...(plain("entries", entries) as Entry[]));
      script.durable = written.length;
    },
  };
  const said = plain("what is said", await code.execute(attemptOf(told), link)) as Record<string, any>;
  const { entries = [], ...end } = said["complete"] ?? said["fail"];
  const { error, set_aside, reopen = [], retry } = end;
  const fail = "fail" in said && {
    ...errorOf(error),
    ...(set_aside ? { set_aside } : {}),
    ...(reopen.length > 0 ? { reopen } : {}),
    retried: retry !== undefined,
  };
  return { written: [...written, ...entries], calls: script.calls, children, fail, complete: end };
}

/** What all SDKs say alike of an error. */
function errorOf({ code, retryable }: { code: string; retryable: boolean }) {
  return { code, retryable };
}

/** What the SDK does in a case of a function. */
async function replayed(told: Case): Promise<Found> {
  const script = new Script(told);
  const { written, calls, fail, complete: end } = await attempted(told, script, script.workflow());
  return { written, calls, ...(fail === false ? { outcome: end.outcome } : { fail }) };
}

/** What the SDK does in a case of a machine. */
async function stepped(told: Case): Promise<object> {
  const script = new Script(told);
  const { fail, complete: end, ...found } = await attempted(told, script, script.machine());
  if (fail !== false) return { ...found, fail };
  return { ...found, complete: "handled" in end ? { ...end, handled: errorOf(end.handled) } : end };
}

test("hashes", () => {
  const cases = vectors<any>("hashes.json");
  for (const { text, hash } of cases.stable) assert.equal(hex16(stableHash(text)), hash, text);
  for (const { json, canonical, hash } of cases.canonical) {
    assert.equal(canonicalText(loads(json)), canonical);
    assert.equal(hex16(canonicalHash(loads(json))), hash, json);
  }
  for (const { input, hash } of cases.inputs) assert.equal(input === null ? null : hex16(inputHash(input.value)), hash);
  for (const { parts, fingerprint } of cases.fingerprints) assert.equal(hex16(stableHash(parts.join("\0"))), fingerprint);
  for (const { attempt, key, idempotency_key } of cases.idempotency_keys) {
    assert.equal(`${identity(attempt)}/${key}`, idempotency_key);
  }
  for (const { token, token_hash } of cases.token_hashes) assert.equal(tokenHash(token), token_hash);
});

test("replay", async (t) => {
  const cases = vectors<Case[]>("replay.json");
  assert.ok(cases.length > 50);
  for (const told of cases) {
    await t.test(told.name, async () => assert.deepEqual(await replayed(told), told.expect));
  }
});

test("machines", async (t) => {
  const cases = vectors<Case[]>("machines.json");
  assert.ok(cases.length > 10);
  for (const told of cases) {
    await t.test(told.name, async () => assert.deepEqual(await stepped(told), told.expect));
  }
});

/** `begin`, `intend then begin`, `repeat`, `intend then repeat`, `in doubt`, `rest`, `value` or `error`. */
async function policy(told: { policy: string; recorded: { entry?: any } }): Promise<string> {
  const { entry } = told.recorded;
  const ledger: LedgerEntry[] = entry === undefined ? [] : [{ op: 1, key: "e", ...entry }];
  if (entry !== undefined) entry.what.effect.policy = told.policy;
  const script = [{ effect: { name: "e", policy: told.policy }, as: "v", catch: "v" }, { return: { $: "v" } }];
  const controls = [{ rule: "allow" as const }];
  const found = await replayed({
    clock: "2026-11-16T12:00:10.000Z",
    script,
    ledger,
    controls,
    effects: { e: { value: "called" } },
  });
  const [call] = found.calls;
  if (call !== undefined) {
    const verb = entry === undefined ? "begin" : "repeat";
    return call.durable > 0 ? `intend then ${verb}` : verb;
  }
  if (found.outcome !== undefined && "suspend" in found.outcome) return entry.what.effect.retry_at ? "rest" : "in doubt";
  return found.outcome?.["done"].result === "recorded" ? "value" : "error";
}

test("policies", async (t) => {
  const cases = vectors<any[]>("policies.json");
  const policies = new Set(cases.map((told) => told.policy));
  assert.deepEqual(policies, new Set(["pure", "idempotent", "dedupe", "reconcile", "unsafe_once"]));
  for (const told of cases) {
    await t.test(`${told.policy}, ${told.recorded.name}`, async () => assert.equal(await policy(told), told.expect));
  }
});

/** The messages that this SDK makes, by the names that the vectors have for them. */
function messages(): Record<string, unknown> {
  const error = new StepError("no more", { code: "sold_out", retryable: false, details: { left: 0 } });
  const retry = retryMessage({ delay: 100, backoff: "constant", delayMax: "5s", jitterPercent: 10, retriesMax: 3 });
  const order = workflow("order", { version: 2 }, async () => {});
  const worker = new Worker("http://127.0.0.1:1", { workflows: [order], name: "w1", queues: ["default", "mail"] });
  const asks = worker as unknown as { work(most: number, waitMs: number): object };
  return {
    "outcome next": nextStep("ship", { n: 1 }).message,
    "outcome replay": replay({ n: 1 }, "1.5s").message,
    "outcome await": awaitSignals(["paid", "late"], null, { then: "ship", deadline: "60s" }).message,
    "outcome sleep": sleep("1m", { n: 1 }).message,
    "outcome spawn": spawn([child("part", 1, { key: "p1" })], "join", null, { join: { quorum: 1 } }).message,
    "outcome done": done([1]).message,
    "outcome stop": stop(error).message,
    "outcome continue_as_new": continueAsNew(2).message,
    "say complete": complete({ done: { result: 1 } }, []),
    "say fail": failed(error, [], retry, [3]),
    "say set aside": setAside(terminal("diverged", "the code does not fit").info()),
    "claim work": { ...asks.work(4, 20_000), token_hash: "0".repeat(32) },
    "start in a trace": child("order", null, { traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01" }),
    start: child("order", { n: 1 }, {
      version: 2,
      key: "k",
      onConflict: "reuse",
      queue: "mail",
      priority: -1,
      concurrency: { key: "c", limit: 2 },
      delay: "1s",
      deadline: "1h",
      labels: { team: "a" },
      deliveriesMax: 5,
    }),
  };
}

/** What this SDK only reads, it must read. */
function read(told: { shape: string; direction: string; json: any }): void {
  if (told.shape === "Problem") {
    const found = Problem.of(told.json as ProblemBody);
    const { code, status, detail } = told.json;
    assert.deepEqual({ code: found.code, status: found.status, detail: found.detail }, { code, status, detail });
  } else if (told.shape === "Claims" || told.shape === "Reported") {
    for (const attempt of told.json.claims as Attempt[]) {
      const ledger = new Ledger(attempt, "function");
      assert.equal(ledger.entries.length, attempt.ledger.filter((entry) => entry.visit === attempt.visit).length);
      assert.ok(claimNumber(attempt.claim) > 0);
    }
  } else {
    assert.ok(["request", "answer"].includes(told.direction));
  }
}

test("messages", () => {
  const made = messages();
  const cases = vectors<{ name: string; shape: string; direction: string; json: unknown }[]>("messages.json");
  for (const told of cases) {
    if (told.name in made) assert.deepEqual(plain("a message", made[told.name]), told.json, told.name);
    else read(told);
  }
  const names = new Set(cases.map((told) => told.name));
  assert.deepEqual(Object.keys(made).filter((name) => !names.has(name)), []);
});
