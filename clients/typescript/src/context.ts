/** What a function sees of its run, and everything durable that it can do. */

import { Branch, never, Outside, running } from "./branch.js";
import type { Call } from "./call.js";
import { Joined, type StartedChild } from "./children.js";
import { type Control, type Controls, checkPolicy, type Operation } from "./control.js";
import { type Drive, recorded } from "./drive.js";
import { AbideError, asStepError, describe, quoted, StepError, terminal } from "./errors.js";
import { hex16, inputHash, mix, stableHash } from "./hashing.js";
import { plain } from "./jsons.js";
import { type Kind, type Known, REPLAY_SAFE } from "./known.js";
import type { Ledger, Place } from "./ledger.js";
import { child, type Given, type Named, type StartOptions, type Typed } from "./outcome.js";
import { type AskOptions, asking, Decision } from "./people.js";
import type { Attempt, BoundaryKind, Join, Policy, Start, Wanted } from "./protocol.js";
import { type RetryPolicy, retryMessage } from "./retry.js";
import { Review, reviewKey } from "./review.js";
import { moment, type When } from "./times.js";
import { asWait, giveUp, isWait, placeAbove, type Wait } from "./wait.js";

/** How an effect is done. */
export interface EffectOptions {
  /** What happens when a worker dies inside of it; `idempotent` if nothing is said. */
  policy?: Policy;
  /** When it is tried again, without the function hearing of it. */
  retry?: RetryPolicy;
  /** What it is about: a replay that comes here with another one has diverged. */
  input?: unknown;
}

/** A part of a race: a wait of the context, or a function that makes what is raced. */
export type Runner<T> = Wait<T> | ((ctx: Context) => Promise<T>);

/** @internal What all contexts of one attempt share. */
export interface Inside {
  readonly drive: Drive;
  readonly attempt: Attempt;
  readonly controls: Controls;
  readonly undos: Known[];
  again?: { input: unknown };
}

/** How a function ends that begins again. */
export class BeginAgain extends AbideError {}

/**
 * What a function sees of its run, and everything durable that it can do.
 *
 * Between two durable points the code must do the same whenever it is replayed: time, chance and everything from outside
 * come from here, or from inside an effect.
 */
export class Context {
  private readonly drive: Drive;
  private readonly ledger: Ledger;
  private readonly attempted: Attempt;

  /** @internal */
  constructor(
    private readonly inside: Inside,
    private readonly prefix = "",
  ) {
    this.drive = inside.drive;
    this.ledger = inside.drive.ledger;
    this.attempted = inside.attempt;
  }

  // What it is.

  /** The run. */
  get runId(): string {
    return this.attempted.run;
  }

  /**
   * The attempt's place in the trace of its run (W3C's `traceparent`), for spans below it. Another in every attempt: for what
   * is told of the code, and not for what it decides.
   */
  get traceparent(): string | undefined {
    return this.drive.traceparent;
  }

  /** The run's business key. */
  get key(): string | undefined {
    return this.attempted.key ?? undefined;
  }

  /** The words that the run can be found by. */
  get labels(): Readonly<Record<string, string>> {
    return { ...this.attempted.labels };
  }

  /** How many attempts came before since the last progress: retries and lost workers together, from 0. */
  get attempt(): number {
    return this.attempted.retries + this.attempted.reclaims;
  }

  /** Whether the code is being brought to where it was before: the time for logs and metrics to be quiet. */
  get replaying(): boolean {
    return this.ledger.replaying;
  }

  /** The time of the last thing the function took notice of; the same in every replay. */
  now(): Date {
    return new Date(this.ledger.now);
  }

  /** A number from 0 up to 1 that looks random and is the same in every replay, one for each name. */
  random(name: string): number {
    return Number(this.bits(name) >> 11n) / 2 ** 53;
  }

  /** 64 bits that look random and are the same in every replay, one for each name. */
  bits(name: string): bigint {
    return mix(stableHash(`${this.drive.base}\0${this.prefix}${name}`));
  }

  /** An identifier in the form of a UUID that is the same in every replay, one for each name. */
  uuid(name: string): string {
    const high = (this.bits(name) & ~0xf000n) | 0x4000n;
    const low = (this.bits(`${name}\0`) & (2n ** 62n - 1n)) | (1n << 63n);
    return `${hex16(high)}${hex16(low)}`.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
  }

  /** The same context under a name: what is done with it keeps apart from equal names elsewhere. */
  scope(name: string): Context {
    return new Context(this.inside, `${this.prefix}${name}/`);
  }

  // Asking.

  /** The part of the code that asks; undefined if it has been given up, or went on by itself. */
  private asker(): Branch | undefined {
    const found = running.getStore();
    if (found instanceof Outside) {
      const said = `a function's context was used inside of effect ${quoted(found.effect)}, which is not replayed`;
      throw terminal("inside_effect", `${said}; do it before or after the effect`);
    }
    const branch = found ?? this.drive.root;
    return branch.lost || this.ledger.left || !this.drive.mayAsk() ? undefined : branch;
  }

  /** Asks for something that is waited for. */
  private ask<T>(called: (...given: never[]) => unknown, begin: (branch: Branch, place: Place) => Promise<T>): Wait<T> {
    let branch: Branch | undefined;
    let promise: Promise<T>;
    try {
      const asker = this.asker();
      if (asker === undefined) return asWait(never(), () => {});
      branch = new Branch(asker);
      promise = begin(branch, placeAbove(called));
    } catch (error) {
      promise = Promise.reject(error as Error);
    }
    const over = () => branch?.end();
    promise.then(over, over);
    return asWait(promise, () => branch?.giveUp());
  }

  /** Asks for something that is answered at once. */
  private tell<T>(called: (...given: never[]) => unknown, begin: (place: Place) => T): T {
    if (this.asker() === undefined) throw terminal("left", "the function has left memory");
    return begin(placeAbove(called));
  }

  private woken(branch: Branch, known: Known): Promise<void> {
    this.ledger.waiting.add(known);
    return new Promise((wake) => known.waiters.push({ branch, wake }));
  }

  // Effects.

  /**
   * A piece of outside work, recorded: executed once, and its result is there for every replay after. The code is given a
   * `Call`, whose `key` is the same over all attempts.
   */
  effect<T>(name: string, call: (call: Call) => T | Promise<T>, options: EffectOptions = {}): Wait<T> {
    return this.ask(this.effect, (branch, place) => this.effected(branch, name, call, options, place) as Promise<T>);
  }

  private effected(
    branch: Branch,
    name: string,
    call: (call: Call) => unknown,
    options: EffectOptions,
    place: Place,
  ): Promise<unknown> {
    const policy = options.policy ?? "idempotent";
    checkPolicy(policy, (message) => terminal("invalid", message));
    if (typeof call !== "function") {
      throw terminal("invalid", `effect ${quoted(name)}: expected a function to call, found ${describe(call)}`);
    }
    const operation: Operation = { name, policy };
    const ruling = this.ruling(operation);
    if (options.retry !== undefined && !REPLAY_SAFE.has(policy)) {
      const said = `effect ${quoted(name)} (${policy}) is never begun again by itself; it cannot have a retry policy`;
      throw terminal("retry_not_allowed", said);
    }
    const shown = plain("the effect's input", options.input);
    const hashed = options.input === undefined ? 0n : inputHash(shown);
    const retry = options.retry === undefined ? undefined : retryMessage(options.retry);
    const known = this.ledger.point(this.prefix + name, "effect", { effect: { policy } }, hashed, place);
    known.call = call;
    known.retry = retry;
    branch.begin(known, () => this.drive.giveUp(known));
    const reviewed = (ruling !== undefined && known.op === undefined) || this.ledger.byKey.has(reviewKey(known.key));
    if (!reviewed) return this.executed(branch, known);
    const review = new Review(this.drive, known, operation, shown);
    return this.approved(branch, review, review.point(place), ruling, known);
  }

  /**
   * The control that has an operation reviewed.
   *
   * @throws {StepError} it may not begin, and that changes something.
   */
  private ruling(operation: Operation): Control | undefined {
    try {
      return this.inside.controls.check(operation);
    } catch (error) {
      if (!this.stands(this.prefix + operation.name)) throw error;
      return undefined;
    }
  }

  /** Whether no control changes any more what the code gets at the next effect of this name. */
  private stands(point: string): boolean {
    const key = this.ledger.nextKey(point);
    const effect = this.ledger.byKey.get(key);
    const review = this.ledger.byKey.get(reviewKey(key));
    if (effect !== undefined && (effect.end !== undefined || effect.inDoubt)) return true;
    return review?.end !== undefined && !Decision.of(review.end).approved;
  }

  /** Waits until a person has approved an effect, and executes it. */
  private async approved(
    branch: Branch,
    review: Review,
    asked: Known,
    ruling: Control | undefined,
    known: Known,
  ): Promise<unknown> {
    const over = () => {
      this.ledger.waitNoMore(asked);
      this.drive.wakeReviews();
    };
    branch.begin(asked, over);
    while (!asked.delivered) {
      review.ask(asked, ruling);
      await this.woken(branch, asked);
    }
    if (branch.lost) return never();
    branch.close(asked);
    over();
    try {
      review.judge(asked);
    } catch (error) {
      branch.close(known);
      this.drive.giveUp(known);
      throw error;
    }
    return this.executed(branch, known);
  }

  /** @internal Waits for the end of an effect, which begins when it can. */
  async executed(branch: Branch, known: Known): Promise<unknown> {
    branch.begin(known, () => this.drive.giveUp(known));
    while (!known.delivered) {
      if (known.end === undefined && !known.inDoubt && !known.resting) this.ledger.wanting.add(known);
      await this.woken(branch, known);
    }
    branch.close(known);
    this.drive.giveUp(known);
    return recorded(known);
  }

  /**
   * Registers what undoes something that was done: it takes place, the last registered first, when the function fails for
   * good or the run is cancelled.
   */
  undo(name: string, call: (call: Call) => unknown): void {
    this.tell(this.undo, (place) => {
      const known = this.ledger.point(this.prefix + name, "effect", { undo: { policy: "idempotent" } }, 0n, place);
      known.call = call;
      this.inside.undos.push(known);
    });
  }

  // Waits.

  private async waited(
    branch: Branch,
    name: string,
    kind: Kind,
    wanted: Wanted,
    hashed: bigint,
    place: Place,
  ): Promise<Known> {
    const known = this.ledger.point(this.prefix + name, kind, wanted, hashed, place);
    branch.begin(known, () => this.ledger.waitNoMore(known));
    while (!known.delivered) await this.woken(branch, known);
    branch.close(known);
    this.ledger.waitNoMore(known);
    return known;
  }

  /** Waits for so long, or until an instant; a crash or a deploy in between does not make it longer. */
  sleep(duration: When): Wait<void> {
    return this.ask(this.sleep, async (branch, place) => {
      await this.waited(branch, "sleep", "timer", { timer: { until: moment(duration) } }, 0n, place);
    });
  }

  /** Waits for one signal of this name, and gives what it carries; `default` when it has not come in time. */
  signal<T = unknown>(name: string): Wait<T>;
  signal<T = unknown, D = undefined>(name: string, options: { timeout?: When; default?: D }): Wait<T | D>;
  signal(name: string, options: { timeout?: When; default?: unknown } = {}): Wait<unknown> {
    return this.ask(this.signal, async (branch, place) => {
      const wanted = { signal: { name, ...deadline(options.timeout) } };
      const known = await this.waited(branch, `signal ${name}`, "signal", wanted, 0n, place);
      return known.end?.how === "elapsed" ? options.default : recorded(known);
    });
  }

  /** Waits to be asked for an update of this name, which is to be answered; undefined when nobody asked in time. */
  update<T = unknown>(name: string): Wait<UpdateRequest<T>>;
  update<T = unknown>(name: string, options: { timeout?: When }): Wait<UpdateRequest<T> | undefined>;
  update(name: string, options: { timeout?: When } = {}): Wait<UpdateRequest<any> | undefined> {
    return this.ask(this.update, async (branch, place) => {
      const wanted = { update: { name, ...deadline(options.timeout) } };
      const known = await this.waited(branch, `update ${name}`, "update", wanted, 0n, place);
      return known.end?.how === "value" ? new UpdateRequest(this.ledger, known, recorded(known)) : undefined;
    });
  }

  /** Sets the state that is seen from outside. It is written with what the function writes next. */
  publish(state: unknown): void {
    this.tell(this.publish, () => this.ledger.publish(plain("the state", state)));
  }

  // People.

  /** Waits for a person to approve or reject. A run asks for one person at a time. */
  approval<P = unknown>(name: string, payload?: unknown, options: AskOptions = {}): Wait<Decision<P>> {
    return this.ask(this.approval, async (branch, place) => {
      const hashed = payload !== undefined;
      return (await this.manual(branch, name, "approval", { payload, hashed }, options, place)) as Decision<P>;
    });
  }

  /** Waits for a person to let the function go on. */
  pause<P = unknown>(name: string, payload?: unknown, options: Omit<AskOptions, "assignee"> = {}): Wait<Decision<P>> {
    return this.ask(this.pause, async (branch, place) => {
      const hashed = payload !== undefined;
      return (await this.manual(branch, name, "pause", { payload, hashed }, options, place)) as Decision<P>;
    });
  }

  /** Waits for a person to do what the form says, and gives what they hand in. */
  task<T = unknown>(name: string, form?: unknown, options: AskOptions = {}): Wait<T> {
    return this.ask(this.task, async (branch, place) => {
      const shown = { payload: form, hashed: true };
      const decision = await this.manual(branch, name, "task", shown, options, place);
      if (decision.choice === undefined) {
        throw terminal("task_timed_out", `nobody handed in the result of task ${quoted(this.prefix + name)} in time`);
      }
      return decision.payload as T;
    });
  }

  private async manual(
    branch: Branch,
    name: string,
    kind: BoundaryKind,
    what: { payload: unknown; hashed: boolean },
    options: AskOptions,
    place: Place,
  ): Promise<Decision> {
    const shown = plain("what a person is shown", what.payload);
    plain("who is asked", [options.roles, options.assignee]);
    const still = this.ledger.asks(this.prefix + name);
    if (still !== undefined) {
      const said = `${quoted(this.prefix + name)} asks for a person while ${quoted(still)} still does`;
      throw terminal("second_boundary", `${said}; a run has one manual boundary at a time`);
    }
    const hashed = what.hashed ? inputHash(shown) : 0n;
    const known = await this.waited(branch, name, "manual", asking(kind, shown, options), hashed, place);
    return Decision.of(known.end);
  }

  // Children.

  /** Starts a child and waits for its result. */
  child<R = unknown>(name: string, workflow: string, input?: unknown, options?: StartOptions): Wait<R>;
  child<I, R>(name: string, workflow: Typed<I, R>, ...given: Given<I, StartOptions>): Wait<R>;
  child(name: string, workflow: Named, input?: unknown, options: StartOptions = {}): Wait<unknown> {
    return this.ask(this.child, async (branch, place) => {
      return this.ended(branch, this.beginChild(name, child(workflow, input, options), place));
    });
  }

  /** Starts a child, made with `child`, and does not wait for its end. */
  startChild<R = unknown>(name: string, start: Start): StartedChild<R> {
    const known = this.tell(this.startChild, (place) => this.beginChild(name, start, place));
    const result = () => this.ask(result, (branch) => this.ended(branch, known) as Promise<R>);
    return {
      get runId() {
        return known.child;
      },
      result,
    };
  }

  private beginChild(name: string, start: Start, place: Place): Known {
    const input = plain("the child's input", start.input);
    const rest = plain("how the child begins", { ...start, input: null }) as Start;
    return this.ledger.point(this.prefix + name, "child", { child: { start: { ...rest, input } } }, inputHash(input), place);
  }

  private async ended(branch: Branch, known: Known): Promise<unknown> {
    while (!known.delivered) await this.woken(branch, known);
    // A retry does not begin a child again, so its error is nobody's effect.
    if (known.end?.how === "error") throw StepError.of(known.end.error);
    return recorded(known);
  }

  /**
   * Starts many children at once, made with `child`, each known by its key, and waits for them: for all, or as `join` says.
   * Those that have not ended by then go on.
   */
  children<R = unknown, K = string>(
    name: string,
    children: Iterable<readonly [K, Start]> | Record<string, Start>,
    options: { join?: Join; timeout?: When } = {},
  ): Wait<Joined<K, R>> {
    return this.ask(this.children, async (branch, place) => {
      const all = Symbol.iterator in children ? [...children] : (Object.entries(children) as [K, Start][]);
      const joined = new Joined<K, R>(all.map(([key]) => key), options.join ?? "all_terminal");
      // All begin before any is waited for.
      const begun = all.map(([key, start]) => [key, this.beginChild(`${name}[${String(key)}]`, start, place)] as const);
      let late = false;
      let wake = () => {};
      const waits = begun.map(async ([key, known]) => {
        const end = await this.ended(branch, known).catch((error: unknown) => asStepError(error));
        if (!late && !joined.over()) joined.ended.set(key, end as R | StepError);
        wake();
      });
      const timer = new Branch(branch);
      if (options.timeout !== undefined) {
        const wanted = { timer: { until: moment(options.timeout) } };
        waits.push(
          this.waited(timer, `${name} within`, "timer", wanted, 0n, place).then(() => {
            late = true;
            wake();
          }),
        );
      }
      // What ends is delivered one at a time, so a replay finds the same children ended.
      while (!late && !joined.over()) await new Promise<void>((resolve) => (wake = resolve));
      timer.giveUp();
      return joined;
    });
  }

  // Branches.

  /** Waits for all of them: their results in their order, once all have ended, or the first error in that order. */
  all<T extends readonly unknown[] | []>(branches: T): Promise<{ -readonly [P in keyof T]: Awaited<T[P]> }> {
    type Results = { -readonly [P in keyof T]: Awaited<T[P]> };
    const all = Promise.allSettled(branches).then((ended) => {
      for (const end of ended) if (end.status === "rejected") throw end.reason;
      return ended.map((end) => (end as PromiseFulfilledResult<unknown>).value) as Results;
    });
    // Whoever awaits it hears of its error. That it is awaited late must not end the process.
    all.catch(() => {});
    return all;
  }

  /** Does the same for every key and item, all at once, each in a scope named `name[key]`. */
  map<K, I, T>(name: string, items: Iterable<readonly [K, I]>, each: (ctx: Context, item: I) => Promise<T>): Promise<T[]> {
    return this.all([...items].map(([key, item]) => each(this.scope(`${name}[${String(key)}]`), item))) as Promise<T[]>;
  }

  /**
   * Waits for the first of them to end, and gives up the others: its place, and what it gave. A part is a wait of the
   * context, or a function; what is begun in a function that loses is given up with it, and its code stops where it is.
   */
  race<T>(branches: readonly Runner<T>[]): Wait<[place: number, value: T]> {
    return this.ask(this.race, (branch) => {
      if (branches.length === 0) throw terminal("invalid", "race: expected at least one part, found none");
      branches.forEach((part, at) => checkRunner(part, at));
      return new Promise<[number, T]>((resolve, reject) => {
        let over = false;
        const parts = branches.map((part) => (isWait(part) ? part : new Branch(branch)));
        const won = (settle: () => void) => {
          if (over) return;
          over = true;
          for (const part of parts) if (part instanceof Branch) part.giveUp(); else giveUp(part);
          settle();
        };
        branches.forEach((runner, at) => {
          const part = parts[at];
          const made = part instanceof Branch ? running.run(part, () => begun(runner as (ctx: Context) => Promise<T>, this)) : runner;
          (made as Promise<T>).then(
            (value) => won(() => resolve([at, value])),
            (error: unknown) => won(() => reject(error as Error)),
          );
        });
      });
    });
  }

  // Edits and new beginnings.

  /**
   * Guards an edit that open runs must not meet half-way: true for a run that comes here for the first time, false for one
   * whose history has passed this point without it; the same in every replay.
   */
  patch(name: string): boolean {
    return this.tell(this.patch, (place) => this.ledger.patch(`${this.prefix}patch ${name}`, place));
  }

  /** Begins again from the first line with a new input and an empty ledger; the run keeps its identity. */
  continueAsNew(input?: unknown): never {
    this.inside.again = { input: plain("the input", input) };
    throw new BeginAgain("the function begins again; let this through");
  }
}

function deadline(timeout: When | undefined): { deadline?: ReturnType<typeof moment> } {
  return timeout === undefined ? {} : { deadline: moment(timeout) };
}

async function begun<T>(runner: (ctx: Context) => Promise<T>, ctx: Context): Promise<T> {
  return runner(ctx);
}

function checkRunner(part: unknown, at: number): void {
  if (typeof part === "function" || isWait(part)) return;
  const found = part instanceof Promise ? "a promise that cannot be given up" : describe(part);
  const said = `race: expected a wait of the context or a function at place ${at}, found ${found}`;
  throw terminal("invalid", `${said}; write (ctx) => … around it`);
}

/** Something that the run was asked to do. Answer or reject it: whoever asked waits for that. */
export class UpdateRequest<Input = unknown> {
  /** @internal */
  constructor(
    private readonly ledger: Ledger,
    private readonly known: Known,
    /** What is asked. */
    readonly input: Input,
  ) {}

  /** It is done, with this answer, which is written with what the function writes next. */
  answer(value?: unknown): void {
    this.ledger.reply(this.known, { value: plain("the answer", value) });
  }

  /** It is not done, for this reason. */
  reject(reason: string): void {
    this.ledger.reply(this.known, { rejected: terminal("rejected", reason).info() });
  }
}
