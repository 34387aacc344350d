/** What an attempt needs of whoever gave it: a clock, a way to write to its ledger, and news that it is lost. */

import { AbideError, type Problem } from "./errors.js";
import type { Attempt, Entry, ErrorInfo, Offer, Say, Start } from "./protocol.js";

/** The way from an attempt to its engine. */
export interface Link {
  /** Aborted when the claim has ended: nothing that the attempt does will be recorded. */
  readonly lost: AbortSignal;

  /** The worker's clock, in milliseconds. */
  now(): number;

  /**
   * Writes to the ledger, and returns when that is durable.
   *
   * @throws {Problem} it was refused.
   * @throws {Unknown} whether it was recorded is not known.
   */
  record(entries: Entry[]): Promise<void>;

  /**
   * Says how far the step has come.
   *
   * @throws {Problem} it was refused.
   * @throws {Unknown} whether it was heard is not known.
   */
  progress(name: string, value: unknown): Promise<void>;

  /**
   * Starts a child under a key, and gives its id: that of the child that is there, if the key has one.
   *
   * @throws {Problem} it was refused.
   * @throws {Unknown} whether it was started is not known.
   */
  startChild(key: string, start: Start): Promise<string>;
}

/** A workflow that a worker can execute: a function or a machine. */
export interface Executable {
  readonly name: string;

  /** What a worker offers to execute. */
  offer(): Offer;

  /** Executes an attempt: what is said of it, or undefined when it is lost. */
  execute(attempt: Attempt, link: Link): Promise<Say | undefined>;
}

export const GIVE_BACK: Say = { give_back: {} };

/** Whether something was recorded is not known: the claim goes back. */
export class Unknown extends AbideError {}

/** Refusals that another attempt would get as well. */
export const SET_ASIDE: ReadonlySet<string> = new Set([
  "invalid",
  "busy",
  "too_large",
  "not_approved",
  "second_boundary",
  "malformed",
  "too_deep",
]);

/** The attempt is over, and this is said of it; undefined when there is nobody to say it to. */
export class Ended extends AbideError {
  constructor(readonly say: Say | undefined) {
    super("the attempt is over");
  }
}

/** The code does not fit its ledger: the attempt becomes a dead letter, for other code to go on with. */
export function setAside(error: ErrorInfo): Say {
  return { fail: { error, set_aside: true } };
}

/** What is said of an attempt whose record was refused. */
export function refused(problem: Problem): Say | undefined {
  if (problem.code === "unknown") return GIVE_BACK;
  if (!SET_ASIDE.has(problem.code)) return undefined;
  return setAside({ code: problem.code, message: problem.detail, retryable: false });
}
