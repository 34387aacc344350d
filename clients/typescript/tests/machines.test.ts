/** Machines: steps, outcomes and effects inside of steps. */

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  AbideError,
  allow,
  awaitSignals,
  child,
  done,
  machine,
  type MachineOptions,
  nextStep,
  type Problem,
  RunFailed,
  sleep,
  spawn,
  stop,
  workflow,
} from "abide";
import { crashEverywhere, TestEngine, type TestRun } from "abide/testing";

import { Gate } from "./support.js";

interface State {
  charged: number;
  paid?: boolean | null;
}

function order(calls: string[] = []) {
  return machine<number, State>("order", { retry: { delay: "1s", retriesMax: 2 } }, {
    charge: async (ctx) => {
      const charged = await ctx.effect("charge", ({ key }) => {
        calls.push(key);
        return ctx.input;
      });
      return nextStep("wait", { charged });
    },
    wait: async (ctx) => {
      const paid = ctx.signal<boolean>("paid");
      if (paid === undefined && !ctx.timedOut) return awaitSignals("paid", ctx.state, { deadline: "60s" });
      return sleep("5s", { ...ctx.state, paid: paid ?? null }, { then: "parts" });
    },
    parts: async (ctx) => spawn([1, 2].map((n) => child(part, n)), "end", ctx.state),
    end: async (ctx) => done({ ...ctx.state, parts: ctx.children.map((found) => found.result), by: ctx.wokenBy }),
  });
}

const part = workflow("part", async (_, n: number) => 10 * n);

test("steps follow their outcomes", async () => {
  const calls: string[] = [];
  const code = order(calls);
  const run = new TestEngine(code, part).start("order", 7);
  await run.engine.settle();
  await run.signal("paid", true);
  assert.deepEqual(await run.result(), { charged: 7, paid: true, parts: [10, 20], by: "children" });
  assert.deepEqual(calls, [`${run.id}-0-charge-1/charge`]);
  const late = (await new TestEngine(code, part).start("order", 7).result()) as State;
  assert.equal(late.paid, null, "the deadline came first");
});

test("a machine comes to the same end wherever its worker dies", async () => {
  const story = (run: TestRun<any>) => run.signal("paid", true);
  assert.ok((await crashEverywhere([order(), part], "order", 7, { story })) > 10);
});

test("errors are retried, answered, or end the run", async () => {
  const tried: number[] = [];
  const made = (options: MachineOptions) =>
    machine("breaks", { retry: { delay: "1s", retriesMax: 2 }, ...options }, {
      one: async (ctx) => {
        tried.push(ctx.attempt);
        throw new RangeError("no");
      },
    });
  await assert.rejects(new TestEngine(made({})).start("breaks").result(), RunFailed);
  assert.deepEqual(tried, [0, 1, 2]);
  const answered = made({ onError: async (error) => done(error.message) });
  assert.equal(await new TestEngine(answered).start("breaks").result(), "RangeError: no");
  const stopped = made({ onError: async (error) => stop(error) });
  await assert.rejects(new TestEngine(stopped).start("breaks").result(), /RangeError: no/);
});

test("the same key gives the same child wherever the worker dies", async () => {
  const kid = workflow("kid", async (_, n: number) => n);
  const parent = machine<null, string>("parent", {
    one: async (ctx) => nextStep("two", await ctx.startChild("kid", child(kid, 3))),
    two: async (ctx) => {
      const other = await ctx.startChild("kid", child(kid, 4));
      const conflict = await ctx.startChild("kid", child(kid, 5)).catch((error) => (error as Problem).code);
      return done([ctx.state, other, conflict, ctx.children[0]?.key]);
    },
  });
  assert.ok((await crashEverywhere([parent, kid], "parent")) > 3);
  const id = (n: number) => `run_${String(n).padStart(32, "0")}`;
  assert.deepEqual(await new TestEngine(parent, kid).start("parent").result(), [id(2), id(3), "child_conflict", "kid"]);
});

test("an effect in doubt gives the worker back", async () => {
  const once = machine("once", { controls: [allow()] }, {
    one: async (ctx) => done(await ctx.effect("wire", () => 1, { policy: "reconcile" })),
  });
  const engine = new TestEngine(once);
  engine.crash = { report: 2, when: "before" };
  const run = engine.start("once");
  await engine.settle();
  assert.equal(run.status, "in_doubt");
  await run.resolve("wire", { value: 5 });
  assert.equal(await run.result(), 5);
});

test("an effect that rests gives the worker back, once others have ended", async () => {
  let tried = 0;
  const gate = new Gate();
  const rests = machine("rests", {
    one: async (ctx) => {
      const fetch = () => {
        tried += 1;
        if (tried < 3) throw new Error("not yet");
        return "here";
      };
      const fetched = ctx.effect("fetch", fetch, { retry: { delay: "1s", backoff: "linear" } });
      setImmediate(gate.open);
      const other = ctx.effect("other", () => gate.passed.then(() => "there"));
      return done(await Promise.all([fetched, other]));
    },
  });
  const engine = new TestEngine(rests);
  const begun = engine.now;
  const run = engine.start("rests");
  assert.deepEqual(await run.result(), ["here", "there"]);
  assert.equal(engine.now - begun, 3_000);
  assert.deepEqual(run.keys.sort(), ["fetch", "other"]);
});

test("what is no outcome, and a step that is not there, are named", async () => {
  const odd = machine<string>("odd", {
    one: async (ctx) => (ctx.input === "value" ? (5 as never) : nextStep("two")),
  });
  const engine = new TestEngine(odd);
  await assert.rejects(engine.start(odd, "value").result(), /no_outcome: step "one": expected an outcome like done\(...\), found 5/);
  await assert.rejects(engine.start(odd, "step").result(), /unknown_step: .* has no step "two"; its steps are one/);
  const refused = (make: () => unknown, said: RegExp) =>
    assert.throws(make, (error) => error instanceof AbideError && said.test(error.message));
  refused(() => machine("none", {}), /expected steps .* found none/);
  refused(() => machine("odd", { 1: async () => done() }), /whose name is no number, found 1/);
  refused(() => machine("odd", { one: 5 as never }), /step "one": expected an async function, found 5/);
});

test("what a step still does when its attempt is lost goes nowhere", async () => {
  const begun = new Gate();
  const aborted = new Gate();
  const seen: string[] = [];
  const slow = machine("slow", {
    one: async (ctx) => {
      await ctx.effect("slow", ({ signal }) => {
        begun.open();
        return new Promise<void>((resolve) => signal.addEventListener("abort", () => (aborted.open(), resolve())));
      });
      seen.push("went on");
      return done();
    },
  });
  const engine = new TestEngine(slow);
  const losing = new AbortController();
  const written: unknown[] = [];
  const run = engine.start("slow");
  const attempt = (engine as any).claim((run as any).run);
  const executing = slow.execute(attempt, {
    lost: losing.signal,
    now: () => 0,
    record: async (entries) => void written.push(entries),
    progress: () => assert.fail("nobody says so here"),
    startChild: () => assert.fail("nobody says so here"),
  });
  await begun.passed;
  losing.abort();
  assert.equal(await executing, undefined);
  await aborted.passed;
  assert.deepEqual([seen, written], [[], []]);
});

/** BU-28, BU-29 */
test("the next attempt is told how far the last one came, and the next step is not", async () => {
  const pages = machine<null, number>("pages", { retry: { delay: "1s", retriesMax: 2 } }, {
    copy: async (ctx) => {
      const first = (ctx.lastProgress["page"] as number | undefined) ?? 0;
      for (const page of [first + 1, first + 2]) await ctx.progress("page", page);
      if (ctx.attempt === 0) throw new Error("broken");
      return nextStep("end", first);
    },
    end: async (ctx) => done([ctx.state, ctx.lastProgress]),
  });
  const run = new TestEngine(pages).start("pages");
  assert.deepEqual(await run.result(), [2, {}]);
  assert.deepEqual(run.progress, { page: 4 });
});
