/** The worker against an engine behind a real socket: credits, batches, heartbeats, drains, and lost answers. */

import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";

import { AbideError, type Executable, Unauthenticated, Worker, type WorkerOptions, workflow } from "abide";
import { TestEngine } from "abide/testing";

import { type Report, Served } from "./served.js";
import { problem } from "./fake.js";
import { Gate, inner, QUIET, turns, until } from "./support.js";

const five = workflow("five", async (ctx, n: number) => {
  let sum = n;
  for (let step = 0; step < 5; step += 1) sum += await ctx.effect(`step ${step}`, () => step);
  return sum;
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
