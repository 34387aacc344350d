"""End to end against a real server, whose binary is named by `ABIDE_BIN`; skipped, visibly, without it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

from support import ROOT, go

import abide

BINARY = os.environ.get("ABIDE_BIN")

WORKER = """
import asyncio, os, sys
sys.path.insert(0, {root!r})
import abide

log = {log!r}

def note(text):
    with open(log, "a") as file:
        file.write(text + "\\n")

@abide.workflow("order", retry=abide.RetryPolicy.exponential(0.05))
async def order(ctx, input):
    async def step(call, name):
        note(f"{{name}} {{call.key}}")
        if name == "pack" and not os.path.exists(log + ".killed"):
            open(log + ".killed", "w").close()
            await asyncio.sleep(60)
        return name

    done = []
    for name in ("reserve", "charge", "pack"):
        done.append(await ctx.effect(name, lambda call, name=name: step(call, name), input=input))
    ctx.publish(done)
    decision = await ctx.approval("release", {{"order": input}})
    done.append("released" if decision.approved else "refused")
    await ctx.sleep(0.05)
    done.append(await ctx.effect("ship", lambda call: step(call, "ship")))
    return done

@abide.workflow("waits")
async def waits(ctx, input):
    total = input
    while True:
        asked = await ctx.update("add")
        if asked.input < 0:
            asked.reject("only more")
            continue
        total += asked.input
        asked.answer(total)
        if total >= 10:
            break
    kids = await asyncio.gather(*(ctx.child(f"kid {{n}}", "kid", n) for n in (1, 2)))
    won, _ = await ctx.race(ctx.signal("never"), ctx.sleep(0.02))
    said = await ctx.signal("end", timeout=60)
    form = await ctx.task("count", {{"what": "boxes"}})
    return [total, kids, won, said, form]

@abide.workflow("kid")
async def kid(ctx, n):
    return 10 * n

@abide.workflow("trip")
async def trip(ctx, input):
    await ctx.effect("book", lambda: note("book"))
    ctx.undo("unbook", lambda: note("unbook"))
    await ctx.signal("go")

@abide.workflow("breaks")
async def breaks(ctx, input):
    await ctx.effect("fine", lambda: 1)
    raise ValueError("broken")

machine = abide.Machine("machine")

@machine.step("first")
async def first(ctx):
    got = await ctx.effect("call", lambda call: call.key)
    return abide.await_signals("paid", {{"key": got}}, then="second", deadline=60)

@machine.step("second")
async def second(ctx):
    return abide.spawn([abide.child("kid", 3)], "third", {{**ctx.state, "paid": ctx.signal("paid")}})

@machine.step("third")
async def third(ctx):
    return abide.done({{**ctx.state, "kids": [child["result"] for child in ctx.children]}})

worker = abide.Worker({url!r}, workflows=[order, waits, kid, trip, breaks, machine], lease_ms=2000, poll_ms=2000)
asyncio.run(worker.run())
"""


@unittest.skipUnless(BINARY, "ABIDE_BIN names no server")
class Server(unittest.TestCase):
    def setUp(self) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="abide-python-"))
        self.addCleanup(shutil.rmtree, self.place, ignore_errors=True)
        self.log = self.place / "calls"
        self.processes: list[subprocess.Popen[str]] = []
        self.addCleanup(self.end)
        self.port = 0
        self.url = self.serve()

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def serve(self) -> str:
        assert BINARY is not None
        command = [BINARY, "serve", "--store", f"sqlite:{self.place}/a.db", "--no-auth", "--listen", f"127.0.0.1:{self.port}"]
        self.server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.processes.append(self.server)
        assert self.server.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)", self.server.stdout.readline())
        assert found is not None, "the server says where it listens"
        self.port = int(found[1])
        return f"http://127.0.0.1:{self.port}"

    def worker(self) -> subprocess.Popen[str]:
        code = WORKER.format(root=str(ROOT), log=str(self.log), url=self.url)
        process = subprocess.Popen([sys.executable, "-c", code], text=True, stderr=subprocess.DEVNULL)
        self.processes.append(process)
        return process

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def test_a_worker_is_killed_in_a_step_and_another_finishes_it(self) -> None:
        async def test() -> None:
            first = self.worker()
            async with abide.Client(self.url) as client:
                run = await client.start("order", {"id": 7}, key="order-7")
                self.assertEqual(await client.start("order", {"id": 7}, key="order-7", on_conflict="reuse"), run)
                with self.assertRaises(abide.KeyTaken):
                    await client.start("order", {"id": 8}, key="order-7")
                await until(lambda: (self.place / "calls.killed").exists())
                first.send_signal(signal.SIGKILL)
                first.wait()
                self.worker()
                boundary = await self.asked(client, run)
                self.assertEqual((await client.get(run))["state"], ["reserve", "charge", "pack"])
                await self.curl(f"/v1/namespaces/default/approvals/{boundary}/approve", {"actor": "ann", "note": "fine"})
                expected = ["reserve", "charge", "pack", "released", "ship"]
                self.assertEqual(await client.result(run, timeout=30), expected)
                calls = [call.split(" ") for call in self.calls()]
                self.assertEqual([name for name, _ in calls], ["reserve", "charge", "pack", "pack", "ship"])
                self.assertEqual(calls[2], calls[3], "the key of an effect is the same over all attempts")
                effects = {effect["key"]: effect for effect in await client.effects(run)}
                self.assertEqual(effects["ship"]["idempotency_key"], calls[4][1])
                self.assertTrue([row async for row in client.journal(run)])
                self.assertEqual([found["run"] async for found in client.list(workflow="order")], [run])

        go(test())

    async def asked(self, client: abide.Client, run: str) -> str:
        found: list[str] = []

        async def look() -> bool:
            found[:] = [one["boundary"] async for one in client.approvals() if one["run"] == run]
            return bool(found)

        await until(look)
        return found[0]

    async def curl(self, path: str, body: dict[str, Any]) -> None:
        command = ["curl", "-sf", "-H", "Content-Type: application/json", "-d", json.dumps(body), self.url + path]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        said, _ = await process.communicate()
        self.assertEqual(process.returncode, 0, said)

    def test_a_server_that_is_killed_is_found_again_and_nothing_is_lost(self) -> None:
        async def test() -> None:
            (self.place / "calls.killed").touch()
            self.worker()
            async with abide.Client(self.url) as client:
                runs = [await client.start("order", n) for n in range(5)]
                self.server.kill()
                self.server.wait()
                await asyncio.to_thread(self.serve)
                for run in runs:
                    await client.approve(await self.asked(client, run), actor="ann")
                for run in runs:
                    self.assertEqual((await client.result(run, timeout=30))[-1], "ship")

        go(test())

    def test_updates_children_races_signals_and_tasks(self) -> None:
        async def test() -> None:
            self.worker()
            async with abide.Client(self.url) as client:
                run = await client.start("waits", 1)
                self.assertEqual(await client.update(run, "add", 4), 5)
                with self.assertRaises(abide.UpdateRejected):
                    await client.update(run, "add", -1)
                self.assertEqual(await client.update(run, "add", 5), 10)
                self.assertFalse(await client.signal(run, "end", {"by": "me"}, dedup="d"))
                self.assertTrue(await client.signal(run, "end", {"by": "me"}, dedup="d"))
                tasks: list[str] = []

                async def asked() -> bool:
                    tasks[:] = [one["boundary"] async for one in client.tasks()]
                    return bool(tasks)

                await until(asked)
                await client.claim(tasks[0], actor="ann")
                await client.complete(tasks[0], 12, actor="ann")
                self.assertEqual(await client.result(run, timeout=30), [10, [10, 20], 1, {"by": "me"}, 12])

        go(test())

    def test_machines_cancels_and_errors(self) -> None:
        async def test() -> None:
            self.worker()
            async with abide.Client(self.url) as client:
                run = await client.start("machine")
                await client.signal(run, "paid", True)
                key = f"{run}-0-first-1/call"
                self.assertEqual(await client.result(run, timeout=30), {"key": key, "paid": True, "kids": [30]})
                broken = await client.start("breaks")
                with self.assertRaises(abide.RunFailed) as failed:
                    await client.result(broken, timeout=30)
                assert failed.exception.error is not None
                self.assertIn("in breaks", failed.exception.error.details["traceback"])
                trip = await client.start("trip")

                async def armed() -> bool:
                    return any(effect["key"] == "unbook" for effect in await client.effects(trip))

                await until(armed)
                await client.cancel(trip, "no")
                with self.assertRaises(abide.RunFailed) as cancelled:
                    await client.result(trip, timeout=30)
                self.assertEqual(cancelled.exception.status, "cancelled")
                self.assertEqual(self.calls()[-1], "unbook")
                self.assertIn("sentence", await client.explain(trip))
                with self.assertRaises(abide.NotFound):
                    await client.get("run_" + "0" * 32)

        go(test())


async def until(check: Any) -> None:
    """Looks until something is so."""
    while True:
        found = check()
        if await found if asyncio.iscoroutine(found) else found:
            return
        await asyncio.sleep(0.05)


if __name__ == "__main__":
    unittest.main()
