"""A small HTTP/1.1 client over asyncio streams: kept connections, limits of time, bodies by length or in chunks, TLS."""

from __future__ import annotations

import asyncio
import ssl as tls
from dataclasses import dataclass
from typing import Any, Mapping
from urllib.parse import urlsplit

from . import jsons
from .errors import AbideError, ConnectionFailed, Unencodable, Untrusted

HEAD_BYTES_MAX = 64 * 1024
BODY_BYTES_MAX = 256 * 1024 * 1024
IDLE_MAX = 16


@dataclass
class Response:
    """What a server answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body's value."""
        try:
            return jsons.loads(self.body) if self.body else None
        except ValueError as error:
            raise ConnectionFailed(f"expected JSON, found {self.body[:80]!r}") from error


class BadUrl(AbideError, ValueError):
    """An address that is none."""


class _Stale(Exception):
    """A kept connection was closed by the other side, and the request may go over the next."""


@dataclass
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    used: bool = False

    def closed(self) -> bool:
        """Whether it is known to lead nowhere."""
        return self.reader.at_eof() or self.reader.exception() is not None or self.writer.is_closing()

    def close(self) -> None:
        self.writer.close()


class Http:
    """Requests to one server."""

    def __init__(
        self, url: str, token: str | None = None, *, ssl: tls.SSLContext | None = None, connect_timeout: float = 10
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadUrl(f"url: expected http://host:port or https://host:port, found {url!r}")
        secure = parts.scheme == "https"
        self._host: str = parts.hostname
        self._port: int = parts.port or (443 if secure else 80)
        self._prefix = parts.path.rstrip("/")
        self._ssl = (ssl or tls.create_default_context()) if secure else None
        self._authority = parts.netloc.rpartition("@")[2]
        self._token = token
        self._connect_timeout = connect_timeout
        self._idle: list[_Connection] = []
        self._closed = False

    async def request(
        self,
        method: str,
        path: str,
        data: bytes | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float = 30,
    ) -> Response:
        """Sends a request and reads its answer.

        Raises:
            ConnectionFailed: there is no answer; the request may or may not have been carried out.
            Untrusted: the server's certificate is not trusted, and nothing was sent.
            Unencodable: no head can have what is in this one, and nothing was sent.
        """
        head = self._head(method, path, data, headers or {})
        # What a server does once however often it is asked.
        repeatable = method == "GET" or "Idempotency-Key" in (headers or {})
        try:
            return await asyncio.wait_for(self._exchange(method, head + (data or b""), repeatable), timeout)
        except asyncio.TimeoutError:
            raise ConnectionFailed(f"{method} {path}: no answer within {timeout:g} s") from None
        except tls.SSLCertVerificationError as error:
            found = f"certificate verify failed: {error.verify_message}"
            raise Untrusted(f"{method} {path} at {self._authority}: {found}; {_cure(error)}") from error
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, IndexError) as error:
            said = str(error) or type(error).__name__
            raise ConnectionFailed(f"{method} {path} at {self._authority}: {said}") from error

    async def close(self) -> None:
        """Closes what is kept."""
        self._closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        for connection in idle:
            try:
                await connection.writer.wait_closed()
            except OSError:
                pass

    def _head(self, method: str, path: str, data: bytes | None, headers: Mapping[str, str]) -> bytes:
        lines = [f"{method} {self._prefix}{path} HTTP/1.1", f"Host: {self._authority}", "Accept: application/json"]
        if data is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
        elif method not in ("GET", "DELETE"):
            lines.append("Content-Length: 0")
        if self._token is not None:
            lines.append(f"Authorization: Bearer {self._token}")
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if any("\r" in line or "\n" in line for line in lines):
            raise Unencodable("the head of a request: expected text without line breaks, found one in it")
        try:
            return ("\r\n".join(lines) + "\r\n\r\n").encode()
        except UnicodeEncodeError as error:
            raise Unencodable(f"the head of a request: expected text, found half of a surrogate pair in it: {error}") from error

    async def _exchange(self, method: str, request: bytes, repeatable: bool) -> Response:
        while True:
            connection = self._idle.pop() if self._idle else await self._connect()
            try:
                response, keep = await self._talk(connection, method, request, repeatable)
            except _Stale:
                connection.close()
                continue
            except BaseException:
                connection.close()
                raise
            if keep and not self._closed and len(self._idle) < IDLE_MAX:
                connection.used = True
                self._idle.append(connection)
            else:
                connection.close()
            return response

    async def _connect(self) -> _Connection:
        opening = asyncio.open_connection(self._host, self._port, ssl=self._ssl, limit=HEAD_BYTES_MAX)
        return _Connection(*await asyncio.wait_for(opening, self._connect_timeout))

    async def _talk(
        self, connection: _Connection, method: str, request: bytes, repeatable: bool
    ) -> tuple[Response, bool]:
        reader, writer = connection.reader, connection.writer
        if connection.used and connection.closed():
            raise _Stale
        try:
            writer.write(request)
            await writer.drain()
            line = await reader.readline()
            if not line:
                raise ConnectionResetError("the server closed the connection without an answer")
        except (ConnectionResetError, BrokenPipeError):
            # It was likely closed while it was idle. But the server may also have carried the request out before it died, and
            # then a second one may be refused for what the first did: whoever asked must know that it was sent.
            if connection.used and repeatable:
                raise _Stale from None
            raise
        while True:
            version, _, rest = line.decode("latin-1").rstrip("\r\n").partition(" ")
            status = int(rest.split(" ", 1)[0])
            headers = await _headers(reader)
            if not 100 <= status < 200:
                break
            line = await reader.readline()
        body, whole = await _body(reader, method, status, headers)
        keep = whole and version == "HTTP/1.1" and "close" not in headers.get("connection", "").lower()
        return Response(status, headers, body), keep


def _cure(error: tls.SSLCertVerificationError) -> str:
    """What to do about a certificate, by what OpenSSL says is wrong with it."""
    if error.verify_code in (9, 10):  # Not yet valid, or not any more.
        return "renew the server's certificate, or set the clock of this machine"
    if error.verify_code in (62, 63, 64):  # For another name or address.
        return "ask the server by a name that its certificate has"
    return 'trust its authority with ssl=ssl.create_default_context(cafile="ca.pem"), or by SSL_CERT_FILE'


async def _headers(reader: asyncio.StreamReader) -> dict[str, str]:
    found: dict[str, str] = {}
    size = 0
    while True:
        line = await reader.readline()
        size += len(line)
        if line in (b"\r\n", b"\n"):
            return found
        if not line or size > HEAD_BYTES_MAX:
            raise ValueError("the head of the answer is cut off, or too long")
        name, _, value = line.decode("latin-1").partition(":")
        found[name.strip().lower()] = value.strip()


async def _body(
    reader: asyncio.StreamReader, method: str, status: int, headers: dict[str, str]
) -> tuple[bytes, bool]:
    """The body, and whether its end was marked, so that the connection can be kept."""
    if method == "HEAD" or status in (204, 304):
        return b"", True
    if "chunked" in headers.get("transfer-encoding", "").lower():
        return await _chunks(reader), True
    if "content-length" in headers:
        length = int(headers["content-length"])
        if not 0 <= length <= BODY_BYTES_MAX:
            raise ValueError(f"the body of the answer has {length} bytes; at most {BODY_BYTES_MAX} are read")
        return await reader.readexactly(length), True
    return await reader.read(), False


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    parts, size = [], 0
    while True:
        line = await reader.readline()
        length = int(line.split(b";", 1)[0].strip(), 16)
        size += length
        if size > BODY_BYTES_MAX:
            raise ValueError(f"the body of the answer has more than {BODY_BYTES_MAX} bytes")
        if length == 0:
            break
        parts.append(await reader.readexactly(length))
        await reader.readexactly(2)
    while await reader.readline() not in (b"\r\n", b"\n", b""):
        pass
    return b"".join(parts)
