"""The small script language of the vectors, as a workflow. See clients/vectors/README.md."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import support  # noqa: F401  (makes the package found)
import abide
from abide.times import read_instant, to_datetime, write_instant


class Script:
    """Executes the steps of a case."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case = case
        self.calls: list[dict[str, Any]] = []
        self.durable = 0
        """How many entries are durable."""
        self._over: dict[str, asyncio.Event] = {}

    def _options(self) -> dict[str, Any]:
        case = self.case
        retry = case.get("retry")
        controls = [getattr(abide, control["rule"])(control.get("name")) for control in case.get("controls", [])]
        return {"retry": None if retry is None else abide.RetryPolicy(**retry), "controls": controls}

    def machine(self) -> abide.Machine:
        """The machine of the case, with one step."""
        machine = abide.Machine("script", compact_after=self.case.get("compact_after"), **self._options())

        async def outcome(ctx: Any, steps: list[Any], scope: dict[str, Any]) -> abide.Outcome:
            returned = await self._steps(ctx, steps, scope)
            assert returned is not None, "a step has an outcome"
            return returned[0]

        @machine.step("run")
        async def run(ctx: abide.StepContext) -> abide.Outcome:
            return await outcome(ctx, self.case["script"], {})

        if "on_error" in self.case:

            @machine.on_error
            async def on_error(error: abide.StepError, ctx: abide.StepContext) -> abide.Outcome:
                return await outcome(ctx, self.case["on_error"], {"error": error.code})

        return machine

    def workflow(self) -> abide.Workflow:
        """The workflow of the case."""
        case = self.case
        made = abide.workflow("script", **self._options())

        async def code(ctx: abide.Context, input: Any) -> Any:
            scope: dict[str, Any] = {"input": input}
            returned = await self._steps(ctx, case["script"], scope)
            return None if returned is None else returned[0]

        return made(code)

    async def _steps(self, ctx: abide.Context, steps: list[Any], scope: dict[str, Any]) -> tuple[Any] | None:
        for step in steps:
            verb, said = next((name, value) for name, value in step.items() if name not in ("as", "catch"))
            try:
                value = await getattr(self, f"_{verb}")(ctx, said, scope)
            except abide.StepError as error:
                if "catch" not in step:
                    raise
                scope[step["catch"]] = error.code
                continue
            if "as" in step:
                scope[step["as"]] = value
            if verb in ("return", "outcome") or (verb in ("patch", "scope") and isinstance(value, tuple)):
                return value if verb in ("patch", "scope") else (value,)
        return None

    def _value(self, ctx: abide.Context, expression: Any, scope: dict[str, Any]) -> Any:
        if isinstance(expression, list):
            return [self._value(ctx, item, scope) for item in expression]
        if isinstance(expression, dict) and len(expression) == 1:
            (verb, said), = expression.items()
            if verb == "$":
                return scope[said]
            if verb == "$now":
                return write_instant(int(ctx.now().timestamp() * 1_000 + 0.5))
            if verb == "$random":
                return f"{ctx.random(said):016x}"
            if verb == "$uuid":
                return ctx.uuid(said)
        return expression

    async def _effect(self, ctx: abide.Context, said: dict[str, Any], scope: dict[str, Any]) -> Any:
        options: dict[str, Any] = {"policy": said.get("policy", "idempotent")}
        if "input" in said:
            options["input"] = self._value(ctx, said["input"], scope)
        if "retry" in said:
            options["retry"] = abide.RetryPolicy(**said["retry"])
        return await ctx.effect(said["name"], self._call, **options)

    async def _call(self, call: abide.Call) -> Any:
        key = call.key.split("/", 1)[1]
        self.calls.append({"key": key, "idempotency_key": call.key, "durable": self.durable})
        ends: list[str] = self.case.get("ends", [])
        for before in ends[: ends.index(key)] if key in ends else []:
            await self._event(before).wait()
        self._event(key).set()
        end = self.case.get("effects", {}).get(key, {"value": None})
        if "error" in end:
            raise abide.StepError.of(end["error"])
        return end["value"]

    def _event(self, key: str) -> asyncio.Event:
        return self._over.setdefault(key, asyncio.Event())

    async def _start_child(self, ctx: abide.StepContext, said: dict[str, Any], _: Any) -> str:
        return await ctx.start_child(said["key"], abide.child(said["workflow"], said.get("input")))

    async def _outcome(self, ctx: Any, said: dict[str, Any], scope: dict[str, Any]) -> abide.Outcome:
        (kind, fields), = said["of"].items()
        state = self._value(ctx, fields.get("state"), scope)
        made = {
            "next": lambda: abide.next_step(fields["step"], state),
            "replay": lambda: abide.replay(state, _ms(fields["delay_ms"])),
            "await": lambda: abide.await_signals(fields["signals"], state),
            "done": lambda: abide.done(self._value(ctx, fields.get("result"), scope)),
        }[kind]()
        return made.consume(said["consume"]) if "consume" in said else made

    async def _sleep(self, ctx: abide.Context, said: dict[str, Any], _: Any) -> None:
        await ctx.sleep(to_datetime(read_instant(said["until"])) if "until" in said else _ms(said["ms"]))

    async def _signal(self, ctx: abide.Context, said: dict[str, Any], _: Any) -> Any:
        return await ctx.signal(said["name"], timeout=_within(said))

    async def _update(self, ctx: abide.Context, said: dict[str, Any], scope: dict[str, Any]) -> Any:
        asked = await ctx.update(said["name"], timeout=_within(said))
        if asked is None:
            return None
        if "reject" in said:
            asked.reject(said["reject"])
        elif "answer" in said:
            asked.answer(said["answer"])
        return asked.input

    async def _child(self, ctx: abide.Context, said: dict[str, Any], scope: dict[str, Any]) -> Any:
        return await ctx.child(said["name"], said["workflow"], said.get("input"))

    async def _approval(self, ctx: abide.Context, said: dict[str, Any], _: Any) -> Any:
        decision = await ctx.approval(said["name"], said.get("payload"), roles=said.get("roles", ()), timeout=_within(said))
        return decision.choice

    async def _task(self, ctx: abide.Context, said: dict[str, Any], _: Any) -> Any:
        return await ctx.task(said["name"], said["form"], timeout=_within(said))

    async def _patch(self, ctx: abide.Context, said: dict[str, Any], scope: dict[str, Any]) -> Any:
        return await self._steps(ctx, said["then"] if ctx.patch(said["name"]) else said.get("else", []), scope)

    async def _scope(self, ctx: abide.Context, said: dict[str, Any], scope: dict[str, Any]) -> Any:
        return await self._steps(ctx.scope(said["name"]), said["do"], scope)

    async def _all(self, ctx: abide.Context, said: list[list[Any]], scope: dict[str, Any]) -> None:
        await ctx.gather(*(self._steps(ctx, branch, scope) for branch in said))

    async def _race(self, ctx: abide.Context, said: list[list[Any]], scope: dict[str, Any]) -> int:
        won, _ = await ctx.race(*(self._steps(ctx, branch, scope) for branch in said))
        return won

    async def _undo(self, ctx: abide.Context, said: dict[str, Any], _: Any) -> None:
        ctx.undo(said["name"], self._call)

    async def _publish(self, ctx: abide.Context, said: Any, scope: dict[str, Any]) -> None:
        ctx.publish(self._value(ctx, said, scope))

    async def _continue_as_new(self, ctx: abide.Context, said: Any, scope: dict[str, Any]) -> None:
        ctx.continue_as_new(self._value(ctx, said, scope))

    async def _fail(self, ctx: abide.Context, said: dict[str, Any], _: Any) -> None:
        raise abide.StepError.of(said)

    async def _return(self, ctx: abide.Context, said: Any, scope: dict[str, Any]) -> Any:
        return self._value(ctx, said, scope)


def _ms(ms: int) -> timedelta:
    return timedelta(milliseconds=ms)


def _within(said: dict[str, Any]) -> timedelta | None:
    return _ms(said["within_ms"]) if "within_ms" in said else None
