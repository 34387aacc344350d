"""An engine in memory, with time that passes only when it is told to: workflows run as they would on a server."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from ..errors import AbideError, RunFailed, StepError, UpdateRejected
from ..link import Say
from ..retry import RetryPolicy
from ..times import Duration, duration_ms, write_instant
from ..worker import Executable
from .ledger import Run, Wait, refusal

START_MS = 1_767_225_600_000
"""2026-01-01, where time begins."""


class Crash(BaseException):
    """The worker dies here."""


class Stuck(AbideError, AssertionError):
    """A run waits for something that no clock brings."""


class TestLink:
    """The way from an attempt to the engine in memory."""

    def __init__(self, engine: TestEngine, run: Run) -> None:
        self.lost = asyncio.Event()
        self._engine = engine
        self._run = run
        self._claim = run.claims

    def now(self) -> int:
        return self._engine.now

    async def record(self, entries: list[dict[str, Any]]) -> None:
        await asyncio.sleep(0)
        if self._run.claims != self._claim or self._run.over:
            raise refusal("stale_claim", "another attempt has the run")
        with self._engine.report():
            self._run.write(json.loads(json.dumps(entries)))

    async def progress(self, name: str, value: Any) -> None:
        await asyncio.sleep(0)
        if self._run.claims != self._claim or self._run.over:
            raise refusal("stale_claim", "another attempt has the run")
        if self._run.progress[0] != self._run.visit:
            self._run.progress = (self._run.visit, {})
        self._run.progress[1][name] = value

    async def start_child(self, key: str, start: dict[str, Any]) -> str:
        await asyncio.sleep(0)
        if self._run.claims != self._claim or self._run.over:
            raise refusal("stale_claim", "another attempt has the run")
        with self._engine.report():
            return self._engine.start_child(self._run, key, json.loads(json.dumps(start)))


class _Point:
    """A report: the worker may die before it is durable, or after."""

    def __init__(self, engine: TestEngine) -> None:
        self._engine = engine

    def __enter__(self) -> None:
        self._engine.reports += 1
        if self._engine.crash == (self._engine.reports, "before"):
            raise Crash

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None and self._engine.crash == (self._engine.reports, "after"):
            raise Crash


class TestEngine:
    """Runs workflows in memory."""

    __test__ = False

    def __init__(self, *workflows: Executable) -> None:
        self.now = START_MS
        self.reports = 0
        """How many reports workers have made."""
        self.crash: tuple[int, str] | None = None
        """At which report a worker dies, and whether that is before it is durable or after."""
        self.runs: dict[str, Run] = {}
        self._code = {(offer["workflow"], offer["version"]): code for code in workflows for offer in [code.offer()]}
        self._first = {(offer["workflow"], offer["version"]): offer for code in workflows for offer in [code.offer()]}

    def report(self) -> _Point:
        return _Point(self)

    # From outside.

    def start(self, workflow: str, input: Any = None, **options: Any) -> TestRun:
        """Starts a run of the newest version."""
        return TestRun(self, self._start({"workflow": workflow, "input": input, **options}, None))

    def _start(self, start: dict[str, Any], parent: Run | None) -> str:
        versions = [version for name, version in self._code if name == start["workflow"]]
        if not versions:
            raise refusal("invalid", f"no workflow named {start['workflow']!r} is registered")
        version = start.get("version") or max(versions)
        name = f"run_{len(self.runs) + 1:032x}"
        input = json.loads(json.dumps(start.get("input")))
        run = Run(
            id=name,
            workflow=start["workflow"],
            version=version,
            input=input,
            state=input,
            step=self._first[start["workflow"], version]["first_step"],
            now=lambda: self.now,
            start_child=self._child,
            parent=None if parent is None else parent.id,
            key=start.get("key"),
            labels=start.get("labels", {}),
            begun_at=self.now,
            visible_at=self.now + int(start.get("delay_ms", 0)),
        )
        self.runs[name] = run
        return name

    def _child(self, parent: Run, start: dict[str, Any]) -> str:
        name = self._start(start, parent)
        parent.children.append({"run": name, "workflow": start["workflow"]})
        return name

    def start_child(self, parent: Run, key: str, start: dict[str, Any]) -> str:
        """Starts the child that a step names by a key, or gives the one that is there."""
        known = parent.started.get((parent.step, key))
        if known is None:
            known = parent.started[parent.step, key] = self._child(parent, start)
            parent.children[-1]["key"] = key
        elif (self.runs[known].workflow, self.runs[known].input) != (start["workflow"], start.get("input")):
            raise refusal("child_conflict", f"{key!r} names a child with other work")
        return known

    async def settle(self) -> None:
        """Executes everything that can go on now."""
        while True:
            ready = [run for run in self.runs.values() if run.status == "runnable" and run.visible_at <= self.now]
            if not ready:
                return
            for run in ready:
                if run.status == "runnable":
                    await self._attempt(run)

    async def advance(self, duration: Duration) -> None:
        """Lets time pass, and executes what becomes due on the way."""
        until = self.now + duration_ms(duration)
        await self.settle()
        while (due := self._due()) is not None and due <= until:
            self.now = max(self.now, due)
            self._expire()
            await self.settle()
        self.now = until

    def _due(self) -> int | None:
        """When something happens by itself."""
        times: list[int] = []
        for run in self.runs.values():
            if run.over:
                continue
            if run.status == "runnable":
                times.append(run.visible_at)
            if run.wait is not None and run.wait.until is not None:
                times.append(run.wait.until)
            times += [due for due in map(run.due, run.open_ops()) if due is not None]
        return min(times, default=None)

    def _expire(self) -> None:
        for run in [run for run in self.runs.values() if not run.over]:
            ended = [op for op in run.open_ops() if run.expire(op)]
            if ended:
                self.wake(run)
            wait = run.wait
            if wait is not None and wait.until is not None and wait.until <= self.now:
                self._resume(run, "timer" if wait.kind == "sleep" else "deadline")

    # Attempts.

    def claim(self, run: Run) -> dict[str, Any]:
        """Gives an attempt of a run to a worker."""
        run.status, run.claims, run.attempts = "executing", run.claims + 1, run.attempts + 1
        return self._attempt_of(run)

    def _attempt_of(self, run: Run) -> dict[str, Any]:
        """An attempt as a worker gets it."""
        attempt = {
            "claim": f"claim_{run.id.removeprefix('run_')}_{run.claims}",
            "lease_until": write_instant(self.now + 30_000),
            "run": run.id,
            "workflow": run.workflow,
            "version": run.version,
            "queue": run.queue,
            "key": run.key,
            "labels": run.labels,
            "step": run.step,
            "epoch": run.epoch,
            "visit": run.visit,
            "attempt": run.attempts,
            "retries": run.retries,
            "reclaims": run.reclaims,
            "woken_by": run.woken_by,
            "input": run.input,
            "state": run.state,
            "progress": run.progress[1] if run.progress[0] == run.visit else {},
            "signals": run.inbox,
            "children": run.children,
            "ledger": run.ops,
            "next_op": len(run.ops) + 1,
            "ended": run.ended,
            "begun_at": write_instant(run.begun_at),
            "cancelling": run.cancelling,
        }
        if run.published is not None:
            attempt["published"] = run.published[0]
        copied: dict[str, Any] = json.loads(json.dumps(attempt))
        return copied

    async def _attempt(self, run: Run) -> None:
        attempt = self.claim(run)
        try:
            say = await self._code[run.workflow, run.version].execute(attempt, TestLink(self, run))
            if say is None or "give_back" in say:
                run.status = "runnable"
                return
            with self.report():
                self.apply(run, json.loads(json.dumps(say)))
        except Crash:
            if run.status == "executing":
                run.status, run.reclaims = "runnable", run.reclaims + 1

    def apply(self, run: Run, say: Say) -> None:
        """What a worker says at the end of an attempt."""
        verb, said = next(iter(say.items()))
        if verb == "fail" and said.get("set_aside"):
            run.status, run.error = "dead_lettered", said["error"]
            return
        run.write(said.get("entries", []))
        if verb == "fail":
            self._fail(run, said)
            return
        kind, outcome = next(iter(said["outcome"].items()))
        if kind != "suspend":
            run.woken_by = None
        getattr(self, f"_on_{kind}")(run, outcome)

    def _fail(self, run: Run, said: dict[str, Any]) -> None:
        retry, error = said.get("retry"), said["error"]
        delay = RetryPolicy(**retry).delay(run.retries, 0) if retry is not None and error["retryable"] else None
        if delay is None:
            self._end(run, "failed", error=error)
            return
        for number in said.get("reopen", []):
            end = run.op(number).get("end")
            effect = run.op(number)["what"].get("effect")
            if effect is not None and end is not None and end.get("error", {}).get("retryable"):
                del run.op(number)["end"]
                effect["claim"] = 0
        run.retries += 1
        run.status, run.visible_at = "runnable", self.now + delay

    def _end(self, run: Run, status: str, *, result: Any = None, error: dict[str, Any] | None = None) -> None:
        run.status, run.result, run.error, run.wait = status, result, error, None
        parent = self.runs.get(run.parent or "")
        if parent is None:
            return
        ending = {"status": status, **({"result": result} if status == "done" else {"error": error})}
        for child in parent.children:
            if child["run"] == run.id:
                child.update(ending)
        for op in parent.open_ops():
            if op["what"].get("child", {}).get("run") == run.id:
                info = error or {"code": status, "message": f"{run.id} ended as {status}", "retryable": False}
                parent.end(op, **({"value": result} if status == "done" else {"error": info}))
                self.wake(parent)
        if parent.wait is not None and parent.wait.kind == "children" and _joined(parent):
            self._resume(parent, "children")

    # Outcomes.

    def _enter(self, run: Run, step: str | None, state: Any) -> None:
        run.step, run.state = step or run.step, state
        run.visit += 1
        run.retries = run.reclaims = run.attempts = 0
        run.status, run.visible_at = "runnable", self.now

    def _on_next(self, run: Run, said: dict[str, Any]) -> None:
        self._enter(run, said["step"], said["state"])

    def _on_replay(self, run: Run, said: dict[str, Any]) -> None:
        run.state, run.status, run.visible_at = said["state"], "runnable", self.now + said["delay_ms"]
        run.retries += 1

    def _on_await(self, run: Run, said: dict[str, Any]) -> None:
        run.state = said["state"]
        until = None if "deadline" not in said else run._moment(said["deadline"])
        run.status, run.wait = "awaiting_signal", Wait("await", until, said.get("then"), said["signals"])
        if any(found["name"] in said["signals"] for found in run.inbox):
            self._resume(run, "signal")

    def _on_sleep(self, run: Run, said: dict[str, Any]) -> None:
        run.state = said["state"]
        run.status, run.wait = "sleeping", Wait("sleep", run._moment(said["until"]), said.get("then"))

    def _on_spawn(self, run: Run, said: dict[str, Any]) -> None:
        run.state = said["state"]
        until = None if "deadline" not in said else run._moment(said["deadline"])
        children = [self._child(run, start) for start in said["children"]]
        run.wait = Wait("children", until, said["then"], children=children, join=said["join"])
        run.status = "awaiting_children"
        if _joined(run):
            self._resume(run, "children")

    def _on_suspend(self, run: Run, said: dict[str, Any]) -> None:
        run.retries = run.reclaims = 0
        if run.ended > said["seen"]:
            run.status = "runnable"
            return
        run.status, run.wait = ("in_doubt" if run.in_doubt() else "suspended"), Wait("ledger")

    def _on_done(self, run: Run, said: dict[str, Any]) -> None:
        self._end(run, "done", result=said["result"])

    def _on_cancelled(self, run: Run, _: dict[str, Any]) -> None:
        self._end(run, "cancelled")

    def _on_stop(self, run: Run, said: dict[str, Any]) -> None:
        self._end(run, "failed", error=said["error"])

    def _on_continue_as_new(self, run: Run, said: dict[str, Any]) -> None:
        first = self._first[run.workflow, run.version]["first_step"]
        self._enter(run, first, said["input"])
        run.begun_at = self.now

    def wake(self, run: Run) -> None:
        """A run that waits for its ledger goes on."""
        if run.wait is not None and run.wait.kind == "ledger":
            run.wait, run.status, run.woken_by, run.visible_at = None, "runnable", "ledger", self.now

    def _resume(self, run: Run, why: str) -> None:
        wait, run.wait = run.wait, None
        assert wait is not None, "only a run that waits is resumed"
        self._enter(run, wait.then, run.state)
        run.woken_by = why

    def signalled(self, run: Run) -> None:
        """A signal came."""
        if run.wait is not None and run.wait.kind == "await" and run.inbox[-1]["name"] in run.wait.names:
            self._resume(run, "signal")


def _joined(run: Run) -> bool:
    wait = run.wait
    assert wait is not None, "the run waits"
    ends = [child.get("status") for child in run.children if child["run"] in wait.children]
    pending, succeeded, bad = ends.count(None), ends.count("done"), len(ends) - ends.count(None) - ends.count("done")
    if wait.join == "all_terminal":
        return pending == 0
    if wait.join == "all_succeeded":
        return pending == 0 or bad > 0
    needed = 1 if wait.join == "any" else int(wait.join["quorum"])
    return succeeded >= needed or succeeded + pending < needed


class TestRun:
    """A run of the engine in memory, from outside."""

    __test__ = False

    def __init__(self, engine: TestEngine, run: str) -> None:
        self.engine = engine
        self.id = run
        self.run = engine.runs[run]

    @property
    def status(self) -> str:
        return self.run.status

    @property
    def state(self) -> Any:
        """The state that the run shows."""
        return self.run.published[0] if self.run.published is not None else self.run.state

    @property
    def progress(self) -> dict[str, Any]:
        """What the step says of its progress: the latest value of each name."""
        return dict(self.run.progress[1])

    @property
    def keys(self) -> list[str]:
        """The keys of its ledger, in the order they were made."""
        return [op["key"] for op in self.run.ops]

    async def result(self) -> Any:
        """Executes, and lets time pass, until the run has ended.

        Raises:
            RunFailed: it did not end well.
            Stuck: it waits for something that no clock brings.
        """
        await self.engine.settle()
        while not self.run.over:
            due = self.engine._due()
            if due is None:
                waits = ", ".join(op["key"] for op in self.run.open_ops()) or self.run.status
                raise Stuck(f"{self.id} ({self.run.workflow}) is {self.run.status}: it waits for {waits}")
            await self.engine.advance(max(0, due - self.engine.now) / 1_000)
        if self.run.status != "done":
            raise RunFailed(self.id, self.run.status, self.run.error)
        return self.run.result

    async def signal(self, name: str, payload: Any = None) -> None:
        """Sends a signal, and executes what follows."""
        run = self.run
        run.signals += 1
        at = write_instant(self.engine.now)
        run.inbox.append({"id": run.signals, "name": name, "payload": json.loads(json.dumps(payload)), "at": at})
        for op in run.open_ops():
            before = run.ended
            run.serve(op)
            if run.ended > before:
                self.engine.wake(run)
        if run.inbox:
            self.engine.signalled(run)
        await self.engine.settle()

    async def update(self, name: str, input: Any = None) -> Any:
        """Asks the run to do something, executes what follows, and gives its answer.

        Raises:
            UpdateRejected: the run said no.
        """
        run = self.run
        update = {"name": name, "input": input, "op": None, "answered": False, "answer": None, "rejected": None}
        run.updates.append(update)
        for op in run.open_ops():
            before = run.ended
            run.serve(op)
            if run.ended > before:
                self.engine.wake(run)
        await self.engine.settle()
        if not update["answered"]:
            raise Stuck(f"{self.id} has not answered update {name!r}: it is {run.status}")
        if update["rejected"] is not None:
            body = {"code": "update_rejected", "status": 409, "detail": "no", "error": update["rejected"]}
            raise UpdateRejected(body)
        return update["answer"]

    def asked(self) -> dict[str, Any] | None:
        """What the run asks of a person now: `name`, `kind`, `payload`, `roles`, `assignee`."""
        for op in self.run.open_ops():
            if "manual" in op["what"]:
                return {"name": op["key"], "kind": op["what"]["manual"]["kind"], **op["asked"]}
        return None

    async def decide(
        self, choice: str, payload: Any = None, *, actor: str = "tester", note: str | None = None
    ) -> None:
        """Decides what the run asks: `approve`, `reject`, `complete` or `resume`."""
        for op in self.run.open_ops():
            if "manual" in op["what"]:
                said = {"op": op["op"], "choice": choice, "actor": actor, "payload": payload}
                self.run.end(op, value={**said, **({} if note is None else {"note": note})})
                self.engine.wake(self.run)
                await self.engine.settle()
                return
        raise Stuck(f"{self.id} asks nothing of a person: it is {self.run.status}")

    async def approve(self, payload: Any = None, **who: Any) -> None:
        """Says yes to what the run asks."""
        await self.decide("approve", payload, **who)

    async def reject(self, payload: Any = None, **who: Any) -> None:
        """Says no to what the run asks."""
        await self.decide("reject", payload, **who)

    async def complete(self, payload: Any = None, **who: Any) -> None:
        """Hands in the result of the task that the run asks for."""
        await self.decide("complete", payload, **who)

    async def resolve(self, effect: str, how: str, value: Any = None) -> None:
        """Says what became of an effect in doubt: `value`, `failed` or `retry`."""
        op = next(op for op in self.run.in_doubt() if op["key"] == effect)
        if how == "retry":
            op["what"]["effect"]["claim"] = 0
        elif how == "value":
            self.run.end(op, value=value)
        else:
            self.run.end(op, error=StepError(str(value), code="resolved_as_failed", retryable=False).info())
        self.engine.wake(self.run)
        await self.engine.settle()

    async def cancel(self) -> None:
        """Ends the run from outside: it undoes what it did first."""
        if self.run.over:
            return
        self.run.cancelling = True
        self.run.wait, self.run.status, self.run.visible_at = None, "runnable", self.engine.now
        await self.engine.settle()
