/** Following: streams that are cut, broken and begun again, on a real socket. */

import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";

import { Client, type ClientOptions, ConnectionFailed, NotFound } from "abide";

import { Parser } from "../dist/events.js";
import { Fake, type Handler, inOrder, problem, type Said } from "./fake.js";
import { until } from "./support.js";

const RUN = `run_${"0".repeat(31)}1`;
const END = 'event: end\ndata: {"status":"done"}\n\n';
const LIMIT = { timeout: 30_000 };

function streamed(body: string): Said {
  return { body, how: "raw", headers: { "Content-Type": "text/event-stream" } };
}

function row(rev: number): string {
  return `id: ${rev}\nevent: row\ndata: {"rev":${rev}}\n\n`;
}

async function asking(t: TestContext, handler: Handler, options: ClientOptions = {}): Promise<[Client, Fake]> {
  const fake = await new Fake(handler).start();
  const client = new Client(fake.url, options);
  t.after(async () => {
    client.close();
    await fake.stop();
  });
  return [client, fake];
}

/** What is told, and behind which event each connection asked to go on. */
async function followed(t: TestContext, said: Said[], after?: number): Promise<[unknown[], unknown[]]> {
  const [client, fake] = await asking(t, inOrder(...said));
  const told: unknown[] = [];
  for await (const { name, data } of client.follow(RUN, after === undefined ? {} : { after })) {
    told.push([name, "rev" in data ? data.rev : undefined]);
  }
  assert.deepEqual(new Set(fake.asked.map((asked) => asked.headers["accept"])), new Set(["text/event-stream"]));
  return [told, fake.asked.map((asked) => asked.headers["last-event-id"])];
}

test("events are whole wherever the stream is cut", () => {
  const text = Buffer.from('id: 7\nevent: row\ndata: {"a":\ndata: "é"}\n\n:\n\nevent: end\r\ndata: {}\r\n\r\n');
  for (let at = 0; at < text.length; at += 1) {
    const parser = new Parser();
    const found = [...parser.read(text.subarray(0, at)), ...parser.read(text.subarray(at))];
    assert.deepEqual(found, [{ name: "row", data: { a: "é" }, id: "7" }, { name: "end", data: {} }], `cut at ${at}`);
  }
});

test("a stream that breaks is followed on behind the last event", LIMIT, async (t) => {
  const broken: Said[] = [streamed(`${row(1)}${row(2)}id: 3\nevent: row\nda`), { how: "hang_up" }, problem(503, "closed")];
  const [told, asked] = await followed(t, [...broken, { body: "no", status: 502 }, streamed(row(3) + END)]);
  assert.deepEqual(told, [["row", 1], ["row", 2], ["row", 3], ["end", undefined]]);
  assert.deepEqual(asked, [undefined, "2", "2", "2", "2"]);
});

test("it goes on where it is told to", LIMIT, async (t) => {
  assert.deepEqual((await followed(t, [streamed(row(8) + END)], 7))[1], ["7"]);
});

test("progress is told once over all connections", LIMIT, async (t) => {
  const said = (seq: number) => `event: progress\ndata: {"seq":${seq},"rev":"p${seq}"}\n\n`;
  const [told] = await followed(t, [streamed(said(1) + said(2)), streamed(said(1) + said(2) + said(3) + END)]);
  assert.deepEqual(told, [["progress", "p1"], ["progress", "p2"], ["progress", "p3"], ["end", undefined]]);
});

test("what the server refuses is not asked again, and what is no stream is given up in time", LIMIT, async (t) => {
  const [refusing] = await asking(t, inOrder(problem(404, "not_found")));
  await assert.rejects(refusing.follow(RUN).next(), NotFound);
  const [other] = await asking(t, inOrder({ body: {} }), { retryFor: 0 });
  await assert.rejects(other.events().next(), (error) => error instanceof ConnectionFailed && /expected text.event-stream/.test(error.message));
});

test("whoever does not follow any more says so", LIMIT, async (t) => {
  const [client, fake] = await asking(t, () => new Promise(() => {}));
  const no = new AbortController();
  const next = client.events({ signal: no.signal }).next();
  await until(() => fake.asked.length === 1);
  no.abort();
  assert.deepEqual(await next, { value: undefined, done: true });
});
