/** Errors: of steps and functions, of servers that say no, and of runs that did not end well. */

import type { ErrorInfo, ProblemBody } from "./protocol.js";

export const ERROR_BYTES_MAX = 16 * 1024;
const TRACE_CHARACTERS_MAX = 8_000;

/** Whatever goes wrong here. */
export class AbideError extends Error {
  override get name(): string {
    return this.constructor.name;
  }
}

/** What else is known of an error. */
export interface StepErrorOptions {
  /** What it is called, for programs; `error` if nothing is said. */
  code?: string;
  /** Whether a retry may cure it; true if nothing is said. */
  retryable?: boolean;
  /** Anything that JSON has. */
  details?: unknown;
  cause?: unknown;
}

/**
 * What went wrong in a step, a function or an effect, in the form in which it is recorded. Anything else that is thrown
 * becomes one with the code `error`, and may be tried again.
 */
export class StepError extends AbideError {
  readonly code: string;
  readonly retryable: boolean;
  readonly details: unknown;
  /** @internal The entry of the ledger whose error it is: a retry begins that effect again. */
  op: number | undefined;

  constructor(message: string, options: StepErrorOptions = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.code = options.code ?? "error";
    this.retryable = options.retryable ?? true;
    this.details = options.details;
  }

  override toString(): string {
    return `${this.code}: ${this.message}`;
  }

  /** As it is written. */
  info(): ErrorInfo {
    const said: ErrorInfo = { code: String(this.code).toWellFormed(), message: cut(this.message), retryable: this.retryable };
    if (this.details !== undefined && this.details !== null) said.details = this.details;
    return said;
  }

  /** As it was recorded. */
  static of(info: ErrorInfo, op?: number): StepError {
    const { code, retryable, details } = info;
    const error = new StepError(info.message, { code, retryable, details });
    error.op = op;
    return error;
  }
}

/** A value has no JSON form, and so cannot be sent or recorded. Nothing was. */
export class Unencodable extends StepError {
  constructor(message: string, options: { cause?: unknown } = {}) {
    super(message, { code: "unencodable", retryable: false, ...options });
  }
}

/** An error that no retry cures. */
export function terminal(code: string, message: string, details?: unknown): StepError {
  return new StepError(message, { code, retryable: false, details });
}

/** Whatever was thrown, in the form in which it is recorded, with its stack in the details. */
export function asStepError(thrown: unknown): StepError {
  if (thrown instanceof StepError) return thrown;
  try {
    return told(thrown);
  } catch (error) {
    // Its parts may be code as well.
    return new StepError(`what was thrown cannot be told: ${saying(error)}`);
  }
}

function told(thrown: unknown): StepError {
  if (!(thrown instanceof Error)) {
    return new StepError(`expected an Error to be thrown, found ${describe(thrown)}`, { cause: thrown });
  }
  const type = String(thrown.name || "Error").toWellFormed();
  const said = [thrown.message, ...causes(thrown).map((cause) => cause.message)].filter((text) => text !== "");
  const traceback = [thrown, ...causes(thrown)].map((one) => one.stack ?? String(one)).join("\ncaused by ");
  const details = { type, traceback: traceback.slice(0, TRACE_CHARACTERS_MAX).toWellFormed() };
  return new StepError([type, ...said].join(": "), { details, cause: thrown });
}

/** What an error says it came from: `fetch` hides there what went wrong. */
function causes(error: Error): Error[] {
  const found: Error[] = [];
  for (let at = error.cause; at instanceof Error && found.length < 5; at = at.cause) found.push(at);
  return found;
}

/** What an error says, whatever was thrown. */
export function saying(thrown: unknown): string {
  return thrown instanceof Error ? String(thrown.message) : describe(thrown);
}

/** A value in a few words, for messages. */
export function describe(value: unknown): string {
  if (value === null || value === undefined) return String(value);
  if (typeof value === "string") return quoted(value.length > 80 ? `${value.slice(0, 80)}…` : value);
  if (typeof value === "function") return `the function ${value.name || "(without a name)"}`;
  if (typeof value === "object") {
    const kind = value.constructor?.name ?? "Object";
    return kind === "Promise" ? "a Promise (is an await missing?)" : `${/^[AEIOU]/.test(kind) ? "an" : "a"} ${kind}`;
  }
  return String(value);
}

/** A name as messages have it. */
export function quoted(text: string): string {
  return `"${text.replaceAll("\\", "\\\\").replaceAll('"', '\\"')}"`;
}

function cut(message: string): string {
  const bytes = Buffer.from(message);
  if (bytes.length <= ERROR_BYTES_MAX) return message.toWellFormed();
  // A character that is cut in two becomes a mark at the end, and goes.
  return bytes.subarray(0, ERROR_BYTES_MAX).toString().replace(/\ufffd$/, "");
}

/** The server could not be reached, or the answer did not arrive: the request may or may not have been carried out. */
export class ConnectionFailed extends AbideError {}

/** The server's certificate is not trusted, and nothing was sent. No retry cures it. */
export class Untrusted extends ConnectionFailed {}

/** Something did not come about in the time that it was given. */
export class TimedOut extends AbideError {}

/** A server said no. */
export class Problem extends AbideError {
  /** The HTTP status. */
  readonly status: number;
  /** What it is called, for programs; `docs/errors` has a page for each. */
  readonly code: string;
  readonly title: string;
  readonly detail: string;
  readonly expected: string | undefined;
  readonly found: string | undefined;
  readonly whatToDo: string;
  /** The run that it is about, if it is about one. */
  readonly run: string | undefined;
  /** The error that it carries, if it carries one. */
  readonly error: ErrorInfo | undefined;
  /** All of it, as the server said it. */
  readonly body: ProblemBody;

  constructor(body: ProblemBody, status = 0) {
    const code = body.code ?? "internal";
    const what = body.what_to_do ? `; ${body.what_to_do}` : "";
    super(`${code} (HTTP ${body.status ?? status}): ${body.detail ?? ""}${what}`);
    this.status = body.status ?? status;
    this.code = code;
    this.title = body.title ?? "";
    this.detail = body.detail ?? "";
    this.expected = body.expected ?? undefined;
    this.found = body.found ?? undefined;
    this.whatToDo = body.what_to_do ?? "";
    this.run = body.run ?? undefined;
    this.error = body.error ?? undefined;
    this.body = body;
  }

  /** A problem as the type that its code asks for. */
  static of(body: ProblemBody, status = 0): Problem {
    const Kind = KINDS[body.code ?? "internal"] ?? Problem;
    return new Kind(body, status);
  }
}

/** There is no such thing in this namespace. */
export class NotFound extends Problem {}

/** The business key is taken: `run` has it. */
export class KeyTaken extends Problem {}

/** The run has ended. */
export class RunOver extends Problem {}

/** Nobody is known by this token. */
export class Unauthenticated extends Problem {}

/** The token does not allow it. */
export class Forbidden extends Problem {}

/** A bounded place is full. */
export class Busy extends Problem {}

/** The attempt is not this worker's any more. */
export class ClaimLost extends Problem {}

/** The run said no to the update; `error` has its reason. */
export class UpdateRejected extends Problem {}

/** The answer was a redirect. It is not followed: the token and the body are for the server that was asked. */
export class Redirected extends Problem {}

const KINDS: Record<string, typeof Problem> = {
  not_found: NotFound,
  key_taken: KeyTaken,
  other_input: KeyTaken,
  run_over: RunOver,
  unauthenticated: Unauthenticated,
  forbidden: Forbidden,
  busy: Busy,
  stale_claim: ClaimLost,
  wrong_token: ClaimLost,
  lease_expired: ClaimLost,
  update_rejected: UpdateRejected,
  redirected: Redirected,
};

/** A run did not end well. */
export class RunFailed extends AbideError {
  /** What went wrong, if something did. */
  readonly error: StepError | undefined;

  constructor(
    readonly run: string,
    readonly status: string,
    error?: ErrorInfo | null,
  ) {
    const found = error ? StepError.of(error) : undefined;
    super(found === undefined ? `${run} ended as ${status}` : `${run} ended as ${status}: ${found.toString()}`);
    this.error = found;
  }
}
