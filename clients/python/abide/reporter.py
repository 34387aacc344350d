"""The reporter: sends what a worker says of its attempts, together where it can, and again until it is answered."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any, Callable

from . import jsons
from .client import RETRIED, backoff
from .errors import ClaimLost, ConnectionFailed, Problem, Unencodable, Untrusted
from .http import Http, problem_of
from .link import Say, Unknown

logger = logging.getLogger("abide.worker")

BATCH_MAX = 256
AT_ONCE = 4
"""Requests that are under way at once; what is said meanwhile goes together in the next."""


@dataclass(eq=False)
class Report:
    """Something said of an attempt, and who waits for the answer."""

    claim: Any
    data: bytes
    """As it is sent."""
    answer: asyncio.Future[dict[str, Any]]
    frees: bool = False
    """Whether the attempt is over with it, and its place is free, whatever becomes of the report."""
    sent: int = field(default=0)
    """How often it was sent."""


class Reporter:
    """Sends reports. `more` gives what to ask for beside them, by how many places they free; `got` takes what comes for
    those places, once, however often it was asked for."""

    def __init__(
        self,
        http: Http,
        path: str,
        token: str,
        more: Callable[[int], dict[str, Any] | None],
        got: Callable[[list[dict[str, Any]], int], None],
    ) -> None:
        self._http = http
        self._path = path
        self._token = token
        self._more = more
        self._got = got
        self._queue: list[Report] = []
        self._under_way: set[Any] = set()
        """Claims of which something is under way: what else is said of them waits, so that it arrives in order."""
        self._senders = 0
        self._sending: set[asyncio.Task[None]] = set()
        self._timeout = 30.0

    def say(self, claim: Any, say: Say, *, frees: bool = False) -> Report:
        """Sends a report as soon as it can. One that has no JSON form is not sent, and takes no other with it."""
        report = Report(claim, b"", asyncio.get_running_loop().create_future(), frees)
        try:
            report.data = jsons.encode("the report", {"claim": claim, "say": say})
        except Unencodable as error:
            self._drop(report, error)
            return report
        except Exception as error:  # It may have code of its own, which may do anything.
            self._drop(report, Unencodable(f"the report has no JSON form: {type(error).__name__}"))
            return report
        self._queue.append(report)
        if self._senders < AT_ONCE:
            self._spawn()
        return report

    async def asked(self, claim: Any, say: Say, *, frees: bool = False) -> dict[str, Any]:
        """Sends a report and waits for its answer.

        Raises:
            Problem: it was refused.
            Unknown: whether it was recorded is not known: it was sent twice, or something went wrong on the way.
            Unencodable: it has no JSON form, and was not sent.
        """
        report = self.say(claim, say, frees=frees)
        try:
            return await report.answer
        except Problem as problem:
            # The refusal of the second may only mean that the first was recorded.
            if report.sent > 1 and not isinstance(problem, ClaimLost):
                raise Unknown(str(problem)) from problem
            raise

    async def drain(self) -> None:
        """Waits until everything that was said is answered."""
        while self._sending:
            await asyncio.wait(self._sending)

    def stop(self) -> None:
        """Stops sending."""
        for task in self._sending:
            task.cancel()

    def _spawn(self) -> None:
        # Counted here and not by the tasks: one that has ended is among them for a moment more, and would send nothing.
        self._senders += 1
        task = asyncio.ensure_future(self._send())
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send(self) -> None:
        # What becomes ready in the same turn of the loop goes together.
        await asyncio.sleep(0)
        while batch := self._take():
            claims = {report.claim for report in batch}
            await self._settle(batch)
            self._under_way -= claims
        self._senders -= 1

    def _take(self) -> list[Report]:
        """What may go now: of each claim all that was said, or nothing while something of it is under way."""
        batch: list[Report] = []
        waiting: list[Report] = []
        held = set(self._under_way)
        for report in self._queue:
            if report.claim in held or len(batch) >= BATCH_MAX:
                held.add(report.claim)
                waiting.append(report)
            else:
                batch.append(report)
        self._queue = waiting
        self._under_way |= {report.claim for report in batch}
        return batch

    async def _settle(self, batch: list[Report]) -> None:
        """Sends a batch until it is answered."""
        tries = 0
        while batch:
            try:
                batch, problem = await self._post(batch)
            except Exception as error:
                if not isinstance(error, ConnectionFailed) or isinstance(error, Untrusted):
                    # Nobody may wait for good for a report that nobody sends.
                    logger.error("reports could not be sent, or their answer not be read", exc_info=error)
                    for report in batch:
                        self._drop(report, Unknown(f"{type(error).__name__}: {error}"))
                    return
                logger.warning("reports were not answered, and are sent again: %s", error)
            else:
                if problem is not None and problem.status not in RETRIED and problem.status < 500:
                    await self._refused(batch, problem)
                    return
                if batch:
                    logger.warning("reports are sent again: %s", problem or "the server could not say what became of them")
            tries += 1
            if batch:
                await asyncio.sleep(backoff(tries))

    async def _post(self, batch: list[Report]) -> tuple[list[Report], Problem | None]:
        """Sends a batch once: what must be sent again, and why if the request as a whole was refused."""
        freed = sum(report.frees for report in batch)
        more = self._more(freed) if freed else None
        asked = b"" if more is None else b',"next":' + jsons.encode("what is asked for", more)
        reports = b",".join(report.data for report in batch)
        data = b'{"token":%s,"reports":[%s]%s}' % (jsons.encode("the token", self._token), reports, asked)
        for report in batch:
            report.sent += 1
        answer = await self._http.request("POST", self._path, data, timeout=self._timeout)
        if answer.status >= 300:
            return batch, problem_of(answer.status, answer.body, answer.headers)
        reported = answer.json()
        if not isinstance(reported, dict) or len(reported.get("answers") or ()) != len(batch):
            raise ConnectionFailed(f"expected answers to {len(batch)} reports, found {answer.body[:80]!r}")
        again = [report for report, said in zip(batch, reported["answers"]) if not _answered(report, said)]
        for report in batch:
            report.frees = False
        if freed:
            self._got(reported.get("claims", []), freed)
        return again, None

    async def _refused(self, batch: list[Report], problem: Problem) -> None:
        """The request as a whole was refused: one that cannot be read must not take the others with it."""
        if len(batch) > 1:
            for report in batch:
                await self._settle([report])
            return
        self._drop(batch[0], problem)

    def _drop(self, report: Report, error: Exception) -> None:
        """It is not sent any more: its place is free, and whoever waits for its answer hears why there is none."""
        if report.frees:
            report.frees = False
            self._got([], 1)
        if not report.answer.done():
            report.answer.set_exception(error)
            # Nobody may be waiting any more.
            report.answer.exception()


def _answered(report: Report, said: dict[str, Any]) -> bool:
    """Hands an answer to whoever waits for it; false when the server does not know it, and must be asked again."""
    problem = said.get("problem")
    if problem is not None and problem.get("status") == 503:
        return False
    if report.answer.done():
        return True
    if problem is not None:
        report.answer.set_exception(Problem.of(problem))
        # Nobody may be waiting any more.
        report.answer.exception()
    else:
        report.answer.set_result(said)
    return True
