"""The README, line by line: its test runs, and its quickstart runs against a real server."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any, Callable

from support import ROOT

BINARY = os.environ.get("ABIDE_BIN")
BLOCK = re.compile(r"^```python(?: file=(\S+))?\n(.*?)^```$", re.M | re.S)


def blocks() -> dict[str, str]:
    """The programs of the README, by their file."""
    return {name or f"block{index}.py": text for index, (name, text) in enumerate(BLOCK.findall((ROOT / "README.md").read_text()))}


def until(check: Callable[[], Any], seconds: float = 30) -> Any:
    """Looks until something is there."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = check()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError("it did not come about in time")


class Readme(unittest.TestCase):
    def setUp(self) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="abide-readme-"))
        self.addCleanup(shutil.rmtree, self.place, ignore_errors=True)
        self.processes: list[subprocess.Popen[str]] = []
        self.addCleanup(self.end)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def start(self, name: str, *command: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with open(self.place / name, "a") as out:
            process = subprocess.Popen(command, cwd=self.place, stdout=out, stderr=out, text=True, env=environment)
        self.processes.append(process)
        return process

    def said(self, name: str) -> str:
        return (self.place / name).read_text()

    def write(self, port: int = 7411) -> None:
        for file, code in blocks().items():
            (self.place / file).write_text(code.replace("127.0.0.1:7411", f"127.0.0.1:{port}"))

    def test_its_programs_are_programs_and_its_test_passes(self) -> None:
        for file, code in blocks().items():
            compile(code, file, "exec")
        self.write()
        process = self.start("out", sys.executable, "test_shop.py")
        self.assertEqual(process.wait(30), 0, self.said("out"))

    @unittest.skipUnless(BINARY, "ABIDE_BIN names no server")
    def test_its_quickstart_survives_a_kill_and_a_person_approves(self) -> None:
        assert BINARY is not None
        self.start("server", BINARY, "serve", "--no-auth", "--listen", "127.0.0.1:0")
        found = until(lambda: re.search(r"http://127\.0\.0\.1:(\d+)", self.said("server")))
        port = int(found[1])
        self.write(port)
        worker = self.start("worker", sys.executable, "shop.py")
        self.start("buy", sys.executable, "buy.py")
        until(lambda: "bank under" in self.said("worker"))
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        self.start("worker2", sys.executable, "shop.py")
        url = f"http://127.0.0.1:{port}/v1/namespaces/default/approvals"

        def asked() -> Any:
            listed = subprocess.run(["curl", "-s", url], capture_output=True, text=True).stdout
            return re.search(r"manual_[0-9a-f]{32}\.\d+", listed)

        boundary = until(asked)
        yes = ["curl", "-sf", "-H", "Content-Type: application/json", "-d", '{"actor": "ann"}', f"{url}/{boundary[0]}/approve"]
        self.assertEqual(subprocess.run(yes, capture_output=True).returncode, 0)
        until(lambda: "mail done" in self.said("buy"))
        self.assertIn("['stock done', 'bank done', 'packing done', 'carrier done', 'mail done']", self.said("buy"))
        self.assertNotIn("stock", self.said("worker2"), "what was done is not done again")


if __name__ == "__main__":
    unittest.main()
