"""The core of a client of leases: it has no clock, no thread and no connection.

    core = LeaseCore("web-7", ["http://127.0.0.1:15050"], now)
    resource = core.open(ResourceOptions("db/orders", wants=50), now)
    while (request := core.next(now)) is not None:
        ...  # send it, and pass what comes to core.response or core.failed
    core.due()  # when to call next() again

Times are in nanoseconds of any clock that never goes back. `Client` and `AsyncClient` have a core,
so most programs do not need this module. The rules (K, R, L) are those of doorman.h.
"""
from __future__ import annotations

import math
import random
from dataclasses import dataclass, fields
from typing import Any, Callable, Dict, List, Optional, Sequence, Union

from ._base import (AMOUNT_MAX, GRAINS, NEVER, SECOND, Addresses, InvalidResponse, Reader, Request,
                    check_amount, check_client_id, check_duration, check_id, read_body)
from ._demand import LOOK_MIN, Estimator, Reading, Supply
from ._limiters import Gauge, Rate, Schedule, is_amount

UNLIMITED = -1.0  # a capacity without a limit
ITEMS_MAX = 500  # of a request
MET = 0.999
LOOK_INTERVAL = SECOND // 5
ROUNDS_MAX, ROUNDS_MAX_ALIVE = 6, 2

GET, RELEASE = "get_capacity", "release_capacity"


@dataclass(frozen=True)
class ResourceOptions:
    """How a resource is used. Durations are in seconds.

    kind: "rate" (units per second) or "gauge" (units at once, which are given back).
    wants: constant wants; None: the wants follow use, within the three bounds below.
    fallback: what may be used without a lease: "safe" (the safe capacity that a server has sent
    last, and before it safe_capacity), "pessimistic" (nothing) or "optimistic" (all wants).
    safe_capacity: -1 is unlimited.
    shadow: what would be refused is allowed, and counts as excess.
    """

    resource_id: str
    kind: str = "rate"
    wants: Optional[float] = None
    wants_minimum: Optional[float] = None  # default 1 for a rate, 0 for a gauge
    wants_maximum: float = AMOUNT_MAX
    wants_initial: Optional[float] = None  # default wants_minimum
    window: float = 10
    priority: int = 1
    burst: float = 0.1
    burst_units: float = 0  # replaces burst, if more than 0
    fallback: str = "safe"
    safe_capacity: Optional[float] = None
    shadow: bool = False

    def __post_init__(self) -> None:
        check_id("resource_id", self.resource_id)
        if self.kind not in ("rate", "gauge"):
            raise ValueError("kind: must be rate or gauge")
        if not isinstance(self.priority, int) or not 0 <= self.priority <= 15:
            raise ValueError("priority: must be an integer from 0 to 15")
        if self.fallback not in ("safe", "pessimistic", "optimistic"):
            raise ValueError("fallback: must be safe, pessimistic or optimistic")
        if self.safe_capacity is not None and self.fallback != "safe":
            raise ValueError("safe_capacity: needs the fallback safe")
        if self.safe_capacity not in (None, -1):
            check_amount("safe_capacity", self.safe_capacity)
        check_duration("window", self.window, 0.01)
        check_duration("burst", self.burst, 1e-6)
        check_amount("burst_units", self.burst_units)
        self._check_wants()

    def _check_wants(self) -> None:
        most = check_amount("wants_maximum", self.wants_maximum)
        if self.wants is not None:
            if check_amount("wants", self.wants) > most:
                raise ValueError("wants: must be at most wants_maximum")
            if self.wants_minimum is not None or self.wants_initial is not None:
                raise ValueError("wants_minimum, wants_initial: need wants that follow use")
            return
        least = check_amount("wants_minimum", self.minimum)
        if not least <= check_amount("wants_initial", self.initial) <= most:
            raise ValueError("wants_initial: must be from wants_minimum to wants_maximum")

    @property
    def minimum(self) -> float:
        """What an idle resource wants (K6)."""
        default = 0.0 if self.kind == "gauge" else 1.0
        return default if self.wants_minimum is None else self.wants_minimum

    @property
    def initial(self) -> float:
        return self.minimum if self.wants_initial is None else self.wants_initial


def _difference(first: ResourceOptions, later: ResourceOptions) -> Optional[str]:
    """Returns the first option in which two openings differ, or None."""
    for option in fields(first):
        if getattr(first, option.name) != getattr(later, option.name):
            return option.name
    return None


@dataclass(frozen=True)
class ResourceInfo:
    """The state of a resource. expires_in is in seconds, and None without a lease."""

    resource_id: str
    leased: bool
    capacity: float  # in force; -1: unlimited
    wants: float
    in_use: float
    expires_in: Optional[float]
    outcome: Optional[str]  # of the last response: GRANTED, TRY_LATER, UNMATCHED or FULL
    reason: Optional[str]  # why the lease is less than the wants
    learning: bool
    safe_capacity: Optional[float]
    allowed: float
    refused: float
    excess: float
    over_released: int
    failures: int
    options_differ: Optional[str]  # an option of a later opening that is not in force


@dataclass
class _Lease:
    id: int
    node: str
    capacity: float
    end: int


# The states of a held lease. OPEN and CLOSING wait until they are due. CLOSED is freed.
OPEN, CLOSING, CLOSED = "open", "closing", "closed"


class Resource:
    """A resource of a client: its lease, its limiter, and its wants. Only its core changes it."""

    def __init__(self, core: "LeaseCore", options: ResourceOptions, now: int) -> None:
        self.core, self.opened, self.state = core, 0, OPEN
        self.differs: Optional[str] = None  # an option of a later opening that is not in force
        self.lease: Optional[_Lease] = None
        self.in_request = False
        self.request_at, self.confirm_at, self.renew_at = now, NEVER, now
        self.requested_at, self.refresh_interval = 0, 0
        self.requested_wants, self.claimed = 0.0, 0.0
        self.met = self.cut = self.whole = self.learning = False
        self.outcome: Optional[str] = None
        self.reason: Optional[str] = None
        self.safe_capacity: Optional[float] = None
        self.waiting, self.waiting_peak, self.waited, self.waiting_at = 0.0, 0.0, 0.0, now
        self.look_at = NEVER  # when to look at a refusal that the core has noticed
        self.options = options
        self.limiter = self._new_limiter(options, now)
        self.published_leased = False
        self.published_capacity = 0.0
        self.on_change: Optional[Callable[["Resource"], None]] = None
        self.start(options, now)

    @staticmethod
    def _new_limiter(options: ResourceOptions, now: int) -> Union[Rate, Gauge]:
        if options.kind == "gauge":
            return Gauge()
        burst = check_duration("burst", options.burst)
        return Rate(burst, options.burst_units, now)

    def start(self, options: ResourceOptions, now: int) -> None:
        """Starts with the options of a first opening."""
        if options.kind != self.options.kind:
            self.limiter = self._new_limiter(options, now)
        self.options, self.differs = options, None
        self.follows_use = options.wants is None
        self.wants = options.initial if options.wants is None else options.wants
        self.limiter.usage.shadow = options.shadow
        self.limiter.usage.kill_switch = self.core.killed
        self.limiter.usage.unmet_since = NEVER
        window = check_duration("window", options.window)
        self.estimator = Estimator(self._sampled(now), options.kind == "gauge", options.minimum,
                                   options.wants_maximum, options.initial, window)

    # ---- what is in force

    def is_leased(self, now: int) -> bool:
        return self.lease is not None and now < self.lease.end

    def fallback(self) -> float:
        """Returns the capacity without a lease (K4)."""
        if self.options.fallback == "pessimistic":
            return 0
        if self.options.fallback == "optimistic":
            return self.wants
        return self.known_safe_capacity()

    def known_safe_capacity(self) -> float:
        known = self.safe_capacity if self.safe_capacity is not None else self.options.safe_capacity
        return known or 0.0

    def in_use(self) -> float:
        return self.limiter.in_use / GRAINS if isinstance(self.limiter, Gauge) else 0.0

    def publish(self, now: int) -> None:
        """Tells the limiter, and then the application, what is in force."""
        leased = self.is_leased(now)
        amount = self.lease.capacity if self.lease and leased else 0.0
        until = self.lease.end if self.lease and leased else 0
        usage = self.limiter.usage
        largest = usage.largest / GRAINS
        if self.follows_use:
            largest = max(largest, self.estimator.largest)
        self.limiter.set(Schedule(amount, until, self.fallback()), largest, now)
        before = (self.published_leased, self.published_capacity)
        self.published_leased = leased
        self.published_capacity = amount if leased else self.fallback()
        self.announce()
        if (leased, self.published_capacity) != before and self.on_change and self.opened:
            self.on_change(self)

    def announce(self) -> None:
        """Tells the limiter what may come next, for retry_after."""
        usage, capacity, core = self.limiter.usage, self.published_capacity, self.core
        grows = self.follows_use and self.met
        at = 0 if grows else self.request_at
        if core.state == "backing_off":
            at = max(at, core.retry_at)
        elif core.state == "requested" and core.failures:
            at = core.sent_at + core.timeout
        most = self.estimator.maximum if self.follows_use else self.wants
        usage.ceiling = max(most, capacity)
        usage.ceiling_asked = max(self.estimator.ceiling, capacity)
        usage.expected = self.wants if not self.published_leased or grows else 0
        usage.growth_time = self.estimator.window // 5 if self.follows_use else 0
        usage.ceiling_until = self.estimator.ceiling_until if self.follows_use else 0
        usage.refresh_at = 0 if at == NEVER else at

    # ---- wants that follow use

    def set_waiting(self, units: float, now: int) -> None:
        """Says how many units callers wait for."""
        self.waited += self.waiting * (now - self.waiting_at) / SECOND
        self.waiting_at, self.waiting = now, units
        self.waiting_peak = max(self.waiting_peak, units)

    def _reading(self, now: int) -> Reading:
        usage, gauge = self.limiter.usage, self.limiter
        is_gauge = isinstance(gauge, Gauge)
        waited = self.waited + self.waiting * (now - self.waiting_at) / SECOND
        return Reading(at=now, unmet_since=usage.unmet_since, allowed=usage.allowed,
                       refused=usage.unmet, largest=usage.largest / GRAINS,
                       waiting=self.waiting, waited=0 if is_gauge else waited,
                       waiting_peak=0 if is_gauge else self.waiting_peak,
                       peak=gauge.peak / GRAINS if isinstance(gauge, Gauge) else 0,
                       in_use=self.in_use())

    def _sampled(self, now: int) -> Reading:
        """Returns a reading with the largest values since the last sample, and resets them."""
        reading = self._reading(now)
        self.limiter.usage.largest = 0
        self.waiting_peak = self.waiting
        if isinstance(self.limiter, Gauge):
            self.limiter.peak = self.limiter.in_use
        return reading

    def _supply(self, now: int) -> Supply:
        amount = max(self.published_capacity, self.known_safe_capacity())
        return Supply(amount, self.is_leased(now) and not self.met, self.refresh_interval // 2)

    def notice(self, supply: Supply) -> None:
        """Notes when to look at the counts after a refusal. A gauge has no rate to measure. Without
        more capacity, refusals wait for a sample."""
        since = self.limiter.usage.unmet_since
        measures = since != NEVER and not self.limiter.is_gauge
        self.look_at = since + LOOK_MIN if measures else since
        if supply.exhausted:
            self.look_at = NEVER

    def notice_refusal(self, now: int) -> None:
        if self.follows_use and self.limiter.usage.unmet_since != NEVER:
            self.notice(self._supply(now))

    def wake_at(self, now: int) -> int:
        """Returns when the core has work for the resource, except requests."""
        at = self.lease.end if self.lease and self.published_leased else NEVER
        if self.follows_use:
            at = min(at, self.look_at, self.estimator.due(),
                     self.estimator.check_at(self._supply(now)))
        return at

    def work(self, now: int) -> None:
        """Does what is due."""
        if self.follows_use:
            self._update_wants(now)
        if self.published_leased and not self.is_leased(now):
            self.publish(now)

    def _update_wants(self, now: int) -> None:
        estimator, supply = self.estimator, self._supply(now)
        self.notice(supply)
        due, look = estimator.due(), self.look_at
        if now < min(due, look, estimator.check_at(supply)):
            return
        reading = self._reading(now)
        if now >= look:
            self.limiter.usage.unmet_since = self.look_at = NEVER
            estimator.look(reading, supply)
        if now >= due:
            if supply.exhausted:
                self.limiter.usage.unmet_since = NEVER
            estimator.sample(self._sampled(now), supply)
        elif now < look:
            estimator.check(reading, supply)
        self.apply_wants(estimator.wants, now)
        if estimator.is_idle(now, supply) and self.wants < self.requested_wants:
            self._expedite(0, now)  # L4: asks at once
        self.grow(now)

    def apply_wants(self, wants: float, now: int) -> None:
        """Sets the wants, and asks sooner if they have changed by more than a tenth (K1)."""
        self.wants = wants
        self.note_wants(now)
        if self.options.fallback == "optimistic":
            self.publish(now)
        self.announce()

    def note_wants(self, now: int) -> None:
        wants = self._asked()
        tenth = self.requested_wants / 10
        if not self.requested_wants - tenth <= wants <= self.requested_wants + tenth:
            self._expedite(min(5 * SECOND, self.refresh_interval // 2), now)

    def _asked(self) -> float:
        """Returns the wants of a request. If leases are whole units, so are they."""
        return math.ceil(self.wants * (1 - 1e-12)) if self.whole else self.wants

    def grow(self, now: int) -> None:
        """K1: asks at once after unmet demand, if the last response granted all wants."""
        largest = self.estimator.largest if self.estimator.is_gauge else 0
        worth = 1.1 if largest <= self.published_capacity else 1 + 1e-9
        if self.estimator.unmet and self.wants > self.requested_wants * worth and self.met:
            self._expedite(0, now)

    def _expedite(self, minimum: int, now: int) -> None:
        if self.outcome is not None:
            self.request_at = min(self.request_at, max(now, self.requested_at + minimum))

    # ---- requests and responses

    def due(self) -> int:
        """Returns when the resource wants to be in a request."""
        if self.in_request or self.state == CLOSED:
            return NEVER
        return min(self.request_at, self.confirm_at)

    def _give_back(self, now: int) -> None:
        """R3: lowers the lease to what is wanted, if servers answer."""
        if (self.lease and self.is_leased(now) and not self.core.failures
                and self._asked() < self.lease.capacity):
            self.lease.capacity = self._asked()
            self.publish(now)

    def half(self) -> int:
        """Returns when half of the refresh interval has passed."""
        return self.requested_at + self.refresh_interval // 2

    def renewal(self, now: int) -> Optional[Dict[str, Any]]:
        """Returns the item of a request, or None if there is nothing to confirm (R3)."""
        wants = self._asked()
        self._give_back(now)
        lease = self.lease if self.is_leased(now) else None
        claim = max(lease.capacity if lease else 0, self.in_use())
        if self.confirm_at <= now < self.request_at and claim >= self.claimed:
            self.confirm_at = now + SECOND
            return None
        self.claimed, self.requested_wants, self.in_request = claim, wants, True
        item: Dict[str, Any] = {"resource_id": self.options.resource_id, "wants": wants,
                                "priority": self.options.priority}
        if self.in_use() > 0:
            item["outstanding"] = self.in_use()
        if lease:
            item["has"] = {"id": lease.id, "node": lease.node, "capacity": lease.capacity,
                           "expires_in": (lease.end - now) / SECOND}
        return item

    def release(self, now: int) -> Optional[Dict[str, Any]]:
        """Returns the item of a release, or None while units are in use (R10)."""
        assert self.lease
        self._give_back(now)
        if self.in_use() > 0:
            self.request_at = min(self.lease.end, now + SECOND)
            return None
        item = {"resource_id": self.options.resource_id, "id": self.lease.id}
        self.lease, self.in_request = None, True
        return item

    def process(self, item: "_Item", reported: bool, sent_at: int, now: int) -> None:
        """Processes the item of a response. If the lease that the request reported has ended
        meanwhile, the item has no effect (R2)."""
        if reported and not self.is_leased(now):
            self.request_at = now
            return
        self.outcome, self.learning = item.outcome, item.learning
        self.met = item.outcome == "GRANTED" and item.capacity >= self.requested_wants * MET
        if item.safe_capacity is not None:
            self.safe_capacity = item.safe_capacity
        interval = item.refresh_interval
        if item.outcome == "GRANTED":
            self.whole, self.reason = item.whole, item.reason
            end = sent_at + item.expires_in
            if self.lease and self.is_leased(now) and self.lease.node == item.node:
                end = max(end, self.lease.end)  # R9
            self.lease = _Lease(item.id, item.node, item.capacity, max(now, end))
            interval = min(interval, item.expires_in // 2)
        self._schedule(interval, sent_at, now)
        if self.state != CLOSED:
            self.note_wants(now)
            self.publish(now)
            if self.follows_use and self.met:
                self.grow(now)

    def _schedule(self, interval: int, sent_at: int, now: int) -> None:
        late = 1 + 0.05 * self.core.random()
        cut = bool(self.lease and self.is_leased(now) and self.lease.capacity < self.claimed)
        self.refresh_interval = max(interval, SECOND // 100)
        self.requested_at = min(now, sent_at + self.refresh_interval // 2)
        self.renew_at = self.requested_at + round(self.refresh_interval * late)
        closing = self.state == CLOSING
        self.request_at = max(self.request_at, now) if closing else self.renew_at
        self.confirm_at = (now + SECOND if self.cut else now) if cut and not closing else NEVER
        self.cut = cut

    def end_request(self, now: int) -> None:
        """Takes the resource out of a request that has ended."""
        self.in_request = False
        if self.state == CLOSING and not self.is_leased(now):
            self.state = CLOSED


@dataclass(frozen=True)
class _Item:
    """One entry of a response to get_capacity."""

    outcome: str
    learning: bool
    safe_capacity: Optional[float]
    refresh_interval: int
    id: int = 0
    node: str = ""
    capacity: float = 0
    expires_in: int = 0
    whole: bool = False
    reason: Optional[str] = None


def _read_item(value: Any, resource_id: str) -> _Item:
    entry = Reader(value, "response[]")
    if entry.text("resource_id") != resource_id:
        raise entry.fail("resource_id", f"must be {resource_id}")
    safe: Optional[float] = None
    if entry.has("safe_capacity"):
        safe = UNLIMITED if entry.value["safe_capacity"] == -1 else entry.amount("safe_capacity")
    if entry.has("refused"):
        refused = entry.object("refused")
        reason, interval = refused.text("reason"), refused.duration("refresh_interval")
        if reason not in ("TRY_LATER", "UNMATCHED", "FULL") or interval <= 0:
            raise entry.fail("refused", "is not valid")
        return _Item(reason, entry.flag("learning"), safe, interval)
    gets = entry.object("gets")
    item = _Item("GRANTED", entry.flag("learning"), safe, gets.duration("refresh_interval"),
                 gets.integer("id"), gets.text("node"), gets.amount("capacity"),
                 gets.duration("expires_in"), gets.flag("whole"), gets.text("reason", "") or None)
    if not item.id or not item.node or item.refresh_interval <= 0:
        raise entry.fail("gets", "is not valid")
    return item


class LeaseCore:
    """Requests leases for the resources of an application. One request at a time is under way.

    random: returns a number in [0, 1), which spreads the requests of many clients.
    """

    def __init__(self, client_id: str, addresses: Sequence[str], now: int, *,
                 request_timeout: float = 5, release_delay: float = 0.1,
                 random: Callable[[], float] = random.random) -> None:
        self.client_id = check_client_id(client_id)
        self.addresses = Addresses(list(addresses))
        self.timeout = check_duration("request_timeout", request_timeout, 0.001)
        self.release_delay = check_duration("release_delay", release_delay)
        self.random = random
        self.now, self.look_at, self.killed = now, NEVER, False
        self.resources: Dict[str, Resource] = {}
        self.state = "ready"  # or "requested", or "backing_off" until retry_at
        self.sent_at, self.retry_at, self.number = 0, 0, 0
        self.failures, self.failure_count = 0, 0  # in a row, and since the start
        self.tried, self.rounds, self.rounds_max = 0, 0, ROUNDS_MAX
        self.interval = 0  # the shortest refresh interval of the last response
        self.method = RELEASE
        self.under_way: List[Resource] = []
        self.reported: List[bool] = []

    # ---- the calls of the application

    def open(self, options: ResourceOptions, now: int) -> Resource:
        """Opens a resource. A resource that is open already stays as it is (K5)."""
        self._tick(now)
        resource = self.resources.get(options.resource_id)
        if resource and resource.opened:
            if resource.options.kind != options.kind:
                raise ValueError(f"kind: {options.resource_id} is open as a "
                                 f"{resource.options.kind}")
            resource.opened += 1
            resource.differs = resource.differs or _difference(resource.options, options)
            return resource
        if resource and resource.options.kind != options.kind and resource.in_use() > 0:
            raise ValueError(f"kind: {options.resource_id} has units in use")
        if resource is None or resource.state == CLOSED:
            resource = self.resources[options.resource_id] = Resource(self, options, self.now)
        else:
            self._reopen(resource, options)
        resource.opened = 1
        if resource.follows_use:
            self.look_at = min(self.look_at, self.now + LOOK_INTERVAL)
        resource.publish(self.now)
        return resource

    def _reopen(self, resource: Resource, options: ResourceOptions) -> None:
        keeps = resource.is_leased(self.now) and not resource.in_request
        keeps = keeps and options.priority == resource.options.priority and self.release_delay > 0
        resource.state, resource.cut = OPEN, False
        resource.request_at = resource.renew_at if keeps else self.now
        resource.start(options, self.now)
        if keeps:
            resource.note_wants(self.now)

    def close(self, resource: Resource, now: int, at_once: bool = False) -> None:
        """Ends one opening. The last one releases the lease, after release_delay."""
        self._tick(now)
        if resource.opened == 0:
            raise ValueError(f"{resource.options.resource_id}: is closed already")
        resource.opened -= 1
        if resource.opened:
            return
        resource.state, resource.confirm_at = CLOSING, NEVER
        resource.renew_at = resource.request_at
        resource.request_at = self.now + (0 if at_once else self.release_delay)
        if not resource.in_request and not resource.is_leased(self.now):
            resource.state = CLOSED
        self._forget_closed()

    def set_wants(self, resource: Resource, wants: float, now: int) -> None:
        """Sets constant wants. After this call the wants do not follow use."""
        self._tick(now)
        if check_amount("wants", wants) > resource.options.wants_maximum:
            raise ValueError("wants: must be at most wants_maximum")
        resource.follows_use = False
        resource.apply_wants(wants, self.now)

    def take(self, resource: Resource, units: float, now: int) -> str:
        """Takes units. Returns "allowed", "refused" or "impossible"."""
        return resource.limiter.take(units, max(now, self.now))

    def retry_after(self, resource: Resource, units: float, now: int) -> int:
        """Returns the time after a refusal until the same call can be allowed, or NEVER."""
        return resource.limiter.retry_after(units, now) if is_amount(units) else NEVER

    def kill_switch(self, on: bool) -> None:
        """While it is on, what would be refused is allowed, and counts as excess (L5)."""
        self.killed = on
        for resource in self.resources.values():
            resource.limiter.usage.kill_switch = on

    def read(self, resource: Resource, now: int) -> ResourceInfo:
        """Returns the state of a resource."""
        now, usage = max(now, self.now), resource.limiter.usage
        lease = resource.lease if resource.is_leased(now) else None
        gauge = resource.limiter
        return ResourceInfo(
            resource.options.resource_id, lease is not None,
            lease.capacity if lease else resource.fallback(), resource.wants, resource.in_use(),
            (lease.end - now) / SECOND if lease else None, resource.outcome,
            resource.reason if lease else None, resource.learning, resource.safe_capacity,
            usage.allowed / GRAINS, usage.refused / GRAINS, usage.excess / GRAINS,
            gauge.over_released if isinstance(gauge, Gauge) else 0, self.failure_count,
            resource.differs)

    def is_idle(self) -> bool:
        """Returns whether all leases are released, and no request is under way."""
        return not self.resources and self.state != "requested"

    # ---- the loop

    def due(self) -> int:
        """Returns when next() wants to be called, or NEVER."""
        at = min((resource.due() for resource in self.resources.values()), default=NEVER)
        if self.state == "requested":
            at = self.sent_at + self.timeout
        elif self.state == "backing_off":
            at = max(at, self.retry_at)
        wakes = (resource.wake_at(self.now) for resource in self.resources.values())
        return min(at, self.look_at, min(wakes, default=NEVER))

    def next(self, now: int) -> Optional[Request]:
        """Does what is due. Returns a request to send, or None."""
        self._tick(now)
        now = self.now
        self._look()
        for resource in list(self.resources.values()):
            if resource.wake_at(now) <= now:
                resource.work(now)
        if self.state == "requested":
            if now < self.sent_at + self.timeout:
                return None
            self._back_off(ROUNDS_MAX)
        if self.state == "backing_off" and now < self.retry_at:
            return None
        request = self._request()
        self._forget_closed()
        return request

    def response(self, request: Request, status: int, body: Any, now: int) -> Optional[str]:
        """Processes a response. Returns what is wrong with it, or None.
        body: the parsed JSON; anything else, such as None, is not valid."""
        self._tick(now)
        if self.state != "requested" or request.number != self.number:
            return None
        error: Optional[str] = None
        try:
            self._accept(read_body(body, status))
        except InvalidResponse as wrong:
            self._back_off(ROUNDS_MAX)
            error = str(wrong)
        self._forget_closed()
        return error

    def failed(self, request: Request, now: int) -> None:
        """Says that a request got no response."""
        self._tick(now)
        if self.state == "requested" and request.number == self.number:
            self._back_off(ROUNDS_MAX)
            self._forget_closed()

    def retry_soon(self, now: int) -> None:
        """Ends a pause early, because a master has answered permits. The next request comes at
        least a second after the last one, in case it fails again."""
        if self.state == "backing_off":
            self.retry_at = min(self.retry_at, max(now, self.sent_at + SECOND))

    # ---- private

    def _tick(self, now: int) -> None:
        self.now = max(self.now, now)

    def _forget_closed(self) -> None:
        for name in [n for n, r in self.resources.items() if r.state == CLOSED]:
            del self.resources[name]

    def _look(self) -> None:
        """Checks for refusals, which make wants rise."""
        following = [r for r in self.resources.values() if r.follows_use]
        self.look_at = self.now + LOOK_INTERVAL if following else NEVER
        for resource in following:
            resource.notice_refusal(self.now)

    def _request(self) -> Optional[Request]:
        """Makes a request, of renewals or of releases. If both are due, they alternate."""
        first = GET if self.method == RELEASE else RELEASE
        for method in (first, RELEASE if first == GET else GET):
            items = self._renewals() if method == GET else self._releases()
            if items:
                self.method, self.state = method, "requested"
                self.sent_at = self.now
                self.number += 1
                return Request(self.addresses.current, method,
                               {"client_id": self.client_id, "resource": items}, self.number,
                               self.timeout, sent_at=self.now)
        return None

    def _renewals(self) -> List[Dict[str, Any]]:
        """K1: renews those that are due, and then those past half their refresh interval."""
        now = self.now
        items: List[Dict[str, Any]] = []
        self.under_way, self.reported = [], []

        def add(resources: List[Resource]) -> None:
            for resource in resources:
                item = resource.renewal(now) if len(items) < ITEMS_MAX else None
                if item:
                    items.append(item)
                    self.under_way.append(resource)
                    self.reported.append("has" in item)

        idle = [r for r in self.resources.values() if r.state == OPEN and not r.in_request]
        add(sorted((r for r in idle if r.due() <= now), key=Resource.due))
        if items:
            halves = [r for r in idle if not r.in_request and r.half() <= now]
            add(sorted(halves, key=Resource.half))
        return items

    def _releases(self) -> List[Dict[str, Any]]:
        now = self.now
        items: List[Dict[str, Any]] = []
        self.under_way, self.reported = [], []
        for resource in self.resources.values():
            if resource.state != CLOSING or resource.due() > now or len(items) == ITEMS_MAX:
                continue
            if not resource.is_leased(now):
                resource.state = CLOSED
                continue
            item = resource.release(now)
            if item:
                items.append(item)
                self.under_way.append(resource)
        return items

    def _end_items(self, answered: bool) -> None:
        under_way, self.under_way = self.under_way, []
        for resource in under_way:
            if not answered:
                resource.request_at = self.now
            resource.end_request(self.now)

    def _accept(self, body: Reader) -> None:
        if body.has("mastership"):
            master = body.object("mastership").value.get("http_address")
            if self.addresses.follow(master):
                self.state = "ready"
                self._end_items(False)
            else:
                self._back_off(ROUNDS_MAX_ALIVE)
            return
        items: List[_Item] = []
        if self.method == GET:
            entries = body.list("response", len(self.under_way))
            for entry, resource in zip(entries, self.under_way):
                items.append(_read_item(entry, resource.options.resource_id))
        self.failures = self.tried = self.rounds = 0
        self.addresses.redirects = 0
        self.state = "ready"
        if self.method == RELEASE:
            self._end_items(True)
            return
        granted = [min(i.refresh_interval, i.expires_in // 2) for i in items if i.expires_in]
        self.interval = min(granted, default=self.interval)
        under_way, self.under_way = self.under_way, []
        for item, resource, reported in zip(items, under_way, self.reported):
            resource.in_request = False
            resource.process(item, reported, self.sent_at, self.now)
            resource.end_request(self.now)

    def _back_off(self, rounds_max: int) -> None:
        """K2: the next address is asked at once. After a round of failures a pause follows."""
        self.state = "backing_off"
        self._end_items(False)
        self.rounds_max = rounds_max if self.tried == 0 else min(rounds_max, self.rounds_max)
        self.failures += 1
        self.failure_count += 1
        self.tried += 1
        self.addresses.advance()
        self.retry_at = self.now
        if self.tried == len(self.addresses.own):
            self.rounds = min(self.rounds + 1, self.rounds_max)
            self.tried = 0
            self.retry_at = self.now + self._pause()

    def _pause(self) -> int:
        most = min(SECOND << self.rounds, 60 * SECOND)
        if self.interval > 0:
            most = min(most, self.interval)
        most = max(most, SECOND)
        spread = int((most - SECOND) * self.random())
        ends = [r.lease.end for r in self.resources.values() if r.lease and r.lease.end > self.now]
        quarter = (min(ends, default=NEVER) - self.now) // 4
        return max(min(SECOND + spread, quarter), SECOND)
