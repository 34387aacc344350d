"""Following: streams that are cut, broken and begun again, on a real socket."""

from __future__ import annotations

import unittest
from typing import Any

from fake import Asked, Fake, Said, problem
from support import go

import abide
from abide.events import Parser

RUN = "run_" + "0" * 31 + "1"


def streamed(text: str, how: str = "raw") -> Said:
    return Said(text, headers={"Content-Type": "text/event-stream"}, how=how)


def row(rev: int) -> str:
    return f'id: {rev}\nevent: row\ndata: {{"rev":{rev}}}\n\n'


END = 'event: end\ndata: {"status":"done"}\n\n'


class Following(unittest.TestCase):
    def test_events_are_whole_wherever_the_stream_is_cut(self) -> None:
        text = 'id: 7\nevent: row\ndata: {"a":\ndata: "é"}\n\n:\n\nevent: end\r\ndata: {}\r\n\r\n'.encode()
        expected = [abide.Event("row", {"a": "é"}, "7"), abide.Event("end", {}, None)]
        for at in range(len(text)):
            parser = Parser()
            self.assertEqual(parser.read(text[:at]) + parser.read(text[at:]), expected, at)

    def follow(self, *said: Said, after: int | None = None) -> tuple[list[Any], list[str | None]]:
        """What is told, and behind which event each connection asked to go on."""
        answers = list(said)

        async def handler(asked: Asked) -> Said:
            return answers.pop(0)

        async def test() -> tuple[list[Any], list[str | None]]:
            async with Fake(handler) as fake, abide.Client(fake.url) as client:
                told = [(event.name, event.data.get("rev")) async for event in client.follow(RUN, after=after)]
                self.assertEqual({asked.headers["accept"] for asked in fake.asked}, {"text/event-stream"})
                return told, [asked.headers.get("last-event-id") for asked in fake.asked]

        return go(test())

    def test_a_stream_that_breaks_is_followed_on_behind_the_last_event(self) -> None:
        broken = [streamed(row(1) + row(2) + "id: 3\nevent: row\nda"), Said(how="hang_up"), problem(503, "closed")]
        told, asked = self.follow(*broken, Said("no", 502), streamed(row(3) + END))
        self.assertEqual(told, [("row", 1), ("row", 2), ("row", 3), ("end", None)])
        self.assertEqual(asked, [None, "2", "2", "2", "2"])

    def test_it_goes_on_where_it_is_told_to(self) -> None:
        self.assertEqual(self.follow(streamed(row(8) + END), after=7)[1], ["7"])

    def test_progress_is_told_once_over_all_connections(self) -> None:
        def said(seq: int) -> str:
            return f'event: progress\ndata: {{"seq":{seq},"rev":"p{seq}"}}\n\n'

        told, _ = self.follow(streamed(said(1) + said(2)), streamed(said(1) + said(2) + said(3) + END))
        self.assertEqual(told, [("progress", "p1"), ("progress", "p2"), ("progress", "p3"), ("end", None)])

    def test_what_the_server_refuses_is_not_asked_again(self) -> None:
        with self.assertRaises(abide.NotFound):
            self.follow(problem(404, "not_found"))

    def test_what_is_no_stream_is_given_up_in_time(self) -> None:
        async def handler(asked: Asked) -> Said:
            return Said({})

        async def test() -> None:
            async with Fake(handler) as fake, abide.Client(fake.url, retry_for=0) as client:
                with self.assertRaisesRegex(abide.ConnectionFailed, "expected text/event-stream"):
                    async for _ in client.events():
                        self.fail("nobody tells anything")

        go(test())


if __name__ == "__main__":
    unittest.main()
