/** What people and programs around the runs do with a real server. `ABIDE_BIN` names it. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { allow, awaitSignals, child, type Client, done, machine, NotFound, replay, workflow } from "abide";

import { REAL, Real } from "./real.js";
import { until } from "./support.js";

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

const options = { controls: [allow("wire")] };
const asks = workflow("asks", options, async (ctx, how: string): Promise<unknown> => {
  if (how === "wire") await ctx.effect("wire", () => new Promise(() => {}), { policy: "unsafe_once" });
  if (how === "task") return ctx.task("count", { what: "boxes" });
  if (how === "diverges") {
    await ctx.effect("before", () => 1, { input: "something" });
    await ctx.signal("go");
  }
  return (await ctx.approval("release")).choice;
});
const asksOtherwise = workflow("asks", options, async (ctx) => ctx.effect("before", () => 1, { input: "something else" }));

async function all<T>(found: AsyncIterable<T>): Promise<T[]> {
  const list: T[] = [];
  for await (const one of found) list.push(one);
  return list;
}

/** The first that is found, once there is one. */
function first<T>(look: () => AsyncIterable<T>): Promise<NonNullable<T>> {
  return until(async () => (await all(look()))[0]);
}

/** Whether its effect has ended, and it executes nothing. */
async function waits(client: Client, run: string): Promise<boolean> {
  const effects = await client.effects(run);
  return effects.length > 0 && effects.every((effect) => effect.ended_at) && (await client.get(run)).status !== "executing";
}

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

test("a run is followed to its end over a restart of the server", REAL, async (t) => {
  const [real, client] = await Real.of(t);
  real.working(t, asks);
  const run = await client.start("asks", "approval");
  const revs: number[] = [];
  let ending: unknown;
  for await (const event of client.follow(run)) {
    if (event.name === "end") ending = event.data;
    if (event.name !== "row") continue;
    revs.push(event.data.rev);
    if (event.data.rev > 1) continue;
    const { boundary } = await first(() => client.approvals());
    assert.equal((await client.approval(boundary)).run, run);
    await real.kill();
    await real.serve();
    await client.approve(boundary, { actor: "ann" });
  }
  assert.deepEqual(revs, revs.map((_, at) => at + 1), "each row once, and in order");
  const end = await client.end(run);
  assert.deepEqual([end, end.result], [ending, "approve"]);
  const later = await all(client.follow(run, { after: revs.at(-2)! }));
  assert.deepEqual(later.flatMap((event) => (event.name === "row" ? [event.data.rev] : [])), revs.slice(-1));
  await client.purge(run);
  await assert.rejects(client.get(run), NotFound);
});

test("a namespace is followed over a restart of the server", REAL, async (t) => {
  const [real, client] = await Real.of(t);
  const events = client.events();
  const next = async () => (await events.next()).value ?? assert.fail("the stream lasts");
  assert.equal((await next()).name, "following");
  const run = await client.start("kid", 1);
  const begun = await next();
  assert.ok(begun.name === "happened" && begun.data.run === run && begun.data.rev === 1);
  await real.kill();
  await real.serve();
  assert.equal((await next()).name, "reset", "what happened meanwhile is not kept over a restart");
  real.working(t, kid);
  for (let event = await next(); ; event = await next()) {
    assert.ok(event.name === "happened" && event.data.run === run);
    if (event.data.status === "done") break;
  }
  await events.return(undefined);
});

test("queues are paused, capped and resumed", REAL, async (t) => {
  const [real, client] = await Real.of(t);
  assert.equal((await client.pauseQueue("default")).paused, true);
  const run = await client.start("kid", 1);
  const limits = { at_most: 2, rate: { count: 10, per_ms: 1_000 } };
  assert.deepEqual((await client.limitQueue("default", { atMost: 2, rate: { count: 10, per: "1s" } })).limits, limits);
  const [queue] = await client.queues();
  assert.deepEqual([queue?.queue, queue?.depth, queue?.limits], ["default", 1, limits]);
  assert.deepEqual((await client.limitQueue("default")).limits, {});
  real.working(t, kid);
  const [worker] = await until(async () => ((await client.workers()).length > 0 ? client.workers() : undefined));
  assert.deepEqual(worker?.queues, ["default"]);
  assert.deepEqual((await client.workflows()).map((found) => found.workflow), ["kid"]);
  assert.equal((await client.end(run, { timeout: 0 })).ended, false);
  assert.equal((await client.resumeQueue("default")).paused, false);
  assert.equal((await client.end(run, { timeout: "30s" })).result, 10);
});

test("what was set aside is put back or given up", REAL, async (t) => {
  const [real, client] = await Real.of(t);
  const runs = [await client.start("asks", "diverges"), await client.start("asks", "diverges")] as const;
  const good = real.working(t, asks);
  for (const run of runs) await until(() => waits(client, run));
  await good();
  const bad = real.working(t, asksOtherwise);
  for (const run of runs) await client.signal(run, "go");
  const letters = await until(async () => {
    const found = await all(client.deadLetters());
    return found.length === 2 ? found : undefined;
  });
  await bad();
  assert.deepEqual(new Set(letters.map((letter) => letter.run)), new Set(runs));
  assert.deepEqual(letters.flatMap((letter) => letter.attempts.map((attempt) => attempt.reason.code)), ["diverged", "diverged"]);
  await client.requeue(runs[0]);
  await client.discard(runs[1]);
  assert.equal((await client.end(runs[1], { timeout: "30s" })).status, "failed");
  real.working(t, asks);
  await client.approve((await first(() => client.approvals())).boundary, { actor: "ann" });
  assert.equal(await client.result(runs[0], { timeout: "30s" }), "approve");
  assert.deepEqual(await all(client.deadLetters()), []);
});

test("effects in doubt of all runs are listed and resolved, and a task is shown", REAL, async (t) => {
  const [real, client] = await Real.of(t);
  const run = await client.start("asks", "wire");
  const dying = real.working(t, asks);
  await until(async () => (await client.effects(run)).length > 0);
  await dying();
  real.working(t, asks);
  const doubt = await first(() => client.effectsInDoubt());
  assert.deepEqual([doubt.run, doubt.effect.key], [run, "wire"]);
  await client.resolve(run, "wire", { value: 1 });
  assert.equal((await first(() => client.approvals())).run, run);
  assert.deepEqual(await all(client.effectsInDoubt()), []);
  await client.start("asks", "task");
  const { boundary } = await first(() => client.tasks());
  assert.deepEqual((await client.task(boundary)).payload, { what: "boxes" });
});
