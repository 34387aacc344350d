/** The reporter: sends what a worker says of its attempts, together where it can, and again until it is answered. */

import { backoffMs, pause, RETRIED } from "./client.js";
import { ClaimLost, ConnectionFailed, describe, Problem, Untrusted } from "./errors.js";
import { type Http, problemOf } from "./http.js";
import { encode } from "./jsons.js";
import { Unknown } from "./link.js";
import type { Logger } from "./logger.js";
import type { Attempt, ClaimWork, ReportAnswer, Say } from "./protocol.js";

const BATCH_MAX = 256;

/** Requests that are under way at once; what is said meanwhile goes together in the next. */
const AT_ONCE = 4;
const TIMEOUT_MS = 30_000;

/** Something said of an attempt, and who waits for the answer. */
interface Report {
  readonly claim: string;
  /** As it is sent. */
  readonly data: string;
  readonly answered: (answer: ReportAnswer) => void;
  readonly refused: (why: unknown) => void;
  /** Whether the attempt is over with it, and its place is free, whatever becomes of the report. */
  frees: boolean;
  /** How often it was sent. */
  sent: number;
}

/** What a reporter needs of its worker. */
export interface Places {
  /** What to ask for beside reports that free places; undefined when nothing more is wanted. */
  more(freed: number): ClaimWork | undefined;
  /** Takes what comes for places that were asked for, once, however often it was asked for. */
  got(attempts: Attempt[], asked: number): void;
}

/** Sends reports. */
export class Reporter {
  private queue: Report[] = [];
  /** Claims of which something is under way: what else is said of them waits, so that it arrives in order. */
  private readonly underWay = new Set<string>();
  private senders = 0;
  private readonly sending = new Set<Promise<void>>();
  private readonly stopped = new AbortController();

  constructor(
    private readonly http: Http,
    private readonly path: string,
    private readonly token: string,
    private readonly places: Places,
    private readonly logger: Logger,
  ) {}

  /**
   * Sends a report as soon as it can, and waits for its answer. One that has no JSON form is not sent, and takes no other
   * with it.
   *
   * @throws {Problem} it was refused.
   * @throws {Unknown} whether it was recorded is not known: it was sent twice, or something went wrong on the way.
   * @throws {Unencodable} it has no JSON form, and was not sent.
   */
  async ask(claim: string, say: Say, frees = false): Promise<ReportAnswer> {
    let report: Report | undefined;
    try {
      return await new Promise<ReportAnswer>((answered, refused) => {
        report = { claim, data: "", answered, refused, frees, sent: 0 };
        if (this.stopped.signal.aborted) return this.drop(report, new Unknown("the worker stops"));
        try {
          report = { ...report, data: encode("the report", { claim, say }) };
        } catch (error) {
          return this.drop(report, error);
        }
        this.queue.push(report);
        if (this.senders < AT_ONCE) this.spawn();
      });
    } catch (error) {
      // The refusal of the second may only mean that the first was recorded.
      const twice = report !== undefined && report.sent > 1;
      if (twice && error instanceof Problem && !(error instanceof ClaimLost)) {
        throw new Unknown(error.message, { cause: error });
      }
      throw error;
    }
  }

  /** Waits until everything that was said is answered. */
  async drain(): Promise<void> {
    while (this.sending.size > 0) await Promise.all(this.sending);
  }

  /** Stops sending. */
  stop(): void {
    this.stopped.abort();
    // Nobody may wait for good for a report that nobody sends.
    for (const report of this.queue.splice(0)) this.drop(report, new Unknown("the worker stops"));
  }

  private spawn(): void {
    // Counted here and not by the promises: one that has ended is among them for a moment more, and would send nothing.
    this.senders += 1;
    const sending = this.send().finally(() => this.sending.delete(sending));
    this.sending.add(sending);
  }

  private async send(): Promise<void> {
    // What becomes ready in the same turn of the loop goes together.
    await new Promise((resolve) => setImmediate(resolve));
    for (let batch = this.take(); batch.length > 0; batch = this.take()) {
      await this.settle(batch);
      for (const { claim } of batch) this.underWay.delete(claim);
    }
    this.senders -= 1;
  }

  /** What may go now: of each claim all that was said, or nothing while something of it is under way. */
  private take(): Report[] {
    const batch: Report[] = [];
    const waiting: Report[] = [];
    const held = new Set(this.underWay);
    for (const report of this.queue) {
      if (held.has(report.claim) || batch.length >= BATCH_MAX) {
        held.add(report.claim);
        waiting.push(report);
      } else {
        batch.push(report);
      }
    }
    this.queue = waiting;
    for (const { claim } of batch) this.underWay.add(claim);
    return batch;
  }

  /** Sends a batch until it is answered. */
  private async settle(batch: Report[]): Promise<void> {
    let left = batch;
    for (let tries = 1; left.length > 0; tries += 1) {
      if (this.stopped.signal.aborted) return left.forEach((report) => report.refused(new Unknown("the worker stops")));
      try {
        const { again, problem } = await this.post(left);
        if (problem !== undefined && !RETRIED.has(problem.status) && problem.status < 500) {
          return await this.refuse(left, problem);
        }
        left = again;
        if (left.length > 0) {
          const why = problem?.message ?? "the server could not say what became of them";
          this.logger.warn(`reports are sent again: ${why}`);
        }
      } catch (error) {
        if (!(error instanceof ConnectionFailed) || error instanceof Untrusted) {
          // Nobody may wait for good for a report that nobody sends.
          this.logger.error("reports could not be sent, or their answer not be read", error);
          return left.forEach((report) => this.drop(report, new Unknown(String(error), { cause: error })));
        }
        if (!this.stopped.signal.aborted) this.logger.warn(`reports were not answered, and are sent again: ${error.message}`);
      }
      if (left.length > 0 && !this.stopped.signal.aborted) await pause(backoffMs(tries));
    }
  }

  /** Sends a batch once: what must be sent again, and why if the request as a whole was refused. */
  private async post(batch: Report[]): Promise<{ again: Report[]; problem?: Problem }> {
    const freed = batch.filter((report) => report.frees).length;
    const next = freed > 0 ? this.places.more(freed) : undefined;
    const reports = batch.map((report) => report.data).join(",");
    const asked = next === undefined ? "" : `,"next":${encode("what is asked for", next)}`;
    for (const report of batch) report.sent += 1;
    const text = `{"token":${encode("the token", this.token)},"reports":[${reports}]${asked}}`;
    const { signal } = this.stopped;
    const answer = await this.http.request("POST", this.path, text, { timeoutMs: TIMEOUT_MS, signal });
    if (answer.status >= 300) return { again: batch, problem: problemOf(answer) };
    const reported = answer.json() as { answers?: ReportAnswer[]; claims?: Attempt[] } | null;
    const answers = reported?.answers;
    if (!Array.isArray(answers) || answers.length !== batch.length) {
      throw new ConnectionFailed(`expected answers to ${batch.length} reports, found ${describe(answer.text)}`);
    }
    const again = batch.filter((report, at) => !tell(report, answers[at]));
    for (const report of batch) report.frees = false;
    if (freed > 0) this.places.got(reported?.claims ?? [], freed);
    return { again };
  }

  /** The request as a whole was refused: one that cannot be read must not take the others with it. */
  private async refuse(batch: Report[], problem: Problem): Promise<void> {
    const [first] = batch;
    if (batch.length > 1) {
      for (const report of batch) await this.settle([report]);
    } else if (first !== undefined) {
      this.drop(first, problem);
    }
  }

  /** It is not sent any more: its place is free, and whoever waits for its answer hears why there is none. */
  private drop(report: Report, error: unknown): void {
    if (report.frees) {
      report.frees = false;
      this.places.got([], 1);
    }
    report.refused(error);
  }
}

/** Hands an answer to whoever waits for it; false when the server does not know it, and must be asked again. */
function tell(report: Report, said: ReportAnswer | undefined): boolean {
  const problem = said?.problem;
  if (said === undefined || problem?.status === 503) return false;
  if (problem) report.refused(Problem.of(problem));
  else report.answered(said);
  return true;
}
