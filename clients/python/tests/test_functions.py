"""Functions over their ledger, in the engine in memory."""

from __future__ import annotations

import asyncio
import unittest
from datetime import timedelta
from typing import Any

from support import go

import abide
from abide.testing import Stuck, TestEngine, crash_everywhere


class Functions(unittest.TestCase):
    def test_an_effect_is_executed_once_and_its_result_is_there_after(self) -> None:
        calls: list[str] = []

        @abide.workflow("order")
        async def order(ctx: abide.Context, amount: int) -> Any:
            async def charge(call: abide.Call) -> dict[str, Any]:
                calls.append(call.key)
                return {"charged": amount}

            charged = await ctx.effect("charge", charge, input=amount)
            charged["changed"] = True
            await ctx.sleep(timedelta(days=30))
            return [charged, await ctx.effect("charge", charge)]

        async def test() -> None:
            run = TestEngine(order).start("order", 5)
            charged = {"charged": 5}
            self.assertEqual(await run.result(), [charged | {"changed": True}, charged])
            base = f"{run.id}-0-run-1"
            self.assertEqual(calls, [f"{base}/charge", f"{base}/charge#2"])
            self.assertEqual(run.keys, ["charge", "sleep", "charge#2"])
            self.assertEqual(run.run.ops[0]["end"]["value"], charged, "what the code changes is not what is recorded")

        go(test())

    def test_results_ride_with_what_is_written_next(self) -> None:
        @abide.workflow("five")
        async def five(ctx: abide.Context, _: Any) -> int:
            total = 0
            for step in range(5):
                total += await ctx.effect(f"step {step}", lambda step=step: step)
            return total

        async def test() -> None:
            engine = TestEngine(five)
            self.assertEqual(await engine.start("five").result(), 10)
            self.assertEqual(engine.reports, 5, "the result of one with the intent of the next, the last with the outcome")

        go(test())

    def test_gather_and_race_are_replayed_in_the_order_they_were_seen(self) -> None:
        orders: list[list[str]] = []

        @abide.workflow("both")
        async def both(ctx: abide.Context, _: Any) -> Any:
            seen: list[str] = []
            orders.append(seen)

            async def one(name: str, seconds: float) -> str:
                await ctx.scope(name).sleep(seconds)
                seen.append(name)
                return name

            gathered = await asyncio.gather(one("a", 3), one("b", 1), one("c", 2))
            won = await ctx.race(ctx.signal("never"), one("d", 1), ctx.scope("slow").sleep(9))
            await ctx.sleep(1)
            return [gathered, list(won), seen]

        async def test() -> None:
            run = TestEngine(both).start("both")
            self.assertEqual(await run.result(), [["a", "b", "c"], [1, "d"], ["b", "c", "a", "d"]])
            for seen in orders:
                self.assertEqual(seen, ["b", "c", "a", "d"][: len(seen)])
            ends = {op["key"]: op["end"] for op in run.run.ops}
            self.assertIn("elapsed", ends["signal never"], "what lost the race is withdrawn")

        go(test())

    def test_a_signal_goes_to_the_wait_of_its_name_or_the_time_is_over(self) -> None:
        @abide.workflow("waits")
        async def waits(ctx: abide.Context, _: Any) -> Any:
            first = await ctx.signal("paid", timeout=10)
            second = await ctx.signal("paid", timeout=10, default="too late")
            return [first, second]

        async def test() -> None:
            run = TestEngine(waits).start("waits")
            await run.signal("other", 1)
            await run.signal("paid", {"by": "card"})
            self.assertEqual(await run.result(), [{"by": "card"}, "too late"])
            self.assertEqual(run.keys, ["signal paid", "signal paid#2"])

        go(test())

    def test_a_signal_of_a_wait_that_was_given_up_goes_to_the_next(self) -> None:
        @abide.workflow("waits")
        async def waits(ctx: abide.Context, _: Any) -> Any:
            place, _ = await ctx.race(ctx.scope("x").sleep(1), ctx.signal("go"))
            return [place, await ctx.signal("go")]

        async def test() -> None:
            run = TestEngine(waits).start("waits")
            await run.engine.advance(2)
            await run.signal("go", 7)
            self.assertEqual(await run.result(), [0, 7])

        go(test())

    def test_updates_are_answered_and_the_state_is_seen(self) -> None:
        @abide.workflow("counter")
        async def counter(ctx: abide.Context, count: int) -> int:
            while count < 10:
                ctx.publish({"count": count})
                asked = await ctx.update("add")
                if asked.input == 0:
                    asked.reject("nothing to add")
                else:
                    count += asked.input
                    asked.answer(count)
            return count

        async def test() -> None:
            engine = TestEngine(counter)
            run = engine.start("counter", 0)
            await engine.settle()
            self.assertEqual(await run.update("add", 4), 4)
            self.assertEqual(run.state, {"count": 4})
            with self.assertRaises(abide.UpdateRejected) as refused:
                await run.update("add", 0)
            self.assertEqual(refused.exception.error and refused.exception.error["message"], "nothing to add")
            self.assertEqual(await run.update("add", 6), 10)
            self.assertEqual(await run.result(), 10)

        go(test())

    def test_people_approve_and_hand_in_work(self) -> None:
        @abide.workflow("asks")
        async def asks(ctx: abide.Context, amount: int) -> Any:
            decision = await ctx.approval("pay", {"amount": amount}, roles=["finance"], timeout=60)
            if not decision.approved:
                return decision.note
            return await ctx.task("count", {"what": "boxes"})

        async def test() -> None:
            engine = TestEngine(asks)
            run = engine.start("asks", 7)
            await engine.settle()
            asked = run.asked()
            assert asked is not None
            self.assertEqual((asked["name"], asked["payload"], asked["roles"]), ("pay", {"amount": 7}, ["finance"]))
            await run.approve(actor="ann")
            await run.complete(12)
            self.assertEqual(await run.result(), 12)
            run = engine.start("asks", 8)
            await engine.settle()
            await run.reject(note="too dear")
            self.assertEqual(await run.result(), "too dear")
            self.assertIsNone(await engine.start("asks", 9).result(), "nobody decided in time")

        go(test())

    def test_children_give_results_and_errors(self) -> None:
        @abide.workflow("double")
        async def double(ctx: abide.Context, n: int) -> int:
            if n == 13:
                raise abide.terminal("unlucky", "thirteen")
            return 2 * n

        @abide.workflow("sum")
        async def total(ctx: abide.Context, _: Any) -> Any:
            one = ctx.start_child("one", abide.child("double", 4))
            two = await ctx.child("two", "double", 5)
            with self.assertRaises(abide.StepError) as unlucky:
                await ctx.child("bad", "double", 13)
            return [await one.result() + two, unlucky.exception.code]

        async def test() -> None:
            self.assertEqual(await TestEngine(double, total).start("sum").result(), [18, "unlucky"])

        go(test())

    def test_many_children_are_joined_as_is_asked(self) -> None:
        @abide.workflow("quote")
        async def quote(ctx: abide.Context, price: int) -> int:
            await ctx.sleep(price)
            if price > 100:
                raise abide.terminal("dear", "too dear")
            return price

        @abide.workflow("buy")
        async def buy(ctx: abide.Context, asked: Any) -> Any:
            shops = {shop: abide.child("quote", price) for shop, price in enumerate(asked["prices"])}
            quotes = await ctx.children("quotes", shops, join=asked["join"], timeout=asked.get("timeout"))
            await ctx.sleep(1)
            return [quotes.succeeded(), quotes.met(), len(quotes.ended)]

        async def test() -> None:
            for asked, expected in [
                ({"prices": [80, 300, 70], "join": {"quorum": 2}}, [[80, 70], True, 2]),
                ({"prices": [80, 300, 70], "join": "any"}, [[70], True, 1]),
                ({"prices": [80, 101, 170], "join": "all_succeeded"}, [[80], False, 2]),
                ({"prices": [80, 101, 70], "join": "all_terminal"}, [[80, 70], True, 3]),
                ({"prices": [80, 300, 70], "join": "all_terminal", "timeout": 75}, [[70], False, 1]),
            ]:
                self.assertEqual(await TestEngine(quote, buy).start("buy", asked).result(), expected)
            run = TestEngine(quote, buy).start("buy", {"prices": [80], "join": {"quorum": 2}})
            with self.assertRaises(abide.RunFailed):
                await run.result()
            await crash_everywhere([quote, buy], "buy", {"prices": [3, 300, 7], "join": "all_terminal", "timeout": 5})

        go(test())

    def test_a_patch_goes_one_way_for_good(self) -> None:
        def made(edited: bool) -> abide.Workflow:
            @abide.workflow("edit")
            async def edit(ctx: abide.Context, _: Any) -> Any:
                if edited and ctx.patch("new"):
                    way = await ctx.effect("new way", lambda: "new")
                else:
                    way = await ctx.effect("old way", lambda: "old")
                await ctx.signal("go")
                return [way, ctx.patch("new") if edited else None]

            return edit

        async def test() -> None:
            engine = TestEngine(made(False))
            old = engine.start("edit")
            await engine.settle()
            engine._code["edit", 1] = made(True)
            new = engine.start("edit")
            await engine.settle()
            await old.signal("go")
            await new.signal("go")
            self.assertEqual(await old.result(), ["old", False])
            self.assertEqual(await new.result(), ["new", True])
            self.assertEqual(new.keys[0], "patch new")

        go(test())

    def test_a_function_begins_again_with_an_empty_ledger(self) -> None:
        @abide.workflow("count")
        async def count(ctx: abide.Context, n: int) -> int:
            following = await ctx.effect("next", lambda: n + 1)
            if following < 5:
                ctx.continue_as_new(following)
            return following

        async def test() -> None:
            self.assertEqual(await TestEngine(count).start("count", 0).result(), 5)

        go(test())

    def test_chance_and_time_are_the_same_in_every_replay(self) -> None:
        drawn: list[Any] = []

        @abide.workflow("chance")
        async def chance(ctx: abide.Context, _: Any) -> None:
            drawn.append((ctx.now(), ctx.random("a"), ctx.uuid("a"), ctx.scope("s").random("a")))
            await ctx.sleep(1)
            await ctx.sleep(1)

        async def test() -> None:
            await TestEngine(chance).start("chance").result()
            self.assertEqual(len(drawn), 3)
            self.assertEqual(drawn[0], drawn[1])
            self.assertEqual(drawn[0], drawn[2])
            self.assertNotEqual(drawn[0][1], drawn[0][3])
            self.assertRegex(drawn[0][2], r"^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$")

        go(test())


class Records(unittest.TestCase):
    def test_an_outcome_never_overtakes_a_record_that_is_on_its_way(self) -> None:
        """Found by killing workers of a real server: the outcome's entries had numbers that were not there yet."""

        class Slow:
            def __init__(self) -> None:
                self.lost = asyncio.Event()
                self.written: list[Any] = []
                self.asked = asyncio.Event()

            def now(self) -> int:
                return 0

            async def progress(self, name: str, value: Any) -> None:
                raise AssertionError("nobody says so here")

            async def record(self, entries: list[Any]) -> None:
                self.asked.set()
                for _ in range(50):
                    await asyncio.sleep(0)
                self.written += entries

        async def test() -> None:
            link = Slow()

            @abide.workflow("both")
            async def both(ctx: abide.Context, _: Any) -> Any:
                async def late() -> None:
                    await link.asked.wait()

                await asyncio.gather(ctx.effect("early", lambda: None), ctx.effect("late", late))

            engine = TestEngine(both)
            attempt = engine.claim(engine.start("both").run)
            say = await both.execute(attempt, link)
            assert say is not None
            numbers = [next(iter(entry.values()))["op"] for entry in link.written + say["complete"]["entries"]]
            self.assertEqual(numbers, [1, 1, 2, 2])

        go(test())


class Failing(unittest.TestCase):
    def test_an_error_is_recorded_with_its_traceback_and_ends_the_run(self) -> None:
        @abide.workflow("breaks")
        async def breaks(ctx: abide.Context, _: Any) -> None:
            raise KeyError("lost")

        async def test() -> None:
            with self.assertRaises(abide.RunFailed) as failed:
                await TestEngine(breaks).start("breaks").result()
            error = failed.exception.error
            assert error is not None
            self.assertEqual((error.code, error.message), ("error", "KeyError: 'lost'"))
            self.assertIn("raise KeyError", error.details["traceback"])

        go(test())

    def test_a_retry_begins_the_effect_again_that_failed_and_no_other(self) -> None:
        calls: list[str] = []

        @abide.workflow("flaky", retry=abide.RetryPolicy.exponential(1))
        async def flaky(ctx: abide.Context, _: Any) -> list[Any]:
            async def two() -> int:
                calls.append("two")
                if calls.count("two") < 3:
                    raise OSError("not yet")
                return 2

            return [await ctx.effect("one", lambda: calls.append("one")), await ctx.effect("two", two)]

        async def test() -> None:
            self.assertEqual(await TestEngine(flaky).start("flaky").result(), [None, 2])
            self.assertEqual(calls, ["one", "two", "two", "two"])

        go(test())

    def test_an_effect_with_a_retry_policy_rests_and_the_code_hears_only_the_end(self) -> None:
        calls: list[int] = []

        @abide.workflow("retried")
        async def retried(ctx: abide.Context, often: int) -> Any:
            async def fetch() -> str:
                calls.append(1)
                if len(calls) <= often:
                    raise OSError("not yet")
                return "here"

            try:
                return await ctx.effect("fetch", fetch, retry=abide.RetryPolicy.exponential(10, retries_max=2))
            except abide.StepError as error:
                return [error.message, error.retryable]

        async def test() -> None:
            engine = TestEngine(retried)
            begun = engine.now
            self.assertEqual(await engine.start("retried", 2).result(), "here")
            self.assertEqual(engine.now - begun, 30_000, "10 s, then 20 s")
            calls.clear()
            self.assertEqual(await engine.start("retried", 9).result(), ["OSError: not yet", False])
            self.assertEqual(len(calls), 3)

        go(test())

    def test_what_was_done_is_undone_when_the_function_fails_or_is_cancelled(self) -> None:
        undone: list[str] = []

        @abide.workflow("trip")
        async def trip(ctx: abide.Context, fail: bool) -> None:
            for what in ("flight", "hotel"):
                await ctx.effect(f"book {what}", lambda: None)
                ctx.undo(f"cancel {what}", lambda what=what: undone.append(what))
            if fail:
                raise abide.terminal("full", "no car")
            await ctx.signal("go")

        async def test() -> None:
            engine = TestEngine(trip)
            with self.assertRaises(abide.RunFailed) as failed:
                await engine.start("trip", True).result()
            self.assertEqual(failed.exception.error and failed.exception.error.code, "full")
            self.assertEqual(undone, ["hotel", "flight"])
            undone.clear()
            run = engine.start("trip", False)
            await engine.settle()
            await run.cancel()
            self.assertEqual((run.status, undone), ("cancelled", ["hotel", "flight"]))

        go(test())

    def test_code_that_does_not_fit_its_ledger_is_set_aside(self) -> None:
        def made(edit: str) -> abide.Workflow:
            @abide.workflow("edited")
            async def edited(ctx: abide.Context, _: Any) -> None:
                if edit == "kind":
                    await ctx.approval("pay")
                else:
                    await ctx.effect("pay", lambda: None, input=2 if edit == "input" else 1)
                await ctx.signal("go")

            return edited

        async def test() -> None:
            for edit, said in [
                ("kind", "expected an effect, as recorded, found a wait for a person"),
                ("input", "expected the input it was recorded with"),
            ]:
                engine = TestEngine(made(""))
                run = engine.start("edited")
                await engine.settle()
                engine._code["edited", 1] = made(edit)
                await run.signal("go")
                self.assertEqual(run.status, "dead_lettered")
                assert run.run.error is not None
                self.assertEqual(run.run.error["code"], "diverged")
                self.assertIn(said, run.run.error["message"])

        go(test())

    def test_waits_that_the_engine_cannot_see_are_set_aside(self) -> None:
        async def sleeps(ctx: abide.Context) -> None:
            await asyncio.sleep(1)

        async def waits(ctx: abide.Context) -> None:
            await asyncio.Event().wait()

        async def threads(ctx: abide.Context) -> None:
            await asyncio.to_thread(print)

        async def foreign(ctx: abide.Context) -> None:
            await futures[0]

        async def spins(ctx: abide.Context) -> None:
            while True:
                await asyncio.sleep(0)

        futures: list[asyncio.Future[None]] = []

        async def test() -> None:
            futures.append(asyncio.get_running_loop().create_future())
            for code in (sleeps, waits, threads, foreign, spins):

                @abide.workflow("sleepy")
                async def sleepy(ctx: abide.Context, _: Any, code: Any = code) -> None:
                    await ctx.effect("first", lambda: 1)
                    await code(ctx)

                run = TestEngine(sleepy).start("sleepy")
                with self.assertRaises(abide.RunFailed):
                    await run.result()
                self.assertEqual(run.status, "dead_lettered", code.__name__)
                assert run.run.error is not None
                self.assertIn(run.run.error["code"], ("foreign_wait", "endless"), run.run.error)

        go(test())

    def test_names_that_cannot_be_recorded_are_refused(self) -> None:
        @abide.workflow("names")
        async def names(ctx: abide.Context, name: str) -> str:
            try:
                await ctx.effect(name, lambda: 1)
            except abide.StepError as error:
                return error.code
            return "fine"

        @abide.workflow("overlap")
        async def overlap(ctx: abide.Context, _: Any) -> Any:
            try:
                await asyncio.gather(ctx.effect("a", lambda: 1), ctx.effect("a", lambda: 2))
            except abide.StepError as error:
                return error.code

        async def test() -> None:
            engine = TestEngine(names, overlap)
            for name, code in [("", "bad_name"), ("a#2", "bad_name"), ("x" * 981, "bad_name"), ("x" * 980, "fine")]:
                self.assertEqual(await engine.start("names", name).result(), code)
            self.assertEqual(await engine.start("overlap").result(), "overlapping_effects")

        go(test())


class Policies(unittest.TestCase):
    def test_what_must_not_happen_twice_needs_a_control(self) -> None:
        with self.assertRaises(abide.PlanError):
            abide.workflow("wire", operations=[("wire", "unsafe_once")])

        @abide.workflow("wire")
        async def wire(ctx: abide.Context, _: Any) -> Any:
            try:
                return await ctx.effect("wire", lambda: 1, policy="unsafe_once")
            except abide.StepError as error:
                return error.code

        async def test() -> None:
            self.assertEqual(await TestEngine(wire).start("wire").result(), "unsafe_once_requires_control")

        go(test())

    def test_after_a_crash_it_is_in_doubt_and_waits_to_be_resolved(self) -> None:
        calls: list[str] = []

        @abide.workflow("wire", controls=[abide.allow("wire")])
        async def wire(ctx: abide.Context, _: Any) -> Any:
            return await ctx.effect("wire", lambda call: calls.append(call.key), policy="unsafe_once")

        async def test() -> None:
            for how, value, expected, count in [("value", 7, 7, 1), ("retry", None, None, 2)]:
                calls.clear()
                engine = TestEngine(wire)
                engine.crash = (2, "before")
                run = engine.start("wire")
                await engine.settle()
                self.assertEqual((run.status, len(calls)), ("in_doubt", 1))
                with self.assertRaises(Stuck):
                    await run.result()
                await run.resolve("wire", how, value)
                self.assertEqual((await run.result(), len(calls)), (expected, count))
                self.assertEqual(len(set(calls)), 1, "the key is the same")

        go(test())

    def test_a_reviewer_lets_an_effect_begin_or_not(self) -> None:
        calls: list[int] = []

        @abide.workflow("wire", controls=[abide.interrupt("wire", roles=["finance"])])
        async def wire(ctx: abide.Context, amount: int) -> Any:
            try:
                return await ctx.effect("wire", lambda: calls.append(amount), policy="unsafe_once", input=amount)
            except abide.StepError as error:
                return [error.code, error.details]

        async def test() -> None:
            engine = TestEngine(wire)
            run = engine.start("wire", 5)
            await engine.settle()
            asked = run.asked()
            assert asked is not None
            self.assertEqual((asked["name"], asked["payload"]["input"], asked["roles"]), ("wire#review", 5, ["finance"]))
            self.assertEqual(calls, [])
            await run.approve(actor="ann")
            self.assertIsNone(await run.result())
            self.assertEqual(calls, [5])
            run = engine.start("wire", 6)
            await engine.settle()
            await run.reject(actor="bob", note="no")
            code, details = await run.result()
            self.assertEqual((code, details["actor"], details["note"], calls), ("rejected", "bob", "no", [5]))

        go(test())


class Crashes(unittest.TestCase):
    def test_a_workflow_comes_to_the_same_end_wherever_its_worker_dies(self) -> None:
        @abide.workflow("child")
        async def child(ctx: abide.Context, n: int) -> int:
            return int(await ctx.effect("twice", lambda: 2 * n))

        @abide.workflow("all", controls=[abide.allow("once")], retry=abide.RetryPolicy.exponential(1, retries_max=3))
        async def everything(ctx: abide.Context, n: int) -> Any:
            ctx.publish("begun")
            one = await ctx.effect("one", lambda: n, policy="pure")
            two, three = await asyncio.gather(
                ctx.effect("two", lambda: n + 1), ctx.scope("s").effect("two", lambda: n + 2, policy="dedupe")
            )
            won, _ = await ctx.race(ctx.signal("never"), ctx.sleep(5))
            signalled = await ctx.signal("go")
            decision = await ctx.approval("pay", {"n": n})
            kid = await ctx.child("kid", "child", three)
            once = await ctx.effect("once", lambda: "once", policy="unsafe_once")
            return [one, two, three, won, signalled, decision.approved, kid, once]

        async def story(run: Any) -> None:
            await run.engine.advance(6)
            await run.signal("go", "gone")
            await run.approve(actor="ann")

        async def test() -> None:
            engine = TestEngine(everything, child)
            run = engine.start("all", 1)
            await engine.settle()
            await story(run)
            self.assertEqual(await run.result(), [1, 2, 3, 1, "gone", True, 6, "once"])
            self.assertGreater(await crash_everywhere([everything, child], "all", 1, story=story), 15)

        go(test())

    def test_the_helper_finds_code_that_does_not_come_to_the_same_end(self) -> None:
        lives: list[int] = []

        @abide.workflow("forgetful")
        async def forgetful(ctx: abide.Context, _: Any) -> int:
            lives.append(1)
            await ctx.effect("one", lambda: 1)
            await ctx.effect("two", lambda: 2)
            return len(lives)

        async def test() -> None:
            with self.assertRaisesRegex(AssertionError, "died before report 1"):
                await crash_everywhere(forgetful, "forgetful", fresh=lives.clear)

        go(test())


if __name__ == "__main__":
    unittest.main()
