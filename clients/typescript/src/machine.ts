/** Machines: workflows of named steps. A step runs from its beginning to its end, and may wait for whatever it likes. */

import { never, Outside, running } from "./branch.js";
import { type Call, callOutside } from "./call.js";
import type { EffectOptions } from "./context.js";
import { type Control, Controls, checkPolicy } from "./control.js";
import { recorded } from "./drive.js";
import { AbideError, asStepError, ClaimLost, describe, Problem, quoted, type StepError, terminal, Unencodable } from "./errors.js";
import { hex16, inputHash, stableHash } from "./hashing.js";
import { plain } from "./jsons.js";
import { type Known, REPLAY_SAFE } from "./known.js";
import { Ledger, type Place } from "./ledger.js";
import { type Executable, GIVE_BACK, type Link, refused, setAside, Unknown } from "./link.js";
import { Outcome } from "./outcome.js";
import type { Arrived, Attempt, Offer, Offspring, OutcomeMessage, Policy, Retry, Say, Start, WokenBy } from "./protocol.js";
import { type RetryPolicy, retryMessage } from "./retry.js";
import { placeAbove } from "./wait.js";
import { checkRows, checkVersion, complete, failed, identity } from "./workflow.js";

/** A step: what happens next to a run. */
export type Step<Input = any, State = any> = (ctx: StepContext<Input, State>) => Promise<Outcome>;

/** What a machine is, beside its steps. */
export interface MachineOptions<Input = any, State = any> {
  /** 1 if nothing is said. A run goes on with the version it began with. */
  version?: number;
  /** When a step is tried again after an error that may be cured. */
  retry?: RetryPolicy;
  /** What may be done, and what may not. */
  controls?: readonly Control[];
  /** What it does outside, to be checked before anything runs. */
  operations?: Readonly<Record<string, Policy>>;
  /** The journal of a run begins anew once it has so many rows. */
  compactAfter?: number;
  /** Answers the errors of all steps with an outcome of its own. */
  onError?: (error: StepError, ctx: StepContext<Input, State>) => Promise<Outcome>;
}

/** How an attempt at a step is over: with what is said of it, or because something failed outside of the code. */
type Over = { say: Say | undefined } | { error: unknown };

/** What a step sees of its run and of this attempt. */
export class StepContext<Input = any, State = any> {
  readonly runId: string;
  readonly workflow: string;
  readonly version: number;
  readonly step: string;
  readonly key: string | undefined;
  readonly labels: Readonly<Record<string, string>>;
  readonly input: Input;
  readonly state: State;
  /** Signals that wait, in the order they arrived. */
  readonly signals: readonly Arrived[];
  /** Children, and once they have ended their `status`, and `result` or `error`. */
  readonly children: readonly Offspring[];
  /** What attempts before this one said of their progress at this step: the latest value of each name. */
  readonly lastProgress: Readonly<Record<string, unknown>>;
  /** Why this attempt came. */
  readonly wokenBy: WokenBy | undefined;
  readonly retries: number;
  readonly reclaims: number;
  readonly cancelling: boolean;
  /** A key for outside work: the same over all attempts of this step, and differs from visit to visit. */
  readonly idempotencyKey: string;
  /** The attempt's place in the trace of its run (W3C's `traceparent`), for spans below it. */
  readonly traceparent: string | undefined;
  /** Aborted when the claim has ended: what the step returns will not be recorded. */
  readonly lost: AbortSignal;

  /** @internal */
  readonly ledger: Ledger;
  /** @internal Called when the attempt is over before the step is. */
  over: (how: Over) => void = () => {};
  private writing: Promise<void> | undefined;
  private stuck = false;
  private gone = false;
  private readonly calls = new Set<AbortController>();

  /** @internal */
  constructor(
    attempt: Attempt,
    private readonly link: Link,
    private readonly controls: Controls,
  ) {
    this.ledger = new Ledger(attempt, "step");
    this.runId = attempt.run;
    this.workflow = attempt.workflow;
    this.version = attempt.version;
    this.step = attempt.step;
    this.key = attempt.key ?? undefined;
    this.labels = attempt.labels ?? {};
    this.input = attempt.input as Input;
    this.state = attempt.state as State;
    this.signals = attempt.signals;
    this.children = attempt.children;
    this.lastProgress = attempt.progress ?? {};
    this.wokenBy = attempt.woken_by ?? undefined;
    this.retries = attempt.retries;
    this.reclaims = attempt.reclaims;
    this.cancelling = attempt.cancelling;
    this.idempotencyKey = identity(attempt);
    this.traceparent = attempt.traceparent || undefined;
    this.lost = link.lost;
  }

  /** How many attempts of this step came before: retries and lost workers together, from 0. */
  get attempt(): number {
    return this.retries + this.reclaims;
  }

  /** Whether the wait before this attempt ended by its deadline. */
  get timedOut(): boolean {
    return this.wokenBy === "deadline";
  }

  /** What the first signal of this name carries; undefined if there is none. It waits until the step progresses. */
  signal<T = unknown>(name: string): T | undefined {
    return this.signals.find((found) => found.name === name)?.payload as T | undefined;
  }

  /**
   * Says how far the step has come. The latest value of each name is shown with the run, and told to the next attempt at this
   * step. It is best effort: whether it was heard may not be known, and the step goes on.
   *
   * @throws {Problem} it was refused: a value has at most 4 KiB, and a step 32 names.
   */
  async progress(name: string, value: unknown): Promise<void> {
    if (this.gone) return never();
    try {
      await this.link.progress(name, plain("the progress", value));
    } catch (error) {
      if (!(error instanceof Unknown)) throw error;
    }
  }

  /**
   * Starts a child, made with `child`, does not wait for its end, and gives its id. The same key gives the same child, over all
   * attempts at this step.
   *
   * @throws {Problem} it was refused.
   */
  async startChild(key: string, start: Start): Promise<string> {
    if (this.gone) return never();
    const begins = plain("how the child begins", start) as Start;
    try {
      return await this.link.startChild(key, begins);
    } catch (error) {
      // Whoever has the attempt next is given the child, if it was started.
      if (error instanceof Unknown) return this.end({ say: GIVE_BACK });
      if (error instanceof ClaimLost) return this.end({ say: undefined });
      if (error instanceof Problem || error instanceof Unencodable) throw error;
      return this.end({ error });
    }
  }

  /** A piece of outside work, recorded: executed once, and its result is there for every later attempt at this step. */
  effect<T>(name: string, call: (call: Call) => T | Promise<T>, options: EffectOptions = {}): Promise<T> {
    const promise = this.effected(name, call, options, placeAbove(this.effect)) as Promise<T>;
    // Whoever awaits it hears of its error. That it is awaited late must not end the process.
    promise.catch(() => {});
    return promise;
  }

  private async effected(name: string, call: (call: Call) => unknown, options: EffectOptions, place: Place): Promise<unknown> {
    if (this.gone) return never();
    const policy = options.policy ?? "idempotent";
    checkPolicy(policy, (message) => terminal("invalid", message));
    if (this.controls.check({ name, policy }) !== undefined) {
      throw terminal("unsupported", "reviews of effects are for functions; ask in a step by awaitSignals");
    }
    if (options.retry !== undefined && !REPLAY_SAFE.has(policy)) {
      const said = `effect ${quoted(name)} (${policy}) is never begun again by itself; it cannot have a retry policy`;
      throw terminal("retry_not_allowed", said);
    }
    const shown = plain("the effect's input", options.input);
    const hashed = options.input === undefined ? 0n : inputHash(shown);
    const retry = options.retry === undefined ? undefined : retryMessage(options.retry);
    const known = this.ledger.point(name, "effect", { effect: { policy } }, hashed, place);
    if (this.ledger.fatal !== undefined) return this.end({ say: setAside(this.ledger.fatal.info()) });
    known.retry = retry;
    try {
      return await this.executed(known, call);
    } finally {
      this.ledger.release(known);
    }
  }

  private async executed(known: Known, call: (call: Call) => unknown): Promise<unknown> {
    while (!known.delivered) {
      if (known.inDoubt || known.resting) {
        this.stuck = true;
        this.letGo();
        return never();
      }
      if (!known.replaySafe) this.ledger.writeEffect(known);
      known.go = true;
      this.ledger.calling.add(known);
      if (known.policy !== "pure") await this.durable();
      await this.called(known, call);
    }
    return recorded(known);
  }

  private async called(known: Known, code: (call: Call) => unknown): Promise<void> {
    const call = new AbortController();
    this.calls.add(call);
    const given = { key: `${this.idempotencyKey}/${known.key}`, signal: call.signal, traceparent: this.traceparent };
    const came = await running.run(new Outside(known.key), () => callOutside(code, given));
    this.calls.delete(call);
    if (this.gone) return never();
    this.ledger.calling.delete(known);
    let stands = came;
    if (came.how === "error" && known.retry !== undefined && came.error.retryable) {
      const error = this.ledger.rest(known, came.error, known.retry);
      if (error === undefined) return undefined;
      stands = { how: "error", error };
    }
    this.ledger.writeEnd(known, stands, this.link.now());
    this.letGo();
    return undefined;
  }

  /** Writes what is not written, and returns when it is durable. */
  private async durable(): Promise<void> {
    await this.settled();
    if (!this.ledger.unwritten) return;
    const written = this.link.record(this.ledger.takeEntries());
    this.writing = written.then(
      () => {},
      () => {},
    );
    try {
      await written;
    } catch (error) {
      if (error instanceof Unknown) return this.end({ say: GIVE_BACK });
      if (error instanceof Problem) return this.end({ say: refused(error) });
      return this.end({ error });
    } finally {
      this.writing = undefined;
      this.letGo();
    }
    if (this.gone) return never();
  }

  /** @internal Waits until nothing is being written. */
  async settled(): Promise<void> {
    while (this.writing !== undefined) await this.writing;
  }

  /** A step that waits for a person, or for its time, lets go of its claim until then, once nothing else is under way. */
  private letGo(): void {
    if (!this.stuck) return;
    // What the step does with a result must be known first.
    setImmediate(() => {
      if (this.gone || this.ledger.calling.size > 0 || this.writing !== undefined) return;
      this.end({ say: complete({ suspend: { seen: this.ledger.ended } }, this.ledger.takeEntries()) });
    });
  }

  /** @internal The attempt is over: what the step still waits for never comes. */
  end(how: Over): Promise<never> {
    this.gone = true;
    for (const call of this.calls) call.abort();
    this.over(how);
    return never();
  }
}

/** A workflow of named steps. */
export class Machine<Input = any, State = any> implements Executable {
  declare readonly types?: [Input, unknown];
  readonly version: number;
  private readonly retry: Retry | undefined;
  private readonly controls: Controls;
  private readonly compactAfter: number | undefined;
  private readonly onError: MachineOptions<Input, State>["onError"];
  private readonly steps: ReadonlyMap<string, Step<Input, State>>;

  /** @internal */
  constructor(
    readonly name: string,
    options: MachineOptions<Input, State>,
    steps: Readonly<Record<string, Step<Input, State>>>,
  ) {
    this.version = checkVersion(name, options.version);
    this.retry = options.retry === undefined ? undefined : retryMessage(options.retry);
    this.controls = new Controls(options.controls, options.operations);
    this.compactAfter = checkRows(name, options.compactAfter);
    this.onError = options.onError;
    this.steps = new Map(Object.entries(steps));
    if (this.steps.size === 0) throw new AbideError(`machine ${quoted(name)}: expected steps { name: async (ctx) => … }, found none`);
    for (const [step, code] of this.steps) {
      // JavaScript moves such keys to the front, and the first step is where a run begins.
      if (/^[0-9]+$/.test(step)) throw new AbideError(`machine ${quoted(name)}: expected a step whose name is no number, found ${step}`);
      if (typeof code !== "function") {
        throw new AbideError(`machine ${quoted(name)}, step ${quoted(step)}: expected an async function, found ${describe(code)}`);
      }
    }
  }

  offer(): Offer {
    const names = [...this.steps.keys()];
    const fingerprint = hex16(stableHash([this.name, String(this.version), ...names].join("\0")));
    return { workflow: this.name, version: this.version, fingerprint, first_step: names[0] ?? "" };
  }

  async execute(attempt: Attempt, link: Link): Promise<Say | undefined> {
    const ctx = new StepContext<Input, State>(attempt, link, this.controls);
    const step = this.steps.get(attempt.step);
    if (step === undefined) {
      const steps = [...this.steps.keys()].join(", ");
      const said = `workflow ${quoted(this.name)} version ${this.version} has no step ${quoted(ctx.step)}; its steps are ${steps}`;
      return failed(terminal("unknown_step", said), []);
    }
    const how = await new Promise<Over>((resolve) => {
      ctx.over = resolve;
      const lost = () => void ctx.end({ say: undefined });
      link.lost.addEventListener("abort", lost, { once: true });
      if (link.lost.aborted) lost();
      this.work(step, ctx)
        .then((say) => ctx.end({ say }))
        .catch((error: unknown) => ctx.end({ error }))
        .finally(() => link.lost.removeEventListener("abort", lost));
    });
    if ("error" in how) throw how.error;
    return how.say;
  }

  private async work(step: Step<Input, State>, ctx: StepContext<Input, State>): Promise<Say> {
    let outcome: unknown;
    try {
      outcome = await step(ctx);
    } catch (thrown) {
      return this.erred(asStepError(thrown), ctx);
    }
    return this.came(outcome, ctx);
  }

  private async erred(error: StepError, ctx: StepContext<Input, State>): Promise<Say> {
    let found = error;
    if (this.onError !== undefined) {
      try {
        return await this.came(await this.onError(error, ctx), ctx, error);
      } catch (again) {
        found = asStepError(again);
      }
    }
    await ctx.settled();
    const reopen = found.op === undefined ? ctx.ledger.curable() : [found.op];
    return failed(found, ctx.ledger.takeEntries(), this.retry, reopen);
  }

  private async came(outcome: unknown, ctx: StepContext<Input, State>, handled?: StepError): Promise<Say> {
    // What is on its way must be there before what comes with the outcome.
    await ctx.settled();
    if (!(outcome instanceof Outcome)) {
      const said = `step ${quoted(ctx.step)}: expected an outcome like done(...), found ${describe(outcome)}`;
      return failed(terminal("no_outcome", said), ctx.ledger.takeEntries());
    }
    let message: OutcomeMessage;
    try {
      message = plain("the outcome", outcome.message) as OutcomeMessage;
    } catch (error) {
      return failed(asStepError(error), ctx.ledger.takeEntries());
    }
    const { compactAfter } = this;
    return complete(message, ctx.ledger.takeEntries(), { consume: outcome.consumes, handled, compactAfter });
  }
}

/** Makes a workflow of named steps. The first step given is where a run begins. */
export function machine<Input = any, State = any>(
  name: string,
  steps: Readonly<Record<string, Step<Input, State>>>,
): Machine<Input, State>;
export function machine<Input = any, State = any>(
  name: string,
  options: MachineOptions<Input, State>,
  steps: Readonly<Record<string, Step<Input, State>>>,
): Machine<Input, State>;
export function machine<Input, State>(
  name: string,
  ...given:
    | [Readonly<Record<string, Step<Input, State>>>]
    | [MachineOptions<Input, State>, Readonly<Record<string, Step<Input, State>>>]
): Machine<Input, State> {
  const [options, steps] = given.length === 1 ? [{}, given[0]] : given;
  return new Machine(name, options, steps);
}
