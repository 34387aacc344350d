"""What the engine keeps of one run in memory: its ledger, its inbox, and who waits for what."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable

from ..errors import Problem
from ..ledger import REPLAY_SAFE
from ..times import maybe_instant, read_instant, write_instant

Op = dict[str, Any]


def refusal(code: str, detail: str) -> Problem:
    """The engine says no."""
    return Problem.of({"status": 409, "code": code, "detail": detail, "title": code, "what_to_do": ""})


@dataclass
class Wait:
    """What a run is parked on."""

    kind: str
    until: int | None = None
    then: str | None = None
    names: list[str] = field(default_factory=list)
    children: list[str] = field(default_factory=list)
    join: Any = "all_terminal"


@dataclass
class Run:
    """A run in memory."""

    id: str
    workflow: str
    version: int
    input: Any
    state: Any
    step: str
    now: Callable[[], int]
    start_child: Callable[[Run, dict[str, Any]], str]
    parent: str | None = None
    key: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    queue: str = "default"
    status: str = "runnable"
    visible_at: int = 0
    visit: int = 1
    epoch: int = 0
    retries: int = 0
    reclaims: int = 0
    attempts: int = 0
    claims: int = 0
    woken_by: str | None = None
    wait: Wait | None = None
    ops: list[Op] = field(default_factory=list)
    ended: int = 0
    seen: int = 0
    inbox: list[dict[str, Any]] = field(default_factory=list)
    got: dict[int, dict[str, Any]] = field(default_factory=dict)
    """What waits got that the code has not seen, by their number."""
    updates: list[dict[str, Any]] = field(default_factory=list)
    signals: int = 0
    children: list[dict[str, Any]] = field(default_factory=list)
    started: dict[tuple[str, str], str] = field(default_factory=dict)
    """Children that steps started, by the step and the key."""
    published: tuple[Any] | None = None
    progress: tuple[int, dict[str, Any]] = field(default_factory=lambda: (0, {}))
    """What was said of the progress, and in which visit."""
    begun_at: int = 0
    cancelling: bool = False
    result: Any = None
    error: dict[str, Any] | None = None

    @property
    def over(self) -> bool:
        return self.status in ("done", "failed", "cancelled", "dead_lettered")

    def op(self, number: int) -> Op:
        if not 1 <= number <= len(self.ops):
            raise refusal("invalid", f"ledger entry: expected an entry that exists, found {number}")
        return self.ops[number - 1]

    def open_ops(self) -> list[Op]:
        return [op for op in self.ops if op.get("end") is None and op["visit"] == self.visit]

    # What a step writes.

    def write(self, entries: list[dict[str, Any]]) -> None:
        """Folds what a step writes to its ledger."""
        for entry in entries:
            verb, said = next(iter(entry.items()))
            getattr(self, f"_{verb}")(**said)

    def _intend(self, op: int, key: str, what: dict[str, Any], input: str | None = None) -> None:
        kind, wanted = next(iter(what.items()))
        if op != len(self.ops) + 1:
            self._begin_again(self.op(op), key, kind)
            return
        if any(known["key"] == key and known["visit"] == self.visit for known in self.ops):
            raise refusal("invalid", f"ledger entry: expected a key that is new, found {key!r} again")
        entry: Op = {"op": op, "key": key, "visit": self.visit, "at": write_instant(self.now())}
        if input is not None:
            entry["input"] = input
        self.ops.append(entry)
        getattr(self, f"_want_{kind}")(entry, **wanted)

    def _begin_again(self, op: Op, key: str, kind: str) -> None:
        if kind not in ("effect", "undo") or "effect" not in op["what"] or op["key"] != key:
            raise refusal("invalid", f"ledger entry: expected {op['key']} as it is recorded, found {key}")
        effect, end = op["what"]["effect"], op.get("end")
        if end is not None:
            if not (end.get("error", {}).get("retryable") and effect["policy"] in REPLAY_SAFE):
                raise refusal("effect_ended", f"entry {op['op']} has ended")
            del op["end"]
        elif effect["claim"] not in (0, self.claims) and effect["policy"] not in REPLAY_SAFE:
            raise refusal("in_doubt", f"{key} may or may not have happened")
        effect["claim"] = self.claims

    def _want_effect(self, op: Op, policy: str, review: int | None = None) -> None:
        op["what"] = {"effect": {"policy": policy, "claim": self.claims, "failures": 0, "undo": False}}

    def _want_undo(self, op: Op, policy: str) -> None:
        op["what"] = {"effect": {"policy": policy, "claim": 0, "failures": 0, "undo": True}}

    def _want_timer(self, op: Op, until: dict[str, Any]) -> None:
        op["what"] = {"timer": {"until": write_instant(self._moment(until))}}
        self.expire(op)

    def _want_signal(self, op: Op, name: str, deadline: dict[str, Any] | None = None) -> None:
        op["what"] = {"signal": {"name": name, **self._until(deadline)}}
        self.serve(op)

    def _want_update(self, op: Op, name: str, deadline: dict[str, Any] | None = None) -> None:
        op["what"] = {"update": {"name": name, "answered": False, **self._until(deadline)}}
        self.serve(op)

    def _want_child(self, op: Op, start: dict[str, Any]) -> None:
        op["what"] = {"child": {"run": self.start_child(self, start)}}

    def _want_patch(self, op: Op, at: str) -> None:
        op["what"] = {"patch": {}}
        self.end(op, value=None, seen=True, at=at)

    def _want_manual(
        self,
        op: Op,
        kind: str,
        payload: Any = None,
        roles: Any = (),
        assignee: str | None = None,
        deadline: dict[str, Any] | None = None,
    ) -> None:
        others = [known for known in self.open_ops() if "manual" in known.get("what", {})]
        if others:
            raise refusal("second_boundary", f"{others[0]['key']} asks for a person already")
        op["what"] = {"manual": {"kind": kind, **self._until(deadline)}}
        op["asked"] = {"payload": payload, "roles": list(roles), "assignee": assignee}
        self.expire(op)

    def _until(self, deadline: dict[str, Any] | None) -> dict[str, str]:
        return {} if deadline is None else {"until": write_instant(self._moment(deadline))}

    def _moment(self, moment: dict[str, Any]) -> int:
        return read_instant(moment["at"]) if "at" in moment else self.now() + int(moment["in_ms"])

    def _done(self, op: int, at: str, value: Any = None) -> None:
        self._check_begun(self.op(op))
        self.end(self.op(op), value=value, seen=True, at=at)

    def _failed(self, op: int, error: dict[str, Any], at: str) -> None:
        self._check_begun(self.op(op))
        self.end(self.op(op), error=error, seen=True, at=at)

    def _check_begun(self, op: Op) -> None:
        effect = op["what"].get("effect")
        if effect is None:
            raise refusal("invalid", f"ledger entry: expected an effect of this step, found {op['key']}")
        if op.get("end") is not None:
            raise refusal("effect_ended", f"entry {op['op']} has ended")
        if effect["claim"] != self.claims and effect["policy"] not in REPLAY_SAFE:
            raise refusal("in_doubt", f"{op['key']} may or may not have happened")

    def _again(self, op: int, error: dict[str, Any], delay_ms: int = 0) -> None:
        self._check_begun(self.op(op))
        effect = self.op(op)["what"]["effect"]
        if effect["policy"] not in REPLAY_SAFE or not error["retryable"]:
            raise refusal("invalid", "retry of an effect: expected one that may be repeated")
        effect["failures"] += 1
        effect["claim"] = 0
        effect["retry_at"] = write_instant(self.now() + delay_ms)
        self.expire(self.op(op))

    def _see(self, op: int) -> None:
        end = self.op(op).get("end")
        if end is not None and end["seen"] == 0:
            self.seen += 1
            end["seen"] = self.seen
            self.got.pop(op, None)

    def _withdraw(self, op: int) -> None:
        known = self.op(op)
        end = known.get("end")
        if end is not None and (end["seen"] > 0 or "value" not in end):
            return
        known.pop("end", None)
        given = self.got.pop(op, None)
        if given is not None:
            if "signal" in known["what"]:
                self.inbox.insert(0, given)
            else:
                given["op"] = None
        self.end(known, elapsed={})
        for waiting in self.open_ops():
            self.serve(waiting)

    def _wait_again(self, op: int) -> None:
        known = self.op(op)
        if "elapsed" in known.get("end", {}):
            del known["end"]
            self.serve(known)
            self.expire(known)

    def _answer(self, op: int, value: Any = None, rejected: dict[str, Any] | None = None) -> None:
        self.op(op)["what"]["update"]["answered"] = True
        for update in self.updates:
            if update["op"] == op and not update["answered"]:
                update["answered"] = True
                update["answer"], update["rejected"] = value, rejected

    def _publish(self, state: Any = None) -> None:
        self.published = (state,)

    # What happens to its entries.

    def end(self, op: Op, *, seen: bool = False, at: str | None = None, **how: Any) -> None:
        """An entry ends; whoever waits for the ledger wakes."""
        self.ended += 1
        self.seen += int(seen)
        now = self.now() if at is None else min(read_instant(at), self.now())
        op["end"] = {"ended": self.ended, "seen": self.seen if seen else 0, "at": write_instant(now), **how}

    def serve(self, op: Op) -> None:
        """Gives a wait what was sent by its name."""
        if op.get("end") is not None:
            return
        kind, what = next(iter(op["what"].items()))
        if kind == "signal":
            found = next((one for one in self.inbox if one["name"] == what["name"]), None)
            if found is not None:
                self.inbox.remove(found)
                self.got[op["op"]] = found
                self.end(op, value=found["payload"])
        elif kind == "update":
            free = (one for one in self.updates if one["name"] == what["name"] and one["op"] is None)
            update = next((one for one in free if not one["answered"]), None)
            if update is not None:
                update["op"] = op["op"]
                self.got[op["op"]] = update
                self.end(op, value=update["input"])
        if op.get("end") is None:
            self.expire(op)

    def due(self, op: Op) -> int | None:
        """When an open entry ends, or may begin again, by itself."""
        kind, what = next(iter(op["what"].items()))
        return maybe_instant(what.get("retry_at" if kind == "effect" else "until"))

    def expire(self, op: Op) -> bool:
        """Ends an entry whose instant has come."""
        due = self.due(op)
        if op.get("end") is not None or due is None or due > self.now():
            return False
        if "effect" in op["what"]:
            del op["what"]["effect"]["retry_at"]
        else:
            self.end(op, elapsed={})
        return True

    def in_doubt(self) -> list[Op]:
        """Effects that may or may not have happened."""
        effects = [op for op in self.open_ops() if "effect" in op["what"]]
        return [op for op in effects if op["what"]["effect"]["policy"] not in REPLAY_SAFE and op["what"]["effect"]["claim"]]
