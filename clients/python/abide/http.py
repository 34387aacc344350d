"""A small HTTP/1.1 client over asyncio streams: kept connections, limits of time, bodies by length or in chunks, TLS."""

from __future__ import annotations

import asyncio
import ssl as tls
from dataclasses import dataclass
from typing import Any, Coroutine, Mapping, TypeVar
from urllib.parse import urlsplit

from . import jsons
from .errors import AbideError, ConnectionFailed, Problem, Unencodable, Untrusted

HEAD_BYTES_MAX = 64 * 1024
BODY_BYTES_MAX = 256 * 1024 * 1024
PIECE_BYTES = 64 * 1024
IDLE_MAX = 16
NO_ANSWER = "the server closed the connection without an answer"

BROKEN = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, IndexError)
"""What is raised where a connection breaks, or says what is no HTTP."""

T = TypeVar("T")


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
        head = self._head(method, path, data, headers or {}) + (data or b"")
        # What a server does once however often it is asked.
        repeatable = method == "GET" or "Idempotency-Key" in (headers or {})
        try:
            return await asyncio.wait_for(self._exchange(method, head, repeatable), timeout)
        except asyncio.TimeoutError:
            raise ConnectionFailed(f"{method} {path}: no answer within {timeout:g} s") from None
        except BROKEN as error:
            raise _failure(f"{method} {path} at {self._authority}", error) from error

    async def stream(self, path: str, *, headers: Mapping[str, str], silence: float) -> Stream:
        """Asks for something whose body is read piece by piece, over a connection of its own. No piece may take longer than
        the silence.

        Raises:
            ConnectionFailed: there is no answer; `Untrusted` as for a request.
        """
        what = f"GET {path} at {self._authority}"
        request = self._head("GET", path, None, headers)
        try:
            connection = await self._connect()
        except asyncio.TimeoutError:
            raise ConnectionFailed(f"{what}: no connection within {self._connect_timeout:g} s") from None
        except BROKEN as error:
            raise _failure(what, error) from error
        stream = Stream(connection, what, silence)
        try:
            await stream.begin(request)
        except BaseException:
            stream.close()
            raise
        return stream

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
        lines = [f"{method} {self._prefix}{path} HTTP/1.1", f"Host: {self._authority}"]
        if "Accept" not in headers:
            lines.append("Accept: application/json")
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
                raise ConnectionResetError(NO_ANSWER)
        except (ConnectionResetError, BrokenPipeError):
            # It was likely closed while it was idle. But the server may also have carried the request out before it died, and
            # then a second one may be refused for what the first did: whoever asked must know that it was sent.
            if connection.used and repeatable:
                raise _Stale from None
            raise
        version, status, headers = await _answer(reader, line)
        body, whole = await _body(reader, method, status, headers)
        keep = whole and version == "HTTP/1.1" and "close" not in headers.get("connection", "").lower()
        return Response(status, headers, body), keep


class Stream:
    """An answer whose body is read piece by piece."""

    def __init__(self, connection: _Connection, what: str, silence: float) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._connection = connection
        self._what = what
        self._silence = silence
        self._left = 0
        """How much is left of the chunk that is being read."""
        self._over = False

    async def begin(self, request: bytes) -> None:
        """Sends the request, and reads the head of the answer."""
        await self._in_time(self._begin(request))

    async def read(self) -> bytes:
        """The next piece of the body; empty at its end.

        Raises:
            ConnectionFailed: it broke off, or fell silent.
        """
        return await self._in_time(self._read())

    async def rest(self) -> bytes:
        """The whole body.

        Raises:
            ConnectionFailed: it broke off, or fell silent.
        """
        body, _ = await self._in_time(_body(self._connection.reader, "GET", self.status, self.headers))
        return body

    def close(self) -> None:
        """Reads no more."""
        self._connection.close()

    async def _in_time(self, reading: Coroutine[Any, Any, T]) -> T:
        try:
            return await asyncio.wait_for(reading, self._silence)
        except asyncio.TimeoutError:
            raise ConnectionFailed(f"{self._what}: silent for {self._silence:g} s") from None
        except BROKEN as error:
            raise _failure(self._what, error) from error

    async def _begin(self, request: bytes) -> None:
        reader, writer = self._connection.reader, self._connection.writer
        writer.write(request)
        await writer.drain()
        line = await reader.readline()
        if not line:
            raise ConnectionResetError(NO_ANSWER)
        _, self.status, self.headers = await _answer(reader, line)

    async def _read(self) -> bytes:
        reader = self._connection.reader
        if self._over:
            return b""
        if "chunked" not in self.headers.get("transfer-encoding", "").lower():
            return await reader.read(PIECE_BYTES)
        if self._left == 0:
            self._left = await _chunk_length(reader)
            if self._left == 0:
                self._over = True
                return b""
        piece = await reader.read(min(self._left, PIECE_BYTES))
        if not piece:
            raise ConnectionResetError("the answer was cut off")
        self._left -= len(piece)
        if self._left == 0:
            await reader.readexactly(2)
        return piece


def _failure(what: str, error: BaseException) -> ConnectionFailed:
    """Why there is no answer, as whoever asked is told."""
    if isinstance(error, tls.SSLCertVerificationError):
        return Untrusted(f"{what}: certificate verify failed: {error.verify_message}; {_cure(error)}")
    return ConnectionFailed(f"{what}: {str(error) or type(error).__name__}")


def _cure(error: tls.SSLCertVerificationError) -> str:
    """What to do about a certificate, by what OpenSSL says is wrong with it."""
    if error.verify_code in (9, 10):  # Not yet valid, or not any more.
        return "renew the server's certificate, or set the clock of this machine"
    if error.verify_code in (62, 63, 64):  # For another name or address.
        return "ask the server by a name that its certificate has"
    return 'trust its authority with ssl=ssl.create_default_context(cafile="ca.pem"), or by SSL_CERT_FILE'


async def _answer(reader: asyncio.StreamReader, line: bytes) -> tuple[str, int, dict[str, str]]:
    """The version, the status and the headers of an answer that begins with this line."""
    while True:
        version, _, rest = line.decode("latin-1").rstrip("\r\n").partition(" ")
        status = int(rest.split(" ", 1)[0])
        headers = await _headers(reader)
        if not 100 <= status < 200:
            return version, status, headers
        line = await reader.readline()


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


async def _chunk_length(reader: asyncio.StreamReader) -> int:
    line = await reader.readline()
    return int(line.split(b";", 1)[0].strip(), 16)


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    parts, size = [], 0
    while True:
        length = await _chunk_length(reader)
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
