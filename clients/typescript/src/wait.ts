/** Waits: what a function gets when it asks for something durable. */

import type { Place } from "./ledger.js";

const GIVE_UP = Symbol("give up");

/** A promise of something durable. Awaited it is what any promise is; `ctx.race` can give it up. */
export type Wait<T> = Promise<T> & { readonly [GIVE_UP]: () => void };

/** A promise as a wait. */
export function asWait<T>(promise: Promise<T>, giveUp: () => void): Wait<T> {
  // Whoever awaits it hears of its error. That it is awaited late must not end the process.
  promise.catch(() => {});
  return Object.assign(promise, { [GIVE_UP]: giveUp });
}

/** Whether something is a wait. */
export function isWait(value: unknown): value is Wait<unknown> {
  return value instanceof Promise && GIVE_UP in value;
}

/** Nobody waits for it any more. */
export function giveUp(wait: Wait<unknown>): void {
  wait[GIVE_UP]();
}

/** Where the code stands that has called a function. It is found out only if somebody asks. */
export function placeAbove(called: (...given: never[]) => unknown): Place {
  const holder: { stack?: string } = {};
  Error.captureStackTrace(holder, called);
  return () => {
    const line = (holder.stack ?? "").split("\n").find((found) => /^\s+at /.test(found)) ?? "";
    const found = /(?:\(|at )((?:file:\/\/)?[^()]*:[0-9]+):[0-9]+\)?$/.exec(line)?.[1];
    return found?.replace(/^async /, "").replace(/^file:\/\//, "") ?? "a place that is not known";
  };
}
