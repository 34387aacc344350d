"""Controls: what may be done, what may not, and what someone must have said yes to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, Literal, Sequence

from .errors import AbideError, StepError, terminal
from .ledger import POLICIES, quoted
from .times import Duration


@dataclass(frozen=True)
class Operation:
    """A piece of outside work that a workflow does: its name, without scope, and whether it may be repeated."""

    name: str
    policy: str


@dataclass(frozen=True)
class Control:
    """A rule for operations: the first control that matches decides."""

    rule: Literal["allow", "block", "interrupt"]
    name: str | None = None
    policy: str | None = None
    when: Callable[[Operation], bool] | None = None
    roles: tuple[str, ...] = ()
    assignee: str | None = None
    deadline: Duration | None = None

    def matches(self, operation: Operation) -> bool:
        return (
            self.name in (None, operation.name)
            and self.policy in (None, operation.policy)
            and (self.when is None or self.when(operation))
        )


def allow(
    name: str | None = None, *, policy: str | None = None, when: Callable[[Operation], bool] | None = None
) -> Control:
    """Lets operations take place."""
    return Control("allow", name, policy, when)


def block(
    name: str | None = None, *, policy: str | None = None, when: Callable[[Operation], bool] | None = None
) -> Control:
    """Lets no operation take place."""
    return Control("block", name, policy, when)


def interrupt(
    name: str | None = None,
    *,
    policy: str | None = None,
    when: Callable[[Operation], bool] | None = None,
    roles: Sequence[str] = (),
    assignee: str | None = None,
    deadline: Duration | None = None,
) -> Control:
    """Lets an operation take place once a person has approved exactly that one."""
    return Control("interrupt", name, policy, when, tuple(roles), assignee, deadline)


class PlanError(AbideError):
    """A workflow cannot be run as it is."""


@dataclass(frozen=True)
class Controls:
    """The controls of a workflow, in the order they were given."""

    rules: Sequence[Control] = ()
    operations: Sequence[Operation] = field(default=())

    def _of(self, operation: Operation) -> Control | None:
        return next((control for control in self.rules if control.matches(operation)), None)

    def check(self, operation: Operation) -> Control | None:
        """The control that has it reviewed, if one does.

        Raises:
            StepError: it may not begin.
        """
        control = self._of(operation)
        said = f"operation {quoted(operation.name)} ({operation.policy})"
        if control is None:
            if operation.policy == "unsafe_once":
                raise _uncontrolled(operation)
            return None
        if control.rule == "block":
            raise terminal("blocked_by_control", f"{said} is blocked by a control")
        return control if control.rule == "interrupt" else None

    def plan(self) -> None:
        """Checks what a workflow declares, before anything runs.

        Raises:
            PlanError: an operation that needs a control has none.
        """
        for operation in self.operations:
            if operation.policy not in POLICIES:
                raise PlanError(f"policy: expected one of {', '.join(POLICIES)}, found {quoted(operation.policy)}")
            if operation.policy == "unsafe_once" and self._of(operation) is None:
                raise PlanError(str(_uncontrolled(operation)))
        for control in self.rules:
            if control.rule != "interrupt" and (control.roles or control.assignee or control.deadline is not None):
                raise PlanError("bad_control: roles, an assignee and a deadline are for reviews; use abide.interrupt()")


def _uncontrolled(operation: Operation) -> StepError:
    return terminal(
        "unsafe_once_requires_control",
        f"operation {quoted(operation.name)} ({operation.policy}) must not happen twice, and no control matches it; add one "
        f"with controls=[abide.allow({quoted(operation.name)})]",
    )
