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
