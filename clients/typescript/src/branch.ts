/**
 * Branches: which part of a function's code is running. A branch that loses a race is given up with everything that was
 * begun in it, and its code stops where it is: what it waits for never comes.
 */

import { AsyncLocalStorage } from "node:async_hooks";

import type { Known } from "./known.js";

/** A part of a function's code that can be given up. */
export class Branch {
  private readonly open = new Map<Known, () => void>();
  private readonly parts = new Set<Branch>();
  private over = false;

  constructor(private readonly parent?: Branch) {
    parent?.parts.add(this);
  }

  /** Whether it was given up, alone or with what it is part of. */
  get lost(): boolean {
    return this.over || (this.parent?.lost ?? false);
  }

  /** Something was begun here; `giveUp` is called if the branch is given up before that is closed. */
  begin(known: Known, giveUp: () => void): void {
    this.open.set(known, giveUp);
  }

  /** Something has come to its end. */
  close(known: Known): void {
    this.open.delete(known);
  }

  /** It has come to its end: what it is part of need not know of it any more, unless something in it goes on. */
  end(): void {
    if (this.open.size === 0 && this.parts.size === 0) this.parent?.parts.delete(this);
  }

  /** Nothing of it is waited for any more. */
  giveUp(): void {
    if (this.lost) return;
    this.over = true;
    this.drop();
  }

  private drop(): void {
    for (const giveUp of this.open.values()) giveUp();
    this.open.clear();
    for (const part of this.parts) part.drop();
    this.parts.clear();
  }
}

/** The code of an effect, which has no part in what is replayed. */
export class Outside {
  constructor(readonly effect: string) {}
}

/** What the code belongs to that runs now. */
export const running = new AsyncLocalStorage<Branch | Outside>();

/** What never comes, for code that has been given up. */
export function never<T>(): Promise<T> {
  return new Promise<T>(() => {});
}
