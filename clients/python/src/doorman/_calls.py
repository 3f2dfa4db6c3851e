"""What the core of permits works with: calls, holds, and what it writes into messages.

The rules (P, H) are those of the section >>permit_client of doorman_permits.h.
"""
from __future__ import annotations

import enum
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from ._base import (AMOUNT_MAX, NEVER, SECOND, InvalidResponse, Reader, check_amount,
                    check_duration, check_id, is_number, seconds)

ITEMS_MAX = 100  # of a permit
REQUEST_ID_MAX = (1 << 53) - 1


class Kind(enum.IntEnum):
    """What a call asks. The kinds alternate in the messages of a client, in this order."""

    PERMIT = 0
    REPORT = 1
    RENEWAL = 2
    RELEASE = 3
    TRANSFER = 4
    SEIZURE = 5
    SETTLE = 6
    WAIT = 7  # a permit that may wait in the queue of a server


METHODS = ("acquire", "report", "renew", "release", "transfer", "seize", "settle", "acquire")


class State(enum.Enum):
    """Of a call: see the table in >>permit_client."""

    NEW = 0
    QUEUED = 1
    SENT = 2
    WAITING = 3
    DECIDED = 4


@dataclass(frozen=True)
class Item:
    """One item of a permit: units of one resource for one key.

    cost: the units; 0 only looks. min: the item accepts this many units or more; None: cost.
    """

    resource_id: str
    key: str = ""
    cost: float = 1
    min: Optional[float] = None

    def __post_init__(self) -> None:
        check_id("resource_id", self.resource_id)
        check_id("key", self.key, empty=True)
        check_amount("cost", self.cost)
        if self.min is not None and check_amount("min", self.min) > self.cost:
            raise ValueError("min: must be at most cost")

    @property
    def pair(self) -> Tuple[str, str]:
        return self.resource_id, self.key

    @property
    def least(self) -> float:
        return self.cost if self.min is None else self.min

    def to_json(self) -> Dict[str, Any]:
        out: Dict[str, Any] = {"resource_id": self.resource_id, "cost": self.cost}
        if self.key:
            out["key"] = self.key
        if self.min is not None:
            out["min"] = self.min
        return out


Items = Union[Item, Sequence[Item]]


@dataclass(frozen=True)
class Permit:
    """What a permit asks. Durations are in seconds.

    max_wait: how long the caller can wait. equal: all items get the same whole number of units.
    detail: the decision has the figures of its limit. hold: the permit may hold units of
    CONCURRENCY, which must be released. time_to_live: of the hold; 0: that of the limits.
    share: it ends as SHARED when a hold of the same resource and key is released.
    settle_within: more than 0: it is a reservation, which must be settled within this time.
    """

    items: Tuple[Item, ...]
    max_wait: float = 0
    equal: bool = False
    detail: bool = False
    hold: bool = False
    time_to_live: float = 0
    priority: int = 1
    share: bool = False
    settle_within: float = 0

    def __post_init__(self) -> None:
        if not 1 <= len(self.items) <= ITEMS_MAX:
            raise ValueError(f"items: must be 1 to {ITEMS_MAX}")
        if not all(isinstance(item, Item) for item in self.items):
            raise ValueError("items: each must be an Item")
        for name in ("equal", "detail", "hold", "share"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}: must be True or False")
        check_duration("max_wait", self.max_wait)
        check_duration("time_to_live", self.time_to_live)
        if check_duration("settle_within", self.settle_within) > 3600 * SECOND:
            raise ValueError("settle_within: must be at most an hour")
        if not isinstance(self.priority, int) or not 0 <= self.priority <= 15:
            raise ValueError("priority: must be an integer from 0 to 15")
        if self.share and len(self.items) != 1:
            raise ValueError("share: only for one item")
        if self.equal and any(item.cost < self.least(0) for item in self.items):
            raise ValueError("equal: no whole number is between min and cost of all items")

    def least(self, index: int) -> float:
        """Returns the least number of units that an item accepts."""
        if not self.equal:
            return self.items[index].least
        return float(-(-max(item.least for item in self.items) // 1))

    def to_json(self, max_wait: int, number: int) -> Dict[str, Any]:
        out: Dict[str, Any] = {"item": [item.to_json() for item in self.items]}
        if number:
            out["request_id"] = number
        for name in ("equal", "detail", "share", "time_to_live", "settle_within"):
            if getattr(self, name):
                out[name] = getattr(self, name)
        if max_wait > 0:
            out["max_wait"] = seconds(max_wait)
        if self.priority != 1:
            out["priority"] = self.priority
        return out


@dataclass
class Acquired:
    """A decision, or the result of a settle, transfer or seizure. Durations are in seconds.

    by: "server", "refusal" (a server has refused the same a short time ago), "fallback" (no server
    has decided), "bypass" (the kill switch or shadow), "caller" (released before the decision), or
    "prefetch" (granted out of units that were taken ahead).
    units: of each item. Of a settle: what was charged in addition, or, if negative, what came back.
    wait: a grant whose caller timed out must wait this much longer before it uses the units.
    retry_after: None: waiting does not help, or it is not known.
    limit, remaining, reset_after: of the limit with the fewest units left, or that refuses.
    quota, window: with detail, the figures of this limit; 0: not known.
    """

    granted: bool = False
    by: str = "server"
    units: List[float] = field(default_factory=list)
    limit: Optional[str] = None
    remaining: float = 0
    reset_after: float = 0
    quota: float = 0
    window: float = 0
    warning: bool = False
    wait: float = 0
    reason: Optional[str] = None
    retry_after: Optional[float] = None
    item_index: int = 0
    late: bool = False
    unknown: bool = False
    hold: int = 0  # the number of the hold; 0: nothing is held
    reservation: int = 0  # the number of the reservation; 0: there is nothing to settle
    unmatched: Optional[str] = None  # the resource that the server has no limit for
    transfer_id: int = 0
    ends_at: Optional[int] = None  # of the hold, in nanoseconds of the clock of the core
    settle_by: Optional[int] = None
    context: Any = None  # what the caller has passed


@dataclass(frozen=True)
class Held:
    """A hold, as its application may use it, until ends_at: in nanoseconds of the clock of the core.
    Hold.left() has the seconds that are left.

    units: of each item. If the hold is gone: what it had, which must not be used any more.
    """

    hold: int
    gone: bool
    units: Tuple[float, ...] = ()
    ends_at: Optional[int] = None


@dataclass(eq=False)
class Call:
    """A permit, report, settle or request about a hold, from its beginning to its result."""

    kind: Kind
    permit: Permit
    context: Any = None
    state: State = State.NEW
    number: int = 0  # the request_id
    deadline: int = NEVER
    timer: int = NEVER
    timer_order: int = 0
    attended: bool = True  # a caller wants the result
    alone: bool = False  # it is in a message of its own
    prefetches: bool = False
    unanswered: bool = False  # a server may have granted it
    is_moved: bool = False  # it is WAITING because it was refused as MOVED (N9)
    moves: int = 0  # how often it was, up to MOVES_MAX
    failures: int = 0
    sent_max_wait: int = 0
    waits_until: int = 0
    hold: Optional["Hold"] = None
    peer: Optional["Call"] = None  # of a transfer or settle: the call that has its result
    cost: float = 0  # of a report
    amounts: List[float] = field(default_factory=list)  # of a transfer
    transfer_id: int = 0  # of a seizure
    time_to_live: float = 0
    port: Optional["Batch"] = None  # QUEUED: in whose queue it is
    batch: Optional["Batch"] = None
    position: int = 0
    acquired: Acquired = field(default_factory=Acquired)

    @property
    def items(self) -> Tuple[Item, ...]:
        return self.permit.items if self.permit else ()

    def size(self) -> int:
        """Returns how many items the message, or its response, has for the call."""
        if self.kind == Kind.SEIZURE:
            return ITEMS_MAX
        return len(self.hold.items) if self.hold and not self.items else max(1, len(self.items))

    def text_bytes(self) -> int:
        return sum(len(item.resource_id) + len(item.key) + 2 for item in self.items)


@dataclass(eq=False)
class Hold:
    """A hold of the application. Its states: asked, in_use, ending."""

    number: int
    action: Call
    items: List[Tuple[str, str]] = field(default_factory=list)
    amounts: List[float] = field(default_factory=list)
    state: str = "asked"
    id: int = 0  # chosen by the server; 0: not known
    transfer_id: int = 0  # of the transfer that is seized
    call: Optional[Call] = None  # asks for the hold
    begin: int = 0
    life: int = 0
    end: int = 0
    renew_at: int = 0
    give_up_at: int = 0
    timer: int = NEVER
    timer_order: int = 0
    transfers: int = 0  # how many have no answer yet
    was_sent: bool = False
    asking: bool = False  # a message that asks for the hold is under way
    must_release: bool = False
    claims: bool = False  # the next renewal says what is held
    changed: bool = False

    def is_empty(self) -> bool:
        return not any(amount > 0 for amount in self.amounts)

    def describe(self) -> Held:
        return Held(self.number, self.state == "ending", tuple(self.amounts), self.end or None)


@dataclass
class Sent:
    """A call in the message under way. `call` is None if it has its result already."""

    call: Optional[Call]
    hold: Optional[Hold]  # the hold that the message asks for


@dataclass(eq=False)
class Batch:
    """The messages to the servers of the options, to a node of the map, or of a lane. One message
    at a time is under way.

    lane: of its requests; None: it is that of the options.
    queues: the calls for it, by their kinds. A lane has none: it takes those of others in turn.
    node: the name of the node.
    source: of a lane: whose call is in its message.
    """

    lane: Optional[int]
    addresses: Any
    node: str = ""
    is_lane: bool = False
    queues: List["OrderedDict[Call, None]"] = field(
        default_factory=lambda: [OrderedDict() for _ in Kind])
    source: Optional["Batch"] = None
    asks_map: bool = False  # the message under way is a DISCOVERY
    answers: bool = False  # a node: it has answered since its last failure
    probes: bool = False  # a node: the next message is a DISCOVERY, which says whether it answers
    state: str = "ready"  # or "requested", or (only the client) "backing_off"
    sent: List[Sent] = field(default_factory=list)
    kind: Kind = Kind.WAIT
    sent_at: int = 0
    timeout: int = 0
    retry_at: int = 0
    number: int = 0
    failures: int = 0

    def is_idle(self) -> bool:
        return self.state != "requested" and not any(self.queues)


# ---- what a message has for a call


def put_entry(call: Call) -> Dict[str, Any]:
    """Returns what a message has for a call that is not a permit."""
    entry: Dict[str, Any]
    if call.kind == Kind.REPORT:
        entry = {**call.items[0].to_json(), "cost": call.cost}
        return {**entry, "request_id": call.number} if call.number else entry
    if call.kind == Kind.SETTLE:
        return {"request_id": call.number, "item": [item.to_json() for item in call.items]}
    if call.kind == Kind.SEIZURE:
        entry = {"transfer_id": call.transfer_id, "request_id": call.number}
        return _with_life(entry, call.time_to_live)
    hold = call.hold
    assert hold
    if call.kind == Kind.TRANSFER:
        entry = {"id": hold.id, "request_id": call.number, "amount": call.amounts}
        return _with_life(entry, call.time_to_live)
    entry = {"id": hold.id}
    if call.kind == Kind.RELEASE:
        hold.must_release = False
        entry = entry if hold.id else {"request_id": hold.number}
        return {**entry, "keep": list(hold.amounts)} if hold.state == "in_use" else entry
    if hold.claims:
        entry["item"] = [{"resource_id": resource_id, "key": key, "amount": amount}
                         for (resource_id, key), amount in zip(hold.items, hold.amounts)]
    return entry


def _with_life(entry: Dict[str, Any], time_to_live: float) -> Dict[str, Any]:
    return {**entry, "time_to_live": time_to_live} if time_to_live else entry


# ---- what a response has for a call


@dataclass
class Grant:
    """What a decision grants to one item, and its limit with the fewest units left."""

    granted: float
    limit: Optional[str]
    remaining: float
    reset_after: int


@dataclass
class Figures:
    """The details of one limit, which a permit with `detail` gets."""

    name: str
    shadow: bool
    quota: float
    remaining: float
    window: int
    reset_after: int


@dataclass
class Decision:
    """The decision of a server on a permit. figures: the details of the limits of each item."""

    granted: bool
    figures: List[List[Figures]] = field(default_factory=list)
    grants: List[Grant] = field(default_factory=list)
    hold_id: int = 0
    waited: int = 0
    expires_in: int = 0
    reservation: bool = False
    settle_within: int = 0
    wait: int = 0
    warning: bool = False
    item_index: int = 0
    reason: Optional[str] = None
    limit: Optional[str] = None
    valid_for: int = 0
    retry_after: Optional[int] = None

    @property
    def units(self) -> List[float]:
        return [grant.granted for grant in self.grants]


def _read_figures(item: Reader) -> List[Figures]:
    limits = item.list("limits") if item.has("limits") else []
    return [Figures(limit.text("name", ""), limit.flag("shadow"), limit.amount("limit", 0),
                    limit.amount("remaining", 0), limit.duration("window", 0),
                    limit.duration("reset_after", 0))
            for limit in (Reader(value, "limits[]") for value in limits)]


def _read_grant(item: Reader) -> Grant:
    return Grant(item.amount("granted"), item.text("limit", "") or None,
                 item.amount("remaining", 0), item.duration("reset_after", 0))


def read_decision(value: Any, count: int) -> Decision:
    """Reads all fields of a decision on a permit of `count` items. Raises InvalidResponse."""
    entry = Reader(value, "permit[]")
    granted = entry.text("decision") == "GRANTED"
    items: List[Reader] = []
    if granted or entry.has("item"):
        values = entry.list("item", count if granted else None)
        items = [Reader(item, "item[]") for item in values]
    decision = Decision(granted, [_read_figures(item) for item in items])
    if not granted:
        if entry.has("item_index"):
            decision.item_index = entry.integer("item_index", count - 1)
        if entry.has("retry_after"):
            decision.retry_after = entry.duration("retry_after")
        decision.reason = entry.text("reason", "") or None
        decision.limit = entry.text("limit", "") or None
        decision.valid_for = entry.duration("valid_for", 0)
        return decision
    decision.grants = [_read_grant(item) for item in items]
    decision.wait = entry.duration("wait", 0)
    decision.warning = entry.flag("warning")
    if entry.has("hold"):
        hold = entry.object("hold")
        decision.hold_id = hold.integer("id")
        decision.waited = hold.duration("waited", 0)
        decision.expires_in = hold.duration("expires_in")
    if entry.has("reservation"):
        decision.reservation = True
        decision.settle_within = entry.object("reservation").duration("settle_within")
    return decision


@dataclass
class HoldResult:
    """The result of a request about a hold."""

    gone: bool = False
    reason: Optional[str] = None
    id: int = 0
    expires_in: int = 0
    amounts: List[float] = field(default_factory=list)
    items: List[Tuple[str, str]] = field(default_factory=list)


def _amounts(entry: Reader, key: str) -> List[float]:
    values = entry.list(key) if entry.has(key) else []
    if not all(is_number(value) and 0 <= value <= AMOUNT_MAX for value in values):
        raise entry.fail(key, "must be amounts")
    return [float(value) for value in values]


def read_hold_result(value: Any, kind: Kind, call: Optional[Call]) -> HoldResult:
    """Reads the result of a renew, release, transfer or seize. Raises InvalidResponse."""
    entry = Reader(value, "entry[]")
    result = HoldResult(entry.flag("gone"), entry.text("reason", "") or None)
    if result.gone or result.reason:
        return result
    result.amounts = _amounts(entry, "amount")
    if kind == Kind.RENEWAL:
        result.expires_in = entry.duration("expires_in")
        if call and call.hold and len(result.amounts) != len(call.hold.items):
            raise entry.fail("amount", "must have an amount for each item")
    elif kind in (Kind.TRANSFER, Kind.SEIZURE):
        result.expires_in = entry.duration("expires_in")
        result.id = entry.integer("transfer_id" if kind == Kind.TRANSFER else "id")
        if not result.id:
            raise entry.fail("id", "must not be 0")
    if kind == Kind.SEIZURE:
        items = [Reader(item, "item[]") for item in entry.list("item")]
        if not 1 <= len(items) <= ITEMS_MAX:
            raise entry.fail("item", "must be a list of 1 to 100")
        result.items = [(item.text("resource_id"), item.text("key", "")) for item in items]
        result.amounts = [item.amount("amount") for item in items]
    return result


@dataclass
class Settled:
    """The answer to a settle: what each item was charged in addition, and what came back."""

    reason: Optional[str]
    late: bool
    unknown: bool
    items: List[Tuple[float, float]]  # charged, returned


def read_settled(value: Any, count: Optional[int]) -> Settled:
    """Reads the answer to a settle. Raises InvalidResponse.
    count: how many items it must have; None: nobody reads them."""
    entry = Reader(value, "entry[]")
    settled = Settled(entry.text("reason", "") or None, entry.flag("late"), entry.flag("unknown"),
                      [])
    if not settled.reason and count is not None:
        items = [Reader(item, "item[]") for item in entry.list("item", count)]
        settled.items = [(item.amount("charged", 0), item.amount("returned", 0)) for item in items]
    return settled


@dataclass
class Reported:
    """The answer to a report."""

    charged: float
    reason: Optional[str]


def read_reported(value: Any) -> Reported:
    """Reads the answer to a report. Raises InvalidResponse."""
    entry = Reader(value, "entry[]")
    charged = entry.value.get("charged", 0)
    if not is_number(charged) or abs(charged) > AMOUNT_MAX:
        raise InvalidResponse("entry[].charged: must be an amount")
    return Reported(float(charged), entry.text("reason", "") or None)
