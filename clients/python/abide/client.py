"""The client: starts runs, asks them, looks at them, and answers what they ask of people."""

from __future__ import annotations

import asyncio
import os
import random
import ssl as tls
import time
from datetime import datetime, timezone
from typing import Any, AsyncIterator, List, Mapping, Sequence
from urllib.parse import quote, urlencode

from . import jsons
from .errors import ConnectionFailed, Problem, RunFailed, Unencodable, Untrusted
from .http import Http
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
    ) -> Any:
        """Sends a request, and sends it again while the server cannot be reached or is busy.

        A path that begins with a slash and `v1` is the server's; any other is inside of the namespace. What changes
        something carries a key of its own, so that it is done once however often it is sent.

        Raises:
            Problem: the server said no.
            ConnectionFailed: there was no answer for too long; `Untrusted`, at once, where no retry cures it.
            Unencodable: it has no JSON form, and was not sent.
        """
        data = None if body is None else jsons.encode("the request", body)
        given = {name: value for name, value in (query or {}).items() if value is not None}
        path = (path if path.startswith("/v1") else self._within + path) + _query(given)
        headers = {} if method == "GET" else {"Idempotency-Key": idempotency_key or uuid7()}
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
                if answer.status not in RETRIED:
                    raise failed
                pause = max(pause, _seconds(answer.headers.get("retry-after")))
            except Untrusted:
                raise
            except ConnectionFailed as error:
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
        before, left = None, limit
        while left is None or left > 0:
            most = None if left is None else min(left, 1_000)
            page = await self.request("GET", path, query={**filters, "before": before, "limit": most})
            for found in page[what]:
                yield found
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
        until = None if timeout is None else time.monotonic() + duration_ms(timeout) / 1_000
        while True:
            left = WAIT_MS if until is None else int(max(0, until - time.monotonic()) * 1_000)
            wait = min(WAIT_MS, left)
            path = f"/runs/{part(run)}/result"
            ending = await self.request("GET", path, query={"wait_ms": wait}, timeout=self._timeout + wait / 1_000)
            if ending["ended"]:
                if ending["status"] == "done":
                    return ending.get("result")
                raise RunFailed(run, ending["status"], ending.get("error"))
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(f"{run} has not ended: it is {ending['status']}")

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

    async def effects(self, run: str) -> List[dict[str, Any]]:
        """The outside work of a run."""
        found = await self.request("GET", f"/runs/{part(run)}/effects")
        return [dict(effect) for effect in found["effects"]]

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

    # People.

    async def approvals(self, *, limit: int | None = None, **filters: str) -> AsyncIterator[dict[str, Any]]:
        """Decisions that people are asked for. Filters: `assignee`, `role`."""
        async for found in self._pages("/approvals", "boundaries", limit, filters):
            yield found

    async def tasks(self, *, limit: int | None = None, **filters: str) -> AsyncIterator[dict[str, Any]]:
        """Work for people. Filters: `assignee`, `role`."""
        async for found in self._pages("/tasks", "boundaries", limit, filters):
            yield found

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

    async def _say(self, kind: str, boundary: str, verb: str, said: Mapping[str, Any]) -> None:
        await self.request("POST", f"/{kind}/{part(boundary)}/{verb}", dict(said))


def problem_of(status: int, body: bytes, headers: Mapping[str, str]) -> Problem:
    """The problem in an answer, also where a proxy answered and not the server."""
    if status < 400:
        detail = f"expected an answer, found a redirect to {headers.get('location', 'nowhere')[:200]!r}"
        what = "give the url of the server itself: no redirect is followed with a token or a body"
        return Problem.of({"status": status, "code": "redirected", "detail": detail, "what_to_do": what}, status)
    if "json" in headers.get("content-type", ""):
        try:
            found = jsons.loads(body)
            if isinstance(found, dict):
                return Problem.of(found, status)
        except ValueError:
            pass
    return Problem.of({"status": status, "code": "internal", "detail": body[:200].decode(errors="replace")}, status)


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
