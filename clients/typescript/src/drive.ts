/**
 * Drive: runs the code of a function and keeps its ledger. The order of things is the Rust SDK's: the code runs until
 * nothing more happens by itself; what has ended is handed to it one entry at a time, as a replay will repeat it; then what
 * it added is written; effects begin when what they rest on is durable. When nothing can go on but the ledger, it suspends.
 */

import { Branch, Outside, running } from "./branch.js";
import { type Came, callOutside } from "./call.js";
import { Problem, StepError, terminal } from "./errors.js";
import type { Known } from "./known.js";
import type { Ledger } from "./ledger.js";
import { Ended, GIVE_BACK, type Link, refused, setAside, Unknown } from "./link.js";
import type { Entry, Say } from "./protocol.js";

/** The code came to its end, and this is still to be written beside its outcome. */
export class Returned {
  constructor(
    readonly end: { value: unknown } | { error: unknown },
    readonly entries: Entry[],
  ) {}
}

/** It waits for its ledger, having seen so many entries end. */
export class Suspended {
  constructor(
    readonly seen: number,
    readonly entries: Entry[],
  ) {}
}

/** A record on its way, or what came of it. */
interface Recording {
  done?: { error?: unknown };
}

/** The code of an attempt at a function, and its ledger. */
export class Drive {
  /** The part of the code that is all of it. */
  root = new Branch();
  /** What the code waits for that the engine cannot see. */
  private foreign: string | undefined;
  private turning = false;
  private main: Returned["end"] | undefined;
  private readonly calls = new Map<Known, AbortController>();
  private readonly finished: { known: Known; call: AbortController; came: Came }[] = [];
  private recording: Recording | undefined;
  private isNews = false;
  private wakeUp: (() => void) | undefined;

  constructor(
    readonly ledger: Ledger,
    readonly link: Link,
    /** What idempotency keys begin with. */
    readonly base: string,
    readonly traceparent: string | undefined,
  ) {}

  /**
   * Runs code until it returns or suspends.
   *
   * @throws {Ended} the attempt is over otherwise.
   */
  async work(code: () => Promise<unknown>): Promise<Returned | Suspended> {
    const heard = () => this.news();
    this.link.lost.addEventListener("abort", heard);
    try {
      await this.turn(() => this.begin(code));
      for (;;) {
        this.isNews = false;
        const came = await this.goOn();
        if (came !== undefined) return came;
        if (!this.isNews) await new Promise<void>((resolve) => (this.wakeUp = resolve));
      }
    } finally {
      this.link.lost.removeEventListener("abort", heard);
    }
  }

  private begin(code: () => Promise<unknown>): void {
    const root = this.root;
    const ended = (end: Returned["end"]) => {
      if (this.root === root) this.main = end;
    };
    running.run(root, code).then(
      (value) => ended({ value }),
      (error: unknown) => ended({ error }),
    );
  }

  /** Drops the code, and what it still does outside. */
  leave(): void {
    this.ledger.left = true;
    for (const call of this.calls.values()) call.abort();
    this.calls.clear();
  }

  /** Other code follows in the place of what has come to its end. */
  then(): void {
    const ledger = this.ledger;
    ledger.windingDown = false;
    this.root.giveUp();
    this.root = new Branch();
    this.main = undefined;
    for (const places of [ledger.wanting, ledger.waiting, ledger.calling]) places.clear();
    ledger.active.clear();
  }

  private news(): void {
    this.isNews = true;
    this.wakeUp?.();
    this.wakeUp = undefined;
  }

  // Turns.

  /** Lets the code go on, until nothing more happens by itself. */
  private async turn(wake: () => void): Promise<void> {
    this.turning = true;
    wake();
    await new Promise<void>((resolve) => {
      // A tick that is asked for by a microtask comes when no microtask is left, and before anything from outside.
      queueMicrotask(() =>
        process.nextTick(() => {
          this.turning = false;
          resolve();
        }),
      );
    });
  }

  /** Whether the code may ask for something now. Where it went on by itself, no replay would find it there. */
  mayAsk(): boolean {
    if (this.turning && !this.ledger.left) return true;
    this.foreign ??= "it went on when something from outside happened";
    this.news();
    return false;
  }

  /** Everything that can be done without waiting; undefined when something must be waited for. */
  private async goOn(): Promise<Returned | Suspended | undefined> {
    const ledger = this.ledger;
    for (;;) {
      if (this.link.lost.aborted) throw new Ended(undefined);
      this.checkRecording();
      if (ledger.fatal !== undefined) throw new Ended(setAside(ledger.fatal.info()));
      if (this.foreign !== undefined) throw new Ended(this.foreignWait(this.foreign));
      if (this.main !== undefined) {
        // What is on its way must be there before what comes with the outcome.
        return this.recording === undefined ? new Returned(this.main, ledger.takeEntries()) : undefined;
      }
      if ((await this.finishOne()) || (await this.deliver())) continue;
      if (ledger.windingDown) {
        return this.recording === undefined ? new Suspended(0, ledger.takeEntries()) : undefined;
      }
      if (this.writeWanted()) continue;
      if (this.recording === undefined && ledger.rests) {
        if (ledger.waitsForNothing) throw new Ended(this.foreignWait("it is not in its ledger"));
        return new Suspended(ledger.ended, ledger.takeEntries());
      }
      if (this.recording === undefined && ledger.unwritten) this.submit();
      if (this.recording === undefined && this.letGo()) continue;
      return undefined;
    }
  }

  private foreignWait(what: string): Say {
    const point = this.ledger.lastPoint;
    const after = point === undefined ? "before its first durable point" : `after "${point.key}" (${point.place()})`;
    const message =
      `the function waits for something that the engine cannot see, ${after}: ${what}. Use ctx.sleep, ctx.signal, or do ` +
      "it inside an effect";
    return setAside(terminal("foreign_wait", message).info());
  }

  /** Lets the code that waits for an entry go on. */
  private wake(known: Known): Promise<void> {
    return this.turn(() => this.call(known));
  }

  private call(known: Known): void {
    for (const { branch, wake } of known.waiters.splice(0)) if (!branch.lost) wake();
  }

  private async deliver(): Promise<boolean> {
    const known = this.ledger.deliver();
    if (known === undefined) return false;
    await this.wake(known);
    if (known.kind === "manual") await this.turn(() => this.wakeReviews());
    return true;
  }

  /** Reviews that wait for their turn to ask go on, when a wait for a person is over. */
  wakeReviews(): void {
    for (const known of [...this.ledger.waiting]) {
      if (known.kind === "manual" && known.op === undefined) this.call(known);
    }
  }

  // Effects.

  /** Writes intents that must be written before their effects begin; lets those begin that rest on nothing. */
  private writeWanted(): boolean {
    this.ledger.waitAgain();
    const wanting = [...this.ledger.wanting];
    for (const known of wanting) if (!known.replaySafe) this.ledger.writeEffect(known);
    return this.beginAll(wanting.filter((known) => known.policy === "pure"));
  }

  /** Everything is durable: effects that wanted to begin do. */
  private letGo(): boolean {
    if (this.ledger.unwritten || this.ledger.windingDown) return false;
    return this.beginAll([...this.ledger.wanting]);
  }

  private beginAll(wanting: Known[]): boolean {
    for (const known of wanting) {
      this.ledger.wanting.delete(known);
      this.ledger.calling.add(known);
      known.go = true;
      const call = new AbortController();
      this.calls.set(known, call);
      const code = known.call;
      if (code === undefined) throw new TypeError(`the effect ${known.key} wants to begin and has no code`);
      const given = { key: `${this.base}/${known.key}`, signal: call.signal, traceparent: this.traceparent };
      void running.run(new Outside(known.key), () => callOutside(code, given)).then((came) => {
        this.finished.push({ known, call, came });
        this.news();
      });
    }
    return wanting.length > 0;
  }

  /** Lets the code take notice of one call that has come to its end. */
  private async finishOne(): Promise<boolean> {
    for (;;) {
      const found = this.finished.shift();
      if (found === undefined) return false;
      const { known, call, came } = found;
      // One that the code has given up is not recorded as ended.
      if (this.calls.get(known) !== call || known.released) continue;
      this.calls.delete(known);
      let stands = came;
      if (came.how === "error" && known.retry !== undefined && came.error.retryable) {
        const error = this.ledger.rest(known, came.error, known.retry);
        if (error === undefined) {
          this.ledger.calling.delete(known);
          return true;
        }
        stands = { how: "error", error };
      }
      this.ledger.writeEnd(known, stands, this.link.now());
      await this.wake(known);
      return true;
    }
  }

  /** The code does not wait for an effect any more. */
  giveUp(known: Known): void {
    this.calls.get(known)?.abort();
    this.calls.delete(known);
    this.ledger.release(known);
  }

  // Records.

  private submit(): void {
    const recording: Recording = {};
    this.recording = recording;
    const heard = (done: { error?: unknown }) => {
      recording.done = done;
      this.news();
    };
    this.link.record(this.ledger.takeEntries()).then(
      () => heard({}),
      (error: unknown) => heard({ error }),
    );
  }

  private checkRecording(): void {
    const done = this.recording?.done;
    if (done === undefined) return;
    this.recording = undefined;
    if (!("error" in done)) return;
    if (done.error instanceof Unknown) throw new Ended(GIVE_BACK);
    if (done.error instanceof Problem) throw new Ended(refused(done.error));
    throw done.error;
  }
}

/**
 * What an effect gave, as it is recorded.
 *
 * @throws {StepError} its error.
 */
export function recorded(known: Known): unknown {
  if (known.end?.how === "error") throw StepError.of(known.end.error, known.op);
  if (known.end?.how !== "value") return undefined;
  // The code may change what it is given; what is recorded stays.
  const { value } = known.end;
  return structuredClone(value);
}
