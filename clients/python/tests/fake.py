"""A server of our own on a real socket: it answers as it is told, and breaks as it is told."""

from __future__ import annotations

import asyncio
import json
import ssl
from dataclasses import dataclass, field
from typing import Any, Awaitable, Callable


@dataclass
class Asked:
    """A request that came."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Said:
    """What is answered."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    how: str = "length"
    """`length`, `chunked`, `until_close`, `hang_up` (no answer), `cut` (half of it), `raw` (a text, as it is, then its end)."""


Handler = Callable[[Asked], Awaitable[Said]]


class Fake:
    """A server. `handler` says what to answer."""

    def __init__(self, handler: Handler, tls: ssl.SSLContext | None = None) -> None:
        self.handler = handler
        self._tls = tls
        self.asked: list[Asked] = []
        self.connections = 0
        self.port = 0
        self._server: asyncio.AbstractServer | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}" if self._tls else f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Fake:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Closes the port and every connection, as a server does that is killed."""
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)

    def hang_up(self) -> None:
        """Closes connections that are idle."""
        for writer in list(self._writers):
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        line = await reader.readline()
        if not line:
            return False
        method, path, _ = line.decode().split(" ", 2)
        headers: dict[str, str] = {}
        while (line := await reader.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode().partition(":")
            headers[name.strip().lower()] = value.strip()
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        asked = Asked(method, path, headers, json.loads(body) if body else None)
        self.asked.append(asked)
        said = await self.handler(asked)
        return await self._say(writer, said)

    async def _say(self, writer: asyncio.StreamWriter, said: Said) -> bool:
        if said.how == "hang_up":
            return False
        data = said.body.encode() if said.how == "raw" else json.dumps(said.body).encode()
        kind = "application/problem+json" if said.status >= 400 else "application/json"
        lines = [f"HTTP/1.1 {said.status} Whatever"]
        lines += [] if "Content-Type" in said.headers else [f"Content-Type: {kind}"]
        lines += [f"{name}: {value}" for name, value in said.headers.items()]
        if said.how == "chunked":
            lines.append("Transfer-Encoding: chunked")
            parts = [data[start : start + 7] for start in range(0, len(data), 7)]
            data = b"".join(b"%x;ext=1\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\nTrailer: x\r\n\r\n"
        elif said.how in ("length", "cut"):
            lines.append(f"Content-Length: {len(data)}")
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        writer.write(data[: len(data) // 2] if said.how == "cut" else data)
        await writer.drain()
        return said.how in ("length", "chunked")


def problem(status: int, code: str, **more: Any) -> Said:
    """A problem as a server says it."""
    body = {"type": "about:blank", "title": code, "status": status, "code": code, "detail": f"{code} happened"}
    return Said({**body, "what_to_do": "do something else", **more}, status)
