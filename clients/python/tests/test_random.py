"""Workflows made by chance: each comes to the same end wherever its worker dies."""

from __future__ import annotations

import os
import random
import unittest
from typing import Any

from script import Script
from support import go

import abide
from abide.testing import crash_everywhere

SEEDS = int(os.environ.get("ABIDE_SEEDS", "10"))


def made(chance: random.Random, depth: int = 0) -> list[dict[str, Any]]:
    """Steps made by chance. Names in branches are kept apart by scopes."""
    steps: list[dict[str, Any]] = []
    for number in range(chance.randint(1, 4)):
        kinds = ["effect", "effect", "sleep", "signal", "publish", "patch", "undo", "child"]
        kind = chance.choice(kinds + (["all", "race"] if depth < 2 else []))
        name = chance.choice("abc")
        if kind == "effect":
            policy = chance.choice(["pure", "idempotent", "dedupe"])
            steps.append({"effect": {"name": name, "policy": policy, "input": number}, "as": f"{kind}{number}", "catch": "e"})
        elif kind == "sleep":
            steps.append({"sleep": {"ms": chance.choice([0, 10, 20, 30])}})
        elif kind == "signal":
            # In a branch it never comes: whose turn it is would be up to which branch was there first.
            awaited = {"name": name if depth == 0 else f"no {name}", "within_ms": chance.choice([5, 25, 60])}
            steps.append({"signal": awaited, "as": f"{kind}{number}"})
        elif kind == "publish":
            steps.append({"publish": [name, number]})
        elif kind == "undo":
            steps.append({"undo": {"name": f"undo {name}"}})
        elif kind == "child":
            steps.append({"child": {"name": f"kid {name}", "workflow": "kid", "input": number}, "as": f"{kind}{number}"})
        elif kind == "patch":
            steps.append({"patch": {"name": name, "then": made(chance, 3) if depth < 3 else []}})
        elif kind == "race":
            # Of waits alone: whether an effect ends before a timer is decided anew when a worker dies before that is durable.
            sleeps = chance.sample([4, 8, 12, 16], chance.randint(2, 3))
            steps.append({"race": [[_scoped(place, [{"sleep": {"ms": ms}}])] for place, ms in enumerate(sleeps)], "as": f"{kind}{number}"})
        else:
            branches = [[_scoped(place, made(chance, depth + 1))] for place in range(chance.randint(2, 3))]
            steps.append({"all": branches, "as": f"{kind}{number}"})
    return steps


def _scoped(place: int, steps: list[dict[str, Any]]) -> dict[str, Any]:
    return {"scope": {"name": f"s{place}", "do": steps}}


@abide.workflow("kid")
async def kid(ctx: abide.Context, n: int) -> int:
    await ctx.sleep(0.015)
    return 10 * n


class Chance(unittest.TestCase):
    def test_workflows_made_by_chance_come_to_the_same_end_wherever_their_worker_dies(self) -> None:
        crashes = 0
        for seed in range(SEEDS):
            chance = random.Random(seed)
            steps = made(chance)
            told = [step["as"] for step in steps if "as" in step and step.get("catch") is None]
            ending: dict[str, Any] = {"return": [{"$": name} for name in dict.fromkeys(told)]}
            if seed % 7 == 3:
                ending = {"fail": {"code": "chance", "message": "no", "retryable": False}}
            case = {"script": [*steps, ending], "effects": {"a": {"value": 1}, "b": {"error": {"code": "x", "message": "y", "retryable": False}}}}
            signals = [chance.choice("abc") for _ in range(3)]

            async def story(run: Any, signals: list[str] = signals) -> None:
                for name in signals:
                    await run.engine.advance(0.012)
                    await run.signal(name, name)

            with self.subTest(seed=seed):
                crashes += go(crash_everywhere([Script(case).workflow(), kid], "script", story=story))
        self.assertGreater(crashes, 10 * SEEDS)


if __name__ == "__main__":
    unittest.main()
