/** An entry of the ledger as an attempt knows it. */

import type { Call } from "./call.js";
import type { EntryEnd, ErrorInfo, LedgerEntry, Policy, Retry } from "./protocol.js";
import { variant } from "./protocol.js";
import { maybeInstant, readInstant } from "./times.js";

export const REPLAY_SAFE: ReadonlySet<string> = new Set(["pure", "idempotent", "dedupe"]);

/** What an entry is. */
export type Kind = "effect" | "timer" | "signal" | "update" | "child" | "patch" | "manual";

/** How an entry ended: with a `value`, with an `error`, or it `elapsed`. */
export type End = { ended: number; seen: number; at: number } & (
  | { how: "value"; value: unknown }
  | { how: "error"; error: ErrorInfo }
  | { how: "elapsed" }
);

function readEnd(end: EntryEnd): End {
  const when = { ended: end.ended, seen: end.seen, at: readInstant(end.at) };
  if (end.error !== undefined && end.error !== null) return { ...when, how: "error", error: end.error };
  if (end.elapsed !== undefined && end.elapsed !== null) return { ...when, how: "elapsed" };
  return { ...when, how: "value", value: end.value ?? null };
}

/** What the entry's `what` may have, whatever its kind. */
interface What {
  policy?: Policy;
  undo?: boolean;
  claim?: number;
  run?: string;
  failures?: number;
  retry_at?: string | null;
  until?: string | null;
  answered?: boolean;
}

/** An entry as this attempt knows it. */
export class Known {
  policy: Policy | undefined;
  undo = false;
  /** The name that the code has for it, with its scope and without its number. */
  name: string | undefined;
  op: number | undefined;
  end: End | undefined;
  claim = 0;
  child: string | undefined;
  asked = false;
  delivered = false;
  go = false;
  reopens = false;
  withdrawn = false;
  released = false;
  failures = 0;
  resting = false;
  review: number | undefined;
  answered = false;
  retry: Retry | undefined;
  call: ((call: Call) => unknown) | undefined;
  /** Whoever waits for it. */
  readonly waiters: { readonly branch: { readonly lost: boolean }; readonly wake: () => void }[] = [];

  constructor(
    readonly key: string,
    readonly kind: Kind,
    /** The hash of its input; 0 for none. */
    readonly input: bigint = 0n,
  ) {}

  /** As it is recorded. */
  static read(entry: LedgerEntry): Known {
    const [kind, what] = variant<What>(entry.what);
    const known = new Known(entry.key, kind as Kind, BigInt(`0x${entry.input ?? "0"}`));
    const end = entry.end ? readEnd(entry.end) : undefined;
    known.policy = what.policy;
    known.undo = what.undo ?? false;
    known.op = entry.op;
    known.end = end;
    known.claim = what.claim ?? 0;
    known.child = what.run;
    known.failures = what.failures ?? 0;
    known.resting = kind === "effect" && end === undefined && (what.retry_at ?? null) !== null;
    known.answered = what.answered ?? false;
    if (end?.how === "elapsed" && (kind === "timer" || kind === "signal" || kind === "update")) {
      const until = maybeInstant(what.until);
      known.withdrawn = until === undefined || end.at < until;
    }
    return known;
  }

  get replaySafe(): boolean {
    return this.kind === "effect" && this.policy !== undefined && REPLAY_SAFE.has(this.policy);
  }

  /** Whether it may or may not have happened under an earlier claim, and must not be repeated. */
  get inDoubt(): boolean {
    return this.kind === "effect" && !this.replaySafe && this.end === undefined && this.claim !== 0 && !this.go;
  }

  /** Whether it failed, and a retry may cure it. */
  get curable(): boolean {
    return this.end?.how === "error" && this.end.error.retryable;
  }
}
