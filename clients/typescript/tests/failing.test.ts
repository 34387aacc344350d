/** Functions that fail, are undone, diverge, or wait for what the engine cannot see; policies and crashes. */

import assert from "node:assert/strict";
import { describe, test } from "node:test";

import { AbideError, allow, type Context, interrupt, PlanError, RunFailed, StepError, terminal, workflow } from "abide";
import { crashEverywhere, OtherEnd, Stuck, TestEngine, type TestRun } from "abide/testing";

import { inner, turns } from "./support.js";

/** How a run failed. */
async function failure(run: TestRun<any>): Promise<StepError> {
  const found = await run.result().then(
    () => assert.fail("the run ended well"),
    (error: unknown) => error,
  );
  assert.ok(found instanceof RunFailed && found.error !== undefined, String(found));
  return found.error;
}

describe("failing", () => {
  test("an error is recorded with its stack, and ends the run", async () => {
    const breaks = workflow("breaks", async () => {
      throw new RangeError("lost");
    });
    const error = await failure(new TestEngine(breaks).start(breaks, null));
    assert.deepEqual([error.code, error.message], ["error", "RangeError: lost"]);
    assert.match((error.details as { traceback: string }).traceback, /failing\.test/);
  });

  test("a retry begins the effect again that failed, and no other", async () => {
    const calls: string[] = [];
    const flaky = workflow("flaky", { retry: { delay: "1s" } }, async (ctx) => {
      const two = () => {
        calls.push("two");
        if (calls.length < 4) throw new Error("not yet");
        return 2;
      };
      return [await ctx.effect("one", () => calls.push("one")), await ctx.effect("two", two)];
    });
    assert.deepEqual(await new TestEngine(flaky).start(flaky, null).result(), [1, 2]);
    assert.deepEqual(calls, ["one", "two", "two", "two"]);
  });

  test("an effect with a retry policy rests, and the code hears only the end", async () => {
    let calls = 0;
    const retried = workflow("retried", async (ctx, often: number) => {
      const fetch = () => {
        calls += 1;
        if (calls <= often) throw new Error("not yet");
        return "here";
      };
      return ctx
        .effect("fetch", fetch, { retry: { delay: "10s", retriesMax: 2 } })
        .catch((error: StepError) => [error.message, error.retryable]);
    });
    const engine = new TestEngine(retried);
    const begun = engine.now;
    assert.equal(await engine.start(retried, 2).result(), "here");
    assert.equal(engine.now - begun, 30_000, "10 s, then 20 s");
    calls = 0;
    assert.deepEqual(await engine.start(retried, 9).result(), ["Error: not yet", false]);
    assert.equal(calls, 3);
  });

  test("what was done is undone when the function fails or is cancelled", async () => {
    const undone: string[] = [];
    const trip = workflow("trip", async (ctx, fails: boolean) => {
      for (const what of ["flight", "hotel"]) {
        await ctx.effect(`book ${what}`, () => null);
        ctx.undo(`cancel ${what}`, () => undone.push(what));
      }
      if (fails) throw terminal("full", "no car");
      await ctx.signal("go");
    });
    const engine = new TestEngine(trip);
    assert.equal((await failure(engine.start(trip, true))).code, "full");
    assert.deepEqual(undone.splice(0), ["hotel", "flight"]);
    const run = engine.start(trip, false);
    await engine.settle();
    await run.cancel();
    assert.deepEqual([run.status, undone], ["cancelled", ["hotel", "flight"]]);
  });

  test("what a function that failed still waits for is withdrawn before it is undone", async () => {
    const undone: string[] = [];
    const both = workflow("both", async (ctx) => {
      ctx.undo("undo", () => undone.push("undone"));
      const waits = async () => {
        await ctx.signal("never");
        undone.push("went on");
      };
      const fails = async () => {
        await ctx.sleep("1s");
        throw terminal("full", "no");
      };
      await Promise.all([waits(), fails()]);
    });
    const run = new TestEngine(both).start(both);
    assert.equal((await failure(run)).code, "full");
    assert.deepEqual(undone, ["undone"]);
    assert.ok(inner(run).ops.find((op) => op.key === "signal never")?.end?.elapsed);
  });

  test("code that does not fit its ledger is set aside, and the place is told", async () => {
    const made = (edit: "" | "kind" | "input") =>
      workflow("edited", async (ctx) => {
        if (edit === "kind") await ctx.approval("pay");
        else await ctx.effect("pay", () => null, { input: edit === "input" ? 2 : 1 });
        await ctx.signal("go");
      });
    const cases = [
      ["kind", "expected an effect, as recorded, found a wait for a person"],
      ["input", "expected the input it was recorded with"],
    ] as const;
    for (const [edit, said] of cases) {
      const engine = new TestEngine(made(""));
      const run = engine.start("edited");
      await engine.settle();
      engine.replace(made(edit));
      await run.signal("go");
      assert.deepEqual([run.status, run.error?.code], ["dead_lettered", "diverged"]);
      assert.ok(run.error?.message.includes(said), run.error?.message);
      assert.match(run.error?.message ?? "", /failing\.test\.[jt]s:[0-9]+\)/);
    }
  });

  test("waits that the engine cannot see are set aside", async () => {
    const foreign: Record<string, (ctx: Context) => Promise<unknown>> = {
      sleeps: () => new Promise((resolve) => setTimeout(resolve, 1)),
      waits: () => new Promise(() => {}),
      yields: () => new Promise((resolve) => setImmediate(resolve)),
      "goes on by itself": async (ctx) => {
        const slow = ctx.effect("slow", () => new Promise(() => {}));
        await Promise.race([slow, turns(2)]);
        await ctx.effect("after", () => 1);
      },
    };
    for (const [name, code] of Object.entries(foreign)) {
      const sleepy = workflow("sleepy", async (ctx) => {
        await ctx.effect("first", () => 1);
        await code(ctx);
      });
      const run = new TestEngine(sleepy).start(sleepy, undefined);
      await assert.rejects(run.result(), RunFailed);
      assert.deepEqual([run.status, run.error?.code], ["dead_lettered", "foreign_wait"], name);
      assert.match(run.error?.message ?? "", /after "(first|slow)" \(.*failing\.test.*Use ctx\.sleep/, name);
    }
  });

  test("a context inside of an effect is refused with what to do", async () => {
    const nested = workflow("nested", async (ctx) => ctx.effect("outer", () => ctx.effect("inner", () => 1)));
    const error = await failure(new TestEngine(nested).start(nested, null));
    assert.deepEqual([error.code, error.retryable], ["inside_effect", false]);
    assert.match(error.message, /inside of effect "outer".*before or after/);
  });

  test("names that cannot be recorded are refused", async () => {
    const named = workflow("names", async (ctx, name: string) =>
      ctx.effect(name, () => "fine").catch((error: StepError) => error.code),
    );
    const overlap = workflow("overlap", async (ctx) =>
      ctx.all([ctx.effect("a", () => 1), ctx.effect("a", () => 2)]).catch((error: StepError) => error.code),
    );
    const engine = new TestEngine(named, overlap);
    const cases = [
      ["", "bad_name"],
      ["a#2", "bad_name"],
      ["x".repeat(981), "bad_name"],
      ["x".repeat(980), "fine"],
    ] as const;
    for (const [name, code] of cases) assert.equal(await engine.start(named, name).result(), code);
    assert.equal(await engine.start(overlap, null).result(), "overlapping_effects");
  });

  test("what cannot be a workflow, or an effect, is told", async () => {
    const refused = (make: () => unknown, said: RegExp) =>
      assert.throws(make, (error) => error instanceof AbideError && said.test(error.message));
    refused(() => workflow("x", {} as never), /workflow "x": expected an async function/);
    refused(() => workflow("", async () => {}), /expected a name/);
    refused(() => workflow("x", { version: 0 }, async () => {}), /whole number from 1 on, found 0/);
    refused(() => workflow("x", { retry: { delay: "soon" as never } }, async () => {}), /expected milliseconds/);
    refused(() => workflow("x", { retry: { backoff: "none" as never } }, async () => {}), /retry.backoff: expected one of/);
    const odd = workflow("odd", async (ctx) => {
      const notCode = await ctx.effect("a", 5 as never).catch((error: StepError) => error.message);
      const noPolicy = await ctx.effect("b", () => 1, { policy: "once" as never }).catch((error: StepError) => error.message);
      const noJson = await ctx.effect("c", () => new Map()).catch((error: StepError) => error.code);
      return [notCode, noPolicy, noJson];
    });
    const found = (await new TestEngine(odd).start(odd, null).result()) as string[];
    assert.match(found[0] ?? "", /effect "a": expected a function to call, found 5/);
    assert.match(found[1] ?? "", /policy: expected one of pure, .*, found "once"/);
    assert.equal(found[2], "unencodable");
    assert.throws(() => new TestEngine(odd).start("even"), /expected a workflow of this engine \("odd"\), found "even"/);
  });
});

describe("policies", () => {
  test("what must not happen twice needs a control", async () => {
    assert.throws(() => workflow("wire", { operations: { wire: "unsafe_once" } }, async () => {}), PlanError);
    const wire = workflow("wire", async (ctx) =>
      ctx.effect("wire", () => 1, { policy: "unsafe_once" }).catch((error: StepError) => error.code),
    );
    assert.equal(await new TestEngine(wire).start(wire, null).result(), "unsafe_once_requires_control");
  });

  test("after a crash it is in doubt, and waits to be resolved", async () => {
    const calls: string[] = [];
    const wire = workflow("wire", { controls: [allow("wire")] }, async (ctx) =>
      ctx.effect("wire", ({ key }) => void calls.push(key), { policy: "unsafe_once" }),
    );
    const cases = [
      [{ value: 7 }, 7, 1],
      ["retry", null, 2],
    ] as const;
    for (const [how, expected, count] of cases) {
      calls.length = 0;
      const engine = new TestEngine(wire);
      engine.crash = { report: 2, when: "before" };
      const run = engine.start(wire, null);
      await engine.settle();
      assert.deepEqual([run.status, calls.length], ["in_doubt", 1]);
      await assert.rejects(run.result(), Stuck);
      await assert.rejects(run.resolve("other", "retry"), /in doubt \("wire"\), found "other"/);
      await run.resolve("wire", how);
      assert.deepEqual([await run.result(), calls.length, new Set(calls).size], [expected, count, 1]);
    }
  });

  test("a reviewer lets an effect begin, or not", async () => {
    const calls: number[] = [];
    const wire = workflow("wire", { controls: [interrupt("wire", { roles: ["finance"] })] }, async (ctx, amount: number) =>
      ctx
        .effect("wire", () => void calls.push(amount), { policy: "unsafe_once", input: amount })
        .catch((error: StepError) => [error.code, error.details]),
    );
    const engine = new TestEngine(wire);
    const run = engine.start(wire, 5);
    await engine.settle();
    const asked = run.asked() as { name: string; payload: { input: number }; roles: string[] };
    assert.deepEqual([asked.name, asked.payload.input, asked.roles, calls], ["wire#review", 5, ["finance"], []]);
    await run.approve(null, { actor: "ann" });
    assert.equal(await run.result(), null);
    assert.deepEqual(calls, [5]);
    const other = engine.start(wire, 6);
    await engine.settle();
    await other.reject(null, { actor: "bob", note: "no" });
    const [code, details] = (await other.result()) as unknown as [string, { actor: string; note: string }];
    assert.deepEqual([code, details.actor, details.note, calls], ["rejected", "bob", "no", [5]]);
  });

  test("reviews of effects that begin together are asked one after the other", async () => {
    const wires = workflow("wires", { controls: [interrupt()] }, async (ctx) =>
      ctx.all(["a", "b", "c"].map((name) => ctx.effect(name, () => name))),
    );
    const engine = new TestEngine(wires);
    const run = engine.start(wires, null);
    await engine.settle();
    for (const name of ["a", "b", "c"]) {
      assert.equal(run.asked()?.name, `${name}#review`);
      await run.approve();
    }
    assert.deepEqual(await run.result(), ["a", "b", "c"]);
  });
});

test("a review that waits for another person is asked when that one has decided", async () => {
  const both = workflow("both", { controls: [interrupt("wire")] }, async (ctx) =>
    ctx.all([ctx.approval("pay").then((decision) => decision.approved), ctx.effect("wire", () => "wired")]),
  );
  const engine = new TestEngine(both);
  const run = engine.start(both);
  await engine.settle();
  assert.equal(run.asked()?.name, "pay");
  await run.approve();
  assert.equal(run.asked()?.name, "wire#review");
  await run.approve();
  assert.deepEqual(await run.result(), [true, "wired"]);
});

describe("crashes", () => {
  test("a workflow comes to the same end wherever its worker dies", async () => {
    const kid = workflow("child", async (ctx, n: number) => ctx.effect("twice", () => 2 * n));
    const everything = workflow("all", { controls: [allow("once")], retry: { delay: "1s", retriesMax: 3 } }, async (ctx, n: number) => {
      ctx.publish("begun");
      const one = await ctx.effect("one", () => n, { policy: "pure" });
      const [two, three] = await ctx.all([
        ctx.effect("two", () => n + 1),
        ctx.scope("s").effect("two", () => n + 2, { policy: "dedupe" }),
      ]);
      const [won] = await ctx.race<unknown>([ctx.signal("never"), ctx.sleep("5s")]);
      const signalled = await ctx.signal("go");
      const decision = await ctx.approval("pay", { n });
      const twice = await ctx.child("kid", kid, three);
      const once = await ctx.effect("once", () => "once", { policy: "unsafe_once" });
      return [one, two, three, won, signalled, decision.approved, twice, once];
    });
    const story = async (run: TestRun<any>) => {
      await run.engine.advance("6s");
      await run.signal("go", "gone");
      await run.approve(null, { actor: "ann" });
    };
    const engine = new TestEngine(everything, kid);
    const run = engine.start(everything, 1);
    await engine.settle();
    await story(run);
    assert.deepEqual(await run.result(), [1, 2, 3, 1, "gone", true, 6, "once"]);
    assert.ok((await crashEverywhere([everything, kid], everything, 1, { story })) > 15);
  });

  test("the helper finds code that does not come to the same end", async () => {
    let lives = 0;
    const forgetful = workflow("forgetful", async (ctx) => {
      lives += 1;
      await ctx.effect("one", () => 1);
      await ctx.effect("two", () => 2);
      return lives;
    });
    const fresh = () => (lives = 0);
    await assert.rejects(
      crashEverywhere(forgetful, forgetful, null, { fresh: () => void fresh() }),
      (error) => error instanceof OtherEnd && /died before report 1 of 2: expected \["done",1\], found \["done",2\]/.test(error.message),
    );
  });
});
