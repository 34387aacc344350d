/** The README, line by line, with the package as it is packed: its programs compile, its test runs, its quickstart runs. */

import assert from "node:assert/strict";
import { type ChildProcess, execFileSync, spawn, spawnSync } from "node:child_process";
import { closeSync, mkdirSync, mkdtempSync, openSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, test, type TestContext } from "node:test";

import { ROOT, until } from "./support.js";

const BINARY = process.env["ABIDE_BIN"] || undefined;

/** The programs of the README, by their file. */
function programs(): [string, string][] {
  const readme = readFileSync(join(ROOT, "README.md"), "utf8");
  const found = [...readme.matchAll(/^```(?:ts|json) file=(\S+)\n(.*?)^```$/gms)];
  return found.map(([, file, text]) => [file!, text!]);
}

/** A project with the packed package in it, and the programs of the README. */
function project(t: TestContext, port = 7411): string {
  const folder = mkdtempSync(join(tmpdir(), "abide-readme-"));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const npm = (cwd: string, ...options: string[]) => execFileSync("npm", options, { cwd, stdio: ["ignore", "pipe", "ignore"] });
  npm(ROOT, "pack", "--ignore-scripts", "--pack-destination", folder);
  writeFileSync(join(folder, "package.json"), '{ "name": "shop", "type": "module" }');
  npm(folder, "install", "--offline", "--no-audit", "--no-fund", "./abide-0.1.0.tgz");
  mkdirSync(join(folder, "node_modules/@types"));
  for (const name of ["typescript", "@types/node", "undici-types"]) {
    symlinkSync(join(ROOT, "node_modules", name), join(folder, "node_modules", name));
  }
  for (const [file, text] of programs()) {
    writeFileSync(join(folder, file), text.replaceAll("127.0.0.1:7411", `127.0.0.1:${port}`));
  }
  const compiled = spawnSync(process.execPath, ["node_modules/typescript/bin/tsc"], { cwd: folder, encoding: "utf8" });
  assert.equal(compiled.status, 0, compiled.stdout);
  return folder;
}

describe("the README", () => {
  test("its programs compile against the packed package, and its test passes", { timeout: 60_000 }, (t) => {
    const folder = project(t);
    // What is started by a test tells it so, and would report to it.
    const { NODE_TEST_CONTEXT: _, ...env } = process.env;
    const tested = spawnSync(process.execPath, ["--test", "reminder.test.js"], { cwd: folder, encoding: "utf8", env });
    assert.equal(tested.status, 0, tested.stdout);
    assert.match(tested.stdout, /pass 2/);
    const packed = JSON.parse(readFileSync(join(folder, "node_modules/abide/package.json"), "utf8"));
    assert.equal(packed.dependencies, undefined, "it has no dependencies");
  });

  const options = { skip: BINARY === undefined ? "ABIDE_BIN names no server" : false, timeout: 90_000 };

  /** AB-19 */
  test("its quickstart survives a kill, and a person approves", options, async (t) => {
    const processes: ChildProcess[] = [];
    t.after(() => processes.forEach((process) => process.kill("SIGKILL")));
    const place = mkdtempSync(join(tmpdir(), "abide-readme-server-"));
    t.after(() => rmSync(place, { recursive: true, force: true }));
    const start = (cwd: string, name: string, command: string, ...given: string[]) => {
      const out = openSync(join(place, name), "a");
      const process = spawn(command, given, { cwd, stdio: ["ignore", out, out] });
      closeSync(out);
      processes.push(process);
      return process;
    };
    const said = (name: string) => readFileSync(join(place, name), "utf8");
    start(place, "server", BINARY ?? "", "dev", "--listen", "127.0.0.1:0");
    const port = Number(await until(() => /http:\/\/127\.0\.0\.1:(\d+)/.exec(said("server"))?.[1]));
    const folder = project(t, port);
    const worker = start(folder, "worker", process.execPath, "shop.js");
    start(folder, "buy", process.execPath, "buy.js");
    await until(() => said("worker").includes("bank under"));
    worker.kill("SIGKILL");
    start(folder, "worker2", process.execPath, "shop.js");
    const url = `http://127.0.0.1:${port}/v1/namespaces/default/approvals`;
    const curl = (...given: string[]) => spawnSync("curl", given, { encoding: "utf8" });
    const boundary = await until(() => /manual_[0-9a-f]{32}\.\d+/.exec(curl("-s", url).stdout)?.[0]);
    const yes = curl("-sf", "-H", "Content-Type: application/json", "-d", '{"actor": "ann"}', `${url}/${boundary}/approve`);
    assert.equal(yes.status, 0, yes.stderr);
    await until(() => said("buy").includes("mail done"));
    const done = said("buy").match(/'[a-z]+ done'/g);
    assert.deepEqual(done, ["'stock done'", "'bank done'", "'packing done'", "'carrier done'", "'mail done'"]);
    assert.ok(!said("worker2").includes("stock"), "what was done is not done again");
  });
});
