/** The client: starts runs, asks them, looks at them, follows them, answers what they ask of people, and operates a server. */

import { randomBytes } from "node:crypto";

import { ConnectionFailed, Problem, RunFailed, TimedOut, Unencodable, Untrusted } from "./errors.js";
import { told } from "./events.js";
import { Http, problemOf, type Response, type TlsOptions } from "./http.js";
import { encode } from "./jsons.js";
import { child, type Given, type Named, type StartOptions, type Typed } from "./outcome.js";
import type {
  Boundary,
  DeadAttempt,
  DeadLetter,
  Effect,
  Ending,
  Explanation,
  JournalRow,
  NamespaceEvent,
  ProgressPage,
  Queue,
  QueueHeld,
  Run,
  RunEvent,
  RunSummary,
  SeenWorker,
  SeenWorkflow,
  Start,
  StartAnswer,
  Status,
} from "./protocol.js";
import { type Duration, durationMs } from "./times.js";

/** Answers after which the same request is sent again: the server's own, and those of proxies that did not reach it. */
export const RETRIED: ReadonlySet<number> = new Set([408, 429, 502, 503, 504]);

/** How long one request waits for something to happen. */
const WAIT_MS = 20_000;
const PAGE_MAX = 1_000;

/** How a server is asked. */
export interface ClientOptions {
  /** Who asks; see `abide token create`. */
  token?: string;
  /** `default` if nothing is said. */
  namespace?: string;
  /** How long one answer may take; 30 seconds if nothing is said. */
  timeout?: Duration;
  /** For how long a request is sent again while the server cannot be reached or is busy; a minute if nothing is said. */
  retryFor?: Duration;
  /** Whom to trust over `https`, in place of the authorities that Node knows: `{ ca: readFileSync("ca.pem") }`. */
  tls?: TlsOptions;
}

/** What a person says with a decision. */
export interface Saying {
  actor?: string;
  roles?: string[];
  note?: string;
  payload?: unknown;
}

/** Who takes a task, or whom it is handed to. */
export interface Assigning {
  actor?: string;
  to?: string;
  roles?: string[];
  note?: string;
  take_over?: boolean;
}

/** How a run begins, and by which key its start is known when it is sent again. */
export interface StartRunOptions extends StartOptions {
  /** One of its own is made if nothing is said. */
  idempotencyKey?: string;
}

/** A value of a query; a list is said value by value. */
type Asked = string | number | null | undefined | string[];

/** Which runs are looked for; all, if nothing is said. */
export interface RunFilters {
  workflow?: string;
  /** `open` means all that are not over. */
  status?: Status | "open" | readonly Status[];
  queue?: string;
  key?: string;
  parent?: string;
  /** With all of these. */
  labels?: Record<string, string>;
  /** Started at this instant or after it. */
  createdAfter?: Date;
  createdBefore?: Date;
  /** Last changed at this instant or after it. */
  updatedAfter?: Date;
  updatedBefore?: Date;
  limit?: number;
}

/** What became of an effect in doubt. */
export type How = { value: unknown } | { failed: string } | "retry" | "compensated";

/** A UUID of version 7: what a request is known by when it is sent again. */
export function uuid7(): string {
  const bytes = Buffer.concat([Buffer.alloc(6), randomBytes(10)]);
  bytes.writeUIntBE(Date.now(), 0, 6);
  bytes[6] = 0x70 | (bytes.readUInt8(6) & 0x0f);
  bytes[8] = 0x80 | (bytes.readUInt8(8) & 0x3f);
  return bytes.toString("hex").replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}

/** How long to wait before a request is sent again: doubling, with chance, so that many do not come at once. */
export function backoffMs(tries: number): number {
  return Math.min(5_000, 50 * 2 ** Math.min(tries, 16)) * (0.5 + Math.random() / 2);
}

/** Waits. */
export function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

/** Asks a server. */
export class Client {
  readonly namespace: string;
  private readonly http: Http;
  private readonly within: string;
  private readonly timeoutMs: number;
  private readonly retryForMs: number;

  constructor(url: string, options: ClientOptions = {}) {
    this.http = new Http(url, options.token, options.tls);
    this.namespace = options.namespace ?? "default";
    this.within = `/v1/namespaces/${part(this.namespace)}`;
    this.timeoutMs = durationMs(options.timeout ?? "30s");
    this.retryForMs = durationMs(options.retryFor ?? "60s");
  }

  /** Closes its connections. A program ends without it as well. */
  close(): void {
    this.http.close();
  }

  // Requests.

  /**
   * Sends a request, and sends it again while the server cannot be reached or is busy. A path that begins with `/v1` is the
   * server's; any other is inside of the namespace. What changes something carries a key of its own, so that it is done
   * once however often it is sent; what the server does not recognise the second time (`once`) is sent once, and whoever asked
   * hears that nobody knows what came of it.
   *
   * @throws {Problem} the server said no.
   * @throws {ConnectionFailed} there was no answer for too long; `Untrusted`, at once, where no retry cures it.
   * @throws {Unencodable} it has no JSON form, and was not sent.
   */
  async request<T = unknown>(
    method: string,
    path: string,
    body?: unknown,
    options: { query?: Record<string, Asked>; idempotencyKey?: string; timeoutMs?: number; once?: boolean } = {},
  ): Promise<T> {
    const text = body === undefined ? undefined : encode("the request", body);
    const given = Object.entries(options.query ?? {}).flatMap(([name, value]) =>
      (Array.isArray(value) ? value : [value]).flatMap((one: string | number | null | undefined) =>
        one === undefined || one === null ? [] : [[name, checkedText(String(one))] as [string, string]],
      ),
    );
    const query = given.length === 0 ? "" : `?${new URLSearchParams(given).toString()}`;
    const whole = (path.startsWith("/v1") ? path : this.within + path) + query;
    const once = options.once ?? false;
    const keyed = method !== "GET" && !once;
    const headers: Record<string, string> = keyed ? { "Idempotency-Key": options.idempotencyKey ?? uuid7() } : {};
    const until = performance.now() + this.retryForMs;
    for (let tries = 0; ; tries += 1) {
      let failed: Error;
      let wait = backoffMs(tries);
      try {
        const answer = await this.http.request(method, whole, text, { headers, timeoutMs: options.timeoutMs ?? this.timeoutMs });
        if (answer.status < 300) return answer.json() as T;
        failed = problemOf(answer);
        if (once || !RETRIED.has(answer.status)) throw failed;
        wait = Math.max(wait, retryAfterMs(answer));
      } catch (error) {
        if (once || !(error instanceof ConnectionFailed) || error instanceof Untrusted) throw error;
        failed = error;
      }
      if (performance.now() + wait > until) throw failed;
      await pause(wait);
    }
  }

  // Runs.

  /** Starts a run, and gives its id. */
  start(workflow: string, input?: unknown, options?: StartRunOptions): Promise<string>;
  start<I, R>(workflow: Typed<I, R>, ...given: Given<I, StartRunOptions>): Promise<string>;
  async start(workflow: Named, input?: unknown, options: StartRunOptions = {}): Promise<string> {
    const { idempotencyKey } = options;
    const named = idempotencyKey === undefined ? {} : { idempotencyKey };
    const started = await this.request<{ run: string }>("POST", "/runs", child(workflow, input, options), named);
    return started.run;
  }

  /** Starts many runs, made with `child`: one answer each, with `started` or `problem`. */
  async startMany(starts: Iterable<Start>): Promise<StartAnswer[]> {
    return (await this.request<{ answers: StartAnswer[] }>("POST", "/runs/batch", { runs: [...starts] })).answers;
  }

  /** A run as it stands. */
  get(run: string): Promise<Run> {
    return this.request("GET", runPath(run));
  }

  /** The state that a run shows, now or at a revision. */
  async state<T = unknown>(run: string, rev?: number): Promise<T> {
    return (await this.request<{ state: T }>("GET", `${runPath(run)}/state`, undefined, { query: { rev } })).state;
  }

  /** Runs, newest first, page after page. */
  list(filters: RunFilters = {}): AsyncGenerator<RunSummary> {
    const { status, labels, createdAfter, createdBefore, updatedAfter, updatedBefore, ...others } = filters;
    return this.pages("/runs", "runs", {
      ...others,
      status: typeof status === "object" ? status.join(",") : status,
      label: Object.entries(labels ?? {}).map(([name, value]) => `${name}=${value}`),
      created_after: createdAfter?.toISOString(),
      created_before: createdBefore?.toISOString(),
      updated_after: updatedAfter?.toISOString(),
      updated_before: updatedBefore?.toISOString(),
    });
  }

  private async *pages<T>(path: string, what: string, filters: { limit?: number } & Record<string, Asked>): AsyncGenerator<T> {
    for await (const page of this.wholePages(path, what, filters)) yield* page[what] as T[];
  }

  private async *wholePages(
    path: string,
    what: string,
    { limit, ...filters }: { limit?: number } & Record<string, Asked>,
  ): AsyncGenerator<Record<string, unknown>> {
    let left = limit ?? Infinity;
    let before: string | null | undefined;
    while (left > 0) {
      const most = left === Infinity ? undefined : Math.min(left, PAGE_MAX);
      const page = await this.request<Record<string, unknown>>("GET", path, undefined, {
        query: { ...filters, before, limit: most },
      });
      yield page;
      before = page["next"] as string | null | undefined;
      if (before === null || before === undefined) return;
      left -= (page[what] as unknown[]).length;
    }
  }

  /**
   * Waits for the end of a run, and gives its result.
   *
   * @throws {RunFailed} it did not end well.
   * @throws {TimedOut} it has not ended in time.
   */
  async result<T = unknown>(run: string, options: { timeout?: Duration } = {}): Promise<T> {
    const { ended, status, result, error } = await this.end<T>(run, options);
    if (!ended) throw new TimedOut(`${run} has not ended: it is ${status}`);
    if (status !== "done") throw new RunFailed(run, status, error);
    return result;
  }

  /** Waits for the end of a run, however it is; `ended` says whether it came in time. */
  async end<T = unknown>(run: string, options: { timeout?: Duration } = {}): Promise<Ending<T>> {
    const until = options.timeout === undefined ? Infinity : performance.now() + durationMs(options.timeout);
    for (;;) {
      const wait_ms = Math.floor(Math.min(WAIT_MS, Math.max(0, until - performance.now())));
      const options = { query: { wait_ms }, timeoutMs: this.timeoutMs + wait_ms };
      const ending = await this.request<Ending<T>>("GET", `${runPath(run)}/result`, undefined, options);
      if (ending.ended || performance.now() >= until) return ending;
    }
  }

  /** Sends a signal to a run; whether the run had it before. */
  async signal(run: string, name: string, payload: unknown = null, options: { dedup?: string } = {}): Promise<boolean> {
    const said = { name, payload, ...(options.dedup === undefined ? {} : { dedup: options.dedup }) };
    return (await this.request<{ duplicate: boolean }>("POST", `${runPath(run)}/signals`, said)).duplicate;
  }

  /**
   * Asks a run to do something, and waits for its answer.
   *
   * @throws {UpdateRejected} the run said no.
   */
  async update<T = unknown>(run: string, name: string, input: unknown = null, options: { dedup?: string } = {}): Promise<T> {
    const said = { name, input, dedup: options.dedup ?? uuid7(), wait_ms: WAIT_MS };
    const idempotencyKey = uuid7();
    for (;;) {
      const answer = await this.request<{ answered: boolean; answer: T }>("POST", `${runPath(run)}/updates`, said, {
        idempotencyKey,
        timeoutMs: this.timeoutMs + WAIT_MS,
      });
      if (answer.answered) return answer.answer;
    }
  }

  /** Ends a run from outside. */
  async cancel(run: string, reason = "", options: { cascade?: boolean } = {}): Promise<void> {
    await this.request("POST", `${runPath(run)}/cancel`, { reason, cascade: options.cascade ?? false });
  }

  /** Why a run does not move. */
  explain(run: string): Promise<Explanation> {
    return this.request("GET", `${runPath(run)}/explain`);
  }

  /** How far the steps of a run have come, as far as they say, and what they said after a number. */
  progress(run: string, options: { after?: number } = {}): Promise<ProgressPage> {
    return this.request("GET", `${runPath(run)}/progress`, undefined, { query: { after: options.after } });
  }

  /** The outside work of a run. */
  async effects(run: string): Promise<Effect[]> {
    return (await this.request<{ effects: Effect[] }>("GET", `${runPath(run)}/effects`)).effects;
  }

  /** Effects of all runs of which nobody knows whether they happened. */
  effectsInDoubt(options: { limit?: number } = {}): AsyncGenerator<{ run: string; effect: Effect }> {
    return this.pages("/effects", "effects", options);
  }

  /** Says what became of an effect in doubt. */
  async resolve(run: string, effect: string, how: How, options: { interrupt?: number; note?: string } = {}): Promise<void> {
    await this.request("POST", `${runPath(run)}/effects/resolve`, { effect, how, ...options });
  }

  /** What became true of a run, row by row. */
  async *journal(run: string, options: { from?: number } = {}): AsyncGenerator<JournalRow> {
    let from: number | null | undefined = options.from ?? 1;
    while (from !== null && from !== undefined) {
      const part: { rows: JournalRow[]; next?: number | null } = await this.request("GET", `${runPath(run)}/journal`, undefined, {
        query: { from },
      });
      yield* part.rows;
      from = part.next;
    }
  }

  /** Removes the record of a run that has ended, for good. It is sent once: see `request`. */
  async purge(run: string): Promise<void> {
    await this.request("POST", `${runPath(run)}/purge`, undefined, { once: true });
  }

  // Following.

  /**
   * Follows a run to its end, behind a revision or from its beginning, over as many connections as it takes. Each row of its
   * journal comes once and in order; `reset` says that rows before the next one are not kept any more.
   *
   * @throws {Problem} the server said no.
   * @throws {ConnectionFailed} the server was not reached for too long.
   */
  async *follow(run: string, options: { after?: number; signal?: AbortSignal } = {}): AsyncGenerator<RunEvent> {
    let said = 0;
    const tail = this.tail<RunEvent>(`${runPath(run)}/events`, options.after?.toString(), options.signal);
    for await (const event of tail) {
      if (event.name === "progress") {
        // A connection that comes back is told again what is kept of it.
        if (event.data.seq <= said) continue;
        said = event.data.seq;
      }
      yield event;
      if (event.name === "end") return;
    }
  }

  /**
   * Follows the namespace, from now on or behind an event, over as many connections as it takes. `reset` says that something
   * may be missing before the next one, so that what is shown is to be read anew.
   *
   * @throws {Problem} the server said no.
   * @throws {ConnectionFailed} the server was not reached for too long.
   */
  events(options: { after?: string; signal?: AbortSignal } = {}): AsyncGenerator<NamespaceEvent> {
    return this.tail("/events", options.after, options.signal);
  }

  private async *tail<E>(path: string, after?: string, signal?: AbortSignal): AsyncGenerator<E> {
    let last = after;
    let until = performance.now() + this.retryForMs;
    for (let tries = 0; signal?.aborted !== true; tries += 1) {
      let failed: Error | undefined;
      try {
        for await (const event of told(this.http, this.within + path, last, signal)) {
          last = event.id ?? last;
          until = performance.now() + this.retryForMs;
          tries = 0;
          yield event as E;
        }
      } catch (error) {
        if (signal?.aborted) return;
        const passes = error instanceof Problem ? RETRIED.has(error.status) : error instanceof ConnectionFailed;
        if (!passes || error instanceof Untrusted) throw error;
        failed = error as Error;
      }
      // A stream that ended as it should is followed on like one that broke.
      const wait = backoffMs(tries);
      if (failed !== undefined && performance.now() + wait > until) throw failed;
      await pause(wait);
    }
  }

  // People.

  /** Decisions that people are asked for. */
  approvals(filters: { assignee?: string; role?: string; limit?: number } = {}): AsyncGenerator<Boundary> {
    return this.pages("/approvals", "boundaries", filters);
  }

  /** Work for people. */
  tasks(filters: { assignee?: string; role?: string; limit?: number } = {}): AsyncGenerator<Boundary> {
    return this.pages("/tasks", "boundaries", filters);
  }

  /** A decision, open or over. */
  approval(boundary: string): Promise<Boundary> {
    return this.request("GET", `/approvals/${part(boundary)}`);
  }

  /** A piece of work, open or over. */
  task(boundary: string): Promise<Boundary> {
    return this.request("GET", `/tasks/${part(boundary)}`);
  }

  /** Says yes. */
  approve(boundary: string, said: Saying = {}): Promise<void> {
    return this.say("approvals", boundary, "approve", said);
  }

  /** Says no. */
  reject(boundary: string, said: Saying = {}): Promise<void> {
    return this.say("approvals", boundary, "reject", said);
  }

  /** Takes a task, or hands it on. */
  claim(boundary: string, said: Assigning = {}): Promise<void> {
    return this.say("tasks", boundary, "claim", said);
  }

  /** Gives a task back. */
  release(boundary: string, said: Assigning = {}): Promise<void> {
    return this.say("tasks", boundary, "release", said);
  }

  /** Hands in the result of a task. */
  complete(boundary: string, payload: unknown = null, said: Omit<Saying, "payload"> = {}): Promise<void> {
    return this.say("tasks", boundary, "complete", { ...said, payload });
  }

  /** Lets a paused run go on. */
  async resume(run: string, said: Saying = {}): Promise<void> {
    await this.request("POST", `${runPath(run)}/resume`, said);
  }

  // Operators.

  /** Runs whose attempt was set aside, newest first. */
  async *deadLetters(options: { limit?: number } = {}): AsyncGenerator<DeadLetter> {
    for await (const page of this.wholePages("/dead-letters", "runs", options)) {
      const attempts = page["attempts"] as DeadAttempt[];
      for (const found of page["runs"] as RunSummary[]) {
        yield { ...found, attempts: attempts.filter((attempt) => attempt.run === found.run) };
      }
    }
  }

  /** Puts an attempt that was set aside back in line. It is sent once: see `request`. */
  async requeue(run: string): Promise<void> {
    await this.request("POST", `/dead-letters/${part(run)}/requeue`, undefined, { once: true });
  }

  /** Gives up a run whose attempt was set aside. It is sent once: see `request`. */
  async discard(run: string): Promise<void> {
    await this.request("POST", `/dead-letters/${part(run)}/discard`, undefined, { once: true });
  }

  /** How much waits in the queues, and what holds for them. */
  async queues(): Promise<Queue[]> {
    return (await this.request<{ queues: Queue[] }>("GET", "/queues")).queues;
  }

  /** Lets nothing of a queue begin. */
  pauseQueue(queue: string): Promise<QueueHeld> {
    return this.request("POST", `/queues/${part(queue)}/pause`);
  }

  /** Lets a queue that was paused go on. */
  resumeQueue(queue: string): Promise<QueueHeld> {
    return this.request("POST", `/queues/${part(queue)}/resume`);
  }

  /** Says what a queue may do at most, in place of what was said before. What is left out has no limit. */
  limitQueue(queue: string, limits: { atMost?: number; rate?: { count: number; per: Duration } } = {}): Promise<QueueHeld> {
    const { atMost, rate } = limits;
    return this.request("PUT", `/queues/${part(queue)}/limits`, {
      ...(atMost === undefined ? {} : { at_most: atMost }),
      ...(rate === undefined ? {} : { rate: { count: rate.count, per_ms: durationMs(rate.per) } }),
    });
  }

  /** Workers that were here lately. */
  async workers(): Promise<SeenWorker[]> {
    return (await this.request<{ workers: SeenWorker[] }>("GET", "/workers")).workers;
  }

  /** What can be executed. */
  async workflows(): Promise<SeenWorkflow[]> {
    return (await this.request<{ workflows: SeenWorkflow[] }>("GET", "/workflows")).workflows;
  }

  private async say(kind: string, boundary: string, verb: string, said: object): Promise<void> {
    await this.request("POST", `/${kind}/${part(boundary)}/${verb}`, said);
  }
}

function runPath(run: string): string {
  return `/runs/${part(run)}`;
}

function checkedText(text: string): string {
  if (text.isWellFormed()) return text;
  throw new Unencodable("a query: expected text, found half of a surrogate pair in it");
}

/**
 * A part of a path.
 *
 * @throws {Unencodable} no path can have it.
 */
export function part(text: string): string {
  try {
    return encodeURIComponent(text);
  } catch (error) {
    throw new Unencodable("a part of a path: expected text, found half of a surrogate pair in it", { cause: error });
  }
}

function retryAfterMs(answer: Response): number {
  const seconds = Number(answer.header("retry-after") || 0);
  return Number.isFinite(seconds) ? Math.min(Math.max(seconds, 0), 30) * 1_000 : 0;
}
