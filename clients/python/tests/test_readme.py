"""The README, line by line: its test runs, and its quickstart runs as it is written, from the install on."""

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
SHELL = re.compile(r"^```sh\n(.*?)^```$", re.M | re.S)


def blocks() -> dict[str, str]:
    """The programs of the README, by their file."""
    return {name or f"block{index}.py": text for index, (name, text) in enumerate(BLOCK.findall((ROOT / "README.md").read_text()))}


def commands() -> list[str]:
    """What the README says to type, in its order."""
    return [text.strip() for text in SHELL.findall((ROOT / "README.md").read_text())]


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

    def start(self, name: str, *command: str, **environment: str) -> subprocess.Popen[str]:
        known = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
        with open(self.place / name, "a") as out:
            process = subprocess.Popen(command, cwd=self.place, stdout=out, stderr=out, text=True, env=known)
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
        """AB-19: typed line by line in an empty folder, with a Python that knows nothing of Abide but what the README installs."""
        assert BINARY is not None
        install, serve, work, buy, look, approve = commands()[:6]
        subprocess.run([sys.executable, "-m", "venv", self.place / ".venv"], check=True)
        tools = self.place / "tools"
        tools.mkdir()
        (tools / "abide").symlink_to(Path(BINARY).resolve())
        there = {"PATH": f"{self.place / '.venv/bin'}:{tools}:{os.environ['PATH']}", "PYTHONPATH": ""}
        subprocess.run(install, shell=True, check=True, cwd=ROOT.parent.parent, env={**os.environ, **there}, capture_output=True)

        port = 7411

        def type(name: str, line: str, **more: str) -> subprocess.Popen[str]:
            # Without a shell in between: what is killed is the program itself.
            line = line.replace("127.0.0.1:7411", f"127.0.0.1:{port}")
            return self.start(name, "bash", "-c", f"exec {line}", **there, **more)

        server = type("server", serve)
        port = int(until(lambda: re.search(r"http://127\.0\.0\.1:(\d+)", self.said("server")))[1])
        self.write(port)
        worker = type("worker", work)
        type("buy", buy)
        until(lambda: "bank under" in self.said("worker"))
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        type("worker2", work)

        def asked() -> Any:
            (self.place / "asked").unlink(missing_ok=True)
            self.assertEqual(type("asked", look).wait(), 0)
            return re.search(r'"boundary": *"([^"]+)"', self.said("asked"))

        boundary = until(asked)[1]
        self.assertEqual(type("approved", approve, BOUNDARY=boundary).wait(), 0, self.said("approved"))
        until(lambda: "mail done" in self.said("buy"))
        self.assertIn("['stock done', 'bank done', 'packing done', 'carrier done', 'mail done']", self.said("buy"))
        self.assertNotIn("stock", self.said("worker2"), "what was done is not done again")
        self.assertTrue((self.place / ".abide/abide.db").exists(), "what happened is kept in the folder")
        server.send_signal(signal.SIGINT)
        self.assertEqual(server.wait(30), 0, self.said("server"))


if __name__ == "__main__":
    unittest.main()
