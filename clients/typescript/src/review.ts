/**
 * Reviews: an effect that a control interrupts begins when a person has approved exactly that effect. The question is a
 * manual boundary; a run has one at a time, so a review waits for its turn.
 */

import type { Control, Operation } from "./control.js";
import type { Drive } from "./drive.js";
import { quoted, StepError, terminal } from "./errors.js";
import { Known } from "./known.js";
import { type Place, REVIEW } from "./ledger.js";
import { asking, Decision } from "./people.js";

/** The key of the review of an effect. */
export function reviewKey(effect: string): string {
  return effect + REVIEW;
}

/** An effect that is about to be reviewed. */
export class Review {
  constructor(
    private readonly drive: Drive,
    private readonly effect: Known,
    private readonly operation: Operation,
    private readonly shown: unknown,
  ) {}

  /** The entry of the review. One that is new is written when it is its turn. */
  point(place: Place): Known {
    const { ledger } = this.drive;
    const key = reviewKey(this.effect.key);
    ledger.lastPoint = { key, place };
    const known = ledger.byKey.get(key) ?? new Known(key, "manual", this.effect.input);
    known.asked = true;
    if (ledger.byKey.has(key)) ledger.check(known, "manual", this.effect.input, place);
    else ledger.entries.push(known);
    return known;
  }

  /** Writes the question, if nobody else is asked. */
  ask(review: Known, control: Control | undefined): void {
    const { entries } = this.drive.ledger;
    const asked = entries.some((known) => known.kind === "manual" && known.op !== undefined && known.end === undefined);
    if (review.op !== undefined || asked) return;
    const shown = {
      operation: this.operation.name,
      effect: this.effect.key,
      policy: this.operation.policy,
      idempotency_key: `${this.drive.base}/${this.effect.key}`,
      ...(this.effect.input === 0n ? {} : { input: this.shown }),
    };
    const { roles, assignee, deadline } = control ?? {};
    this.drive.ledger.writeIntent(
      review,
      asking("approval", shown, {
        ...(roles === undefined ? {} : { roles }),
        ...(assignee === undefined ? {} : { assignee }),
        ...(deadline === undefined ? {} : { timeout: deadline }),
      }),
    );
  }

  /**
   * Lets the effect begin.
   *
   * @throws {StepError} a person said no, or nobody said yes in time.
   */
  judge(review: Known): void {
    const decision = Decision.of(review.end);
    const name = this.effect.key;
    const interrupt = `manual_${this.drive.ledger.run.replace(/^run_/, "")}.${review.op ?? 0}`;
    const { actor, note } = decision;
    if (decision.choice === undefined || actor === undefined) {
      throw terminal("approval_expired", `nobody approved effect ${quoted(name)} in time (${interrupt})`);
    }
    if (decision.approved) {
      this.effect.review = review.op;
      return;
    }
    const details = { effect: name, interrupt, actor, ...(note === undefined ? {} : { note }) };
    const message = `effect ${quoted(name)} was rejected by ${actor}${note ? `: ${note}` : ""}`;
    throw new StepError(message, { code: "rejected", retryable: false, details });
  }
}
