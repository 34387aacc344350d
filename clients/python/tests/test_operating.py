"""What people and programs around the runs do with a real server. `ABIDE_BIN` names it."""

from __future__ import annotations

import asyncio
import logging
import unittest
from contextlib import aclosing
from typing import Any, AsyncIterator, Callable

from real import BINARY, Real, until
from support import go

import abide


@abide.workflow("kid")
async def kid(ctx: abide.Context, n: int) -> int:
    return 10 * n


def orders() -> abide.Machine:
    """Starts a child, fails once, and answers its error by going on."""
    machine = abide.Machine("orders", compact_after=2)

    @machine.step("first")
    async def first(ctx: abide.StepContext) -> abide.Outcome:
        child = await ctx.start_child("kid", abide.child("kid", 3))
        again = await ctx.start_child("kid", abide.child("kid", 3))
        if ctx.attempt == 0:
            raise ValueError("not yet")
        return abide.await_signals("go", [child, again], then="last")

    @machine.step("last")
    async def last(ctx: abide.StepContext) -> abide.Outcome:
        return abide.done([*ctx.state, ctx.children[0]["key"]]).consume("by_name")

    @machine.on_error
    async def on_error(error: abide.StepError, ctx: abide.StepContext) -> abide.Outcome:
        return abide.replay()

    return machine


@abide.workflow("traced")
async def traced(ctx: abide.Context, _: None) -> list[str | None]:
    return [ctx.traceparent, await ctx.effect("call", lambda call: call.traceparent)]


async def first(found: Callable[[], AsyncIterator[dict[str, Any]]]) -> dict[str, Any]:
    """The first that is found, once there is one."""

    async def look() -> dict[str, Any] | None:
        return next(iter([one async for one in found()]), None)

    return dict(await until(look))


def traced_steps() -> abide.Machine:
    machine = abide.Machine("traced steps")

    @machine.step("one")
    async def one(ctx: abide.StepContext) -> abide.Outcome:
        return abide.done([ctx.traceparent, await ctx.effect("call", lambda call: call.traceparent)])

    return machine


@abide.workflow("asks", controls=[abide.allow("wire")])
async def asks(ctx: abide.Context, how: str) -> Any:
    if how == "wire":
        await ctx.effect("wire", lambda: asyncio.Event().wait(), policy="unsafe_once")
    if how == "task":
        return await ctx.task("count", {"what": "boxes"})
    if how == "diverges":
        await ctx.effect("before", lambda: 1, input="something")
        await ctx.signal("go")
    return (await ctx.approval("release")).choice


@abide.workflow("asks", controls=[abide.allow("wire")])
async def asks_otherwise(ctx: abide.Context, how: str) -> Any:
    await ctx.effect("before", lambda: 1, input="something else")


@unittest.skipUnless(BINARY, "ABIDE_BIN names no server")
class Operating(unittest.TestCase):
    def setUp(self) -> None:
        logging.getLogger("abide.worker").setLevel(logging.CRITICAL)
        self.real = Real()
        self.real.serve()
        self.addCleanup(self.real.end)

    def test_a_step_starts_a_child_once_and_the_error_that_it_answered_is_shown(self) -> None:
        async def test() -> None:
            async with self.real.working(orders(), kid), abide.Client(self.real.url) as client:
                run = await client.start("orders")
                await client.signal(run, "go")
                child, again, key = await client.result(run, timeout=30)
                self.assertEqual((child, key), (again, "kid"))
                self.assertEqual(await client.result(child, timeout=30), 30)
                error = (await client.get(run))["last_error"]
                self.assertEqual((error["code"], error["message"]), ("error", "ValueError: not yet"))

        go(test())

    def test_a_trace_goes_on_in_functions_steps_and_effects(self) -> None:
        async def test() -> None:
            async with self.real.working(traced, traced_steps()), abide.Client(self.real.url) as client:
                for workflow in ("traced", "traced steps"):
                    asked = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
                    inside, called = await client.result(await client.start(workflow, traceparent=asked), timeout=30)
                    self.assertEqual(inside, called)
                    self.assertEqual(inside[:36], asked[:36], "it is in the trace of whoever asked for it")
                    self.assertNotEqual(inside, asked)
                    run = await client.start(workflow)
                    own, _ = await client.result(run, timeout=30)
                    self.assertIn(run.removeprefix("run_"), own, "without one, the trace is the run's own")

        go(test())

    def test_a_run_is_followed_to_its_end_over_a_restart_of_the_server(self) -> None:
        async def test() -> None:
            async with abide.Client(self.real.url) as client:
                run = await client.start("asks", "approval")
                revs: list[int] = []
                async with self.real.working(asks):
                    async for event in client.follow(run):
                        if event.name != "row":
                            break
                        revs.append(event.data["rev"])
                        if event.data["rev"] == 1:
                            boundary = (await first(client.approvals))["boundary"]
                            self.assertEqual((await client.approval(boundary))["run"], run)
                            self.real.kill()
                            await asyncio.to_thread(self.real.serve)
                            await client.approve(boundary, actor="ann")
                self.assertEqual(revs, list(range(1, len(revs) + 1)), "each row once, and in order")
                self.assertEqual((event.name, event.data["result"]), ("end", "approve"))
                self.assertEqual(await client.end(run), event.data)
                later = [told.data["rev"] async for told in client.follow(run, after=revs[-2]) if told.name == "row"]
                self.assertEqual(later, revs[-1:])
                await client.purge(run)
                with self.assertRaises(abide.NotFound):
                    await client.get(run)

        go(test())

    def test_a_namespace_is_followed_over_a_restart_of_the_server(self) -> None:
        async def test() -> None:
            async with abide.Client(self.real.url) as client, aclosing(client.events()) as events:
                self.assertEqual((await anext(events)).name, "following")
                run = await client.start("kid", 1)
                happened = await anext(events)
                self.assertEqual((happened.name, happened.data["run"], happened.data["rev"]), ("happened", run, 1))
                self.real.kill()
                await asyncio.to_thread(self.real.serve)
                self.assertEqual((await anext(events)).name, "reset", "what happened meanwhile is not kept over a restart")
                async with self.real.working(kid):
                    while (happened := await anext(events)).data.get("status") is None:
                        self.assertEqual(happened.data["run"], run)
                self.assertEqual(happened.data["status"], "done")

        go(test())

    def test_queues_are_paused_capped_and_resumed(self) -> None:
        async def test() -> None:
            async with abide.Client(self.real.url) as client:
                self.assertTrue((await client.pause_queue("default"))["paused"])
                run = await client.start("kid", 1)
                limits = {"at_most": 2, "rate": {"count": 10, "per_ms": 1_000}}
                self.assertEqual((await client.limit_queue("default", at_most=2, rate=(10, 1)))["limits"], limits)
                (queue,) = await client.queues()
                self.assertEqual((queue["queue"], queue["depth"], queue["limits"]), ("default", 1, limits))
                self.assertEqual((await client.limit_queue("default"))["limits"], {})
                async with self.real.working(kid, name="w1"):
                    (worker,) = await until(client.workers)
                    self.assertEqual((worker["worker"], worker["queues"]), ("w1", ["default"]))
                    self.assertEqual([found["workflow"] for found in await client.workflows()], ["kid"])
                    self.assertFalse((await client.end(run, timeout=0))["ended"])
                    self.assertFalse((await client.resume_queue("default"))["paused"])
                    self.assertEqual((await client.end(run, timeout=30))["result"], 10)

        go(test())

    def test_what_was_set_aside_is_put_back_or_given_up(self) -> None:
        async def test() -> None:
            async with abide.Client(self.real.url) as client:
                runs = [await client.start("asks", "diverges") for _ in range(2)]
                async with self.real.working(asks):
                    for run in runs:
                        await until(lambda: waits(client, run))
                async with self.real.working(asks_otherwise):
                    for run in runs:
                        await client.signal(run, "go")
                    await until(lambda: count(client.dead_letters(), 2))
                letters = [letter async for letter in client.dead_letters()]
                self.assertEqual({letter["run"] for letter in letters}, set(runs))
                self.assertEqual([found["reason"]["code"] for letter in letters for found in letter["attempts"]], ["diverged"] * 2)
                await client.requeue(runs[0])
                await client.discard(runs[1])
                self.assertEqual((await client.end(runs[1], timeout=30))["status"], "failed")
                async with self.real.working(asks):
                    await client.approve((await first(client.approvals))["boundary"], actor="ann")
                    self.assertEqual(await client.result(runs[0], timeout=30), "approve")
                self.assertEqual([letter async for letter in client.dead_letters()], [])

        go(test())

    def test_effects_in_doubt_of_all_runs_are_listed_and_resolved(self) -> None:
        async def test() -> None:
            async with abide.Client(self.real.url) as client:
                run = await client.start("asks", "wire")
                async with self.real.working(asks, lease_ms=1_000):
                    await until(lambda: begun(client, run))
                async with self.real.working(asks):
                    doubt = await first(client.effects_in_doubt)
                    self.assertEqual((doubt["run"], doubt["effect"]["key"]), (run, "wire"))
                    await client.resolve(run, "wire", {"value": 1})
                    task = await first(client.approvals)
                    self.assertEqual(task["run"], run)
                    self.assertEqual([found async for found in client.effects_in_doubt()], [])

        go(test())

    def test_a_task_and_progress_are_shown(self) -> None:
        async def test() -> None:
            async with self.real.working(asks, orders(), kid), abide.Client(self.real.url) as client:
                run = await client.start("asks", "task")
                task = await first(client.tasks)
                self.assertEqual((await client.task(task["boundary"]))["payload"], {"what": "boxes"})
                await client.complete(task["boundary"], 12, actor="ann")
                self.assertEqual(await client.result(run, timeout=30), 12)
                self.assertEqual((await client.progress(run))["events"], [])

        go(test())


async def count(found: AsyncIterator[Any], wanted: int) -> bool:
    return len([one async for one in found]) == wanted


async def waits(client: abide.Client, run: str) -> bool:
    """Whether its effect has ended, and it executes nothing."""
    ended = [effect["ended_at"] for effect in await client.effects(run)]
    return bool(ended) and None not in ended and (await client.get(run))["status"] != "executing"


async def begun(client: abide.Client, run: str) -> bool:
    return bool(await client.effects(run))
