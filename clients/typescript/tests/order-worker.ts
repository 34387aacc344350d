/** A worker in a process of its own, for the tests against a real server: `order-worker.js <url> <log>`. */

import { appendFileSync, existsSync, writeFileSync } from "node:fs";

import { awaitSignals, type Call, child, done, machine, spawn, Worker, workflow } from "abide";

const [, , url = "", log = ""] = process.argv;

function note(text: string): void {
  appendFileSync(log, `${text}\n`);
}

const order = workflow("order", { retry: { delay: 50 } }, async (ctx, input: unknown) => {
  const step = async ({ key }: Call, name: string) => {
    note(`${name} ${key}`);
    if (name === "pack" && !existsSync(`${log}.killed`)) {
      writeFileSync(`${log}.killed`, "");
      await new Promise((resolve) => setTimeout(resolve, 60_000));
    }
    return name;
  };
  const all: string[] = [];
  for (const name of ["reserve", "charge", "pack"]) {
    all.push(await ctx.effect(name, (call) => step(call, name), { input }));
  }
  ctx.publish(all);
  const decision = await ctx.approval("release", { order: input });
  all.push(decision.approved ? "released" : "refused");
  await ctx.sleep(50);
  all.push(await ctx.effect("ship", (call) => step(call, "ship")));
  return all;
});

const kid = workflow("kid", async (_, n: number) => 10 * n);

const waits = workflow("waits", async (ctx, input: number) => {
  let total = input;
  while (total < 10) {
    const asked = await ctx.update<number>("add");
    if (asked.input < 0) {
      asked.reject("only more");
    } else {
      total += asked.input;
      asked.answer(total);
    }
  }
  const kids = await Promise.all([1, 2].map((n) => ctx.child(`kid ${n}`, kid, n)));
  const [won] = await ctx.race<unknown>([ctx.signal("never"), ctx.sleep(20)]);
  const said = await ctx.signal("end", { timeout: "60s" });
  return [total, kids, won, said, await ctx.task("count", { what: "boxes" })];
});

const trip = workflow("trip", async (ctx) => {
  await ctx.effect("book", () => note("book"));
  ctx.undo("unbook", () => note("unbook"));
  await ctx.signal("go");
});

const breaks = workflow("breaks", async function breaks(ctx) {
  await ctx.effect("fine", () => 1);
  throw new RangeError("broken");
});

const steps = machine("machine", {
  first: async (ctx) => {
    const key = await ctx.effect("call", (call) => call.key);
    return awaitSignals("paid", { key }, { then: "second", deadline: "60s" });
  },
  second: async (ctx) => spawn([child(kid, 3)], "third", { ...ctx.state, paid: ctx.signal("paid") }),
  third: async (ctx) => done({ ...ctx.state, kids: ctx.children.map((found) => found.result) }),
});

const exact = workflow("exact", async (ctx, input: { big: bigint }) =>
  ctx.effect("more", () => ({ big: input.big + 1n, kind: typeof input.big }), { input }),
);

const copies = machine("copies", { retry: { delay: 10 } }, {
  copy: async (ctx) => {
    const first = (ctx.lastProgress["page"] as number | undefined) ?? 0;
    for (const page of [first + 1, first + 2]) await ctx.progress("page", page);
    const refused = await ctx.progress("page", "x".repeat(5_000)).then(
      () => "none",
      (error: { code: string }) => error.code,
    );
    if (ctx.attempt === 0) throw new Error("broken");
    return awaitSignals("end", [first, refused], { then: "end" });
  },
  end: async (ctx) => done(ctx.state),
});

await new Worker(url, { workflows: [order, waits, kid, trip, breaks, steps, exact, copies], lease: "2s", poll: "2s" }).run();
