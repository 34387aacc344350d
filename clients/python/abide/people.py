"""What came of asking a person."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Sequence

from .errors import StepError
from .ledger import End
from .outcome import When, moment


@dataclass(frozen=True)
class Decision:
    """What came of asking a person."""

    choice: str | None = None
    """`resume`, `approve`, `reject` or `complete`; None when nobody decided in time."""
    actor: str | None = None
    note: str | None = None
    payload: Any = None
    roles: Sequence[str] = field(default=())

    @property
    def approved(self) -> bool:
        return self.choice == "approve"

    @property
    def rejected(self) -> bool:
        return self.choice == "reject"

    @property
    def timed_out(self) -> bool:
        """Whether no person decided in time, whatever then counted as decided."""
        return self.actor is None

    @staticmethod
    def of(end: End | None) -> Decision:
        """What an entry ended with."""
        if end is not None and end.how == "error":
            raise StepError.of(end.value)
        if end is None or end.how == "elapsed":
            return Decision()
        found = end.value
        return Decision(
            found.get("choice"), found.get("actor"), found.get("note"), found.get("payload"), found.get("roles", ())
        )


def asking(
    kind: str, payload: Any, roles: Sequence[str], assignee: str | None, timeout: When | None
) -> dict[str, Any]:
    """What is asked of a person, as the ledger takes it."""
    asked: dict[str, Any] = {"kind": kind, "payload": payload, "roles": list(roles)}
    if assignee is not None:
        asked["assignee"] = assignee
    if timeout is not None:
        asked["deadline"] = moment(timeout)
    return {"manual": asked}
