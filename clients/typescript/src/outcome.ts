/** What a step of a machine returns: one function per outcome. */

import { asStepError, StepError } from "./errors.js";
import { written } from "./jsons.js";
import type { Consume, Join, OutcomeMessage, Start } from "./protocol.js";
import { type Duration, durationMs, moment, type When } from "./times.js";

/** What happens next to a run. */
export class Outcome {
  constructor(
    /** As it is written. */
    readonly message: OutcomeMessage,
    /** Which signals the step uses up. */
    readonly consumes: Consume = "presented",
  ) {}

  /**
   * Which signals that the step waited for it uses up when it goes on: those that were `presented` to it, which is what happens
   * if nothing is said, or all of these names (`by_name`), also those that arrived while it ran.
   */
  consume(how: Consume): Outcome {
    return new Outcome(this.message, how);
  }
}

/** What is known by a name: a workflow, or the name itself. */
export type Named<Input = any, Result = any> = string | { readonly name: string; readonly types?: [Input, Result] };

/** What is known by a name, and not the name itself. */
export type Typed<Input, Result> = Exclude<Named<Input, Result>, string>;

/** An input, which may be left out where none is taken, and options. */
export type Given<Input, Options> = undefined extends Input
  ? [input?: Input, options?: Options]
  : [input: Input, options?: Options];

/** How a run begins. */
export interface StartOptions {
  /** A version of its own; the newest that is known if nothing is said. */
  version?: number;
  /** A business key: one open run has it at a time. */
  key?: string;
  /** What happens when the key is taken: refused, or the run that has it is given. */
  onConflict?: "reject" | "reuse";
  queue?: string;
  priority?: number;
  /** At most `limit` runs of this key execute at once. */
  concurrency?: { key: string; limit: number };
  /** How long it waits before it begins. */
  delay?: Duration;
  /** How long it may take. */
  deadline?: Duration;
  labels?: Record<string, string>;
  deliveriesMax?: number;
  /** Puts the run into a trace (W3C); without it the run has one of its own. A child is in its parent's. */
  traceparent?: string;
}

/** A run that is to begin, as it is written: for `spawn`, `ctx.startChild`, `ctx.children` and `client.startMany`. */
export function child<Input>(workflow: Named<Input>, input?: Input, options: StartOptions = {}): Start {
  const start: Start = { workflow: nameOf(workflow), input: input ?? null };
  if (options.version !== undefined) start.version = options.version;
  if (options.key !== undefined) start.key = options.key;
  if (options.onConflict !== undefined) start.on_conflict = options.onConflict;
  if (options.queue !== undefined) start.queue = options.queue;
  if (options.priority !== undefined) start.priority = options.priority;
  if (options.concurrency !== undefined) start.concurrency = options.concurrency;
  if (options.delay !== undefined) start.delay_ms = durationMs(options.delay);
  if (options.deadline !== undefined) start.deadline_ms = durationMs(options.deadline);
  if (options.labels !== undefined) start.labels = options.labels;
  if (options.deliveriesMax !== undefined) start.deliveries_max = options.deliveriesMax;
  if (options.traceparent !== undefined) start.traceparent = options.traceparent;
  return start;
}

/** The name of a workflow. */
export function nameOf(workflow: Named): string {
  return typeof workflow === "string" ? workflow : workflow.name;
}

/** Go on with another step. */
export function nextStep(step: string, state: unknown = null): Outcome {
  return new Outcome({ next: { step, state } });
}

/** Run the same step again, after a delay. */
export function replay(state: unknown = null, delay: Duration = 0): Outcome {
  return new Outcome({ replay: { state, delay_ms: durationMs(delay) } });
}

/** Park until a signal of one of these names arrives; then the same step, or `then`, goes on. */
export function awaitSignals(
  signals: string | Iterable<string>,
  state: unknown = null,
  options: { then?: string; deadline?: When } = {},
): Outcome {
  const names = typeof signals === "string" ? [signals] : [...signals];
  return new Outcome({ await: { signals: names, state, ...following(options) } });
}

/** Park for so long, or until an instant. */
export function sleep(until: When, state: unknown = null, options: { then?: string } = {}): Outcome {
  return new Outcome({ sleep: { until: moment(until), state, ...following(options) } });
}

/** Start children, park until they have joined, then run `then`. */
export function spawn(
  children: Iterable<Start>,
  then: string,
  state: unknown = null,
  options: { join?: Join; deadline?: When } = {},
): Outcome {
  const join = options.join ?? "all_terminal";
  const { deadline } = following({ deadline: options.deadline });
  return new Outcome({ spawn: { children: [...children], then, join, state, ...(deadline === undefined ? {} : { deadline }) } });
}

/** End well. */
export function done(result: unknown = null): Outcome {
  return new Outcome({ done: { result } });
}

/** End with an error. */
export function stop(error: unknown): Outcome {
  const found = typeof error === "string" ? new StepError(error) : asStepError(error);
  return new Outcome({ stop: { error: written(found) } });
}

/** Begin again at the first step with a new input. */
export function continueAsNew(input: unknown = null): Outcome {
  return new Outcome({ continue_as_new: { input } });
}

function following(options: { then?: string | undefined; deadline?: When | undefined }) {
  return {
    ...(options.then === undefined ? {} : { then: options.then }),
    ...(options.deadline === undefined ? {} : { deadline: moment(options.deadline) }),
  };
}
