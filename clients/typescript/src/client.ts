/** The client: starts runs, asks them, looks at them, and answers what they ask of people. */

import { randomBytes } from "node:crypto";

import { ConnectionFailed, describe, Problem, RunFailed, TimedOut, Unencodable, Untrusted } from "./errors.js";
import { Http, type Response, type TlsOptions } from "./http.js";
import { encode, loads } from "./jsons.js";
import { child, type Given, type Named, type StartOptions, type Typed } from "./outcome.js";
import type {
  Boundary,
  Effect,
  ErrorInfo,
  Explanation,
  JournalRow,
  ProblemBody,
  ProgressPage,
  Run,
  RunSummary,
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
   * once however often it is sent.
   *
   * @throws {Problem} the server said no.
   * @throws {ConnectionFailed} there was no answer for too long; `Untrusted`, at once, where no retry cures it.
   * @throws {Unencodable} it has no JSON form, and was not sent.
   */
  async request<T = unknown>(
    method: string,
    path: string,
    body?: unknown,
    options: { query?: Record<string, Asked>; idempotencyKey?: string; timeoutMs?: number } = {},
  ): Promise<T> {
    const text = body === undefined ? undefined : encode("the request", body);
    const given = Object.entries(options.query ?? {}).flatMap(([name, value]) =>
      (Array.isArray(value) ? value : [value]).flatMap((one: string | number | null | undefined) =>
        one === undefined || one === null ? [] : [[name, checkedText(String(one))] as [string, string]],
      ),
    );
    const query = given.length === 0 ? "" : `?${new URLSearchParams(given).toString()}`;
    const whole = (path.startsWith("/v1") ? path : this.within + path) + query;
    const headers: Record<string, string> = method === "GET" ? {} : { "Idempotency-Key": options.idempotencyKey ?? uuid7() };
    const until = performance.now() + this.retryForMs;
    for (let tries = 0; ; tries += 1) {
      let failed: Error;
      let wait = backoffMs(tries);
      try {
        const answer = await this.http.request(method, whole, text, { headers, timeoutMs: options.timeoutMs ?? this.timeoutMs });
        if (answer.status < 300) return answer.json() as T;
        failed = problemOf(answer);
        if (!RETRIED.has(answer.status)) throw failed;
        wait = Math.max(wait, retryAfterMs(answer));
      } catch (error) {
        if (!(error instanceof ConnectionFailed) || error instanceof Untrusted) throw error;
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

  private async *pages<T>(
    path: string,
    what: string,
    { limit, ...filters }: { limit?: number } & Record<string, Asked>,
  ): AsyncGenerator<T> {
    let left = limit ?? Infinity;
    let before: string | null | undefined;
    while (left > 0) {
      const most = left === Infinity ? undefined : Math.min(left, PAGE_MAX);
      const page = await this.request<Record<string, unknown>>("GET", path, undefined, {
        query: { ...filters, before, limit: most },
      });
      const found = page[what] as T[];
      yield* found;
      before = page["next"] as string | null | undefined;
      if (before === null || before === undefined) return;
      left -= found.length;
    }
  }

  /**
   * Waits for the end of a run, and gives its result.
   *
   * @throws {RunFailed} it did not end well.
   * @throws {TimedOut} it has not ended in time.
   */
  async result<T = unknown>(run: string, options: { timeout?: Duration } = {}): Promise<T> {
    const until = options.timeout === undefined ? Infinity : performance.now() + durationMs(options.timeout);
    for (;;) {
      const wait_ms = Math.floor(Math.min(WAIT_MS, Math.max(0, until - performance.now())));
      const ending = await this.request<{ ended: boolean; status: Status; result: T; error?: ErrorInfo | null }>(
        "GET",
        `${runPath(run)}/result`,
        undefined,
        { query: { wait_ms }, timeoutMs: this.timeoutMs + wait_ms },
      );
      if (ending.ended) {
        if (ending.status === "done") return ending.result;
        throw new RunFailed(run, ending.status, ending.error);
      }
      if (performance.now() >= until) throw new TimedOut(`${run} has not ended: it is ${ending.status}`);
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

  // People.

  /** Decisions that people are asked for. */
  approvals(filters: { assignee?: string; role?: string; limit?: number } = {}): AsyncGenerator<Boundary> {
    return this.pages("/approvals", "boundaries", filters);
  }

  /** Work for people. */
  tasks(filters: { assignee?: string; role?: string; limit?: number } = {}): AsyncGenerator<Boundary> {
    return this.pages("/tasks", "boundaries", filters);
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

/** The problem in an answer, also where a proxy answered and not the server. */
export function problemOf(answer: Response): Problem {
  if (answer.status < 400) {
    const detail = `expected an answer, found a redirect to ${describe(answer.header("location") || "nowhere")}`;
    const what_to_do = "give the url of the server itself: no redirect is followed with a token or a body";
    return Problem.of({ status: answer.status, code: "redirected", detail, what_to_do }, answer.status);
  }
  if (answer.header("content-type").includes("json")) {
    try {
      const found = loads(answer.text);
      if (typeof found === "object" && found !== null) return Problem.of(found as ProblemBody, answer.status);
    } catch {
      // It is no JSON, whatever it says of itself, and is told as it is.
    }
  }
  return Problem.of({ status: answer.status, code: "internal", detail: answer.text.slice(0, 200) }, answer.status);
}

function retryAfterMs(answer: Response): number {
  const seconds = Number(answer.header("retry-after") || 0);
  return Number.isFinite(seconds) ? Math.min(Math.max(seconds, 0), 30) * 1_000 : 0;
}
