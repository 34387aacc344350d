/** An engine in memory behind the worker's routes, on a real socket. */

import { Problem } from "abide";
import type { TestEngine, TestRun } from "abide/testing";

import { claimNumber } from "../dist/ledger.js";
import type { Attempt, ClaimWork, ReportAnswer, Say, Start } from "../dist/protocol.js";
import { type MemoryRun, refusal } from "../dist/testing/run.js";
import { tokenHash } from "../dist/worker.js";
import { type Asked, Fake, problem, type Said } from "./fake.js";
import { inner, until } from "./support.js";

/** A report as a worker sends it. */
export interface Report {
  claim: string;
  say: Say;
}

/** What the engine lets only its own see. */
interface Inner {
  runs: Map<string, MemoryRun>;
  claim(run: MemoryRun): Attempt;
  apply(run: MemoryRun, say: Say): void;
  startNamed(run: MemoryRun, key: string, start: Start): string;
}

/** Claims and reports over HTTP. */
export class Served {
  readonly fake = new Fake((asked) => this.answer(asked));
  /**
   * What happens to the next reports: an answer of its own; `lost`: carried out, and not answered; `unsure`: each answered
   * with a problem that says that nobody knows.
   */
  broken: (Said | "lost" | "unsure")[] = [];
  readonly reports: Report[][] = [];
  /** How many attempts were out at once. */
  most = 0;
  /** How many requests for attempts are being held. */
  polling = 0;
  private readonly inner: Inner;
  private readonly hashes = new Map<string, string>();
  private readonly answered = new Map<string, ReportAnswer>();

  constructor(readonly engine: TestEngine) {
    this.inner = engine as unknown as Inner;
  }

  async start(): Promise<this> {
    await this.fake.start();
    return this;
  }

  /** Waits for the end of a run. */
  async ended(run: TestRun<any>): Promise<void> {
    await until(() => inner(run).over);
  }

  private async answer(asked: Asked): Promise<Said> {
    if (asked.path.endsWith("/worker/claims")) {
      return { body: { claims: await this.poll(asked.body) } };
    }
    if (!asked.path.endsWith("/worker/reports")) return problem(404, "no_route");
    const broken = this.broken.shift();
    if (typeof broken === "object") return broken;
    if (broken === "unsure") {
      const unknown = problem(503, "unknown").body;
      return { body: { answers: asked.body.reports.map(() => ({ problem: unknown })), claims: [] } };
    }
    this.reports.push(asked.body.reports);
    const answers = asked.body.reports.map((report: Report) => this.report(report, asked.body.token));
    if (broken === "lost") return { how: "hang_up" };
    return { body: { answers, claims: asked.body.next === undefined ? [] : this.claims(asked.body.next) } };
  }

  private async poll(work: ClaimWork): Promise<Attempt[]> {
    const end = performance.now() + work.wait_ms;
    this.polling += 1;
    let claims = this.claims(work);
    while (claims.length === 0 && performance.now() < end) {
      await new Promise((resolve) => setTimeout(resolve, 5));
      claims = this.claims(work);
    }
    this.polling -= 1;
    return claims;
  }

  private claims(work: ClaimWork): Attempt[] {
    const offered = new Set(work.workflows.map((offer) => `${offer.version} ${offer.workflow}`));
    const runs = [...this.inner.runs.values()];
    const ready = runs.filter((run) => run.status === "runnable" && offered.has(`${run.version} ${run.workflow}`));
    const given = ready.slice(0, work.most).map((run) => {
      this.hashes.set(run.id, work.token_hash);
      return this.inner.claim(run);
    });
    this.most = Math.max(this.most, runs.filter((run) => run.status === "executing").length);
    return given;
  }

  /** The lease ends. */
  lose(run: TestRun<any>): void {
    inner(run).status = "runnable";
    inner(run).reclaims += 1;
  }

  private report(report: Report, token: string): ReportAnswer {
    const run = this.inner.runs.get(`run_${report.claim.split("_")[1]}`)!;
    const said = JSON.stringify(report);
    const before = this.answered.get(said);
    if (before !== undefined && !("heartbeat" in report.say)) return { ...before, recorded: { rev: 1, duplicate: true } };
    let child: string | undefined;
    try {
      child = this.say(run, report, token);
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      return { problem: error.body };
    }
    if (child !== undefined) return { child };
    const answer: ReportAnswer = { recorded: { rev: 1, duplicate: false }, lease_until: "2026-01-01T00:00:30.000Z" };
    this.answered.set(said, answer);
    return answer;
  }

  private say(run: MemoryRun, report: Report, token: string): string | undefined {
    if (tokenHash(token) !== this.hashes.get(run.id)) throw refusal("wrong_token", "another worker's");
    if (run.claims !== claimNumber(report.claim) || run.status !== "executing") {
      throw refusal("stale_claim", "another attempt has it");
    }
    if ("start_child" in report.say) {
      return this.inner.startNamed(run, report.say.start_child.key, report.say.start_child.start);
    }
    if ("record" in report.say) run.write(report.say.record.entries);
    else if ("give_back" in report.say) run.status = "runnable";
    else if (!("heartbeat" in report.say)) this.inner.apply(run, report.say);
    return undefined;
  }
}
