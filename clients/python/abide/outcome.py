"""What a step of a machine returns: one function per outcome."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Iterable, Union

from . import jsons
from .errors import StepError, as_step_error
from .times import Duration, duration_ms, from_datetime, write_instant

When = Union[Duration, datetime]
"""From now on, or an instant."""

CONSUMES = ("presented", "by_name")


def moment(when: When) -> dict[str, Any]:
    """A point in time as it is written."""
    if isinstance(when, datetime):
        return {"at": write_instant(from_datetime(when))}
    return {"in_ms": duration_ms(when)}


@dataclass(frozen=True)
class Outcome:
    """What happens next to a run."""

    message: dict[str, Any]
    consumes: str = "presented"

    def consume(self, how: str) -> Outcome:
        """Which signals that the step waited for it uses up when it goes on: those that were `presented` to it, which is what
        happens if nothing is said, or all of these names (`by_name`), also those that arrived while it ran."""
        if how not in CONSUMES:
            raise ValueError(f"consume: expected one of {', '.join(CONSUMES)}, found {how!r}")
        return replace(self, consumes=how)


def _some(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def next_step(step: str, state: Any = None) -> Outcome:
    """Go on with another step."""
    return Outcome({"next": {"step": step, "state": state}})


def replay(state: Any = None, delay: Duration = 0) -> Outcome:
    """Run the same step again, after a delay."""
    return Outcome({"replay": {"state": state, "delay_ms": duration_ms(delay)}})


def await_signals(
    signals: str | Iterable[str], state: Any = None, *, then: str | None = None, deadline: When | None = None
) -> Outcome:
    """Park until a signal of one of these names arrives."""
    names = [signals] if isinstance(signals, str) else list(signals)
    until = None if deadline is None else moment(deadline)
    return Outcome({"await": {"signals": names, "state": state, **_some(then=then, deadline=until)}})


def sleep(until: When, state: Any = None, *, then: str | None = None) -> Outcome:
    """Park for so long, or until an instant."""
    return Outcome({"sleep": {"until": moment(until), "state": state, **_some(then=then)}})


def child(
    workflow: str,
    input: Any = None,
    *,
    version: int | None = None,
    key: str | None = None,
    on_conflict: str | None = None,
    queue: str | None = None,
    priority: int | None = None,
    concurrency: tuple[str, int] | None = None,
    delay: Duration | None = None,
    deadline: Duration | None = None,
    labels: dict[str, str] | None = None,
    deliveries_max: int | None = None,
    traceparent: str | None = None,
) -> dict[str, Any]:
    """A run that is to begin, as it is written: for `spawn`, `ctx.start_child` and `Client.start`.

    `traceparent` (W3C) puts the run into a trace; without it the run has one of its own. A child is in its parent's.
    """
    return {
        "workflow": workflow,
        "input": input,
        **_some(
            version=version,
            key=key,
            on_conflict=on_conflict,
            queue=queue,
            priority=priority,
            concurrency=None if concurrency is None else {"key": concurrency[0], "limit": concurrency[1]},
            delay_ms=None if delay is None else duration_ms(delay),
            deadline_ms=None if deadline is None else duration_ms(deadline),
            labels=labels,
            deliveries_max=deliveries_max,
            traceparent=traceparent,
        ),
    }


def spawn(
    children: Iterable[dict[str, Any]],
    then: str,
    state: Any = None,
    *,
    join: str | dict[str, int] = "all_terminal",
    deadline: When | None = None,
) -> Outcome:
    """Start children, park until they have joined, then run `then`.

    `join` is `all_terminal`, `all_succeeded`, `any` or `{"quorum": n}`.
    """
    until = None if deadline is None else moment(deadline)
    said = {"children": list(children), "then": then, "join": join, "state": state, **_some(deadline=until)}
    return Outcome({"spawn": said})


def done(result: Any = None) -> Outcome:
    """End well."""
    return Outcome({"done": {"result": result}})


def stop(error: StepError | BaseException | str) -> Outcome:
    """End with an error."""
    found = StepError(error) if isinstance(error, str) else as_step_error(error)
    return Outcome({"stop": {"error": jsons.written(found)}})


def continue_as_new(input: Any = None) -> Outcome:
    """Begin again at the first step with a new input."""
    return Outcome({"continue_as_new": {"input": input}})
