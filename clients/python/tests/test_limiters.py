"""Limiters and the estimate of demand, beyond what the stories show."""
import unittest

from doorman._base import NEVER, SECOND, Addresses, check_address, check_id
from doorman._limiters import Gauge, Limit, LocalLimiters, Rate, Schedule

HOUR = 3600 * SECOND


def rate_of(amount: float, burst: int = SECOND // 10, units: float = 0) -> Rate:
    rate = Rate(burst, units, 0)
    rate.set(Schedule(amount, NEVER, 0), 0, 0)
    rate.usage.ceiling = amount
    return rate


def taken(rate: Rate, now: int, units: float = 1) -> int:
    count = 0
    while rate.take(units, now) == "allowed":
        count += 1
    return count


class Rates(unittest.TestCase):
    def test_a_rate_never_allows_more_than_rate_times_time_and_burst(self) -> None:
        rate, allowed = rate_of(100), 0
        for step in range(1, 1001):
            allowed += taken(rate, step * SECOND // 100)
        self.assertLessEqual(allowed, 100 * 10 + 10)
        self.assertGreaterEqual(allowed, 100 * 10 - 1)

    def test_a_slow_rate_saves_one_unit(self) -> None:
        rate = rate_of(0.5)
        self.assertEqual(taken(rate, SECOND), 0)
        self.assertEqual(taken(rate, 2 * SECOND), 1)
        self.assertEqual(taken(rate, HOUR), 1)

    def test_a_large_request_fits_when_enough_time_has_passed(self) -> None:
        rate = rate_of(100)
        self.assertEqual(rate.take(20, SECOND // 10), "refused")
        self.assertEqual(rate.delay(20, SECOND // 10), SECOND // 10)
        self.assertEqual(rate.take(20, SECOND // 5), "allowed")
        self.assertEqual(rate.take(float("nan"), HOUR), "impossible")
        self.assertEqual(rate.take(-1, HOUR), "impossible")

    def test_a_burst_in_units_is_a_hard_bound(self) -> None:
        rate = rate_of(10, units=4)
        self.assertEqual(taken(rate, HOUR), 4)
        self.assertEqual(rate.take(5, HOUR), "impossible")

    def test_the_end_of_a_lease_needs_no_call(self) -> None:
        rate = rate_of(0)
        rate.set(Schedule(1000, 10 * SECOND, 0), 0, 0)
        self.assertEqual(taken(rate, 10 * SECOND - 1), 100)
        self.assertEqual(taken(rate, 10 * SECOND), 0)
        self.assertEqual(taken(rate, HOUR), 0)

    def test_a_change_of_the_rate_gains_no_units(self) -> None:
        for before, after in ((10, 1000), (1000, 10), (10, 0.1), (0.1, 10)):
            with self.subTest(f"from {before} to {after}"):
                rate = rate_of(before)
                saved = taken(rate_of(before), HOUR)
                rate.set(Schedule(after, NEVER, 0), 0, HOUR)
                self.assertLessEqual(taken(rate, HOUR), max(1, saved))

    def test_a_gauge_follows_its_lease(self) -> None:
        gauge = Gauge()
        gauge.set(Schedule(2, SECOND, 1), 0, 0)
        self.assertEqual([gauge.take(1, 0) for _ in range(3)], ["allowed", "allowed", "refused"])
        gauge.release(1)
        self.assertEqual(gauge.take(1, SECOND), "refused")
        gauge.release(1)
        self.assertEqual(gauge.take(1, SECOND), "allowed")
        with self.assertRaisesRegex(ValueError, "more are released"):
            gauge.release(2)


class LocalLimits(unittest.TestCase):
    def test_a_bucket_starts_full(self) -> None:
        limiters = LocalLimiters(Limit("TOKEN_BUCKET", rate=1, size=3))
        self.assertEqual([limiters.take("k", 1, 0) for _ in range(4)],
                         [None, None, None, SECOND])
        self.assertIsNone(limiters.take("k", 1, SECOND))
        self.assertEqual(limiters.take("k", 4, HOUR), NEVER)

    def test_a_sliding_window_counts_part_of_the_last_one(self) -> None:
        limiters = LocalLimiters(Limit("SLIDING_WINDOW", limit=4, window=10))
        for _ in range(4):
            self.assertIsNone(limiters.take("k", 1, 5 * SECOND))
        self.assertEqual(limiters.take("k", 1, 5 * SECOND), 5 * SECOND + 5 * SECOND // 2)
        self.assertEqual(limiters.take("k", 1, 10 * SECOND), 5 * SECOND // 2)
        self.assertIsNone(limiters.take("k", 1, 10 * SECOND + 5 * SECOND // 2))

    def test_a_wait_is_exact(self) -> None:
        for kind in ("SLIDING_WINDOW", "FIXED_WINDOW"):
            limiters = LocalLimiters(Limit(kind, limit=7, window=3))
            now = 0
            for step in range(200):
                wait = limiters.take("k", 1 + step % 3, now)
                if wait is None:
                    now += step * SECOND // 50
                    continue
                self.assertGreater(wait, 0)
                early = limiters.take("k", 1 + step % 3, now + wait - SECOND // 1000)
                self.assertIsNotNone(early, f"{kind}, step {step}")
                now += wait
                self.assertIsNone(limiters.take("k", 1 + step % 3, now), f"{kind}, step {step}")

    def test_the_key_that_was_used_the_longest_time_ago_is_forgotten(self) -> None:
        limiters = LocalLimiters(Limit("FIXED_WINDOW", limit=1, window=100), max_keys=2)
        for key in "abc":
            self.assertIsNone(limiters.take(key, 1, 0))
        self.assertEqual(set(limiters.states), {"b", "c"})

    def test_wrong_limits_name_what_is_wrong(self) -> None:
        for options, text in (({"kind": "TIERS"}, "local.kind"),
                              ({"kind": "TOKEN_BUCKET", "rate": 1}, "needs a rate and a size"),
                              ({"kind": "FIXED_WINDOW", "limit": 1}, "local.window"),
                              ({"kind": "FIXED_WINDOW", "limit": -1, "window": 1}, "local.limit")):
            with self.subTest(options), self.assertRaisesRegex(ValueError, text):
                Limit(**options)  # type: ignore[arg-type]


class Names(unittest.TestCase):
    def test_ids_have_bounds(self) -> None:
        check_id("id", "é" * 128)
        for wrong in ("", "é" * 129, "a\nb", "\x7f", 7, None, "\ud800"):
            with self.subTest(repr(wrong)), self.assertRaises(ValueError):
                check_id("id", wrong)

    def test_addresses(self) -> None:
        for good in ("http://a", "https://a:1", "http://[::1]:5000", "http://a:1/path"):
            check_address(good)
        for wrong in ("a:1", "ftp://a", "http://", "http://a:0", "http://a:99999", "http://a b",
                      "http://[::1]:x"):
            with self.subTest(wrong), self.assertRaises(ValueError):
                check_address(wrong)

    def test_a_redirect_keeps_to_tls(self) -> None:
        addresses = Addresses(["HTTPS://a:1/"])
        self.assertEqual(addresses.current, "HTTPS://a:1")
        self.assertFalse(addresses.follow("http://b:1"))
        self.assertFalse(addresses.follow("nonsense"))
        self.assertFalse(addresses.follow(None))
        self.assertTrue(addresses.follow("https://b:1"))
        self.assertEqual(addresses.current, "https://b:1")


if __name__ == "__main__":
    unittest.main()
