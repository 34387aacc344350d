/** Abide: durable execution. Workflows as ordinary async functions, a worker that executes them, and a client. */

export type { Call } from "./call.js";
export { Joined, type StartedChild } from "./children.js";
export {
  type Assigning,
  Client,
  type ClientOptions,
  type How,
  type RunFilters,
  type Saying,
  type StartRunOptions,
  uuid7,
} from "./client.js";
export { Context, type EffectOptions, type Runner, UpdateRequest } from "./context.js";
export { allow, block, type Control, interrupt, type Match, type Operation, PlanError, type Reviewers } from "./control.js";
export {
  AbideError,
  Busy,
  ClaimLost,
  ConnectionFailed,
  Forbidden,
  KeyTaken,
  NotFound,
  Problem,
  Redirected,
  RunFailed,
  RunOver,
  StepError,
  type StepErrorOptions,
  TimedOut,
  terminal,
  Unauthenticated,
  Unencodable,
  Untrusted,
  UpdateRejected,
} from "./errors.js";
export { BadUrl, type TlsOptions } from "./http.js";
export type { Executable, Link } from "./link.js";
export type { Logger } from "./logger.js";
export { Machine, type MachineOptions, machine, type Step, StepContext } from "./machine.js";
export {
  awaitSignals,
  child,
  continueAsNew,
  done,
  type Given,
  type Named,
  nextStep,
  Outcome,
  replay,
  type StartOptions,
  sleep,
  spawn,
  stop,
  type Typed,
} from "./outcome.js";
export { type AskOptions, Decision } from "./people.js";
export type {
  Arrived,
  Attempt,
  Boundary,
  Consume,
  DeadAttempt,
  DeadLetter,
  Effect,
  Ending,
  ErrorInfo,
  Explanation,
  Happened,
  Instant,
  Join,
  JournalRow,
  NamespaceEvent,
  Offspring,
  Policy,
  Progress,
  ProgressPage,
  Queue,
  QueueHeld,
  QueueLimits,
  Reset,
  Run,
  RunEvent,
  RunSummary,
  SeenWorker,
  SeenWorkflow,
  Start,
  StartAnswer,
  Status,
} from "./protocol.js";
export type { RetryPolicy } from "./retry.js";
export { BadDuration, type Duration, type When } from "./times.js";
export type { Wait } from "./wait.js";
export { type RunOptions, Worker, type WorkerOptions } from "./worker.js";
export { type Code, Workflow, type WorkflowOptions, workflow } from "./workflow.js";
