"""Functions: workflows that are ordinary async Python, replayed over their ledger."""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass, field
from typing import Any, Callable, Coroutine, Sequence

from . import jsons
from .context import BeginAgain, Context, Inside
from .control import Control, Controls, Operation
from .drive import Drive, Returned, Suspended
from .errors import StepError, as_step_error
from .hashing import hex16, stable_hash
from .ledger import Entry, Known, Ledger
from .link import Ended, Link, Say
from .retry import RetryPolicy

STEP = "run"
"""The one step of a function, as the journal names it."""

UNDO_RETRY = RetryPolicy(delay_ms=1_000)
"""When undoing is tried again, where the function has no retry policy that says so."""

Code = Callable[[Context, Any], Coroutine[Any, Any, Any]]


@dataclass(frozen=True)
class Workflow:
    """A workflow that is an async function. It is brought back after a crash, a deploy or a long wait by running it again
    from its beginning: everything durable it did before is answered from the journal."""

    name: str
    code: Code
    version: int = 1
    retry: RetryPolicy | None = None
    controls: Controls = field(default_factory=Controls)
    compact_after: int | None = None

    def offer(self) -> dict[str, Any]:
        """What a worker offers to execute."""
        text = f"function\0{self.name}\0{self.version}"
        print_ = hex16(stable_hash(text.encode()))
        return {"workflow": self.name, "version": self.version, "fingerprint": print_, "first_step": STEP}

    async def execute(self, attempt: dict[str, Any], link: Link) -> Say | None:
        """Executes an attempt: what is said of it, or None when it is lost."""
        ledger = Ledger(attempt, function=True)
        drive = Drive(ledger, link)
        drive.base = identity(attempt)
        drive.traceparent = attempt.get("traceparent") or None
        running = _Running(self, Inside(drive, attempt, self.controls, []))
        try:
            return await running.work()
        except Ended as ended:
            return ended.say
        finally:
            await drive.leave()

    def __call__(self, ctx: Context, input: Any) -> Coroutine[Any, Any, Any]:
        """The code itself, for one function that calls another."""
        return self.code(ctx, input)


def workflow(
    name: str,
    version: int = 1,
    *,
    retry: RetryPolicy | None = None,
    controls: Sequence[Control] = (),
    operations: Sequence[tuple[str, str]] = (),
    compact_after: int | None = None,
) -> Callable[[Code], Workflow]:
    """Makes a workflow of an async function `(ctx, input)`.

    With `compact_after` the journal of a run begins anew once it has so many rows.

    Raises:
        PlanError: an operation that it declares needs a control and has none.
    """
    planned = Controls(tuple(controls), tuple(Operation(*operation) for operation in operations))
    planned.plan()

    def made(code: Code) -> Workflow:
        if not inspect.iscoroutinefunction(code):
            raise TypeError(f"workflow {name!r}: expected an async function, found {code!r}")
        return Workflow(name, code, version, retry, planned, check_rows(compact_after))

    return made


def identity(attempt: dict[str, Any]) -> str:
    """What the idempotency keys of a step's effects begin with: the same over all attempts, and differs from visit to
    visit."""
    return f"{attempt['run']}-{attempt.get('epoch', 0)}-{attempt['step']}-{attempt['visit']}"


def failed(
    error: StepError, entries: list[Entry], retry: RetryPolicy | None = None, reopen: Sequence[int] = ()
) -> Say:
    """An attempt failed."""
    said: dict[str, Any] = {"error": jsons.written(error), "entries": entries, "reopen": list(reopen)}
    if retry is not None:
        said["retry"] = retry.message()
    return {"fail": said}


def complete(
    outcome: dict[str, Any],
    entries: list[Entry],
    *,
    consume: str = "presented",
    handled: StepError | None = None,
    compact_after: int | None = None,
) -> Say:
    """An attempt returned."""
    said: dict[str, Any] = {"outcome": outcome, "entries": entries}
    if consume != "presented":
        said["consume"] = consume
    if handled is not None:
        said["handled"] = jsons.written(handled)
    if compact_after is not None:
        said["compact_after"] = compact_after
    return {"complete": said}


def check_rows(rows: int | None) -> int | None:
    """After how many rows a journal begins anew, if it can be so many."""
    if rows is not None and (not isinstance(rows, int) or rows < 1):
        raise ValueError(f"compact_after: expected a number of rows from 1 on, found {rows!r}")
    return rows


class _Running:
    """A function in one attempt."""

    def __init__(self, function: Workflow, inside: Inside) -> None:
        self.function = function
        self.inside = inside
        self.drive = inside.drive
        self.ledger = inside.drive.ledger
        self.cancelling: bool = bool(inside.attempt["cancelling"])

    async def work(self) -> Say:
        """The function, and what undoes it."""
        ctx = Context(self.inside)
        # A copy: the code may change what it is given.
        came = await self.drive.work(self.function.code(ctx, copy.deepcopy(self.inside.attempt["state"])))
        again = self.inside.again is not None and isinstance(came, Returned)
        failure = None if again or not isinstance(came, Returned) else self._failure(came)
        if failure is not None and not self._final(failure) and not self.cancelling:
            return self._retried(failure, came.entries)
        if failure is None and not self.cancelling:
            return self._came(came)
        return await self._undo(failure, came.entries)

    def _failure(self, came: Returned) -> StepError | None:
        if came.error is not None:
            return as_step_error(came.error)
        try:
            came.value = jsons.plain("the result", came.value)
        except StepError as error:
            return error
        return None

    def _final(self, failure: StepError) -> bool:
        """Whether a failure is not tried again."""
        retry, retries = self.function.retry, self.inside.attempt["retries"]
        return not failure.retryable or retry is None or retry.delay(retries, 0) is None

    def _retried(self, failure: StepError, entries: list[Entry]) -> Say:
        reopen = [failure.op] if failure.op is not None else self.ledger.curable()
        return failed(failure, still_asking(entries), self.function.retry, reopen)

    def _came(self, came: Returned | Suspended) -> Say:
        return complete(self._outcome(came), came.entries, compact_after=self.function.compact_after)

    def _outcome(self, came: Returned | Suspended) -> dict[str, Any]:
        if isinstance(came, Suspended):
            return {"suspend": {"seen": came.seen}}
        if self.inside.again is not None:
            return {"continue_as_new": {"input": self.inside.again[0]}}
        assert not isinstance(came.error, BeginAgain), "a new beginning has an input"
        return {"done": {"result": came.value}}

    async def _undo(self, failure: StepError | None, entries: list[Entry]) -> Say:
        """Undoes what was done, the last first, and ends the run as it must end."""
        undos = self.inside.undos[::-1]
        if not undos:
            return self._over(failure, entries)
        self.ledger.buffer[:0] = entries
        self.drive.then()
        came = await self.drive.work(_undone(Context(self.inside), undos))
        if isinstance(came, Suspended):
            return complete({"suspend": {"seen": came.seen}}, came.entries)
        if came.error is None:
            return self._over(failure, came.entries)
        error = as_step_error(came.error)
        often = self.function.retry or UNDO_RETRY
        endless = RetryPolicy(often.delay_ms, often.backoff, often.delay_ms_max, often.jitter_percent)
        said = f"what was done could not be undone: {error}"
        not_undone = StepError(said, code=error.code, retryable=error.retryable, details=error.details)
        return failed(not_undone, came.entries, endless, [] if error.op is None else [error.op])

    def _over(self, failure: StepError | None, entries: list[Entry]) -> Say:
        if failure is not None and not self.cancelling:
            return failed(failure, entries)
        return complete({"cancelled": {}}, entries)


async def _undone(ctx: Context, undos: list[Known]) -> None:
    for known in undos:
        try:
            await ctx._execute(known)
        finally:
            ctx._ledger.release(known)


def still_asking(entries: list[Entry]) -> list[Entry]:
    """What a function that failed has to write: it is tried again, and then asks for what it asked when it failed."""
    asks = [index for index, entry in enumerate(entries) if "manual" in entry.get("intend", {}).get("what", {})]
    last = asks[-1] + 1 if asks else 0
    return [entry for index, entry in enumerate(entries) if index < last or "withdraw" not in entry]
