"""The loop that functions run on: deterministic, without clock, sockets or threads.

It runs what is ready in the order it became so, until nothing is, and then stops: what goes on next is the ledger's to
say. So `asyncio.gather`, tasks, queues and locks work in a function, and a replay does the same as the first time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import contextmanager
from contextvars import Context
from typing import Any, Callable, Coroutine, Generator, Iterator

from .errors import StepError, terminal

PASSES_MAX = 100_000
"""Callbacks that run in one go, before that counts as a loop without end."""

_FOREIGN = (
    "call_later call_at run_in_executor getaddrinfo getnameinfo create_connection create_server create_unix_connection "
    "create_unix_server create_datagram_endpoint connect_accepted_socket connect_read_pipe connect_write_pipe "
    "subprocess_shell subprocess_exec add_reader add_writer sock_recv sock_recv_into sock_sendall sock_connect "
    "sock_accept sock_sendfile sendfile start_tls add_signal_handler"
).split()


class ForeignWait(StepError):
    """The function waits for something that the engine cannot see."""


class ReplayLoop(asyncio.AbstractEventLoop):
    """Runs the tasks of one function in one attempt."""

    def __init__(self, wake: Callable[[], None], now: Callable[[], float]) -> None:
        self._ready: deque[asyncio.Handle] = deque()
        self._open = False
        self._wake = wake
        self._now = now
        self.foreign: str | None = None
        """What the function wanted that the engine cannot see."""
        self.tasks: list[asyncio.Task[Any]] = []

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        if not self._open:
            self.foreign = self.foreign or "a wake-up from outside"
            self._wake()
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        self.foreign = self.foreign or "another thread"
        self._wake()
        return asyncio.Handle(callback, args, self, context)

    def time(self) -> float:
        return self._now()

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._open

    def is_closed(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any], *, name: str | None = None, **rest: Any
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, **rest)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        self.tasks.append(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What a task raised and nobody asked for is nobody's."""

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """There are no timers here."""

    @contextmanager
    def quietly(self) -> Iterator[None]:
        """What is woken inside is woken by the ledger."""
        before, self._open = self._open, True
        try:
            yield
        finally:
            self._open = before

    def run_ready(self) -> None:
        """Runs everything that is ready, and what that makes ready.

        Raises:
            RecursionError: the function wakes itself without end.
        """
        outer = asyncio._get_running_loop()
        swap = getattr(asyncio.tasks, "_swap_current_task", None)
        task = swap(outer, None) if swap and outer is not None else None
        asyncio._set_running_loop(self)
        try:
            with self.quietly():
                for _ in range(PASSES_MAX):
                    if not self._ready:
                        return
                    handle = self._ready.popleft()
                    if not handle.cancelled():
                        handle._run()
            raise RecursionError("the function wakes itself without end")
        finally:
            asyncio._set_running_loop(outer)
            if swap and outer is not None:
                swap(outer, task)

    def leave(self) -> None:
        """Drops the code: it leaves memory, and what its `finally` blocks still ask for is refused."""
        self._ready.clear()
        with self.quietly():
            for task in self.tasks:
                if not task.done():
                    _close(task)
        self._ready.clear()


def _close(task: asyncio.Task[Any]) -> None:
    coro: Any = task.get_coro()
    try:
        coro.close()
    except BaseException:  # The code may do anything when it is told to go; nothing of it counts.
        pass


def _refuse(what: str) -> Callable[..., Any]:
    def refuse(self: ReplayLoop, *_: Any, **__: Any) -> Any:
        self.foreign = self.foreign or f"loop.{what}"
        refused = terminal("foreign_wait", f"a function cannot use loop.{what}: use ctx.sleep, or do it in an effect")
        raise ForeignWait(refused.message, code=refused.code, retryable=False)

    return refuse


for _name in _FOREIGN:
    setattr(ReplayLoop, _name, _refuse(_name))
