/** Functions: workflows that are ordinary async functions, replayed over their ledger. */

import { Branch, running } from "./branch.js";
import { Context, type Inside } from "./context.js";
import { type Control, Controls } from "./control.js";
import { Drive, Returned, Suspended } from "./drive.js";
import { AbideError, asStepError, describe, quoted, StepError } from "./errors.js";
import { hex16, stableHash } from "./hashing.js";
import { plain, written } from "./jsons.js";
import type { Known } from "./known.js";
import { Ledger } from "./ledger.js";
import { Ended, type Executable, type Link } from "./link.js";
import type { Attempt, Complete, Consume, Entry, Fail, Offer, OutcomeMessage, Policy, Retry, Say } from "./protocol.js";
import { type RetryPolicy, retryDelay, retryMessage } from "./retry.js";

/** The one step of a function, as the journal names it. */
const STEP = "run";

/** When undoing is tried again, where the function has no retry policy that says so. */
const UNDO_RETRY: Retry = retryMessage({ delay: 1_000 });

/** What a workflow is, beside its code. */
export interface WorkflowOptions {
  /** 1 if nothing is said. A run goes on with the version it began with. */
  version?: number;
  /** When the whole is tried again after an error that may be cured. */
  retry?: RetryPolicy;
  /** What may be done, what may not, and what someone must have said yes to. */
  controls?: readonly Control[];
  /** What it does outside, to be checked before anything runs. */
  operations?: Readonly<Record<string, Policy>>;
  /** The journal of a run begins anew once it has so many rows. */
  compactAfter?: number;
}

/** The code of a function. */
export type Code<Input, Result> = (ctx: Context, input: Input) => Promise<Result>;

/**
 * A workflow that is an async function. It is brought back after a crash, a deploy or a long wait by running it again from
 * its beginning: everything durable it did before is answered from the journal.
 */
export class Workflow<Input = any, Result = any> implements Executable {
  declare readonly types?: [Input, Result];
  readonly version: number;
  /** @internal */
  readonly retry: Retry | undefined;
  /** @internal */
  readonly controls: Controls;
  /** @internal */
  readonly compactAfter: number | undefined;

  /** @internal */
  constructor(
    readonly name: string,
    /** The code itself, for one function that calls another. */
    readonly code: Code<Input, Result>,
    options: WorkflowOptions,
  ) {
    this.version = checkVersion(name, options.version);
    this.retry = options.retry === undefined ? undefined : retryMessage(options.retry);
    this.controls = new Controls(options.controls, options.operations);
    this.compactAfter = checkRows(name, options.compactAfter);
  }

  offer(): Offer {
    const fingerprint = hex16(stableHash(`function\0${this.name}\0${this.version}`));
    return { workflow: this.name, version: this.version, fingerprint, first_step: STEP };
  }

  async execute(attempt: Attempt, link: Link): Promise<Say | undefined> {
    const drive = new Drive(new Ledger(attempt, "function"), link, identity(attempt), attempt.traceparent || undefined);
    const inside: Inside = { drive, attempt, controls: this.controls, undos: [] };
    try {
      return await new Running(this, inside).work();
    } catch (error) {
      if (error instanceof Ended) return error.say;
      throw error;
    } finally {
      drive.leave();
    }
  }
}

/**
 * Makes a workflow of an async function `(ctx, input)`.
 *
 * @throws {PlanError} an operation that it declares needs a control and has none.
 */
export function workflow<Input, Result>(name: string, code: Code<Input, Result>): Workflow<Input, Result>;
export function workflow<Input, Result>(
  name: string,
  options: WorkflowOptions,
  code: Code<Input, Result>,
): Workflow<Input, Result>;
export function workflow<Input, Result>(
  name: string,
  ...given: [Code<Input, Result>] | [WorkflowOptions, Code<Input, Result>]
): Workflow<Input, Result> {
  const [options, code] = given.length === 1 ? [{}, given[0]] : given;
  if (typeof code !== "function") {
    throw new AbideError(`workflow ${quoted(name)}: expected an async function (ctx, input) => …, found ${describe(code)}`);
  }
  return new Workflow(name, code, options);
}

/** The version of a workflow, if it can be one. */
export function checkVersion(name: string, version = 1): number {
  if (typeof name !== "string" || name === "") throw new AbideError(`workflow: expected a name, found ${describe(name)}`);
  if (Number.isSafeInteger(version) && version >= 1) return version;
  throw new AbideError(`workflow ${quoted(name)}: expected a version that is a whole number from 1 on, found ${describe(version)}`);
}

/** What the idempotency keys of a step's effects begin with: the same over all attempts, and differs from visit to visit. */
export function identity(attempt: Pick<Attempt, "run" | "epoch" | "step" | "visit">): string {
  return `${attempt.run}-${attempt.epoch ?? 0}-${attempt.step}-${attempt.visit}`;
}

/** An attempt failed. */
export function failed(error: StepError, entries: Entry[], retry?: Retry, reopen: number[] = []): Say {
  const said: Fail = { error: written(error), entries, reopen };
  if (retry !== undefined) said.retry = retry;
  return { fail: said };
}

/** An attempt returned. */
export function complete(
  outcome: OutcomeMessage,
  entries: Entry[],
  more: { consume?: Consume; handled?: StepError | undefined; compactAfter?: number | undefined } = {},
): Say {
  const said: Complete = { outcome, entries };
  if (more.consume !== undefined && more.consume !== "presented") said.consume = more.consume;
  if (more.handled !== undefined) said.handled = written(more.handled);
  if (more.compactAfter !== undefined) said.compact_after = more.compactAfter;
  return { complete: said };
}

/** After how many rows a journal begins anew, if it can be so many. */
export function checkRows(name: string, rows: number | undefined): number | undefined {
  if (rows === undefined || (Number.isSafeInteger(rows) && rows >= 1)) return rows;
  throw new AbideError(`workflow ${quoted(name)}: expected compactAfter to be a number of rows from 1 on, found ${describe(rows)}`);
}

/** A function in one attempt. */
class Running {
  private readonly drive: Drive;
  private readonly cancelling: boolean;

  constructor(
    private readonly workflow: Workflow,
    private readonly inside: Inside,
  ) {
    this.drive = inside.drive;
    this.cancelling = inside.attempt.cancelling;
  }

  /** The function, and what undoes it. */
  async work(): Promise<Say> {
    const ctx = new Context(this.inside);
    // A copy: the code may change what it is given.
    const input = structuredClone(this.inside.attempt.state);
    const came = await this.drive.work(async () => this.workflow.code(ctx, input) as unknown);
    const [failure, result] = came instanceof Returned && this.inside.again === undefined ? this.judge(came) : [];
    if (failure !== undefined && !this.final(failure) && !this.cancelling) return this.retried(failure, came.entries);
    if (failure === undefined && !this.cancelling) return this.came(came, result);
    return this.undo(failure, came.entries);
  }

  /** What went wrong, or what came of it. */
  private judge(came: Returned): [StepError | undefined, unknown?] {
    if ("error" in came.end) return [asStepError(came.end.error)];
    try {
      return [undefined, plain("the result", came.end.value)];
    } catch (error) {
      return [asStepError(error)];
    }
  }

  /** Whether a failure is not tried again. */
  private final(failure: StepError): boolean {
    const { retry } = this.workflow;
    return !failure.retryable || retry === undefined || retryDelay(retry, this.inside.attempt.retries, 0n) === undefined;
  }

  private retried(failure: StepError, entries: Entry[]): Say {
    const reopen = failure.op === undefined ? this.drive.ledger.curable() : [failure.op];
    return failed(failure, stillAsking(entries), this.workflow.retry, reopen);
  }

  private came(came: Returned | Suspended, result: unknown): Say {
    return complete(this.outcome(came, result), came.entries, { compactAfter: this.workflow.compactAfter });
  }

  private outcome(came: Returned | Suspended, result: unknown): OutcomeMessage {
    if (came instanceof Suspended) return { suspend: { seen: came.seen } };
    if (this.inside.again !== undefined) return { continue_as_new: { input: this.inside.again.input } };
    return { done: { result } };
  }

  /** Undoes what was done, the last first, and ends the run as it must end. */
  private async undo(failure: StepError | undefined, entries: Entry[]): Promise<Say> {
    const undos = [...this.inside.undos].reverse();
    if (undos.length === 0) return this.over(failure, entries);
    this.drive.ledger.buffer.unshift(...entries);
    this.drive.then();
    const ctx = new Context(this.inside);
    const came = await this.drive.work(() => undone(ctx, this.drive, undos));
    if (came instanceof Suspended) return complete({ suspend: { seen: came.seen } }, came.entries);
    if (!("error" in came.end)) return this.over(failure, came.entries);
    const error = asStepError(came.end.error);
    const { retries_max: _, ...endless } = this.workflow.retry ?? UNDO_RETRY;
    const { code, retryable, details } = error;
    const said = new StepError(`what was done could not be undone: ${error.toString()}`, { code, retryable, details });
    return failed(said, came.entries, endless, error.op === undefined ? [] : [error.op]);
  }

  private over(failure: StepError | undefined, entries: Entry[]): Say {
    if (failure !== undefined && !this.cancelling) return failed(failure, entries);
    return complete({ cancelled: {} }, entries);
  }
}

async function undone(ctx: Context, drive: Drive, undos: Known[]): Promise<void> {
  const found = running.getStore();
  const branch = found instanceof Branch ? found : drive.root;
  for (const known of undos) await ctx.executed(branch, known);
}

/** What a function that failed has to write: it is tried again, and then asks for what it asked when it failed. */
function stillAsking(entries: Entry[]): Entry[] {
  const last = entries.findLastIndex((entry) => "intend" in entry && "manual" in entry.intend.what);
  return entries.filter((entry, at) => at <= last || !("withdraw" in entry));
}
