/**
 * The ledger as an attempt sees it: what is recorded of its effects and waits, what it adds, and what is not durable yet.
 * It does no I/O and knows no clock. Names, numbers and entries must be those that the Rust SDK writes for the same code;
 * `clients/vectors/replay.json` pins them.
 */

import type { Came } from "./call.js";
import { quoted, type StepError, terminal } from "./errors.js";
import { canonicalText, hex16, stableHash } from "./hashing.js";
import { type End, type Kind, Known } from "./known.js";
import type { Attempt, Entry, ErrorInfo, Policy, Retry, Wanted } from "./protocol.js";
import { retryDelay } from "./retry.js";
import { readInstant, writeInstant } from "./times.js";

export const REVIEW = "#review";
export const POLICIES: readonly Policy[] = ["pure", "idempotent", "dedupe", "reconcile", "unsafe_once"];
const NAME_BYTES_MAX = 1_000 - 20;

const KINDS: Record<Kind, string> = {
  effect: "an effect",
  timer: "a timer",
  signal: "a wait for a signal",
  update: "a wait for an update",
  child: "a child",
  patch: "the mark of an edit",
  manual: "a wait for a person",
};

/** Where the code stands that asks for something. */
export type Place = () => string;

/** The ledger of one attempt. */
export class Ledger {
  readonly claim: number;
  readonly run: string;
  readonly entries: Known[] = [];
  readonly byKey = new Map<string, Known>();
  nextOp: number;
  /** How many points of a name the code has come to. */
  private readonly points = new Map<string, number>();
  readonly active = new Set<string>();
  /** What the code took notice of before, the last first. */
  private readonly replay: Known[] = [];
  private readonly fresh: Known[] = [];
  buffer: Entry[] = [];
  /** The state that the code has set, as its text, by which equal ones are known. */
  private setState: { state: unknown; text: string } | undefined;
  private published: string | undefined;
  readonly wanting = new Set<Known>();
  readonly calling = new Set<Known>();
  readonly waiting = new Set<Known>();
  /** What an attempt before gave up. */
  private readonly withdrawn: Known[];
  ended: number;
  now: number;
  fatal: StepError | undefined;
  windingDown: boolean;
  private readonly patches = new Map<string, boolean>();
  lastPoint: { key: string; place: Place } | undefined;
  /** The function leaves memory: what it still does counts for nothing. */
  left = false;

  constructor(attempt: Attempt, what: "function" | "step") {
    this.claim = claimNumber(attempt.claim);
    this.run = attempt.run;
    this.nextOp = attempt.next_op;
    this.ended = attempt.ended;
    this.now = readInstant(attempt.begun_at);
    this.windingDown = attempt.cancelling;
    if ("published" in attempt) this.published = canonicalText(attempt.published ?? null);
    for (const entry of attempt.ledger.filter((found) => found.visit === attempt.visit)) {
      const known = Known.read(entry);
      this.entries.push(known);
      this.byKey.set(known.key, known);
    }
    this.withdrawn = this.entries.filter((known) => known.withdrawn);
    const ended = this.entries.filter((known) => known.end !== undefined && !known.withdrawn);
    if (what === "step") ended.forEach(knowAll);
    else this.order(ended);
  }

  /** A function takes notice of ends in the order it did before, and of new ones after. */
  private order(ended: Known[]): void {
    const seen = ended.filter((known) => endOf(known).seen > 0);
    seen.sort((one, other) => endOf(other).seen - endOf(one).seen).forEach((known) => this.replay.push(known));
    const fresh = ended.filter((known) => endOf(known).seen === 0);
    fresh.sort((one, other) => endOf(one).ended - endOf(other).ended).forEach((known) => this.fresh.push(known));
  }

  // What the code asks for.

  /** The entry of the next durable point of this name, made if it is new. */
  point(name: string, kind: Kind, wanted: Wanted, input: bigint, place: Place): Known {
    checkName(name);
    const effect = "effect" in wanted;
    if (effect && this.active.has(name)) {
      const said = `two effects named ${quoted(name)} overlap in one scope; give them names of their own, or use ctx.scope or ctx.map`;
      throw terminal("overlapping_effects", said);
    }
    const key = this.nextKey(name);
    this.points.set(name, (this.points.get(name) ?? 0) + 1);
    if (effect) this.active.add(name);
    this.lastPoint = { key, place };
    const found = this.byKey.get(key);
    if (found !== undefined) {
      found.asked = true;
      found.name = name;
      found.released = false;
      this.check(found, kind, input, place);
      return found;
    }
    const known = new Known(key, kind, input);
    if ("effect" in wanted) known.policy = wanted.effect.policy;
    if ("undo" in wanted) {
      known.policy = wanted.undo.policy;
      known.undo = true;
    }
    known.name = name;
    known.asked = true;
    this.entries.push(known);
    if (!effect) this.writeIntent(known, wanted);
    return known;
  }

  /** What does not fit between an entry that is recorded and what the code asks for under its key ends the attempt. */
  check(known: Known, kind: Kind, input: bigint, place: Place): void {
    let found: string;
    if (known.kind !== kind) {
      found = `expected ${KINDS[known.kind]}, as recorded, found ${KINDS[kind]}`;
    } else if (known.input !== 0n && known.input !== input) {
      found = `expected the input it was recorded with (hash ${hex16(known.input)}), found another (${hex16(input)})`;
    } else {
      return;
    }
    const where = `the code does not fit what is recorded at ${quoted(known.key)} (${place()})`;
    const what = "nothing was changed. Put the old code back, or guard the edit with ctx.patch";
    this.endAttempt(terminal("diverged", `${where}: ${found}; ${what}`));
  }

  /** Ends the attempt with an error that the code cannot answer. */
  endAttempt(error: StepError): void {
    this.fatal ??= error;
  }

  /** The key that the next point of a name has. */
  nextKey(name: string): string {
    const points = this.points.get(name) ?? 0;
    return points === 0 ? name : `${name}#${points + 1}`;
  }

  /** Whether the code goes the new way at the edit of this name, for the whole life of the run. */
  patch(name: string, place: Place): boolean {
    try {
      checkName(name);
    } catch (error) {
      this.endAttempt(error as StepError);
      return false;
    }
    const decided = this.patches.get(name);
    if (decided !== undefined) return decided;
    const known = this.byKey.get(name);
    if (known !== undefined) {
      known.asked = true;
      this.check(known, "patch", 0n, place);
    }
    const patched = known !== undefined || !this.hasMore();
    if (known === undefined && patched) {
      this.ended += 1;
      const mark = new Known(name, "patch");
      mark.end = { how: "value", value: null, ended: this.ended, seen: 0, at: this.now };
      mark.asked = mark.delivered = mark.released = true;
      this.entries.push(mark);
      this.writeIntent(mark, { patch: { at: writeInstant(this.now) } });
    }
    this.patches.set(name, patched);
    return patched;
  }

  /** Whether the history goes on beyond where the code is. Marks of other edits say nothing about that. */
  private hasMore(): boolean {
    const unseen = this.replay.some((known) => known.kind !== "patch");
    return unseen || this.entries.some((known) => !known.asked && known.kind !== "patch");
  }

  /** The wait for a person that the code is in when it comes to the next one of this name, if it is in one. */
  asks(name: string): string | undefined {
    const own = this.byKey.get(this.nextKey(name))?.op;
    const open = this.entries.filter((known) => known.kind === "manual" && known.asked && !known.delivered);
    return open.find((known) => known.op !== undefined && (own === undefined || known.op < own))?.key;
  }

  // What is written.

  /** Numbers an entry that is new and writes that it begins. */
  writeIntent(known: Known, what: Wanted): number {
    known.op = this.nextOp;
    this.nextOp += 1;
    this.buffer.push(intend(known, known.op, what));
    return known.op;
  }

  /** Writes that an effect begins under this claim, unless that is written. */
  writeEffect(known: Known): number {
    const policy = known.policy ?? "idempotent";
    if (known.op === undefined) {
      known.claim = this.claim;
      const review = known.review === undefined ? {} : { review: known.review };
      return this.writeIntent(known, { effect: { policy, ...review } });
    }
    if (known.reopens || (known.claim !== this.claim && !known.replaySafe)) {
      this.buffer.push(intend(known, known.op, { effect: { policy } }));
      known.claim = this.claim;
      known.reopens = false;
    }
    return known.op;
  }

  /** Writes how an effect ended, which is what every replay will see. */
  writeEnd(known: Known, came: Came, at: number): void {
    this.now = Math.max(this.now, at);
    this.ended += 1;
    const op = this.writeEffect(known);
    known.end = { ...came, ended: this.ended, seen: 0, at: this.now };
    known.delivered = true;
    const instant = writeInstant(this.now);
    if (came.how === "value") this.buffer.push({ done: { op, value: came.value, at: instant } });
    else this.buffer.push({ failed: { op, error: came.error, at: instant } });
  }

  /** Lets an effect that failed rest until it is tried again; its error, if that stands now. */
  rest(known: Known, error: ErrorInfo, policy: Retry): ErrorInfo | undefined {
    // The policy may have been edited: the one that is recorded counts.
    if (!known.replaySafe) return error;
    const seed = stableHash(`${this.run}\0${known.key}`) ^ BigInt(known.failures);
    const delay = retryDelay(policy, known.failures, seed);
    if (delay === undefined) return { ...error, retryable: false };
    known.failures += 1;
    known.resting = true;
    known.go = false;
    const op = this.writeEffect(known);
    this.buffer.push({ again: { op, error, delay_ms: delay } });
    return undefined;
  }

  /** Answers what an entry got, unless that is recorded. */
  reply(known: Known, how: { value: unknown } | { rejected: ErrorInfo }): void {
    if (known.answered || known.op === undefined) return;
    known.answered = true;
    this.buffer.push({ answer: { op: known.op, ...how } });
  }

  /** Sets the state that is seen from outside. */
  publish(state: unknown): void {
    this.setState = { state, text: canonicalText(state) };
  }

  /** Takes what is to be written, with the state that the code has set since. */
  takeEntries(): Entry[] {
    const entries = this.buffer;
    this.buffer = [];
    if (this.setState !== undefined && this.setState.text !== this.published) {
      this.published = this.setState.text;
      entries.push({ publish: { state: this.setState.state } });
    }
    this.setState = undefined;
    return entries;
  }

  get unwritten(): boolean {
    return this.buffer.length > 0 || (this.setState !== undefined && this.setState.text !== this.published);
  }

  // What the code gives up.

  /** Nobody waits for an effect any more, or it has ended. */
  release(known: Known): void {
    if (known.released) return;
    known.released = true;
    for (const places of [this.waiting, this.calling, this.wanting]) places.delete(known);
    if (known.name !== undefined) this.active.delete(known.name);
  }

  /** The code does not wait any more. Nothing is written when it has had what it waited for, or leaves memory. */
  waitNoMore(known: Known): void {
    this.waiting.delete(known);
    // What came after the code stopped looking is for the next wait of its name.
    const end = known.end;
    const unseen = end === undefined || (known.kind !== "manual" && end.how === "value" && end.seen === 0);
    if (this.left || known.delivered || !unseen) {
      known.delivered = true;
      return;
    }
    known.delivered = true;
    known.end = { how: "elapsed", ended: this.ended + 1, seen: 0, at: this.now };
    if (known.op !== undefined) {
      this.ended += 1;
      const at = this.fresh.indexOf(known);
      if (at >= 0) this.fresh.splice(at, 1);
      this.buffer.push({ withdraw: { op: known.op } });
    }
  }

  /** Waits again for what an attempt before gave up and the code now waits for. */
  waitAgain(): void {
    for (const known of this.withdrawn) {
      if (known.withdrawn && this.waiting.has(known) && known.op !== undefined) {
        known.withdrawn = false;
        known.end = undefined;
        this.buffer.push({ wait_again: { op: known.op } });
      }
    }
  }

  // How far it is.

  /** The next entry that the code may take notice of: first as it did before, then what is new. */
  deliver(): Known | undefined {
    let known = this.replay.pop();
    if (known === undefined) {
      known = this.fresh.shift();
      if (known?.op === undefined) return undefined;
      this.buffer.push({ see: { op: known.op } });
    }
    known.delivered = true;
    this.now = Math.max(this.now, endOf(known).at);
    return known;
  }

  /** Effects that failed and may be cured: what a retry begins again when nobody says which made it fail. */
  curable(): number[] {
    return this.entries.filter((known) => known.curable).flatMap((known) => (known.op === undefined ? [] : [known.op]));
  }

  /** Whether the code is being brought to where it was before. */
  get replaying(): boolean {
    return this.replay.length > 0;
  }

  /** Whether nothing is under way: all the code does is wait. */
  get rests(): boolean {
    return this.calling.size === 0 && this.wanting.size === 0;
  }

  /** Whether nothing that the code waits for is in the ledger. */
  get waitsForNothing(): boolean {
    return ![...this.waiting].some((known) => known.end === undefined);
  }
}

/** A step has no past and knows all ends at once: an error that may be cured is met by trying again. */
function knowAll(known: Known): void {
  if (known.curable && known.replaySafe) {
    known.end = undefined;
    known.reopens = true;
  } else {
    known.delivered = true;
  }
}

function endOf(known: Known): End {
  if (known.end === undefined) throw new TypeError(`the entry ${known.key} has not ended`);
  return known.end;
}

function intend(known: Known, op: number, what: Wanted): Entry {
  const input = known.input === 0n ? {} : { input: hex16(known.input) };
  return { intend: { op, key: known.key, what, ...input } };
}

/** Which claim of its run it is. */
export function claimNumber(claim: string): number {
  return Number(claim.slice(claim.lastIndexOf("_") + 1));
}

/** Refuses what cannot be the name of an effect or wait. */
function checkName(name: string): void {
  const size = Buffer.byteLength(name);
  let found: string;
  if (name === "") found = "none";
  else if (!name.isWellFormed()) found = `half of a surrogate pair in ${quoted(name.toWellFormed())}`;
  else if (name.includes("#")) found = quoted(name);
  else if (size > NAME_BYTES_MAX) found = `${size} bytes`;
  else return;
  const said = `the name of an effect or wait, with its scope: expected text of 1 to ${NAME_BYTES_MAX} bytes without '#', found ${found}`;
  throw terminal("bad_name", said);
}
