/** Children of a function: started one by one, or many at once and joined. */

import { describe, StepError, terminal } from "./errors.js";
import type { Join } from "./protocol.js";

/** A child that was started. */
export interface StartedChild<Result = unknown> {
  /** The child, once the engine has told: in the next attempt at the latest. */
  readonly runId: string | undefined;
  /** Waits for its end and gives its result. */
  result(): Promise<Result>;
}

/** Children that were waited for together, by their keys. */
export class Joined<Key = string, Result = unknown> {
  /** What each gave that has ended: a value, or an error. */
  readonly ended = new Map<Key, Result | StepError>();
  private readonly needed: number;
  private readonly all_terminal: boolean;

  constructor(
    /** All of them, in the order they were given. */
    readonly keys: readonly Key[],
    join: Join,
  ) {
    if (typeof join === "object") {
      const { quorum } = join;
      if (!Number.isSafeInteger(quorum) || quorum < 1 || quorum > keys.length) {
        const said = `join: expected a quorum from 1 to ${keys.length}, the number of children, found ${describe(quorum)}`;
        throw terminal("invalid", said);
      }
    } else if (!["all_terminal", "all_succeeded", "any"].includes(join)) {
      const said = `join: expected "all_terminal", "all_succeeded", "any" or { quorum: n }, found ${describe(join)}`;
      throw terminal("invalid", said);
    }
    this.needed = typeof join === "object" ? join.quorum : join === "any" ? 1 : keys.length;
    this.all_terminal = join === "all_terminal";
  }

  /** What those gave that succeeded, in the order they were given. */
  succeeded(): Result[] {
    return this.keys.filter((key) => this.ended.has(key)).flatMap((key) => {
      const found = this.ended.get(key);
      return found instanceof StepError ? [] : [found as Result];
    });
  }

  /** Whether what was waited for came about. */
  met(): boolean {
    return this.all_terminal ? this.open === 0 : this.succeeded().length >= this.needed;
  }

  /** Whether it came about, or has become impossible. */
  over(): boolean {
    return this.met() || (!this.all_terminal && this.succeeded().length + this.open < this.needed);
  }

  /**
   * What each gave, when all succeeded.
   *
   * @throws {StepError} the first error in their order, or that one has not ended.
   */
  all(): Result[] {
    for (const key of this.keys) {
      const found = this.ended.get(key);
      if (found instanceof StepError) throw found;
    }
    if (this.open > 0) {
      const said = `expected all children to have ended, found ${this.open} that have not`;
      throw new StepError(said, { code: "not_ended" });
    }
    return this.succeeded();
  }

  private get open(): number {
    return this.keys.length - this.ended.size;
  }
}
