/** Crashes everywhere: a workflow must come to the same end wherever its worker dies. */

import { isDeepStrictEqual } from "node:util";

import { AbideError, RunFailed } from "../errors.js";
import { dumps } from "../jsons.js";
import type { Executable } from "../link.js";
import { type Named, nameOf } from "../outcome.js";
import { TestEngine, type TestRun } from "./engine.js";

/** A workflow came to another end when its worker died. */
export class OtherEnd extends AbideError {}

/** What else is to be done. */
export interface CrashOptions {
  /** Does what comes from outside: signals, decisions. */
  story?: (run: TestRun<any>) => Promise<void>;
  /** Brings what the effects touch back to its beginning. */
  fresh?: () => void;
}

/**
 * Runs a workflow once without a crash, and then once for every report with a worker that dies before that report is
 * durable, and with one that dies after. Gives how many crashes there were.
 *
 * A run that is in doubt, because an effect that must not be repeated was cut off, is as it should be.
 *
 * @throws {OtherEnd} one did not come to the same end.
 */
export async function crashEverywhere(
  workflows: Executable | readonly Executable[],
  workflow: Named,
  input?: unknown,
  options: CrashOptions = {},
): Promise<number> {
  const codes = Array.isArray(workflows) ? (workflows as Executable[]) : [workflows as Executable];
  const tell = async (engine: TestEngine) => {
    options.fresh?.();
    return told(engine, nameOf(workflow), input, options);
  };
  const first = new TestEngine(...codes);
  const expected = await tell(first);
  for (let report = 1; report <= first.reports; report += 1) {
    for (const when of ["before", "after"] as const) {
      const engine = new TestEngine(...codes);
      engine.crash = { report, when };
      const found = await tell(engine);
      if (found[0] === "in_doubt" || isDeepStrictEqual(found, expected)) continue;
      const said = `a worker that died ${when} report ${report} of ${first.reports}`;
      throw new OtherEnd(`${said}: expected ${dumps(expected)}, found ${dumps(found)}`);
    }
  }
  return 2 * first.reports;
}

/** How a run ended, and with what. */
async function told(engine: TestEngine, workflow: string, input: unknown, options: CrashOptions): Promise<[string, unknown]> {
  const run = engine.start(workflow, input);
  try {
    if (options.story !== undefined) {
      await engine.settle();
      await options.story(run);
    }
    if (run.status === "in_doubt") return ["in_doubt", null];
    return ["done", await run.result()];
  } catch (error) {
    if (!(error instanceof RunFailed)) throw error;
    return [error.status, error.error?.code ?? null];
  }
}
