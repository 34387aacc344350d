"""Drive: runs the code of a function and keeps its ledger.

The order of things is the Rust SDK's: the code runs until nothing more happens by itself; what has ended is handed to it
one entry at a time, as a replay will repeat it; then what it added is written; effects begin when what they rest on is
durable. When nothing can go on but the ledger, it suspends.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections import deque
from dataclasses import dataclass
from typing import Any, Awaitable, Callable, Coroutine

from . import jsons
from .errors import Problem, StepError, as_step_error, terminal
from .ledger import Entry, Known, Ledger
from .link import GIVE_BACK, Ended, Link, Unknown, refused, set_aside
from .loop import ReplayLoop


@dataclass
class Returned:
    """The code returned, and this is still to be written beside its outcome."""

    value: Any
    error: BaseException | None
    entries: list[Entry]


@dataclass
class Suspended:
    """It waits for its ledger, having seen so many entries end."""

    seen: int
    entries: list[Entry]


class Drive:
    """The code of an attempt at a function, and its ledger."""

    def __init__(self, ledger: Ledger, link: Link) -> None:
        self.ledger = ledger
        self.link = link
        self.base = ""
        """What idempotency keys begin with."""
        self.traceparent: str | None = None
        self.news = asyncio.Event()
        self.loop = ReplayLoop(self.news.set, lambda: ledger.now / 1_000)  # type: ignore[abstract]
        self.main: asyncio.Task[Any] | None = None
        self.calls: dict[Known, asyncio.Task[Any]] = {}
        self.finished: deque[Known] = deque()
        self.recording: asyncio.Task[None] | None = None

    async def work(self, code: Coroutine[Any, Any, Any]) -> Returned | Suspended:
        """Runs code until it returns or suspends.

        Raises:
            Ended: the attempt is over otherwise.
        """
        with self.loop.quietly():
            self.main = self.loop.create_task(code)
        self._run()
        lost = asyncio.ensure_future(self.link.lost.wait())
        lost.add_done_callback(lambda _: self.news.set())
        try:
            while True:
                came = self._go_on()
                if came is not None:
                    return came
                self.news.clear()
                await self.news.wait()
        finally:
            lost.cancel()

    async def leave(self) -> None:
        """Drops the code, and what it still does outside."""
        self.ledger.left = True
        self.loop.leave()
        tasks: list[asyncio.Task[Any]] = [task for task in self.calls.values() if not task.done()]
        if self.recording is not None:
            tasks.append(self.recording)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def then(self) -> None:
        """Other code follows in the place of what has come to its end."""
        ledger = self.ledger
        for known in list(ledger.calling):
            self.give_up(known)
        ledger.winding_down = False
        for places in (ledger.wanting, ledger.waiting, ledger.calling):
            places.clear()
        ledger.active.clear()
        ledger.closing = True
        self.loop.leave()
        ledger.closing = False
        self.loop.tasks.clear()

    # One turn.

    def _go_on(self) -> Returned | Suspended | None:
        """Everything that can be done without waiting; None when something must be waited for."""
        ledger = self.ledger
        while True:
            if self.link.lost.is_set():
                raise Ended(None)
            self._check_recording()
            if ledger.fatal is not None:
                raise Ended(set_aside(ledger.fatal.info()))
            if self.loop.foreign is not None:
                raise Ended(self._foreign(self.loop.foreign))
            if self.main is not None and self.main.done():
                # What is on its way must be there before what comes with the outcome.
                return self._returned(self.main) if self.recording is None else None
            if self._finish_one() or self._deliver():
                continue
            if ledger.winding_down:
                return Suspended(0, ledger.take_entries()) if self.recording is None else None
            if self._write_wanted():
                continue
            if self.recording is None and ledger.rests():
                if ledger.waits_for_nothing():
                    raise Ended(self._foreign("something that is not in its ledger"))
                return Suspended(ledger.ended, ledger.take_entries())
            if self.recording is None and ledger.unwritten:
                self._submit()
            if self.recording is None and self._let_go():
                continue
            return None

    def _returned(self, main: asyncio.Task[Any]) -> Returned:
        error: BaseException | None = asyncio.CancelledError() if main.cancelled() else main.exception()
        if isinstance(error, RuntimeError) and "attached to a different loop" in str(error):
            raise Ended(self._foreign("a future of another loop"))
        value = None if error is not None else main.result()
        return Returned(value, error, self.ledger.take_entries())

    def _foreign(self, what: str) -> dict[str, Any]:
        point = self.ledger.last_point
        after = f'after "{point[0]}" ({point[1]})' if point else "before its first durable point"
        message = (
            f"the function waits for something that the engine cannot see, {after}: {what}. Use ctx.sleep, ctx.signal, or do "
            "it inside an effect"
        )
        return set_aside(terminal("foreign_wait", message).info())

    def _run(self) -> None:
        try:
            self.loop.run_ready()
        except RecursionError as error:
            if self.main is not None and not self.main.done():
                raise Ended(set_aside(terminal("endless", str(error)).info())) from None

    def wake(self, known: Known) -> None:
        """Lets the code that waits for an entry go on, until nothing more happens by itself."""
        self._set(known)
        self._run()

    def _set(self, known: Known) -> None:
        future, known.future = known.future, None
        if future is not None and not future.done():
            with self.loop.quietly():
                future.set_result(None)

    def _deliver(self) -> bool:
        known = self.ledger.deliver()
        if known is None:
            return False
        self.wake(known)
        if known.kind == "manual":
            self.wake_reviews()
            self._run()
        return True

    def wake_reviews(self) -> None:
        """Reviews that wait for their turn to ask go on, when a wait for a person is over."""
        for known in list(self.ledger.waiting):
            if known.kind == "manual" and known.op is None:
                self._set(known)

    # Effects.

    def _write_wanted(self) -> bool:
        """Writes intents that must be written before their effects begin; lets those begin that rest on nothing."""
        self.ledger.wait_again()
        free = [known for known in self.ledger.wanting if known.policy == "pure"]
        for known in list(self.ledger.wanting):
            if not known.replay_safe:
                self.ledger.write_effect(known)
        return self._begin(free)

    def _let_go(self) -> bool:
        """Everything is durable: effects that wanted to begin do."""
        if self.ledger.unwritten or self.ledger.winding_down:
            return False
        return self._begin(list(self.ledger.wanting))

    def _begin(self, wanting: list[Known]) -> bool:
        for known in wanting:
            del self.ledger.wanting[known]
            known.go = True
            self.ledger.calling[known] = None
            assert known.call is not None, "an effect that wants to begin has code"
            task = asyncio.ensure_future(call_outside(known.call, Call(f"{self.base}/{known.key}", self.traceparent)))
            self.calls[known] = task
            task.add_done_callback(lambda _, known=known: self._finished(known))  # type: ignore[misc]
        return bool(wanting)

    def _finished(self, known: Known) -> None:
        self.finished.append(known)
        self.news.set()

    def _finish_one(self) -> bool:
        """Lets the code take notice of one call that has come to its end."""
        while self.finished:
            known = self.finished.popleft()
            task = self.calls.pop(known, None)
            # One that the code has given up is not recorded as ended.
            if task is None or task.cancelled() or known.released:
                continue
            how, value = task.result()
            if how == "error" and known.retry is not None and value["retryable"]:
                value = self.ledger.rest(known, value, known.retry)
                if value is None:
                    self.ledger.calling.pop(known, None)
                    return True
            self.ledger.write_end(known, how, value, self.link.now())
            self.wake(known)
            return True
        return False

    def give_up(self, known: Known) -> None:
        """The code does not wait for an effect any more."""
        task = self.calls.pop(known, None)
        if task is not None:
            task.cancel()

    # Records.

    def _submit(self) -> None:
        entries = self.ledger.take_entries()
        self.recording = asyncio.ensure_future(self.link.record(entries))
        self.recording.add_done_callback(lambda _: self.news.set())

    def _check_recording(self) -> None:
        if self.recording is None or not self.recording.done():
            return
        recording, self.recording = self.recording, None
        try:
            recording.result()
        except Unknown:
            raise Ended(GIVE_BACK) from None
        except Problem as problem:
            raise Ended(refused(problem)) from None


async def call_outside(call: Callable[[Call], Awaitable[Any]], given: Call) -> tuple[str, Any]:
    """Calls the code of an effect: its value or its error, as they are recorded."""
    try:
        return "value", jsons.plain("the effect's result", await call(given))
    except (Exception, SystemExit) as error:
        return "error", jsons.written(as_step_error(error))


class Call:
    """What the code of an effect is given."""

    def __init__(self, key: str, traceparent: str | None = None) -> None:
        self.key = key
        """A key for the other side: the same over all attempts at this effect, and differs from every other's."""
        self.traceparent = traceparent
        """The attempt's place in the trace of its run (W3C's `traceparent`): for spans below it, and to be sent along."""


def caller(call: Callable[..., Any]) -> Callable[[Call], Awaitable[Any]]:
    """The code of an effect as it is called: with a `Call` if it takes something; in a thread if it is not async."""
    takes = _takes_call(call)
    is_async = inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(getattr(call, "__call__", None))

    async def called(by: Call) -> Any:
        given = (by,) if takes else ()
        result = call(*given) if is_async else await asyncio.to_thread(call, *given)
        return await result if inspect.isawaitable(result) else result

    return called


def _takes_call(call: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):
        return False
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(found.kind in places and found.default is inspect.Parameter.empty for found in parameters)


def recorded(known: Known) -> Any:
    """What an effect gave, as it is recorded.

    Raises:
        StepError: its error.
    """
    if known.end is not None and known.end.how == "error":
        raise StepError.of(known.end.value, known.op)
    if known.end is None or known.end.how != "value":
        return None
    # The code may change what it is given; what is recorded stays.
    return copy.deepcopy(known.end.value)
