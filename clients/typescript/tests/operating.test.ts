/** What people and programs around the runs do with a real server. `ABIDE_BIN` names it. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { awaitSignals, child, done, machine, replay, workflow } from "abide";

import { REAL, Real } from "./real.js";

const kid = workflow("kid", async (_, n: number) => 10 * n);

/** Starts a child, fails once, and answers its error by going on. */
const orders = machine<null, string[]>("orders", { compactAfter: 2, onError: async () => replay() }, {
  first: async (ctx) => {
    const begun = await ctx.startChild("kid", child(kid, 3));
    const again = await ctx.startChild("kid", child(kid, 3));
    if (ctx.attempt === 0) throw new RangeError("not yet");
    return awaitSignals("go", [begun, again], { then: "last" });
  },
  last: async (ctx) => done([...ctx.state, ctx.children[0]?.key]).consume("by_name"),
});

const traced = workflow("traced", async (ctx) => [ctx.traceparent, await ctx.effect("call", (call) => call.traceparent)]);
const tracedSteps = machine("traced steps", {
  one: async (ctx) => done([ctx.traceparent, await ctx.effect("call", (call) => call.traceparent)]),
});

test("a step starts a child once, and the error that it answered is shown", REAL, async (t) => {
  const [real, client] = await Real.of(t);
  real.working(t, orders, kid);
  const run = await client.start("orders");
  await client.signal(run, "go");
  const [begun, again, key] = await client.result<string[]>(run, { timeout: "30s" });
  assert.deepEqual([begun, key], [again, "kid"]);
  assert.equal(await client.result(begun!, { timeout: "30s" }), 30);
  const error = (await client.get(run)).last_error;
  assert.deepEqual([error?.code, error?.message], ["error", "RangeError: not yet"]);
});

test("a trace goes on in functions, steps and effects", REAL, async (t) => {
  const [real, client] = await Real.of(t);
  real.working(t, traced, tracedSteps);
  for (const workflow of ["traced", "traced steps"]) {
    const traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const asked = await client.start(workflow, null, { traceparent });
    const [inside, called] = await client.result<string[]>(asked, { timeout: "30s" });
    assert.equal(inside, called);
    assert.equal(inside?.slice(0, 36), traceparent.slice(0, 36), "it is in the trace of whoever asked for it");
    assert.notEqual(inside, traceparent);
    const run = await client.start(workflow);
    const [own] = await client.result<string[]>(run, { timeout: "30s" });
    assert.ok(own?.includes(run.replace("run_", "")), "without one, the trace is the run's own");
  }
});
