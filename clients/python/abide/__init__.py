"""Abide: durable execution. Workflows as ordinary async Python, a worker that executes them, a client, and a test kit."""

from .client import Client, uuid7
from .context import Context, Joined, StartedChild, UpdateRequest
from .control import Control, Operation, PlanError, allow, block, interrupt
from .drive import Call
from .errors import (
    AbideError,
    Busy,
    ClaimLost,
    ConnectionFailed,
    Failure,
    Forbidden,
    KeyTaken,
    NotFound,
    Problem,
    Redirected,
    RunFailed,
    RunOver,
    StepError,
    Unauthenticated,
    Unencodable,
    Untrusted,
    UpdateRejected,
    terminal,
)
from .events import Event
from .function import Workflow, workflow
from .machine import Machine, StepContext
from .outcome import Outcome, await_signals, child, continue_as_new, done, next_step, replay, sleep, spawn, stop
from .people import Decision
from .retry import RetryPolicy
from .worker import Worker

__all__ = [
    "AbideError",
    "Busy",
    "Call",
    "ClaimLost",
    "Client",
    "ConnectionFailed",
    "Context",
    "Control",
    "Decision",
    "Event",
    "Failure",
    "Forbidden",
    "Joined",
    "KeyTaken",
    "Machine",
    "NotFound",
    "Operation",
    "Outcome",
    "PlanError",
    "Problem",
    "Redirected",
    "RetryPolicy",
    "RunFailed",
    "RunOver",
    "StartedChild",
    "StepContext",
    "StepError",
    "Unauthenticated",
    "Unencodable",
    "Untrusted",
    "UpdateRejected",
    "UpdateRequest",
    "Worker",
    "Workflow",
    "allow",
    "await_signals",
    "block",
    "child",
    "continue_as_new",
    "done",
    "interrupt",
    "next_step",
    "replay",
    "sleep",
    "spawn",
    "stop",
    "terminal",
    "uuid7",
    "workflow",
]
