"""Many callers that wait for units, processes that end, and names that no server knows."""
import asyncio
import gc
import os
import subprocess
import sys
import threading
import unittest
import warnings
from typing import Any
from unittest import mock

import doorman
from doorman import AsyncClient, Client
from server import PROGRAM, WAIT, FakeServer, Server
from test_trouble import FAR, answer

COUNT = 100
FORGETFUL = """
import sys
from doorman import Client
client = Client(sys.argv[1])
assert client.hold("t", timeout=60).granted
"""


class Crowds(unittest.TestCase):
    """A release wakes the first of those that wait, and not all of them."""

    def check(self, client: Any, looks: int) -> None:
        self.assertGreaterEqual(looks, COUNT - 1)
        self.assertLess(looks, 10 * COUNT)
        self.assertFalse(client._waiters)

    def test_threads_that_wait_are_woken_in_turn(self) -> None:
        with Client(FAR) as client, mock.patch(
                "doorman.client.show_demand", wraps=doorman.client.show_demand) as look:
            gauge = client.gauge("g", safe_capacity=1)

            def work() -> None:
                with gauge.use(timeout=WAIT):
                    pass

            with gauge.use(timeout=WAIT):
                threads = [threading.Thread(target=work) for _ in range(COUNT)]
                for thread in threads:
                    thread.start()
                while client._engine.leases.resources["g"].waiting < COUNT:
                    threading.Event().wait(0.01)
            for thread in threads:
                thread.join(WAIT)
            self.assertEqual(gauge.info().allowed, COUNT + 1)
            self.check(client, look.call_count)

    def test_tasks_that_wait_are_woken_in_turn(self) -> None:
        async def run() -> None:
            async with AsyncClient(FAR) as client:
                gauge = client.gauge("g", safe_capacity=1)

                async def work() -> None:
                    async with gauge.use(timeout=WAIT):
                        await asyncio.sleep(0)

                await asyncio.gather(*[work() for _ in range(COUNT)])
                self.assertEqual(gauge.info().allowed, COUNT)
                self.check(client, look.call_count)

        with mock.patch("doorman.aio.show_demand", wraps=doorman.aio.show_demand) as look:
            asyncio.run(asyncio.wait_for(run(), WAIT))

    def test_all_that_wait_return_when_the_client_closes(self) -> None:
        client = Client(FAR)
        gauge = client.gauge("g", safe_capacity=0)
        results = []
        threads = [threading.Thread(target=lambda: results.append(gauge.wait()))
                   for _ in range(5)]
        for thread in threads:
            thread.start()
        while client._engine.leases.resources["g"].waiting < 5:
            threading.Event().wait(0.01)
        client.close(timeout=0)
        for thread in threads:
            thread.join(10)
        self.assertEqual(results, 5 * [False])

    def test_all_tasks_that_wait_return_when_the_client_closes(self) -> None:
        async def run() -> None:
            client = AsyncClient(FAR)
            gauge = client.gauge("g", safe_capacity=0)
            tasks = [asyncio.create_task(gauge.wait()) for _ in range(5)]
            await asyncio.sleep(0)
            await client.close(timeout=0)
            done = await asyncio.wait_for(asyncio.gather(*tasks), 10)
            self.assertEqual(done, 5 * [False])

        asyncio.run(run())


class Exits(unittest.TestCase):
    def test_a_process_that_exits_gives_back_what_it_has(self) -> None:
        fake = FakeServer(answer)
        try:
            package = os.path.dirname(os.path.dirname(doorman.__file__))
            subprocess.run([sys.executable, "-c", FORGETFUL, fake.url], check=True, timeout=WAIT,
                           env={**os.environ, "PYTHONPATH": package})
            self.assertIn("release", [method for method, _, _ in fake.seen])
        finally:
            fake.stop()


    def test_a_client_of_asyncio_that_was_not_closed_is_warned_of(self) -> None:
        async def run(closes: bool) -> None:
            client = AsyncClient(FAR)
            client.rate("db")
            if closes:
                await client.close(timeout=0)

        for closes in (True, False):
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                asyncio.run(run(closes))
                gc.collect()
            texts = [str(warning.message) for warning in told]
            self.assertEqual(any("was not closed" in text for text in texts), not closes, texts)


@unittest.skipUnless(os.path.exists(PROGRAM), f"there is no {PROGRAM}")
class Unknown(unittest.TestCase):
    def test_a_lease_that_no_server_knows_is_warned_of_once(self) -> None:
        server = Server()
        try:
            with self.assertLogs("doorman", "WARNING") as logs, Client(server.url) as client:
                pools = [client.gauge("dbb/orders"), client.gauge("login")]
                for pool in pools:
                    while pool.info().outcome != "UNMATCHED":
                        pool.wait(timeout=0.01)
                pools[0].set_wants(5)  # it asks again
                self.assertFalse(pools[0].wait(timeout=1))
            told = [line for line in logs.output if "no capacity" in line]
            self.assertEqual(len(told), 2)
            self.assertIn("dbb/orders: the server has no capacity for this resource", told[0])
        finally:
            server.stop()


if __name__ == "__main__":
    unittest.main()
