"""What is built is what is there."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from support import ROOT


@unittest.skipUnless(importlib.util.find_spec("setuptools"), "there is no setuptools to build with")
class Builds(unittest.TestCase):
    def test_what_an_earlier_build_left_is_not_installed(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            for name in ("pyproject.toml", "setup.py", "README.md"):
                shutil.copy(ROOT / name, place)
            shutil.copytree(ROOT / "abide", Path(place, "abide"))
            left = Path(place, "build", "lib", "abide", "gone.py")
            left.parent.mkdir(parents=True)
            left.write_text("")
            subprocess.run([sys.executable, "setup.py", "build"], cwd=place, check=True, capture_output=True)
            self.assertTrue(Path(place, "build", "lib", "abide", "worker.py").exists())
            self.assertFalse(left.exists())


if __name__ == "__main__":
    unittest.main()
