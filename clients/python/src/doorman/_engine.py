"""What the clients with threads and with asyncio share: both cores, the clock, and what is told to
the application."""
from __future__ import annotations

import contextlib
import functools
import logging
import os
import secrets
import socket
import ssl
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from ._base import NEVER, SECOND, Request, check_amount, check_duration
from ._calls import Acquired, Call, Held, Item, Items, Kind, State
from .leases import LeaseCore, Resource, ResourceOptions
from .permits import PermitCore, PermitPolicy

log = logging.getLogger("doorman")
UNMATCHED_MAX = 1000  # names that are remembered, so that each is told once
BODY_BYTES_MAX = 4 << 20
IDLE_MAX = 20.0  # seconds; servers close connections that are idle for 30 s
Token = Union[str, Callable[[], str], None]
Core = Union[LeaseCore, PermitCore]

# CLOCK_BOOTTIME counts the time while the machine is suspended. Other systems have no such clock.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)


def clock() -> int:
    """Returns nanoseconds of a clock that never goes back."""
    return time.monotonic_ns() if _CLOCK is None else time.clock_gettime_ns(_CLOCK)


def warn(text: str, *values: object) -> None:
    """Logs a warning. A handler of the application that fails must not end a thread or a timer,
    because without them the client would send nothing any more."""
    with contextlib.suppress(Exception):
        log.warning(text, *values)


def tell(calls: Iterable[Callable[[], None]]) -> None:
    """Calls functions of the application."""
    for call in calls:
        try:
            call()
        except Exception:  # of the application
            with contextlib.suppress(Exception):
                log.exception("on_gone has failed")


def new_client_id() -> str:
    """Returns a name that no other client has, and that nobody can guess."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(8)}"


@dataclass(frozen=True)
class Connection:
    """How requests are sent.

    token: of the server, or a function that returns it, for tokens that change.
    tls: for https addresses; None: the authorities of the system.
    headers: further headers of each request.
    """

    token: Token = None
    tls: Optional[ssl.SSLContext] = None
    headers: Tuple[Tuple[str, str], ...] = ()

    def all_headers(self) -> Dict[str, str]:
        headers = {"Content-Type": "application/json", **dict(self.headers)}
        token = self.token() if callable(self.token) else self.token
        if token:
            headers["Authorization"] = f"Bearer {check_token(token)}"
        return headers

    def context(self) -> ssl.SSLContext:
        return self.tls or _system_authorities()


def check_token(token: Any) -> str:
    """Returns a token that a header can have. The error does not show it, because it is logged."""
    if not isinstance(token, str) or not all("!" <= char <= "~" for char in token):
        raise ValueError("token: must be ASCII without spaces and line breaks")
    return token


def check_header(name: Any, value: Any) -> Tuple[str, str]:
    """Returns a header that can be sent. The error does not show its value."""
    for text in (name, value):
        if not isinstance(text, str) or not all(" " <= char <= "~" for char in text):
            raise ValueError(f"headers: {name!r}: must be printable ASCII")
    return name, value


@functools.lru_cache(maxsize=1)
def _system_authorities() -> ssl.SSLContext:
    return ssl.create_default_context()


def connection_of(token: Token, tls: Union[ssl.SSLContext, str, None],
                  headers: Mapping[str, str]) -> Connection:
    """Makes a connection of the options of a client.
    tls: a context, or the path of a file with the authorities of the servers in PEM."""
    context = _context_of(tls) if isinstance(tls, str) else tls
    if token and not callable(token):
        check_token(token)
    return Connection(token, context, tuple(check_header(*pair) for pair in headers.items()))


def _context_of(path: str) -> ssl.SSLContext:
    """Reads a file of authorities. The errors of ssl do not name the file."""
    try:
        return ssl.create_default_context(cafile=path)
    except ssl.SSLError as error:
        raise ssl.SSLError(error.errno, f"tls: {path}: {error.strerror}") from None
    except OSError as error:
        raise type(error)(error.errno, error.strerror, path) from None


def to_items(resource: Union[str, Items], key: str, cost: float,
             least: Optional[float]) -> Tuple[Item, ...]:
    """Returns the items of a permit: those that are given, or one of a resource and key."""
    if isinstance(resource, str):
        return (Item(resource, key, cost, least),)
    if isinstance(resource, Item):
        return (resource,)
    if not isinstance(resource, (list, tuple)):
        raise ValueError("resource: must be a name, an Item, or a list of Items")
    return tuple(resource)


def with_costs(items: Sequence[Item], costs: Union[float, Sequence[float]]) -> List[Item]:
    """Returns the items of a settle. costs: of the only item, or of each item."""
    given = [costs] if isinstance(costs, (int, float)) else costs
    if not isinstance(given, (list, tuple)) or len(given) != len(items):
        raise ValueError("costs: must have one cost for each item")
    return [Item(item.resource_id, item.key, cost) for item, cost in zip(items, given)]


def check_units(units: float) -> float:
    """Returns units that a caller can wait for."""
    return check_amount("units", units)


class Sink:
    """Gets the decision on a call. number: of the hold that is watched; 0: none.
    given_up: the call, if its caller does not wait any more."""

    number = 0
    given_up: Optional[Call] = None

    def resolve(self, acquired: Any) -> None:
        raise NotImplementedError


class Engine:
    """Both cores of a client. Its owner has a lock, or one thread."""

    def __init__(self, addresses: Sequence[str], client_id: Optional[str], lease_timeout: float,
                 permit_timeout: float, policy: PermitPolicy) -> None:
        now = clock()
        self.client_id = client_id or new_client_id()
        self.leases = LeaseCore(self.client_id, addresses, now, request_timeout=lease_timeout)
        self.permits = PermitCore(self.client_id, addresses, now, policy=policy,
                                  request_timeout=permit_timeout)
        self.on_gone: Dict[int, Callable[[Held], None]] = {}
        self.unmatched: Dict[Tuple[str, str], None] = {}  # and what is missing of each

    def poll(self) -> Tuple[List[Tuple[Core, Request]], List[Callable[[], None]], int]:
        """Does what is due. Returns the requests to send with their cores, what to call without
        the lock, and when to poll again."""
        now = clock()
        requests: List[Tuple[Core, Request]] = []
        told: List[Callable[[], None]] = []
        cores: Tuple[Core, Core] = (self.leases, self.permits)
        for core in cores:
            request = core.next(now)
            while request:
                requests.append((core, request))
                request = core.next(now)
        acquired = self.permits.decision(now)
        while acquired:
            self._decide(acquired)
            acquired = self.permits.decision(now)
        held = self.permits.change(now)
        while held:
            tell = self.on_gone.pop(held.hold, None)
            if tell:
                told.append(_bind(tell, held))
                if not held.gone:
                    self.on_gone[held.hold] = tell
            held = self.permits.change(now)
        return requests, told, min(self.leases.due(), self.permits.due())

    def _decide(self, acquired: Acquired) -> None:
        sink = acquired.context
        if acquired.unmatched is not None:
            acquired.reason = "UNMATCHED"
            self._tell_unmatched(acquired.unmatched, "limits", "the fallback decides")
        if not isinstance(sink, Sink):
            return
        if not acquired.hold and sink.number:
            self.watch(sink.number, None)
        sink.resolve(acquired)
        if sink.given_up:
            self._settle_nothing(sink.given_up)

    def _tell_unmatched(self, resource_id: str, missing: str, result: str) -> None:
        """Says once of each resource that no server limits it, because its name may be wrong."""
        if (resource_id, missing) in self.unmatched or len(self.unmatched) >= UNMATCHED_MAX:
            return
        self.unmatched[resource_id, missing] = None
        warn("%s: the server has no %s for this resource, so %s. Correct the name, or add the "
             "resource to the configuration of the server", resource_id, missing, result)

    def _tell_unmatched_leases(self) -> None:
        for resource in self.leases.resources.values():
            if resource.outcome == "UNMATCHED":
                self._tell_unmatched(resource.options.resource_id, "capacity",
                                     "the fallback is in force")

    def give_up(self, call: Call, sink: Sink) -> None:
        """Gives back what a call has got, or will get, whose caller does not wait any more."""
        self.watch(call.number, None)
        if call.permit.hold or call.kind == Kind.SEIZURE:
            self.permits.release(call.number, None, clock())
        if call.state == State.DECIDED:
            self._settle_nothing(call)
        else:
            sink.given_up = call

    def _settle_nothing(self, call: Call) -> None:
        """Settles the reservation of a call with a cost of 0, if it has one."""
        if call.acquired.reservation:
            items = with_costs(call.items, [0.0] * len(call.items))
            self.permits.settle(call.acquired.reservation, items, 0, None, clock())

    def answer(self, core: Core, request: Request, status: int, body: Any) -> None:
        """Passes a response to a core."""
        wrong = core.response(request, status, body, clock())
        if wrong:
            warn("%s: %s: %s", request.address, request.method, wrong)
        elif "mastership" not in body:
            other: Core = self.permits if core is self.leases else self.leases
            other.retry_soon(clock())
            if core is self.leases:
                self._tell_unmatched_leases()

    def fail(self, core: Core, request: Request, error: BaseException) -> None:
        """Tells a core that a request got no response."""
        warn("%s: %s: %r", request.address, request.method, error)
        core.failed(request, clock())

    def open(self, options: ResourceOptions) -> Resource:
        """Opens a resource. Warns if it is open already with other options (K5)."""
        resource = self.leases.open(options, clock())
        if resource.differs:
            warn("%s: %s: not as in the first opening, which stays in force",
                 options.resource_id, resource.differs)
        return resource

    def watch(self, number: int, on_gone: Optional[Callable[[Held], None]],
              sink: Optional[Sink] = None) -> None:
        """Lets on_gone be called if the hold of this number changes. None: nobody is told.
        sink: of the call that asks for the hold."""
        if on_gone:
            self.on_gone[number] = on_gone
            if sink:
                sink.number = number
        else:
            self.on_gone.pop(number, None)

    def stop(self) -> None:
        """Gives everything back. Poll until is_idle()."""
        now = clock()
        for resource in list(self.leases.resources.values()):
            while resource.opened:
                self.leases.close(resource, now, at_once=True)
            resource.request_at = min(resource.request_at, now)
        self.permits.stop(now)

    def is_idle(self) -> bool:
        return self.leases.is_idle() and self.permits.is_idle()

    def kill_switch(self, on: bool) -> None:
        self.leases.kill_switch(on)
        self.permits.kill_switch(on)

    def left(self, at: Optional[int]) -> float:
        """Returns the seconds until a time of the core; infinity: none."""
        return float("inf") if at is None else (at - clock()) / SECOND


def _bind(tell: Callable[[Held], None], held: Held) -> Callable[[], None]:
    return lambda: tell(held)


def start_waiting(resource: Resource, units: float) -> None:
    """Says that a caller waits for units, so that the wants rise (L4)."""
    resource.set_waiting(resource.waiting + units, clock())
    show_demand(resource)


def show_demand(resource: Resource) -> None:
    """Lets the core look at the demand soon."""
    usage = resource.limiter.usage
    usage.unmet_since = min(usage.unmet_since, clock())


def stop_waiting(resource: Resource, units: float) -> None:
    resource.set_waiting(max(0.0, resource.waiting - units), clock())


def time_left(deadline: Optional[int]) -> float:
    """Returns the seconds to a deadline of the clock; None: there is none."""
    return float("inf") if deadline is None else (deadline - clock()) / SECOND


def deadline_in(timeout: Optional[float]) -> Optional[int]:
    return None if timeout is None else clock() + check_duration("timeout", timeout)


def wait_time(resource: Resource, units: float, deadline: Optional[int]) -> float:
    """Returns how many seconds to wait before the next try, at most a fifth of a second."""
    delay = resource.limiter.delay(units, clock())
    seconds = 0.2 if delay == NEVER else min(0.2, delay / SECOND)
    return max(0.0001, min(seconds, time_left(deadline)))
