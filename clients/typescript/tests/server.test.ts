/**
 * AB-19: end to end against a real server, whose binary is named by `ABIDE_BIN`; skipped, visibly, without it. Workers over
 * HTTP have the fences that local ones have.
 */

import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { describe, test, type TestContext } from "node:test";

import { Client, KeyTaken, NotFound, Problem, RunFailed, UpdateRejected, ClaimLost, RunOver } from "abide";

import { Http, problemOf } from "../dist/http.js";
import type { Attempt, ReportAnswer, Say } from "../dist/protocol.js";
import { tokenHash } from "../dist/worker.js";
import { until } from "./support.js";

const BINARY = process.env["ABIDE_BIN"] || undefined;

/** A server with a store of its own, and its workers. */
class Place {
  readonly folder = mkdtempSync(join(tmpdir(), "abide-typescript-"));
  readonly log = join(this.folder, "calls");
  private readonly processes: ChildProcess[] = [];
  private port = 0;
  server: ChildProcess | undefined;

  static async of(t: TestContext): Promise<[Place, Client]> {
    const place = new Place();
    const client = new Client(await place.serve());
    t.after(() => {
      client.close();
      for (const process of place.processes) process.kill("SIGKILL");
      rmSync(place.folder, { recursive: true, force: true });
    });
    return [place, client];
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  async serve(): Promise<string> {
    const store = `sqlite:${this.folder}/a.db`;
    const options = ["serve", "--store", store, "--no-auth", "--listen", `127.0.0.1:${this.port}`];
    this.server = spawn(BINARY ?? "", options, { stdio: ["ignore", "pipe", "ignore"] });
    this.processes.push(this.server);
    for await (const line of createInterface(this.server.stdout!)) {
      const found = /http:\/\/127\.0\.0\.1:(\d+)/.exec(line)?.[1];
      if (found === undefined) continue;
      this.port = Number(found);
      this.server.stdout?.resume();
      return this.url;
    }
    return assert.fail("the server ended and has not said where it listens");
  }

  worker(): ChildProcess {
    const script = join(import.meta.dirname, "order-worker.js");
    const worker = spawn(process.execPath, [script, this.url, this.log], { stdio: ["ignore", "ignore", "ignore"] });
    this.processes.push(worker);
    return worker;
  }

  calls(): string[] {
    return existsSync(this.log) ? readFileSync(this.log, "utf8").trimEnd().split("\n") : [];
  }
}

async function killed(process: ChildProcess): Promise<void> {
  const gone = new Promise((resolve) => process.once("exit", resolve));
  process.kill("SIGKILL");
  await gone;
}

async function all<T>(found: AsyncIterable<T>): Promise<T[]> {
  const list: T[] = [];
  for await (const one of found) list.push(one);
  return list;
}

/** What a run asks a person to approve. */
async function asked(client: Client, run: string): Promise<string> {
  return until(async () => (await all(client.approvals())).find((found) => found.run === run)?.boundary);
}

const options = { skip: BINARY === undefined ? "ABIDE_BIN names no server" : false, timeout: 60_000 };

describe("a real server", options, () => {
  test("a worker is killed in a step, and another finishes it", options, async (t) => {
    const [place, client] = await Place.of(t);
    const first = place.worker();
    const run = await client.start("order", { id: 7 }, { key: "order-7" });
    assert.equal(await client.start("order", { id: 7 }, { key: "order-7", onConflict: "reuse" }), run);
    await assert.rejects(client.start("order", { id: 8 }, { key: "order-7" }), (error) => error instanceof KeyTaken && error.run === run);
    await until(() => existsSync(`${place.log}.killed`));
    await killed(first);
    place.worker();
    const boundary = await asked(client, run);
    assert.deepEqual((await client.get(run)).state, ["reserve", "charge", "pack"]);
    await client.approve(boundary, { actor: "ann", note: "fine" });
    const expected = ["reserve", "charge", "pack", "released", "ship"];
    assert.deepEqual(await client.result(run, { timeout: "30s" }), expected);
    const calls = place.calls().map((call) => call.split(" "));
    assert.deepEqual(calls.map(([name]) => name), ["reserve", "charge", "pack", "pack", "ship"]);
    assert.deepEqual(calls[2], calls[3], "the key of an effect is the same over all attempts");
    const effects = new Map((await client.effects(run)).map((effect) => [effect.key, effect]));
    assert.equal(effects.get("ship")?.idempotency_key, calls[4]?.[1]);
    assert.ok((await all(client.journal(run))).length > 5);
    assert.deepEqual((await all(client.list({ workflow: "order" }))).map((found) => found.run), [run]);
  });

  test("a server that is killed is found again, and nothing is lost", options, async (t) => {
    const [place, client] = await Place.of(t);
    writeFileSync(`${place.log}.killed`, "");
    place.worker();
    const { child } = await import("abide");
    const started = await client.startMany([0, 1, 2, 3, 4].map((n) => child("order", n)));
    const runs = started.map((answer) => answer.started?.run ?? assert.fail("it was not started"));
    await killed(place.server!);
    await place.serve();
    for (const run of runs) await client.approve(await asked(client, run), { actor: "ann" });
    for (const run of runs) assert.equal((await client.result<string[]>(run, { timeout: "30s" })).at(-1), "ship");
  });

  test("updates, children, races, signals and tasks", options, async (t) => {
    const [place, client] = await Place.of(t);
    place.worker();
    const run = await client.start("waits", 1);
    assert.equal(await client.update(run, "add", 4), 5);
    await assert.rejects(client.update(run, "add", -1), (error) => error instanceof UpdateRejected && error.error?.message === "only more");
    assert.equal(await client.update(run, "add", 5), 10);
    assert.equal(await client.signal(run, "end", { by: "me" }, { dedup: "d" }), false);
    assert.equal(await client.signal(run, "end", { by: "me" }, { dedup: "d" }), true);
    const task = await until(async () => (await all(client.tasks()))[0]?.boundary);
    await client.claim(task, { actor: "ann" });
    await client.complete(task, 12, { actor: "ann" });
    assert.deepEqual(await client.result(run, { timeout: "30s" }), [10, [10, 20], 1, { by: "me" }, 12]);
  });

  /** BU-28, BU-29, BU-30, BU-31 */
  test("what steps say of their progress is shown, in order, and told to the next attempt", options, async (t) => {
    const [place, client] = await Place.of(t);
    place.worker();
    const run = await client.start("copies");
    const parked = async () => (await client.get(run)).status === "awaiting_signal";
    await until(parked);
    const { events, latest, trimmed } = await client.progress(run);
    assert.deepEqual([events.map((event) => event.value), latest, trimmed], [[1, 2, 3, 4], { page: 4 }, false]);
    const [, second] = events;
    const after = await client.progress(run, { after: second!.seq });
    assert.deepEqual(after.events.map((event) => event.value), [3, 4]);
    await client.signal(run, "end");
    assert.deepEqual(await client.result(run, { timeout: "30s" }), [2, "too_large"]);
  });

  test("machines, cancels, errors and numbers of 64 bits", options, async (t) => {
    const [place, client] = await Place.of(t);
    place.worker();
    const run = await client.start("machine");
    await client.signal(run, "paid", true);
    const expected = { key: `${run}-0-first-1/call`, paid: true, kids: [30] };
    assert.deepEqual(await client.result(run, { timeout: "30s" }), expected);
    const exact = await client.start("exact", { big: 2n ** 63n });
    assert.deepEqual(await client.result(exact, { timeout: "30s" }), { big: 2n ** 63n + 1n, kind: "bigint" });
    await assert.rejects(client.result(await client.start("breaks"), { timeout: "30s" }), (error) => {
      assert.ok(error instanceof RunFailed && error.error !== undefined);
      assert.match((error.error.details as { traceback: string }).traceback, /breaks/);
      return true;
    });
    const trip = await client.start("trip");
    await until(async () => (await client.effects(trip)).some((effect) => effect.key === "unbook"));
    await client.cancel(trip, "no");
    await assert.rejects(client.result(trip, { timeout: "30s" }), (error) => error instanceof RunFailed && error.status === "cancelled");
    assert.equal(place.calls().at(-1), "unbook");
    assert.equal(typeof (await client.explain(trip)).sentence, "string");
    await assert.rejects(client.get(`run_${"0".repeat(32)}`), NotFound);
  });
});

/** A worker by hand, which can say what a worker would not. */
class Hand {
  private readonly http: Http;
  private readonly within = "/v1/namespaces/default/worker";

  constructor(
    url: string,
    readonly secret: string,
  ) {
    this.http = new Http(url);
  }

  close(): void {
    this.http.close();
  }

  async claim(workflow: string, lease_ms = 30_000): Promise<Attempt> {
    const offer = { workflow, version: 1, fingerprint: "00000000000000a1", first_step: "one" };
    const work = { worker: "hand", token_hash: tokenHash(this.secret), queues: ["default"], workflows: [offer], most: 1, lease_ms, wait_ms: 20_000 };
    const answer = await this.http.request("POST", `${this.within}/claims`, JSON.stringify(work));
    return (answer.json() as { claims: Attempt[] }).claims[0] ?? assert.fail("expected an attempt");
  }

  /** What became of a report; a problem if it was refused. */
  async say(claim: string, say: Say): Promise<ReportAnswer | Problem> {
    const answer = await this.http.request("POST", `${this.within}/reports`, JSON.stringify({ token: this.secret, reports: [{ claim, say }] }));
    if (answer.status >= 400) throw problemOf(answer);
    const [said] = (answer.json() as { answers: ReportAnswer[] }).answers;
    return said?.problem ? Problem.of(said.problem) : (said ?? {});
  }
}

function isRefusal(said: ReportAnswer | Problem, kind: typeof Problem, ...codes: string[]): void {
  assert.ok(said instanceof kind, `expected a refusal, found ${JSON.stringify(said)}`);
  assert.ok(codes.includes(said.code), `expected one of ${codes.join(", ")}, found ${said.code}`);
  assert.notEqual(said.whatToDo, "");
}

describe("fences of a real server", options, () => {
  const result = (value: unknown): Say => ({ complete: { outcome: { done: { result: value } }, entries: [] } });

  test("answers that are double, conflicting, of another or after the end are typed refusals, and change nothing", options, async (t) => {
    const [place, client] = await Place.of(t);
    const [mine, other] = [new Hand(place.url, "mine"), new Hand(place.url, "other")];
    t.after(() => [mine, other].forEach((hand) => hand.close()));
    const claiming = mine.claim("job");
    const run = await client.start("job", 1);
    const { claim } = await claiming;
    isRefusal(await other.say(claim, result("stolen")), ClaimLost, "wrong_token");
    isRefusal(await other.say(claim, { heartbeat: {} }), ClaimLost, "wrong_token");
    isRefusal(await mine.say(claim.replace(/_[0-9]+$/, "_9"), result("early")), ClaimLost, "stale_claim");
    isRefusal(await mine.say(`claim_${"0".repeat(32)}_1`, result("nobody's")), NotFound, "not_found");
    assert.deepEqual((await client.get(run)).status, "executing");
    const first = await mine.say(claim, result("first"));
    assert.ok(!(first instanceof Problem) && first.recorded?.duplicate === false);
    const again = await mine.say(claim, result("first"));
    assert.ok(!(again instanceof Problem) && again.recorded?.duplicate === true);
    isRefusal(await mine.say(claim, result("second")), Problem, "conflicting_completion");
    isRefusal(await mine.say(claim, { heartbeat: {} }), RunOver, "run_over");
    assert.equal(await client.result(run), "first");
  });

  test("an answer after the lease is refused, and the step runs again", options, async (t) => {
    const [place, client] = await Place.of(t);
    const [slow, quick] = [new Hand(place.url, "slow"), new Hand(place.url, "quick")];
    t.after(() => [slow, quick].forEach((hand) => hand.close()));
    const claiming = slow.claim("job", 1_000);
    const run = await client.start("job", 1);
    const late = await claiming;
    const now = await quick.claim("job");
    assert.deepEqual([now.run, now.reclaims], [run, 1]);
    isRefusal(await slow.say(late.claim, result("late")), ClaimLost, "stale_claim", "lease_expired");
    isRefusal(await slow.say(now.claim, result("late")), ClaimLost, "wrong_token");
    await quick.say(now.claim, result("in time"));
    assert.equal(await client.result(run), "in time");
    assert.ok((await client.get(run)).anomalies > 0, "what was said in vain stands in the run's story");
  });
});
