"""Units that are taken ahead for keys that are used often (P24)."""
from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, List, Optional, Tuple

from ._base import NEVER
from ._calls import Item

STOCKS_MAX = 10_000
SLICES = 4


@dataclass
class Lot:
    """Units that were taken ahead at one time. They are lost at `until`."""

    units: float = 0
    until: int = 0


@dataclass
class Stock:
    """The use of a resource and key, and the units that were taken ahead for it."""

    until: int = 0
    asking: bool = False  # a call that takes units ahead is queued or under way
    warning: bool = False
    slice: int = 0
    units_used: List[float] = field(default_factory=lambda: [0.0] * SLICES)
    times_used: List[int] = field(default_factory=lambda: [0] * SLICES)
    lots: List[Lot] = field(default_factory=lambda: [Lot(), Lot()])
    granted_most: float = 0  # the most units that a server has granted to one permit
    remaining: float = 0
    reset_at: int = 0
    limit: Optional[str] = None

    def units(self) -> float:
        return self.lots[0].units + self.lots[1].units

    def missing(self) -> float:
        """Returns how many units to take ahead now: whole units, or 0."""
        used, stored = sum(self.units_used), self.units()
        if self.asking or sum(self.times_used) < 2 or stored > used / 2:
            return 0
        return float(int(min(used - stored, self.remaining / 2)))


class Stocks:
    """The stocks of a client. `prefetch` is in nanoseconds; 0: there are none."""

    def __init__(self, prefetch: int, counts: Any) -> None:
        self.prefetch, self.counts = prefetch, counts
        self.all: "OrderedDict[Tuple[str, str], Stock]" = OrderedDict()
        self.end = 0

    def find(self, item: Item) -> Optional[Stock]:
        return self.all.get(item.pair)

    def due(self) -> int:
        """Returns when all stocks can be forgotten."""
        return self.end if self.all else NEVER

    def forget(self, now: int) -> None:
        """Forgets all stocks when the time of the last one has passed."""
        if self.all and self.end <= now:
            self._forget_oldest(now)

    def _forget_oldest(self, now: int) -> None:
        while self.all:
            stock = next(iter(self.all.values()))
            if stock.until > now and len(self.all) < STOCKS_MAX:
                return
            self.all.popitem(last=False)
            self.counts.lapsed += stock.units()

    def open(self, item: Item, now: int) -> Stock:
        stock = self.find(item)
        if stock is None:
            self._forget_oldest(now)
            stock = self.all[item.pair] = Stock(until=now)
        return stock

    def _keep(self, stock: Stock, now: int) -> None:
        stock.until = now + 2 * self.prefetch
        self.end = max(self.end, stock.until)
        for pair in [pair for pair, other in self.all.items() if other is stock]:
            self.all.move_to_end(pair)

    def lapse(self, stock: Stock, now: int) -> None:
        """Loses the units whose time has passed."""
        for lot in stock.lots:
            if lot.until <= now:
                self.counts.lapsed += lot.units
                lot.units = 0

    def spend(self, item: Item, cost: float, now: int) -> Optional[Stock]:
        """Takes units out of the stock of an item. Returns None if it has not enough."""
        stock = self.find(item)
        if stock is None:
            return None
        self.lapse(stock, now)
        if cost > stock.units() or item.cost > stock.granted_most:
            return None
        first = min(cost, stock.lots[0].units)
        stock.lots[0].units -= first
        stock.lots[1].units -= cost - first
        return stock

    def use(self, stock: Stock, units: float, now: int) -> None:
        """Counts units that were used."""
        number = now // (self.prefetch // SLICES)
        for i in range(1, min(number - stock.slice, SLICES) + 1):
            stock.units_used[(stock.slice + i) % SLICES] = 0
            stock.times_used[(stock.slice + i) % SLICES] = 0
        stock.slice = number
        stock.units_used[number % SLICES] += units
        stock.times_used[number % SLICES] += 1
        self._keep(stock, now)

    def receive(self, item: Item, units: float, wait: int, sent_at: int,
                now: int) -> Optional[Stock]:
        """Stores units that a server has granted ahead. With a wait, nobody waits for them."""
        stock = self.find(item)
        self.counts.prefetched += units
        if stock is None or wait > 0:
            self.counts.lapsed += units
            return stock
        self.lapse(stock, now)
        if not stock.lots[0].units:
            stock.lots.reverse()
            stock.lots[1].units = 0
        lot = stock.lots[1 if stock.lots[0].units else 0]
        if not lot.units:
            lot.until = sent_at + 2 * self.prefetch
        lot.units += units
        self.lapse(stock, now)
        self._keep(stock, now)
        return stock

    def learn_refusal(self, item: Item, reason: Optional[str]) -> None:
        stock = self.find(item)
        if stock is None:
            return
        stock.remaining = 0
        if reason == "BANNED":
            self.counts.lapsed += stock.units()
            del self.all[item.pair]
