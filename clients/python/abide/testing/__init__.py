"""The test kit: workflows in memory, with time that passes when it is told to, and crashes wherever there can be one."""

from .crash import crash_everywhere
from .engine import START_MS, Stuck, TestEngine, TestRun

__all__ = ["START_MS", "Stuck", "TestEngine", "TestRun", "crash_everywhere"]
