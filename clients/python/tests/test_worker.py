"""The worker against an engine behind a real socket: credits, batches, heartbeats, drains, and lost answers."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import unittest
from typing import Any

from fake import Asked, Said, problem
from served import Served
from support import go

import abide
from abide.testing import TestEngine


def worker_of(served: Served, *workflows: Any, **options: Any) -> abide.Worker:
    return abide.Worker(served.fake.url, workflows=workflows, poll_ms=200, **options)


@abide.workflow("five")
async def five(ctx: abide.Context, n: int) -> int:
    for step in range(5):
        n += await ctx.effect(f"step {step}", lambda step=step: step)
    return n


LONE = "half \ud83d"
CYCLE: list[Any] = []
CYCLE.append(CYCLE)
UNENCODABLE: list[tuple[Any, str]] = [
    (LONE, "half of a surrogate pair"),
    ({LONE: 1}, "half of a surrogate pair"),
    ([float("nan")], "Out of range float"),
    ({"n": float("inf")}, "Out of range float"),
    ({1, 2}, "set has no JSON form"),
    (b"bytes", "bytes has no JSON form"),
    ({1: 2}, "expected keys that are text, found int 1"),
    ({"in": [{(1, 2): 3}]}, "keys must be str"),
    (1 << 64, "expected a whole number of 64 bits, found one of 65"),
    ([10**400], "expected a whole number of 64 bits"),
    ([10**5_000], ""),
    (CYCLE, "Circular reference"),
]


@abide.workflow("ways")
async def ways(ctx: abide.Context, given: list[Any]) -> Any:
    """Hands something that has no JSON form to the engine, in one of all the ways there are."""
    way, value = given[0], UNENCODABLE[given[1]][0]
    if way == "effect":
        await ctx.effect("call", lambda: value)
    elif way == "input":
        await ctx.effect("call", lambda: 1, input=value)
    elif way == "state":
        ctx.publish(value)
    elif way == "child":
        await ctx.child("part", "five", value)
    elif way == "labels":
        await ctx.child("part", "five", 1, labels={"a": value})
    elif way == "person":
        await ctx.approval("ask", value or 1)
    elif way == "roles":
        await ctx.approval("ask", 1, roles=[value])
    elif way == "again":
        ctx.continue_as_new(value)
    return value


machine = abide.Machine("machine")


@machine.step("only")
async def only(ctx: abide.StepContext) -> abide.Outcome:
    way, value = ctx.input[0], UNENCODABLE[ctx.input[1]][0]
    if way == "progress":
        await ctx.progress("rows", value)
    if way == "name":
        await ctx.progress(str(value), 1)
    if way == "spawn":
        return abide.spawn([abide.child("five", value)], "only")
    return abide.next_step("only", value) if way == "next" else abide.done(value)


class Workers(unittest.TestCase):
    def setUp(self) -> None:
        logging.getLogger("abide.worker").setLevel(logging.CRITICAL)

    def test_runs_are_executed_within_credits_and_reports_go_together(self) -> None:
        async def test() -> None:
            async with Served(TestEngine(five)) as served:
                runs = [served.start("five", n) for n in range(40)]
                worker = worker_of(served, five, concurrency=8)
                working = asyncio.ensure_future(worker.run())
                for run in runs:
                    await served.ended(run)
                worker.stop()
                await working
                self.assertEqual([run.run.result for run in runs], [10 + n for n in range(40)])
                self.assertLessEqual(served.most, 8)
                self.assertGreater(max(map(len, served.reports)), 1, "reports that are ready together go together")
                polls = [asked for asked in served.fake.asked if asked.path.endswith("/claims")]
                self.assertLess(len(polls), 20, "attempts come with the answers to reports")

        go(test())

    def test_answers_that_are_lost_are_asked_for_again(self) -> None:
        async def test() -> None:
            async with Served(TestEngine(five)) as served:
                served.broken = ["lost", Said(how="hang_up"), problem(503, "closed"), "unsure", "lost", "lost", Said(how="cut"), "unsure"]
                run = served.start("five", 1)
                worker = worker_of(served, five)
                working = asyncio.ensure_future(worker.run())
                await served.ended(run)
                worker.stop()
                await working
                self.assertEqual((run.run.result, run.run.claims), (11, 1))

        go(test())

    def test_what_has_no_json_form_fails_its_run_and_nothing_else(self) -> None:
        async def test() -> None:
            async with Served(TestEngine(ways, machine, five)) as served:
                functions = ("result", "effect", "input", "state", "child", "labels", "person", "roles", "again")
                all_ = [("ways", way) for way in functions]
                all_ += [("machine", way) for way in ("result", "progress", "spawn", "next")]
                tried = [(name, way, at) for name, way in all_ for at in range(len(UNENCODABLE))]
                tried.append(("machine", "name", 0))
                runs = [served.start(name, [way, at]) for name, way, at in tried]
                worker = worker_of(served, ways, machine, five, concurrency=2)
                working = asyncio.ensure_future(worker.run())
                for run, (name, way, at) in zip(runs, tried):
                    with self.subTest(name=name, way=way, at=at):
                        await asyncio.wait_for(served.ended(run), 10)
                        assert run.run.error is not None
                        self.assertEqual((run.status, run.run.error["code"]), ("failed", "unencodable"))
                        self.assertIn(UNENCODABLE[at][1], run.run.error["message"])
                last = served.start("five", 1)
                await asyncio.wait_for(served.ended(last), 10)
                worker.stop()
                await asyncio.wait_for(working, 5)
                self.assertEqual((last.run.result, worker._free), (11, 2))

        go(test())

    def test_an_input_that_others_sent_is_given_as_it_came(self) -> None:
        @abide.workflow("given")
        async def given(ctx: abide.Context, input: Any) -> list[Any]:
            return [ascii(input[0]), input[1] == 1 << 70]

        async def test() -> None:
            async with Served(TestEngine(given)) as served:
                run = served.start("given", None)
                run.run.state = [LONE, 1 << 70]
                worker = worker_of(served, given)
                working = asyncio.ensure_future(worker.run())
                await asyncio.wait_for(served.ended(run), 10)
                worker.stop()
                await working
                self.assertEqual(run.run.result, ["'half \\ud83d'", True])

        go(test())

    def test_errors_that_say_what_utf_8_has_not_are_told(self) -> None:
        class Silent(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no")

        thrown: dict[str, BaseException] = {
            "file": FileNotFoundError(b"caf\xe9.txt".decode("utf8", "surrogateescape")),
            "details": abide.StepError("x", details={LONE: {1, 2}}, retryable=False),
            "code": abide.StepError(LONE, code=LONE, retryable=False),
            "silent": Silent(),
        }

        @abide.workflow("throws")
        async def throws(ctx: abide.Context, given: list[str]) -> Any:
            async def call() -> None:
                raise thrown[given[1]]

            if given[0] == "effect":
                await ctx.effect("call", call)
            raise thrown[given[1]]

        @abide.workflow("named")
        async def named(ctx: abide.Context, _: Any) -> Any:
            await ctx.effect(LONE, lambda: 1)

        async def test() -> None:
            async with Served(TestEngine(throws, named)) as served:
                worker = worker_of(served, throws, named, concurrency=1)
                working = asyncio.ensure_future(worker.run())
                found = {}
                for where in ("code", "effect"):
                    for what in thrown:
                        run = served.start("throws", [where, what])
                        await asyncio.wait_for(served.ended(run), 10)
                        assert run.run.error is not None
                        found[where, what] = run.run.error
                run = served.start("named")
                await asyncio.wait_for(served.ended(run), 10)
                worker.stop()
                await asyncio.wait_for(working, 5)
                for where in ("code", "effect"):
                    self.assertEqual(found[where, "file"]["message"], "FileNotFoundError: caf\\udce9.txt")
                    self.assertIn("caf\\udce9.txt", found[where, "file"]["details"]["traceback"])
                    self.assertRegex(found[where, "details"]["details"]["unencodable"], "has no JSON form")
                    self.assertEqual(found[where, "code"]["code"], "half \\ud83d")
                    self.assertRegex(found[where, "silent"]["message"], "^Silent: what it says cannot be told")
                assert run.run.error is not None
                self.assertEqual(run.run.error["code"], "bad_name")

        go(test())

    def test_whatever_goes_wrong_with_reports_no_place_is_lost(self) -> None:
        async def test() -> None:
            async with Served(TestEngine(five)) as served:
                worker = worker_of(served, five, concurrency=2)
                asked, broken = worker._http.request, [2, 3, 5, 8]
                sent = 0

                async def request(method: str, path: str, *rest: Any, **options: Any) -> Any:
                    nonlocal sent
                    if path.endswith("/reports"):
                        sent += 1
                        if sent in broken:
                            raise RuntimeError("a fault of ours")
                    return await asked(method, path, *rest, **options)

                worker._http.request = request  # type: ignore[method-assign]
                # What is no answer to reports is no answer: they are sent again.
                served.broken = [Said({}), Said({"answers": []}), Said(None), Said([])]
                runs = [served.start("five", n) for n in range(6)]
                working = asyncio.ensure_future(worker.run())
                for run in runs:
                    while not run.run.over:
                        await asyncio.sleep(0.01)
                        if run.status == "executing" and run.run.id not in {one.attempt["run"] for one in worker._held}:
                            # That it goes back could not be said either: its lease ends.
                            served.lose(run)
                worker.stop()
                await asyncio.wait_for(working, 5)
                self.assertEqual([run.run.result for run in runs], [10 + n for n in range(6)])
                self.assertEqual(worker._free, 2)

        go(test())

    def test_a_worker_that_does_not_trust_its_server_any_more_ends(self) -> None:
        async def test() -> None:
            async with Served(TestEngine(five)) as served:
                worker = worker_of(served, five, concurrency=2)
                asked = worker._http.request

                async def request(method: str, path: str, *rest: Any, **options: Any) -> Any:
                    if len(served.fake.asked) > 3:
                        raise abide.Untrusted("its certificate has expired")
                    return await asked(method, path, *rest, **options)

                worker._http.request = request  # type: ignore[method-assign]
                runs = [served.start("five", n) for n in range(3)]
                with self.assertRaises(abide.Untrusted):
                    await asyncio.wait_for(worker.run(), 10)
                self.assertEqual([run.run.error for run in runs], [None] * 3, "they are for a worker that trusts it")

        go(test())

    def test_a_server_that_restarts_is_found_again(self) -> None:
        async def test() -> None:
            async with Served(TestEngine(five)) as served:
                worker = worker_of(served, five)
                working = asyncio.ensure_future(worker.run())
                first = served.start("five", 1)
                await served.ended(first)
                await served.fake.stop()
                # What was asked of the old server must be over, or it would give the attempt to nobody.
                await asyncio.sleep(0.25)
                second = served.start("five", 2)
                await served.fake.start()
                await served.ended(second)
                worker.stop()
                await working
                self.assertEqual(second.run.result, 12)

        go(test())

    def test_an_attempt_whose_heartbeat_is_refused_is_cancelled(self) -> None:
        async def test() -> None:
            cut: list[str] = []
            calls: list[int] = []
            begun = asyncio.Event()

            @abide.workflow("slow")
            async def slow(ctx: abide.Context, _: Any) -> Any:
                async def call() -> str:
                    begun.set()
                    calls.append(1)
                    if len(calls) == 1:
                        try:
                            await asyncio.sleep(30)
                        finally:
                            cut.append("cut")
                    return "done"

                return await ctx.effect("slow", call)

            async with Served(TestEngine(slow)) as served:
                run = served.start("slow")
                worker = worker_of(served, slow, lease_ms=60)
                working = asyncio.ensure_future(worker.run())
                await begun.wait()
                served.lose(run)
                await served.ended(run)
                worker.stop()
                await working
                self.assertEqual((cut, run.run.result, run.run.claims), (["cut"], "done", 2))

        go(test())

    def test_a_worker_that_is_told_to_stop_finishes_what_runs_and_claims_nothing_more(self) -> None:
        async def test() -> None:
            begun, go_on = asyncio.Event(), asyncio.Event()

            @abide.workflow("slow")
            async def slow(ctx: abide.Context, _: Any) -> Any:
                async def call() -> str:
                    begun.set()
                    await go_on.wait()
                    return "done"

                return await ctx.effect("slow", call)

            async with Served(TestEngine(slow)) as served:
                run = served.start("slow")
                worker = worker_of(served, slow, concurrency=2)
                working = asyncio.ensure_future(worker.run())
                await begun.wait()
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.sleep(0.3)
                late = served.start("slow")
                await asyncio.sleep(0.05)
                self.assertFalse(working.done())
                go_on.set()
                await working
                self.assertEqual((run.run.result, late.status, late.run.claims), ("done", "runnable", 0))

        go(test())

    def test_a_worker_that_is_told_twice_to_stop_leaves_what_runs(self) -> None:
        async def test() -> None:
            begun = asyncio.Event()

            @abide.workflow("slow")
            async def slow(ctx: abide.Context, _: Any) -> Any:
                async def call() -> None:
                    begun.set()
                    await asyncio.sleep(30)

                return await ctx.effect("slow", call)

            async with Served(TestEngine(slow)) as served:
                run = served.start("slow")
                worker = worker_of(served, slow)
                working = asyncio.ensure_future(worker.run())
                await begun.wait()
                worker.stop()
                worker.stop()
                await asyncio.wait_for(working, 5)
                self.assertEqual((run.status, served.reports), ("executing", []), "its lease ends, and another has it")

        go(test())

    def test_what_comes_while_it_stops_goes_back(self) -> None:
        async def test() -> None:
            async with Served(TestEngine(five)) as served:
                worker = worker_of(served, five)
                working = asyncio.ensure_future(worker.run())
                await asyncio.sleep(0.05)
                run = served.start("five", 1)
                worker.stop()
                await working
                said = [next(iter(report["say"])) for batch in served.reports for report in batch]
                self.assertEqual((run.status, said), ("runnable", ["give_back"]))

        go(test())

    def test_a_report_that_cannot_be_read_does_not_take_others_with_it(self) -> None:
        async def test() -> None:
            async with Served(TestEngine(five)) as served:
                runs = [served.start("five", n) for n in range(4)]
                served.broken = [problem(413, "too_large")]
                worker = worker_of(served, five)
                working = asyncio.ensure_future(worker.run())
                for run in runs:
                    await served.ended(run)
                worker.stop()
                await working
                self.assertEqual([run.run.result for run in runs], [10, 11, 12, 13])

        go(test())

    def test_a_proxy_that_answers_for_the_server_ends_no_worker_and_no_report(self) -> None:
        async def test() -> None:
            async with Served(TestEngine(five)) as served:
                proxied = [Said("no", 408), Said("no", 502)]
                within = served.fake.handler

                async def handler(asked: Asked) -> Said:
                    if asked.path.endswith("/claims") and proxied:
                        return proxied.pop(0)
                    return await within(asked)

                served.fake.handler = handler
                served.broken = [Said("no", 408), Said("no", 504)]
                run = served.start("five", 1)
                worker = worker_of(served, five)
                working = asyncio.ensure_future(worker.run())
                await served.ended(run)
                worker.stop()
                await working
                self.assertEqual((run.run.result, run.run.claims, proxied), (11, 1, []))

        go(test())

    def test_a_worker_that_may_not_work_says_so(self) -> None:
        async def test() -> None:
            async with Served(TestEngine(five)) as served:

                async def no(asked: Any) -> Said:
                    return problem(401, "unauthenticated")

                served.fake.handler = no
                with self.assertRaises(abide.Unauthenticated):
                    await worker_of(served, five).run()

        go(test())
        with self.assertRaisesRegex(abide.AbideError, "each name and version once"):
            abide.Worker("http://127.0.0.1:1", workflows=[five, five])
        with self.assertRaisesRegex(abide.AbideError, "at least one"):
            abide.Worker("http://127.0.0.1:1", workflows=[])

    def test_errors_end_runs_with_their_traceback_and_divergence_sets_aside(self) -> None:
        @abide.workflow("breaks")
        async def breaks(ctx: abide.Context, _: Any) -> None:
            await ctx.effect("fine", lambda: 1)
            raise ValueError("broken")

        async def test() -> None:
            async with Served(TestEngine(breaks, five)) as served:
                run = served.start("breaks")
                worker = worker_of(served, breaks)
                working = asyncio.ensure_future(worker.run())
                await served.ended(run)
                worker.stop()
                await working
                assert run.run.error is not None
                self.assertEqual((run.status, run.run.error["message"]), ("failed", "ValueError: broken"))
                self.assertIn("raise ValueError", run.run.error["details"]["traceback"])

        go(test())


if __name__ == "__main__":
    unittest.main()
