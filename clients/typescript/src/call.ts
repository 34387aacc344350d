/** Calls: the code of an effect, which is outside of what is replayed. */

import { asStepError } from "./errors.js";
import { plain, written } from "./jsons.js";
import type { ErrorInfo } from "./protocol.js";

/** What the code of an effect is given. */
export interface Call {
  /** A key for the other side: the same over all attempts at this effect, and differs from every other's. */
  readonly key: string;
  /** Aborted when nobody waits for the effect any more: its attempt is lost, or it has lost a race. */
  readonly signal: AbortSignal;
  /** The attempt's place in the trace of its run (W3C's `traceparent`): for spans below it, and to be sent along. */
  readonly traceparent: string | undefined;
}

/** What a call came to, as it is recorded. */
export type Came = { how: "value"; value: unknown } | { how: "error"; error: ErrorInfo };

/** Calls the code of an effect: its value or its error, as they are recorded. */
export async function callOutside(code: (call: Call) => unknown, call: Call): Promise<Came> {
  try {
    return { how: "value", value: plain("the effect's result", await code(call)) };
  } catch (error) {
    return { how: "error", error: written(asStepError(error)) };
  }
}
