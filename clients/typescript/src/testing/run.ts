/** What the engine keeps of one run in memory: its ledger, its inbox, and who waits for what. */

import { Problem } from "../errors.js";
import { REPLAY_SAFE } from "../known.js";
import {
  type Arrived,
  type Asked,
  type Entered,
  type Entry,
  type EntryEnd,
  type ErrorInfo,
  type Join,
  type LedgerEntry,
  type Moment,
  type Offspring,
  type Policy,
  type Start,
  variant,
  type Wanted,
  type WokenBy,
} from "../protocol.js";
import { maybeInstant, readInstant, writeInstant } from "../times.js";

/** An entry of the ledger, and what a person is shown if it asks for one. */
export interface Op extends LedgerEntry {
  asked?: { payload: unknown; roles: string[]; assignee: string | undefined };
}

/** Something that the run was asked to do. */
export interface Update {
  name: string;
  input: unknown;
  op: number | undefined;
  answered: boolean;
  answer: unknown;
  rejected: ErrorInfo | undefined;
}

/** What a run is parked on. */
export interface Wait {
  kind: "await" | "sleep" | "children" | "ledger";
  until?: number | undefined;
  then?: string | undefined;
  names?: string[];
  children?: string[];
  join?: Join;
}

/** Where a run in memory stands. */
export type TestStatus =
  | "runnable"
  | "executing"
  | "awaiting_signal"
  | "sleeping"
  | "awaiting_children"
  | "suspended"
  | "in_doubt"
  | "done"
  | "failed"
  | "cancelled"
  | "dead_lettered";

/** The engine says no. */
export function refusal(code: string, detail: string): Problem {
  return Problem.of({ status: 409, code, detail, title: code, what_to_do: "" });
}

type EffectOf = Extract<Entered, { effect: unknown }>["effect"];

/** How an entry ends. */
type How = { value: unknown } | { error: ErrorInfo } | { elapsed: object };

/** A run in memory. */
export class MemoryRun {
  state: unknown;
  queue = "default";
  status: TestStatus = "runnable";
  visit = 1;
  epoch = 0;
  retries = 0;
  reclaims = 0;
  attempts = 0;
  claims = 0;
  wokenBy: WokenBy | undefined;
  wait: Wait | undefined;
  ops: Op[] = [];
  ended = 0;
  seen = 0;
  inbox: Arrived[] = [];
  /** What waits got that the code has not seen, by their number. */
  got = new Map<number, { signal: Arrived } | { update: Update }>();
  updates: Update[] = [];
  signals = 0;
  children: Offspring[] = [];
  /** Children that steps started, by the step and the key. */
  readonly started = new Map<string, string>();
  published: { state: unknown } | undefined;
  /** What was said of the progress, and in which visit. */
  progress: { visit: number; latest: Record<string, unknown> } = { visit: 0, latest: {} };
  cancelling = false;
  result: unknown = null;
  error: ErrorInfo | undefined;

  constructor(
    readonly id: string,
    readonly start: Start,
    readonly version: number,
    readonly input: unknown,
    public step: string,
    readonly parent: string | undefined,
    public begunAt: number,
    public visibleAt: number,
    private readonly engine: { readonly now: number; startChild(parent: MemoryRun, start: Start): string },
  ) {
    this.state = input;
  }

  get workflow(): string {
    return this.start.workflow;
  }

  get over(): boolean {
    return ["done", "failed", "cancelled", "dead_lettered"].includes(this.status);
  }

  op(number: number): Op {
    const found = this.ops[number - 1];
    if (found === undefined) throw refusal("invalid", `ledger entry: expected an entry that exists, found ${number}`);
    return found;
  }

  openOps(): Op[] {
    return this.ops.filter((op) => !op.end && op.visit === this.visit);
  }

  // What a step writes.

  /** Folds what a step writes to its ledger. */
  write(entries: readonly Entry[]): void {
    for (const entry of entries) this.writeOne(entry);
  }

  private writeOne(entry: Entry): void {
    if ("intend" in entry) this.intend(entry.intend);
    else if ("done" in entry) this.called(entry.done.op, { value: entry.done.value ?? null }, entry.done.at);
    else if ("failed" in entry) this.called(entry.failed.op, { error: entry.failed.error }, entry.failed.at);
    else if ("again" in entry) this.again(entry.again);
    else if ("see" in entry) this.see(this.op(entry.see.op));
    else if ("withdraw" in entry) this.withdraw(this.op(entry.withdraw.op));
    else if ("wait_again" in entry) this.waitAgain(this.op(entry.wait_again.op));
    else if ("answer" in entry) this.answer(entry.answer);
    else this.published = { state: entry.publish.state };
  }

  private intend({ op, key, what, input }: { op: number; key: string; what: Wanted; input?: string }): void {
    if (op !== this.ops.length + 1) return this.beginAgain(this.op(op), key, what);
    if (this.ops.some((known) => known.key === key && known.visit === this.visit)) {
      throw refusal("invalid", `ledger entry: expected a key that is new, found ${key} again`);
    }
    const entry: Op = { op, key, visit: this.visit, at: writeInstant(this.engine.now), what: this.enter(what) };
    if (input !== undefined) entry.input = input;
    this.ops.push(entry);
    if ("manual" in what) this.asked(entry, what.manual);
    if ("patch" in what) this.end(entry, { value: null }, { seen: true, at: what.patch.at });
    this.serve(entry);
    this.expire(entry);
  }

  private enter(what: Wanted): Entered {
    const effect = (policy: Policy, claim: number, undo: boolean) => ({ effect: { policy, claim, failures: 0, undo } });
    if ("effect" in what) return effect(what.effect.policy, this.claims, false);
    if ("undo" in what) return effect(what.undo.policy, 0, true);
    if ("timer" in what) return { timer: { until: writeInstant(this.moment(what.timer.until)) } };
    if ("signal" in what) return { signal: { name: what.signal.name, ...this.until(what.signal.deadline) } };
    if ("update" in what) return { update: { name: what.update.name, answered: false, ...this.until(what.update.deadline) } };
    if ("child" in what) return { child: { run: this.engine.startChild(this, what.child.start) } };
    if ("patch" in what) return { patch: {} };
    const other = this.openOps().find((known) => "manual" in known.what);
    if (other !== undefined) throw refusal("second_boundary", `${other.key} asks for a person already`);
    return { manual: { kind: what.manual.kind, ...this.until(what.manual.deadline) } };
  }

  private asked(entry: Op, asked: Asked): void {
    entry.asked = { payload: asked.payload ?? null, roles: asked.roles ?? [], assignee: asked.assignee };
  }

  private beginAgain(op: Op, key: string, what: Wanted): void {
    if (!("effect" in what || "undo" in what) || !("effect" in op.what) || op.key !== key) {
      throw refusal("invalid", `ledger entry: expected ${op.key} as it is recorded, found ${key}`);
    }
    const { effect } = op.what;
    if (op.end) {
      if (!op.end.error?.retryable || !REPLAY_SAFE.has(effect.policy)) {
        throw refusal("effect_ended", `entry ${op.op} has ended`);
      }
      delete op.end;
    } else if (effect.claim !== 0 && effect.claim !== this.claims && !REPLAY_SAFE.has(effect.policy)) {
      throw refusal("in_doubt", `${key} may or may not have happened`);
    }
    effect.claim = this.claims;
  }

  private until(deadline: Moment | undefined): { until?: string } {
    return deadline === undefined ? {} : { until: writeInstant(this.moment(deadline)) };
  }

  /** A point in time, in milliseconds. */
  moment(moment: Moment): number {
    return "at" in moment ? readInstant(moment.at) : this.engine.now + moment.in_ms;
  }

  private called(number: number, how: How, at: string): void {
    this.begun(this.op(number));
    this.end(this.op(number), how, { seen: true, at });
  }

  private begun(op: Op): EffectOf {
    if (!("effect" in op.what)) throw refusal("invalid", `ledger entry: expected an effect of this step, found ${op.key}`);
    if (op.end) throw refusal("effect_ended", `entry ${op.op} has ended`);
    const { effect } = op.what;
    if (effect.claim !== this.claims && !REPLAY_SAFE.has(effect.policy)) {
      throw refusal("in_doubt", `${op.key} may or may not have happened`);
    }
    return effect;
  }

  private again({ op, error, delay_ms }: { op: number; error: ErrorInfo; delay_ms: number }): void {
    const effect = this.begun(this.op(op));
    if (!REPLAY_SAFE.has(effect.policy) || !error.retryable) {
      throw refusal("invalid", "retry of an effect: expected one that may be repeated");
    }
    effect.failures += 1;
    effect.claim = 0;
    effect.retry_at = writeInstant(this.engine.now + delay_ms);
    this.expire(this.op(op));
  }

  private see(op: Op): void {
    if (!op.end || op.end.seen !== 0) return;
    this.seen += 1;
    op.end.seen = this.seen;
    this.got.delete(op.op);
  }

  private withdraw(op: Op): void {
    if (op.end && (op.end.seen > 0 || !("value" in op.end))) return;
    delete op.end;
    const given = this.got.get(op.op);
    this.got.delete(op.op);
    if (given !== undefined && "signal" in given) this.inbox.unshift(given.signal);
    else if (given !== undefined) given.update.op = undefined;
    this.end(op, { elapsed: {} });
    for (const waiting of this.openOps()) this.serve(waiting);
  }

  private waitAgain(op: Op): void {
    if (!op.end?.elapsed) return;
    delete op.end;
    this.serve(op);
    this.expire(op);
  }

  private answer({ op, value, rejected }: { op: number; value?: unknown; rejected?: ErrorInfo }): void {
    const { what } = this.op(op);
    if ("update" in what) what.update.answered = true;
    for (const update of this.updates.filter((found) => found.op === op && !found.answered)) {
      update.answered = true;
      update.answer = value ?? null;
      update.rejected = rejected;
    }
  }

  // What happens to its entries.

  /** An entry ends. */
  end(op: Op, how: How, when: { seen?: boolean; at?: string } = {}): void {
    this.ended += 1;
    if (when.seen === true) this.seen += 1;
    const at = when.at === undefined ? this.engine.now : Math.min(readInstant(when.at), this.engine.now);
    const end: EntryEnd = { ended: this.ended, seen: when.seen === true ? this.seen : 0, at: writeInstant(at), ...how };
    op.end = end;
  }

  /** Gives a wait what was sent by its name. */
  serve(op: Op): void {
    if (op.end) return;
    if ("signal" in op.what) {
      const { name } = op.what.signal;
      const at = this.inbox.findIndex((found) => found.name === name);
      const [signal] = at < 0 ? [] : this.inbox.splice(at, 1);
      if (signal !== undefined) {
        this.got.set(op.op, { signal });
        this.end(op, { value: signal.payload });
      }
    } else if ("update" in op.what) {
      const { name } = op.what.update;
      const update = this.updates.find((found) => found.name === name && found.op === undefined && !found.answered);
      if (update !== undefined) {
        update.op = op.op;
        this.got.set(op.op, { update });
        this.end(op, { value: update.input });
      }
    }
  }

  /** When an open entry ends, or may begin again, by itself. */
  due(op: Op): number | undefined {
    const [kind, what] = variant<{ retry_at?: string | null; until?: string | null }>(op.what);
    return maybeInstant(kind === "effect" ? what.retry_at : what.until);
  }

  /** Ends an entry whose instant has come. */
  expire(op: Op): boolean {
    const due = this.due(op);
    if (op.end || due === undefined || due > this.engine.now) return false;
    if ("effect" in op.what) delete op.what.effect.retry_at;
    else this.end(op, { elapsed: {} });
    return true;
  }

  /** Effects that may or may not have happened. */
  inDoubt(): Op[] {
    return this.openOps().filter(
      ({ what }) => "effect" in what && !REPLAY_SAFE.has(what.effect.policy) && what.effect.claim !== 0,
    );
  }
}
