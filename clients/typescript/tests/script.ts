/** The small script language of the vectors, as a workflow. See clients/vectors/README.md. */

import {
  allow,
  awaitSignals,
  block,
  type Call,
  child,
  type Context,
  done,
  interrupt,
  type Machine,
  machine,
  nextStep,
  type Outcome,
  type Policy,
  replay,
  type RetryPolicy,
  type StepContext,
  StepError,
  type Workflow,
  workflow,
} from "abide";

import type { Attempt, ErrorInfo, LedgerEntry, Retry } from "../dist/protocol.js";
import { hex16 } from "../dist/hashing.js";
import { Gate } from "./support.js";

/** A case of the vectors. */
export interface Case {
  name?: string;
  clock: string;
  script: Step[];
  ledger?: LedgerEntry[];
  attempt?: Partial<Attempt>;
  retry?: Retry;
  controls?: { rule: "allow" | "block" | "interrupt"; name?: string }[];
  effects?: Record<string, { value: unknown } | { error: ErrorInfo }>;
  ends?: string[];
  on_error?: Step[];
  compact_after?: number;
  expect?: unknown;
}

export type Step = Record<string, any>;
type Scope = Record<string, unknown>;

const RULES = { allow, block, interrupt };

/** A retry policy of the vectors as this SDK takes it. */
export function retryOf(retry: Partial<Retry>): RetryPolicy {
  return {
    ...(retry.delay_ms === undefined ? {} : { delay: retry.delay_ms }),
    ...(retry.backoff === undefined ? {} : { backoff: retry.backoff }),
    ...(retry.delay_ms_max === undefined ? {} : { delayMax: retry.delay_ms_max }),
    ...(retry.jitter_percent === undefined ? {} : { jitterPercent: retry.jitter_percent }),
    ...(retry.retries_max === undefined ? {} : { retriesMax: retry.retries_max }),
  };
}

/** Executes the steps of a case. */
export class Script {
  readonly calls: { key: string; idempotency_key: string; durable: number }[] = [];
  /** How many entries are durable. */
  durable = 0;
  private readonly over = new Map<string, Gate>();

  constructor(private readonly told: Case) {}

  /** The workflow of the case. */
  workflow(): Workflow<unknown, unknown> {
    const { script } = this.told;
    return workflow("script", this.options(), async (ctx, input: unknown) => (await this.steps(ctx, script, { input }))?.[0] ?? null);
  }

  /** The machine of the case, with one step. */
  machine(): Machine {
    const { script, on_error, compact_after } = this.told;
    const outcome = async (ctx: StepContext, steps: Step[], scope: Scope) => {
      // The verbs that both have are the same in both.
      return (await this.steps(ctx as unknown as Context, steps, scope))?.[0] as Outcome;
    };
    const options = {
      ...this.options(),
      ...(compact_after === undefined ? {} : { compactAfter: compact_after }),
      ...(on_error === undefined
        ? {}
        : { onError: (error: StepError, ctx: StepContext) => outcome(ctx, on_error, { error: error.code }) }),
    };
    return machine("script", options, { run: (ctx) => outcome(ctx, script, {}) });
  }

  private options() {
    const { retry, controls = [] } = this.told;
    return {
      ...(retry === undefined ? {} : { retry: retryOf(retry) }),
      controls: controls.map((control) => RULES[control.rule](control.name)),
    };
  }

  /** Does steps one after the other; what is returned, if something is. */
  private async steps(ctx: Context, steps: Step[], scope: Scope): Promise<[unknown] | undefined> {
    for (const step of steps) {
      const [verb, said] = Object.entries(step).find(([name]) => name !== "as" && name !== "catch") as [string, any];
      let value: unknown;
      try {
        const done = this.verbs[verb]!(ctx, said, scope);
        // What is done at once takes no turn: branches go on as they do in the other SDKs.
        value = done instanceof Promise ? await done : done;
      } catch (error) {
        if (!("catch" in step) || !(error instanceof StepError)) throw error;
        scope[step["catch"]] = error.code;
        continue;
      }
      if (verb === "return" || verb === "outcome") return [value];
      if (verb === "patch" || verb === "scope") {
        if (value !== undefined) return value as [unknown];
      } else if ("as" in step) {
        scope[step["as"]] = value ?? null;
      }
    }
    return undefined;
  }

  private value(ctx: Context, expression: any, scope: Scope): unknown {
    if (Array.isArray(expression)) return expression.map((item) => this.value(ctx, item, scope));
    if (typeof expression !== "object" || expression === null || Object.keys(expression).length !== 1) return expression;
    if ("$" in expression) return scope[expression["$"]];
    if ("$now" in expression) return ctx.now().toISOString();
    if ("$random" in expression) return hex16(ctx.bits(expression["$random"]));
    if ("$uuid" in expression) return ctx.uuid(expression["$uuid"]);
    return expression;
  }

  private async call(call: Call): Promise<unknown> {
    const key = call.key.slice(call.key.indexOf("/") + 1);
    this.calls.push({ key, idempotency_key: call.key, durable: this.durable });
    const ends = this.told.ends ?? [];
    for (const before of ends.slice(0, Math.max(0, ends.indexOf(key)))) await this.gate(before).passed;
    this.gate(key).open();
    const end = this.told.effects?.[key] ?? { value: null };
    if ("error" in end) throw StepError.of(end.error);
    return end.value;
  }

  private gate(key: string): Gate {
    const gate = this.over.get(key) ?? new Gate();
    this.over.set(key, gate);
    return gate;
  }

  private readonly verbs: Record<string, (ctx: Context, said: any, scope: Scope) => unknown> = {
    effect: (ctx, said, scope) =>
      ctx.effect(said.name, (call) => this.call(call), {
        policy: (said.policy ?? "idempotent") as Policy,
        ...("input" in said ? { input: this.value(ctx, said.input, scope) } : {}),
        ...("retry" in said ? { retry: retryOf(said.retry) } : {}),
      }),
    start_child: (ctx, said) =>
      (ctx as unknown as StepContext).startChild(said.key, child(said.workflow as string, said.input)),
    outcome: (ctx, said, scope) => {
      const [kind, fields] = Object.entries(said.of)[0] as [string, any];
      const state = this.value(ctx, fields.state, scope);
      const made: Record<string, () => Outcome> = {
        next: () => nextStep(fields.step, state),
        replay: () => replay(state, fields.delay_ms),
        await: () => awaitSignals(fields.signals, state),
        done: () => done(this.value(ctx, fields.result, scope)),
      };
      const outcome = made[kind]!();
      return "consume" in said ? outcome.consume(said.consume) : outcome;
    },
    sleep: (ctx, said) => ctx.sleep("until" in said ? new Date(said.until) : said.ms),
    signal: (ctx, said) => ctx.signal(said.name, within(said)),
    update: async (ctx, said) => {
      const asked = await ctx.update(said.name, within(said));
      if (asked === undefined) return null;
      if ("reject" in said) asked.reject(said.reject);
      else if ("answer" in said) asked.answer(said.answer);
      return asked.input;
    },
    child: (ctx, said) => ctx.child(said.name, said.workflow as string, said.input),
    approval: async (ctx, said) => {
      const decision = await ctx.approval(said.name, said.payload, { roles: said.roles ?? [], ...within(said) });
      return decision.choice;
    },
    task: (ctx, said) => ctx.task(said.name, said.form, within(said)),
    patch: (ctx, said, scope) => this.steps(ctx, ctx.patch(said.name) ? said.then : (said.else ?? []), scope),
    scope: (ctx, said, scope) => this.steps(ctx.scope(said.name), said.do, scope),
    all: (ctx, said: Step[][], scope) => ctx.all(said.map((branch) => this.steps(ctx, branch, scope))),
    race: async (ctx, said: Step[][], scope) => (await ctx.race(said.map((branch) => () => this.steps(ctx, branch, scope))))[0],
    undo: (ctx, said) => ctx.undo(said.name, (call) => this.call(call)),
    publish: (ctx, said, scope) => ctx.publish(this.value(ctx, said, scope)),
    continue_as_new: (ctx, said, scope) => ctx.continueAsNew(this.value(ctx, said, scope)),
    fail: (_, said) => {
      throw StepError.of(said);
    },
    return: (ctx, said, scope) => this.value(ctx, said, scope),
  };
}

function within(said: { within_ms?: number }): { timeout?: number } {
  return said.within_ms === undefined ? {} : { timeout: said.within_ms };
}
