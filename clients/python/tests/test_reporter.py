"""The reporter against a server on a real socket: what is said again, what is known of it, and in which order it arrives."""

from __future__ import annotations

import asyncio
import logging
import unittest
from typing import Any

from fake import Asked, Fake, Handler, Said, problem
from support import go

from abide.http import Http
from abide.link import Say, Unknown
from abide.reporter import BATCH_MAX, Reporter

RECORD: Say = {"record": {"entries": []}}


def reporter_of(http: Http) -> Reporter:
    return Reporter(http, "/reports", "secret", lambda freed: None, lambda attempts, asked: None)


def recorded(asked: Asked) -> Said:
    answers = [{"recorded": {"rev": 1, "duplicate": False}} for _ in asked.body["reports"]]
    return Said({"answers": answers, "claims": []})


async def until_sent(fake: Fake, count: int) -> None:
    """Waits until so many requests have come."""
    while len(fake.asked) < count:
        await asyncio.sleep(0)


class Reports(unittest.TestCase):
    def setUp(self) -> None:
        logging.getLogger("abide.worker").setLevel(logging.CRITICAL)

    def reporting(self, handler: Handler, test: Any) -> None:
        async def serve() -> None:
            async with Fake(handler) as fake:
                http = Http(fake.url)
                reporter = reporter_of(http)
                try:
                    await test(reporter, fake)
                finally:
                    # What is not answered would be sent again for ever.
                    reporter.stop()
                    await reporter.drain()
                    await http.close()

        go(serve())

    def test_a_record_that_is_refused_after_its_connection_broke_may_be_recorded(self) -> None:
        """A server that dies after a commit closes a connection that was used before: that does not mean that it has not seen
        the record, and that the second is `invalid` does not mean that the first was."""
        invalid = Said({"answers": [{"problem": problem(422, "invalid").body}], "claims": []})
        said = [None, Said(how="hang_up"), invalid]

        async def handler(asked: Asked) -> Said:
            return said.pop(0) or recorded(asked)

        async def test(reporter: Reporter, fake: Fake) -> None:
            await reporter.asked("claim_1_1", RECORD)
            with self.assertRaises(Unknown):
                await reporter.asked("claim_1_1", RECORD)
            self.assertEqual((fake.connections, len(fake.asked)), (2, 3))

        self.reporting(handler, test)

    def test_of_a_claim_one_request_is_under_way_at_a_time(self) -> None:
        """SQ-35: what is said of one attempt arrives in the order in which it was said."""
        go_on = asyncio.Event()

        async def handler(asked: Asked) -> Said:
            if "heartbeat" in asked.body["reports"][0]["say"]:
                await go_on.wait()
            return recorded(asked)

        async def test(reporter: Reporter, fake: Fake) -> None:
            beat = reporter.say("claim_1_1", {"heartbeat": {}})
            await until_sent(fake, 1)
            later = [reporter.say("claim_1_1", RECORD), reporter.say("claim_1_1", {"give_back": {}})]
            # One of another claim does not wait for it, and overtakes what does.
            await reporter.asked("claim_2_1", RECORD)
            self.assertEqual([report.answer.done() for report in (beat, *later)], [False] * 3)
            go_on.set()
            await reporter.drain()
            said = [[(report["claim"], *report["say"]) for report in asked.body["reports"]] for asked in fake.asked]
            self.assertEqual(said[0], [("claim_1_1", "heartbeat")])
            self.assertEqual(said[1], [("claim_2_1", "record")])
            self.assertEqual(said[2:], [[("claim_1_1", "record"), ("claim_1_1", "give_back")]])

        self.reporting(handler, test)

    def test_a_batch_ends_where_it_is_full_and_keeps_the_order_of_a_claim(self) -> None:
        async def handler(asked: Asked) -> Said:
            return recorded(asked)

        async def test(reporter: Reporter, fake: Fake) -> None:
            for run in [*range(BATCH_MAX + 1), BATCH_MAX]:
                reporter.say(f"claim_{run}_1", RECORD)
            await reporter.drain()
            self.assertEqual([len(asked.body["reports"]) for asked in fake.asked], [BATCH_MAX, 2])

        self.reporting(handler, test)
