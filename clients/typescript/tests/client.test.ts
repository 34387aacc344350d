/** The client against a server on a real socket. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, test, type TestContext } from "node:test";

import {
  AbideError,
  BadUrl,
  Client,
  type ClientOptions,
  ConnectionFailed,
  KeyTaken,
  Problem,
  Redirected,
  RunFailed,
  TimedOut,
  Unencodable,
  Untrusted,
  Worker,
  workflow,
} from "abide";

import { Http } from "../dist/http.js";
import { Fake, type Handler, inOrder, problem, type Said } from "./fake.js";

const RUN = `run_${"0".repeat(31)}1`;
const nothing = workflow("nothing", async () => {});
const BODY = { run: RUN, text: "é".repeat(100) };

/** A server that answers as it is told, and a client that asks it. */
async function asking(t: TestContext, handler: Handler, options: ClientOptions = {}): Promise<[Client, Fake]> {
  const fake = await new Fake(handler).start();
  const client = new Client(fake.url, options);
  t.after(async () => {
    client.close();
    await fake.stop();
  });
  return [client, fake];
}

describe("requests", () => {
  test("a connection is kept, and bodies of every form are read", async (t) => {
    const forms = inOrder({ body: BODY }, { body: BODY, how: "chunked" }, { body: BODY });
    const [client, fake] = await asking(t, forms, { token: "secret" });
    for (let time = 0; time < 3; time += 1) assert.deepEqual(await client.get(RUN), BODY);
    assert.equal(fake.connections, 1);
    assert.equal(fake.asked[0]?.headers["authorization"], "Bearer secret");
    assert.equal(fake.asked[0]?.path, `/v1/namespaces/default/runs/${RUN}`);
    const [other, closing] = await asking(t, inOrder({ body: BODY, how: "until_close" }));
    assert.deepEqual([await other.get(RUN), await other.get(RUN)], [BODY, BODY]);
    assert.equal(closing.connections, 2);
    assert.equal(closing.asked[0]?.headers["authorization"], undefined);
  });

  test("numbers of 64 bits are sent with all their digits", async (t) => {
    const [client, fake] = await asking(t, inOrder({ body: { duplicate: false } }));
    await client.signal(RUN, "n", { big: 18446744073709551615n, small: 7 });
    assert.equal(fake.asked[0]?.text, '{"name":"n","payload":{"big":18446744073709551615,"small":7}}');
  });

  test("a kept connection that the server closed is not used", async (t) => {
    const [client, fake] = await asking(t, inOrder({ body: {} }), { retryFor: 0 });
    await client.get(RUN);
    fake.hangUp();
    await client.get(RUN);
    assert.equal(fake.connections, 2);
  });

  test("what a kept connection may have carried is sent again only if it is done once", async (t) => {
    const sent = async (method: string, headers: Record<string, string>) => {
      const [, fake] = await asking(t, inOrder({ body: {} }, { how: "hang_up" }, { body: {} }));
      const http = new Http(fake.url);
      t.after(() => http.close());
      await http.request(method, "/", undefined, { headers });
      await http.request(method, "/", undefined, { headers }).catch((error) => assert.ok(error instanceof ConnectionFailed));
      return fake.asked.length;
    };
    assert.equal(await sent("GET", {}), 3);
    assert.equal(await sent("POST", { "Idempotency-Key": "k" }), 3);
    assert.equal(await sent("POST", {}), 2);
  });

  test("a request without an answer is sent again under its key", async (t) => {
    const lost: Said[] = [{ how: "hang_up" }, { body: { run: RUN }, how: "cut" }, problem(503, "unknown"), problem(429, "busy")];
    const [client, fake] = await asking(t, inOrder(...lost, { body: { run: RUN, admission: "created" }, status: 201 }));
    assert.equal(await client.start("order", { n: 1 }, { key: "k", onConflict: "reuse" }), RUN);
    const keys = new Set(fake.asked.map((asked) => asked.headers["idempotency-key"]));
    assert.deepEqual([fake.asked.length, keys.size], [5, 1]);
    assert.match([...keys][0] ?? "", /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
    assert.deepEqual(fake.asked[0]?.body, { workflow: "order", input: { n: 1 }, key: "k", on_conflict: "reuse" });
  });

  test("what is not recognised the second time is sent once", async (t) => {
    // It was sent again, found what it had done itself, and whoever asked was told that there is no such run.
    const asks = [
      (client: Client) => client.purge(RUN),
      (client: Client) => client.requeue(RUN),
      (client: Client) => client.discard(RUN),
    ];
    for (const ask of asks) {
      for (const lost of [problem(503, "unknown"), { how: "hang_up" } as Said]) {
        const [client, fake] = await asking(t, inOrder(lost, problem(404, "not_found")));
        await assert.rejects(ask(client), (error: Error) => !(error instanceof Problem) || error.code === "unknown");
        assert.equal(fake.asked.length, 1);
        assert.equal(fake.asked[0]?.headers["idempotency-key"], undefined);
      }
    }
  });

  test("what a proxy answers for a server it did not reach is asked again", async (t) => {
    const proxied: Said[] = [408, 502, 504].map((status) => ({ body: "no", status }));
    const [client, fake] = await asking(t, inOrder(...proxied, { body: BODY }));
    assert.deepEqual(await client.get(RUN), BODY);
    assert.equal(fake.asked.length, 4);
  });

  test("a server that is not there or silent is given up", async (t) => {
    const [client, fake] = await asking(t, () => new Promise(() => {}), { timeout: 50, retryFor: 10 });
    await assert.rejects(client.get(RUN), (error) => error instanceof ConnectionFailed && /no answer within 0.05 s/.test(error.message));
    await fake.stop();
    await assert.rejects(client.get(RUN), ConnectionFailed);
  });

  test("it speaks TLS, and only with whom it trusts", async (t) => {
    const place = mkdtempSync(join(tmpdir(), "abide-tls-"));
    t.after(() => rmSync(place, { recursive: true }));
    const made = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"];
    try {
      execFileSync("openssl", [...made, "-addext", "subjectAltName=DNS:localhost", "-keyout", "key.pem", "-out", "cert.pem"], {
        cwd: place,
        stdio: "ignore",
      });
    } catch {
      return t.skip("there is no openssl to make a certificate with");
    }
    const [cert, key] = [readFileSync(join(place, "cert.pem")), readFileSync(join(place, "key.pem"))];
    const fake = await new Fake(inOrder({ body: { run: RUN } }), { cert, key }).start();
    const trusting = new Client(fake.url, { tls: { ca: cert } });
    t.after(async () => {
      trusting.close();
      await fake.stop();
    });
    assert.deepEqual(await trusting.get(RUN), { run: RUN });
    const begun = performance.now();
    const untrusted = (said: RegExp) => (error: unknown) => error instanceof Untrusted && error instanceof ConnectionFailed && said.test(error.message);
    await assert.rejects(new Client(fake.url).get(RUN), untrusted(/self.signed certificate.*tls: \{ ca: .*NODE_EXTRA_CA_CERTS/));
    await assert.rejects(new Worker(fake.url, { workflows: [nothing] }).run(), untrusted(/tls: \{ ca: /));
    const elsewhere = fake.url.replace("localhost", "127.0.0.1");
    await assert.rejects(new Client(elsewhere, { tls: { ca: cert } }).get(RUN), untrusted(/by a name that its certificate has/));
    assert.ok(performance.now() - begun < 5_000, "no retry cures it");
  });

  test("what has no JSON form is not sent", async (t) => {
    const [client, fake] = await asking(t, inOrder({ body: { run: RUN } }));
    const cycle: unknown[] = [];
    cycle.push(cycle);
    const unencodable = (error: unknown) => error instanceof Unencodable && error instanceof AbideError;
    for (const bad of ["\ud800", { "\ud800": 1 }, NaN, new Set(), 2n ** 64n, 10n ** 400n, () => 1, cycle]) {
      await assert.rejects(client.start("x", bad), unencodable);
      await assert.rejects(client.signal(RUN, "s", bad), unencodable);
      await assert.rejects(client.update(RUN, "u", bad), unencodable);
    }
    await assert.rejects(async () => client.get("\ud800"), unencodable);
    await assert.rejects(async () => client.list({ key: "\ud800" }).next(), unencodable);
    await assert.rejects(client.start("x", 1, { idempotencyKey: "a\r\nb" }), unencodable);
    assert.deepEqual(fake.asked, []);
    assert.equal(await client.start("x", ["\u{1f600}", 2n ** 64n - 1n, undefined]), RUN);
  });

  test("a redirect is not followed", async (t) => {
    for (const status of [301, 302, 303, 307, 308]) {
      const other = await new Fake(inOrder({ body: { run: RUN, claims: [] } })).start();
      t.after(() => other.stop());
      const away = { status, body: { claims: [] }, headers: { Location: `${other.url}/v1/elsewhere` } };
      const [client, fake] = await asking(t, inOrder(away), { token: "secret" });
      const redirected = (error: unknown) =>
        error instanceof Redirected && error.status === status && /elsewhere.*no redirect is followed/.test(error.message);
      await assert.rejects(client.start("x", { n: 1 }), redirected);
      await assert.rejects(client.get(RUN), redirected);
      await assert.rejects(new Worker(fake.url, { workflows: [nothing], token: "secret" }).run(), redirected);
      assert.deepEqual([fake.asked.length, other.connections], [3, 0]);
    }
  });

  test("addresses that are none are refused", () => {
    for (const url of ["127.0.0.1:7411", "ftp://x", "http://", ""]) {
      assert.throws(() => new Client(url), (error) => error instanceof BadUrl && /expected http:\/\/host:port/.test(error.message));
    }
  });
});

describe("asking", () => {
  test("problems are errors that say what to do", async (t) => {
    const taken = problem(409, "key_taken", { run: RUN, expected: "a free key", found: "k" });
    const [client, fake] = await asking(t, inOrder(taken));
    await assert.rejects(client.start("order", null, { key: "k" }), (error) => {
      assert.ok(error instanceof KeyTaken && error instanceof Problem);
      const { code, status, run, expected, found, whatToDo, name } = error;
      assert.deepEqual(
        [code, status, run, expected, found, whatToDo, name],
        ["key_taken", 409, RUN, "a free key", "k", "do something else", "KeyTaken"],
      );
      assert.match(error.message, /do something else/);
      return true;
    });
    assert.equal(fake.asked.length, 1, "a problem of ours is not sent again");
    const [other] = await asking(t, inOrder(problem(418, "never_heard")));
    await assert.rejects(other.get(RUN), (error) => error instanceof Problem && error.code === "never_heard");
  });

  test("a result is waited for until the run has ended", async (t) => {
    const ending = (status: string, ended: boolean, more = {}): Said => ({
      body: { run: RUN, status, ended, result: null, error: null, ...more },
    });
    const [client, fake] = await asking(t, inOrder(ending("sleeping", false), ending("done", true, { result: 5 })));
    assert.equal(await client.result(RUN), 5);
    assert.match(fake.asked[0]?.path ?? "", /wait_ms=20000/);
    const error = { code: "full", message: "no", retryable: false };
    const [failing] = await asking(t, inOrder(ending("failed", true, { error })));
    await assert.rejects(failing.result(RUN), (found) => {
      assert.ok(found instanceof RunFailed);
      assert.deepEqual([found.status, found.error?.code], ["failed", "full"]);
      return true;
    });
    const [waiting] = await asking(t, inOrder(ending("sleeping", false)));
    await assert.rejects(waiting.result(RUN, { timeout: "20ms" }), TimedOut);
  });

  test("pages follow each other", async (t) => {
    const pages = [
      { body: { runs: [{ run: "a" }, { run: "b" }], next: "b" } },
      { body: { runs: [{ run: "c" }], next: null } },
    ];
    const [client, fake] = await asking(t, inOrder(...pages), { namespace: "a b" });
    const found = [];
    for await (const run of client.list({ status: "open" })) found.push(run.run);
    assert.deepEqual(found, ["a", "b", "c"]);
    for await (const run of client.list({ status: ["done", "failed"], limit: 1 })) found.push(run.run);
    const within = "/v1/namespaces/a%20b/runs?";
    const expected = ["status=open", "status=open&before=b", "status=done%2Cfailed&limit=1"];
    assert.deepEqual(fake.asked.map((asked) => asked.path), expected.map((query) => within + query));
  });

  test("runs are looked for by labels and times", async (t) => {
    const [client, fake] = await asking(t, inOrder({ body: { runs: [], next: null } }));
    const updatedBefore = new Date("2026-11-15T02:00:00+02:00");
    for await (const run of client.list({ labels: { team: "ops", "a b": "ж" }, updatedBefore })) assert.fail(run.run);
    const query = "label=team%3Dops&label=a+b%3D%D0%B6&updated_before=2026-11-15T00%3A00%3A00.000Z";
    assert.deepEqual(fake.asked.map((asked) => asked.path), [`/v1/namespaces/default/runs?${query}`]);
  });

  test("an update is asked under one key until it is answered", async (t) => {
    const waits = { body: { run: RUN, answered: false, answer: null } };
    const [client, fake] = await asking(t, inOrder(waits, { body: { run: RUN, answered: true, answer: 4 } }));
    assert.equal(await client.update(RUN, "add", 1), 4);
    assert.equal(fake.asked[0]?.body.dedup, fake.asked[1]?.body.dedup);
    assert.equal(fake.asked[0]?.headers["idempotency-key"], fake.asked[1]?.headers["idempotency-key"]);
  });

  test("what is said to runs and for people", async (t) => {
    const [client, fake] = await asking(t, inOrder({ body: { duplicate: false, rev: 3 } }));
    await client.signal(RUN, "paid", { by: "card" }, { dedup: "d" });
    await client.cancel(RUN, "late", { cascade: true });
    await client.approve("manual_1.2", { actor: "ann", note: "yes" });
    await client.reject("manual_1.2", { actor: "ann" });
    await client.claim("manual_1.3", { actor: "ann" });
    await client.release("manual_1.3", { actor: "ann" });
    await client.complete("manual_1.3", 12);
    await client.resolve(RUN, "wire", { value: 1 });
    const found = fake.asked.map((asked) => [asked.method, asked.path.replace("/v1/namespaces/default", ""), asked.body]);
    assert.deepEqual(found, [
      ["POST", `/runs/${RUN}/signals`, { name: "paid", payload: { by: "card" }, dedup: "d" }],
      ["POST", `/runs/${RUN}/cancel`, { reason: "late", cascade: true }],
      ["POST", "/approvals/manual_1.2/approve", { actor: "ann", note: "yes" }],
      ["POST", "/approvals/manual_1.2/reject", { actor: "ann" }],
      ["POST", "/tasks/manual_1.3/claim", { actor: "ann" }],
      ["POST", "/tasks/manual_1.3/release", { actor: "ann" }],
      ["POST", "/tasks/manual_1.3/complete", { payload: 12 }],
      ["POST", `/runs/${RUN}/effects/resolve`, { effect: "wire", how: { value: 1 } }],
    ]);
  });
});
