"""Limiters of a resource, which follow its lease, and limiters of a process, which need no server.

The rules are those of the section >>limiters of doorman.h. A limiter is not safe for threads: its
owner has a lock.
"""
from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Dict, Hashable, Optional, Tuple

from ._base import AMOUNT_MAX, DURATION_MAX, GRAINS, NEVER, SECOND, check_amount, check_duration

TICKS = 256  # in a nanosecond
SAVED_MAX = 1 << 62
UNLIMITED = -1.0
REFRESH_MIN = SECOND // 4
ALLOWED, REFUSED, IMPOSSIBLE = "allowed", "refused", "impossible"


def grains(units: float) -> int:
    """Returns units in 1/4096 of a unit, rounded up."""
    return math.ceil(units * GRAINS)


def is_amount(units: float) -> bool:
    return 0 <= units <= AMOUNT_MAX


@dataclass
class Usage:
    """What a limiter has counted, in grains, and what its client has told it."""

    allowed: int = 0
    refused: int = 0
    excess: int = 0
    unmet: int = 0  # of refused and excess; tries that are impossible are no demand (L2)
    unmet_since: int = NEVER  # the first refusal since the last look
    largest: int = 0  # the largest request since the last sample; 0: none was above one unit
    ceiling: float = 0  # the largest capacity that the limiter can ever get; 0: not known
    expected: float = 0  # the amount of the next lease; 0: no larger lease is expected
    refresh_at: int = NEVER  # when another amount may come
    growth_time: int = 0
    ceiling_asked: float = 0
    ceiling_until: int = 0
    shadow: bool = False
    kill_switch: bool = False

    def count(self, units: int, decision: str, now: int) -> str:
        """Counts an attempt. Returns the decision that its caller gets."""
        if decision != IMPOSSIBLE and units > GRAINS:
            self.largest = max(self.largest, units)
        if decision == ALLOWED:
            self.allowed += units
            return ALLOWED
        if decision == REFUSED:
            self.unmet += units
            self.unmet_since = min(self.unmet_since, now)
        if self.shadow or self.kill_switch:
            self.excess += units
            return ALLOWED
        self.refused += units
        return decision

    def refresh_in(self, now: int) -> int:
        return NEVER if self.refresh_at == NEVER else max(self.refresh_at - now, REFRESH_MIN)


@dataclass(frozen=True)
class Schedule:
    """A capacity until a point in time, and the capacity after it."""

    amount: float = 0
    until: int = NEVER
    after: float = 0

    def at(self, now: int) -> float:
        return self.amount if now < self.until else self.after


class _Quota:
    """What a rate saves at one amount. `most` is in ticks; -1: the amount is 0 or unlimited."""

    def __init__(self, amount: float, burst: int, burst_units: float) -> None:
        self.amount, self.most = amount, -1
        self.unit_time = 0.0 if amount < 0 else math.inf
        if amount > 0:
            self.unit_time = TICKS * SECOND / amount
            depth = burst_units * self.unit_time if burst_units > 0 else burst * TICKS
            self.most = math.ceil(min(max(depth, self.unit_time), 9e18))

    def limit_rise(self, before: "_Quota") -> None:
        """Limits what can be saved, so that a rise of the rate does not raise the saved units."""
        if self.amount <= before.amount:
            return
        depth = before.most * (before.amount / self.amount) if before.most >= 0 else 0
        self.most = min(self.most, math.ceil(max(depth, min(self.unit_time, 9e18))))

    def depth(self, largest: float) -> int:
        """Returns how many ticks can be saved for the largest request."""
        if self.most < 0:
            return SAVED_MAX
        return max(self.most, math.ceil(min(largest * self.unit_time, SAVED_MAX)))


def _level(most: int, paid_until: int, now: int) -> int:
    level = now - paid_until
    return most if level > most else level


class Rate:
    """A token bucket whose rate is a lease (L1). It starts with nothing saved."""

    is_gauge = False

    def __init__(self, burst: int, burst_units: float, now: int) -> None:
        self.burst, self.burst_units = burst, burst_units
        self.paid_until = now * TICKS
        self.usage = Usage()
        self.until = NEVER
        self.before = self.after = self._quota_of(0)

    def _quota_of(self, amount: float) -> _Quota:
        return _Quota(amount, self.burst, self.burst_units)

    def _quota(self, now: int) -> _Quota:
        return self.before if now < self.until else self.after

    def set(self, schedule: Schedule, largest: float, now: int) -> None:
        """Sets the rate. What is saved stays, but no more than fits."""
        old = self._quota(now)
        before, after = self._quota_of(schedule.amount), self._quota_of(schedule.after)
        to = before if now < schedule.until else after
        self.paid_until = self._carry(old, to, largest, now * TICKS)
        if now < schedule.until:
            after.limit_rise(before)
        self.before, self.after, self.until = before, after, schedule.until

    def _carry(self, old: _Quota, to: _Quota, largest: float, now: int) -> int:
        """Returns the new paid_until when the rate changes: no units are gained by the change."""
        in_units = self.burst_units > 0
        size = 0.0 if in_units else largest
        saved = _level(old.depth(size), self.paid_until, now)
        if old.unit_time in (0, math.inf) or to.unit_time in (0, math.inf):
            ratio = math.inf if to.unit_time > old.unit_time else 0.0
            if to.unit_time == old.unit_time:
                return self.paid_until
        else:
            ratio = to.unit_time / old.unit_time
        units_stay = (in_units or largest > 0) and ratio < 1e12 and to.most >= 0
        if saved <= 0 or (ratio > 1 and not units_stay):
            return self.paid_until
        after = to.depth(size)
        if ratio >= 1 and not units_stay and _level(after, self.paid_until, now) <= saved:
            return self.paid_until
        return now - int(min(saved * ratio, after))

    def _price(self, quota: _Quota, n: float) -> int:
        """Returns the price of n units in ticks, or -1 if the rate never saves so much."""
        if quota.amount <= 0:
            return -1
        price = n * quota.unit_time
        most = quota.most if self.burst_units > 0 else SAVED_MAX
        if not price <= most * (1 + 1e-9):
            return -1
        return min(math.ceil(price), most)

    def _possible(self, n: float) -> bool:
        ceiling = self.usage.ceiling
        if ceiling > 0 and not n * TICKS * SECOND / ceiling <= SAVED_MAX:
            return False
        return self.burst_units <= 0 or n <= max(self.burst_units, 1) * (1 + 1e-9)

    def take(self, n: float, now: int) -> str:
        """Takes n units if they may be used now. Returns the decision."""
        if not is_amount(n):
            return IMPOSSIBLE
        if n <= 0:
            return ALLOWED
        quota = self._quota(now)
        price = self._price(quota, n)
        if price < 0:
            decision = REFUSED if self._possible(n) else IMPOSSIBLE
            return self.usage.count(grains(n), ALLOWED if quota.amount < 0 else decision, now)
        left = _level(max(quota.most, price), self.paid_until, now * TICKS) - price
        if left < 0:
            return self.usage.count(grains(n), REFUSED, now)
        self.paid_until = now * TICKS - left
        return self.usage.count(grains(n), ALLOWED, now)

    def delay(self, n: float, now: int) -> int:
        """Returns the time until n units are saved; NEVER if the rate in force never saves them."""
        quota = self._quota(now)
        if quota.amount < 0 or n <= 0 or self.usage.shadow or self.usage.kill_switch:
            return 0
        price = self._price(quota, n) if is_amount(n) else -1
        if price < 0:
            return NEVER
        missing = price - _level(max(quota.most, price), self.paid_until, now * TICKS)
        return max(0, -(-missing // TICKS))

    def retry_after(self, n: float, now: int) -> int:
        """Returns how long to wait after a refusal; NEVER: no change is expected."""
        usage, delay = self.usage, self.delay(n, now)
        refresh_in = usage.refresh_in(now)
        may_grow = usage.expected > 0 or delay == NEVER
        if not may_grow or refresh_in == NEVER:
            return max(delay, 1)
        return max(1, min(delay, refresh_in + self._growth(n, usage.expected or usage.ceiling)))

    def _growth(self, n: float, expected: float) -> int:
        if expected <= 0:
            return 0
        slow = n / expected * SECOND
        if not self.usage.growth_time:
            return int(min(slow, DURATION_MAX))
        grown = max(n / self.usage.ceiling * SECOND, self.usage.growth_time)
        return int(min(slow, grown, DURATION_MAX))


class Gauge:
    """Units in use at once, at most the lease (L1)."""

    is_gauge = True

    def __init__(self) -> None:
        self.in_use, self.peak, self.over_released = 0, 0, 0  # in grains
        self.usage = Usage()
        self.schedule = Schedule()

    def set(self, schedule: Schedule, _largest: float, _now: int) -> None:
        self.schedule = schedule

    @staticmethod
    def _most(amount: float) -> int:
        return int((AMOUNT_MAX if amount < 0 else amount) * GRAINS)

    def take(self, n: float, now: int) -> str:
        """Takes n units if they may be used now. Returns the decision."""
        if not is_amount(n):
            return IMPOSSIBLE
        if n <= 0:
            return ALLOWED
        units = grains(n)
        decision = ALLOWED
        if self.in_use + units > self._most(self.schedule.at(now)):
            ceiling = self._most(self.usage.ceiling)
            decision = REFUSED if ceiling == 0 or units <= ceiling else IMPOSSIBLE
        decision = self.usage.count(units, decision, now)
        if decision == ALLOWED:
            self.in_use += units
            self.peak = max(self.peak, self.in_use)
        return decision

    def release(self, n: float) -> None:
        """Gives n units back. Raises ValueError if more are given back than are in use."""
        units = grains(check_amount("units", n))
        if units > self.in_use:
            self.over_released += 1
            raise ValueError("units: more are released than are in use")
        self.in_use -= units

    def delay(self, n: float, now: int) -> int:
        fits = is_amount(n) and self.in_use + grains(n) <= self._most(self.schedule.at(now))
        return 0 if fits or self.usage.shadow or self.usage.kill_switch else NEVER

    def retry_after(self, n: float, now: int) -> int:
        refresh_in = self.usage.refresh_in(now)
        asked = n > self.usage.ceiling_asked
        return max(refresh_in, self.usage.ceiling_until - now) if asked else refresh_in


# ---- limiters without a server


@dataclass(frozen=True)
class Limit:
    """A limit of one process, for the fallback `local` of permits. Each resource and key has a
    limiter of its own.

    kind: TOKEN_BUCKET (rate in units per second, size in units), or FIXED_WINDOW or SLIDING_WINDOW
    (limit in units, window in seconds).
    """

    kind: str
    rate: float = 0
    size: float = 0
    limit: float = 0
    window: float = 0

    def __post_init__(self) -> None:
        if self.kind == "TOKEN_BUCKET":
            if not (check_amount("rate", self.rate) > 0 and check_amount("size", self.size) > 0):
                raise ValueError("local: a TOKEN_BUCKET needs a rate and a size above 0")
            if self.limit or self.window:
                raise ValueError("local: a TOKEN_BUCKET has no limit and no window")
        elif self.kind in ("FIXED_WINDOW", "SLIDING_WINDOW"):
            if not 0 <= self.limit <= 1e8:
                raise ValueError("local.limit: must be from 0 to 1e8")
            if not check_duration("local.window", self.window) > 0:
                raise ValueError("local.window: must be more than 0")
            if self.rate or self.size:
                raise ValueError(f"local: a {self.kind} has no rate and no size")
        else:
            raise ValueError("local.kind: must be TOKEN_BUCKET, FIXED_WINDOW or SLIDING_WINDOW")


@dataclass
class _Window:
    number: int = -1
    here: int = 0
    last: int = 0


@dataclass
class LocalLimiters:
    """Limiters by key, for as many keys as were used last."""

    limit: Limit
    max_keys: int = 1_000_000
    states: Dict[Hashable, object] = field(default_factory=dict)

    def take(self, key: Hashable, n: float, now: int) -> Optional[int]:
        """Takes n units. Returns None if they are allowed, else the time until they could be;
        NEVER: they never fit."""
        state = self.states.pop(key, None)
        if state is None and len(self.states) >= self.max_keys:
            self.states.pop(next(iter(self.states)))  # the key that was used the longest time ago
        if self.limit.kind == "TOKEN_BUCKET":
            state, wait = self._bucket(state, n, now)
        else:
            state, wait = self._window(state or _Window(), n, now)
        self.states[key] = state
        return wait

    def _bucket(self, paid: Optional[object], n: float, now: int) -> Tuple[int, Optional[int]]:
        unit_time = TICKS * SECOND / self.limit.rate
        most, ticks = math.ceil(self.limit.size * unit_time), now * TICKS
        level = _level(most, paid if isinstance(paid, int) else ticks - most, ticks)
        price = math.ceil(n * unit_time)
        if price > most * (1 + 1e-9):
            return ticks - level, NEVER
        price = min(price, most)
        if price > level:
            return ticks - level, -(-(price - level) // TICKS)
        return ticks - level + price, None

    def _window(self, state: object, n: float, now: int) -> Tuple[_Window, Optional[int]]:
        assert isinstance(state, _Window)
        length = round(self.limit.window * SECOND)
        number, rest = now // length, length - now % length
        if number != state.number:
            last = state.here if number == state.number + 1 else 0
            state = _Window(number, 0, last)
        most, units = int(self.limit.limit * GRAINS), grains(n)
        if units > most:
            return state, NEVER
        slides = self.limit.kind == "SLIDING_WINDOW"
        carried = -(-state.last * rest // length) if slides else 0
        if state.here + carried + units <= most:
            state.here += units
            return state, None
        if not slides:
            return state, rest
        return state, _sliding_delay(state, most - units, rest, length)


def _sliding_delay(state: _Window, room: int, rest: int, length: int) -> int:
    """Returns the time until at most `room` of the units of two windows count."""
    if state.here > room:
        return rest + length - room * length // state.here
    return rest - (room - state.here) * length // state.last
