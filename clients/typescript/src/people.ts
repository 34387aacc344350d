/** What came of asking a person. */

import { StepError } from "./errors.js";
import type { End } from "./known.js";
import type { Asked, BoundaryKind } from "./protocol.js";
import { moment, type When } from "./times.js";

/** Who is asked, and for how long. */
export interface AskOptions {
  /** Whoever has one of these roles may answer. */
  roles?: readonly string[];
  /** The person who is asked. */
  assignee?: string;
  /** When the wait is over. */
  timeout?: When;
}

/** What came of asking a person. */
export class Decision<Payload = unknown> {
  constructor(
    /** `resume`, `approve`, `reject` or `complete`; undefined when nobody decided in time. */
    readonly choice?: "resume" | "approve" | "reject" | "complete",
    readonly actor?: string,
    readonly note?: string,
    readonly payload?: Payload,
    readonly roles: readonly string[] = [],
  ) {}

  get approved(): boolean {
    return this.choice === "approve";
  }

  get rejected(): boolean {
    return this.choice === "reject";
  }

  /** Whether no person decided in time, whatever then counted as decided. */
  get timedOut(): boolean {
    return this.actor === undefined;
  }

  /** @internal What an entry ended with. */
  static of(end: End | undefined): Decision {
    if (end?.how === "error") throw StepError.of(end.error);
    if (end?.how !== "value") return new Decision();
    const found = end.value as Record<string, unknown>;
    return new Decision(
      (found["choice"] as Decision["choice"] | null) ?? undefined,
      (found["actor"] as string | null) ?? undefined,
      (found["note"] as string | null) ?? undefined,
      structuredClone(found["payload"] ?? null),
      (found["roles"] as string[] | null) ?? [],
    );
  }
}

/** What is asked of a person, as the ledger takes it. */
export function asking(kind: BoundaryKind, payload: unknown, options: AskOptions): { manual: Asked } {
  const asked: Asked = { kind, payload, roles: [...(options.roles ?? [])] };
  if (options.assignee !== undefined) asked.assignee = options.assignee;
  if (options.timeout !== undefined) asked.deadline = moment(options.timeout);
  return { manual: asked };
}
