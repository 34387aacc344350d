"""The worker against an engine behind a real socket: credits, batches, heartbeats, drains, and lost answers."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import unittest
from typing import Any

from fake import Said, problem
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
