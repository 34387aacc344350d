"""The worker: claims attempts at steps, executes them, and reports what came of them."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import secrets
import signal
import socket
import ssl as tls
from typing import Any, Protocol, Sequence

from . import jsons
from .client import RETRIED, backoff, part
from .errors import AbideError, ConnectionFailed, Problem, Unencodable, Untrusted, as_step_error
from .function import failed
from .http import Http, problem_of
from .ledger import Entry
from .link import GIVE_BACK, SET_ASIDE, Say, Unknown, set_aside
from .reporter import Reporter
from .times import now_ms

logger = logging.getLogger("abide.worker")

POLL_MS = 20_000
"""How long the server may hold a request for attempts."""


CLAIMS_MAX = 1_000
"""Attempts that may be asked for at once."""


class Executable(Protocol):
    """A workflow that a worker can execute: a function or a machine."""

    def offer(self) -> dict[str, Any]: ...

    async def execute(self, attempt: dict[str, Any], link: Any) -> Say | None: ...


class Held:
    """An attempt that this worker holds: the way from its code to the server."""

    def __init__(self, attempt: dict[str, Any], reporter: Reporter) -> None:
        self.attempt = attempt
        self.claim = attempt["claim"]
        self.lost = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.beat_at = 0.0
        self.over = False
        self._reporter = reporter

    def now(self) -> int:
        return now_ms()

    async def record(self, entries: list[Entry]) -> None:
        await self._reporter.asked(self.claim, {"record": {"entries": entries}})

    async def progress(self, name: str, value: Any) -> None:
        await self._reporter.asked(self.claim, {"progress": {"name": name, "value": value}})

    async def start_child(self, key: str, start: dict[str, Any]) -> str:
        answer = await self._reporter.asked(self.claim, {"start_child": {"key": key, "start": start}})
        return str(answer["child"])

    def lose(self, why: str) -> None:
        """The claim has ended without it."""
        if not self.lost.is_set():
            logger.warning("attempt of %s is lost: %s", self.attempt["run"], why)
            self.lost.set()


class Worker:
    """Executes workflows for a server."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        workflows: Sequence[Executable],
        queues: Sequence[str] = ("default",),
        namespace: str = "default",
        name: str | None = None,
        concurrency: int = 16,
        lease_ms: int = 30_000,
        poll_ms: int = POLL_MS,
        ssl: tls.SSLContext | None = None,
    ) -> None:
        if not workflows:
            raise AbideError("workflows: expected at least one, found none")
        if concurrency < 1:
            raise AbideError(f"concurrency: expected at least 1, found {concurrency}")
        self.name = name or f"{socket.gethostname()}-{os.getpid()}"
        self._offers = [workflow.offer() for workflow in workflows]
        self._code = {(offer["workflow"], offer["version"]): code for offer, code in zip(self._offers, workflows)}
        if len(self._code) != len(self._offers):
            raise AbideError("workflows: expected each name and version once, found one twice")
        self._queues = list(queues)
        self._lease_ms = lease_ms
        self._poll_ms = poll_ms
        # Secret until it is sent with a report: the server knows only its hash from the claim.
        self._secret = secrets.token_hex(32)
        self._hash = hashlib.sha256(self._secret.encode()).digest()[:16].hex()
        self._http = Http(url, token, ssl=ssl)
        self._within = f"/v1/namespaces/{part(namespace)}/worker"
        self._reporter = Reporter(self._http, f"{self._within}/reports", self._secret, self._more, self._got)
        self._free = concurrency
        self._held: set[Held] = set()
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()
        self._hurry = asyncio.Event()

    # Its life.

    async def run(self, *, signals: bool = True, drain_seconds: float | None = None) -> None:
        """Works until it is stopped, by `stop` or by SIGTERM or SIGINT; then finishes what runs.

        After `drain_seconds` what still runs is left to other workers.

        Raises:
            Problem: the server says that it cannot work here.
            Untrusted: the server's certificate is not trusted.
        """
        loop = asyncio.get_running_loop()
        hooked = [] if not signals else [one for one in (signal.SIGTERM, signal.SIGINT) if self._hook(loop, one)]
        beating = asyncio.ensure_future(self._beat())
        try:
            await self._claim()
        finally:
            self._stopping.set()
            await self._drain(drain_seconds)
            beating.cancel()
            for one in hooked:
                loop.remove_signal_handler(one)
            await asyncio.gather(beating, return_exceptions=True)
            await self._http.close()

    def stop(self) -> None:
        """Claims nothing more, and ends when what runs has come to its end. Told twice, it leaves that to other workers."""
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()
        self._changed.set()

    def _hook(self, loop: asyncio.AbstractEventLoop, one: signal.Signals) -> bool:
        try:
            loop.add_signal_handler(one, self.stop)
        except (NotImplementedError, RuntimeError, ValueError):
            return False
        return True

    async def _drain(self, seconds: float | None) -> None:
        tasks = [held.task for held in self._held if held.task is not None]
        if tasks:
            logger.info("worker %s finishes %d attempts", self.name, len(tasks))
            hurry = asyncio.ensure_future(self._hurry.wait())
            finished = asyncio.ensure_future(asyncio.wait(tasks))
            await asyncio.wait({hurry, finished}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            hurry.cancel()
            finished.cancel()
        for held in list(self._held):
            held.lose("the worker stops")
        left = [held.task for held in self._held if held.task is not None]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        try:
            await asyncio.wait_for(self._reporter.drain(), 1 if self._hurry.is_set() else 10)
        except asyncio.TimeoutError:
            self._reporter.stop()

    # Claims. A free place is a credit: it is asked for once, either alone or beside a report that frees it.

    def _work(self, most: int, wait_ms: int) -> dict[str, Any]:
        return {
            "worker": self.name,
            "token_hash": self._hash,
            "queues": self._queues,
            "workflows": self._offers,
            "most": most,
            "lease_ms": self._lease_ms,
            "wait_ms": wait_ms,
        }

    def _more(self, freed: int) -> dict[str, Any] | None:
        """What to ask for beside reports that free places."""
        return None if self._stopping.is_set() else self._work(freed, 0)

    def _got(self, attempts: list[dict[str, Any]], asked: int) -> None:
        """Attempts came for places that were asked for."""
        self._free += asked
        for attempt in attempts:
            self._begin(attempt)
        self._changed.set()

    async def _claim(self) -> None:
        tries = 0
        while not self._stopping.is_set():
            if self._free < 1:
                self._changed.clear()
                await self._changed.wait()
                continue
            asked = min(self._free, CLAIMS_MAX)
            self._free -= asked
            attempts: list[dict[str, Any]] = []
            try:
                attempts = await self._poll(asked)
                tries = 0
            except Untrusted:
                self._free += asked
                raise
            except ConnectionFailed as error:
                logger.warning("the server is not reached, and is tried again: %s", error)
                tries += 1
            except Problem as problem:
                if problem.status not in RETRIED and problem.status < 500:
                    self._free += asked
                    raise
                logger.warning("the server gives no attempts, and is asked again: %s", problem)
                tries += 1
            self._got(attempts, asked)
            if tries:
                await self._pause(backoff(tries))

    async def _poll(self, most: int) -> list[dict[str, Any]]:
        work = jsons.encode("what is asked for", self._work(most, self._poll_ms))
        asking = asyncio.ensure_future(
            self._http.request("POST", f"{self._within}/claims", work, timeout=30 + self._poll_ms / 1_000)
        )
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait({asking, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not asking.done():
            # What is on its way may still come; then it goes back.
            await asyncio.wait({asking}, timeout=0.2)
        if not asking.done():
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            return []
        answer = asking.result()
        if answer.status >= 300:
            raise problem_of(answer.status, answer.body, answer.headers)
        return list(answer.json()["claims"])

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except asyncio.TimeoutError:
            pass

    # Attempts.

    def _begin(self, attempt: dict[str, Any]) -> None:
        held = Held(attempt, self._reporter)
        if self._stopping.is_set():
            self._reporter.say(held.claim, GIVE_BACK)
            return
        self._free -= 1
        self._held.add(held)
        held.beat_at = asyncio.get_running_loop().time() + self._lease_ms / 3_000
        held.task = asyncio.ensure_future(self._attend(held))

    async def _attend(self, held: Held) -> None:
        freed = False
        try:
            say = await self._execute(held)
            held.over = True
            if say is not None and not held.lost.is_set():
                # The place is free with the answer to this report, and the next attempt may come with it.
                freed = True
                await self._finish(held, say)
        finally:
            held.over = True
            self._held.discard(held)
            if not freed:
                self._free += 1
            self._changed.set()

    async def _finish(self, held: Held, say: Say) -> None:
        try:
            await self._reporter.asked(held.claim, say, frees=True)
        except Unknown as unknown:
            logger.warning("what came of an attempt of %s may be recorded: %s", held.attempt["run"], unknown)
            await self._instead(held, GIVE_BACK)
        except Problem as problem:
            logger.warning("what came of an attempt of %s was refused: %s", held.attempt["run"], problem)
            if problem.code in SET_ASIDE and "set_aside" not in say.get("fail", {}):
                info = {"code": problem.code, "message": str(problem), "retryable": False}
                await self._instead(held, set_aside(info))
        except Unencodable as error:
            logger.error("what came of an attempt of %s cannot be sent: %s", held.attempt["run"], error)
            await self._instead(held, failed(error, []))

    async def _instead(self, held: Held, say: Say) -> None:
        """Says something else of an attempt, where what came of it cannot be said."""
        try:
            await self._reporter.asked(held.claim, say)
        except (Problem, Unknown) as error:
            logger.warning("nor could this be said of it: %s: %s", next(iter(say)), error)

    async def _execute(self, held: Held) -> Say | None:
        attempt = held.attempt
        code = self._code.get((attempt["workflow"], attempt["version"]))
        if code is None:
            return GIVE_BACK
        try:
            return await code.execute(attempt, held)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # Nothing that goes wrong may be lost.
            logger.exception("an attempt of %s failed outside of its code", attempt["run"])
            return failed(as_step_error(error), [])

    # Heartbeats.

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        every = self._lease_ms / 3_000
        while True:
            held = [held for held in self._held if not held.over]
            # One that begins meanwhile is due after this wait at the earliest.
            await asyncio.sleep(max(0.001, min([one.beat_at - loop.time() for one in held], default=every)))
            for one in held:
                if not one.over and loop.time() >= one.beat_at:
                    one.beat_at = loop.time() + every
                    report = self._reporter.say(one.claim, {"heartbeat": {}})
                    report.answer.add_done_callback(lambda answer, one=one: _beaten(one, answer))  # type: ignore[misc]


def _beaten(held: Held, answer: asyncio.Future[dict[str, Any]]) -> None:
    if answer.cancelled():
        return
    error = answer.exception()
    if error is None:
        held.attempt["lease_until"] = answer.result().get("lease_until", held.attempt["lease_until"])
    elif isinstance(error, Problem) and not held.over and error.status not in RETRIED and error.status < 500:
        held.lose(str(error))
