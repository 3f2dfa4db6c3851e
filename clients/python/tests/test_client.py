"""The clients with threads and with asyncio, with a real server and with a server that lies."""
import asyncio
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
import unittest
from typing import Any, Dict, Optional, Tuple

from doorman import AsyncClient, Client, Limit, PermitPolicy, Refused
from server import PROGRAM, WAIT, FakeServer, Server, eventually

FAR = "http://127.0.0.1:1"  # nothing listens there
needs_server = unittest.skipUnless(os.path.exists(PROGRAM), f"there is no {PROGRAM}")


def grant(method: str, _message: object, _headers: object) -> Tuple[int, Dict[str, Any]]:
    """Grants a lease of db, and a hold of t."""
    return 200, {
        "get_capacity": {"response": [{"resource_id": "db", "gets": {
            "id": 5, "node": "eu", "capacity": 5, "expires_in": 60, "refresh_interval": 15}}]},
        "acquire": {"permit": [{"decision": "GRANTED", "item": [{"granted": 1}], "hold": {
            "id": 7, "node": "eu", "waited": 0, "expires_in": 60}}]},
        "release": {"entry": [{"amount": []}]}}.get(method, {})


@needs_server
class WithServer(unittest.TestCase):
    server: Server

    @classmethod
    def setUpClass(cls) -> None:
        cls.server = Server()

    @classmethod
    def tearDownClass(cls) -> None:
        cls.server.stop()

    def test_a_rate_gets_a_lease_and_gives_it_back(self) -> None:
        with Client([FAR, self.server.url]) as client:
            rate = client.rate("db/orders", wants=50)
            self.assertTrue(rate.wait(5, timeout=WAIT))
            eventually(lambda: rate.info().leased, "there is a lease")
            self.assertEqual(rate.info().capacity, 50)
            self.assertGreater(rate.info().allowed, 4)
            with Client(self.server.url) as other:
                rest = other.rate("db/orders", wants=100)
                eventually(lambda: rest.info().leased, "there is another lease")
                self.assertLessEqual(rest.info().capacity, 50)
                rate.close()
                eventually(lambda: rest.info().capacity == 100, "the other client gets the rest")

    def test_a_gauge_limits_what_is_in_use(self) -> None:
        with Client(self.server.url) as client:
            gauge = client.gauge("conn")
            with gauge.use(2, timeout=WAIT):
                self.assertEqual(gauge.info().in_use, 2)
                self.assertTrue(gauge.wait(1, timeout=WAIT))
                self.assertFalse(gauge.wait(1, timeout=0.05))
                gauge.release(1)
            self.assertEqual(gauge.info().in_use, 0)
            with self.assertRaises(ValueError):
                gauge.release(1)

    def test_permits_are_granted_and_refused(self) -> None:
        with Client([FAR, self.server.url]) as client:
            first = client.acquire("login", "alice", 4, timeout=WAIT, detail=True)
            self.assertTrue(first.granted)
            self.assertEqual((first.by, first.limit, first.quota), ("server", "per-user", 5))
            second = client.acquire("login", "alice", 4, timeout=WAIT)
            self.assertFalse(second.granted)
            self.assertEqual(second.reason, "RATE")
            self.assertGreater(second.retry_after, 1)
            self.assertIn("doorman_client_permits_granted_total 1", client.metrics())

    def test_many_threads_share_a_client(self) -> None:
        with Client(self.server.url) as client:
            granted = []
            threads = [threading.Thread(target=lambda: granted.append(
                client.acquire("login", "crowd", timeout=WAIT).granted)) for _ in range(20)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(sum(granted), 5)

    def test_a_hold_is_released_and_waited_for(self) -> None:
        with Client(self.server.url) as client:
            with client.hold("transcode", "acme", 2, timeout=WAIT) as hold:
                self.assertGreater(hold.left(), 1)
                self.assertEqual(list(hold.units()), [2])
                with self.assertRaises(Refused) as refused, client.hold("transcode", "b"):
                    self.fail("two holds have the same units")
                self.assertEqual(refused.exception.decision.reason, "CONCURRENCY")
                waited = []
                thread = threading.Thread(target=lambda: waited.append(
                    client.hold("transcode", "b", max_wait=50, timeout=WAIT)))
                thread.start()
                time.sleep(0.05)
                self.assertEqual(client.acquire("login", "dave", timeout=WAIT).by, "server")
            thread.join()
            self.assertTrue(waited[0].granted)
            moved = waited[0].transfer(timeout=WAIT)
            self.assertTrue(moved.granted)
            with client.seize(moved.transfer_id, timeout=WAIT) as seized:
                self.assertEqual(list(seized.units()), [1])
            self.assertEqual(waited[0].left(), 0)
            eventually(lambda: client.counts()["holds"] == 0, "all holds are released")

    def test_a_reservation_is_settled(self) -> None:
        with Client(self.server.url) as client:
            with client.reserve("llm", "acme", 6, timeout=WAIT) as reservation:
                reservation.cost = 1
            with self.assertRaises(ZeroDivisionError):
                with client.reserve("llm", "acme", 3, timeout=WAIT) as reservation:
                    reservation.cost = 0
                    raise ZeroDivisionError
            eventually(lambda: client.counts()["settled"] == 2, "both are settled")
            self.assertTrue(client.acquire("llm", "acme", 6, timeout=WAIT).granted)
            self.assertFalse(client.acquire("llm", "acme", 1, timeout=WAIT).granted)
            client.report("llm", "acme", 1)
            eventually(lambda: client.counts()["reported"] == 1, "the report is answered")

    def test_asyncio(self) -> None:
        async def run() -> None:
            async with AsyncClient([FAR, self.server.url]) as client:
                rate = client.rate("db/async", wants=20)
                self.assertTrue(await rate.wait(2, timeout=WAIT))
                gauge = client.gauge("conn")
                async with gauge.use(1, timeout=WAIT):
                    self.assertEqual(gauge.info().in_use, 1)
                calls = [client.acquire("login", "erin", timeout=WAIT) for _ in range(8)]
                decisions = await asyncio.gather(*calls)
                self.assertEqual(sum(decision.granted for decision in decisions), 5)
                async with await client.hold("transcode", "acme", 2, timeout=WAIT):
                    queued = asyncio.create_task(client.hold("transcode", max_wait=50,
                                                             timeout=WAIT))
                    await asyncio.sleep(0.05)
                    queued.cancel()
                    with self.assertRaises(asyncio.CancelledError):
                        await queued
                async with await client.hold("transcode", "acme", 2, max_wait=50, timeout=WAIT):
                    pass  # what was cancelled does not stay taken
                async with await client.reserve("llm", "async", 6, timeout=WAIT) as reservation:
                    reservation.cost = 2
                while client.counts()["settled"] == 0:
                    await asyncio.sleep(0.01)
                self.assertIn("doorman_client_resource_capacity", client.metrics())

        asyncio.run(asyncio.wait_for(run(), 4 * WAIT))


@needs_server
class WithCrash(unittest.TestCase):
    def test_a_client_outlives_a_crash_of_the_server(self) -> None:
        server = Server()
        try:
            with Client(server.url, permits=PermitPolicy(fallback="closed")) as client:
                rate = client.rate("db/crash", wants=10)
                eventually(lambda: rate.info().leased, "there is a lease")
                self.assertEqual(client.acquire("login", "a", timeout=WAIT).by, "server")
                with self.assertLogs("doorman", "WARNING"):
                    server.crash()
                    self.assertEqual(client.acquire("login", "a", timeout=WAIT).by, "fallback")
                self.assertTrue(rate.info().leased)
                server.start_again()
                eventually(lambda: client.acquire("login", "b", timeout=1).by == "server",
                           "the server decides again")
                with client.hold("transcode", timeout=WAIT) as hold:
                    self.assertGreater(hold.left(), 1)
        finally:
            server.stop()


@needs_server
class WithToken(unittest.TestCase):
    def test_the_token_is_sent_and_a_wrong_one_is_refused(self) -> None:
        token = "0123456789abcdef0123456789abcdef"
        server = Server("--http-token", "tokens", files={"tokens": f"write me {token}\n"})
        try:
            with Client(server.url, token=lambda: token) as client:
                self.assertEqual(client.acquire("login", "a", timeout=WAIT).by, "server")
            with self.assertLogs("doorman", "WARNING") as logs:
                with Client(server.url, token="wrong" + token,
                            permits=PermitPolicy(fallback="closed")) as client:
                    self.assertEqual(client.acquire("login", "a", timeout=WAIT).by, "fallback")
            self.assertIn("UNAUTHENTICATED", "".join(logs.output))
        finally:
            server.stop()


@needs_server
class WithTls(unittest.TestCase):
    @unittest.skipUnless(shutil.which("openssl"), "there is no openssl")
    def test_only_a_server_with_a_known_certificate_is_asked(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            key, certificate = self.make(folder, "own")
            server = Server("--tls-cert", certificate, "--tls-key", key)
            try:
                self.ask(server.url, certificate)
                named = server.url.replace("127.0.0.1", "localhost")  # the certificate lacks it
                self.ask_none(server.url, None)
                self.ask_none(server.url, self.make(folder, "other")[1])
                self.ask_none(named, certificate)
            finally:
                server.stop()

    @staticmethod
    def make(folder: str, name: str) -> Tuple[str, str]:
        key, certificate = f"{folder}/{name}_key.pem", f"{folder}/{name}.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                        "ec_paramgen_curve:P-256", "-nodes", "-keyout", key, "-out", certificate,
                        "-days", "2", "-subj", "/CN=doorman", "-addext",
                        "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
        return key, certificate

    def ask(self, url: str, certificate: str) -> None:
        self.assertTrue(url.startswith("https://"))
        closed = PermitPolicy(fallback="closed")
        with Client(url, tls=certificate, permits=closed) as client:
            self.assertEqual(client.acquire("login", "tls", timeout=WAIT).by, "server")

        async def run() -> str:
            async with AsyncClient(url, tls=certificate, permits=closed) as client:
                return (await client.acquire("login", "tls", timeout=WAIT)).by

        self.assertEqual(asyncio.run(run()), "server")

    def ask_none(self, url: str, certificate: Optional[str]) -> None:
        with self.assertLogs("doorman", "WARNING") as logs:
            with Client(url, tls=certificate, permits=PermitPolicy(fallback="closed")) as client:
                self.assertEqual(client.acquire("login", "tls", timeout=WAIT).by, "fallback")
        self.assertIn("CERTIFICATE_VERIFY_FAILED", "".join(logs.output))


class WithoutServer(unittest.TestCase):
    """What happens if no server, or a server that lies, is there."""

    def decide(self, answer: object, **options: object) -> object:
        fake = FakeServer(lambda *_: answer)  # type: ignore[arg-type,return-value]
        try:
            with self.assertLogs("doorman", "WARNING"):
                with Client(fake.url, **options) as client:  # type: ignore[arg-type]
                    return client.acquire("login", "a", timeout=WAIT)
        finally:
            fake.stop()

    def test_the_fallback_decides(self) -> None:
        for fallback, granted in (("open", True), ("closed", False)):
            with Client(FAR, permits=PermitPolicy(fallback=fallback)) as client:
                with self.assertLogs("doorman", "WARNING"):
                    decision = client.acquire("login", "a", timeout=WAIT)
                self.assertEqual((decision.granted, decision.by), (granted, "fallback"))

    def test_a_local_limit_decides(self) -> None:
        local = Limit("FIXED_WINDOW", limit=2, window=1e6)
        with Client(FAR, permits=PermitPolicy(fallback="local", local=local)) as client:
            self.assertEqual([client.acquire("x", timeout=0).granted for _ in range(3)],
                             [True, True, False])

    def test_the_safe_capacity_is_used_without_a_lease(self) -> None:
        with Client(FAR) as client:
            rate = client.rate("db", wants=100, safe_capacity=1000)
            self.assertTrue(rate.wait(1, timeout=WAIT))
            self.assertFalse(rate.info().leased)

    def test_the_kill_switch_grants_everything(self) -> None:
        with Client(FAR, permits=PermitPolicy(fallback="closed")) as client:
            rate = client.rate("db", wants=100)
            self.assertFalse(rate.try_use())
            client.kill_switch(True)
            self.assertTrue(rate.try_use())
            self.assertEqual(client.acquire("x", timeout=WAIT).by, "bypass")

    def test_answers_that_are_not_valid_are_failures(self) -> None:
        for answer in [(200, b"<html>"), (200, {}), (200, {"permit": [{}, {}]}), (500, {}),
                       (200, b"[" * 100000), (302, {}), (200, {"permit": [{"decision": 7}]}), None,
                       (401, {"error": {"code": "UNAUTHENTICATED", "message": "no"}})]:
            with self.subTest(answer if answer is None else str(answer)[:60]):
                decision = self.decide(answer)
                self.assertEqual(decision.by, "fallback")  # type: ignore[attr-defined]

    def test_a_redirect_is_followed_with_the_token(self) -> None:
        grants = {"permit": [{"decision": "GRANTED", "item": [{"granted": 1}]}]}
        master = FakeServer(lambda *_: (200, grants))
        other = FakeServer(lambda *_: (200, {"mastership": {"http_address": master.url}}))
        try:
            with Client(other.url, token="t", headers={"X-Team": "a"}) as client:
                self.assertEqual(client.acquire("login", timeout=WAIT).by, "server")
                self.assertEqual(client.acquire("login", timeout=WAIT).by, "server")
            self.assertEqual(len(other.seen), 1)
            self.assertEqual(master.seen[0][2]["Authorization"], "Bearer t")
            self.assertEqual(master.seen[0][2]["X-Team"], "a")
        finally:
            other.stop()
            master.stop()

    def test_a_server_that_hangs_delays_no_later_call(self) -> None:
        def answer(_method: str, message: object, _headers: object) -> object:
            if message["permit"][0]["item"][0]["resource_id"] == "slow":  # type: ignore[index]
                go_on.wait(WAIT)
            return 200, {"permit": [{"decision": "GRANTED", "item": [{"granted": 1}]}]}

        async def run(url: str) -> None:
            async with AsyncClient(url, permit_timeout=0.1) as client:
                self.assertEqual((await client.acquire("slow", timeout=0.1)).by, "fallback")
                decision = await self.ask_until_decided(client)
                self.assertEqual(decision, "server")

        go_on = threading.Event()
        fake = FakeServer(answer)  # type: ignore[arg-type]
        try:
            with self.assertLogs("doorman", "WARNING"), Client(fake.url,
                                                               permit_timeout=0.1) as client:
                self.assertEqual(client.acquire("slow", timeout=0.1).by, "fallback")
                eventually(lambda: client.acquire("x", timeout=WAIT).by == "server",
                           "another call is decided")
            with self.assertLogs("doorman", "WARNING"):
                asyncio.run(run(fake.url))
        finally:
            go_on.set()
            fake.stop()

    async def ask_until_decided(self, client: AsyncClient) -> str:
        end = time.monotonic() + WAIT
        while time.monotonic() < end:
            decision = await client.acquire("x", timeout=WAIT)
            if decision.by == "server":
                break
            await asyncio.sleep(0.05)
        return decision.by

    def test_a_hold_that_is_gone_is_told(self) -> None:
        def answer(method: str, message: object, _headers: object) -> object:
            if method == "acquire":
                return 200, {"permit": [{"decision": "GRANTED", "item": [{"granted": 1}], "hold": {
                    "id": 7, "node": "eu", "waited": 0, "expires_in": 0.3}}]}
            return 200, {"entry": [{"gone": True}]}

        fake = FakeServer(answer)  # type: ignore[arg-type]
        try:
            with Client(fake.url) as client:
                gone = []
                hold = client.hold("t", timeout=WAIT, on_gone=gone.append)
                eventually(lambda: gone, "the application is told")
                self.assertTrue(gone[0].gone)
                eventually(lambda: hold.left() == 0, "the hold ends")
                self.assertEqual(client.counts()["holds_lost"], 1)
                self.assertEqual(client._engine.on_gone, {})
        finally:
            fake.stop()

    def test_a_reservation_whose_task_is_cancelled_is_given_back(self) -> None:
        def answer(method: str, message: object, _headers: object) -> object:
            if method == "acquire":
                asked.set()
                go_on.wait(WAIT)
                return 200, {"permit": [{"decision": "GRANTED", "item": [{"granted": 4}],
                                         "reservation": {"id": 5, "settle_within": 60}}]}
            settled.append(message)
            return 200, {"entry": [{"id": 5, "item": [{"returned": 4, "charged": 0}]}]}

        asked, go_on, settled = threading.Event(), threading.Event(), []
        fake = FakeServer(answer)  # type: ignore[arg-type]

        async def run() -> None:
            async with AsyncClient(fake.url, permit_timeout=WAIT) as client:
                task = asyncio.create_task(client.reserve("llm", cost=4, timeout=WAIT))
                while not asked.is_set():
                    await asyncio.sleep(0.01)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                go_on.set()
                while client.counts()["settled"] == 0:
                    await asyncio.sleep(0.01)

        try:
            asyncio.run(asyncio.wait_for(run(), WAIT))
            self.assertEqual(settled[0]["entry"][0]["item"][0]["cost"], 0)
        finally:
            fake.stop()

    def test_an_answer_to_leases_ends_the_pause_of_permits(self) -> None:
        def answer(method: str, message: object, _headers: object) -> object:
            if method == "get_capacity":
                return 200, {"response": [{"resource_id": "db", "gets": {
                    "id": 1, "node": "eu", "capacity": 5, "expires_in": 60,
                    "refresh_interval": 15}}]}
            if fails:
                return 503, {"error": {"code": "UNAVAILABLE", "message": "no"}}
            return 200, {"permit": [{"decision": "GRANTED", "item": [{"granted": 1}]}]}

        fails = [True]
        fake = FakeServer(answer)  # type: ignore[arg-type]
        try:
            with Client(fake.url, permits=PermitPolicy(max_pause=3600)) as client:
                with self.assertLogs("doorman", "WARNING"):
                    for _ in range(3):
                        client.acquire("x", timeout=WAIT)
                self.assertEqual(client.counts()["is_pausing"], 1)
                core = client._engine.permits
                core.main.retry_at += 1000 * 10**9
                fails.clear()
                client.rate("db", wants=5)
                eventually(lambda: client.acquire("x", timeout=0.5).by == "server",
                           "a test of the breaker comes early")
        finally:
            fake.stop()

    def test_a_second_opening_with_other_options_is_told(self) -> None:
        with Client(FAR) as client:
            first = client.rate("db", wants=5)
            with self.assertLogs("doorman", "WARNING") as logs:
                second = client.rate("db", wants=6)
            self.assertIn("db: wants: not as in the first opening", "".join(logs.output))
            self.assertEqual(second.info().options_differ, "wants")
            self.assertEqual(first.info().wants, 5)
            with self.assertRaisesRegex(ValueError, "kind: db is open as a rate"):
                client.gauge("db")

    def test_the_metrics_are_those_of_all_packages(self) -> None:
        path = os.path.join(os.path.dirname(__file__), "../../stories/metrics.txt")
        with open(path, encoding="utf-8") as file:
            names = file.read().splitlines()
        with Client(FAR) as client, self.assertLogs("doorman", "WARNING"):
            client.rate("db", wants=1)
            eventually(lambda: re.search(r"lease_failures_total [1-9]", client.metrics()),
                       "a request has failed")
            seen = [line for line in client.metrics().splitlines() if line.startswith("#")]
        self.assertEqual(sorted(seen), sorted(names))

    def test_what_was_refused_does_not_run(self) -> None:
        closed = PermitPolicy(fallback="closed")

        async def run() -> None:
            async with AsyncClient(FAR, permits=closed) as client:
                for ask in (client.hold("t"), client.reserve("t")):
                    with self.assertRaises(Refused):
                        async with await ask:  # type: ignore[attr-defined]
                            self.fail("it runs")
                await client.close(timeout=0)

        with self.assertLogs("doorman", "WARNING"):
            with Client(FAR, permits=closed) as client:
                for granted in (client.hold("t"), client.reserve("t")):
                    with self.assertRaises(Refused):
                        with granted:  # type: ignore[attr-defined]
                            self.fail("it runs")
                client.close(timeout=0)
            asyncio.run(run())

    def test_a_reservation_whose_block_fails_costs_what_was_reserved(self) -> None:
        async def run() -> None:
            async with AsyncClient(fake.url) as client:
                async with await client.reserve("llm", cost=5, timeout=WAIT) as reservation:
                    reservation.cost = 3
                    raise KeyError

        decision = {"decision": "GRANTED", "item": [{"granted": 5}],
                    "reservation": {"id": 9, "settle_within": 60}}
        fake = FakeServer(lambda method, *_: (200, {"permit": [decision]} if method == "acquire"
                                              else {"entry": [{"id": 9, "item": [{}]}]}))
        with Client(fake.url) as client, self.assertRaises(KeyError):
            with client.reserve("llm", cost=5, timeout=WAIT) as reservation:
                reservation.cost = 3
                raise KeyError
        with self.assertRaises(KeyError):
            asyncio.run(run())
        self.assertEqual([message["entry"][0]["item"][0]["cost"]
                          for method, message, _ in fake.seen if method == "settle"], [5, 5])
        fake.stop()

    def test_a_settle_of_a_hold_releases_it(self) -> None:
        async def run() -> None:
            async with AsyncClient(fake.url) as client:
                hold = await client.hold("t", settle_within=30, timeout=WAIT)
                await hold.settle(1)
                self.assertEqual(hold.left(), 0)

        fake = FakeServer(grant)
        with Client(fake.url) as client:
            hold = client.hold("t", settle_within=30, timeout=WAIT)
            hold.settle(1)
            self.assertEqual(hold.left(), 0)
        asyncio.run(run())
        fake.stop()

    def check_given_back(self, fake: FakeServer) -> None:
        seen = {method: message for method, message, _ in fake.seen}
        self.assertEqual(seen["release_capacity"]["resource"], [{"resource_id": "db", "id": 5}])
        self.assertEqual(seen["release"]["entry"][0]["id"], 7)
        fake.stop()

    def test_close_gives_back_leases_and_holds(self) -> None:
        fake = FakeServer(grant)
        with Client(fake.url) as client:
            rate = client.rate("db", wants=5)
            eventually(lambda: rate.info().leased, "there is a lease")
            self.assertTrue(client.hold("t", timeout=WAIT).granted)
            client.close(timeout=WAIT)
        self.check_given_back(fake)

    def test_asyncio_gives_back_leases_and_holds(self) -> None:
        async def run() -> None:
            async with AsyncClient(fake.url) as client:
                rate = client.rate("db", wants=5)
                self.assertTrue((await client.hold("t", timeout=WAIT)).granted)
                end = time.monotonic() + WAIT
                while not rate.info().leased and time.monotonic() < end:
                    await asyncio.sleep(0.02)
                await client.close(timeout=WAIT)

        fake = FakeServer(grant)
        asyncio.run(run())
        self.check_given_back(fake)

    def test_close_refuses_a_permit_that_waits_for_a_server(self) -> None:
        answers = threading.Event()
        fake = FakeServer(lambda *_: answers.wait(WAIT) and None)
        client = Client(fake.url)
        decisions = []
        thread = threading.Thread(
            target=lambda: decisions.append(client.acquire("x", timeout=WAIT)))
        thread.start()
        eventually(lambda: fake.seen, "the request is sent")
        client.close(timeout=0)
        thread.join(WAIT)
        answers.set()
        self.assertEqual([(decision.granted, decision.by) for decision in decisions],
                         [(False, "fallback")])
        fake.stop()

    def test_a_response_that_is_too_large_is_a_failure(self) -> None:
        async def run() -> str:
            async with AsyncClient(fake.url) as client:
                return (await client.acquire("x", timeout=WAIT)).by

        decision = {"decision": "GRANTED", "item": [{"granted": 1}], "more": "x" * (5 << 20)}
        fake = FakeServer(lambda *_: (200, {"permit": [decision]}))
        fake.server.handle_error = lambda *_: None  # type: ignore[method-assign]
        with self.assertLogs("doorman", "WARNING"):
            with Client(fake.url) as client:
                self.assertEqual(client.acquire("x", timeout=WAIT).by, "fallback")
            self.assertEqual(asyncio.run(run()), "fallback")
        fake.stop()

    def test_a_client_that_is_closed_says_so(self) -> None:
        client = Client(FAR)
        rate = client.rate("db", wants=1, safe_capacity=-1)
        client.close(timeout=0)
        self.assertFalse(rate.try_use())
        self.assertFalse(rate.wait(1))
        with self.assertRaises(RuntimeError):
            client.acquire("x")

    def test_wrong_arguments_name_what_is_wrong(self) -> None:
        with self.assertRaisesRegex(ValueError, "addresses: must be 1 to 16"):
            Client([])
        with self.assertRaisesRegex(ValueError, "address: must be like http://"):
            Client("tcp://127.0.0.1:15000")
        with self.assertRaisesRegex(ValueError, "the port must be a number"):
            Client("http://127.0.0.1:99999")
        with self.assertRaisesRegex(ValueError, "local: is needed"):
            PermitPolicy(fallback="local")
        with Client(FAR) as client:
            with self.assertRaisesRegex(ValueError, "wants: must be a number from 0"):
                client.rate("db", wants=-1)
            with self.assertRaisesRegex(ValueError, "resource_id: must be 1 to 256 bytes"):
                client.acquire("")
            with self.assertRaisesRegex(ValueError, "min: must be at most cost"):
                client.acquire("x", cost=1, min=2)


if __name__ == "__main__":
    unittest.main()
