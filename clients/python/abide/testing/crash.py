"""Crashes everywhere: a workflow must come to the same end wherever its worker dies."""

from __future__ import annotations

from typing import Any, Awaitable, Callable, Sequence

from ..errors import RunFailed
from ..worker import Executable
from .engine import TestEngine, TestRun

Story = Callable[[TestRun], Awaitable[Any]]


async def _told(engine: TestEngine, workflow: str, input: Any, story: Story | None) -> tuple[str, Any]:
    run = engine.start(workflow, input)
    try:
        if story is not None:
            await engine.settle()
            await story(run)
        if run.status == "in_doubt":
            return "in_doubt", sorted(op["key"] for op in run.run.in_doubt())
        return "done", await run.result()
    except RunFailed as failed:
        code = None if failed.error is None else failed.error.code
        return failed.status, code


async def crash_everywhere(
    workflows: Sequence[Executable] | Executable,
    workflow: str,
    input: Any = None,
    *,
    story: Story | None = None,
    fresh: Callable[[], None] | None = None,
) -> int:
    """Runs a workflow once without a crash, and then once for every report with a worker that dies before that report is
    durable, and with one that dies after; asserts that all come to the same end. Gives how many there were.

    `story` does what comes from outside: signals, decisions. `fresh` brings what the effects touch back to its beginning.
    A run that is in doubt, because an effect that must not be repeated was cut off, is as it should be.
    """
    codes = list(workflows) if isinstance(workflows, Sequence) else [workflows]
    if fresh is not None:
        fresh()
    engine = TestEngine(*codes)
    expected = await _told(engine, workflow, input, story)
    reports = engine.reports
    for number in range(1, reports + 1):
        for when in ("before", "after"):
            if fresh is not None:
                fresh()
            engine = TestEngine(*codes)
            engine.crash = (number, when)
            found = await _told(engine, workflow, input, story)
            if found[0] != "in_doubt" and found != expected:
                raise AssertionError(
                    f"a worker that died {when} report {number} of {reports}: expected {expected}, found {found}"
                )
    return 2 * reports
