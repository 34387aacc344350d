/**
 * The messages of the server, as `docs/openapi.json` has them. Names are the protocol's own, also where answers of a
 * client have these shapes, so that what a person reads in the documents is what the program sees.
 */

/** An instant as it is written: `2026-11-06T21:28:02.125Z`. */
export type Instant = string;

/** An error as it is recorded. */
export interface ErrorInfo {
  code: string;
  message: string;
  retryable: boolean;
  details?: unknown;
}

/** Where a run stands. */
export type Status =
  | "runnable"
  | "executing"
  | "awaiting_signal"
  | "sleeping"
  | "awaiting_children"
  | "awaiting_decision"
  | "in_doubt"
  | "dead_lettered"
  | "done"
  | "failed"
  | "cancelled";

/** What happens to an effect whose worker dies inside of it; see `docs/policies.md`. */
export type Policy = "pure" | "idempotent" | "dedupe" | "reconcile" | "unsafe_once";

/** How children are waited for. */
export type Join = "all_terminal" | "all_succeeded" | "any" | { quorum: number };

/** A point in time: from now on, or an instant. */
export type Moment = { in_ms: number } | { at: Instant };

/** A run that is to begin. */
export interface Start {
  workflow: string;
  input?: unknown;
  version?: number;
  key?: string;
  on_conflict?: "reject" | "reuse";
  queue?: string;
  priority?: number;
  concurrency?: { key: string; limit: number };
  delay_ms?: number;
  deadline_ms?: number;
  labels?: Record<string, string>;
  deliveries_max?: number;
  traceparent?: string;
}

/** A retry policy as it is written. */
export interface Retry {
  backoff: "constant" | "linear" | "exponential";
  delay_ms: number;
  delay_ms_max: number;
  jitter_percent: number;
  retries_max?: number;
}

/** What an entry of the ledger is to be. */
export type Wanted =
  | { effect: { policy: Policy; review?: number } }
  | { undo: { policy: Policy } }
  | { timer: { until: Moment } }
  | { signal: { name: string; deadline?: Moment } }
  | { update: { name: string; deadline?: Moment } }
  | { child: { start: Start } }
  | { patch: { at: Instant } }
  | { manual: Asked };

/** What is asked of a person. */
export interface Asked {
  kind: BoundaryKind;
  payload?: unknown;
  roles?: string[];
  assignee?: string;
  deadline?: Moment;
}

/** Something that is written to the ledger. */
export type Entry =
  | { intend: { op: number; key: string; input?: string; what: Wanted } }
  | { done: { op: number; value?: unknown; at: Instant } }
  | { failed: { op: number; error: ErrorInfo; at: Instant } }
  | { again: { op: number; error: ErrorInfo; delay_ms: number } }
  | { see: { op: number } }
  | { withdraw: { op: number } }
  | { wait_again: { op: number } }
  | { answer: { op: number; value?: unknown; rejected?: ErrorInfo } }
  | { publish: { state: unknown } };

/** How an entry ended. */
export interface EntryEnd {
  ended: number;
  seen: number;
  at: Instant;
  value?: unknown;
  error?: ErrorInfo | null;
  elapsed?: object | null;
}

/** An entry of the ledger, as an attempt gets it. */
export interface LedgerEntry {
  op: number;
  key: string;
  visit: number;
  what: Entered;
  input?: string | null;
  at: Instant;
  end?: EntryEnd | null;
}

/** What an entry of the ledger is. */
export type Entered =
  | { effect: { policy: Policy; claim: number; failures: number; retry_at?: Instant | null; undo: boolean } }
  | { timer: { until: Instant } }
  | { signal: { name: string; until?: Instant | null } }
  | { update: { name: string; until?: Instant | null; answered: boolean } }
  | { child: { run: string } }
  | { patch: object }
  | { manual: { kind: BoundaryKind; until?: Instant | null } };

/** A signal that came. */
export interface Arrived {
  id: number;
  name: string;
  payload: unknown;
  at: Instant;
}

/** A child of a run. */
export interface Offspring {
  run: string;
  workflow: string;
  key?: string | null;
  status?: string | null;
  result?: unknown;
  error?: ErrorInfo | null;
}

/** Why a run goes on. */
export type WokenBy = "signal" | "timer" | "children" | "deadline" | "ledger";

/** An attempt at a step, as a worker gets it. */
export interface Attempt {
  claim: string;
  lease_until: Instant;
  run: string;
  workflow: string;
  version: number;
  queue: string;
  key?: string | null;
  labels?: Record<string, string>;
  step: string;
  epoch?: number;
  visit: number;
  attempt: number;
  retries: number;
  reclaims: number;
  woken_by?: WokenBy | null;
  input: unknown;
  state: unknown;
  published?: unknown;
  progress?: Record<string, unknown>;
  signals: Arrived[];
  children: Offspring[];
  ledger: LedgerEntry[];
  next_op: number;
  ended: number;
  begun_at: Instant;
  cancelling: boolean;
  traceparent?: string;
}

/** What happens next to a run. */
export type OutcomeMessage =
  | { next: { step: string; state: unknown } }
  | { replay: { state: unknown; delay_ms: number } }
  | { await: { signals: string[]; state: unknown; then?: string; deadline?: Moment } }
  | { sleep: { until: Moment; state: unknown; then?: string } }
  | { spawn: { children: Start[]; then: string; join: Join; state: unknown; deadline?: Moment } }
  | { suspend: { seen: number } }
  | { done: { result: unknown } }
  | { cancelled: object }
  | { stop: { error: ErrorInfo } }
  | { continue_as_new: { input: unknown } };

/** Which of the signals that a step waited for it uses up: see `Outcome.consume`. */
export type Consume = "presented" | "by_name";

/** What is said of an attempt that returned. */
export interface Complete {
  outcome: OutcomeMessage;
  entries: Entry[];
  consume?: Consume;
  handled?: ErrorInfo;
  compact_after?: number;
}

/** What is said of an attempt that failed. */
export interface Fail {
  error: ErrorInfo;
  retry?: Retry;
  entries?: Entry[];
  reopen?: number[];
  set_aside?: boolean;
}

/** What is said of an attempt in a report. */
export type Say =
  | { heartbeat: object }
  | { progress: { name: string; value: unknown } }
  | { record: { entries: Entry[] } }
  | { complete: Complete }
  | { fail: Fail }
  | { start_child: { key: string; start: Start } }
  | { give_back: object };

/** A workflow that a worker offers to execute. */
export interface Offer {
  workflow: string;
  version: number;
  fingerprint: string;
  first_step: string;
}

/** What a worker asks for. */
export interface ClaimWork {
  worker: string;
  token_hash: string;
  queues: string[];
  workflows: Offer[];
  most: number;
  lease_ms: number;
  wait_ms: number;
}

/** The answer to one report. */
export interface ReportAnswer {
  recorded?: { rev: number; duplicate: boolean } | null;
  lease_until?: Instant | null;
  child?: string | null;
  problem?: ProblemBody | null;
}

/** A problem as a server says it (RFC 9457). */
export interface ProblemBody {
  type?: string;
  title?: string;
  status?: number;
  code?: string;
  detail?: string;
  expected?: string | null;
  found?: string | null;
  what_to_do?: string;
  run?: string | null;
  error?: ErrorInfo | null;
}

/** A run in a list. */
export interface RunSummary {
  run: string;
  namespace: string;
  workflow: string;
  version: number;
  queue: string;
  status: Status;
  step?: string | null;
  key?: string | null;
  parent?: string | null;
  labels: Record<string, string>;
  created_at: Instant;
  updated_at: Instant;
  due?: Instant | null;
  rev: number;
}

/** A run as it stands. */
export interface Run extends RunSummary {
  epoch: number;
  attempt: number;
  boundary?: string | null;
  ended_at?: Instant | null;
  input: unknown;
  state: unknown;
  result: unknown;
  last_error?: ErrorInfo | null;
  /** What its steps say of their progress: the latest value of each name. */
  progress?: Record<string, unknown>;
  anomalies: number;
}

/** The answer to one of many starts: one of the two is there. */
export interface StartAnswer {
  started?: { run: string; admission: "created" | "reused" } | null;
  problem?: ProblemBody | null;
}

/** Something that a step said of its progress. */
export interface Progress {
  seq: number;
  name: string;
  value: unknown;
  at: Instant;
}

/** How far the steps of a run have come, as far as they say. */
export interface ProgressPage {
  run: string;
  /** The latest value of each name, of the steps as they stand now. */
  latest: Record<string, unknown>;
  /** What was said after the number that was asked for, in order. */
  events: Progress[];
  /** Whether something after that number is not kept any more. */
  trimmed: boolean;
}

/** How a run ended, or that it has not. */
export interface Ending<Result = unknown> {
  run: string;
  status: Status;
  /** Whether it has ended. */
  ended: boolean;
  result: Result;
  error?: ErrorInfo | null;
}

/** The stream goes on from here, and something before it may be missing: what is shown is to be read anew. */
export interface Reset {
  reason: "gone" | "lagged" | "compacted";
}

/** Something became true of a run: what a row of its journal is about, without its payloads. */
export interface Happened {
  run: string;
  workflow: string;
  rev: number;
  at: Instant;
  /** The kinds of facts, in order. */
  facts: string[];
  /** How the run ended, if it did. */
  status?: Status | null;
}

/** Something that is told of a run that is followed. The id of a row is its revision. */
export type RunEvent =
  | { name: "row"; data: JournalRow; id: string }
  | { name: "progress"; data: Progress }
  | { name: "reset"; data: Reset }
  | { name: "end"; data: Ending };

/** Something that is told of a namespace that is followed; `id` is where to go on after it. */
export type NamespaceEvent =
  | { name: "following"; data: object; id: string }
  | { name: "happened"; data: Happened; id: string }
  | { name: "reset"; data: Reset; id: string };

/** What a queue may do at most; what is left out has no limit. */
export interface QueueLimits {
  /** How many of its attempts may execute at once. */
  at_most?: number;
  /** How fast they may begin. */
  rate?: { count: number; per_ms: number };
}

/** What holds for a queue. */
export interface QueueHeld {
  queue: string;
  paused: boolean;
  limits: QueueLimits;
}

/** A queue. */
export interface Queue extends QueueHeld {
  /** Runs with an attempt that waits to be claimed. */
  depth: number;
  oldest_at?: Instant | null;
  oldest_age_ms?: number | null;
  /** Runs with an attempt that executes. */
  running: number;
}

/** A worker that was here lately. */
export interface SeenWorker {
  worker: string;
  queues: string[];
  workflows: { workflow: string; version: number }[];
  node: string;
  seen_at: Instant;
}

/** What can be executed: by the server itself, or by workers that were here lately. */
export interface SeenWorkflow {
  workflow: string;
  version: number;
  fingerprint: string;
  first_step: string;
  embedded: boolean;
  workers: number;
}

/** An attempt that was set aside. */
export interface DeadAttempt {
  run: string;
  step?: string | null;
  reason: ErrorInfo;
  node: string;
  at: Instant;
  envelope: unknown;
}

/** A run whose attempt was set aside. */
export interface DeadLetter extends RunSummary {
  attempts: DeadAttempt[];
}

/** What became true of a run in one step. */
export interface JournalRow {
  rev: number;
  at: Instant;
  facts: unknown[];
}

/** Why a run does not move. */
export interface Explanation {
  run: string;
  reason: string;
  sentence: string;
  evidence: Record<string, string>;
  next_actions: string[];
}

/** Outside work of a run. */
export interface Effect {
  key: string;
  policy: Policy;
  standing: string;
  idempotency_key: string;
  interrupt?: number | null;
  failures: number;
  retry_at?: Instant | null;
  undo: boolean;
  begun_at: Instant;
  ended_at?: Instant | null;
  value: unknown;
  error?: ErrorInfo | null;
}

/** What a person is asked for. */
export type BoundaryKind = "pause" | "approval" | "task";

/** Something that a run asks of a person. */
export interface Boundary {
  boundary: string;
  run: string;
  workflow: string;
  kind: BoundaryKind;
  name: string;
  step: string;
  standing: string;
  payload: unknown;
  roles: string[];
  assignee?: string | null;
  asked_at: Instant;
  until?: Instant | null;
  decision?: { choice: string; actor?: string | null; note?: string | null; payload: unknown } | null;
  events: { event: string; at: Instant; actor?: string | null; to?: string | null; note?: string | null }[];
}

/** The name and the content of an object that stands for one of several kinds. */
export function variant<T = Record<string, unknown>>(value: object): [string, T] {
  const [found] = Object.entries(value);
  if (found === undefined) throw new TypeError("expected an object with one field, found none");
  return [found[0], found[1] as T];
}
