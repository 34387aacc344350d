/** Controls: what may be done, what may not, and what someone must have said yes to. */

import { AbideError, quoted, type StepError, terminal } from "./errors.js";
import { POLICIES } from "./ledger.js";
import type { Policy } from "./protocol.js";
import type { Duration } from "./times.js";

/** A piece of outside work that a workflow does: its name, without scope, and whether it may be repeated. */
export interface Operation {
  readonly name: string;
  readonly policy: Policy;
}

/** Which operations a control is for; all, if nothing is said. */
export interface Match {
  policy?: Policy;
  when?: (operation: Operation) => boolean;
}

/** Who reviews an operation, and for how long it waits for them. */
export interface Reviewers {
  roles?: readonly string[];
  assignee?: string;
  deadline?: Duration;
}

/** A rule for operations: the first control that matches decides. */
export interface Control extends Match, Reviewers {
  readonly rule: "allow" | "block" | "interrupt";
  readonly name?: string | undefined;
}

/** Lets operations take place. */
export function allow(name?: string, match: Match = {}): Control {
  return { rule: "allow", name, ...match };
}

/** Lets no operation take place. */
export function block(name?: string, match: Match = {}): Control {
  return { rule: "block", name, ...match };
}

/** Lets an operation take place once a person has approved exactly that one. */
export function interrupt(name?: string, options: Match & Reviewers = {}): Control {
  return { rule: "interrupt", name, ...options };
}

/** A workflow cannot be run as it is. */
export class PlanError extends AbideError {}

/** The controls of a workflow, in the order they were given. */
export class Controls {
  private readonly rules: readonly Control[];

  /**
   * Checks what a workflow declares, before anything runs.
   *
   * @throws {PlanError} an operation that needs a control has none.
   */
  constructor(rules: readonly Control[] = [], operations: Readonly<Record<string, Policy>> = {}) {
    this.rules = rules;
    for (const [name, policy] of Object.entries(operations)) {
      checkPolicy(policy, (message) => new PlanError(message));
      if (policy === "unsafe_once" && this.of({ name, policy }) === undefined) {
        throw new PlanError(uncontrolled({ name, policy }).toString());
      }
    }
    for (const control of rules) {
      const reviewed = (control.roles?.length ?? 0) > 0 || control.assignee !== undefined || control.deadline !== undefined;
      if (control.rule !== "interrupt" && reviewed) {
        throw new PlanError("bad_control: roles, an assignee and a deadline are for reviews; use interrupt()");
      }
    }
  }

  private of(operation: Operation): Control | undefined {
    return this.rules.find(
      (control) =>
        (control.name === undefined || control.name === operation.name) &&
        (control.policy === undefined || control.policy === operation.policy) &&
        (control.when === undefined || control.when(operation)),
    );
  }

  /**
   * The control that has it reviewed, if one does.
   *
   * @throws {StepError} it may not begin.
   */
  check(operation: Operation): Control | undefined {
    const control = this.of(operation);
    if (control === undefined) {
      if (operation.policy === "unsafe_once") throw uncontrolled(operation);
      return undefined;
    }
    if (control.rule === "block") {
      throw terminal("blocked_by_control", `operation ${quoted(operation.name)} (${operation.policy}) is blocked by a control`);
    }
    return control.rule === "interrupt" ? control : undefined;
  }
}

/** Refuses a policy that is none. */
export function checkPolicy(policy: string, refusal: (message: string) => Error): asserts policy is Policy {
  if (POLICIES.includes(policy as Policy)) return;
  throw refusal(`policy: expected one of ${POLICIES.join(", ")}, found ${quoted(String(policy))}`);
}

function uncontrolled(operation: Operation): StepError {
  const name = quoted(operation.name);
  const said = `operation ${name} (${operation.policy}) must not happen twice, and no control matches it; add one with`;
  return terminal("unsafe_once_requires_control", `${said} controls: [allow(${name})]`);
}
