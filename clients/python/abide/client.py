"""The client: starts runs, asks them, looks at them, follows them, answers what they ask of people, and operates a server."""

from __future__ import annotations

import asyncio
import os
import random
import ssl as tls
import time
from contextlib import aclosing
from datetime import datetime, timezone
from typing import Any, AsyncGenerator, AsyncIterator, List, Mapping, Sequence
from urllib.parse import quote, urlencode

from . import jsons
from .errors import ConnectionFailed, Problem, RunFailed, Unencodable, Untrusted
from .events import Event, told
from .http import Http, problem_of
from .outcome import child
from .times import Duration, duration_ms, now_ms

RETRIED = frozenset({408, 429, 502, 503, 504})
"""Answers after which the same request is sent again: the server's own, and those of proxies that did not reach it."""

WAIT_MS = 20_000
"""How long one request waits for something to happen."""


def uuid7() -> str:
    """A UUID of version 7: what a request is known by when it is sent again."""
    value = (now_ms() << 80) | int.from_bytes(os.urandom(10), "big")
    value = (value & ~(0xF << 76)) | 7 << 76
    value = (value & ~(0b11 << 62)) | 0b10 << 62
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def backoff(tries: int, least: float = 0.05, most: float = 5.0) -> float:
    """How long to wait before a request is sent again: doubling, with chance, so that many do not come at once."""
    return min(most, least * float(1 << min(tries, 16))) * (0.5 + random.random() / 2)


class Client:
    """Asks a server. One that is used in `async with` closes its connections at the end."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        namespace: str = "default",
        *,
        timeout: float = 30,
        retry_for: float = 60,
        ssl: tls.SSLContext | None = None,
    ) -> None:
        self._http = Http(url, token, ssl=ssl)
        self._within = f"/v1/namespaces/{part(namespace)}"
        self._timeout = timeout
        self._retry_for = retry_for
        self.namespace = namespace

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes its connections."""
        await self._http.close()

    # Requests.

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        timeout: float | None = None,
        once: bool = False,
    ) -> Any:
        """Sends a request, and sends it again while the server cannot be reached or is busy.

        A path that begins with a slash and `v1` is the server's; any other is inside of the namespace. What changes
        something carries a key of its own, so that it is done once however often it is sent; what the server does not
        recognise the second time (`once`) is sent once, and whoever asked hears that nobody knows what came of it.

        Raises:
            Problem: the server said no.
            ConnectionFailed: there was no answer for too long; `Untrusted`, at once, where no retry cures it.
            Unencodable: it has no JSON form, and was not sent.
        """
        data = None if body is None else jsons.encode("the request", body)
        given = {name: value for name, value in (query or {}).items() if value is not None}
        path = (path if path.startswith("/v1") else self._within + path) + _query(given)
        headers = {} if method == "GET" or once else {"Idempotency-Key": idempotency_key or uuid7()}
        until, tries = time.monotonic() + self._retry_for, 0
        while True:
            failed: Exception
            pause = backoff(tries)
            try:
                answer = await self._http.request(
                    method, path, data, headers=headers, timeout=timeout or self._timeout
                )
                if answer.status < 300:
                    return answer.json()
                failed = problem_of(answer.status, answer.body, answer.headers)
                if once or answer.status not in RETRIED:
                    raise failed
                pause = max(pause, _seconds(answer.headers.get("retry-after")))
            except Untrusted:
                raise
            except ConnectionFailed as error:
                if once:
                    raise
                failed = error
            tries += 1
            if time.monotonic() + pause > until:
                raise failed
            await asyncio.sleep(pause)

    # Runs.

    async def start(
        self, workflow: str, input: Any = None, *, idempotency_key: str | None = None, **options: Any
    ) -> str:
        """Starts a run, and gives its id. Options are those of `abide.child`: `key`, `on_conflict`, `queue`, …"""
        started = await self.request("POST", "/runs", child(workflow, input, **options), idempotency_key=idempotency_key)
        return str(started["run"])

    async def start_many(self, starts: Sequence[dict[str, Any]]) -> List[dict[str, Any]]:
        """Starts many runs, made with `abide.child`: one answer each, with `started` or `problem`."""
        answered = await self.request("POST", "/runs/batch", {"runs": list(starts)})
        return list(answered["answers"])

    async def get(self, run: str) -> dict[str, Any]:
        """A run as it stands."""
        return dict(await self.request("GET", f"/runs/{part(run)}"))

    async def state(self, run: str, rev: int | None = None) -> Any:
        """The state that a run shows, now or at a revision."""
        found = await self.request("GET", f"/runs/{part(run)}/state", query={"rev": rev})
        return found["state"]

    async def list(
        self,
        *,
        limit: int | None = None,
        labels: Mapping[str, str] | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        updated_after: datetime | None = None,
        updated_before: datetime | None = None,
        **filters: str,
    ) -> AsyncIterator[dict[str, Any]]:
        """Runs, newest first, page after page. Filters: `workflow`, `status`, `queue`, `key`, `parent`.

        With all of these labels, and started or last changed at one instant or after it, and before another.
        """
        period = {
            "created_after": created_after,
            "created_before": created_before,
            "updated_after": updated_after,
            "updated_before": updated_before,
        }
        asked: dict[str, Any] = {**filters, "label": [f"{name}={value}" for name, value in (labels or {}).items()]}
        asked.update((name, _instant(name, at)) for name, at in period.items() if at is not None)
        async for found in self._pages("/runs", "runs", limit, asked):
            yield found

    async def _pages(
        self, path: str, what: str, limit: int | None, filters: Mapping[str, Any]
    ) -> AsyncIterator[dict[str, Any]]:
        async for page in self._whole_pages(path, what, limit, filters):
            for found in page[what]:
                yield found

    async def _whole_pages(
        self, path: str, what: str, limit: int | None, filters: Mapping[str, Any]
    ) -> AsyncIterator[dict[str, Any]]:
        before, left = None, limit
        while left is None or left > 0:
            most = None if left is None else min(left, 1_000)
            page = await self.request("GET", path, query={**filters, "before": before, "limit": most})
            yield page
            before = page.get("next")
            if before is None:
                return
            left = None if left is None else left - len(page[what])

    async def result(self, run: str, *, timeout: Duration | None = None) -> Any:
        """Waits for the end of a run, and gives its result.

        Raises:
            RunFailed: it did not end well.
            TimeoutError: it has not ended in time.
        """
        ending = await self.end(run, timeout=timeout)
        if not ending["ended"]:
            raise TimeoutError(f"{run} has not ended: it is {ending['status']}")
        if ending["status"] != "done":
            raise RunFailed(run, ending["status"], ending.get("error"))
        return ending.get("result")

    async def end(self, run: str, *, timeout: Duration | None = None) -> dict[str, Any]:
        """Waits for the end of a run, however it is: `status`, `result` and `error`, and whether it has `ended` in time."""
        until = None if timeout is None else time.monotonic() + duration_ms(timeout) / 1_000
        while True:
            left = WAIT_MS if until is None else int(max(0, until - time.monotonic()) * 1_000)
            wait = min(WAIT_MS, left)
            path = f"/runs/{part(run)}/result"
            ending = await self.request("GET", path, query={"wait_ms": wait}, timeout=self._timeout + wait / 1_000)
            if ending["ended"] or (until is not None and time.monotonic() >= until):
                return dict(ending)

    async def signal(self, run: str, name: str, payload: Any = None, *, dedup: str | None = None) -> bool:
        """Sends a signal to a run; whether the run had it before."""
        said = {"name": name, "payload": payload, **({} if dedup is None else {"dedup": dedup})}
        answer = await self.request("POST", f"/runs/{part(run)}/signals", said)
        return bool(answer["duplicate"])

    async def update(self, run: str, name: str, input: Any = None, *, dedup: str | None = None) -> Any:
        """Asks a run to do something, and waits for its answer.

        Raises:
            UpdateRejected: the run said no.
        """
        said = {"name": name, "input": input, "dedup": dedup or uuid7(), "wait_ms": WAIT_MS}
        path, key = f"/runs/{part(run)}/updates", uuid7()
        while True:
            timeout = self._timeout + WAIT_MS / 1_000
            answer = await self.request("POST", path, said, idempotency_key=key, timeout=timeout)
            if answer["answered"]:
                return answer.get("answer")

    async def cancel(self, run: str, reason: str = "", *, cascade: bool = False) -> None:
        """Ends a run from outside."""
        await self.request("POST", f"/runs/{part(run)}/cancel", {"reason": reason, "cascade": cascade})

    async def explain(self, run: str) -> dict[str, Any]:
        """Why a run does not move: `reason`, `sentence`, `evidence`, `next_actions`."""
        return dict(await self.request("GET", f"/runs/{part(run)}/explain"))

    async def progress(self, run: str, *, after: int | None = None) -> dict[str, Any]:
        """How far the steps of a run have come, as far as they say: `latest` by name, and the `events` after a number."""
        return dict(await self.request("GET", f"/runs/{part(run)}/progress", query={"after": after}))

    async def effects(self, run: str) -> List[dict[str, Any]]:
        """The outside work of a run."""
        found = await self.request("GET", f"/runs/{part(run)}/effects")
        return [dict(effect) for effect in found["effects"]]

    async def effects_in_doubt(self, *, limit: int | None = None) -> AsyncIterator[dict[str, Any]]:
        """Effects of all runs of which nobody knows whether they happened: `run` and `effect`."""
        async for found in self._pages("/effects", "effects", limit, {}):
            yield found

    async def resolve(
        self, run: str, effect: str, how: str | dict[str, Any], *, interrupt: int | None = None, note: str | None = None
    ) -> None:
        """Says what became of an effect in doubt: `{"value": …}`, `{"failed": "why"}`, `"retry"` or `"compensated"`."""
        said: dict[str, Any] = {"effect": effect, "how": how}
        if interrupt is not None:
            said["interrupt"] = interrupt
        if note is not None:
            said["note"] = note
        await self.request("POST", f"/runs/{part(run)}/effects/resolve", said)

    async def journal(self, run: str, *, start: int = 1) -> AsyncIterator[dict[str, Any]]:
        """What became true of a run, row by row."""
        at: int | None = start
        while at is not None:
            page = await self.request("GET", f"/runs/{part(run)}/journal", query={"from": at})
            for row in page["rows"]:
                yield row
            at = page.get("next")

    async def purge(self, run: str) -> None:
        """Removes the record of a run that has ended, for good. It is sent once: see `request`."""
        await self.request("POST", f"/runs/{part(run)}/purge", once=True)

    # Following.

    async def follow(self, run: str, *, after: int | None = None) -> AsyncGenerator[Event, None]:
        """Follows a run to its end, behind a revision or from its beginning, over as many connections as it takes.

        Events are `row` (a row of its journal, each once and in order; the id is its revision), `progress`, `reset` (rows
        before the next one are not kept any more) and at last `end`, with what `end` gives.

        Raises:
            Problem: the server said no.
            ConnectionFailed: the server was not reached for too long.
        """
        said = 0
        async with aclosing(self._tail(f"/runs/{part(run)}/events", None if after is None else str(after))) as tail:
            async for event in tail:
                if event.name == "progress":
                    # A connection that comes back is told again what is kept of it.
                    if event.data["seq"] <= said:
                        continue
                    said = event.data["seq"]
                yield event
                if event.name == "end":
                    return

    async def events(self, *, after: str | None = None) -> AsyncGenerator[Event, None]:
        """Follows the namespace, from now on or behind an event, over as many connections as it takes.

        Events are `following` (whatever happens from here on is told), `happened` (to which run, and which kinds of facts),
        and `reset`: something may be missing before the next one, so that what is shown is to be read anew.

        Raises:
            Problem: the server said no.
            ConnectionFailed: the server was not reached for too long.
        """
        async with aclosing(self._tail("/events", after)) as tail:
            async for event in tail:
                yield event

    async def _tail(self, path: str, last: str | None) -> AsyncGenerator[Event, None]:
        until, tries = time.monotonic() + self._retry_for, 0
        while True:
            failed: Exception | None = None
            stream = told(self._http, self._within + path, last)
            try:
                async for event in stream:
                    last = event.id or last
                    until, tries = time.monotonic() + self._retry_for, 0
                    yield event
            except Untrusted:
                raise
            except ConnectionFailed as error:
                failed = error
            except Problem as problem:
                if problem.status not in RETRIED:
                    raise
                failed = problem
            finally:
                await stream.aclose()
            # A stream that ended as it should is followed on like one that broke.
            pause = backoff(tries)
            if failed is not None and time.monotonic() + pause > until:
                raise failed
            tries += 1
            await asyncio.sleep(pause)

    # People.

    async def approvals(self, *, limit: int | None = None, **filters: str) -> AsyncIterator[dict[str, Any]]:
        """Decisions that people are asked for. Filters: `assignee`, `role`."""
        async for found in self._pages("/approvals", "boundaries", limit, filters):
            yield found

    async def tasks(self, *, limit: int | None = None, **filters: str) -> AsyncIterator[dict[str, Any]]:
        """Work for people. Filters: `assignee`, `role`."""
        async for found in self._pages("/tasks", "boundaries", limit, filters):
            yield found

    async def approval(self, boundary: str) -> dict[str, Any]:
        """A decision, open or over."""
        return dict(await self.request("GET", f"/approvals/{part(boundary)}"))

    async def task(self, boundary: str) -> dict[str, Any]:
        """A piece of work, open or over."""
        return dict(await self.request("GET", f"/tasks/{part(boundary)}"))

    async def approve(self, boundary: str, **said: Any) -> None:
        """Says yes. What may be said: `actor`, `roles`, `note`, `payload`."""
        await self._say("approvals", boundary, "approve", said)

    async def reject(self, boundary: str, **said: Any) -> None:
        """Says no. What may be said: `actor`, `roles`, `note`, `payload`."""
        await self._say("approvals", boundary, "reject", said)

    async def claim(self, boundary: str, **said: Any) -> None:
        """Takes a task, or hands it on. What may be said: `actor`, `to`, `roles`, `note`, `take_over`."""
        await self._say("tasks", boundary, "claim", said)

    async def release(self, boundary: str, **said: Any) -> None:
        """Gives a task back. What may be said: `actor`, `roles`, `note`."""
        await self._say("tasks", boundary, "release", said)

    async def complete(self, boundary: str, payload: Any = None, **said: Any) -> None:
        """Hands in the result of a task. What may be said: `actor`, `roles`, `note`."""
        await self._say("tasks", boundary, "complete", {**said, "payload": payload})

    async def resume(self, run: str, **said: Any) -> None:
        """Lets a paused run go on."""
        await self.request("POST", f"/runs/{part(run)}/resume", said)

    # Operators.

    async def dead_letters(self, *, limit: int | None = None) -> AsyncIterator[dict[str, Any]]:
        """Runs whose attempt was set aside, newest first, each with its `attempts`: `step`, `reason`, `node`, `at`."""
        async for page in self._whole_pages("/dead-letters", "runs", limit, {}):
            for run in page["runs"]:
                yield {**run, "attempts": [found for found in page["attempts"] if found["run"] == run["run"]]}

    async def requeue(self, run: str) -> None:
        """Puts an attempt that was set aside back in line. It is sent once: see `request`."""
        await self.request("POST", f"/dead-letters/{part(run)}/requeue", once=True)

    async def discard(self, run: str) -> None:
        """Gives up a run whose attempt was set aside. It is sent once: see `request`."""
        await self.request("POST", f"/dead-letters/{part(run)}/discard", once=True)

    async def queues(self) -> List[dict[str, Any]]:
        """How much waits in the queues, and what holds for them: `queue`, `depth`, `running`, `paused`, `limits`, …"""
        return list((await self.request("GET", "/queues"))["queues"])

    async def pause_queue(self, queue: str) -> dict[str, Any]:
        """Lets nothing of a queue begin, and gives what holds for it now."""
        return dict(await self.request("POST", f"/queues/{part(queue)}/pause"))

    async def resume_queue(self, queue: str) -> dict[str, Any]:
        """Lets a queue that was paused go on, and gives what holds for it now."""
        return dict(await self.request("POST", f"/queues/{part(queue)}/resume"))

    async def limit_queue(
        self, queue: str, *, at_most: int | None = None, rate: tuple[int, Duration] | None = None
    ) -> dict[str, Any]:
        """Says what a queue may do at most, in place of what was said before: so many attempts at once, and so many in a
        time. What is left out has no limit. Gives what holds for it now."""
        limits: dict[str, Any] = {} if at_most is None else {"at_most": at_most}
        if rate is not None:
            limits["rate"] = {"count": rate[0], "per_ms": duration_ms(rate[1])}
        return dict(await self.request("PUT", f"/queues/{part(queue)}/limits", limits))

    async def workers(self) -> List[dict[str, Any]]:
        """Workers that were here lately: `worker`, `queues`, `workflows`, `node`, `seen_at`."""
        return list((await self.request("GET", "/workers"))["workers"])

    async def workflows(self) -> List[dict[str, Any]]:
        """What can be executed: by the server itself, or by workers that were here lately."""
        return list((await self.request("GET", "/workflows"))["workflows"])

    async def _say(self, kind: str, boundary: str, verb: str, said: Mapping[str, Any]) -> None:
        await self.request("POST", f"/{kind}/{part(boundary)}/{verb}", dict(said))


def _instant(name: str, at: datetime) -> str:
    if at.tzinfo is None:
        raise ValueError(f"{name}: expected a datetime with a timezone, found {at!r} without one")
    return at.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _query(given: Mapping[str, Any]) -> str:
    try:
        return f"?{urlencode(given, doseq=True)}" if given else ""
    except UnicodeEncodeError as error:
        raise Unencodable(f"a query: expected text, found half of a surrogate pair in it: {given!a}") from error


def part(text: str) -> str:
    """A part of a path.

    Raises:
        Unencodable: no path can have it.
    """
    try:
        return quote(text, safe="")
    except UnicodeEncodeError as error:
        raise Unencodable(f"a part of a path: expected text, found half of a surrogate pair in it: {text!a}") from error


def _seconds(text: str | None) -> float:
    try:
        return min(float(text or 0), 30.0)
    except ValueError:
        return 0.0
