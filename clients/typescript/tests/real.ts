/** A real server on a store of its own, and workers of this process. */

import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TestContext } from "node:test";

import { Client, type Executable, Worker } from "abide";

import { QUIET } from "./support.js";

const BINARY = process.env["ABIDE_BIN"];

/** For tests that need a server. */
export const REAL = { skip: BINARY === undefined ? "ABIDE_BIN names no server" : false, timeout: 60_000 };

/** A server, which may be killed and served again at the same place. */
export class Real {
  url = "";
  private readonly place = mkdtempSync(join(tmpdir(), "abide-node-"));
  private port = "0";
  private server: ChildProcess | undefined;

  static async of(t: TestContext): Promise<[Real, Client]> {
    const real = new Real();
    await real.serve();
    const client = new Client(real.url);
    t.after(async () => {
      client.close();
      await real.kill();
      rmSync(real.place, { recursive: true, force: true });
    });
    return [real, client];
  }

  async serve(): Promise<void> {
    const args = ["serve", "--store", `sqlite:${join(this.place, "a.db")}`, "--no-auth", "--listen", `127.0.0.1:${this.port}`];
    const server = spawn(BINARY ?? "", args, { stdio: ["ignore", "pipe", "ignore"] });
    this.server = server;
    const said = await new Promise<Buffer>((resolve) => server.stdout.once("data", resolve));
    this.port = /http:\/\/127\.0\.0\.1:(\d+)/.exec(said.toString())?.[1] ?? assert.fail("the server says where it listens");
    this.url = `http://127.0.0.1:${this.port}`;
  }

  async kill(): Promise<void> {
    const gone = new Promise((resolve) => this.server?.once("exit", resolve));
    this.server?.kill("SIGKILL");
    await gone;
  }

  /** A worker of this process, as long as the test goes, or until it is told to leave what it does. */
  working(t: TestContext, ...workflows: Executable[]): () => Promise<void> {
    const worker = new Worker(this.url, { workflows, poll: "1s", lease: "2s", logger: QUIET });
    const working = worker.run({ signals: false });
    const leave = async () => {
      worker.stop();
      worker.stop();
      await working;
    };
    t.after(leave);
    return leave;
  }
}
