/** An engine in memory, with time that passes only when it is told to: workflows run as they would on a server. */

import { isDeepStrictEqual } from "node:util";

import { AbideError, quoted, RunFailed, terminal, UpdateRejected } from "../errors.js";
import { plain } from "../jsons.js";
import type { Executable, Link } from "../link.js";
import { child, type Given, type Named, type StartOptions, type Typed } from "../outcome.js";
import {
  type Attempt,
  type Entry,
  type ErrorInfo,
  type Fail,
  type Offer,
  type OutcomeMessage,
  type Say,
  type Start,
  variant,
  type WokenBy,
} from "../protocol.js";
import { retryDelay } from "../retry.js";
import { type Duration, durationMs, writeInstant } from "../times.js";
import { MemoryRun, type Op, refusal, type TestStatus, type Update } from "./run.js";

/** 2026-01-01, where time begins. */
export const START_MS = 1_767_225_600_000;

/** The worker dies here. */
class Crash extends AbideError {}

/** A run waits for something that no clock brings. */
export class Stuck extends AbideError {}

/** At which report a worker dies, and whether that is before it is durable or after. */
export interface CrashAt {
  report: number;
  when: "before" | "after";
}

/** The way from an attempt to the engine in memory. */
class MemoryLink implements Link {
  readonly lost = new AbortController().signal;
  private readonly claim: number;

  constructor(
    private readonly engine: TestEngine,
    private readonly run: MemoryRun,
  ) {
    this.claim = run.claims;
  }

  now(): number {
    return this.engine.now;
  }

  async record(entries: Entry[]): Promise<void> {
    this.check();
    this.engine.report(() => this.run.write(plain("the entries", entries) as Entry[]));
  }

  async progress(name: string, value: unknown): Promise<void> {
    this.check();
    const { progress, visit } = this.run;
    this.run.progress = { visit, latest: { ...(progress.visit === visit ? progress.latest : {}), [name]: value } };
  }

  async startChild(key: string, start: Start): Promise<string> {
    this.check();
    let child = "";
    this.engine.report(() => (child = this.engine.startNamed(this.run, key, plain("the child", start) as Start)));
    return child;
  }

  private check(): void {
    if (this.run.claims !== this.claim || this.run.over) throw refusal("stale_claim", "another attempt has the run");
  }
}

/** Runs workflows in memory. */
export class TestEngine {
  now = START_MS;
  /** How many reports workers have made. */
  reports = 0;
  crash: CrashAt | undefined;
  /** @internal */
  readonly runs = new Map<string, MemoryRun>();
  private readonly code = new Map<string, { code: Executable; offer: Offer }>();

  constructor(...workflows: readonly Executable[]) {
    for (const code of workflows) this.replace(code);
  }

  /** Other code in the place of what was there: a deploy. */
  replace(code: Executable): void {
    const offer = code.offer();
    this.code.set(`${offer.version} ${offer.workflow}`, { code, offer });
  }

  /** @internal A report: the worker may die before it is durable, or after. */
  report(write: () => void): void {
    this.reports += 1;
    const dies = this.crash?.report === this.reports ? this.crash.when : undefined;
    if (dies === "before") throw new Crash("the worker dies");
    write();
    if (dies === "after") throw new Crash("the worker dies");
  }

  // From outside.

  /** Starts a run of the newest version. */
  start(workflow: string, input?: unknown, options?: StartOptions): TestRun;
  start<I, R>(workflow: Typed<I, R>, ...given: Given<I, StartOptions>): TestRun<R>;
  start(workflow: Named, input?: unknown, options: StartOptions = {}): TestRun<any> {
    return new TestRun(this, this.begin(child(workflow, input, options), undefined));
  }

  private begin(start: Start, parent: MemoryRun | undefined): MemoryRun {
    const offers = [...this.code.values()].map(({ offer }) => offer).filter((offer) => offer.workflow === start.workflow);
    const version = start.version ?? Math.max(...offers.map((offer) => offer.version));
    const offer = offers.find((found) => found.version === version);
    if (offer === undefined) {
      const known = [...this.code.keys()].map((key) => quoted(key.slice(key.indexOf(" ") + 1))).join(", ");
      throw refusal("invalid", `expected a workflow of this engine (${known}), found ${quoted(start.workflow)}; give it to new TestEngine`);
    }
    const id = `run_${(this.runs.size + 1).toString(16).padStart(32, "0")}`;
    const input = plain("the input", start.input);
    const visible = this.now + (start.delay_ms ?? 0);
    const run = new MemoryRun(id, start, version, input, offer.first_step, parent?.id, this.now, visible, this);
    this.runs.set(id, run);
    return run;
  }

  /** @internal */
  startChild(parent: MemoryRun, start: Start): string {
    const { id } = this.begin(start, parent);
    parent.children.push({ run: id, workflow: start.workflow });
    return id;
  }

  /** @internal Starts the child that a step names by a key, or gives the one that is there. */
  startNamed(parent: MemoryRun, key: string, start: Start): string {
    const named = `${parent.step}\0${key}`;
    const known = this.runs.get(parent.started.get(named) ?? "");
    if (known === undefined) {
      const id = this.startChild(parent, start);
      parent.started.set(named, id);
      Object.assign(parent.children.at(-1) ?? {}, { key });
      return id;
    }
    if (known.workflow !== start.workflow || !isDeepStrictEqual(known.input, start.input ?? null)) {
      throw refusal("child_conflict", `${quoted(key)} names a child with other work`);
    }
    return known.id;
  }

  /** Executes everything that can go on now. */
  async settle(): Promise<void> {
    for (;;) {
      const isReady = (run: MemoryRun) => run.status === "runnable" && run.visibleAt <= this.now;
      const ready = [...this.runs.values()].filter(isReady);
      if (ready.length === 0) return;
      for (const run of ready) if (isReady(run)) await this.attempt(run);
    }
  }

  /** Lets time pass, and executes what becomes due on the way. */
  async advance(duration: Duration): Promise<void> {
    const until = this.now + durationMs(duration);
    await this.settle();
    for (let due = this.due(); due !== undefined && due <= until; due = this.due()) {
      this.now = Math.max(this.now, due);
      this.expire();
      await this.settle();
    }
    this.now = until;
  }

  /** @internal When something happens by itself. */
  due(): number | undefined {
    const times = [...this.runs.values()]
      .filter((run) => !run.over)
      .flatMap((run) => [
        run.status === "runnable" ? run.visibleAt : undefined,
        run.wait?.until,
        ...run.openOps().map((op) => run.due(op)),
      ])
      .filter((time) => time !== undefined);
    return times.length === 0 ? undefined : Math.min(...times);
  }

  private expire(): void {
    for (const run of [...this.runs.values()].filter((found) => !found.over)) {
      const ended = run.openOps().filter((op) => run.expire(op));
      if (ended.length > 0) this.wake(run);
      const { wait } = run;
      if (wait?.until !== undefined && wait.until <= this.now) this.resume(run, wait.kind === "sleep" ? "timer" : "deadline");
    }
  }

  // Attempts.

  /** @internal Gives an attempt of a run to a worker. */
  claim(run: MemoryRun): Attempt {
    run.status = "executing";
    run.claims += 1;
    run.attempts += 1;
    const attempt: Attempt = {
      claim: `claim_${run.id.replace(/^run_/, "")}_${run.claims}`,
      lease_until: writeInstant(this.now + 30_000),
      run: run.id,
      workflow: run.workflow,
      version: run.version,
      queue: run.queue,
      key: run.start.key ?? null,
      labels: run.start.labels ?? {},
      step: run.step,
      epoch: run.epoch,
      visit: run.visit,
      attempt: run.attempts,
      retries: run.retries,
      reclaims: run.reclaims,
      woken_by: run.wokenBy ?? null,
      input: run.input,
      state: run.state,
      signals: run.inbox,
      children: run.children,
      ledger: run.ops,
      next_op: run.ops.length + 1,
      ended: run.ended,
      begun_at: writeInstant(run.begunAt),
      cancelling: run.cancelling,
      progress: run.progress.visit === run.visit ? run.progress.latest : {},
      ...(run.published === undefined ? {} : { published: run.published.state }),
    };
    return structuredClone(attempt);
  }

  private async attempt(run: MemoryRun): Promise<void> {
    const attempt = this.claim(run);
    const found = this.code.get(`${run.version} ${run.workflow}`);
    try {
      const say = await found?.code.execute(attempt, new MemoryLink(this, run));
      if (say === undefined || "give_back" in say) {
        run.status = "runnable";
        return;
      }
      this.report(() => this.apply(run, plain("what is said", say) as Say));
    } catch (error) {
      if (!(error instanceof Crash)) throw error;
      if (run.status === "executing") {
        run.status = "runnable";
        run.reclaims += 1;
      }
    }
  }

  /** @internal What a worker says at the end of an attempt. */
  apply(run: MemoryRun, say: Say): void {
    if ("fail" in say) {
      if (say.fail.set_aside === true) {
        run.status = "dead_lettered";
        run.error = say.fail.error;
        return;
      }
      run.write(say.fail.entries ?? []);
      this.fail(run, say.fail);
    } else if ("complete" in say) {
      run.write(say.complete.entries);
      if (!("suspend" in say.complete.outcome)) run.wokenBy = undefined;
      this.complete(run, say.complete.outcome);
    }
  }

  private fail(run: MemoryRun, { retry, error, reopen }: Fail): void {
    const delay = retry !== undefined && error.retryable ? retryDelay(retry, run.retries, 0n) : undefined;
    if (delay === undefined) return this.end(run, "failed", null, error);
    for (const op of (reopen ?? []).map((number) => run.op(number))) {
      if ("effect" in op.what && op.end?.error?.retryable) {
        delete op.end;
        op.what.effect.claim = 0;
      }
    }
    run.retries += 1;
    run.status = "runnable";
    run.visibleAt = this.now + delay;
  }

  private end(run: MemoryRun, status: TestStatus, result: unknown, error?: ErrorInfo): void {
    run.status = status;
    run.result = result;
    run.error = error;
    run.wait = undefined;
    const parent = this.runs.get(run.parent ?? "");
    if (parent === undefined) return;
    const info = error ?? { code: status, message: `${run.id} ended as ${status}`, retryable: false };
    for (const found of parent.children.filter((other) => other.run === run.id)) {
      Object.assign(found, { status }, status === "done" ? { result } : { error: info });
    }
    for (const op of parent.openOps()) {
      if ("child" in op.what && op.what.child.run === run.id) {
        parent.end(op, status === "done" ? { value: result } : { error: info });
        this.wake(parent);
      }
    }
    if (parent.wait?.kind === "children" && joined(parent)) this.resume(parent, "children");
  }

  // Outcomes.

  private enter(run: MemoryRun, step: string | undefined, state: unknown): void {
    run.step = step ?? run.step;
    run.state = state;
    run.visit += 1;
    run.retries = run.reclaims = run.attempts = 0;
    run.status = "runnable";
    run.visibleAt = this.now;
  }

  private complete(run: MemoryRun, outcome: OutcomeMessage): void {
    if ("next" in outcome) this.enter(run, outcome.next.step, outcome.next.state);
    else if ("replay" in outcome) {
      run.state = outcome.replay.state;
      run.status = "runnable";
      run.visibleAt = this.now + outcome.replay.delay_ms;
      run.retries += 1;
    } else if ("suspend" in outcome) this.suspend(run, outcome.suspend.seen);
    else if ("done" in outcome) this.end(run, "done", outcome.done.result);
    else if ("cancelled" in outcome) this.end(run, "cancelled", null);
    else if ("stop" in outcome) this.end(run, "failed", null, outcome.stop.error);
    else if ("continue_as_new" in outcome) {
      const offer = this.code.get(`${run.version} ${run.workflow}`)?.offer;
      this.enter(run, offer?.first_step, outcome.continue_as_new.input);
      run.begunAt = this.now;
    } else this.park(run, outcome);
  }

  private park(run: MemoryRun, outcome: Extract<OutcomeMessage, { await: any } | { sleep: any } | { spawn: any }>): void {
    const [, said] = variant<{ state: unknown; then?: string; deadline?: Parameters<MemoryRun["moment"]>[0] }>(outcome);
    run.state = said.state;
    const until = said.deadline === undefined ? undefined : run.moment(said.deadline);
    if ("await" in outcome) {
      const names = outcome.await.signals;
      run.status = "awaiting_signal";
      run.wait = { kind: "await", until, then: said.then, names };
      if (run.inbox.some((found) => names.includes(found.name))) this.resume(run, "signal");
    } else if ("sleep" in outcome) {
      run.status = "sleeping";
      run.wait = { kind: "sleep", until: run.moment(outcome.sleep.until), then: said.then };
    } else {
      const children = outcome.spawn.children.map((start) => this.startChild(run, start));
      run.wait = { kind: "children", until, then: said.then, children, join: outcome.spawn.join };
      run.status = "awaiting_children";
      if (joined(run)) this.resume(run, "children");
    }
  }

  private suspend(run: MemoryRun, seen: number): void {
    run.retries = run.reclaims = 0;
    if (run.ended > seen) {
      run.status = "runnable";
      return;
    }
    run.status = run.inDoubt().length > 0 ? "in_doubt" : "suspended";
    run.wait = { kind: "ledger" };
  }

  /** @internal A run that waits for its ledger goes on. */
  wake(run: MemoryRun): void {
    if (run.wait?.kind !== "ledger") return;
    run.wait = undefined;
    run.status = "runnable";
    run.wokenBy = "ledger";
    run.visibleAt = this.now;
  }

  private resume(run: MemoryRun, why: WokenBy): void {
    const then = run.wait?.then;
    run.wait = undefined;
    this.enter(run, then, run.state);
    run.wokenBy = why;
  }

  /** @internal Something was sent to a run: whoever waits for it wakes. */
  serve(run: MemoryRun): void {
    for (const op of run.openOps()) {
      run.serve(op);
      if (op.end) this.wake(run);
    }
    const last = run.inbox.at(-1);
    if (last !== undefined && run.wait?.kind === "await" && run.wait.names?.includes(last.name)) this.resume(run, "signal");
  }
}

function joined(run: MemoryRun): boolean {
  const { children = [], join = "all_terminal" } = run.wait ?? {};
  const ends = run.children.filter((found) => children.includes(found.run)).map((found) => found.status);
  const pending = ends.filter((status) => status === undefined).length;
  const succeeded = ends.filter((status) => status === "done").length;
  if (join === "all_terminal") return pending === 0;
  if (join === "all_succeeded") return pending === 0 || ends.length - pending - succeeded > 0;
  const needed = join === "any" ? 1 : join.quorum;
  return succeeded >= needed || succeeded + pending < needed;
}

/** A run of the engine in memory, from outside. */
export class TestRun<Result = unknown> {
  /** @internal */
  constructor(
    readonly engine: TestEngine,
    /** @internal */
    readonly run: MemoryRun,
  ) {}

  get id(): string {
    return this.run.id;
  }

  get status(): TestStatus {
    return this.run.status;
  }

  /** What went wrong, if the run did not end well. */
  get error(): ErrorInfo | undefined {
    return this.run.error;
  }

  /** The state that the run shows. */
  get state(): unknown {
    return this.run.published === undefined ? this.run.state : this.run.published.state;
  }

  /** What its step says of its progress: the latest value of each name. */
  get progress(): Readonly<Record<string, unknown>> {
    return this.run.progress.latest;
  }

  /** The keys of its ledger, in the order they were made. */
  get keys(): string[] {
    return this.run.ops.map((op) => op.key);
  }

  /**
   * Executes, and lets time pass, until the run has ended.
   *
   * @throws {RunFailed} it did not end well.
   * @throws {Stuck} it waits for something that no clock brings.
   */
  async result(): Promise<Result> {
    await this.engine.settle();
    while (!this.run.over) {
      const due = this.engine.due();
      if (due === undefined) {
        const waits = this.run.openOps().map((op) => op.key).join(", ") || this.run.status;
        throw new Stuck(`${this.id} (${this.run.workflow}) is ${this.run.status}: it waits for ${waits}; send it from the test`);
      }
      await this.engine.advance(Math.max(0, due - this.engine.now));
    }
    if (this.run.status !== "done") throw new RunFailed(this.id, this.run.status, this.run.error);
    return this.run.result as Result;
  }

  /** Sends a signal, and executes what follows. */
  async signal(name: string, payload?: unknown): Promise<void> {
    const { run } = this;
    run.signals += 1;
    run.inbox.push({ id: run.signals, name, payload: plain("the payload", payload), at: writeInstant(this.engine.now) });
    this.engine.serve(run);
    await this.engine.settle();
  }

  /**
   * Asks the run to do something, executes what follows, and gives its answer.
   *
   * @throws {UpdateRejected} the run said no.
   */
  async update<T = unknown>(name: string, input?: unknown): Promise<T> {
    const asked = plain("the input", input);
    const update: Update = { name, input: asked, op: undefined, answered: false, answer: null, rejected: undefined };
    this.run.updates.push(update);
    this.engine.serve(this.run);
    await this.engine.settle();
    if (!update.answered) throw new Stuck(`${this.id} has not answered update ${quoted(name)}: it is ${this.run.status}`);
    if (update.rejected !== undefined) {
      throw new UpdateRejected({ code: "update_rejected", status: 409, detail: "the run said no", error: update.rejected });
    }
    return update.answer as T;
  }

  /** What the run asks of a person now. */
  asked(): { name: string; kind: string; payload: unknown; roles: string[]; assignee: string | undefined } | undefined {
    const op = this.manual();
    if (op === undefined || !("manual" in op.what)) return undefined;
    return { name: op.key, kind: op.what.manual.kind, ...(op.asked ?? { payload: null, roles: [], assignee: undefined }) };
  }

  private manual(): Op | undefined {
    return this.run.openOps().find((op) => "manual" in op.what);
  }

  /** Decides what the run asks. */
  async decide(
    choice: "approve" | "reject" | "complete" | "resume",
    payload?: unknown,
    options: { actor?: string; note?: string } = {},
  ): Promise<void> {
    const op = this.manual();
    if (op === undefined) throw new Stuck(`${this.id} asks nothing of a person: it is ${this.run.status}`);
    const said = { op: op.op, choice, actor: options.actor ?? "tester", payload: plain("the payload", payload) };
    this.run.end(op, { value: options.note === undefined ? said : { ...said, note: options.note } });
    this.engine.wake(this.run);
    await this.engine.settle();
  }

  /** Says yes to what the run asks. */
  approve(payload?: unknown, options: { actor?: string; note?: string } = {}): Promise<void> {
    return this.decide("approve", payload, options);
  }

  /** Says no to what the run asks. */
  reject(payload?: unknown, options: { actor?: string; note?: string } = {}): Promise<void> {
    return this.decide("reject", payload, options);
  }

  /** Hands in the result of the task that the run asks for. */
  complete(payload?: unknown, options: { actor?: string; note?: string } = {}): Promise<void> {
    return this.decide("complete", payload, options);
  }

  /** Says what became of an effect in doubt. */
  async resolve(effect: string, how: { value: unknown } | { failed: string } | "retry"): Promise<void> {
    const op = this.run.inDoubt().find((found) => found.key === effect);
    if (op === undefined || !("effect" in op.what)) {
      const doubt = this.run.inDoubt().map((found) => quoted(found.key)).join(", ") || "none";
      throw new Stuck(`expected an effect of ${this.id} that is in doubt (${doubt}), found ${quoted(effect)}`);
    }
    if (how === "retry") op.what.effect.claim = 0;
    else if ("value" in how) this.run.end(op, { value: plain("the value", how.value) });
    else this.run.end(op, { error: terminal("resolved_as_failed", how.failed).info() });
    this.engine.wake(this.run);
    await this.engine.settle();
  }

  /** Ends the run from outside: it undoes what it did first. */
  async cancel(): Promise<void> {
    if (this.run.over) return;
    this.run.cancelling = true;
    this.run.wait = undefined;
    this.run.status = "runnable";
    this.run.visibleAt = this.engine.now;
    await this.engine.settle();
  }
}
