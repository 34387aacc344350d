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
from abide.reporter import Reporter

RECORD: Say = {"record": {"entries": []}}


def reporter_of(http: Http) -> Reporter:
    return Reporter(http, "/reports", "secret", lambda freed: None, lambda attempts, asked: None)


def recorded(asked: Asked) -> Said:
    answers = [{"recorded": {"rev": 1, "duplicate": False}} for _ in asked.body["reports"]]
    return Said({"answers": answers, "claims": []})


class Reports(unittest.TestCase):
    def setUp(self) -> None:
        logging.getLogger("abide.worker").setLevel(logging.CRITICAL)

    def reporting(self, handler: Handler, test: Any) -> None:
        async def serve() -> None:
            async with Fake(handler) as fake:
                http = Http(fake.url)
                await test(reporter_of(http), fake)
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
