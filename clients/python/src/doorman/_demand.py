"""Estimates how much a resource should want, out of its use (L4).

The section >>client of doorman.h, "client: demand", explains the estimate. An estimator is a pure
structure: its input is what a limiter has counted, and what the responses of the server show.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import List

from ._base import AMOUNT_MAX, GRAINS, NEVER, SECOND

SAMPLES = 11
LOOK_MIN = SECOND // 10  # from the first refusal to a look; a shorter time shows no rate
REMEMBERED, SHORT = 10, 2  # windows


@dataclass(frozen=True)
class Reading:
    """What the limiter of a resource has counted up to the time `at`. Amounts are in units, except
    `allowed` and `refused`, which are in grains."""

    at: int
    unmet_since: int = NEVER
    allowed: int = 0
    refused: int = 0
    largest: float = 0
    waiting: float = 0  # units that callers wait for now
    waited: float = 0  # the integral of `waiting` over time, in units * seconds
    waiting_peak: float = 0
    peak: float = 0
    in_use: float = 0


@dataclass(frozen=True)
class Supply:
    """What the responses of the server show."""

    amount: float  # the larger of the capacity in force and the safe capacity
    exhausted: bool  # the server granted less than what was wanted
    idle_after: int  # a gauge without use for this long is idle; 0: for a window


@dataclass(frozen=True)
class Use:
    """The demand in the interval between two samples."""

    seconds: float = 0
    rate: float = 0
    peak: float = 0
    unmet: bool = False
    bounded: bool = False


@dataclass
class _Sample:
    reading: Reading
    use: Use = field(default_factory=Use)


def _units(before: int, after: int) -> float:
    return (after - before) / GRAINS


class Estimator:
    """The wants of one resource. `wants` is the result."""

    def __init__(self, first: Reading, is_gauge: bool, minimum: float, maximum: float,
                 initial: float, window: int) -> None:
        self.is_gauge, self.minimum, self.maximum = is_gauge, minimum, maximum
        self.initial, self.window, self.initial_until = initial, window, first.at + window
        self.samples: List[_Sample] = [_Sample(first)]  # the newest one is the first
        self.looked = self.noted = first
        self.raised, self.raised_until = 0.0, 0
        self.largest, self.largest_until, self.served = 0.0, 0, False
        self.short_since, self.ceiling, self.ceiling_until = NEVER, 0.0, 0
        self.used_at, self.refused_until = first.at, 0
        self.wants, self.unmet = initial, False

    def due(self) -> int:
        return self.samples[0].reading.at + self.window // 10

    def check_at(self, supply: Supply) -> int:
        """Returns when to check whether a gauge has become idle."""
        if not self.is_gauge or self.wants <= self.minimum:
            return NEVER
        return self.noted.at + max(self._idle_after(supply) // 4, SECOND // 100)

    def is_idle(self, at: int, supply: Supply) -> bool:
        """Returns whether this is a gauge without use for long enough."""
        since = max(self.used_at + self._idle_after(supply), self.refused_until)
        return self.is_gauge and at >= since

    def sample(self, reading: Reading, supply: Supply) -> None:
        """Adds a sample. Call it at due()."""
        last = self.samples[0].reading
        futile = self._remember(reading, supply)
        self._note_use(reading)
        use = (self._gauge_use(last, reading, supply, futile) if self.is_gauge
               else self._rate_use(reading, supply))
        self.samples = [_Sample(reading, use), *self.samples[:SAMPLES - 1]]
        self.unmet = use.unmet
        is_near = reading.unmet_since != NEVER and reading.at < reading.unmet_since + LOOK_MIN
        if not is_near or supply.exhausted:
            self.looked = reading
        self._conclude(reading, supply, futile)

    def look(self, reading: Reading, supply: Supply) -> None:
        """Looks at a reading between two samples, after a refusal or while a caller waits."""
        futile = self._remember(reading, supply)
        self._note_use(reading)
        if self.is_gauge:
            use = self._gauge_use(self.looked, reading, supply, futile)
            raised = 0 if futile else use.peak + reading.waiting
            self.unmet = use.unmet
        else:
            raised = self._look_at_rate(reading, supply)
        if reading.at < self.raised_until:
            raised = max(raised, self.raised)
        self.raised, self.raised_until = raised, reading.at + self.window // 5
        self.looked = reading
        self._conclude(reading, supply, futile)

    def check(self, reading: Reading, supply: Supply) -> None:
        """Checks between two samples whether a gauge has become idle."""
        self._note_use(reading)
        if self.is_idle(reading.at, supply):
            self._conclude(reading, supply, False)

    def _base(self) -> float:
        return min(self.minimum if self.minimum > 0 else 1, self.maximum)

    def _idle_after(self, supply: Supply) -> int:
        return min(self.window, supply.idle_after) if supply.idle_after else self.window

    def _note_use(self, reading: Reading) -> None:
        refused = reading.refused != self.noted.refused
        used = reading.in_use > 0 or reading.allowed != self.noted.allowed
        if used or reading.waiting > 0:
            self.used_at = reading.at
        if used:
            self.refused_until = 0
        if refused:
            self.refused_until = reading.at + self.window
        self.noted = reading

    def _gauge_use(self, before: Reading, reading: Reading, supply: Supply, futile: bool) -> Use:
        least = max(self._base(), supply.amount)
        refused = 0 if futile else _units(before.refused, reading.refused)
        most = 7 * max(reading.peak, least)
        if not supply.exhausted:
            most = max(most, reading.largest)
        unmet = not futile and (refused > 0 or reading.waiting > 0)
        return Use(peak=reading.peak + min(refused, most), unmet=unmet)

    def _rate_use(self, reading: Reading, supply: Supply) -> Use:
        last = self.samples[0].reading
        seconds = (reading.at - last.at) / SECOND
        peaks = (sample.reading.waiting_peak for sample in self.samples)
        workers, minimum = max(reading.waiting_peak, *peaks), self._base()
        allowed = _units(last.allowed, reading.allowed)
        unmet = _units(last.refused, reading.refused)
        most = 7 * max(allowed, max(minimum, supply.amount) * seconds)
        waiting = (reading.waited - last.waited) / seconds
        busy = workers - waiting
        if waiting > 0:
            unmet += allowed * waiting / busy if busy * most > allowed * waiting else most
        known = max(allowed, minimum * seconds)
        if not supply.exhausted:
            known = max(known, reading.largest)
        counts = min(unmet, most) if supply.exhausted else unmet
        return Use(seconds=seconds, rate=(allowed + counts) / seconds, unmet=unmet > 0,
                   bounded=unmet >= 7 * known)

    def _mean(self) -> float:
        """Returns the mean rate over the window. Newer intervals count more."""
        rate = weights = 0.0
        for age, sample in enumerate(self.samples[:-1]):
            weight = sample.use.seconds * (SAMPLES - 1 - age)
            if not sample.use.bounded:
                rate += weight * sample.use.rate
                weights += weight
        return rate / weights if weights > 0 else 0

    def _recent(self) -> float:
        """Returns a lower bound of the wants, so that they rise sooner than they fall."""
        uses = [sample.use for sample in self.samples[:-1]][:3]
        recent = uses[0].rate if uses and uses[0].unmet else 0
        return max(recent, min(use.rate for use in uses)) if len(uses) == 3 else recent

    def _remember(self, reading: Reading, supply: Supply) -> bool:
        """Remembers the largest request. Returns whether that of a gauge can never fit."""
        at = reading.at
        if reading.largest >= self.largest or at >= self.largest_until:
            self.largest, self.served = reading.largest, False
            self.largest_until = at + REMEMBERED * self.window
        if not self.is_gauge:
            return False
        self.served = self.served or reading.peak >= self.largest
        is_short = supply.exhausted and self.largest > supply.amount
        self.short_since = min(self.short_since, at) if is_short else NEVER
        if is_short and at - self.short_since >= SHORT * self.window:
            self.ceiling, self.ceiling_until = supply.amount, at + REMEMBERED * self.window
        most = min(self.maximum, self.ceiling) if at < self.ceiling_until else self.maximum
        if self.largest > most:
            self.largest = 0
        return reading.largest > most

    def _conclude(self, reading: Reading, supply: Supply, futile: bool) -> None:
        mean, at = self._mean(), reading.at
        minimum = self.initial if at < self.initial_until else self.minimum
        raised = self.raised if at < self.raised_until else 0
        largest = 0 if self.is_gauge else max(reading.largest, self.largest)
        least = largest / (self.window / (5 * SECOND))  # saves the largest request in a fifth
        peak = max((sample.use.peak for sample in self.samples[:-1]), default=0)
        if self.is_idle(at, supply):
            peak = raised = 0
            if self.served:
                self.largest = 0
        if self.is_gauge and not futile:
            peak = max(peak + reading.waiting, self.largest)
        base = self._base()
        if supply.exhausted:
            most = 8 * max(mean, base, supply.amount)
            raised, least = min(raised, most), min(least, most)
        wants = max(1.05 * max(mean, self._recent()), peak, raised, least)
        if wants > 0:
            wants = max(wants, base)
        self.wants = max(minimum, min(self.maximum, wants, AMOUNT_MAX))

    def _look_at_rate(self, reading: Reading, supply: Supply) -> float:
        """Returns the least that a rate wants by the counts since the last look."""
        last = self.looked
        since = min(reading.unmet_since, reading.at - LOOK_MIN)
        before = min(last.at, since)
        base = self._base()
        refused = _units(last.refused, reading.refused)
        allowed = _units(last.allowed, reading.allowed) / ((reading.at - before) / SECOND)
        seconds = (reading.at - since) / SECOND
        more = max(0, refused - max(1, last.largest, reading.largest)) / seconds
        waiting = (reading.waited - last.waited) / seconds
        all_wait = reading.waiting > 0 and waiting >= 0.875 * reading.waiting
        if all_wait:
            more = max(more, 7 * max(allowed, base, supply.amount))
        self.unmet = refused > 0 or all_wait
        return max(1.05 * (allowed + more), base if refused > 0 else 0)
