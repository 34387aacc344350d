"""Machines: workflows of named steps. A step runs from its beginning to its end, and may wait for whatever it likes."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import asynccontextmanager
from typing import Any, AsyncIterator, Awaitable, Callable, Sequence

from . import jsons
from .context import place
from .control import Control, Controls, Operation
from .drive import Call, call_outside, caller, recorded
from .errors import ClaimLost, Problem, StepError, Unencodable, as_step_error, terminal
from .function import check_rows, complete, failed, identity
from .hashing import hex16, input_hash, stable_hash
from .ledger import POLICIES, REPLAY_SAFE, Known, Ledger, quoted
from .link import GIVE_BACK, Ended, Link, Say, Unknown, refused, set_aside
from .outcome import Outcome
from .retry import RetryPolicy

Step = Callable[["StepContext"], Awaitable[Outcome]]
OnError = Callable[[StepError, "StepContext"], Awaitable[Outcome]]


class StepContext:
    """What a step sees of its run and of this attempt."""

    def __init__(self, attempt: dict[str, Any], link: Link, controls: Controls) -> None:
        self._attempt = attempt
        self._link = link
        self._controls = controls
        self._ledger = Ledger(attempt, function=False)
        self._writing = asyncio.Lock()
        self._stuck = asyncio.Event()
        self._ended: Ended | None = None
        self.run_id: str = attempt["run"]
        self.workflow: str = attempt["workflow"]
        self.version: int = attempt["version"]
        self.step: str = attempt["step"]
        self.key: str | None = attempt.get("key")
        self.labels: dict[str, str] = attempt.get("labels", {})
        self.input: Any = attempt["input"]
        self.state: Any = attempt["state"]
        self.signals: list[dict[str, Any]] = attempt["signals"]
        """Signals that wait, in the order they arrived: `id`, `name`, `payload`, `at`."""
        self.children: list[dict[str, Any]] = attempt["children"]
        """Children: `run`, `workflow`, and once they have ended `status`, `result` or `error`."""
        self.last_progress: dict[str, Any] = attempt.get("progress", {})
        """What attempts before this one said of their progress at this step: the latest value of each name."""
        self.woken_by: str | None = attempt.get("woken_by")
        self.retries: int = attempt["retries"]
        self.reclaims: int = attempt["reclaims"]
        self.cancelling: bool = attempt["cancelling"]
        self.idempotency_key: str = identity(attempt)
        """A key for outside work: the same over all attempts of this step, and differs from visit to visit."""
        self.traceparent: str | None = attempt.get("traceparent") or None
        """The attempt's place in the trace of its run (W3C's `traceparent`), for spans below it."""

    @property
    def attempt(self) -> int:
        """How many attempts of this step came before: retries and lost workers together, from 0."""
        return self.retries + self.reclaims

    @property
    def timed_out(self) -> bool:
        """Whether the wait before this attempt ended by its deadline."""
        return self.woken_by == "deadline"

    @property
    def lost(self) -> asyncio.Event:
        """Set when the claim has ended: what the step returns will not be recorded."""
        return self._link.lost

    def signal(self, name: str, default: Any = None) -> Any:
        """What the first signal of this name carries. It waits until the step progresses."""
        return next((found["payload"] for found in self.signals if found["name"] == name), default)

    async def progress(self, name: str, value: Any) -> None:
        """Says how far the step has come.

        The latest value of each name is shown with the run, and told to the next attempt at this step. It is best effort: what
        cannot be said is not, and the step goes on.
        """
        try:
            await self._link.progress(name, jsons.plain("the progress", value))
        except Unknown:
            pass

    async def start_child(self, key: str, start: dict[str, Any]) -> str:
        """Starts a child, made with `abide.child`, does not wait for its end, and gives its id. The same key gives the same
        child, over all attempts at this step.

        Raises:
            Problem: it was refused.
        """
        begun = jsons.plain("how the child begins", start)
        try:
            return await self._link.start_child(key, begun)
        except Unknown:
            # Whoever has the attempt next is given the child, if it was started.
            raise Ended(GIVE_BACK) from None
        except ClaimLost:
            raise Ended(None) from None

    def effect(
        self,
        name: str,
        call: Callable[..., Any],
        *,
        policy: str = "idempotent",
        retry: RetryPolicy | None = None,
        input: Any = None,
    ) -> Awaitable[Any]:
        """A piece of outside work, recorded: executed once, and its result is there for every later attempt at this step."""
        return self._effect(name, call, policy, retry, input, place())

    async def _effect(
        self, name: str, call: Callable[..., Any], policy: str, retry: RetryPolicy | None, input: Any, at: str
    ) -> Any:
        if policy not in POLICIES:
            raise terminal("invalid", f"policy: expected one of {', '.join(POLICIES)}, found {quoted(policy)}")
        if self._controls.check(Operation(name, policy)) is not None:
            raise terminal("unsupported", "reviews of effects are for functions; ask in a step by ctx.signal")
        if retry is not None and policy not in REPLAY_SAFE:
            raise terminal(
                "retry_not_allowed",
                f"effect {quoted(name)} ({policy}) is never begun again by itself; it cannot have a retry policy",
            )
        shown = jsons.plain("the effect's input", input)
        hashed = 0 if input is None else input_hash(shown)
        known = self._ledger.point(name, "effect", {"effect": {"policy": policy}}, hashed, at)
        if self._ledger.fatal is not None:
            raise Ended(set_aside(self._ledger.fatal.info()))
        known.retry = retry
        try:
            return await self._execute(known, caller(call))
        finally:
            self._ledger.release(known)

    async def _execute(self, known: Known, call: Callable[[Call], Awaitable[Any]]) -> Any:
        while not known.delivered:
            if known.in_doubt() or known.resting:
                self._stuck.set()
                await asyncio.Event().wait()
            if not known.replay_safe:
                self._ledger.write_effect(known)
            if known.policy != "pure":
                await self._durable()
            known.go = True
            self._ledger.calling[known] = None
            how, value = await call_outside(call, Call(f"{self.idempotency_key}/{known.key}", self.traceparent))
            self._ledger.calling.pop(known, None)
            if how == "error" and known.retry is not None and value["retryable"]:
                value = self._ledger.rest(known, value, known.retry)
                if value is None:
                    continue
            self._ledger.write_end(known, how, value, self._link.now())
        return recorded(known)

    async def _durable(self) -> None:
        """Writes what is not written, and returns when it is durable."""
        async with self._writing:
            if not self._ledger.unwritten:
                return
            # What is not recorded has its numbers: the step cannot go on without it, nor can what else it does end it.
            try:
                await self._link.record(self._ledger.take_entries())
            except Unknown:
                self._ended = Ended(GIVE_BACK)
            except Problem as problem:
                self._ended = Ended(refused(problem))
            except Unencodable as error:
                self._ended = Ended(failed(error, []))
            if self._ended is not None:
                raise self._ended

    @asynccontextmanager
    async def _settled(self) -> AsyncIterator[None]:
        """Waits until nothing is being written: what is on its way must be there before what comes with an outcome.

        Raises:
            Ended: it was not recorded.
        """
        async with self._writing:
            if self._ended is not None:
                raise self._ended
            yield


class Machine:
    """A workflow of named steps. The first step given is where a run begins."""

    def __init__(
        self,
        name: str,
        version: int = 1,
        *,
        retry: RetryPolicy | None = None,
        controls: Sequence[Control] = (),
        operations: Sequence[tuple[str, str]] = (),
        compact_after: int | None = None,
    ) -> None:
        """With `compact_after` the journal of a run begins anew once it has so many rows."""
        self.name = name
        self.version = version
        self.retry = retry
        self.compact_after = check_rows(compact_after)
        self.controls = Controls(tuple(controls), tuple(Operation(*operation) for operation in operations))
        self.controls.plan()
        self.steps: dict[str, Step] = {}
        self._on_error: OnError | None = None

    def step(self, name: str) -> Callable[[Step], Step]:
        """Adds a step: an async function of a `StepContext` that returns an outcome."""

        def added(code: Step) -> Step:
            if name in self.steps:
                raise ValueError(f"step {name!r} is defined twice; give each step a name of its own")
            if not inspect.iscoroutinefunction(code):
                raise TypeError(f"step {name!r}: expected an async function, found {code!r}")
            self.steps[name] = code
            return code

        return added

    def on_error(self, handler: OnError) -> OnError:
        """Answers the errors of all steps with an outcome of its own."""
        self._on_error = handler
        return handler

    def offer(self) -> dict[str, Any]:
        """What a worker offers to execute."""
        if not self.steps:
            raise ValueError(f"workflow {self.name!r} has no steps; add one with @{self.name}.step(name)")
        text = "\0".join([self.name, str(self.version), *self.steps])
        print_ = hex16(stable_hash(text.encode()))
        return {
            "workflow": self.name,
            "version": self.version,
            "fingerprint": print_,
            "first_step": next(iter(self.steps)),
        }

    async def execute(self, attempt: dict[str, Any], link: Link) -> Say | None:
        """Executes an attempt: what is said of it, or None when it is lost."""
        ctx = StepContext(attempt, link, self.controls)
        step = self.steps.get(attempt["step"])
        if step is None:
            steps = ", ".join(self.steps)
            said = f"workflow {quoted(self.name)} version {self.version} has no step {quoted(ctx.step)}; its steps are {steps}"
            return failed(terminal("unknown_step", said), [])
        working = asyncio.ensure_future(self._work(step, ctx))
        events = [asyncio.ensure_future(link.lost.wait()), asyncio.ensure_future(ctx._stuck.wait())]
        try:
            return await self._until(working, events, ctx, link)
        finally:
            for task in [working, *events]:
                task.cancel()
            await asyncio.gather(working, *events, return_exceptions=True)

    async def _until(
        self, working: asyncio.Future[Say | None], events: Sequence[asyncio.Future[Any]], ctx: StepContext, link: Link
    ) -> Say | None:
        ledger = ctx._ledger
        waits: set[asyncio.Future[Any]] = {working, *events}
        while not working.done():
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if link.lost.is_set():
                return None
            if ctx._stuck.is_set() and not ledger.calling and not ctx._writing.locked():
                # It waits for a person, or for its time: it lets go of its claim until then.
                return complete({"suspend": {"seen": ledger.ended}}, ledger.take_entries())
            waits = {waited for waited in waits if not waited.done()}
            if ctx._stuck.is_set() and not working.done():
                await asyncio.wait({working}, timeout=0.02)
        return working.result()

    async def _work(self, step: Step, ctx: StepContext) -> Say | None:
        try:
            try:
                outcome = await step(ctx)
            except Ended:
                raise
            except (Exception, SystemExit) as error:
                return await self._erred(as_step_error(error), ctx)
            return await self._came(outcome, ctx)
        except Ended as ended:
            return ended.say

    async def _erred(self, error: StepError, ctx: StepContext) -> Say:
        if self._on_error is not None:
            try:
                outcome = await self._on_error(error, ctx)
            except Ended:
                raise
            except (Exception, SystemExit) as again:
                error = as_step_error(again)
            else:
                return await self._came(outcome, ctx, handled=error)
        async with ctx._settled():
            reopen = [error.op] if error.op is not None else ctx._ledger.curable()
            return failed(error, ctx._ledger.take_entries(), self.retry, reopen)

    async def _came(self, outcome: Any, ctx: StepContext, handled: StepError | None = None) -> Say:
        async with ctx._settled():
            if not isinstance(outcome, Outcome):
                said = f"step {quoted(ctx.step)}: expected an outcome like abide.done(...), found {type(outcome).__name__}"
                return failed(terminal("no_outcome", said), ctx._ledger.take_entries())
            try:
                message = jsons.plain("the outcome", outcome.message)
            except StepError as error:
                return failed(error, ctx._ledger.take_entries())
            entries = ctx._ledger.take_entries()
            return complete(
                message, entries, consume=outcome.consumes, handled=handled, compact_after=self.compact_after
            )
