"""An engine in memory behind the worker's routes, on a real socket."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

from fake import Asked, Fake, Said, problem

import support  # noqa: F401  (makes the package found)
from abide.errors import Problem
from abide.ledger import claim_number
from abide.testing import TestEngine, TestRun
from abide.testing.ledger import Run, refusal


class Served:
    """Claims and reports over HTTP."""

    def __init__(self, engine: TestEngine) -> None:
        self.engine = engine
        self.fake = Fake(self.answer)
        self.hashes: dict[str, str] = {}
        self.broken: list[Said | str] = []
        """What happens to the next reports: an answer of its own; `lost`: carried out, and not answered; `unsure`: each
        answered with a problem that says that nobody knows."""
        self.reports: list[list[dict[str, Any]]] = []
        self.most = 0
        """How many attempts were out at once."""
        self.answered: dict[str, dict[str, Any]] = {}

    async def __aenter__(self) -> Served:
        await self.fake.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.fake.stop()

    def start(self, workflow: str, input: Any = None) -> TestRun:
        return self.engine.start(workflow, input)

    async def ended(self, run: TestRun) -> None:
        while not run.run.over:
            await asyncio.sleep(0.002)

    async def answer(self, asked: Asked) -> Said:
        if asked.path.endswith("/worker/claims"):
            until = asyncio.get_running_loop().time() + asked.body["wait_ms"] / 1_000
            while not (claims := self._claims(asked.body)) and asyncio.get_running_loop().time() < until:
                await asyncio.sleep(0.005)
            return Said({"claims": claims})
        if not asked.path.endswith("/worker/reports"):
            return problem(404, "no_route")
        broken = self.broken.pop(0) if self.broken else None
        if isinstance(broken, Said):
            return broken
        if broken == "unsure":
            unknown = problem(503, "unknown").body
            return Said({"answers": [{"problem": unknown} for _ in asked.body["reports"]], "claims": []})
        self.reports.append(asked.body["reports"])
        answers = [self._report(report, asked.body["token"]) for report in asked.body["reports"]]
        if broken == "lost":
            return Said(how="hang_up")
        more = asked.body.get("next")
        return Said({"answers": answers, "claims": [] if more is None else self._claims(more)})

    def _claims(self, work: dict[str, Any]) -> list[dict[str, Any]]:
        offered = {(offer["workflow"], offer["version"]) for offer in work["workflows"]}
        ready = [run for run in self.engine.runs.values() if run.status == "runnable" and (run.workflow, run.version) in offered]
        given = []
        for run in ready[: work["most"]]:
            given.append(self.engine.claim(run))
            self.hashes[run.id] = work["token_hash"]
        out = [run for run in self.engine.runs.values() if run.status == "executing"]
        self.most = max(self.most, len(out))
        return given

    def lose(self, run: TestRun) -> None:
        """The lease ends."""
        run.run.status, run.run.reclaims = "runnable", run.run.reclaims + 1

    def _report(self, report: dict[str, Any], token: str) -> dict[str, Any]:
        run = self.engine.runs["run_" + report["claim"].split("_")[1]]
        said = repr(report)
        if said in self.answered and "heartbeat" not in report["say"]:
            return {**self.answered[said], "recorded": {"rev": 1, "duplicate": True}}
        try:
            more = self._say(run, report, token)
        except Problem as no:
            return {"problem": no.body}
        if more:
            return more
        self.answered[said] = {"recorded": {"rev": 1, "duplicate": False}}
        return {"recorded": {"rev": 1, "duplicate": False}, "lease_until": "2026-01-01T00:00:30.000Z"}

    def _say(self, run: Run, report: dict[str, Any], token: str) -> dict[str, Any]:
        if hashlib.sha256(token.encode()).hexdigest()[:32] != self.hashes[run.id]:
            raise refusal("wrong_token", "another worker's")
        if run.claims != claim_number(report["claim"]) or run.status != "executing":
            raise refusal("stale_claim", "another attempt has it")
        verb, said = next(iter(report["say"].items()))
        if verb == "start_child":
            return {"child": self.engine.start_child(run, said["key"], said["start"])}
        if verb == "record":
            run.write(said["entries"])
        elif verb == "give_back":
            run.status = "runnable"
        elif verb != "heartbeat":
            self.engine.apply(run, report["say"])
        return {}
