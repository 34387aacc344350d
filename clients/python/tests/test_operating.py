"""What people and programs around the runs do with a real server. `ABIDE_BIN` names it."""

from __future__ import annotations

import logging
import unittest

from real import BINARY, Real
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


def traced_steps() -> abide.Machine:
    machine = abide.Machine("traced steps")

    @machine.step("one")
    async def one(ctx: abide.StepContext) -> abide.Outcome:
        return abide.done([ctx.traceparent, await ctx.effect("call", lambda call: call.traceparent)])

    return machine


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
