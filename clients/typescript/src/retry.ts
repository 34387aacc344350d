/** Retry policies: when something that failed is tried again. */

import { AbideError, describe } from "./errors.js";
import { mix } from "./hashing.js";
import type { Retry } from "./protocol.js";
import { type Duration, durationMs } from "./times.js";

const HOUR_MS = 3_600_000;
const DELAY_MS_MAX = 100 * 365 * 24 * HOUR_MS;
const BACKOFFS = ["constant", "linear", "exponential"] as const;

/** When and how often something that failed is tried again. */
export interface RetryPolicy {
  /** Before the first retry; a second if nothing is said. */
  delay?: Duration;
  /** How delays grow; they double if nothing is said. */
  backoff?: "constant" | "linear" | "exponential";
  /** No delay is longer; an hour if nothing is said. */
  delayMax?: Duration;
  /** How much of a delay is left to chance, from 0 to 100. */
  jitterPercent?: number;
  /** How many retries there are; as many as it takes if nothing is said. */
  retriesMax?: number;
}

/** A retry policy as it is written in a report. */
export function retryMessage(policy: RetryPolicy): Retry {
  const backoff = policy.backoff ?? "exponential";
  if (!BACKOFFS.includes(backoff)) {
    throw new AbideError(`retry.backoff: expected one of ${BACKOFFS.join(", ")}, found ${describe(backoff)}`);
  }
  const said: Retry = {
    backoff,
    delay_ms: durationMs(policy.delay ?? 1_000),
    delay_ms_max: durationMs(policy.delayMax ?? HOUR_MS),
    jitter_percent: whole("retry.jitterPercent", policy.jitterPercent ?? 0),
  };
  if (policy.retriesMax !== undefined) said.retries_max = whole("retry.retriesMax", policy.retriesMax);
  return said;
}

function whole(what: string, value: number): number {
  if (!Number.isSafeInteger(value) || value < 0) {
    throw new AbideError(`${what}: expected a whole number of at least 0, found ${describe(value)}`);
  }
  return value;
}

/** The delay before the retry that follows `retries` earlier ones; undefined when there may be no more. */
export function retryDelay(policy: Retry, retries: number, seed: bigint): number | undefined {
  if (policy.retries_max !== undefined && retries >= policy.retries_max) return undefined;
  const grown = {
    constant: policy.delay_ms,
    linear: policy.delay_ms * (retries + 1),
    // A double is exact for powers of two; what is too large is cut below.
    exponential: policy.delay_ms * 2 ** Math.min(retries, 64),
  }[policy.backoff];
  const delay = Math.min(grown, policy.delay_ms_max, DELAY_MS_MAX);
  const percent = Math.min(policy.jitter_percent, 100);
  const drawn = Math.floor(delay / 100) * percent + Math.floor(((delay % 100) * percent) / 100);
  return delay - drawn + (drawn > 0 ? Number(mix(BigInt.asUintN(64, seed)) % BigInt(drawn + 1)) : 0);
}
