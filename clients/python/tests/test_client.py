"""The client against a server on a real socket."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import tempfile
import time
import unittest
from datetime import datetime, timedelta, timezone
from typing import Any

from fake import Asked, Fake, Said, problem
from support import go

import abide
from abide import http
from abide.http import BadUrl

RUN = "run_" + "0" * 31 + "1"


class Script:
    """Answers in order; the last one for good."""

    def __init__(self, *said: Said) -> None:
        self.said = list(said)

    async def __call__(self, asked: Asked) -> Said:
        return self.said.pop(0) if len(self.said) > 1 else self.said[0]


@abide.workflow("nothing")
async def nothing(ctx: abide.Context, _: Any) -> None:
    """Does nothing."""


class Http(unittest.TestCase):
    def test_what_has_no_json_form_is_not_sent(self) -> None:
        async def test() -> None:
            async with Fake(Script(Said({"run": RUN}))) as fake:
                async with abide.Client(fake.url) as client:
                    for bad in ("\ud800", {"\ud800": 1}, float("nan"), {1, 2}, b"x", {1: 2}, 1 << 64, 10**400):
                        for asking in (client.start("x", bad), client.signal(RUN, "s", bad), client.update(RUN, "u", bad)):
                            with self.assertRaisesRegex(abide.Unencodable, "the request has no JSON form"):
                                await asking
                    for odd in (client.get("\ud800"), client.start("x", idempotency_key="\ud800")):
                        with self.assertRaises(abide.Unencodable):
                            await odd
                    with self.assertRaises(abide.Unencodable):
                        await client.list(key="\ud800").__anext__()
                    with self.assertRaisesRegex(abide.AbideError, "line breaks"):
                        await client.start("x", idempotency_key="a\r\nb")
                    self.assertEqual(fake.asked, [])
                    self.assertEqual(await client.start("x", ["\U0001f600", 2**64 - 1, -(2**63), {"a": (1, 2)}]), RUN)
                    self.assertEqual(fake.asked[0].body["input"], ["\U0001f600", 2**64 - 1, -(2**63), {"a": [1, 2]}])

        go(test())

    def test_a_redirect_is_not_followed(self) -> None:
        async def test() -> None:
            for status in (301, 302, 303, 307, 308):
                async with Fake(Script(Said({"run": RUN, "claims": []}))) as other:
                    away = Said({"claims": []}, status, {"Location": f"{other.url}/v1/elsewhere"})
                    async with Fake(Script(away)) as fake:
                        async with abide.Client(fake.url, "secret") as client:
                            for asking in (client.start("x", {"n": 1}), client.get(RUN)):
                                with self.assertRaisesRegex(abide.Redirected, "elsewhere.*no redirect is followed") as found:
                                    await asking
                                self.assertEqual((found.exception.status, found.exception.code), (status, "redirected"))
                        with self.assertRaises(abide.Redirected):
                            await abide.Worker(fake.url, "secret", workflows=[nothing]).run()
                        self.assertEqual((len(fake.asked), other.connections), (3, 0))

        go(test())

    def test_a_connection_is_kept_and_bodies_of_every_form_are_read(self) -> None:
        async def test() -> None:
            body = {"run": RUN, "text": "é" * 100}
            async with Fake(Script(Said(body), Said(body, how="chunked"), Said(body))) as fake:
                async with abide.Client(fake.url, "secret") as client:
                    for _ in range(3):
                        self.assertEqual(await client.get(RUN), body)
                self.assertEqual(fake.connections, 1)
                self.assertEqual(fake.asked[0].headers["authorization"], "Bearer secret")
                self.assertEqual(fake.asked[0].path, f"/v1/namespaces/default/runs/{RUN}")
            async with Fake(Script(Said(body, how="until_close"))) as fake:
                async with abide.Client(fake.url) as client:
                    self.assertEqual([await client.get(RUN) for _ in range(2)], [body, body])
                self.assertEqual(fake.connections, 2)
                self.assertNotIn("authorization", fake.asked[0].headers)

        go(test())

    def test_a_kept_connection_that_the_server_closed_is_not_used(self) -> None:
        async def test() -> None:
            async with Fake(Script(Said({}))) as fake:
                async with abide.Client(fake.url, retry_for=0) as client:
                    await client.get(RUN)
                    fake.hang_up()
                    await asyncio.sleep(0.01)
                    await client.get(RUN)
                self.assertEqual(fake.connections, 2)

        go(test())

    def test_what_a_kept_connection_may_have_carried_is_sent_again_only_if_it_is_done_once(self) -> None:
        async def test(method: str, headers: dict[str, str]) -> int:
            async with Fake(Script(Said({}), Said(how="hang_up"), Said({}))) as fake:
                asking = http.Http(fake.url)
                await asking.request(method, "/", headers=headers)
                try:
                    await asking.request(method, "/", headers=headers)
                except abide.ConnectionFailed:
                    pass
                await asking.close()
                return len(fake.asked)

        self.assertEqual(go(test("GET", {})), 3)
        self.assertEqual(go(test("POST", {"Idempotency-Key": "k"})), 3)
        self.assertEqual(go(test("POST", {})), 2)

    def test_a_connection_that_was_seen_to_close_carries_nothing(self) -> None:
        async def test() -> None:
            async with Fake(Script(Said({}))) as fake:
                asking = http.Http(fake.url)
                await asking.request("POST", "/")
                await fake.stop()
                await fake.start()
                while not asking._idle[0].closed():
                    await asyncio.sleep(0)
                await asking.request("POST", "/")
                await asking.close()
                self.assertEqual((fake.connections, len(fake.asked)), (2, 2))

        go(test())

    def test_a_request_without_an_answer_is_sent_again_under_its_key(self) -> None:
        async def test() -> None:
            lost = [Said(how="hang_up"), Said({"run": RUN}, how="cut"), problem(503, "unknown"), problem(429, "busy")]
            async with Fake(Script(*lost, Said({"run": RUN, "admission": "created"}, 201))) as fake:
                async with abide.Client(fake.url) as client:
                    self.assertEqual(await client.start("order", {"n": 1}, key="k", on_conflict="reuse"), RUN)
                keys = {asked.headers["idempotency-key"] for asked in fake.asked}
                self.assertEqual((len(fake.asked), len(keys)), (5, 1))
                self.assertRegex(keys.pop(), r"^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$")
                expected = {"workflow": "order", "input": {"n": 1}, "key": "k", "on_conflict": "reuse"}
                self.assertEqual(fake.asked[0].body, expected)

        go(test())

    def test_what_is_not_recognised_the_second_time_is_sent_once(self) -> None:
        # It was sent again, found what it had done itself, and whoever asked was told that there is no such run.
        asks = [
            lambda client: client.purge(RUN),
            lambda client: client.requeue(RUN),
            lambda client: client.discard(RUN),
        ]

        async def test() -> None:
            for ask in asks:
                for lost, error in ((problem(503, "unknown"), abide.Problem), (Said(how="hang_up"), abide.ConnectionFailed)):
                    async with Fake(Script(lost, problem(404, "not_found"))) as fake:
                        async with abide.Client(fake.url) as client:
                            with self.assertRaises(error) as told:
                                await ask(client)
                        self.assertEqual(getattr(told.exception, "code", "unknown"), "unknown")
                        self.assertEqual(len(fake.asked), 1)
                        self.assertNotIn("idempotency-key", fake.asked[0].headers)

        go(test())

    def test_what_a_proxy_answers_for_a_server_it_did_not_reach_is_asked_again(self) -> None:
        async def test() -> None:
            async with Fake(Script(*[Said("no", status) for status in (408, 502, 504)], Said({"run": RUN}))) as fake:
                async with abide.Client(fake.url) as client:
                    self.assertEqual(await client.get(RUN), {"run": RUN})
                self.assertEqual(len(fake.asked), 4)

        go(test())

    def test_a_server_that_is_not_there_or_silent_is_given_up(self) -> None:
        async def silent(asked: Asked) -> Said:
            await asyncio.sleep(5)
            return Said({})

        async def test() -> None:
            async with Fake(silent) as fake:
                begun = time.monotonic()
                async with abide.Client(fake.url, timeout=0.05, retry_for=0.01) as client:
                    with self.assertRaisesRegex(abide.ConnectionFailed, "no answer within 0.05 s"):
                        await client.get(RUN)
                self.assertLess(time.monotonic() - begun, 2)
            async with abide.Client(fake.url, retry_for=0.01) as client:
                with self.assertRaises(abide.ConnectionFailed):
                    await client.get(RUN)

        go(test())

    @unittest.skipUnless(shutil.which("openssl"), "there is no openssl to make a certificate with")
    def test_it_speaks_tls_and_only_with_whom_it_trusts(self) -> None:
        async def test(place: str) -> None:
            served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            served.load_cert_chain(f"{place}/cert.pem", f"{place}/key.pem")
            fake = Fake(Script(Said({"run": RUN})), served)
            async with fake:
                trusting = ssl.create_default_context(cafile=f"{place}/cert.pem")
                async with abide.Client(fake.url, ssl=trusting) as client:
                    self.assertEqual(await client.get(RUN), {"run": RUN})
                begun = time.monotonic()
                said = "certificate verify failed: self.signed certificate.*ssl=ssl.create_default_context"
                async with abide.Client(fake.url) as client:
                    with self.assertRaisesRegex(abide.Untrusted, said):
                        await client.get(RUN)
                with self.assertRaisesRegex(abide.Untrusted, said):
                    await abide.Worker(fake.url, workflows=[nothing]).run()
                async with abide.Client(fake.url.replace("localhost", "127.0.0.1"), ssl=trusting) as client:
                    with self.assertRaisesRegex(abide.Untrusted, "by a name that its certificate has"):
                        await client.get(RUN)
                self.assertLess(time.monotonic() - begun, 5, "no retry cures it")

        with tempfile.TemporaryDirectory() as place:
            made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
            made += ["-addext", "subjectAltName=DNS:localhost", "-keyout", f"{place}/key.pem", "-out", f"{place}/cert.pem"]
            subprocess.run(made, check=True, capture_output=True)
            go(test(place))

    def test_addresses_that_are_none_are_refused(self) -> None:
        for url in ("127.0.0.1:7411", "ftp://x", "http://"):
            with self.assertRaisesRegex(BadUrl, "expected http://host:port"):
                abide.Client(url)


class Asking(unittest.TestCase):
    def test_problems_are_exceptions_that_say_what_to_do(self) -> None:
        async def test() -> None:
            taken = problem(409, "key_taken", run=RUN, expected="a free key", found="k")
            async with Fake(Script(taken)) as fake:
                async with abide.Client(fake.url) as client:
                    with self.assertRaises(abide.KeyTaken) as caught:
                        await client.start("order", key="k")
            found = caught.exception
            said = (found.code, found.status, found.run, found.expected, found.found, found.what_to_do)
            self.assertEqual(said, ("key_taken", 409, RUN, "a free key", "k", "do something else"))
            self.assertEqual(len(fake.asked), 1, "a problem of ours is not sent again")
            async with Fake(Script(problem(418, "never_heard"))) as fake:
                async with abide.Client(fake.url) as client:
                    with self.assertRaises(abide.Problem) as other:
                        await client.get(RUN)
            self.assertEqual(other.exception.code, "never_heard")

        go(test())

    def test_a_result_is_waited_for_until_the_run_has_ended(self) -> None:
        def ending(status: str, ended: bool, **more: Any) -> Said:
            return Said({"run": RUN, "status": status, "ended": ended, "result": None, "error": None, **more})

        async def test() -> None:
            async with Fake(Script(ending("sleeping", False), ending("done", True, result=5))) as fake:
                async with abide.Client(fake.url) as client:
                    self.assertEqual(await client.result(RUN), 5)
                self.assertIn("wait_ms=20000", fake.asked[0].path)
            error = {"code": "full", "message": "no", "retryable": False}
            async with Fake(Script(ending("failed", True, error=error))) as fake:
                async with abide.Client(fake.url) as client:
                    with self.assertRaises(abide.RunFailed) as failed:
                        await client.result(RUN)
            self.assertEqual((failed.exception.status, failed.exception.error and failed.exception.error.code), ("failed", "full"))
            async with Fake(Script(ending("sleeping", False))) as fake:
                async with abide.Client(fake.url) as client:
                    with self.assertRaises(TimeoutError):
                        await client.result(RUN, timeout=0.02)

        go(test())

    def test_pages_follow_each_other(self) -> None:
        async def test() -> None:
            pages = [Said({"runs": [{"run": "a"}, {"run": "b"}], "next": "b"}), Said({"runs": [{"run": "c"}], "next": None})]
            async with Fake(Script(*pages)) as fake:
                async with abide.Client(fake.url, namespace="a b") as client:
                    found = [run["run"] async for run in client.list(status="open")]
                self.assertEqual(found, ["a", "b", "c"])
                paths = [asked.path for asked in fake.asked]
                self.assertEqual(paths, ["/v1/namespaces/a%20b/runs?status=open", "/v1/namespaces/a%20b/runs?status=open&before=b"])

        go(test())

    def test_runs_are_looked_for_by_labels_and_times(self) -> None:
        async def test() -> None:
            async with Fake(Script(Said({"runs": [], "next": None}))) as fake:
                async with abide.Client(fake.url) as client:
                    east = timezone(timedelta(hours=2))
                    after = datetime(2026, 11, 15, 2, tzinfo=east)
                    listed = client.list(labels={"team": "ops", "a b": "ж"}, created_after=after)
                    self.assertEqual([run async for run in listed], [])
                    with self.assertRaisesRegex(ValueError, "updated_before: expected a datetime with a timezone"):
                        await client.list(updated_before=datetime(2026, 11, 15)).__anext__()
                query = "label=team%3Dops&label=a+b%3D%D0%B6&created_after=2026-11-15T00%3A00%3A00.000000Z"
                self.assertEqual([asked.path for asked in fake.asked], [f"/v1/namespaces/default/runs?{query}"])

        go(test())

    def test_a_journal_is_read_to_its_end(self) -> None:
        async def test() -> None:
            pages = [Said({"rows": [1, 2], "next": 3}), Said({"rows": [3], "next": None})]
            async with Fake(Script(*pages)) as fake:
                async with abide.Client(fake.url) as client:
                    self.assertEqual([row async for row in client.journal(RUN)], [1, 2, 3])

        go(test())

    def test_an_update_is_asked_under_one_key_until_it_is_answered(self) -> None:
        async def test() -> None:
            waits = Said({"run": RUN, "answered": False, "answer": None})
            async with Fake(Script(waits, Said({"run": RUN, "answered": True, "answer": 4}))) as fake:
                async with abide.Client(fake.url) as client:
                    self.assertEqual(await client.update(RUN, "add", 1), 4)
                self.assertEqual(fake.asked[0].body["dedup"], fake.asked[1].body["dedup"])

        go(test())

    def test_what_is_said_to_runs_and_for_people(self) -> None:
        async def test() -> None:
            async with Fake(Script(Said({"duplicate": False, "rev": 3}))) as fake:
                async with abide.Client(fake.url) as client:
                    await client.signal(RUN, "paid", {"by": "card"}, dedup="d")
                    await client.cancel(RUN, "late", cascade=True)
                    await client.approve("manual_1.2", actor="ann", note="yes")
                    await client.reject("manual_1.2", actor="ann")
                    await client.claim("manual_1.3", actor="ann")
                    await client.release("manual_1.3", actor="ann")
                    await client.complete("manual_1.3", 12)
                    await client.resolve(RUN, "wire", {"value": 1})
                found = [(asked.method, asked.path.removeprefix("/v1/namespaces/default"), asked.body) for asked in fake.asked]
            expected = [
                (f"/runs/{RUN}/signals", {"name": "paid", "payload": {"by": "card"}, "dedup": "d"}),
                (f"/runs/{RUN}/cancel", {"reason": "late", "cascade": True}),
                ("/approvals/manual_1.2/approve", {"actor": "ann", "note": "yes"}),
                ("/approvals/manual_1.2/reject", {"actor": "ann"}),
                ("/tasks/manual_1.3/claim", {"actor": "ann"}),
                ("/tasks/manual_1.3/release", {"actor": "ann"}),
                ("/tasks/manual_1.3/complete", {"payload": 12}),
                (f"/runs/{RUN}/effects/resolve", {"effect": "wire", "how": {"value": 1}}),
            ]
            self.assertEqual(found, [("POST", path, body) for path, body in expected])

        go(test())


if __name__ == "__main__":
    unittest.main()
