/** Instants and durations: milliseconds inside, RFC 3339 in UTC on the network. */

import { AbideError, describe } from "./errors.js";
import type { Moment } from "./protocol.js";

const UNITS = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000, w: 604_800_000 } as const;
const MS_MAX = 253_402_300_799_999;

/** Milliseconds, or a number with its unit: `"250ms"`, `"30s"`, `"5m"`, `"2h"`, `"14d"`, `"1w"`. */
export type Duration = number | `${number}${keyof typeof UNITS}`;

/** From now on, or an instant. */
export type When = Duration | Date;

/** A duration that is none. */
export class BadDuration extends AbideError {}

/** A duration in whole milliseconds. */
export function durationMs(duration: Duration): number {
  const [, digits, unit] = typeof duration === "string" ? (/^([0-9]*\.?[0-9]+)(ms|s|m|h|d|w)$/.exec(duration) ?? []) : [];
  const ms = typeof duration === "number" ? duration : Number(digits) * UNITS[unit as keyof typeof UNITS];
  if (!Number.isFinite(ms) || ms < 0) {
    const found = typeof duration === "number" ? String(duration) : describe(duration);
    throw new BadDuration(`duration: expected milliseconds, or text like "30s", "5m" or "14d", found ${found}`);
  }
  return Math.min(Math.floor(ms + 1e-6), Number.MAX_SAFE_INTEGER);
}

/** A point in time as it is written. */
export function moment(when: When): Moment {
  if (!(when instanceof Date)) return { in_ms: durationMs(when) };
  if (Number.isNaN(when.getTime())) throw new BadDuration("instant: expected a date, found one that is invalid");
  return { at: writeInstant(when.getTime()) };
}

/** An instant as it is written: `2026-11-06T21:28:02.125Z`. */
export function writeInstant(ms: number): string {
  return new Date(Math.min(Math.max(ms, 0), MS_MAX)).toISOString();
}

/** An instant as it is read, in milliseconds since 1970. */
export function readInstant(text: string): number {
  const ms = Date.parse(text);
  if (Number.isNaN(ms)) throw new AbideError(`instant: expected RFC 3339 like 2026-11-06T21:28:02.125Z, found ${describe(text)}`);
  return ms;
}

/** An instant that may be absent. */
export function maybeInstant(text: string | null | undefined): number | undefined {
  return text === null || text === undefined ? undefined : readInstant(text);
}
