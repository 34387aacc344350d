"""What an attempt needs of whoever gave it: a clock, a way to write to its ledger, and news that it is lost."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from .errors import AbideError, Problem
from .ledger import Entry

Say = dict[str, Any]
"""What is said of an attempt in a report."""

GIVE_BACK: Say = {"give_back": {}}


class Link(Protocol):
    """The way from an attempt to its engine."""

    lost: asyncio.Event
    """Set when the claim has ended: nothing that the attempt does will be recorded."""

    def now(self) -> int:
        """The worker's clock, in milliseconds."""

    async def record(self, entries: list[Entry]) -> None:
        """Writes to the ledger, and returns when that is durable.

        Raises:
            Problem: it was refused.
            Unknown: whether it was recorded is not known.
        """

    async def progress(self, name: str, value: Any) -> None:
        """Says how far the step has come.

        Raises:
            Problem: it was refused.
            Unknown: whether it was heard is not known.
        """

    async def start_child(self, key: str, start: dict[str, Any]) -> str:
        """Starts a child under a key, and gives its id: that of the child that is there, if the key has one.

        Raises:
            Problem: it was refused.
            Unknown: whether it was started is not known.
        """


class Unknown(AbideError):
    """Whether something was recorded is not known: the claim goes back."""


SET_ASIDE = frozenset({"invalid", "busy", "too_large", "not_approved", "second_boundary", "malformed", "too_deep"})
"""Refusals that another attempt would get as well."""


class Ended(Exception):
    """The attempt is over, and this is said of it; None when there is nobody to say it to."""

    def __init__(self, say: Say | None) -> None:
        super().__init__("the attempt is over")
        self.say = say


def set_aside(info: dict[str, Any]) -> Say:
    """The code does not fit its ledger: the attempt becomes a dead letter, for other code to go on with."""
    return {"fail": {"error": info, "set_aside": True}}


def refused(problem: Problem) -> Say | None:
    """What is said of an attempt whose record was refused."""
    if problem.code == "unknown":
        return GIVE_BACK
    if problem.code in SET_ASIDE:
        return set_aside({"code": problem.code, "message": problem.detail, "retryable": False})
    return None
