"""Machines: steps, outcomes and effects inside of steps."""

from __future__ import annotations

import asyncio
import unittest
from typing import Any

from support import go

import abide
from abide.link import Unknown
from abide.testing import TestEngine, crash_everywhere


def order() -> tuple[abide.Machine, list[str]]:
    calls: list[str] = []
    machine = abide.Machine("order", retry=abide.RetryPolicy.exponential(1, retries_max=2))

    @machine.step("charge")
    async def charge(ctx: abide.StepContext) -> abide.Outcome:
        charged = await ctx.effect("charge", lambda call: calls.append(call.key) or ctx.input)
        return abide.next_step("wait", {"charged": charged})

    @machine.step("wait")
    async def wait(ctx: abide.StepContext) -> abide.Outcome:
        paid = ctx.signal("paid")
        if paid is None and not ctx.timed_out:
            return abide.await_signals("paid", ctx.state, deadline=60)
        return abide.sleep(5, {**ctx.state, "paid": paid}, then="parts")

    @machine.step("parts")
    async def parts(ctx: abide.StepContext) -> abide.Outcome:
        return abide.spawn([abide.child("part", n) for n in (1, 2)], "end", ctx.state)

    @machine.step("end")
    async def end(ctx: abide.StepContext) -> abide.Outcome:
        return abide.done({**ctx.state, "parts": [child["result"] for child in ctx.children], "by": ctx.woken_by})

    return machine, calls


@abide.workflow("part")
async def part(ctx: abide.Context, n: int) -> int:
    return 10 * n


class Machines(unittest.TestCase):
    def test_the_next_attempt_is_told_how_far_the_last_one_came(self) -> None:
        """BU-28, BU-29"""
        machine = abide.Machine("pages", retry=abide.RetryPolicy.exponential(1, retries_max=2))

        @machine.step("copy")
        async def copy(ctx: abide.StepContext) -> abide.Outcome:
            first = ctx.last_progress.get("page", 0)
            for page in range(first + 1, first + 3):
                await ctx.progress("page", page)
            if ctx.attempt == 0:
                raise RuntimeError("broken")
            return abide.next_step("end", first)

        @machine.step("end")
        async def end(ctx: abide.StepContext) -> abide.Outcome:
            return abide.done([ctx.state, ctx.last_progress])

        async def test() -> None:
            run = TestEngine(machine).start("pages", None)
            self.assertEqual(await run.result(), [2, {}], "of the step before, nothing is told")
            self.assertEqual(run.progress, {"page": 4})

        go(test())

    def test_steps_follow_their_outcomes(self) -> None:
        machine, calls = order()

        async def test() -> None:
            run = TestEngine(machine, part).start("order", 7)
            await run.engine.settle()
            await run.signal("paid", True)
            expected = {"charged": 7, "paid": True, "parts": [10, 20], "by": "children"}
            self.assertEqual(await run.result(), expected)
            self.assertEqual(calls, [f"{run.id}-0-charge-1/charge"])
            late = TestEngine(machine, part).start("order", 7)
            self.assertIsNone((await late.result())["paid"], "the deadline came first")

        go(test())

    def test_a_step_comes_to_the_same_end_wherever_its_worker_dies(self) -> None:
        machine, _ = order()

        async def story(run: Any) -> None:
            await run.signal("paid", True)

        go(crash_everywhere([machine, part], "order", 7, story=story))

    def test_errors_are_retried_answered_or_end_the_run(self) -> None:
        tried: list[int] = []
        machine = abide.Machine("breaks", retry=abide.RetryPolicy.exponential(1, retries_max=2))

        @machine.step("one")
        async def one(ctx: abide.StepContext) -> abide.Outcome:
            tried.append(ctx.attempt)
            raise OSError("no")

        async def test() -> None:
            with self.assertRaises(abide.RunFailed):
                await TestEngine(machine).start("breaks").result()
            self.assertEqual(tried, [0, 1, 2])

            @machine.on_error
            async def answer(error: abide.StepError, ctx: abide.StepContext) -> abide.Outcome:
                return abide.done(error.message)

            self.assertEqual(await TestEngine(machine).start("breaks").result(), "OSError: no")

        go(test())

    def test_the_same_key_gives_the_same_child_wherever_the_worker_dies(self) -> None:
        machine = abide.Machine("parent")

        @machine.step("one")
        async def one(ctx: abide.StepContext) -> abide.Outcome:
            return abide.next_step("two", await ctx.start_child("kid", abide.child("kid", 3)))

        @machine.step("two")
        async def two(ctx: abide.StepContext) -> abide.Outcome:
            other = await ctx.start_child("kid", abide.child("kid", 4))
            return abide.done([ctx.state, other, ctx.children[0]["key"]])

        @abide.workflow("kid")
        async def kid(ctx: abide.Context, n: int) -> int:
            return n

        async def conflict() -> None:
            engine = TestEngine(machine, kid)
            run = engine.runs[engine.start("parent").id]
            engine.start_child(run, "kid", abide.child("kid", 3))
            with self.assertRaises(abide.Problem) as refused:
                engine.start_child(run, "kid", abide.child("kid", 4))
            self.assertEqual(refused.exception.code, "child_conflict")

        self.assertGreater(go(crash_everywhere([machine, kid], "parent")), 3)
        first, second = f"run_{2:032x}", f"run_{3:032x}"
        found = go(TestEngine(machine, kid).start("parent").result())
        self.assertEqual(found, [first, second, "kid"])
        go(conflict())

    def test_what_ends_a_step_does_not_overtake_what_it_records(self) -> None:
        """A step that fails while the record of another of its effects is under way: numbers that come with its end follow
        those of the record."""

        def machine_of(answers: bool) -> abide.Machine:
            machine = abide.Machine("both", controls=[abide.allow()])

            @machine.step("one")
            async def one(ctx: abide.StepContext) -> abide.Outcome:
                await asyncio.gather(
                    ctx.effect("wire", lambda: 1, policy="unsafe_once"),
                    ctx.effect("look", lambda: 1 / 0, policy="pure"),
                )
                return abide.done()

            if answers:

                @machine.on_error
                async def answer(error: abide.StepError, ctx: abide.StepContext) -> abide.Outcome:
                    return abide.done()

            return machine

        async def test(answers: bool, refusal: Exception | None) -> list[str]:
            said: list[str] = []
            begun, go_on = asyncio.Event(), asyncio.Event()

            class Slow:
                lost = asyncio.Event()

                def now(self) -> int:
                    return 0

                async def record(self, entries: list[Any]) -> None:
                    begun.set()
                    await go_on.wait()
                    if refusal is not None:
                        raise refusal
                    said.append("record")

                async def progress(self, name: str, value: Any) -> None:
                    raise AssertionError("nobody says so here")

                async def start_child(self, key: str, start: dict[str, Any]) -> str:
                    raise AssertionError("nobody says so here")

            machine = machine_of(answers)
            engine = TestEngine(machine)
            attempt = engine.claim(engine.start("both").run)
            executing = asyncio.ensure_future(machine.execute(attempt, Slow()))
            await begun.wait()
            for _ in range(10):
                await asyncio.sleep(0)
            self.assertFalse(executing.done())
            go_on.set()
            ended = await executing or {}
            return [*said, *ended]

        for answers, end in ((False, "fail"), (True, "complete")):
            with self.subTest(answers=answers):
                self.assertEqual(go(test(answers, None)), ["record", end])
                # Whether it was recorded is not known, so nothing can follow it.
                self.assertEqual(go(test(answers, Unknown("lost"))), ["give_back"])

    def test_an_effect_in_doubt_gives_the_worker_back(self) -> None:
        machine = abide.Machine("once", controls=[abide.allow()])

        @machine.step("one")
        async def one(ctx: abide.StepContext) -> abide.Outcome:
            return abide.done(await ctx.effect("wire", lambda: 1, policy="reconcile"))

        async def test() -> None:
            engine = TestEngine(machine)
            engine.crash = (2, "before")
            run = engine.start("once")
            await engine.settle()
            self.assertEqual(run.status, "in_doubt")
            await run.resolve("wire", "value", 5)
            self.assertEqual(await run.result(), 5)

        go(test())

    def test_an_effect_that_rests_gives_the_worker_back(self) -> None:
        tried: list[int] = []
        machine = abide.Machine("rests")

        @machine.step("one")
        async def one(ctx: abide.StepContext) -> abide.Outcome:
            async def fetch() -> str:
                tried.append(1)
                if len(tried) < 3:
                    raise OSError("not yet")
                return "here"

            return abide.done(await ctx.effect("fetch", fetch, retry=abide.RetryPolicy(delay_ms=1_000, backoff="linear")))

        async def test() -> None:
            engine = TestEngine(machine)
            begun = engine.now
            self.assertEqual(await engine.start("rests").result(), "here")
            self.assertEqual(engine.now - begun, 3_000)

        go(test())

    def test_what_is_no_outcome_and_a_step_that_is_not_there_are_named(self) -> None:
        machine = abide.Machine("odd")

        @machine.step("one")
        async def one(ctx: abide.StepContext) -> Any:
            return 5 if ctx.input == "value" else abide.next_step("two")

        async def test() -> None:
            for input, code in [("value", "no_outcome"), ("step", "unknown_step")]:
                with self.assertRaises(abide.RunFailed) as failed:
                    await TestEngine(machine).start("odd", input).result()
                self.assertEqual(failed.exception.error and failed.exception.error.code, code)

        go(test())
        with self.assertRaises(ValueError):
            abide.Machine("none").offer()
        with self.assertRaises(ValueError):
            machine.step("one")(one)


if __name__ == "__main__":
    unittest.main()
