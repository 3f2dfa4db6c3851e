"""A client with threads. Any thread may call its methods.

    with Client(["http://127.0.0.1:15050"]) as client:
        orders = client.rate("db/orders", wants=50)
        if orders.try_use():
            ...  # do one unit of work
"""
from __future__ import annotations

import atexit
import contextlib
import http.client
import json
import os
import queue
import ssl
import threading
import time
import warnings
import weakref
from collections import deque
from typing import (Any, Callable, ContextManager, Deque, Dict, Iterator, List, Mapping, Optional,
                    Sequence, Tuple, Union)
from urllib.parse import urlsplit

from ._base import SECOND, Request
from ._calls import Acquired, Call, Held, Item, Items, Permit
from ._engine import (BODY_BYTES_MAX, IDLE_MAX, Connection, Core, Engine, Sink, Token, check_units,
                      clock, connection_of, deadline_in, show_demand, start_waiting, stop_waiting,
                      tell, time_left, to_items, wait_time, warn, with_costs)
from ._metrics import write_metrics
from .errors import Refused
from .leases import Resource, ResourceInfo, ResourceOptions
from .permits import PermitPolicy

CLOSE_TIMEOUT = 5.0
EXIT_TIMEOUT = 1.0
TURN_MAX = 60.0  # seconds; a caller looks again then, even if nobody has woken it


class _Channel:
    """A thread with a connection, which has one request under way. A new request aborts the one
    before it, which the core has given up already."""

    def __init__(self, connection: Connection,
                 done: "weakref.WeakMethod[Callable[..., None]]") -> None:
        self._connection, self._done = connection, done
        self._queue: "queue.SimpleQueue[Optional[Tuple[Core, Request]]]" = queue.SimpleQueue()
        self._last: Optional[Request] = None  # all requests before it were given up
        self._http: Optional[http.client.HTTPConnection] = None
        self._address, self._used_at, self._busy = "", 0.0, False
        self._thread = threading.Thread(target=self._run, daemon=True, name="doorman-channel")
        self._thread.start()

    def send(self, core: Core, request: Request) -> None:
        self._last = request
        self._abort()
        self._queue.put((core, request))

    def stop(self) -> None:
        self._last = None
        self._abort()
        self._queue.put(None)

    def join(self, timeout: float) -> None:
        """Waits for the end of the thread, unless on_gone calls this in the thread itself."""
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    def _abort(self) -> None:
        sock = getattr(self._http, "sock", None) if self._busy else None
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(2)

    def _run(self) -> None:
        while True:
            work = self._queue.get()
            if work is None:
                break
            core, request = work
            if request is not self._last:
                continue  # the core has given it up while it was queued
            self._busy = True
            status, body = self._try(request)
            self._busy = False
            done = self._done()
            try:
                if done:
                    done(core, request, status, body)
            except Exception as error:  # the thread must go on: it sends all that comes
                warn("%s: %s: the response was not processed: %r", request.address,
                     request.method, error)
            del done  # a thread that waits must not keep the client
        self._close()

    def _try(self, request: Request) -> Any:
        """Returns the status and the body of a response, or 0 and an exception."""
        try:
            return self._post(request)
        except Exception as error:  # of the network, TLS or HTTP
            self._close()
            return 0, error

    def _close(self) -> None:
        if self._http:
            self._http.close()
        self._http = None

    def _post(self, request: Request) -> Any:
        fresh = time.monotonic() - self._used_at < IDLE_MAX and request.address == self._address
        if self._http and fresh:
            try:
                return self._exchange(self._http, request)
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                if request is not self._last:
                    raise  # this client has shut the connection down: nobody wants the answer
                # The server has closed an idle connection: this is no failure.
        self._close()
        self._http, self._address = self._connect(request), request.address
        return self._exchange(self._http, request)

    def _connect(self, request: Request) -> http.client.HTTPConnection:
        url, timeout = urlsplit(request.address), request.timeout / SECOND
        if url.scheme.lower() == "https":
            return http.client.HTTPSConnection(url.hostname or "", url.port, timeout=timeout,
                                               context=self._connection.context())
        return http.client.HTTPConnection(url.hostname or "", url.port, timeout=timeout)

    def _exchange(self, connection: http.client.HTTPConnection, request: Request) -> Any:
        if connection.sock:
            connection.sock.settimeout(request.timeout / SECOND)
        path = urlsplit(request.address).path.rstrip("/")
        connection.request("POST", f"{path}/v1/{request.method}",
                           json.dumps(request.message).encode(), self._connection.all_headers())
        response = connection.getresponse()
        text = response.read(BODY_BYTES_MAX + 1)
        self._used_at = time.monotonic()
        if len(text) > BODY_BYTES_MAX:
            raise http.client.HTTPException("the response is too large")
        if response.will_close:
            self._close()
        return response.status, parse(text)


def parse(text: bytes) -> Any:
    """Returns parsed JSON; None: it is not valid."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


class _Decision(Sink):
    """Waits for the decision on a call."""

    def __init__(self) -> None:
        self.acquired: Optional[Acquired] = None
        self.is_there = threading.Event()

    def resolve(self, acquired: Acquired) -> None:
        self.acquired = acquired
        self.is_there.set()

    def wait(self) -> Acquired:
        self.is_there.wait()
        assert self.acquired
        return self.acquired


class Client:
    """Leases, permits, holds and reservations.

    addresses: such as http://HOST:PORT, of all processes of a node. They are tried in turn.
    token, tls, headers: see Connection; tls can also be the path of a file of authorities in PEM.
    permits: what happens to permits without a server: see PermitPolicy.
    lease_timeout, permit_timeout: how long a request may take, in seconds.

    Create the client after a fork, not before it: calls in another process raise RuntimeError.
    A client that is still open when the interpreter exits gives back what it has, for up to a
    second.
    """

    def __init__(self, addresses: Union[str, Sequence[str]], *, token: Token = None,
                 tls: Union[ssl.SSLContext, str, None] = None,
                 headers: Mapping[str, str] = {}, client_id: Optional[str] = None,
                 permits: PermitPolicy = PermitPolicy(), lease_timeout: float = 5,
                 permit_timeout: float = 1) -> None:
        given = [addresses] if isinstance(addresses, str) else addresses
        self._connection = connection_of(token, tls, headers)
        self._engine = Engine(given, client_id, lease_timeout, permit_timeout, permits)
        self._own_lock, self._pid = threading.RLock(), os.getpid()
        self._changed = threading.Condition(self._own_lock)
        self._channels: Dict[Any, _Channel] = {}
        self._due, self._stopping, self._stopped = 0, False, False
        # Callers that wait for units of each resource, in their order. Only the first one tries.
        self._waiters: Dict[Resource, Deque[threading.Condition]] = {}
        self._kept: List[Client] = []  # the thread keeps what is in it
        self._thread = threading.Thread(
            target=_run, args=(weakref.ref(self), self._changed, self._kept), daemon=True,
            name="doorman")
        self._thread.start()
        _open_clients.add(self)

    @property
    def client_id(self) -> str:
        """The name of this client at the servers."""
        return self._engine.client_id

    # ---- leases

    def rate(self, resource_id: str, *, wants: Optional[float] = None,
             wants_minimum: Optional[float] = None,
             wants_maximum: float = ResourceOptions.wants_maximum,
             wants_initial: Optional[float] = None, window: float = ResourceOptions.window,
             priority: int = ResourceOptions.priority, burst: float = ResourceOptions.burst,
             burst_units: float = 0, fallback: str = ResourceOptions.fallback,
             safe_capacity: Optional[float] = None, shadow: bool = False) -> "Rate":
        """Opens a rate, in units per second. For the options see ResourceOptions."""
        return Rate(self, self._open(ResourceOptions(
            resource_id, "rate", wants, wants_minimum, wants_maximum, wants_initial, window,
            priority, burst, burst_units, fallback, safe_capacity, shadow)))

    def gauge(self, resource_id: str, *, wants: Optional[float] = None,
              wants_minimum: Optional[float] = None,
              wants_maximum: float = ResourceOptions.wants_maximum,
              wants_initial: Optional[float] = None, window: float = ResourceOptions.window,
              priority: int = ResourceOptions.priority, burst: float = ResourceOptions.burst,
              burst_units: float = 0, fallback: str = ResourceOptions.fallback,
              safe_capacity: Optional[float] = None, shadow: bool = False) -> "Gauge":
        """Opens a gauge: units in use at once. For the options see ResourceOptions."""
        return Gauge(self, self._open(ResourceOptions(
            resource_id, "gauge", wants, wants_minimum, wants_maximum, wants_initial, window,
            priority, burst, burst_units, fallback, safe_capacity, shadow)))

    # ---- permits

    def acquire(self, resource: Union[str, Items], key: str = "", cost: float = 1, *,
                min: Optional[float] = None, timeout: float = 1, max_wait: float = 0,
                equal: bool = False, detail: bool = False) -> Acquired:
        """Asks for a permit, and waits for the decision up to `timeout` seconds.
        resource: a name, or an Item, or a list of Items (then key, cost and min have no effect).
        min: the permit accepts this many units or more. max_wait: a grant may have to wait for the
        debt of earlier permits; the call waits, too. See Permit for equal and detail."""
        permit = Permit(to_items(resource, key, cost, min), max_wait, equal, detail)
        return self._acquire(permit, timeout)

    def hold(self, resource: Union[str, Items], key: str = "", cost: float = 1, *,
             min: Optional[float] = None, timeout: Optional[float] = None, max_wait: float = 0,
             time_to_live: float = 0, priority: int = 1, share: bool = False,
             settle_within: float = 0,
             on_gone: Optional[Callable[[Held], None]] = None) -> "Hold":
        """Asks for units that stay taken until they are released, and waits up to max_wait in the
        queue of the server. The client renews the hold.
        on_gone: is called in a thread of the client if the hold has become smaller, or is gone."""
        permit = Permit(to_items(resource, key, cost, min), max_wait, hold=True,
                        time_to_live=time_to_live, priority=priority, share=share,
                        settle_within=settle_within)
        longest = max_wait + 5 if timeout is None else timeout
        return Hold(self, self._acquire(permit, longest, on_gone), permit)

    def reserve(self, resource: Union[str, Items], key: str = "", cost: float = 1, *,
                settle_within: float = 60, timeout: float = 1,
                detail: bool = False) -> "Reservation":
        """Charges what an action may cost, before its cost is known. See Reservation."""
        permit = Permit(to_items(resource, key, cost, None), detail=detail,
                        settle_within=settle_within)
        return Reservation(self, permit, self._acquire(permit, timeout))

    def report(self, resource_id: str, key: str = "", cost: float = 1) -> None:
        """Says what an action has cost. Does not wait. Negative: units come back."""
        with self._lock:
            self._check_open()
            self._engine.permits.report(Item(resource_id, key), cost, clock())
            told = self._step()
        tell(told)

    def seize(self, transfer_id: int, *, timeout: float = 1, time_to_live: float = 0,
              on_gone: Optional[Callable[[Held], None]] = None) -> "Hold":
        """Makes the units of a transfer a hold of this client."""
        sink = _Decision()
        return Hold(self, self._wait_for(sink, lambda: self._engine.permits.seize(
            transfer_id, timeout, sink, clock(), time_to_live), on_gone))

    # ---- all

    def kill_switch(self, on: bool) -> None:
        """While it is on, nothing is refused. Refusals are still counted."""
        with self._lock:
            self._engine.kill_switch(on)
            told = self._step()
            self._notify()
        tell(told)

    def counts(self) -> Mapping[str, float]:
        """Returns the counters of the permits of this client."""
        with self._lock:
            return self._engine.permits.read()

    def metrics(self) -> str:
        """Returns all counters in the text format of Prometheus."""
        with self._lock:
            return write_metrics(self._engine)

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Gives all leases and holds back, and ends the threads. Waits up to `timeout` seconds.
        What servers do not learn ends by itself. In another process than that of the client it
        does nothing."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if not self._stopping:
                self._stopping = True
                self._engine.stop()
                told = self._step()
                self._notify_all()
                tell(told)
            deadline = deadline_in(timeout)
            while not (self._stopped or self._engine.is_idle()) and time_left(deadline) > 0:
                self._changed.wait(max(0, time_left(deadline)))
            self._stopped = True
            self._notify_all()
            channels = list(self._channels.values())
        for channel in channels:
            channel.stop()
        if threading.current_thread() is not self._thread:
            self._thread.join(1)
        for channel in channels:
            channel.join(1)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- private

    @property
    def _lock(self) -> ContextManager[Any]:
        """The lock. In a process that was forked, its owner and the threads of the client can be
        missing, so that all calls would wait for ever."""
        if os.getpid() != self._pid:
            raise RuntimeError("the client was made before a fork: make one in each process")
        return self._own_lock

    def _check_open(self) -> None:
        if self._stopping:
            raise RuntimeError("the client is closed")

    def _open(self, options: ResourceOptions) -> Resource:
        with self._lock:
            self._check_open()
            resource = self._engine.open(options)
            told = self._step()
        tell(told)
        return resource

    def _acquire(self, permit: Permit, timeout: float,
                 on_gone: Optional[Callable[[Held], None]] = None) -> Acquired:
        sink = _Decision()
        return self._wait_for(sink, lambda: self._engine.permits.acquire(
            permit, timeout, sink, clock()), on_gone)

    def _wait_for(self, sink: _Decision, ask: Callable[[], Call],
                  on_gone: Optional[Callable[[Held], None]]) -> Acquired:
        """Makes a call, and waits for its decision. If an exception ends the wait, such as one of
        a signal handler, what the call gets is given back."""
        call: Optional[Call] = None
        try:
            with self._lock:
                self._check_open()
                call = ask()
                self._engine.watch(call.number, on_gone, sink)
                told = self._step()
            tell(told)
            return sink.wait()
        except BaseException:
            if call:
                self._give_up(call, sink)
            raise

    def _give_up(self, call: Call, sink: _Decision) -> None:
        with self._lock:
            self._engine.give_up(call, sink)
            told = self._step()
        tell(told)

    def _step(self) -> List[Callable[[], None]]:
        """Does what is due, and hands requests to the channels. Returns what to call without the
        lock. Nothing is done after the end of the client, whose threads have ended."""
        if self._stopped:
            return []
        requests, told, due = self._engine.poll()
        self._kept[:] = [self] if self._engine.permits.holds else []
        for core, request in requests:
            name = core is self._engine.leases, request.lane
            if name not in self._channels:
                self._channels[name] = _Channel(self._connection,
                                                weakref.WeakMethod(self._received))
            self._channels[name].send(core, request)
        if due != self._due:
            self._due = due
            self._changed.notify_all()
        return told

    def _notify(self) -> None:
        """Wakes the thread of the client, and the first caller that waits for each resource."""
        self._changed.notify_all()
        for waiters in self._waiters.values():
            waiters[0].notify()

    def _notify_all(self) -> None:
        """The same, and all callers: something has ended."""
        self._changed.notify_all()
        for waiters in self._waiters.values():
            for turn in waiters:
                turn.notify()

    def _received(self, core: Core, request: Request, status: int, body: Any) -> None:
        with self._lock:
            if self._stopped:
                return
            if isinstance(body, Exception):
                self._engine.fail(core, request, body)
            else:
                self._engine.answer(core, request, status, body)
            told = self._step()
            self._notify()
        tell(told)

    def __del__(self) -> None:
        if getattr(self, "_stopped", True) or os.getpid() != self._pid:
            return
        warnings.warn(f"the client {self.client_id} was not closed", ResourceWarning)
        for channel in self._channels.values():
            channel.stop()
        if self._own_lock.acquire(blocking=False):
            self._changed.notify_all()
            self._own_lock.release()


_open_clients: "weakref.WeakSet[Client]" = weakref.WeakSet()


@atexit.register
def _close_at_exit() -> None:
    """Gives back what the clients of this process have, such as those of the workers of a server
    that restarts: without this, others would wait until the leases end. All threads that are no
    daemons have ended before."""
    for client in list(_open_clients):
        with contextlib.suppress(Exception):
            client.close(EXIT_TIMEOUT)


def _run(reference: "weakref.ref[Client]", changed: threading.Condition,
         _kept: List[Client]) -> None:
    """Does what is due. A client that nobody can use any more ends, but not while it has holds:
    they must be renewed, and on_gone must be called. Then it is in _kept."""
    while True:
        with changed:
            client = reference()
            if client is None or client._stopped:
                return
            told = client._step()
            wait = (client._due - clock()) / SECOND
            client = None
            if not told and wait > 0:
                changed.wait(min(wait, 60))
        tell(told)


class _Handle:
    """What rates and gauges share."""

    def __init__(self, client: Client, resource: Resource) -> None:
        self._client, self._resource, self._is_open = client, resource, True

    def try_use(self, units: float = 1) -> bool:
        """Takes units if they may be used now. Does not wait."""
        check_units(units)
        with self._client._lock:
            if not self._is_open or self._client._stopping:
                return False
            decision = self._client._engine.leases.take(self._resource, units, clock())
        return decision == "allowed"

    def wait(self, units: float = 1, timeout: Optional[float] = None) -> bool:
        """Takes units, and waits for them up to `timeout` seconds (None: as long as it takes).
        Returns False after the timeout, or if the client is closed. More units than the capacity
        can ever have come never, so give a timeout."""
        client, resource = self._client, self._resource
        deadline, turn = deadline_in(timeout), threading.Condition(client._own_lock)
        check_units(units)
        with client._lock:
            waiters = client._waiters.setdefault(resource, deque())
            waiters.append(turn)
            start_waiting(resource, units)
            try:
                while self._is_open and not client._stopping:
                    first = waiters[0] is turn
                    if first and resource.limiter.delay(units, clock()) == 0:
                        return resource.limiter.take(units, clock()) == "allowed"
                    if time_left(deadline) <= 0:
                        return False
                    show_demand(resource)
                    turn.wait(wait_time(resource, units, deadline) if first else
                              max(0.0001, min(time_left(deadline), TURN_MAX)))
                return False
            finally:
                waiters.remove(turn)
                if not waiters:
                    del client._waiters[resource]
                stop_waiting(resource, units)
                client._notify()

    def retry_after(self, units: float = 1) -> Optional[float]:
        """Returns how many seconds after a refusal the same call can be allowed; None: never."""
        check_units(units)
        with self._client._lock:
            wait = self._client._engine.leases.retry_after(self._resource, units, clock())
        return None if wait >= 10**9 * SECOND else wait / SECOND

    def set_wants(self, wants: float) -> None:
        """Sets the wants. After this call they do not follow use."""
        with self._client._lock:
            self._client._engine.leases.set_wants(self._resource, wants, clock())
            told = self._client._step()
        tell(told)

    def info(self) -> ResourceInfo:
        """Returns the state of the resource."""
        with self._client._lock:
            return self._client._engine.leases.read(self._resource, clock())

    def close(self) -> None:
        """Ends this opening. The last one gives the lease back."""
        with self._client._lock:
            if self._is_open and not self._client._stopping:
                self._client._engine.leases.close(self._resource, clock())
            self._is_open = False
            told = self._client._step()
            self._client._notify_all()
        tell(told)

    def __exit__(self, *_: object) -> None:
        self.close()


class Rate(_Handle):
    """Units per second."""

    def __enter__(self) -> "Rate":
        return self


class Gauge(_Handle):
    """Units in use at once. What is taken must be given back."""

    def __enter__(self) -> "Gauge":
        return self

    def release(self, units: float = 1) -> None:
        """Gives units back. Raises ValueError if more are given back than are in use."""
        with self._client._lock:
            self._resource.limiter.release(units)  # type: ignore[union-attr]
            self._client._notify()

    @contextlib.contextmanager
    def use(self, units: float = 1, timeout: Optional[float] = None) -> Iterator[None]:
        """Takes units for a block. Raises TimeoutError if they do not come in time, and
        RuntimeError if the client is closed."""
        if not self.wait(units, timeout):
            self._client._check_open()
            raise TimeoutError(f"{self._resource.options.resource_id}: no units in time")
        try:
            yield
        finally:
            self.release(units)


class Hold:
    """Units that stay taken until they are released. As a context manager it raises Refused if
    they were refused, and releases them at the end of the block.

    decision: what the server, or the fallback, has decided. A grant of the fallback holds nothing.
    """

    def __init__(self, client: Client, decision: Acquired,
                 permit: Optional[Permit] = None) -> None:
        self._client, self.decision, self._permit = client, decision, permit
        self.granted = decision.granted
        self._settled = False

    def left(self) -> float:
        """Returns the seconds until the units may not be used any more; 0: now."""
        if not self.granted or not self.decision.hold:
            return float("inf") if self.granted else 0.0
        held = self._read()
        if held.gone:
            return 0.0
        if held.ends_at is None:
            return float("inf")
        return max(0.0, self._client._engine.left(held.ends_at))

    def units(self) -> Sequence[float]:
        """Returns the units of each item that are held now."""
        return self._read().units if self.decision.hold else tuple(self.decision.units)

    def release(self, keep: Optional[Sequence[float]] = None) -> None:
        """Gives the units back. Stop using them before. keep: what is kept of each item."""
        with self._client._lock:
            if keep is None:
                self._client._engine.watch(self.decision.hold, None)
            self._client._engine.permits.release(self.decision.hold, keep, clock())
            told = self._client._step()
        tell(told)

    def settle(self, costs: Union[float, Sequence[float]],
               timeout: float = 0) -> Optional[Acquired]:
        """Says what a hold with settle_within has really cost: of the only item, or of each item;
        and releases it. With a timeout the call waits for the result. Later calls have no
        effect."""
        if self._permit is None or not self._permit.settle_within:
            raise ValueError("settle: the hold has no settle_within")
        items = with_costs(self._permit.items, costs)
        with self._client._lock:
            self._client._engine.watch(self.decision.hold, None)
        out = _settle(self, items, timeout)
        self.release()
        return out

    def transfer(self, amounts: Optional[Sequence[float]] = None, *, timeout: float = 1,
                 time_to_live: float = 0) -> Acquired:
        """Moves units into a transfer. Who learns its transfer_id can seize them."""
        sink = _Decision()
        with self._client._lock:
            self._client._check_open()
            self._client._engine.permits.transfer(self.decision.hold, amounts, timeout, sink,
                                                  clock(), time_to_live)
            told = self._client._step()
        tell(told)
        return sink.wait()

    def _read(self) -> Held:
        with self._client._lock:
            return self._client._engine.permits.hold(self.decision.hold)

    def __enter__(self) -> "Hold":
        if not self.granted:
            raise Refused(self.decision)
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Reservation:
    """An amount that was charged before the cost is known. As a context manager it raises Refused
    if it was refused, and settles `cost` at the end of the block. If an exception ends the block,
    or nobody sets the cost, it costs what was reserved.

    cost: of the first item. costs: of each item.
    """

    def __init__(self, client: Client, permit: Permit, decision: Acquired) -> None:
        self._client, self._permit, self.decision = client, permit, decision
        self.granted = decision.granted
        self.costs = [item.cost for item in permit.items]
        self._settled = False

    @property
    def cost(self) -> float:
        return self.costs[0]

    @cost.setter
    def cost(self, cost: float) -> None:
        self.costs[0] = cost

    def settle(self, costs: Union[float, Sequence[float], None] = None,
               timeout: float = 0) -> Optional[Acquired]:
        """Says what the action has really cost: of the only item, or of each item. With a timeout
        the call waits for the result. Later calls have no effect. After close() it raises
        RuntimeError: then it costs what was reserved."""
        items = with_costs(self._permit.items, self.costs if costs is None else costs)
        return _settle(self, items, timeout)

    def __enter__(self) -> "Reservation":
        if not self.granted:
            raise Refused(self.decision)
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if error and self._client._stopping:
            return  # it costs what was reserved, also without a settle
        self.settle([item.cost for item in self._permit.items] if error else None)


def _settle(owner: Union[Hold, Reservation], items: List[Item],
            timeout: float) -> Optional[Acquired]:
    sink, client = _Decision(), owner._client
    with client._lock:
        if owner._settled:
            return None
        client._check_open()
        client._engine.permits.settle(owner.decision.reservation, items, timeout, sink, clock())
        owner._settled = True
        told = client._step()
    tell(told)
    return sink.wait() if timeout > 0 else None
