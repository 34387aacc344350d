"""The ledger as an attempt sees it: what is recorded of its effects and waits, what it adds, and what is not durable yet.

It does no I/O and knows no clock. Names, numbers and entries must be those that the Rust SDK writes for the same code;
`clients/vectors/replay.json` pins them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Awaitable, Callable

from .errors import StepError, encodable, terminal
from .hashing import hex16, stable_hash
from .retry import RetryPolicy
from .times import maybe_instant, read_instant, write_instant

Entry = dict[str, Any]

REVIEW = "#review"
NAME_BYTES_MAX = 1_000 - 20
REPLAY_SAFE = frozenset({"pure", "idempotent", "dedupe"})
POLICIES = ("pure", "idempotent", "dedupe", "reconcile", "unsafe_once")

_KINDS = {
    "effect": "an effect",
    "timer": "a timer",
    "signal": "a wait for a signal",
    "update": "a wait for an update",
    "child": "a child",
    "patch": "the mark of an edit",
    "manual": "a wait for a person",
}


@dataclass
class End:
    """How an entry ended: with a `value`, with an `error`, or it `elapsed`."""

    how: str
    value: Any
    ended: int
    seen: int
    at: int

    @staticmethod
    def read(end: dict[str, Any]) -> End:
        how = next(how for how in ("value", "error", "elapsed") if how in end)
        return End(how, end[how], end["ended"], end["seen"], read_instant(end["at"]))


@dataclass(eq=False)
class Known:
    """An entry as this attempt knows it."""

    key: str
    kind: str
    input: int = 0
    policy: str = ""
    undo: bool = False
    name: str | None = None
    op: int | None = None
    end: End | None = None
    claim: int = 0
    child: str | None = None
    asked: bool = False
    delivered: bool = False
    go: bool = False
    reopens: bool = False
    withdrawn: bool = False
    released: bool = False
    failures: int = 0
    resting: bool = False
    review: int | None = None
    answered: bool = False
    retry: RetryPolicy | None = None
    call: Callable[[Any], Awaitable[Any]] | None = None
    future: asyncio.Future[None] | None = field(default=None, repr=False)

    @property
    def replay_safe(self) -> bool:
        return self.kind == "effect" and self.policy in REPLAY_SAFE

    def in_doubt(self) -> bool:
        """Whether it may or may not have happened under an earlier claim, and must not be repeated."""
        once = self.kind == "effect" and self.policy not in REPLAY_SAFE
        return once and self.end is None and self.claim != 0 and not self.go

    def curable(self) -> bool:
        return self.end is not None and self.end.how == "error" and bool(self.end.value["retryable"])


class Ledger:
    """The ledger of one attempt."""

    def __init__(self, attempt: dict[str, Any], *, function: bool) -> None:
        self.function = function
        self.claim = claim_number(attempt["claim"])
        self.run: str = attempt["run"]
        self.entries: list[Known] = []
        self.by_key: dict[str, Known] = {}
        self.reviewed = False
        self.next_op: int = attempt["next_op"]
        self.points: dict[str, int] = {}
        self.active: set[str] = set()
        self.replay: deque[Known] = deque()
        self.fresh: deque[Known] = deque()
        self.buffer: list[Entry] = []
        self.set_state: tuple[Any] | None = None
        self.published: tuple[Any] | None = (attempt["published"],) if "published" in attempt else None
        self.wanting: dict[Known, None] = {}
        self.calling: dict[Known, None] = {}
        self.waiting: dict[Known, None] = {}
        self.ended: int = attempt["ended"]
        self.now: int = read_instant(attempt["begun_at"])
        self.fatal: StepError | None = None
        self.winding_down: bool = bool(attempt["cancelling"])
        self.patches: dict[str, bool] = {}
        self.last_point: tuple[str, str] | None = None
        self.left = False
        """The whole function leaves memory: what it still does counts for nothing."""
        self.closing = False
        """Code is being dropped: it may give things up, and begins nothing."""
        for entry in attempt["ledger"]:
            if entry["visit"] == attempt["visit"]:
                self._know(entry)
        self._order()

    # What is recorded.

    def _know(self, entry: dict[str, Any]) -> None:
        kind, what = next(iter(entry["what"].items()))
        end = End.read(entry["end"]) if entry.get("end") is not None else None
        known = Known(
            key=entry["key"],
            kind=kind,
            input=int(entry.get("input") or "0", 16),
            policy=what.get("policy", ""),
            undo=bool(what.get("undo", False)),
            op=entry["op"],
            end=end,
            claim=what.get("claim", 0),
            child=what.get("run"),
            failures=what.get("failures", 0),
            resting=kind == "effect" and end is None and what.get("retry_at") is not None,
            answered=bool(what.get("answered", False)),
        )
        if end is not None and end.how == "elapsed" and kind in ("timer", "signal", "update"):
            until = maybe_instant(what.get("until"))
            known.withdrawn = until is None or end.at < until
        self.reviewed = self.reviewed or known.key.endswith(REVIEW)
        self.entries.append(known)
        self.by_key[known.key] = known

    def _order(self) -> None:
        """A function takes notice of ends in the order it did before; a step may know them all."""
        ended = [known for known in self.entries if known.end is not None and not known.withdrawn]
        if not self.function:
            for known in ended:
                # A step has no past: an error that may be cured is met by trying again.
                if known.curable() and known.replay_safe:
                    known.end, known.reopens = None, True
                else:
                    known.delivered = True
            return
        seen = [known for known in ended if _end(known).seen > 0]
        self.replay.extend(sorted(seen, key=lambda known: _end(known).seen))
        fresh = [known for known in ended if _end(known).seen == 0]
        self.fresh.extend(sorted(fresh, key=lambda known: _end(known).ended))

    # What the code asks for.

    def point(self, name: str, kind: str, wanted: dict[str, Any], input: int, place: str) -> Known:
        """The entry of the next durable point of this name, made if it is new."""
        if self.left or self.closing:
            raise terminal("left", "the function has left memory")
        check_name(name)
        effect = "effect" in wanted
        if effect and name in self.active:
            raise terminal(
                "overlapping_effects",
                f"two effects named {quoted(name)} overlap in one scope; give them names of their own, or use ctx.scope or "
                "ctx.map",
            )
        ordinal = self.points[name] = self.points.get(name, 0) + 1
        if effect:
            self.active.add(name)
        key = name if ordinal == 1 else f"{name}#{ordinal}"
        self.last_point = (key, place)
        known = self.by_key.get(key)
        if known is not None:
            known.asked, known.name, known.released = True, name, False
            self.check(known, kind, input, place)
            return known
        policy = wanted[next(iter(wanted))].get("policy", "") if kind == "effect" else ""
        known = Known(key, kind, input, policy=policy, undo="undo" in wanted, name=name, asked=True)
        self.entries.append(known)
        if not effect:
            self.write_intent(known, wanted)
        return known

    def check(self, known: Known, kind: str, input: int, place: str) -> None:
        """What does not fit between an entry that is recorded and what the code asks for under its key."""
        if known.kind != kind:
            found = f"expected {_KINDS[known.kind]}, as recorded, found {_KINDS[kind]}"
        elif known.input not in (0, input):
            found = (
                f"expected the input it was recorded with (hash {hex16(known.input)}), found another ({hex16(input)})"
            )
        else:
            return
        self.end_attempt(
            terminal(
                "diverged",
                f"the code does not fit what is recorded at {quoted(known.key)} ({place}): {found}; nothing was changed. "
                "Put the old code back, or guard the edit with ctx.patch",
            )
        )

    def end_attempt(self, error: StepError) -> None:
        """Ends the attempt with an error that the code cannot answer."""
        self.fatal = self.fatal or error

    def next_key(self, name: str) -> str:
        points = self.points.get(name, 0)
        return name if points == 0 else f"{name}#{points + 1}"

    def patch(self, name: str, place: str) -> bool:
        """Whether the code goes the new way at the edit of this name, for the whole life of the run."""
        try:
            check_name(name)
        except StepError as error:
            self.end_attempt(error)
            return False
        if name in self.patches:
            return self.patches[name]
        known = self.by_key.get(name)
        if known is not None:
            known.asked = True
            self.check(known, "patch", 0, place)
        patched = known is not None or not self._has_more()
        if known is None and patched:
            self.ended += 1
            end = End("value", None, self.ended, 0, self.now)
            mark = Known(name, "patch", end=end, asked=True, delivered=True, released=True)
            self.entries.append(mark)
            self.write_intent(mark, {"patch": {"at": write_instant(self.now)}})
        self.patches[name] = patched
        return patched

    def _has_more(self) -> bool:
        """Whether the history goes on beyond where the code is. Marks of other edits say nothing about that."""
        unseen = any(known.kind != "patch" for known in self.replay)
        return unseen or any(not known.asked and known.kind != "patch" for known in self.entries)

    def asks(self, name: str) -> str | None:
        """The wait for a person that the code is in when it comes to the next one of this name, if it is in one."""
        own = self.by_key.get(self.next_key(name))
        for known in self.entries:
            before = known.op is not None and (own is None or own.op is None or known.op < own.op)
            if known.kind == "manual" and known.asked and not known.delivered and before:
                return known.key
        return None

    # What is written.

    def write_intent(self, known: Known, what: dict[str, Any]) -> int:
        """Numbers an entry that is new and writes that it begins."""
        known.op = self.next_op
        self.next_op += 1
        self.buffer.append(_intend(known, what))
        return known.op

    def write_effect(self, known: Known) -> int:
        """Writes that an effect begins under this claim, unless that is written."""
        if known.op is None:
            what: dict[str, Any] = {"policy": known.policy}
            if known.review is not None:
                what["review"] = known.review
            known.claim = self.claim
            return self.write_intent(known, {"effect": what})
        if known.reopens or (known.claim != self.claim and not known.replay_safe):
            self.buffer.append(_intend(known, {"effect": {"policy": known.policy}}))
            known.claim, known.reopens = self.claim, False
        return known.op

    def write_end(self, known: Known, how: str, value: Any, at: int) -> None:
        """Writes how an effect ended, which is what every replay will see."""
        self.now = max(self.now, at)
        self.ended += 1
        op = self.write_effect(known)
        known.end = End(how, value, self.ended, 0, self.now)
        known.delivered = True
        instant = write_instant(self.now)
        if how == "value":
            self.buffer.append({"done": {"op": op, "value": value, "at": instant}})
        else:
            self.buffer.append({"failed": {"op": op, "error": value, "at": instant}})

    def rest(self, known: Known, error: dict[str, Any], policy: RetryPolicy) -> dict[str, Any] | None:
        """Lets an effect that failed rest until it is tried again; its error, if that stands now."""
        # The policy may have been edited: the one that is recorded counts.
        if not known.replay_safe:
            return error
        seed = stable_hash(f"{self.run}\0{known.key}".encode())
        delay = policy.delay(known.failures, seed ^ known.failures)
        if delay is None:
            return {**error, "retryable": False}
        known.failures += 1
        known.resting, known.go = True, False
        op = self.write_effect(known)
        self.buffer.append({"again": {"op": op, "error": error, "delay_ms": delay}})
        return None

    def reply(self, known: Known, **how: Any) -> None:
        """Answers what an entry got, unless that is recorded."""
        if not known.answered and known.op is not None:
            known.answered = True
            self.buffer.append({"answer": {"op": known.op, **how}})

    def take_entries(self) -> list[Entry]:
        """Takes what is to be written, with the state that the code has set since."""
        entries, self.buffer = self.buffer, []
        if self.set_state is not None and self.set_state != self.published:
            self.published = self.set_state
            entries.append({"publish": {"state": self.set_state[0]}})
        self.set_state = None
        return entries

    @property
    def unwritten(self) -> bool:
        return bool(self.buffer) or (self.set_state is not None and self.set_state != self.published)

    # What the code gives up.

    def release(self, known: Known) -> None:
        """The future of an effect is gone, or has nothing more to wait for."""
        if known.released:
            return
        known.released = True
        for places in (self.waiting, self.calling, self.wanting):
            places.pop(known, None)
        if known.name is not None:
            self.active.discard(known.name)

    def wait_no_more(self, known: Known) -> None:
        """The code does not wait any more. Nothing is written when it has had what it waited for, or leaves memory."""
        self.waiting.pop(known, None)
        # What came after the code stopped looking is for the next wait of its name.
        end = known.end
        unseen = end is None or (known.kind != "manual" and end.how == "value" and end.seen == 0)
        if self.left or known.delivered or not unseen:
            known.delivered = True
            return
        known.delivered = True
        known.end = End("elapsed", None, self.ended + 1, 0, self.now)
        if known.op is not None:
            self.ended += 1
            if known in self.fresh:
                self.fresh.remove(known)
            self.buffer.append({"withdraw": {"op": known.op}})

    def wait_again(self) -> None:
        """Waits again for what an attempt before gave up and the code now waits for."""
        for known in [known for known in self.entries if known.withdrawn]:
            if known in self.waiting:
                known.withdrawn, known.end = False, None
                self.buffer.append({"wait_again": {"op": known.op}})

    # How far it is.

    def deliver(self) -> Known | None:
        """The next entry that the code may take notice of: first as it did before, then what is new."""
        if self.replay:
            known = self.replay.popleft()
        elif self.fresh:
            known = self.fresh.popleft()
            self.buffer.append({"see": {"op": known.op}})
        else:
            return None
        known.delivered = True
        self.now = max(self.now, _end(known).at)
        return known

    def curable(self) -> list[int]:
        """Effects that failed and may be cured: what a retry begins again when nobody says which made it fail."""
        return [known.op for known in self.entries if known.curable() and known.op is not None]

    def rests(self) -> bool:
        """Whether nothing is under way: all the code does is wait."""
        return not self.calling and not self.wanting

    def waits_for_nothing(self) -> bool:
        """Whether nothing that the code waits for is in the ledger."""
        return not any(known.end is None for known in self.waiting)


def _end(known: Known) -> End:
    assert known.end is not None, "the entry has ended"
    return known.end


def _intend(known: Known, what: dict[str, Any]) -> Entry:
    intent: dict[str, Any] = {"op": known.op, "key": known.key, "what": what}
    if known.input:
        intent["input"] = hex16(known.input)
    return {"intend": intent}


def claim_number(claim: str) -> int:
    """Which claim of its run it is."""
    return int(claim.rpartition("_")[2])


def quoted(text: str) -> str:
    """A name as messages have it."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def check_name(name: str) -> None:
    """Refuses what cannot be the name of an effect or wait."""
    size = len(name.encode(errors="surrogatepass"))
    if not name:
        found = "none"
    elif encodable(name) != name:
        found = f"half of a surrogate pair in {quoted(encodable(name))}"
    elif "#" in name:
        found = quoted(name)
    elif size > NAME_BYTES_MAX:
        found = f"{size} bytes"
    else:
        return
    raise terminal(
        "bad_name",
        f"the name of an effect or wait, with its scope: expected text of 1 to {NAME_BYTES_MAX} bytes without '#', "
        f"found {found}",
    )
