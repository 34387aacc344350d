"""Errors: of steps and functions, of servers that say no, and of runs that did not end well."""

from __future__ import annotations

import traceback
from typing import Any

ERROR_BYTES_MAX = 16 * 1024


class AbideError(Exception):
    """Whatever goes wrong here."""


class StepError(AbideError):
    """What went wrong in a step, a function or an effect, in the form in which it is recorded.

    Any other exception becomes one with the code `error`, and may be tried again.
    """

    def __init__(self, message: str, *, code: str = "error", retryable: bool = True, details: Any = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.retryable = retryable
        self.details = details
        self.op: int | None = None
        """The entry of the ledger whose error it is: a retry begins that effect again."""

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (self.info(), self.op)

    def info(self) -> dict[str, Any]:
        """As it is written."""
        message = encodable(self.message).encode()[:ERROR_BYTES_MAX].decode(errors="ignore")
        said = {"code": encodable(self.code), "message": message, "retryable": bool(self.retryable)}
        if self.details is not None:
            said["details"] = self.details
        return said

    @staticmethod
    def of(info: dict[str, Any], op: int | None = None) -> StepError:
        """As it was recorded."""
        error = StepError(
            info["message"], code=info["code"], retryable=info["retryable"], details=info.get("details")
        )
        error.op = op
        return error


Failure = StepError
"""What went wrong in a function."""


class Unencodable(StepError):
    """A value has no JSON form, and so cannot be sent or recorded. Nothing was."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="unencodable", retryable=False)


def encodable(text: str) -> str:
    """Text that UTF-8 has: halves of surrogate pairs, as file names may have them, are written as `\\udce9`."""
    return str(text).encode(errors="backslashreplace").decode()


def _made(info: dict[str, Any], op: int | None) -> StepError:
    return StepError.of(info, op)


def terminal(code: str, message: str) -> StepError:
    """An error that no retry cures."""
    return StepError(message, code=code, retryable=False)


def as_step_error(error: BaseException) -> StepError:
    """An exception in the form in which it is recorded, with its traceback in the details."""
    if isinstance(error, StepError):
        return error
    kind, text = encodable(type(error).__name__), _said(error)
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    details = {"type": kind, "traceback": encodable(trace[-8_000:])}
    found = StepError(f"{kind}: {text}" if text else kind, details=details)
    found.__cause__ = error
    return found


def _said(error: BaseException) -> str:
    """What an exception says, also where that fails itself."""
    try:
        return encodable(str(error))
    except Exception as broken:
        return f"what it says cannot be told ({type(broken).__name__})"


class ConnectionFailed(AbideError):
    """The server could not be reached, or the answer did not arrive: the request may or may not have been carried out."""


class Untrusted(ConnectionFailed):
    """The server's certificate is not trusted, and nothing was sent. No retry cures it."""


class Problem(AbideError):
    """A server said no."""

    def __init__(self, body: dict[str, Any], status: int = 0) -> None:
        self.status: int = int(body.get("status", status))
        self.code: str = str(body.get("code", "internal"))
        self.title: str = str(body.get("title", ""))
        self.detail: str = str(body.get("detail", ""))
        self.expected: str | None = body.get("expected")
        self.found: str | None = body.get("found")
        self.what_to_do: str = str(body.get("what_to_do", ""))
        self.run: str | None = body.get("run")
        self.error: dict[str, Any] | None = body.get("error")
        self.body = body
        super().__init__(self.code)

    def __str__(self) -> str:
        what = f"; {self.what_to_do}" if self.what_to_do else ""
        return f"{self.code} (HTTP {self.status}): {self.detail}{what}"

    @staticmethod
    def of(body: dict[str, Any], status: int = 0) -> Problem:
        """A problem as the type that its code asks for."""
        code = str(body.get("code", "internal"))
        return _KINDS.get(code, Problem)(body, status)


class NotFound(Problem):
    """There is no such thing in this namespace."""


class KeyTaken(Problem):
    """The business key is taken: `run` has it."""


class RunOver(Problem):
    """The run has ended."""


class Unauthenticated(Problem):
    """Nobody is known by this token."""


class Forbidden(Problem):
    """The token does not allow it."""


class Busy(Problem):
    """A bounded place is full."""


class ClaimLost(Problem):
    """The attempt is not this worker's any more."""


class UpdateRejected(Problem):
    """The run said no to the update; `error` has its reason."""


class Redirected(Problem):
    """The answer was a redirect. It is not followed: the token and the body are for the server that was asked."""


_KINDS: dict[str, type[Problem]] = {
    "not_found": NotFound,
    "key_taken": KeyTaken,
    "other_input": KeyTaken,
    "run_over": RunOver,
    "unauthenticated": Unauthenticated,
    "forbidden": Forbidden,
    "busy": Busy,
    "stale_claim": ClaimLost,
    "wrong_token": ClaimLost,
    "lease_expired": ClaimLost,
    "update_rejected": UpdateRejected,
    "redirected": Redirected,
}


class RunFailed(AbideError):
    """A run did not end well."""

    def __init__(self, run: str, status: str, error: dict[str, Any] | None) -> None:
        self.run = run
        self.status = status
        self.error = StepError.of(error) if error is not None else None
        super().__init__(f"{run} ended as {status}: {self.error}" if error is not None else f"{run} ended as {status}")
