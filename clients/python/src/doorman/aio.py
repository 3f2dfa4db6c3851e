"""A client for asyncio. All its methods are called in the thread of one event loop.

    async with AsyncClient(["http://127.0.0.1:15050"]) as client:
        permit = await client.acquire("login", "alice")
"""
from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
import warnings
from collections import deque
from typing import (Any, AsyncIterator, Callable, Deque, Dict, List, Mapping, Optional, Sequence,
                    Set, Tuple, Union)
from urllib.parse import urlsplit

from ._base import SECOND, Request
from ._calls import Acquired, Call, Held, Item, Items, Permit
from ._engine import (BODY_BYTES_MAX, IDLE_MAX, Connection, Engine, Sink, Token, check_units, clock,
                      connection_of, deadline_in, show_demand, start_waiting, stop_waiting, tell,
                      time_left, to_items, wait_time, warn, with_costs)
from ._metrics import write_metrics
from .client import CLOSE_TIMEOUT, TURN_MAX, parse
from .errors import Refused
from .leases import Resource, ResourceInfo, ResourceOptions
from .permits import PermitPolicy


class HttpError(OSError):
    """A server has sent something that is no response of HTTP."""


class _Streams:
    """A connection of HTTP/1.1 with one request at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._streams: Optional[Tuple[asyncio.StreamReader, asyncio.StreamWriter]] = None
        self._address, self._used_at = "", 0.0

    async def post(self, request: Request) -> Tuple[int, Any]:
        """Sends a request. Returns the status and the parsed body."""
        fresh = time.monotonic() - self._used_at < IDLE_MAX and request.address == self._address
        streams, self._streams = self._streams, None
        if streams and fresh:
            try:
                return await self._exchange(streams, request)
            except (ConnectionError, asyncio.IncompleteReadError) as error:
                if getattr(error, "partial", b""):
                    raise
                streams[1].close()  # the server has closed an idle connection: no failure
        elif streams:
            streams[1].close()
        self._address = request.address
        return await self._exchange(await self._connect(request.address), request)

    async def close(self) -> None:
        """Closes the connection, and waits up to a second until it is closed."""
        streams, self._streams = self._streams, None
        if streams:
            streams[1].close()
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                await asyncio.wait_for(streams[1].wait_closed(), 1)

    async def _connect(self, address: str) -> Any:
        url = urlsplit(address)
        secure = url.scheme.lower() == "https"
        context = self._connection.context() if secure else None
        port = url.port or (443 if secure else 80)
        return await asyncio.open_connection(url.hostname, port, ssl=context,
                                             limit=BODY_BYTES_MAX)

    async def _exchange(self, streams: Any, request: Request) -> Tuple[int, Any]:
        reader, writer = streams
        try:
            writer.write(self._head(request))
            await writer.drain()
            status, headers = await _read_head(reader)
            text = await _read_body(reader, headers)
        except BaseException:
            writer.close()
            raise
        self._used_at = time.monotonic()
        framed = "content-length" in headers or "transfer-encoding" in headers
        if framed and headers.get("connection", "").lower() != "close":
            self._streams = streams
        else:
            writer.close()
        return status, parse(text)

    def _head(self, request: Request) -> bytes:
        url, body = urlsplit(request.address), json.dumps(request.message).encode()
        headers = {"Host": url.netloc, "Content-Length": str(len(body)),
                   **self._connection.all_headers()}
        lines = [f"POST {url.path.rstrip('/')}/v1/{request.method} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if any("\r" in line or "\n" in line for line in lines):
            raise ValueError("headers: must not contain a line break")
        return "\r\n".join([*lines, "", ""]).encode() + body


async def _read_head(reader: asyncio.StreamReader) -> Tuple[int, Dict[str, str]]:
    text = await reader.readuntil(b"\r\n\r\n")
    lines = text.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
        raise HttpError(f"this is no status of HTTP: {lines[0][:100]}")
    pairs = (line.partition(":") for line in lines[1:] if line)
    return int(words[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return await _read_chunks(reader)
    length = headers.get("content-length")
    if length is None:
        text = await reader.read(BODY_BYTES_MAX + 1)
    elif length.isdigit() and int(length) <= BODY_BYTES_MAX:
        return await reader.readexactly(int(length))
    else:
        raise HttpError(f"the Content-Length is not valid: {length[:100]}")
    if len(text) > BODY_BYTES_MAX:
        raise HttpError("the response is too large")
    return text


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    text = b""
    while True:
        line = (await reader.readuntil(b"\r\n")).split(b";")[0].strip()
        try:
            size = int(line, 16)
        except ValueError:
            raise HttpError("a chunk has no valid size") from None
        if size < 0 or len(text) + size > BODY_BYTES_MAX:
            raise HttpError("the response is too large")
        text += await reader.readexactly(size)
        if size == 0:
            while await reader.readuntil(b"\r\n") != b"\r\n":  # trailers
                pass
            return text
        await reader.readexactly(2)


class _Decision(Sink):
    def __init__(self) -> None:
        self.future: "asyncio.Future[Acquired]" = asyncio.get_running_loop().create_future()

    def resolve(self, acquired: Acquired) -> None:
        if not self.future.done():
            self.future.set_result(acquired)


class _Turn:
    """What tasks wait for until something may have changed."""

    def __init__(self) -> None:
        self._waiting: Set["asyncio.Future[None]"] = set()

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self, timeout: float) -> None:
        future: "asyncio.Future[None]" = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:  # wait_for() of old Pythons ignores a cancellation in the turn of a result
            await asyncio.wait({future}, timeout=timeout)
        finally:
            self._waiting.discard(future)


class AsyncClient:
    """Leases, permits, holds and reservations, for asyncio. The options are those of Client. Create
    it in a coroutine, or use it with `async with`."""

    def __init__(self, addresses: Union[str, Sequence[str]], *, token: Token = None,
                 tls: Union[ssl.SSLContext, str, None] = None,
                 headers: Mapping[str, str] = {}, client_id: Optional[str] = None,
                 permits: PermitPolicy = PermitPolicy(), lease_timeout: float = 5,
                 permit_timeout: float = 1) -> None:
        given = [addresses] if isinstance(addresses, str) else addresses
        self._engine = Engine(given, client_id, lease_timeout, permit_timeout, permits)
        self._connection = connection_of(token, tls, headers)
        self._channels: Dict[Any, _Streams] = {}
        self._tasks: Dict[Any, "asyncio.Task[None]"] = {}  # of the requests under way
        self._sending: Set["asyncio.Task[None]"] = set()  # also those that were cancelled
        # Callers that wait for units of each resource, in their order. Only the first one tries.
        self._waiters: Dict[Resource, Deque[_Turn]] = {}
        self._changed = _Turn()  # of close()
        self._timer: Optional[asyncio.TimerHandle] = None
        self._stopping = self._stopped = False

    @property
    def client_id(self) -> str:
        """The name of this client at the servers."""
        return self._engine.client_id

    def rate(self, resource_id: str, *, wants: Optional[float] = None,
             wants_minimum: Optional[float] = None,
             wants_maximum: float = ResourceOptions.wants_maximum,
             wants_initial: Optional[float] = None, window: float = ResourceOptions.window,
             priority: int = ResourceOptions.priority, burst: float = ResourceOptions.burst,
             burst_units: float = 0, fallback: str = ResourceOptions.fallback,
             safe_capacity: Optional[float] = None, shadow: bool = False) -> "AsyncRate":
        """Opens a rate, in units per second. For the options see ResourceOptions."""
        return AsyncRate(self, self._open(ResourceOptions(
            resource_id, "rate", wants, wants_minimum, wants_maximum, wants_initial, window,
            priority, burst, burst_units, fallback, safe_capacity, shadow)))

    def gauge(self, resource_id: str, *, wants: Optional[float] = None,
              wants_minimum: Optional[float] = None,
              wants_maximum: float = ResourceOptions.wants_maximum,
              wants_initial: Optional[float] = None, window: float = ResourceOptions.window,
              priority: int = ResourceOptions.priority, burst: float = ResourceOptions.burst,
              burst_units: float = 0, fallback: str = ResourceOptions.fallback,
              safe_capacity: Optional[float] = None, shadow: bool = False) -> "AsyncGauge":
        """Opens a gauge: units in use at once. For the options see ResourceOptions."""
        return AsyncGauge(self, self._open(ResourceOptions(
            resource_id, "gauge", wants, wants_minimum, wants_maximum, wants_initial, window,
            priority, burst, burst_units, fallback, safe_capacity, shadow)))

    async def acquire(self, resource: Union[str, Items], key: str = "", cost: float = 1, *,
                      min: Optional[float] = None, timeout: float = 1, max_wait: float = 0,
                      equal: bool = False, detail: bool = False) -> Acquired:
        """Asks for a permit: see Client.acquire."""
        permit = Permit(to_items(resource, key, cost, min), max_wait, equal, detail)
        return await self._acquire(permit, timeout)

    async def hold(self, resource: Union[str, Items], key: str = "", cost: float = 1, *,
                   min: Optional[float] = None, timeout: Optional[float] = None,
                   max_wait: float = 0, time_to_live: float = 0, priority: int = 1,
                   share: bool = False, settle_within: float = 0,
                   on_gone: Optional[Callable[[Held], None]] = None) -> "AsyncHold":
        """Asks for units that stay taken until they are released: see Client.hold. A task that is
        cancelled while it waits gives up its place."""
        permit = Permit(to_items(resource, key, cost, min), max_wait, hold=True,
                        time_to_live=time_to_live, priority=priority, share=share,
                        settle_within=settle_within)
        longest = max_wait + 5 if timeout is None else timeout
        return AsyncHold(self, await self._acquire(permit, longest, on_gone), permit)

    async def reserve(self, resource: Union[str, Items], key: str = "", cost: float = 1, *,
                      settle_within: float = 60, timeout: float = 1,
                      detail: bool = False) -> "AsyncReservation":
        """Charges what an action may cost, before its cost is known: see Client.reserve."""
        permit = Permit(to_items(resource, key, cost, None), detail=detail,
                        settle_within=settle_within)
        return AsyncReservation(self, permit, await self._acquire(permit, timeout))

    def report(self, resource_id: str, key: str = "", cost: float = 1) -> None:
        """Says what an action has cost. Does not wait. Negative: units come back."""
        self._check_open()
        self._engine.permits.report(Item(resource_id, key), cost, clock())
        self._step()

    async def seize(self, transfer_id: int, *, timeout: float = 1, time_to_live: float = 0,
                    on_gone: Optional[Callable[[Held], None]] = None) -> "AsyncHold":
        """Makes the units of a transfer a hold of this client. A task that is cancelled while it
        waits releases them."""
        self._check_open()
        sink = _Decision()
        call = self._engine.permits.seize(transfer_id, timeout, sink, clock(), time_to_live)
        return AsyncHold(self, await self._wait_for(call, sink, on_gone))

    def kill_switch(self, on: bool) -> None:
        """While it is on, nothing is refused. Refusals are still counted."""
        self._engine.kill_switch(on)
        self._step()
        self._notify()

    def counts(self) -> Mapping[str, float]:
        """Returns the counters of the permits of this client."""
        return self._engine.permits.read()

    def metrics(self) -> str:
        """Returns all counters in the text format of Prometheus."""
        return write_metrics(self._engine)

    async def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Gives all leases and holds back. Waits up to `timeout` seconds. What servers do not learn
        ends by itself."""
        if not self._stopping:
            self._stopping = True
            self._engine.stop()
            self._step()
            self._notify_all()
        deadline = deadline_in(timeout)
        while not (self._stopped or self._engine.is_idle()) and time_left(deadline) > 0:
            await self._changed.wait(time_left(deadline))
        self._stopped = True
        if self._timer:
            self._timer.cancel()
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)
        for channel in self._channels.values():
            await channel.close()
        await asyncio.sleep(0)  # connections of cancelled requests close in the next turn

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ---- private

    def __del__(self) -> None:
        if not getattr(self, "_stopping", True):
            warnings.warn(f"the client {self.client_id} was not closed", ResourceWarning)

    def _check_open(self) -> None:
        if self._stopping:
            raise RuntimeError("the client is closed")

    def _open(self, options: ResourceOptions) -> Resource:
        self._check_open()
        resource = self._engine.open(options)
        self._step()
        return resource

    async def _acquire(self, permit: Permit, timeout: float,
                       on_gone: Optional[Callable[[Held], None]] = None) -> Acquired:
        self._check_open()
        sink = _Decision()
        call = self._engine.permits.acquire(permit, timeout, sink, clock())
        return await self._wait_for(call, sink, on_gone)

    async def _wait_for(self, call: Call, sink: _Decision,
                        on_gone: Optional[Callable[[Held], None]]) -> Acquired:
        """Waits for a decision. If the task is cancelled, what the call gets is given back."""
        self._engine.watch(call.number, on_gone, sink)
        self._step()
        try:
            return await asyncio.shield(sink.future)
        except asyncio.CancelledError:
            self._engine.give_up(call, sink)
            self._step()
            raise

    def _step(self) -> None:
        """Does what is due, sends requests, and plans when to do it again. Does nothing after the
        end of the client."""
        if self._stopped:
            return
        requests, told, due = self._engine.poll()
        for core, request in requests:
            name = core is self._engine.leases, request.lane
            before = self._tasks.get(name)
            if before:
                warn("a request before %s: no response in time", request.method)
                before.cancel()  # the core has given this request up
            channel = self._channels.get(name)
            if channel is None or before:
                channel = self._channels[name] = _Streams(self._connection)
            task = asyncio.get_running_loop().create_task(
                self._send(name, channel, core, request))
            self._tasks[name] = task
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
        if self._timer:
            self._timer.cancel()
        wait = max(0, min(due - clock(), 60 * SECOND)) / SECOND
        self._timer = asyncio.get_running_loop().call_later(wait, self._work)
        tell(told)

    def _work(self) -> None:
        self._step()
        self._notify()

    async def _send(self, name: Any, channel: _Streams, core: Any, request: Request) -> None:
        try:
            post = channel.post(request)
            status, body = await asyncio.wait_for(post, request.timeout / SECOND)
            self._ended(name)
            self._engine.answer(core, request, status, body)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # of the network, TLS or HTTP
            self._ended(name)
            self._engine.fail(core, request, error)
        self._step()
        self._notify()

    def _ended(self, name: Any) -> None:
        if self._tasks.get(name) is asyncio.current_task():
            del self._tasks[name]

    def _notify(self) -> None:
        """Wakes close(), and the first task that waits for each resource."""
        self._changed.wake()
        for waiters in self._waiters.values():
            waiters[0].wake()

    def _notify_all(self) -> None:
        """The same, and all tasks that wait: something has ended."""
        self._changed.wake()
        for waiters in self._waiters.values():
            for turn in waiters:
                turn.wake()


class _AsyncHandle:
    """What rates and gauges share."""

    def __init__(self, client: AsyncClient, resource: Resource) -> None:
        self._client, self._resource, self._is_open = client, resource, True

    def try_use(self, units: float = 1) -> bool:
        """Takes units if they may be used now. Does not wait."""
        check_units(units)
        if not self._is_open or self._client._stopping:
            return False
        return self._client._engine.leases.take(self._resource, units, clock()) == "allowed"

    async def wait(self, units: float = 1, timeout: Optional[float] = None) -> bool:
        """Takes units, and waits for them: see the method of the client with threads."""
        client, resource, turn = self._client, self._resource, _Turn()
        deadline = deadline_in(timeout)
        check_units(units)
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
                await turn.wait(wait_time(resource, units, deadline) if first else
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
        wait = self._client._engine.leases.retry_after(self._resource, units, clock())
        return None if wait >= 10**9 * SECOND else wait / SECOND

    def set_wants(self, wants: float) -> None:
        """Sets the wants. After this call they do not follow use."""
        self._client._engine.leases.set_wants(self._resource, wants, clock())
        self._client._step()

    def info(self) -> ResourceInfo:
        """Returns the state of the resource."""
        return self._client._engine.leases.read(self._resource, clock())

    def close(self) -> None:
        """Ends this opening. The last one gives the lease back."""
        if self._is_open and not self._client._stopping:
            self._client._engine.leases.close(self._resource, clock())
            self._client._step()
        self._is_open = False
        self._client._notify_all()


class AsyncRate(_AsyncHandle):
    """Units per second."""


class AsyncGauge(_AsyncHandle):
    """Units in use at once. What is taken must be given back."""

    def release(self, units: float = 1) -> None:
        """Gives units back. Raises ValueError if more are given back than are in use."""
        self._resource.limiter.release(units)  # type: ignore[union-attr]
        self._client._notify()

    @contextlib.asynccontextmanager
    async def use(self, units: float = 1, timeout: Optional[float] = None) -> AsyncIterator[None]:
        """Takes units for a block. Raises TimeoutError if they do not come in time, and
        RuntimeError if the client is closed."""
        if not await self.wait(units, timeout):
            self._client._check_open()
            raise TimeoutError(f"{self._resource.options.resource_id}: no units in time")
        try:
            yield
        finally:
            self.release(units)


class AsyncHold:
    """Units that stay taken until they are released. With `async with` it raises Refused if they
    were refused, and releases them at the end of the block. See Hold."""

    def __init__(self, client: AsyncClient, decision: Acquired,
                 permit: Optional[Permit] = None) -> None:
        self._client, self.decision, self.granted = client, decision, decision.granted
        self._permit, self._settled = permit, False

    def left(self) -> float:
        """Returns the seconds until the units may not be used any more; 0: now."""
        if not self.granted or not self.decision.hold:
            return float("inf") if self.granted else 0.0
        held = self._client._engine.permits.hold(self.decision.hold)
        if held.gone:
            return 0.0
        if held.ends_at is None:
            return float("inf")
        return max(0.0, self._client._engine.left(held.ends_at))

    def units(self) -> Sequence[float]:
        """Returns the units of each item that are held now."""
        if not self.decision.hold:
            return tuple(self.decision.units)
        return self._client._engine.permits.hold(self.decision.hold).units

    def release(self, keep: Optional[Sequence[float]] = None) -> None:
        """Gives the units back. Stop using them before. keep: what is kept of each item."""
        if keep is None:
            self._client._engine.watch(self.decision.hold, None)
        self._client._engine.permits.release(self.decision.hold, keep, clock())
        self._client._step()

    async def settle(self, costs: Union[float, Sequence[float]],
                     timeout: float = 0) -> Optional[Acquired]:
        """Says what a hold with settle_within has really cost, and releases it: see Hold.settle."""
        if self._permit is None or not self._permit.settle_within:
            raise ValueError("settle: the hold has no settle_within")
        items = with_costs(self._permit.items, costs)
        self._client._engine.watch(self.decision.hold, None)
        result = _settle(self, items, timeout)
        self.release()
        return await result.future if result else None

    async def transfer(self, amounts: Optional[Sequence[float]] = None, *, timeout: float = 1,
                       time_to_live: float = 0) -> Acquired:
        """Moves units into a transfer. Who learns its transfer_id can seize them."""
        self._client._check_open()
        sink = _Decision()
        self._client._engine.permits.transfer(self.decision.hold, amounts, timeout, sink, clock(),
                                              time_to_live)
        self._client._step()
        return await sink.future

    async def __aenter__(self) -> "AsyncHold":
        if not self.granted:
            raise Refused(self.decision)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release()


class AsyncReservation:
    """An amount that was charged before the cost is known. With `async with` it raises Refused if
    it was refused, and settles `cost` at the end of the block. See Reservation."""

    def __init__(self, client: AsyncClient, permit: Permit, decision: Acquired) -> None:
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

    async def settle(self, costs: Union[float, Sequence[float], None] = None,
                     timeout: float = 0) -> Optional[Acquired]:
        """Says what the action has really cost: of the only item, or of each item. With a timeout
        the call waits for the result. Later calls have no effect. After close() it raises
        RuntimeError: then it costs what was reserved."""
        items = with_costs(self._permit.items, self.costs if costs is None else costs)
        result = _settle(self, items, timeout)
        return await result.future if result else None

    async def __aenter__(self) -> "AsyncReservation":
        if not self.granted:
            raise Refused(self.decision)
        return self

    async def __aexit__(self, error: object, *_: object) -> None:
        if error and self._client._stopping:
            return  # it costs what was reserved, also without a settle
        await self.settle([item.cost for item in self._permit.items] if error else None)


def _settle(owner: Union[AsyncHold, AsyncReservation], items: List[Item],
            timeout: float) -> Optional[_Decision]:
    """Settles. Returns what gets the result, if there is a timeout to wait for it."""
    client = owner._client
    if owner._settled:
        return None
    client._check_open()
    sink = _Decision()
    client._engine.permits.settle(owner.decision.reservation, items, timeout, sink, clock())
    owner._settled = True
    client._step()
    return sink if timeout > 0 else None
