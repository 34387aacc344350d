/** Workflows made by chance: each comes to the same end wherever its worker dies. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { workflow } from "abide";
import { crashEverywhere, type TestRun } from "abide/testing";

import { mix } from "../dist/hashing.js";
import { Script, type Step } from "./script.js";

const SEEDS = Number(process.env["ABIDE_SEEDS"] ?? "10");

/** Numbers that depend on nothing but their seed. */
class Chance {
  constructor(private state: bigint) {}

  /** One of them. */
  pick<T>(items: readonly T[]): T {
    this.state = mix(this.state + 0x9e3779b97f4a7c15n);
    return items[Number(this.state % BigInt(items.length))]!;
  }

  /** A whole number of this range. */
  between(least: number, most: number): number {
    return least + this.pick([...Array(most - least + 1).keys()]);
  }
}

/** Steps made by chance. Names in branches are kept apart by scopes. */
function made(chance: Chance, depth = 0): Step[] {
  return Array.from({ length: chance.between(1, 4) }, (_, number) => one(chance, depth, number));
}

function one(chance: Chance, depth: number, number: number): Step {
  const kinds = ["effect", "effect", "sleep", "signal", "publish", "patch", "undo", "child"];
  const kind = chance.pick([...kinds, ...(depth < 2 ? ["all", "race"] : [])]);
  const name = chance.pick(["a", "b", "c"]);
  const as = `${kind}${number}`;
  switch (kind) {
    case "effect":
      return { effect: { name, policy: chance.pick(["pure", "idempotent", "dedupe"]), input: number }, as, catch: "e" };
    case "sleep":
      return { sleep: { ms: chance.pick([0, 10, 20, 30]) } };
    case "signal":
      // In a branch it never comes: whose turn it is would be up to which branch was there first.
      return { signal: { name: depth === 0 ? name : `no ${name}`, within_ms: chance.pick([5, 25, 60]) }, as };
    case "publish":
      return { publish: [name, number] };
    case "undo":
      return { undo: { name: `undo ${name}` } };
    case "child":
      return { child: { name: `kid ${name}`, workflow: "kid", input: number }, as };
    case "patch":
      return { patch: { name, then: depth < 3 ? made(chance, 3) : [] } };
    case "race": {
      // Of waits alone: whether an effect ends before a timer is decided anew when a worker dies before that is durable.
      const sleeps = [4, 8, 12, 16].slice(chance.between(0, 1), chance.between(3, 4));
      return { race: sleeps.map((ms, place) => [scoped(place, [{ sleep: { ms } }])]), as };
    }
    default:
      return { all: Array.from({ length: chance.between(2, 3) }, (_, place) => [scoped(place, made(chance, depth + 1))]), as };
  }
}

function scoped(place: number, steps: Step[]): Step {
  return { scope: { name: `s${place}`, do: steps } };
}

const kid = workflow("kid", async (ctx, n: number) => {
  await ctx.sleep(15);
  return 10 * n;
});

test("workflows made by chance come to the same end wherever their worker dies", async (t) => {
  let crashes = 0;
  for (let seed = 0; seed < SEEDS; seed += 1) {
    const chance = new Chance(BigInt(seed));
    const steps = made(chance);
    const told = new Set(steps.filter((step) => "as" in step && !("catch" in step)).map((step) => step["as"] as string));
    const failing = { fail: { code: "chance", message: "no", retryable: false } };
    const ending = seed % 7 === 3 ? failing : { return: [...told].map((name) => ({ $: name })) };
    const effects = { a: { value: 1 }, b: { error: { code: "x", message: "y", retryable: false } } };
    const signals = Array.from({ length: 3 }, () => chance.pick(["a", "b", "c"]));
    const story = async (run: TestRun<any>) => {
      for (const name of signals) {
        await run.engine.advance(12);
        await run.signal(name, name);
      }
    };
    await t.test(`seed ${seed}`, async () => {
      const script = new Script({ clock: "", script: [...steps, ending], effects }).workflow();
      crashes += await crashEverywhere([script, kid], script, null, { story });
    });
  }
  assert.ok(crashes > 10 * SEEDS, `${crashes} crashes`);
});
