"""What a function sees of its run, and everything durable that it can do."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Awaitable, Callable, Coroutine, Iterable, Mapping, NoReturn, Sequence, TypeVar

from . import jsons
from .control import Control, Controls, Operation
from .drive import Drive, caller, recorded
from .errors import StepError, terminal
from .hashing import U64, input_hash, mix, stable_hash
from .ledger import POLICIES, REPLAY_SAFE, Known, quoted
from .outcome import When, child, moment
from .people import Decision, asking
from .retry import RetryPolicy
from .review import Review, review_key
from .times import to_datetime

T = TypeVar("T")
I = TypeVar("I")


class BeginAgain(BaseException):
    """How a function ends that begins again. It is not for `except Exception`."""


@dataclass
class Inside:
    """What all contexts of one attempt share."""

    drive: Drive
    attempt: dict[str, Any]
    controls: Controls
    undos: list[Known]
    again: tuple[Any] | None = None


def place(depth: int = 2) -> str:
    """Where the code stands that asks for something."""
    frame = sys._getframe(depth)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


class Context:
    """What a function sees of its run, and everything durable that it can do.

    Between two durable points the code must do the same whenever it is replayed: time, randomness and everything from
    outside come from here, or from inside an effect.
    """

    def __init__(self, inside: Inside, scope: str = "") -> None:
        self._in = inside
        self._scope = scope
        self._ledger = inside.drive.ledger

    # What it is.

    @property
    def run_id(self) -> str:
        """The run."""
        return str(self._in.attempt["run"])

    @property
    def key(self) -> str | None:
        """The run's business key."""
        return self._in.attempt.get("key")

    @property
    def labels(self) -> dict[str, str]:
        """The words that the run can be found by."""
        return dict(self._in.attempt.get("labels", {}))

    @property
    def attempt(self) -> int:
        """How many attempts came before since the last progress: retries and lost workers together, from 0."""
        return int(self._in.attempt["retries"] + self._in.attempt["reclaims"])

    @property
    def traceparent(self) -> str | None:
        """The attempt's place in the trace of its run (W3C's `traceparent`), for spans below it. Another in every attempt: for
        what is told of the code, and not for what it decides."""
        return self._in.drive.traceparent

    @property
    def replaying(self) -> bool:
        """Whether the code is being brought to where it was before: the time for logs and metrics to be quiet."""
        return bool(self._ledger.replay)

    def now(self) -> datetime:
        """The time of the last thing the function took notice of; the same in every replay."""
        return to_datetime(self._ledger.now)

    def random(self, name: str) -> int:
        """A 64-bit number that looks random and is the same in every replay, one for each name."""
        return mix(stable_hash(f"{self._in.drive.base}\0{self._scope}{name}".encode()))

    def uuid(self, name: str) -> str:
        """An identifier in the form of a UUID that is the same in every replay, one for each name."""
        high, low = self.random(name), self.random(f"{name}\0")
        text = f"{(high & ~0xF000 & U64) | 0x4000:016x}{(low & (U64 >> 2)) | 1 << 63:016x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    def scope(self, name: str) -> Context:
        """The same context under a name: what is done with it keeps apart from equal names elsewhere."""
        return Context(self._in, f"{self._scope}{name}/")

    # Effects.

    def effect(
        self,
        name: str,
        call: Callable[..., Any],
        *,
        policy: str = "idempotent",
        retry: RetryPolicy | None = None,
        input: Any = None,
    ) -> Coroutine[Any, Any, Any]:
        """A piece of outside work, recorded: executed once, and its result is there for every replay after.

        `call` may take a `Call`, whose `key` is the same over all attempts. If it is not async it runs in a thread.
        `input` says what it is about: a replay that comes here with another one has diverged.
        """
        return self._effect(name, call, policy, retry, input, place())

    async def _effect(
        self, name: str, call: Callable[..., Any], policy: str, retry: RetryPolicy | None, input: Any, at: str
    ) -> Any:
        if policy not in POLICIES:
            raise terminal("invalid", f"policy: expected one of {', '.join(POLICIES)}, found {quoted(policy)}")
        operation, point = Operation(name, policy), self._scope + name
        ruling, refused = None, None
        try:
            ruling = self._in.controls.check(operation)
        except StepError as error:
            refused = error
        if refused is not None and not self._stands(point):
            raise refused
        if retry is not None and policy not in REPLAY_SAFE:
            raise terminal(
                "retry_not_allowed",
                f"effect {quoted(name)} ({policy}) is never begun again by itself; it cannot have a retry policy",
            )
        shown = jsons.plain("the effect's input", input)
        hashed = 0 if input is None else input_hash(shown)
        known = self._ledger.point(point, "effect", {"effect": {"policy": policy}}, hashed, at)
        known.call, known.retry = caller(call), retry
        try:
            review = review_key(known.key)
            if (ruling is not None and known.op is None) or review in self._ledger.by_key:
                await self._approved(known, operation, ruling, hashed, shown, at)
            return await self._execute(known)
        finally:
            self._in.drive.give_up(known)
            self._ledger.release(known)

    async def _approved(
        self, known: Known, operation: Operation, ruling: Control | None, hashed: int, shown: Any, at: str
    ) -> None:
        """Waits until a person has approved an effect."""
        review = Review(self._in.drive, known, operation, hashed, shown)
        local = review.point(at)
        try:
            while not local.delivered:
                review.ask(local, ruling)
                await self._woken(local)
        finally:
            self._ledger.wait_no_more(local)
            self._in.drive.wake_reviews()
        review.judge(local)

    async def _execute(self, known: Known) -> Any:
        while not known.delivered:
            if known.end is None and not known.in_doubt() and not known.resting:
                self._ledger.wanting.setdefault(known)
            await self._woken(known)
        return recorded(known)

    async def _woken(self, known: Known) -> None:
        known.future = self._in.drive.loop.create_future()
        self._ledger.waiting[known] = None
        await known.future

    def _stands(self, point: str) -> bool:
        """Whether no control changes any more what the code gets at the next effect of this name."""
        key = self._ledger.next_key(point)
        effect, review = self._ledger.by_key.get(key), self._ledger.by_key.get(review_key(key))
        if effect is not None and (effect.end is not None or effect.in_doubt()):
            return True
        return review is not None and review.end is not None and not Decision.of(review.end).approved

    def undo(self, name: str, call: Callable[..., Any]) -> None:
        """Registers what undoes something that was done: it takes place, the last registered first, when the function fails
        for good or the run is cancelled."""
        wanted = {"undo": {"policy": "idempotent"}}
        known = self._ledger.point(self._scope + name, "effect", wanted, 0, place())
        known.call = caller(call)
        self._in.undos.append(known)

    # Waits.

    async def _wait(self, name: str, kind: str, wanted: dict[str, Any], hashed: int, at: str) -> Known:
        known = self._ledger.point(self._scope + name, kind, wanted, hashed, at)
        try:
            while not known.delivered:
                await self._woken(known)
        finally:
            self._ledger.wait_no_more(known)
        return known

    def sleep(self, duration: When) -> Coroutine[Any, Any, None]:
        """Waits for so long, or until an instant; a crash or a deploy in between does not make it longer."""
        return self._sleep(duration, place())

    async def _sleep(self, duration: When, at: str) -> None:
        await self._wait("sleep", "timer", {"timer": {"until": moment(duration)}}, 0, at)

    def signal(self, name: str, *, timeout: When | None = None, default: Any = None) -> Coroutine[Any, Any, Any]:
        """Waits for one signal of this name, and gives what it carries; `default` when it has not come in time."""
        return self._signal(name, timeout, default, place())

    async def _signal(self, name: str, timeout: When | None, default: Any, at: str) -> Any:
        wanted: dict[str, Any] = {"name": name}
        if timeout is not None:
            wanted["deadline"] = moment(timeout)
        known = await self._wait(f"signal {name}", "signal", {"signal": wanted}, 0, at)
        if known.end is not None and known.end.how == "elapsed":
            return default
        return recorded(known)

    def update(self, name: str, *, timeout: When | None = None) -> Coroutine[Any, Any, Any]:
        """Waits to be asked for an update of this name: an `UpdateRequest` to answer; None when nobody asked in time."""
        return self._update(name, timeout, place())

    async def _update(self, name: str, timeout: When | None, at: str) -> UpdateRequest | None:
        wanted: dict[str, Any] = {"name": name}
        if timeout is not None:
            wanted["deadline"] = moment(timeout)
        known = await self._wait(f"update {name}", "update", {"update": wanted}, 0, at)
        if known.end is None or known.end.how == "elapsed":
            return None
        return UpdateRequest(self._in, known, recorded(known))

    def publish(self, state: Any) -> None:
        """Sets the state that is seen from outside. It is written with what the function writes next."""
        self._ledger.set_state = (jsons.plain("the state", state),)

    # People.

    def approval(
        self,
        name: str,
        payload: Any = None,
        *,
        roles: Sequence[str] = (),
        assignee: str | None = None,
        timeout: When | None = None,
    ) -> Coroutine[Any, Any, Decision]:
        """Waits for a person to approve or reject. A run asks for one person at a time."""
        return self._manual(name, "approval", payload, payload is not None, roles, assignee, timeout, place())

    def pause(
        self, name: str, payload: Any = None, *, roles: Sequence[str] = (), timeout: When | None = None
    ) -> Coroutine[Any, Any, Decision]:
        """Waits for a person to let the function go on."""
        return self._manual(name, "pause", payload, payload is not None, roles, None, timeout, place())

    def task(
        self,
        name: str,
        form: Any = None,
        *,
        roles: Sequence[str] = (),
        assignee: str | None = None,
        timeout: When | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Waits for a person to do what the form says, and gives what they hand in."""
        return self._task(name, form, roles, assignee, timeout, place())

    async def _task(
        self, name: str, form: Any, roles: Sequence[str], assignee: str | None, timeout: When | None, at: str
    ) -> Any:
        decision = await self._manual(name, "task", form, True, roles, assignee, timeout, at)
        if decision.choice is None:
            raise terminal("task_timed_out", f"nobody handed in the result of task {quoted(self._scope + name)} in time")
        return decision.payload

    async def _manual(
        self,
        name: str,
        kind: str,
        payload: Any,
        hashed: bool,
        roles: Sequence[str],
        assignee: str | None,
        timeout: When | None,
        at: str,
    ) -> Decision:
        shown = jsons.plain("what a person is shown", payload)
        roles, assignee = jsons.plain("who is asked", [list(roles), assignee])
        still = self._ledger.asks(self._scope + name)
        if still is not None:
            raise terminal(
                "second_boundary",
                f"{quoted(self._scope + name)} asks for a person while {quoted(still)} still does; a run has one manual "
                "boundary at a time",
            )
        wanted = asking(kind, shown, roles, assignee, timeout)
        known = await self._wait(name, "manual", wanted, input_hash(shown) if hashed else 0, at)
        return Decision.of(known.end)

    # Children.

    def child(self, name: str, workflow: str, input: Any = None, **options: Any) -> Coroutine[Any, Any, Any]:
        """Starts a child and waits for its result. Options are those of `abide.child`."""
        return self._child(name, child(workflow, input, **options), place())

    async def _child(self, name: str, start: dict[str, Any], at: str) -> Any:
        return await self._joined(self._begin_child(name, start, at))

    def start_child(self, name: str, start: dict[str, Any]) -> StartedChild:
        """Starts a child, made with `abide.child`, and does not wait for its end."""
        return StartedChild(self, self._begin_child(name, start, place()))

    def _begin_child(self, name: str, start: dict[str, Any], at: str) -> Known:
        given = jsons.plain("the child's input", start.get("input"))
        start = {**jsons.plain("how the child begins", {**start, "input": None}), "input": given}
        wanted = {"child": {"start": start}}
        return self._ledger.point(self._scope + name, "child", wanted, input_hash(start["input"]), at)

    async def _joined(self, known: Known) -> Any:
        while not known.delivered:
            await self._woken(known)
        if known.end is not None and known.end.how == "error":
            # A retry does not begin a child again, so it is nobody's effect.
            raise StepError.of(known.end.value)
        return recorded(known)

    def children(
        self,
        name: str,
        children: Mapping[Any, dict[str, Any]],
        *,
        join: str | dict[str, int] = "all_terminal",
        timeout: When | None = None,
    ) -> Coroutine[Any, Any, Joined]:
        """Starts many children at once, made with `abide.child`, each known by its key, and waits for them: for all, or as
        `join` says (`all_succeeded`, `any`, `{"quorum": n}`). Those that have not ended by then go on."""
        return self._children(name, dict(children), join, timeout, place())

    async def _children(
        self, name: str, children: dict[Any, dict[str, Any]], join: str | dict[str, int], timeout: When | None, at: str
    ) -> Joined:
        joined = Joined(list(children), join)
        # All begin before any is waited for.
        begun = [self._begin_child(f"{name}[{key}]", start, at) for key, start in children.items()]
        running: dict[asyncio.Task[Any], Any] = {
            asyncio.ensure_future(self._joined(known)): key for known, key in zip(begun, children)
        }
        late: asyncio.Task[Any] | None = None
        if timeout is not None:
            late = asyncio.ensure_future(self._wait(f"{name} within", "timer", {"timer": {"until": moment(timeout)}}, 0, at))
        try:
            # What ends is delivered one at a time, so a replay finds the same children ended.
            while not joined.over():
                waited = [*running, *([] if late is None else [late])]
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in running if task.done()]:
                    joined.ended[running.pop(task)] = task.exception() or task.result()
                if late is not None and late.done():
                    break
        finally:
            for task in [*running, *([] if late is None else [late])]:
                task.cancel()
            await asyncio.gather(*running, *([] if late is None else [late]), return_exceptions=True)
        return joined

    # Branches.

    async def gather(self, *branches: Awaitable[Any]) -> list[Any]:
        """Waits for all of them: their results in their order, once all have ended, or the first error in that order."""
        ended = await asyncio.gather(*branches, return_exceptions=True)
        for result in ended:
            if isinstance(result, BaseException):
                raise result
        return list(ended)

    async def map(
        self, name: str, items: Iterable[tuple[Any, I]], each: Callable[[Context, I], Awaitable[T]]
    ) -> list[T]:
        """Does the same for every (key, item), all at once, each in a scope named `name[key]`."""
        return await self.gather(*(each(self.scope(f"{name}[{key}]"), item) for key, item in items))

    async def race(self, *branches: Awaitable[T]) -> tuple[int, T]:
        """Waits for the first of them to end, and gives up the others: its place, and what it gave."""
        if not branches:
            raise ValueError("a race needs someone to run")
        tasks = [asyncio.ensure_future(branch) for branch in branches]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            won = next((index for index, task in enumerate(tasks) if task.done()), None)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        assert won is not None, "a wait without a limit ends with one that is done"
        return won, tasks[won].result()

    # Edits and new beginnings.

    def patch(self, name: str) -> bool:
        """Guards an edit that open runs must not meet half-way: true for a run that comes here for the first time, false
        for one whose history has passed this point without it; the same in every replay."""
        return self._ledger.patch(f"{self._scope}patch {name}", place())

    def continue_as_new(self, input: Any = None) -> NoReturn:
        """Begins again from the first line with a new input and an empty ledger; the run keeps its identity."""
        self._in.again = (jsons.plain("the input", input),)
        raise BeginAgain("the function begins again")


class StartedChild:
    """A child that was started."""

    def __init__(self, ctx: Context, known: Known) -> None:
        self._ctx = ctx
        self._known = known

    @property
    def run_id(self) -> str | None:
        """The child, once the engine has told: in the next attempt at the latest."""
        return self._known.child

    async def result(self) -> Any:
        """Waits for its end and gives its result."""
        return await self._ctx._joined(self._known)


class Joined:
    """Children that were waited for together, by their keys."""

    def __init__(self, keys: list[Any], join: str | dict[str, int]) -> None:
        quorum = join.get("quorum") if isinstance(join, dict) else None
        if isinstance(join, dict) and not (isinstance(quorum, int) and 1 <= quorum <= len(keys)):
            said = f"expected a quorum from 1 to {len(keys)}, the number of children, found {quorum}"
            raise terminal("invalid", said)
        self.keys = keys
        self.ended: dict[Any, Any] = {}
        """What each gave that has ended: a value, or a `StepError`."""
        self._needed = quorum if quorum is not None else 1 if join == "any" else len(keys)
        self._all = join == "all_terminal"

    def succeeded(self) -> list[Any]:
        """What those gave that succeeded, in the order they were given."""
        return [self.ended[key] for key in self.keys if key in self.ended and not _is_error(self.ended[key])]

    def met(self) -> bool:
        """Whether what was waited for came about."""
        return len(self.ended) == len(self.keys) if self._all else len(self.succeeded()) >= self._needed

    def over(self) -> bool:
        """Whether it came about, or has become impossible."""
        open_ = len(self.keys) - len(self.ended)
        return self.met() or (not self._all and len(self.succeeded()) + open_ < self._needed)

    def all(self) -> list[Any]:
        """What each gave, when all succeeded.

        Raises:
            StepError: the first error in their order, or that one has not ended.
        """
        for key in self.keys:
            if _is_error(self.ended.get(key)):
                raise self.ended[key]
        open_ = len(self.keys) - len(self.ended)
        if open_:
            raise StepError(f"expected all children to have ended, found {open_} that have not", code="not_ended")
        return self.succeeded()


def _is_error(ended: Any) -> bool:
    return isinstance(ended, BaseException)


class UpdateRequest:
    """Something that the run was asked to do. Answer or reject it: whoever asked waits for that."""

    def __init__(self, inside: Inside, known: Known, input: Any) -> None:
        self._in = inside
        self._known = known
        self.input = input
        """What is asked."""

    def answer(self, value: Any = None) -> None:
        """It is done, with this answer, which is written with what the function writes next."""
        self._in.drive.ledger.reply(self._known, value=jsons.plain("the answer", value))

    def reject(self, reason: str) -> None:
        """It is not done, for this reason."""
        self._in.drive.ledger.reply(self._known, rejected=terminal("rejected", reason).info())
