/** The reporter against a server on a real socket: what is said again, what is known of it, and in which order it arrives. */

import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";

import { Http } from "../dist/http.js";
import { Unknown } from "../dist/link.js";
import type { Say } from "../dist/protocol.js";
import { Reporter } from "../dist/reporter.js";
import { type Asked, Fake, type Handler, problem, type Said } from "./fake.js";
import { QUIET } from "./support.js";

const RECORD: Say = { record: { entries: [] } };

async function reporting(t: TestContext, handler: Handler): Promise<[Reporter, Fake]> {
  const fake = await new Fake(handler).start();
  const http = new Http(fake.url);
  t.after(async () => {
    http.close();
    await fake.stop();
  });
  const places = { more: () => undefined, got: () => {} };
  return [new Reporter(http, "/reports", "secret", places, QUIET), fake];
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
