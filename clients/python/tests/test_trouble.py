"""What goes wrong around a client: callers that are interrupted, processes that fork, servers that
hang, handlers of the log that fail."""
import asyncio
import gc
import logging
import os
import signal
import threading
import unittest
import warnings
import weakref
from typing import Any, Awaitable, Callable, List

from doorman import AsyncClient, Client, PermitPolicy
from server import WAIT, FakeServer, eventually

FAR = "http://127.0.0.1:1"  # nothing listens there
HOLD = {"id": 7, "node": "eu", "waited": 0, "expires_in": 60}
RESERVATION = {"id": 7, "settle_within": 60}
ENTRIES = {
    "release": {}, "report": {},
    "transfer": {"transfer_id": 9, "expires_in": 60},
    "seize": {"id": 7, "expires_in": 60, "item": [{"resource_id": "t", "key": "", "amount": 1}]}}


def answer(method: str, message: Any, _headers: Any = None) -> Any:
    """Grants everything. What settles gets a reservation, and what waits gets a hold."""
    if method == "settle":
        return 200, {"entry": [{"item": [{"charged": 0} for _ in entry["item"]]}
                               for entry in message["entry"]]}
    if method != "acquire":
        return 200, {"entry": [ENTRIES[method] for _ in message["entry"]]}
    permits = []
    for permit in message["permit"]:
        out = {"decision": "GRANTED", "item": [{"granted": 1} for _ in permit["item"]]}
        if "request_id" in permit:
            out.update({"reservation": RESERVATION} if "settle_within" in permit else {})
            out.update({"hold": HOLD} if permit["item"][0]["resource_id"] == "t" else {})
        permits.append(out)
    return 200, {"permit": permits}


class Soft(Exception):
    """What a handler of a signal raises."""


class WithFake(unittest.TestCase):
    def setUp(self) -> None:
        self.asked, self.go_on = threading.Event(), threading.Event()
        self.on_ask: Callable[[], None] = self.go_on.set
        self.fake = FakeServer(self.answer)

    def tearDown(self) -> None:
        self.go_on.set()
        self.fake.stop()

    def answer(self, method: str, message: Any, headers: Any) -> Any:
        """Answers to permits and seizures when the test wants it."""
        if method in ("acquire", "seize"):
            self.asked.set()
            self.on_ask()
            self.go_on.wait(WAIT)
        return answer(method, message, headers)

    def costs_settled(self) -> List[float]:
        return [entry["item"][0]["cost"] for method, message, _ in self.fake.seen
                if method == "settle" for entry in message["entry"]]

    def methods(self) -> List[str]:
        return [method for method, _, _ in self.fake.seen]


class Interrupted(WithFake):
    """A caller that does not wait any more leaves nothing behind."""

    def setUp(self) -> None:
        super().setUp()
        self.on_ask = lambda: os.kill(os.getpid(), signal.SIGALRM)

        def interrupt(*_: Any) -> None:
            raise Soft

        before = signal.signal(signal.SIGALRM, interrupt)
        self.addCleanup(signal.signal, signal.SIGALRM, before)

    def interrupt(self, client: Client, call: Callable[[], Any]) -> None:
        with self.assertRaises(Soft):
            call()
        self.go_on.set()
        eventually(lambda: client.counts()["waiting"] == 0, "nothing waits")
        eventually(lambda: client.counts()["holds"] == 0, "nothing is held")

    def test_a_hold_whose_wait_is_interrupted_is_released(self) -> None:
        with Client(self.fake.url, permit_timeout=WAIT) as client:
            self.interrupt(client, lambda: client.hold("t", max_wait=WAIT))
            self.assertIn("release", self.methods())

    def test_a_reservation_whose_wait_is_interrupted_costs_nothing(self) -> None:
        with Client(self.fake.url, permit_timeout=WAIT) as client:
            self.interrupt(client, lambda: client.reserve("llm", timeout=WAIT))
            eventually(lambda: client.counts()["settled"] == 1, "it is settled")
            self.assertEqual(self.costs_settled(), [0])

    def test_a_seizure_whose_wait_is_interrupted_is_released(self) -> None:
        with Client(self.fake.url, permit_timeout=WAIT) as client:
            self.interrupt(client, lambda: client.seize(9, timeout=WAIT))
            self.assertIn("release", self.methods())


class Cancelled(WithFake):
    """The same for tasks of asyncio."""

    def run_tasks(self, run: Callable[[AsyncClient], Awaitable[None]], url: str) -> None:
        async def main() -> None:
            async with AsyncClient(url, permit_timeout=WAIT) as client:
                await run(client)

        asyncio.run(asyncio.wait_for(main(), 2 * WAIT))

    def test_a_task_that_is_cancelled_does_not_enter_its_block(self) -> None:
        entered: List[int] = []

        async def run(client: AsyncClient) -> None:
            gauge = client.gauge("g", safe_capacity=1)

            async def work(number: int) -> None:
                async with gauge.use():
                    entered.append(number)
                    await asyncio.sleep(1)

            tasks = [asyncio.create_task(work(i)) for i in range(2)]
            while not entered:
                await asyncio.sleep(0.01)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            self.assertEqual([task.cancelled() for task in tasks], [True, True])
            self.assertEqual(gauge.info().in_use, 0)

        self.run_tasks(run, FAR)
        self.assertEqual(len(entered), 1)

    def test_a_seizure_whose_task_is_cancelled_is_released(self) -> None:
        async def run(client: AsyncClient) -> None:
            task = asyncio.create_task(client.seize(9, timeout=WAIT))
            while not self.asked.is_set():
                await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.wait([task])
            self.go_on.set()
            while client.counts()["holds"]:
                await asyncio.sleep(0.01)

        self.on_ask = lambda: None
        self.run_tasks(run, self.fake.url)
        self.assertIn("release", self.methods())

    def test_a_hold_that_is_decided_when_its_task_is_cancelled_costs_nothing(self) -> None:
        async def run(client: AsyncClient) -> None:
            task = asyncio.create_task(client.hold("t", settle_within=60, timeout=WAIT))
            while not client.counts()["granted"]:
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            self.assertTrue(task.cancelled())
            while not client.counts()["settled"]:
                await asyncio.sleep(0.01)

        self.run_tasks(run, self.fake.url)
        self.assertEqual(self.costs_settled(), [0])


class Closed(WithFake):
    """After close() nothing is sent, and nothing waits."""

    def test_a_settle_after_close_says_so(self) -> None:
        with Client(self.fake.url) as client:
            reservations = [client.reserve("llm") for _ in range(2)]
            hold = client.hold("t")
        for timeout, reservation in enumerate(reservations):
            with self.assertRaisesRegex(RuntimeError, "closed"):
                reservation.settle(1, timeout=timeout)
        with self.assertRaisesRegex(RuntimeError, "closed"):
            hold.transfer()
        hold.release()
        self.assertEqual(client.counts()["waiting"], 0)
        self.assertNotIn("settle", self.methods())

    def test_an_exception_in_a_block_that_outlives_its_client_is_not_hidden(self) -> None:
        client = Client(self.fake.url)
        with self.assertRaises(ZeroDivisionError), client.reserve("llm"):
            client.close()
            raise ZeroDivisionError

    def test_asyncio_starts_nothing_after_close(self) -> None:
        async def run() -> None:
            async with AsyncClient(self.fake.url) as client:
                reservation = await client.reserve("llm")
                hold = await client.hold("t")
                rate = client.rate("db")
            with self.assertRaisesRegex(RuntimeError, "closed"):
                await reservation.settle(1, timeout=1)
            hold.release()
            rate.set_wants(5)
            rate.close()
            await client.close()
            self.assertEqual(len(asyncio.all_tasks()), 1)

        asyncio.run(run())

    def test_units_of_a_client_that_is_closed_say_so(self) -> None:
        client = Client(FAR)
        gauge = client.gauge("g")
        client.close(timeout=0)
        with self.assertRaisesRegex(RuntimeError, "closed"), gauge.use():
            self.fail("there are no units")


class Forked(unittest.TestCase):
    def test_a_call_after_a_fork_raises_an_error(self) -> None:
        with Client(FAR, permits=PermitPolicy(fallback="closed")) as client:
            rate = client.rate("db")
            child = os.fork()
            if child == 0:
                signal.alarm(int(WAIT))
                refused = 0
                for call in (lambda: client.acquire("x"), rate.try_use, rate.wait, rate.close):
                    try:
                        call()
                    except RuntimeError:
                        refused += 1
                client.close()
                os._exit(0 if refused == 4 else 1)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            self.assertEqual(client.acquire("x", timeout=0).by, "fallback")


class Forgotten(WithFake):
    """What happens to a client that nobody has closed, and nobody can use."""

    def forget(self, resource: str) -> "weakref.ref[Client]":
        client = Client(self.fake.url)
        client.hold(resource, timeout=WAIT)
        return weakref.ref(client)

    def is_gone(self, client: "weakref.ref[Client]") -> bool:
        gc.collect()
        return client() is None

    def test_its_threads_end_with_a_warning(self) -> None:
        before = set(threading.enumerate())
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            client = self.forget("nothing is held of it")
            mine = {thread for thread in threading.enumerate() if "doorman" in thread.name}
            eventually(lambda: self.is_gone(client), "the client is collected")
        self.assertTrue(any("was not closed" in str(warning.message) for warning in told))
        eventually(lambda: not any(thread.is_alive() for thread in mine - before),
                   "the threads end")

    def test_its_holds_are_kept(self) -> None:
        client = self.forget("t")
        self.assertFalse(self.is_gone(client))
        kept = client()
        assert kept
        self.assertEqual(kept.counts()["holds"], 1)
        kept.close()


class Failing(logging.Handler):
    def emit(self, _record: logging.LogRecord) -> None:
        raise OSError("the disk is full")


class Survivor(WithFake):
    """One bad answer, and one bad function of the application, end no thread."""

    def ask_twice(self, first: Any) -> None:
        """Lets the first answer to a permit be wrong. The client repeats the permit."""
        answers = [first]
        fake = FakeServer(lambda *call: answers.pop() if answers else answer(*call))
        try:
            with Client(fake.url) as client:
                self.assertEqual(client.acquire("x", timeout=WAIT).by, "server")
        finally:
            fake.stop()

    def test_a_number_that_is_too_large(self) -> None:
        body = b'{"permit": [{"decision": "GRANTED", "item": [{"granted": 1%s}]}]}' % (b"0" * 400)
        with self.assertLogs("doorman", "WARNING") as logs:
            self.ask_twice((200, body))
        self.assertIn("granted: must be an amount", "".join(logs.output))

    def test_a_handler_of_the_log_that_fails(self) -> None:
        log, handler = logging.getLogger("doorman"), Failing()
        log.addHandler(handler)
        self.addCleanup(log.removeHandler, handler)
        self.ask_twice((500, {}))

    def test_a_warning_has_the_status_of_what_is_no_answer_of_a_server(self) -> None:
        with self.assertLogs("doorman", "WARNING") as logs:
            self.ask_twice((502, b"<html>Bad Gateway</html>"))
        self.assertIn("the status is 502", "".join(logs.output))

    def test_a_request_that_was_given_up_is_not_sent_again(self) -> None:
        begun: List[str] = []

        def hang(method: str, message: Any, _headers: Any) -> Any:
            key = message["permit"][0]["item"][0].get("key")
            if key != "slow":
                return answer(method, message)
            begun.append(key)
            if len(begun) % 2:  # this makes the connection wait longer than the client
                self.go_on.wait(0.2)
                return 100, b""
            self.go_on.wait(WAIT)
            return answer(method, message)

        fake = FakeServer(hang)
        try:
            with self.assertLogs("doorman", "WARNING"):
                with Client(fake.url, permit_timeout=0.3) as client:
                    client.acquire("x", "first", timeout=WAIT)
                    self.assertEqual(client.acquire("x", "slow", timeout=0.3).by, "fallback")
                    eventually(lambda: client.acquire("x", "next").by == "server", "it answers")
            sent = [message["permit"][0]["item"][0]["key"] for _, message, _ in fake.seen]
            self.assertEqual(sent.count("slow"), 1)
        finally:
            self.go_on.set()
            fake.stop()


class Unmatched(unittest.TestCase):
    def test_a_resource_that_the_server_does_not_know_is_told_once(self) -> None:
        refused = {"decision": "REFUSED", "resource_id": "logn", "reason": "UNMATCHED",
                   "valid_for": 1}
        fake = FakeServer(lambda _method, message, _headers: (
            200, {"permit": [refused for _ in message["permit"]]}))
        try:
            with self.assertLogs("doorman", "WARNING") as logs, Client(fake.url) as client:
                decisions = [client.acquire("logn", key, timeout=WAIT) for key in "aab"]
            self.assertEqual([(decision.by, decision.reason) for decision in decisions],
                             3 * [("fallback", "UNMATCHED")])
            self.assertEqual(len(logs.output), 1)
            self.assertIn("logn: the server has no limits", logs.output[0])
        finally:
            fake.stop()


class Settled(WithFake):
    def test_a_hold_with_settle_within_is_settled_and_released(self) -> None:
        with Client(self.fake.url) as client:
            with client.hold("t", cost=5, settle_within=60) as hold:
                with self.assertRaisesRegex(ValueError, "costs: must have one cost"):
                    hold.settle([1, 2])
                self.assertTrue(hold.settle(2, timeout=WAIT).granted)
                self.assertIsNone(hold.settle(3))
            eventually(lambda: client.counts()["holds"] == 0, "it is released")
            self.assertEqual(self.costs_settled(), [2])
            with client.hold("t") as hold, self.assertRaisesRegex(ValueError, "no settle_within"):
                hold.settle(1)

    def test_the_same_for_asyncio(self) -> None:
        async def run() -> None:
            async with AsyncClient(self.fake.url) as client:
                async with await client.hold("t", cost=5, settle_within=60) as hold:
                    self.assertTrue((await hold.settle(2, timeout=WAIT)).granted)
                    self.assertIsNone(await hold.settle(3))

        asyncio.run(asyncio.wait_for(run(), WAIT))
        self.assertEqual(self.costs_settled(), [2])


if __name__ == "__main__":
    unittest.main()
