"""The conformance vectors that all SDKs pass. `UPDATE_VECTORS=1` writes what this SDK does where something is expected."""

from __future__ import annotations

import asyncio
import json
import os
import unittest
from typing import Any

from script import Script
from support import VECTORS, go, vectors

import abide
from abide.errors import Problem
from abide.function import complete, failed, identity
from abide.hashing import canonical_hash, canonical_text, hex16, input_hash, stable_hash
from abide.ledger import Ledger, claim_number
from abide.link import set_aside
from abide.times import read_instant

UPDATE = "UPDATE_VECTORS" in os.environ
RUN = "run_0193f2c4a1b20000000000000000000a"
CHILD = "run_0193f2c4a1b20000000000000000000b"


def attempt_of(case: dict[str, Any]) -> dict[str, Any]:
    """An attempt as a worker gets it, with what the case says."""
    ledger = [{"visit": 1, "at": case["clock"], **entry} for entry in case.get("ledger", [])]
    ends = [entry["end"] for entry in ledger if "end" in entry]
    attempt = {
        "claim": f"claim_{RUN[4:]}_2",
        "lease_until": case["clock"],
        "run": RUN,
        "workflow": "script",
        "version": 1,
        "queue": "default",
        "step": "run",
        "epoch": 0,
        "visit": 1,
        "attempt": 1,
        "retries": 0,
        "reclaims": 0,
        "input": None,
        "state": None,
        "signals": [],
        "children": [],
        "ledger": ledger,
        "next_op": len(ledger) + 1,
        "ended": max([end["ended"] for end in ends], default=0),
        "begun_at": "2026-11-16T12:00:00.000Z",
        "cancelling": False,
    }
    return {**attempt, **case.get("attempt", {})}


class CaseLink:
    """Everything is recorded at once, and the clock stands still."""

    def __init__(self, case: dict[str, Any], script: Script) -> None:
        self.lost = asyncio.Event()
        self.written: list[Any] = []
        self.children: list[Any] = []
        self._clock = read_instant(case["clock"])
        self._script = script

    def now(self) -> int:
        return self._clock

    async def progress(self, name: str, value: Any) -> None:
        raise AssertionError("nobody says so here")

    async def start_child(self, key: str, start: dict[str, Any]) -> str:
        self.children.append({"key": key, "start": start})
        return CHILD

    async def record(self, entries: list[Any]) -> None:
        await asyncio.sleep(0)
        self.written += json.loads(json.dumps(entries))
        self._script.durable = len(self.written)


async def replayed(case: dict[str, Any]) -> dict[str, Any]:
    """What the SDK does in a case."""
    script = Script(case)
    link = CaseLink(case, script)
    said = await script.workflow().execute(attempt_of(case), link)
    assert said is not None
    (verb, say), = said.items()
    entries = say.pop("entries", [])
    found: dict[str, Any] = {"written": link.written + entries, "calls": script.calls}
    if verb == "complete":
        return {**found, "outcome": say["outcome"]}
    return {**found, "fail": fail_of(say)}


def fail_of(say: dict[str, Any]) -> dict[str, Any]:
    fail: dict[str, Any] = error_of(say["error"])
    if say.get("set_aside"):
        fail["set_aside"] = True
    if say.get("reopen"):
        fail["reopen"] = say["reopen"]
    fail["retried"] = "retry" in say
    return fail


def error_of(error: dict[str, Any]) -> dict[str, Any]:
    """What all SDKs say alike of an error."""
    return {"code": error["code"], "retryable": error["retryable"]}


async def stepped(case: dict[str, Any]) -> dict[str, Any]:
    """What the SDK does in a case of a machine."""
    script = Script(case)
    link = CaseLink(case, script)
    said = await script.machine().execute(attempt_of(case), link)
    assert said is not None
    (verb, say), = said.items()
    found = {"written": link.written + say.pop("entries", []), "calls": script.calls, "children": link.children}
    if verb == "fail":
        return {**found, "fail": fail_of(say)}
    handled = {"handled": error_of(say["handled"])} if "handled" in say else {}
    return {**found, "complete": {**say, **handled}}


class Vectors(unittest.TestCase):
    maxDiff = None

    def test_hashes(self) -> None:
        cases = vectors("hashes.json")
        for case in cases["stable"]:
            self.assertEqual(hex16(stable_hash(case["text"].encode())), case["hash"], case)
        for case in cases["canonical"]:
            value = json.loads(case["json"])
            self.assertEqual(canonical_text(value), case["canonical"], case)
            self.assertEqual(hex16(canonical_hash(value)), case["hash"], case)
        for case in cases["inputs"]:
            found = None if case["input"] is None else hex16(input_hash(case["input"]["value"]))
            self.assertEqual(found, case["hash"], case)
        for case in cases["fingerprints"]:
            self.assertEqual(hex16(stable_hash("\0".join(case["parts"]).encode())), case["fingerprint"], case)
        for case in cases["idempotency_keys"]:
            self.assertEqual(f"{identity(case['attempt'])}/{case['key']}", case["idempotency_key"], case)
        for case in cases["token_hashes"]:
            import hashlib

            self.assertEqual(hashlib.sha256(case["token"].encode()).digest()[:16].hex(), case["token_hash"], case)

    def test_replay(self) -> None:
        cases = vectors("replay.json")
        for case in cases:
            with self.subTest(case["name"]):
                found = go(replayed(json.loads(json.dumps(case))))
                if UPDATE:
                    case["expect"] = found
                self.assertEqual(found, case["expect"])
        if UPDATE:
            write("replay.json", cases)

    def test_machines(self) -> None:
        cases = vectors("machines.json")
        for case in cases:
            with self.subTest(case["name"]):
                found = go(stepped(json.loads(json.dumps(case))))
                if UPDATE:
                    case["expect"] = found
                self.assertEqual(found, case["expect"])
        if UPDATE:
            write("machines.json", cases)

    def test_policies(self) -> None:
        cases = vectors("policies.json")
        self.assertEqual({case["policy"] for case in cases}, {"pure", "idempotent", "dedupe", "reconcile", "unsafe_once"})
        for case in cases:
            with self.subTest(f"{case['policy']}, {case['recorded']['name']}"):
                found = go(self.policy(case))
                if UPDATE:
                    case["expect"] = found
                self.assertEqual(found, case["expect"])
        if UPDATE:
            write("policies.json", cases)

    async def policy(self, case: dict[str, Any]) -> str:
        """`begin`, `intend then begin`, `repeat`, `intend then repeat`, `in doubt`, `rest`, `value` or `error`."""
        recorded = case["recorded"].get("entry")
        ledger = []
        if recorded is not None:
            ledger = [{"op": 1, "key": "e", **recorded}]
            ledger[0]["what"]["effect"]["policy"] = case["policy"]
        script = [{"effect": {"name": "e", "policy": case["policy"]}, "as": "v", "catch": "v"}, {"return": {"$": "v"}}]
        run = {"clock": "2026-11-16T12:00:10.000Z", "script": script, "ledger": ledger, "controls": [{"rule": "allow"}]}
        found = await replayed({**run, "effects": {"e": {"value": "called"}}})
        if found["calls"]:
            verb = "begin" if recorded is None else "repeat"
            return f"intend then {verb}" if found["calls"][0]["durable"] else verb
        if "suspend" in found.get("outcome", {}):
            return "rest" if ledger[0]["what"]["effect"].get("retry_at") else "in doubt"
        return "value" if found["outcome"]["done"]["result"] == "recorded" else "error"

    def test_messages(self) -> None:
        made = messages()
        names = set()
        for case in vectors("messages.json"):
            with self.subTest(case["name"]):
                names.add(case["name"])
                if case["name"] in made:
                    self.assertEqual(json.loads(json.dumps(made[case["name"]])), case["json"])
                else:
                    self.read(case)
        self.assertLessEqual(set(made), names)

    def read(self, case: dict[str, Any]) -> None:
        """What this SDK only reads, it must read."""
        body = case["json"]
        if case["shape"] == "Problem":
            found = Problem.of(body)
            self.assertEqual((found.code, found.status, found.detail), (body["code"], body["status"], body["detail"]))
        elif case["shape"] in ("Claims", "Reported"):
            for attempt in body["claims"]:
                ledger = Ledger(attempt, function=True)
                self.assertEqual(len(ledger.entries), len([e for e in attempt["ledger"] if e["visit"] == attempt["visit"]]))
                self.assertGreater(claim_number(attempt["claim"]), 0)
        else:
            self.assertIn(case["direction"], ("request", "answer"))


def messages() -> dict[str, Any]:
    """The messages that this SDK makes, by the names that the vectors have for them."""
    error = abide.StepError("no more", code="sold_out", retryable=False, details={"left": 0})
    outcomes = {
        "outcome next": abide.next_step("ship", {"n": 1}),
        "outcome replay": abide.replay({"n": 1}, 1.5),
        "outcome await": abide.await_signals(["paid", "late"], None, then="ship", deadline=60),
        "outcome sleep": abide.sleep(60, {"n": 1}),
        "outcome spawn": abide.spawn([abide.child("part", 1, key="p1")], "join", join={"quorum": 1}),
        "outcome done": abide.done([1]),
        "outcome stop": abide.stop(error),
        "outcome continue_as_new": abide.continue_as_new(2),
    }
    retry = abide.RetryPolicy(delay_ms=100, backoff="constant", delay_ms_max=5_000, jitter_percent=10, retries_max=3)
    worker = abide.Worker("http://127.0.0.1:1", workflows=[_five()], name="w1", queues=["default", "mail"])
    worker._hash = "0" * 32
    return {
        **{name: outcome.message for name, outcome in outcomes.items()},
        "say complete": complete({"done": {"result": 1}}, []),
        "say fail": failed(error, [], retry, [3]),
        "say set aside": set_aside(abide.terminal("diverged", "the code does not fit").info()),
        "claim work": worker._work(4, 20_000),
        "start in a trace": abide.child("order", traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        "start": abide.child(
            "order", {"n": 1}, version=2, key="k", on_conflict="reuse", queue="mail", priority=-1, concurrency=("c", 2),
            delay=1, deadline=3_600, labels={"team": "a"}, deliveries_max=5,
        ),
    }


def _five() -> abide.Workflow:
    @abide.workflow("order", 2)
    async def order(ctx: abide.Context, _: Any) -> None: ...

    return order


def write(name: str, cases: Any) -> None:
    """Writes vectors back, one case after the other."""
    text = ",\n".join(json.dumps(case, indent=2, ensure_ascii=False) for case in cases)
    (VECTORS / name).write_text(f"[\n{text}\n]\n")


if __name__ == "__main__":
    unittest.main()
