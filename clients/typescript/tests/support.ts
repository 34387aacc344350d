/** What the tests share. */

import { readFileSync } from "node:fs";
import { join } from "node:path";

import type { Logger } from "abide";
import type { TestRun } from "abide/testing";

import type { MemoryRun } from "../dist/testing/run.js";
import { loads } from "../dist/jsons.js";

/** The folder of the package. Tests run from `dist-tests`. */
export const ROOT = join(import.meta.dirname, "..");
export const VECTORS = join(ROOT, "..", "vectors");

/** A file of test vectors. */
export function vectors<T>(name: string): T {
  return loads(readFileSync(join(VECTORS, name), "utf8")) as T;
}

/** What the engine in memory keeps of a run. */
export function inner(run: TestRun<any>): MemoryRun {
  return (run as unknown as { run: MemoryRun }).run;
}

/** Says nothing. */
export const QUIET: Logger = { info: () => {}, warn: () => {}, error: () => {} };

/** Lets everything go on that can, so often. */
export async function turns(count: number): Promise<void> {
  for (let turn = 0; turn < count; turn += 1) await new Promise((resolve) => setImmediate(resolve));
}

/** Looks until something is so; a test has a limit of its own. */
export async function until<T>(look: () => T | Promise<T>): Promise<NonNullable<T>> {
  for (;;) {
    const found = await look();
    if (found) return found;
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

/** Something that is waited for until it is called. */
export class Gate {
  open: () => void = () => {};
  readonly passed = new Promise<void>((resolve) => (this.open = resolve));
}
