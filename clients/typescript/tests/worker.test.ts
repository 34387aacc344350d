/** The worker against an engine behind a real socket: credits, batches, heartbeats, drains, and lost answers. */

import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";

import {
  AbideError,
  child,
  done,
  type Executable,
  machine,
  nextStep,
  spawn,
  StepError,
  Unauthenticated,
  Untrusted,
  Worker,
  type WorkerOptions,
  workflow,
} from "abide";
import { TestEngine } from "abide/testing";

import { type Report, Served } from "./served.js";
import { problem } from "./fake.js";
import { Gate, inner, QUIET, turns, until } from "./support.js";

const five = workflow("five", async (ctx, n: number) => {
  let sum = n;
  for (let step = 0; step < 5; step += 1) sum += await ctx.effect(`step ${step}`, () => step);
  return sum;
});

const LONE = "half \ud83d";
const cycle: { self?: unknown } = {};
cycle.self = cycle;
const UNENCODABLE: unknown[] = [
  LONE,
  { [LONE]: 1 },
  [NaN],
  { n: Infinity },
  new Set([1]),
  new Uint8Array(2),
  2n ** 64n,
  [10n ** 400n],
  cycle,
  () => 1,
  [Symbol("x")],
  Promise.resolve(1),
];

/** Hands something that has no JSON form to the engine, in one of all the ways there are. */
const ways = workflow("ways", async (ctx, [way, at]: [string, number]): Promise<unknown> => {
  const value = UNENCODABLE[at];
  if (way === "effect") await ctx.effect("call", () => ({ value }));
  if (way === "input") await ctx.effect("call", () => 1, { input: value });
  if (way === "state") ctx.publish(value);
  if (way === "child") await ctx.child("part", "five", value);
  if (way === "labels") await ctx.child("part", "five", 1, { labels: { a: value as string } });
  if (way === "person") await ctx.approval("ask", value);
  if (way === "roles") await ctx.approval("ask", 1, { roles: [value as string] });
  if (way === "again") ctx.continueAsNew(value);
  return { value };
});

const only = machine("only", {
  only: async (ctx) => {
    const [way, at] = ctx.input as [string, number];
    const value = UNENCODABLE[at];
    if (way === "progress") await ctx.progress("rows", value);
    if (way === "name") await ctx.progress(LONE, 1);
    if (way === "spawn") return spawn([child("five", value)], "only");
    return way === "next" ? nextStep("only", value) : done(value);
  },
});

async function serving(t: TestContext, ...workflows: Executable[]): Promise<Served> {
  const served = await new Served(new TestEngine(...workflows)).start();
  t.after(() => served.fake.stop());
  return served;
}

function workerOf(served: Served, workflows: Executable[], options: Partial<WorkerOptions> = {}): Worker {
  return new Worker(served.fake.url, { workflows, poll: "200ms", logger: QUIET, ...options });
}

/** A workflow of one effect that waits. */
function waiting(begun: Gate, goOn: Promise<unknown>) {
  return workflow("slow", async (ctx) => {
    const call = async () => {
      begun.open();
      await goOn;
      return "done";
    };
    return ctx.effect("slow", call);
  });
}

test("runs are executed within credits, and reports go together", { timeout: 30_000 }, async (t) => {
  const served = await serving(t, five);
  const runs = Array.from({ length: 40 }, (_, n) => served.engine.start(five, n));
  const worker = workerOf(served, [five], { concurrency: 8 });
  const working = worker.run();
  for (const run of runs) await served.ended(run);
  worker.stop();
  await working;
  assert.deepEqual(runs.map((run) => inner(run).result), runs.map((_, n) => 10 + n));
  assert.ok(served.most <= 8, `${served.most} attempts at once`);
  assert.ok(Math.max(...served.reports.map((batch) => batch.length)) > 1, "reports that are ready together go together");
  const polls = served.fake.asked.filter((asked) => asked.path.endsWith("/claims"));
  assert.ok(polls.length < 20, "attempts come with the answers to reports");
});

test("answers that are lost are asked for again", { timeout: 30_000 }, async (t) => {
  const served = await serving(t, five);
  served.broken = ["lost", { how: "hang_up" }, problem(503, "closed"), "unsure", "lost", "lost", { how: "cut" }, "unsure"];
  const run = served.engine.start(five, 1);
  const worker = workerOf(served, [five]);
  const working = worker.run();
  await served.ended(run);
  worker.stop();
  await working;
  assert.deepEqual([inner(run).result, inner(run).claims], [11, 1]);
});

test("what has no JSON form fails its run, and nothing else", { timeout: 30_000 }, async (t) => {
  const served = await serving(t, ways, only, five);
  const all = ["result", "effect", "input", "state", "child", "labels", "person", "roles", "again"].map((way) => [ways, way] as const);
  const steps = ["result", "progress", "spawn", "next"].map((way) => [only, way] as const);
  const tried = [...all, ...steps].flatMap(([code, way]) => UNENCODABLE.map((_, at) => [code, way, at] as const));
  const runs = [...tried, [only, "name", 0] as const].map(([code, way, at]) => ({ way, at, run: served.engine.start(code, [way, at]) }));
  const worker = workerOf(served, [ways, only, five], { concurrency: 2 });
  const working = worker.run();
  for (const { run, way, at } of runs) {
    await served.ended(run);
    assert.deepEqual([run.status, run.error?.code], ["failed", "unencodable"], `${way} ${at}`);
  }
  const last = served.engine.start(five, 1);
  await served.ended(last);
  worker.stop();
  await working;
  assert.deepEqual([inner(last).result, (worker as unknown as { free: number }).free], [11, 2]);
});

test("errors that say what UTF-8 has not are told", { timeout: 30_000 }, async (t) => {
  const thrown: Record<string, unknown> = {
    file: new RangeError(LONE),
    code: new StepError(LONE, { code: LONE, retryable: false, details: { [LONE]: new Set() } }),
  };
  const throws = workflow("throws", async (ctx, [where, what]: [string, string]) => {
    if (where === "effect") await ctx.effect("call", () => { throw thrown[what]; });
    throw thrown[what];
  });
  const named = workflow("named", async (ctx) => ctx.effect(LONE, () => 1));
  const served = await serving(t, throws, named);
  const worker = workerOf(served, [throws, named], { concurrency: 1 });
  const working = worker.run();
  const failing = async (run: ReturnType<typeof served.engine.start>) => {
    await served.ended(run);
    return run.error;
  };
  for (const where of ["code", "effect"]) {
    assert.equal((await failing(served.engine.start(throws, [where, "file"])))?.message, "RangeError: half \ufffd");
    const error = await failing(served.engine.start(throws, [where, "code"]));
    assert.deepEqual([error?.code, Object.keys(error?.details as object)], ["half \ufffd", ["unencodable"]]);
  }
  assert.equal((await failing(served.engine.start(named, null)))?.code, "bad_name");
  worker.stop();
  await working;
});

/** Has the requests of a worker go wrong on the way. */
function breaking(worker: Worker, fault: (path: string) => Error | undefined): void {
  const { http } = worker as unknown as { http: { request: (...given: unknown[]) => Promise<unknown> } };
  const request = http.request.bind(http);
  http.request = async (...given) => {
    const error = fault(given[1] as string);
    if (error !== undefined) throw error;
    return request(...given);
  };
}

test("whatever goes wrong with reports, no place is lost", { timeout: 30_000 }, async (t) => {
  const served = await serving(t, five);
  const worker = workerOf(served, [five], { concurrency: 2 });
  let sent = 0;
  breaking(worker, (path) => {
    if (!path.endsWith("/reports")) return undefined;
    sent += 1;
    return [2, 3, 5, 8].includes(sent) ? new RangeError("a fault of ours") : undefined;
  });
  // What is no answer to reports is no answer: they are sent again.
  served.broken = [{ body: {} }, { body: { answers: [] } }, { body: null }, { body: [] }];
  const runs = Array.from({ length: 6 }, (_, n) => served.engine.start(five, n));
  const working = worker.run();
  const { held } = worker as unknown as { held: Set<{ attempt: { run: string } }> };
  for (const run of runs) {
    while (!inner(run).over) {
      await new Promise((resolve) => setTimeout(resolve, 10));
      const holds = [...held].some(({ attempt }) => attempt.run === inner(run).id);
      // That it goes back could not be said either: its lease ends.
      if (run.status === "executing" && !holds) served.lose(run);
    }
  }
  worker.stop();
  await working;
  assert.deepEqual(runs.map((run) => inner(run).result), runs.map((_, n) => 10 + n));
  assert.equal((worker as unknown as { free: number }).free, 2);
});

test("a worker that does not trust its server any more ends", { timeout: 30_000 }, async (t) => {
  const served = await serving(t, five);
  const worker = workerOf(served, [five], { concurrency: 2 });
  breaking(worker, () => (served.fake.asked.length > 3 ? new Untrusted("its certificate has expired") : undefined));
  const runs = Array.from({ length: 3 }, (_, n) => served.engine.start(five, n));
  await assert.rejects(worker.run(), Untrusted);
  assert.deepEqual(runs.map((run) => run.error), [undefined, undefined, undefined], "they are for a worker that trusts it");
});

test("a server that restarts is found again", { timeout: 30_000 }, async (t) => {
  const served = await serving(t, five);
  const worker = workerOf(served, [five]);
  const working = worker.run();
  const first = served.engine.start(five, 1);
  await served.ended(first);
  await served.fake.stop();
  // What was asked of the old server must be over, or it would give the attempt to nobody.
  await until(() => served.polling === 0);
  const second = served.engine.start(five, 2);
  await served.fake.start();
  await served.ended(second);
  worker.stop();
  await working;
  assert.equal(inner(second).result, 12);
});

test("an attempt whose heartbeat is refused is cut off", { timeout: 30_000 }, async (t) => {
  const begun = new Gate();
  const cut: string[] = [];
  let calls = 0;
  const slow = workflow("slow", async (ctx) =>
    ctx.effect("slow", async ({ signal }) => {
      calls += 1;
      begun.open();
      if (calls > 1) return "done";
      await new Promise<void>((resolve) => signal.addEventListener("abort", () => resolve()));
      cut.push("cut");
      throw new Error("cut off");
    }),
  );
  const served = await serving(t, slow);
  const run = served.engine.start(slow, null);
  const worker = workerOf(served, [slow], { lease: 60 });
  const working = worker.run();
  await begun.passed;
  served.lose(run);
  await served.ended(run);
  worker.stop();
  await working;
  assert.deepEqual([cut, inner(run).result, inner(run).claims], [["cut"], "done", 2]);
});

test("a worker that is told to stop finishes what runs, and claims nothing more", { timeout: 30_000 }, async (t) => {
  const [begun, goOn] = [new Gate(), new Gate()];
  const slow = waiting(begun, goOn.passed);
  const served = await serving(t, slow);
  const run = served.engine.start(slow, null);
  const worker = workerOf(served, [slow], { concurrency: 2 });
  let over = false;
  const working = worker.run().then(() => (over = true));
  await begun.passed;
  await until(() => served.fake.asked.length === 2 && served.polling === 1);
  process.kill(process.pid, "SIGTERM");
  await until(() => served.polling === 0);
  const before = served.fake.asked.length;
  const late = served.engine.start(slow, null);
  await turns(50);
  assert.deepEqual([over, served.fake.asked.length], [false, before]);
  goOn.open();
  await working;
  assert.deepEqual([inner(run).result, late.status, inner(late).claims], ["done", "runnable", 0]);
});

test("a worker that is told twice to stop leaves what runs", { timeout: 30_000 }, async (t) => {
  const begun = new Gate();
  const slow = waiting(begun, new Promise(() => {}));
  const served = await serving(t, slow);
  const run = served.engine.start(slow, null);
  const worker = workerOf(served, [slow]);
  const working = worker.run();
  await begun.passed;
  worker.stop();
  worker.stop();
  await working;
  assert.deepEqual([run.status, served.reports], ["executing", []], "its lease ends, and another has it");
});

test("a worker gives up what takes longer to drain than it may", { timeout: 30_000 }, async (t) => {
  const begun = new Gate();
  const slow = waiting(begun, new Promise(() => {}));
  const served = await serving(t, slow);
  const run = served.engine.start(slow, null);
  const worker = workerOf(served, [slow]);
  const working = worker.run({ drain: 50, signals: false });
  await begun.passed;
  worker.stop();
  await working;
  assert.equal(run.status, "executing");
});

test("what comes while it stops goes back", { timeout: 30_000 }, async (t) => {
  const served = await serving(t, five);
  const worker = workerOf(served, [five], { poll: "10s" });
  const working = worker.run();
  while (served.fake.asked.length === 0) await turns(1);
  const run = served.engine.start(five, 1);
  worker.stop();
  await working;
  const said = served.reports.flat().map((report: Report) => Object.keys(report.say)[0]);
  assert.deepEqual([run.status, said], ["runnable", ["give_back"]]);
});

test("a report that cannot be read does not take others with it", { timeout: 30_000 }, async (t) => {
  const served = await serving(t, five);
  const runs = [0, 1, 2, 3].map((n) => served.engine.start(five, n));
  served.broken = [problem(413, "too_large")];
  const worker = workerOf(served, [five]);
  const working = worker.run();
  for (const run of runs) await served.ended(run);
  worker.stop();
  await working;
  assert.deepEqual(runs.map((run) => inner(run).result), [10, 11, 12, 13]);
});

test("a proxy that answers for the server ends no worker and no report", { timeout: 30_000 }, async (t) => {
  const served = await serving(t, five);
  const proxied = [408, 502].map((status) => ({ body: "no", status }));
  const within = served.fake.handler;
  served.fake.handler = async (asked) => (asked.path.endsWith("/claims") && proxied.shift()) || within(asked);
  served.broken = [408, 504].map((status) => ({ body: "no", status }));
  const run = served.engine.start(five, 1);
  const worker = workerOf(served, [five]);
  const working = worker.run();
  await served.ended(run);
  worker.stop();
  await working;
  assert.deepEqual([inner(run).result, inner(run).claims, proxied], [11, 1, []]);
});

test("a worker that may not work says so", { timeout: 30_000 }, async (t) => {
  const served = await serving(t, five);
  served.fake.handler = async () => problem(401, "unauthenticated");
  await assert.rejects(workerOf(served, [five]).run(), Unauthenticated);
  const refused = (options: unknown, said: RegExp) =>
    assert.throws(
      () => new Worker("http://127.0.0.1:1", options as WorkerOptions),
      (error) => error instanceof AbideError && said.test(error.message),
    );
  refused({ workflows: [five, five] }, /each name and version once/);
  refused({ workflows: [] }, /expected at least one, found none/);
  refused({ workflows: five }, /expected at least one, found a Workflow/);
  refused({ workflows: [five], concurrency: 0 }, /at least 1, found 0/);
  refused({ workflows: [five], lease: "soon" }, /expected milliseconds/);
});

test("errors end runs with their stack", { timeout: 30_000 }, async (t) => {
  const breaks = workflow("breaks", async (ctx) => {
    await ctx.effect("fine", () => 1);
    throw new RangeError("broken");
  });
  const served = await serving(t, breaks);
  const run = served.engine.start(breaks, null);
  const worker = workerOf(served, [breaks]);
  const working = worker.run();
  await served.ended(run);
  worker.stop();
  await working;
  assert.deepEqual([run.status, run.error?.message], ["failed", "RangeError: broken"]);
  assert.match((run.error?.details as { traceback: string }).traceback, /worker\.test/);
});
