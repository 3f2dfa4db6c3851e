"""Arguments that are wrong are refused by name, and change nothing."""
import asyncio
import logging
import re
import ssl
import unittest
from typing import Any

import doorman
from doorman import AsyncClient, Client, Item
from server import WAIT, FakeServer
from test_trouble import FAR, answer

NO_UNITS = (float("nan"), float("inf"), -1, 10**400, "1", None, True)


class WithFake(unittest.TestCase):
    def setUp(self) -> None:
        self.fake = FakeServer(answer)
        self.client = Client(self.fake.url)

    def tearDown(self) -> None:
        self.client.close()
        self.fake.stop()

    def test_items_of_another_type_do_not_stop_the_client(self) -> None:
        for items in (["login"], ("login", "k"), None, 5, {"resource_id": "login"}, [Item("a"), 1]):
            with self.subTest(items), self.assertRaisesRegex(ValueError, "items?:|resource:"):
                self.client.acquire(items)  # type: ignore[arg-type]
        with self.assertRaisesRegex(ValueError, "detail: must be True or False"):
            self.client.acquire("x", detail=object())  # type: ignore[arg-type]
        self.assertEqual(self.client.acquire("x", timeout=WAIT).by, "server")

    def test_units_of_a_hold_stay_what_the_server_gave(self) -> None:
        hold = self.client.hold("t", timeout=WAIT)
        for units in (*([wrong] for wrong in NO_UNITS), 1.0, "1"):
            with self.subTest(units):
                with self.assertRaisesRegex(ValueError, "amounts: must be"):
                    hold.transfer(units)  # type: ignore[arg-type]
                with self.assertRaisesRegex(ValueError, "keep: must be"):
                    hold.release(keep=units)  # type: ignore[arg-type]
        with self.assertRaisesRegex(ValueError, "time_to_live"):
            hold.transfer(time_to_live=-1)
        self.assertEqual(list(hold.units()), [1])
        self.assertTrue(hold.transfer([1], timeout=WAIT).granted)

    def test_a_call_with_a_wrong_time_leaves_no_hold(self) -> None:
        for time in (-1, float("nan"), "1"):
            with self.subTest(time):
                with self.assertRaisesRegex(ValueError, "timeout"):
                    self.client.hold("t", timeout=time)  # type: ignore[arg-type]
                with self.assertRaisesRegex(ValueError, "time_to_live"):
                    self.client.seize(5, time_to_live=time)  # type: ignore[arg-type]
        self.assertEqual(self.client.counts()["holds"], 0)

    def test_a_transfer_id_that_no_transfer_has_is_refused(self) -> None:
        for number in ("abc", -1, 0, 1.5, True, 1 << 60):
            with self.subTest(number), self.assertRaisesRegex(ValueError, "transfer_id"):
                self.client.seize(number)  # type: ignore[arg-type]

    def test_a_settle_has_one_cost_for_each_item(self) -> None:
        reservation = self.client.reserve([Item("llm"), Item("gpu")], timeout=WAIT)
        for costs in ([1], [1, 2, 3], 1, "ab"):
            with self.subTest(costs), self.assertRaisesRegex(ValueError, "costs: must have one"):
                reservation.settle(costs)  # type: ignore[arg-type]
        with self.assertRaisesRegex(ValueError, "cost: must be a number"):
            reservation.settle([1, float("nan")])
        self.assertIsNone(reservation.settle([1, 2]))
        self.client.close()
        self.assertEqual(self.client.counts()["settled"], 1)


class Units(unittest.TestCase):
    def test_units_that_are_no_amount_do_not_disturb_later_callers(self) -> None:
        with Client(FAR) as client:
            rate = client.rate("db", safe_capacity=1000)
            for units in NO_UNITS:
                for call in (rate.try_use, rate.wait, rate.retry_after):
                    with self.subTest(units), self.assertRaisesRegex(ValueError, "units: must be"):
                        call(units)  # type: ignore[arg-type]
            self.assertTrue(rate.wait(1, timeout=WAIT))

    def test_the_same_for_asyncio(self) -> None:
        async def run() -> None:
            async with AsyncClient(FAR) as client:
                rate = client.rate("db", safe_capacity=1000)
                for units in NO_UNITS:
                    with self.subTest(units), self.assertRaisesRegex(ValueError, "units: must be"):
                        await rate.wait(units)  # type: ignore[arg-type]
                self.assertTrue(await rate.wait(1, timeout=WAIT))

        asyncio.run(asyncio.wait_for(run(), 2 * WAIT))


class Names(unittest.TestCase):
    def test_a_key_that_is_no_text_is_named(self) -> None:
        with Client(FAR) as client:
            for key in ("\ud800", "a" * 257, "a\nb"):
                with self.subTest(key[:5].encode("utf-8", "replace")):
                    with self.assertRaisesRegex(ValueError, "key: must be 0 to 256 bytes"):
                        client.acquire("x", key)
            for other in (42, None):
                with self.subTest(other), self.assertRaisesRegex(ValueError, "must be a str$"):
                    client.acquire("x", other)  # type: ignore[arg-type]

    def test_a_file_of_authorities_that_cannot_be_used_is_named(self) -> None:
        for path, error in (("/nothing/ca.pem", FileNotFoundError), (__file__, ssl.SSLError)):
            for make in (Client, AsyncClient):
                with self.subTest(path), self.assertRaisesRegex(error, re.escape(path)):
                    make("https://127.0.0.1:1", tls=path)

    def test_addresses_that_lead_nowhere_are_refused(self) -> None:
        for address in ("http://[::1", "http://:15050", "http://h:１５", "http:///x", "https://"):
            for make in (Client, AsyncClient):
                with self.subTest(address), self.assertRaisesRegex(ValueError, "address: "):
                    make(address)

    def test_all_types_of_results_have_public_names(self) -> None:
        for name in ("Hold", "Rate", "Gauge", "Reservation"):
            self.assertIn(name, doorman.__all__)
            self.assertTrue(hasattr(doorman, name) and hasattr(doorman, f"Async{name}"))


class Secrets(unittest.TestCase):
    SECRET = "0123456789abcdef"

    def check_error(self, make: Any) -> None:
        with self.assertRaises(ValueError) as error:
            make()
        self.assertNotIn(self.SECRET, str(error.exception))

    def test_an_error_does_not_show_a_token(self) -> None:
        for make in (Client, AsyncClient):
            self.check_error(lambda: make(FAR, token=self.SECRET + "\n"))
            self.check_error(lambda: make(FAR, token=self.SECRET.encode()))
            self.check_error(lambda: make(FAR, headers={"X-Secret": self.SECRET + "\r\nA: b"}))

    def test_the_log_does_not_show_a_token(self) -> None:
        async def run(token: Any) -> None:
            async with AsyncClient(FAR, token=token) as client:
                self.assertEqual((await client.acquire("x", timeout=WAIT)).by, "fallback")

        for end in ("\n", "é", "€", " x"):
            with self.subTest(end), self.assertLogs("doorman", logging.WARNING) as logs:
                with Client(FAR, token=lambda: self.SECRET + end) as client:
                    self.assertEqual(client.acquire("x", timeout=WAIT).by, "fallback")
                asyncio.run(run(lambda: self.SECRET + end))
            self.assertIn("token: must be ASCII", "".join(logs.output))
            self.assertNotIn(self.SECRET, "".join(logs.output))


if __name__ == "__main__":
    unittest.main()
