"""A real server on a store of its own, and workers of this process."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, AsyncIterator

import support  # noqa: F401  (makes the package found)
import abide

BINARY = os.environ.get("ABIDE_BIN")


class Real:
    """A server, which may be killed and served again at the same place."""

    def __init__(self) -> None:
        self._place = Path(tempfile.mkdtemp(prefix="abide-python-"))
        self._port = 0
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def serve(self) -> None:
        assert BINARY is not None
        store, listen = f"sqlite:{self._place}/a.db", f"127.0.0.1:{self._port}"
        command = [BINARY, "serve", "--store", store, "--no-auth", "--listen", listen]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)", self._process.stdout.readline())
        assert found is not None, "the server says where it listens"
        self._port = int(found[1])
        self.url = f"http://127.0.0.1:{self._port}"

    def kill(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()

    def end(self) -> None:
        self.kill()
        shutil.rmtree(self._place, ignore_errors=True)

    @asynccontextmanager
    async def working(self, *workflows: Any, **options: Any) -> AsyncIterator[None]:
        """A worker of this process, as long as it is wanted."""
        worker = abide.Worker(self.url, workflows=workflows, poll_ms=1_000, **options)
        working = asyncio.ensure_future(worker.run(signals=False))
        try:
            yield
        finally:
            worker.stop()
            worker.stop()
            await working


async def until(check: Any) -> Any:
    """Looks until something is so."""
    while not (found := await check()):
        await asyncio.sleep(0.02)
    return found
