"""What the tests share."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any, Coroutine

ROOT = Path(__file__).resolve().parent.parent
VECTORS = ROOT.parent / "vectors"
sys.path.insert(0, str(ROOT))


def vectors(name: str) -> Any:
    """A file of test vectors."""
    return json.loads((VECTORS / name).read_text())


def go(coro: Coroutine[Any, Any, Any]) -> Any:
    """Runs a test, and no longer than it may."""
    return asyncio.run(asyncio.wait_for(coro, 60))
