/** The worker: claims attempts at steps, executes them, and reports what came of them. */

import { createHash, randomBytes } from "node:crypto";
import { hostname } from "node:os";

import { backoffMs, part, RETRIED } from "./client.js";
import { AbideError, asStepError, ConnectionFailed, describe, Problem, Unencodable, Untrusted } from "./errors.js";
import { Http, problemOf, type TlsOptions } from "./http.js";
import { encode } from "./jsons.js";
import { type Executable, GIVE_BACK, type Link, SET_ASIDE, setAside, Unknown } from "./link.js";
import { type Logger, TROUBLE } from "./logger.js";
import type { Attempt, ClaimWork, Entry, Offer, Say, Start } from "./protocol.js";
import { Reporter } from "./reporter.js";
import { type Duration, durationMs } from "./times.js";
import { failed } from "./workflow.js";

/** Attempts that may be asked for at once. */
const CLAIMS_MAX = 1_000;
const SIGNALS = ["SIGTERM", "SIGINT"] as const;

/** What a worker executes, and how. */
export interface WorkerOptions {
  /** Functions and machines, each name and version once. */
  workflows: readonly Executable[];
  /** Who works; see `abide token create`. It needs the scope `worker:<queue>` for each queue. */
  token?: string;
  /** `default` if nothing is said. */
  namespace?: string;
  /** `default` if nothing is said. */
  queues?: readonly string[];
  /** What it is called in lists; the machine and the process if nothing is said. */
  name?: string;
  /** How many attempts it executes at once; 16 if nothing is said. */
  concurrency?: number;
  /** How long an attempt is its own without a heartbeat; 30 seconds if nothing is said. */
  lease?: Duration;
  /** How long the server may hold a request for attempts; 20 seconds if nothing is said. */
  poll?: Duration;
  /** Whom to trust over `https`, in place of the authorities that Node knows: `{ ca: readFileSync("ca.pem") }`. */
  tls?: TlsOptions;
  /** Where it says what goes wrong; standard error if nothing is said. */
  logger?: Logger;
}

/** How a worker lives. */
export interface RunOptions {
  /** Whether SIGTERM and SIGINT stop it; they do if nothing is said. */
  signals?: boolean;
  /** After this long what still runs is left to other workers; as long as it takes if nothing is said. */
  drain?: Duration;
}

/** An attempt that this worker holds: the way from its code to the server. */
class Held implements Link {
  private readonly losing = new AbortController();
  readonly lost = this.losing.signal;
  task: Promise<void> = Promise.resolve();
  over = false;

  constructor(
    readonly attempt: Attempt,
    private readonly reporter: Reporter,
    private readonly logger: Logger,
    public beatAt: number,
  ) {}

  now(): number {
    return Date.now();
  }

  async record(entries: Entry[]): Promise<void> {
    await this.reporter.ask(this.attempt.claim, { record: { entries } });
  }

  async progress(name: string, value: unknown): Promise<void> {
    await this.reporter.ask(this.attempt.claim, { progress: { name, value } });
  }

  async startChild(key: string, start: Start): Promise<string> {
    const { child } = await this.reporter.ask(this.attempt.claim, { start_child: { key, start } });
    if (typeof child !== "string") throw new Unknown(`expected the child of ${describe(key)}, found ${describe(child)}`);
    return child;
  }

  /** The claim has ended without it. */
  lose(why: string): void {
    if (this.lost.aborted) return;
    this.logger.warn(`an attempt of ${this.attempt.run} is lost: ${why}`);
    this.losing.abort();
  }
}

/** Executes workflows for a server. */
export class Worker {
  readonly name: string;
  private readonly offers: Offer[];
  private readonly code: ReadonlyMap<string, Executable>;
  private readonly queues: string[];
  private readonly leaseMs: number;
  private readonly pollMs: number;
  private readonly hash: string;
  private readonly http: Http;
  private readonly within: string;
  private readonly reporter: Reporter;
  private readonly logger: Logger;
  private readonly held = new Set<Held>();
  private readonly stopping = new AbortController();
  private readonly hurrying = new AbortController();
  private free: number;
  private changed: () => void = () => {};

  constructor(url: string, options: WorkerOptions) {
    const { concurrency = 16, workflows } = options;
    if (!Array.isArray(workflows) || workflows.length === 0) {
      throw new AbideError(`workflows: expected at least one, found ${Array.isArray(workflows) ? "none" : describe(workflows)}`);
    }
    if (!Number.isSafeInteger(concurrency) || concurrency < 1) {
      throw new AbideError(`concurrency: expected a whole number of at least 1, found ${describe(concurrency)}`);
    }
    this.name = options.name ?? `${hostname()}-${process.pid}`;
    this.offers = workflows.map((workflow: Executable) => workflow.offer());
    this.code = new Map(this.offers.map((offer, at) => [codeKey(offer), workflows[at] as Executable]));
    if (this.code.size !== this.offers.length) {
      throw new AbideError("workflows: expected each name and version once, found one twice");
    }
    this.queues = [...(options.queues ?? ["default"])];
    this.leaseMs = durationMs(options.lease ?? "30s");
    this.pollMs = durationMs(options.poll ?? "20s");
    this.logger = options.logger ?? TROUBLE;
    this.free = concurrency;
    // Secret until it is sent with a report: the server knows only its hash from the claim.
    const secret = randomBytes(32).toString("hex");
    this.hash = tokenHash(secret);
    this.http = new Http(url, options.token, options.tls);
    this.within = `/v1/namespaces/${part(options.namespace ?? "default")}/worker`;
    const places = {
      more: (freed: number) => (this.stopping.signal.aborted ? undefined : this.work(freed, 0)),
      got: (attempts: Attempt[], asked: number) => this.got(attempts, asked),
    };
    this.reporter = new Reporter(this.http, `${this.within}/reports`, secret, places, this.logger);
  }

  // Its life.

  /**
   * Works until it is stopped, by `stop` or by SIGTERM or SIGINT; then finishes what runs.
   *
   * @throws {Problem} the server says that it cannot work here.
   * @throws {Untrusted} the server's certificate is not trusted.
   */
  async run(options: RunOptions = {}): Promise<void> {
    const stop = () => this.stop();
    const signals = options.signals === false ? [] : SIGNALS;
    for (const signal of signals) process.on(signal, stop);
    const beating = setInterval(() => this.beat(), Math.max(1, this.leaseMs / 12));
    try {
      await this.claim();
    } finally {
      this.stopping.abort();
      await this.drain(options.drain === undefined ? undefined : durationMs(options.drain));
      clearInterval(beating);
      for (const signal of signals) process.off(signal, stop);
      this.http.close();
    }
  }

  /** Claims nothing more, and ends when what runs has come to its end. Told twice, it leaves that to other workers. */
  stop(): void {
    if (this.stopping.signal.aborted) this.hurrying.abort();
    this.stopping.abort();
    this.changed();
  }

  private async drain(ms: number | undefined): Promise<void> {
    const tasks = [...this.held].map((held) => held.task);
    if (tasks.length > 0) {
      this.logger.info(`worker ${this.name} finishes ${tasks.length} attempts`);
      await within(ms, this.hurrying.signal, Promise.all(tasks));
    }
    for (const held of this.held) held.lose("the worker stops");
    const reported = Promise.all([...this.held].map((held) => held.task)).then(() => this.reporter.drain());
    await within(this.hurrying.signal.aborted ? 1_000 : 10_000, undefined, reported);
    this.reporter.stop();
    await this.reporter.drain();
  }

  // Claims. A free place is a credit: it is asked for once, either alone or beside a report that frees it.

  /** @internal What to ask for. */
  work(most: number, waitMs: number): ClaimWork {
    return {
      worker: this.name,
      token_hash: this.hash,
      queues: this.queues,
      workflows: this.offers,
      most,
      lease_ms: this.leaseMs,
      wait_ms: waitMs,
    };
  }

  /** Attempts came for places that were asked for. */
  private got(attempts: Attempt[], asked: number): void {
    this.free += asked;
    for (const attempt of attempts) this.begin(attempt);
    this.changed();
  }

  private async claim(): Promise<void> {
    let tries = 0;
    while (!this.stopping.signal.aborted) {
      if (this.free < 1) {
        await new Promise<void>((resolve) => (this.changed = resolve));
        continue;
      }
      const asked = Math.min(this.free, CLAIMS_MAX);
      this.free -= asked;
      let attempts: Attempt[] = [];
      try {
        attempts = await this.poll(asked);
        tries = 0;
      } catch (error) {
        const no = error instanceof Problem && !RETRIED.has(error.status) && error.status < 500;
        if (no || error instanceof Untrusted || !(error instanceof Problem || error instanceof ConnectionFailed)) {
          this.free += asked;
          throw error;
        }
        if (!this.stopping.signal.aborted) this.logger.warn(`the server gives no attempts, and is asked again: ${error.message}`);
        tries += 1;
      }
      this.got(attempts, asked);
      if (tries > 0) await within(backoffMs(tries), this.stopping.signal);
    }
  }

  private async poll(most: number): Promise<Attempt[]> {
    const given = new AbortController();
    // What is on its way when it is told to stop may still come; then it goes back.
    const stop = () => setTimeout(() => given.abort(), 200).unref();
    const stopping = this.stopping.signal;
    stopping.addEventListener("abort", stop, { once: true });
    try {
      const options = { timeoutMs: 30_000 + this.pollMs, signal: given.signal };
      const work = encode("what is asked for", this.work(most, this.pollMs));
      const answer = await this.http.request("POST", `${this.within}/claims`, work, options);
      if (answer.status >= 300) throw problemOf(answer);
      return (answer.json() as { claims: Attempt[] }).claims;
    } catch (error) {
      if (given.signal.aborted) return [];
      throw error;
    } finally {
      stopping.removeEventListener("abort", stop);
    }
  }

  // Attempts.

  private begin(attempt: Attempt): void {
    if (this.stopping.signal.aborted) {
      this.reporter.ask(attempt.claim, GIVE_BACK).catch((error: unknown) => {
        this.logger.warn(`an attempt of ${attempt.run} could not be given back: ${String(error)}`);
      });
      return;
    }
    this.free -= 1;
    const held = new Held(attempt, this.reporter, this.logger, performance.now() + this.leaseMs / 3);
    this.held.add(held);
    held.task = this.attend(held);
  }

  private async attend(held: Held): Promise<void> {
    let freed = false;
    try {
      const say = await this.execute(held);
      held.over = true;
      if (say !== undefined && !held.lost.aborted) {
        // The place is free with the answer to this report, and the next attempt may come with it.
        freed = true;
        await this.finish(held, say);
      }
    } finally {
      held.over = true;
      this.held.delete(held);
      if (!freed) this.free += 1;
      this.changed();
    }
  }

  private async finish(held: Held, say: Say): Promise<void> {
    const { claim, run } = held.attempt;
    try {
      await this.reporter.ask(claim, say, true);
    } catch (error) {
      if (error instanceof Unknown) {
        this.logger.warn(`what came of an attempt of ${run} may be recorded: ${error.message}`);
        return this.instead(held, GIVE_BACK);
      }
      if (error instanceof Unencodable) {
        this.logger.error(`what came of an attempt of ${run} cannot be sent`, error);
        return this.instead(held, failed(error, []));
      }
      this.logger.warn(`what came of an attempt of ${run} was refused: ${String(error)}`);
      const again = "fail" in say && say.fail.set_aside === true;
      if (!(error instanceof Problem) || !SET_ASIDE.has(error.code) || again) return;
      const info = { code: error.code, message: error.message, retryable: false };
      await this.instead(held, setAside(info));
    }
  }

  /** Says something else of an attempt, where what came of it cannot be said. */
  private async instead(held: Held, say: Say): Promise<void> {
    await this.reporter.ask(held.attempt.claim, say).catch((no: unknown) => {
      this.logger.warn(`nor could this be said of it: ${Object.keys(say).join()}: ${String(no)}`);
    });
  }

  private async execute(held: Held): Promise<Say | undefined> {
    const { attempt } = held;
    const code = this.code.get(codeKey(attempt));
    if (code === undefined) return GIVE_BACK;
    try {
      return await code.execute(attempt, held);
    } catch (error) {
      // Nothing that goes wrong may be lost.
      this.logger.error(`an attempt of ${attempt.run} failed outside of its code`, error);
      return failed(asStepError(error), []);
    }
  }

  // Heartbeats.

  private beat(): void {
    const now = performance.now();
    for (const held of this.held) {
      if (held.over || held.lost.aborted || now < held.beatAt) continue;
      held.beatAt = now + this.leaseMs / 3;
      this.reporter.ask(held.attempt.claim, { heartbeat: {} }).catch((error: unknown) => {
        const no = error instanceof Problem && !RETRIED.has(error.status) && error.status < 500;
        if (no && !held.over) held.lose(error.message);
      });
    }
  }
}

function codeKey(offered: { workflow: string; version: number }): string {
  return `${offered.version} ${offered.workflow}`;
}

/** What a worker sends of its secret with a claim. */
export function tokenHash(secret: string): string {
  return createHash("sha256").update(secret).digest("hex").slice(0, 32);
}

/** Waits for something, and no longer than it may: for a time, and until somebody says stop. */
async function within(ms: number | undefined, stop: AbortSignal | undefined, what?: Promise<unknown>): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  let stopped = () => {};
  const waits: Promise<unknown>[] = what === undefined ? [] : [what];
  if (ms !== undefined) waits.push(new Promise((resolve) => (timer = setTimeout(resolve, ms))));
  if (stop !== undefined && !stop.aborted) {
    waits.push(
      new Promise<void>((resolve) => {
        stopped = () => resolve();
        stop.addEventListener("abort", stopped, { once: true });
      }),
    );
  }
  if (stop?.aborted !== true) await Promise.race(waits);
  clearTimeout(timer);
  stop?.removeEventListener("abort", stopped);
}
