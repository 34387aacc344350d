"""Reviews: an effect that a control interrupts begins when a person has approved exactly that effect.

The question is a manual boundary; a run has one at a time, so a review waits for its turn.
"""

from __future__ import annotations

from typing import Any

from .control import Control, Operation
from .drive import Drive
from .errors import StepError, terminal
from .ledger import REVIEW, Known, quoted
from .people import Decision, asking


def review_key(effect: str) -> str:
    """The key of the review of an effect."""
    return effect + REVIEW


class Review:
    """An effect that is about to be reviewed."""

    def __init__(self, drive: Drive, effect: Known, operation: Operation, hashed: int, shown: Any) -> None:
        self._drive = drive
        self._ledger = drive.ledger
        self._effect = effect
        self._operation = operation
        self._hashed = hashed
        self._shown = shown

    def point(self, at: str) -> Known:
        """The entry of the review. One that is new is written when it is its turn."""
        key = review_key(self._effect.key)
        self._ledger.last_point = (key, at)
        known = self._ledger.by_key.get(key)
        if known is None:
            known = Known(key, "manual", self._hashed, asked=True)
            self._ledger.entries.append(known)
            return known
        known.asked = True
        self._ledger.check(known, "manual", self._hashed, at)
        return known

    def ask(self, review: Known, ruling: Control | None) -> None:
        """Writes the question, if nobody else is asked."""
        entries = self._ledger.entries
        asked = any(known.kind == "manual" and known.op is not None and known.end is None for known in entries)
        if review.op is not None or asked:
            return
        shown = {
            "operation": self._operation.name,
            "effect": self._effect.key,
            "policy": self._operation.policy,
            "idempotency_key": f"{self._drive.base}/{self._effect.key}",
        }
        if self._hashed:
            shown["input"] = self._shown
        control = ruling or Control("interrupt")
        wanted = asking("approval", shown, control.roles, control.assignee, control.deadline)
        self._ledger.write_intent(review, wanted)

    def judge(self, review: Known) -> None:
        """Lets the effect begin.

        Raises:
            StepError: a person said no, or nobody said yes in time.
        """
        decision, name = Decision.of(review.end), self._effect.key
        interrupt = f"manual_{self._ledger.run.removeprefix('run_')}.{review.op or 0}"
        if decision.approved and decision.actor is not None:
            self._effect.review = review.op
            return
        if decision.choice is None or decision.actor is None:
            raise terminal("approval_expired", f"nobody approved effect {quoted(name)} in time ({interrupt})")
        why = f": {decision.note}" if decision.note else ""
        details = {"effect": name, "interrupt": interrupt, "actor": decision.actor}
        if decision.note is not None:
            details["note"] = decision.note
        message = f"effect {quoted(name)} was rejected by {decision.actor}{why}"
        raise StepError(message, code="rejected", retryable=False, details=details)
