"""The events of a stream, as a server tells them (`text/event-stream`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, AsyncGenerator

from . import jsons
from .errors import ConnectionFailed, Problem
from .http import Http, problem_of

SILENT_MAX = 90.0
"""How long a stream may be silent: servers say more often than this that they are alive."""

EVENT_BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True)
class Event:
    """Something that a stream told."""

    name: str
    """What it is."""
    data: Any
    """What it says."""
    id: str | None = None
    """Where to go on after it."""


class Parser:
    """Makes events of pieces, wherever they are cut."""

    def __init__(self) -> None:
        self._line = b""
        self._fields: dict[str, str] = {}
        self._data: list[str] = []
        self._size = 0

    def read(self, piece: bytes) -> list[Event]:
        """The events that end in a piece."""
        found: list[Event] = []
        *lines, rest = (self._line + piece).split(b"\n")
        for line in lines:
            event = self._take(line.decode(errors="replace").rstrip("\r"))
            if event is not None:
                found.append(event)
        self._line = rest
        if self._size + len(rest) > EVENT_BYTES_MAX:
            raise ConnectionFailed(f"expected an event of at most {EVENT_BYTES_MAX} bytes, found one of more")
        return found

    def _take(self, line: str) -> Event | None:
        if not line:
            fields, data, self._fields, self._data, self._size = self._fields, self._data, {}, [], 0
            if "event" not in fields:
                # It only says that the stream is alive.
                return None
            try:
                return Event(fields["event"], jsons.loads("\n".join(data).encode()), fields.get("id"))
            except ValueError as error:
                raise ConnectionFailed(f"expected an event with JSON, found {data!r:.80}") from error
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        self._size += len(line)
        if field == "data":
            self._data.append(value)
        else:
            # What has no name is a remark, and other names are of a later release.
            self._fields[field] = value
        return None


async def told(http: Http, path: str, last: str | None) -> AsyncGenerator[Event, None]:
    """What one connection tells, behind the last event that came.

    Raises:
        Problem: the server said no.
        ConnectionFailed: there is no stream, or it broke.
    """
    headers = {"Accept": "text/event-stream", **({} if last is None else {"Last-Event-ID": last})}
    stream = await http.stream(path, headers=headers, silence=SILENT_MAX)
    try:
        if stream.status >= 300:
            problem: Problem = problem_of(stream.status, await stream.rest(), stream.headers)
            raise problem
        if not stream.headers.get("content-type", "").startswith("text/event-stream"):
            raise ConnectionFailed(f"expected text/event-stream, found {stream.headers.get('content-type')!r}")
        parser = Parser()
        while piece := await stream.read():
            for event in parser.read(piece):
                yield event
    finally:
        stream.close()
