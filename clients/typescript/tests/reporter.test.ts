/** The reporter against a server on a real socket: what is said again, what is known of it, and in which order it arrives. */

import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";

import { Http } from "../dist/http.js";
import { Unknown } from "../dist/link.js";
import type { Say } from "../dist/protocol.js";
import { Reporter } from "../dist/reporter.js";
import { type Asked, Fake, type Handler, problem, type Said } from "./fake.js";
import { Gate, QUIET, turns, until } from "./support.js";

const RECORD: Say = { record: { entries: [] } };

async function reporting(t: TestContext, handler: Handler): Promise<[Reporter, Fake]> {
  const fake = await new Fake(handler).start();
  const http = new Http(fake.url);
  const places = { more: () => undefined, got: () => {} };
  const reporter = new Reporter(http, "/reports", "secret", places, QUIET);
  t.after(async () => {
    // What is not answered would be sent again for ever.
    reporter.stop();
    http.close();
    await fake.stop();
  });
  return [reporter, fake];
}

function recorded(asked: Asked): Said {
  return { body: { answers: asked.body.reports.map(() => ({ recorded: { rev: 1, duplicate: false } })), claims: [] } };
}

/**
 * A server that dies after a commit closes a connection that was used before: that does not mean that it has not seen the
 * record, and that the second is `invalid` does not mean that the first was.
 */
test("a record that is refused after its connection broke may be recorded", { timeout: 30_000 }, async (t) => {
  const invalid: Said = { body: { answers: [{ problem: problem(422, "invalid").body }], claims: [] } };
  const said: (Said | undefined)[] = [undefined, { how: "hang_up" }, invalid];
  const [reporter, fake] = await reporting(t, async (asked) => said.shift() ?? recorded(asked));
  await reporter.ask("claim_1_1", RECORD);
  await assert.rejects(reporter.ask("claim_1_1", RECORD), Unknown);
  assert.deepEqual([fake.connections, fake.asked.length], [2, 3]);
});

/** SQ-35: what is said of one attempt arrives in the order in which it was said. */
test("of a claim one request is under way at a time", { timeout: 30_000 }, async (t) => {
  const goOn = new Gate();
  const [reporter, fake] = await reporting(t, async (asked) => {
    if ("heartbeat" in asked.body.reports[0].say) await goOn.passed;
    return recorded(asked);
  });
  let answered = 0;
  const said = (claim: string, say: Say) => reporter.ask(claim, say).then(() => (answered += 1));
  const first = said("claim_1_1", { heartbeat: {} });
  await until(() => fake.asked.length === 1);
  const later = [said("claim_1_1", RECORD), said("claim_1_1", { give_back: {} })];
  // One of another claim does not wait for it, and overtakes what does.
  await said("claim_2_1", RECORD);
  await turns(5);
  assert.equal(answered, 1);
  goOn.open();
  await Promise.all([first, ...later]);
  const came = fake.asked.map((asked) => asked.body.reports.map((one: { claim: string; say: Say }) => [one.claim, ...Object.keys(one.say)].join(" ")));
  assert.deepEqual(came, [["claim_1_1 heartbeat"], ["claim_2_1 record"], ["claim_1_1 record", "claim_1_1 give_back"]]);
});

test("a batch ends where it is full, and keeps the order of a claim", { timeout: 30_000 }, async (t) => {
  const [reporter, fake] = await reporting(t, async (asked) => recorded(asked));
  const runs = [...Array(257).keys(), 256];
  await Promise.all(runs.map((run) => reporter.ask(`claim_${run}_1`, RECORD)));
  assert.deepEqual(fake.asked.map((asked) => asked.body.reports.length), [256, 2]);
});

test("what still waits when the reporter stops is not known", { timeout: 30_000 }, async (t) => {
  const [reporter, fake] = await reporting(t, () => new Promise(() => {}));
  const first = reporter.ask("claim_1_1", { heartbeat: {} });
  await until(() => fake.asked.length === 1);
  const second = reporter.ask("claim_1_1", RECORD);
  reporter.stop();
  await assert.rejects(first, Unknown);
  await assert.rejects(second, Unknown);
});
