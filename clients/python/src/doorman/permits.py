"""The core of a client of permits: it has no clock, no thread and no connection.

    core = PermitCore("web-7", ["http://127.0.0.1:15050"], now)
    core.acquire(Permit((Item("login", "alice"),)), timeout=1, context=me, now=now)
    while (request := core.next(now)) is not None:
        ...  # send it, and pass what comes to core.response or core.failed
    while (acquired := core.decision(now)) is not None:
        ...  # tell acquired.context
    core.due()  # when to call next() again

Times are in nanoseconds of any clock that never goes back. `Client` and `AsyncClient` have a core,
so most programs do not need this module. The rules (P) are those of doorman_permits.h.
"""
from __future__ import annotations

import heapq
import itertools
import random
from collections import OrderedDict, deque
from dataclasses import asdict, dataclass, replace
from typing import Any, Deque, Dict, List, Mapping, Optional, Sequence, Tuple

from ._base import (AMOUNT_MAX, GRAINS, NEVER, SECOND, Addresses, InvalidResponse,
                    MessageRefused, Reader, Request, check_amount, check_amounts, check_client_id,
                    check_duration, is_tls, read_body, seconds)
from ._calls import (METHODS, REQUEST_ID_MAX, Acquired, Batch, Call, Decision, Held, Hold,
                     HoldResult, Item, Kind, Permit, Reported, Sent, Settled, State,
                     put_entry, read_decision, read_hold_result, read_reported, read_settled)
from ._limiters import Limit, LocalLimiters, grains
from ._shards import ShardMap, read_map, usable
from ._stock import Stocks

MESSAGE_ITEMS, MESSAGE_TEXT, DETAILS_MAX = 4000, 256 << 10, 100
REFUSALS_MAX, COPIES_MAX, CALLS_MAX = 10_000, 10_000, 100_000
TRANSFER_ID_MAX = 1 << 53
REPORTS_MAX, SETTLES_MAX, SETTLE_FAILURES = 10_000, 10_000, 60
SETTLE_WAIT, SETTLE_TIME, REPORT_TIME = 300 * SECOND, 45 * SECOND, 660 * SECOND
RELEASE_TIME, RENEWAL_GAP = 60 * SECOND, SECOND // 100
MESSAGE_WAIT_MIN = SECOND // 10
BREAKER_FAILURES, DOUBLINGS, DOUBLINGS_ALIVE = 5, 12, 2
MOVED_PAUSE, MOVES_MAX = SECOND // 20, 10
MAP_PAUSE = 60 * SECOND  # after a server has refused to tell its map
FALLBACK_KINDS = (Kind.PERMIT, Kind.WAIT, Kind.REPORT, Kind.SEIZURE)
NOTHING = Permit((Item("-"),))


@dataclass
class Counts:
    """What a core has done. The names are those of doorman_permit_client_info."""

    granted: int = 0
    refused: int = 0
    refused_locally: int = 0
    prefetch_granted: int = 0
    prefetched: float = 0
    lapsed: float = 0
    fallback_granted: int = 0
    fallback_refused: int = 0
    bypassed: int = 0
    timed_out: int = 0
    reported: int = 0
    lost: int = 0
    uncharged: float = 0
    settled: int = 0
    unsettled: int = 0
    messages: int = 0
    failures: int = 0
    pauses: int = 0
    holds_lost: int = 0
    moved: int = 0


@dataclass(frozen=True)
class PermitPolicy:
    """How a client treats its permits. Durations are in seconds.

    fallback: what a permit gets if no server decides: "open" (granted), "closed" (refused) or
    "local" (the limit `local` of this process, for each resource and key).
    shadow: each permit is granted at once, and a copy is sent to count refusals.
    drift: at least that of the servers. prefetch: how far ahead units are taken (P24); 0: never.
    max_pause: the longest time for which the breaker opens.
    report_once: reports have a request_id, so each counts once.
    lanes: how many permits may wait in queues of a server at the same time.
    """

    fallback: str = "open"
    local: Optional[Limit] = None
    shadow: bool = False
    drift: float = 0.05
    prefetch: float = 0
    max_pause: float = 30
    report_once: bool = False
    lanes: int = 4

    def __post_init__(self) -> None:
        if self.fallback not in ("open", "closed", "local"):
            raise ValueError("fallback: must be open, closed or local")
        if (self.fallback == "local") != (self.local is not None):
            raise ValueError("local: is needed for the fallback local, and only there")
        if not 0 < self.drift <= 1:
            raise ValueError("drift: must be above 0, and at most 1")
        if self.prefetch and not 0.001 <= self.prefetch <= 60:
            raise ValueError("prefetch: must be 0, or from 1 ms to 60 s")
        if not 1 <= self.max_pause <= 3600:
            raise ValueError("max_pause: must be from 1 s to 3600 s")
        if not 0 <= self.lanes <= 64:
            raise ValueError("lanes: must be from 0 to 64")


@dataclass
class _Refusal:
    """A refusal that is still valid (P22)."""

    until: int
    least: float
    max_wait: int
    retry_at: int
    reason: Optional[str]
    limit: Optional[str]
    quota: float  # of the limit, as window, if the refusal had its details; else 0
    window: float


class PermitCore:
    """Asks servers for permits on behalf of many callers."""

    def __init__(self, client_id: str, addresses: Sequence[str], now: int, *,
                 policy: PermitPolicy = PermitPolicy(), request_timeout: float = 1,
                 first_number: Optional[int] = None) -> None:
        self.client_id, self.policy, self.now = check_client_id(client_id), policy, now
        self.message_timeout = check_duration("request_timeout", request_timeout, 0.001)
        self.main = Batch(None, Addresses(list(addresses)))
        self.lanes = [Batch(i, Addresses(list(addresses)), is_lane=True, source=self.main)
                      for i in range(policy.lanes)]
        self.nodes: List[Batch] = []  # those of the map, and unused ones
        self.by_name: Dict[str, Batch] = {}  # those of the map
        self.map: Optional[ShardMap] = None
        self.map_batch: Optional[Batch] = None  # asks for a map next, or now
        self.map_ask_at = 0  # no server is asked for a map before this time
        self.lane_turn = 0  # the index of the batch whose permit a lane has sent last
        number = random.randrange(REQUEST_ID_MAX) if first_number is None else first_number - 1
        self.last_number = number
        self.local = LocalLimiters(policy.local) if policy.local else None
        self.killed, self.counts = False, Counts()
        self.waiting: Dict[Call, None] = {}
        self.decided: Deque[Call] = deque()
        self.changes: Deque[Hold] = deque()
        self.timers: List[Tuple[int, int, Any]] = []
        self.timer_order = itertools.count()
        self.holds: Dict[int, Hold] = {}
        self.refusals: "OrderedDict[Tuple[str, str], _Refusal]" = OrderedDict()
        self.copies: "OrderedDict[int, int]" = OrderedDict()
        self.learning: Dict[Call, None] = {}
        self.calls: Dict[Call, None] = {}  # without a result, except actions and prefetches
        self.settles = 0
        self.stocks = Stocks(check_duration("prefetch", policy.prefetch), self.counts)

    # ---- the calls of the application

    def acquire(self, permit: Permit, timeout: float, context: Any, now: int) -> Call:
        """Asks for a permit. decision() returns the decision within `timeout` seconds. At 0 the
        call waits for no server."""
        self._tick(now)
        limit = check_duration("timeout", timeout)
        hold = self._new_hold(permit) if permit.hold else None
        waits = hold is not None and permit.max_wait > 0
        call = Call(Kind.WAIT if waits else Kind.PERMIT, permit, context)
        call.alone = waits
        if hold:
            self._ask(call, hold)
        elif permit.settle_within:
            call.number = self._number()
        call.deadline = self.now + (limit or self.message_timeout)
        if self.policy.shadow or self.killed:
            self._bypass(call)
        elif not self._spend_stock(call):
            if self._start(call) and not limit:
                self.counts.timed_out += 1
                self._fall_back(call)
        return call

    def report(self, item: Item, cost: float, now: int) -> None:
        """Says what an action has really cost. Negative: units come back."""
        self._tick(now)
        check_amount("cost", cost, -AMOUNT_MAX)
        call = Call(Kind.REPORT, Permit((replace(item, cost=0, min=None),)), attended=False)
        call.cost = cost
        if self.policy.report_once:
            call.number = self._number()
        self._start(call)

    def settle(self, reservation: int, items: Sequence[Item], timeout: float, context: Any,
               now: int) -> None:
        """Says what a reservation has really cost (P27), and releases the hold of the same permit.
        With a timeout of more than 0, decision() returns the result. A reservation of 0 has no
        effect."""
        self._tick(now)
        result: Optional[Call] = None
        limit = check_duration("timeout", timeout)
        if limit > 0:
            result = Call(Kind.SETTLE, Permit(tuple(items)), context)
            result.deadline = self.now + limit
            self.calls[result] = None
        if self._settle_is_local(reservation, result):
            return
        call = self._queue_settle(items, reservation)
        if result:
            call.peer, result.peer = result, call
            result.acquired.by = "fallback"
            self._move(result, State.WAITING)
            self._set_timer(result, result.deadline)
        self.release(reservation, None, self.now)

    def release(self, number: int, keep: Optional[Sequence[float]], now: int) -> None:
        """Releases a hold, also before the decision on its permit.
        keep: what is kept of each item; None: nothing."""
        self._tick(now)
        check_amounts("keep", keep)
        hold = self.holds.get(number)
        if hold is None:
            return
        self._set_changed(hold, False)
        call = hold.call
        if hold.state == "asked":
            self._end_hold(hold, hold.was_sent)
        elif hold.state == "in_use":
            kept = [*(keep or ()), *[0.0] * len(hold.amounts)]
            hold.amounts = [min(has, left) for has, left in zip(hold.amounts, kept)]
            hold.must_release = True
            if hold.is_empty():
                self._end_hold(hold, True)
        if call and hold.state == "ending":
            self._revoke(call)
        self._plan(hold)

    def transfer(self, number: int, amounts: Optional[Sequence[float]], timeout: float,
                 context: Any, now: int, time_to_live: float = 0) -> None:
        """Moves units of a hold into a transfer, which another client can seize."""
        self._tick(now)
        check_amounts("amounts", amounts)
        check_duration("time_to_live", time_to_live)
        hold = self.holds.get(number)
        result = Call(Kind.TRANSFER, NOTHING, context)
        result.deadline = self.now + check_duration("timeout", timeout, 0.001)
        self.calls[result] = None
        moved = self._take_units(hold, amounts)
        if hold is None or not any(moved):
            self._revoke(result)
            return
        call = Call(Kind.TRANSFER, NOTHING, attended=False, hold=hold, amounts=moved,
                    number=self._number(), time_to_live=time_to_live)
        result.peer, call.peer = call, result
        result.acquired.by = "fallback"
        hold.transfers += 1
        self.calls[call] = None
        self._move(call, State.QUEUED)
        self._move(result, State.WAITING)
        self._set_timer(result, result.deadline)
        self._plan(hold)

    def seize(self, transfer_id: int, timeout: float, context: Any, now: int,
              time_to_live: float = 0) -> Call:
        """Makes the units of a transfer a hold of this client."""
        self._tick(now)
        if isinstance(transfer_id, bool) or not isinstance(transfer_id, int) or not (
                0 < transfer_id <= TRANSFER_ID_MAX):
            raise ValueError("transfer_id: must be an integer, as a transfer has returned it")
        check_duration("time_to_live", time_to_live)
        call = Call(Kind.SEIZURE, NOTHING, context, transfer_id=transfer_id,
                    time_to_live=time_to_live)
        call.deadline = self.now + check_duration("timeout", timeout, 0.001)
        hold = self._new_hold(None)
        hold.transfer_id = transfer_id
        self._ask(call, hold)
        self._start(call)
        return call

    def hold(self, number: int) -> Held:
        """Returns the state of a hold."""
        hold = self.holds.get(number)
        return hold.describe() if hold else Held(number, True)

    def kill_switch(self, on: bool) -> None:
        """While it is on, each permit is granted at once, and a copy is sent (P25)."""
        if on:
            for call in self._attended_calls():
                self._end_granted(call)
        self.killed = on

    def stop(self, now: int) -> None:
        """Refuses all calls that wait, and releases all holds. Run the loop until is_idle()."""
        self._tick(now)
        for call in self._attended_calls():
            if call.state != State.DECIDED:
                self._fall_back(call, "closed")
        for number in list(self.holds):
            self.release(number, None, self.now)

    def is_idle(self) -> bool:
        """Returns whether nothing is left to send."""
        return not self.calls and not self.holds

    def read(self) -> Mapping[str, float]:
        """Returns the counters, and how many calls wait, and how many holds there are."""
        waiting = sum(not call.prefetches for call in self.calls)
        return {**asdict(self.counts), "waiting": waiting, "holds": len(self.holds),
                "is_pausing": int(self._is_open())}

    # ---- the loop

    def due(self) -> int:
        """Returns when next() wants to be called, or NEVER."""
        if self.decided or self.changes:
            return self.now
        while self.timers and self._is_stale(*self.timers[0]):
            heapq.heappop(self.timers)
        due = self.timers[0][0] if self.timers else NEVER
        for batch in self._batches():
            due = min(due, self._batch_due(batch))
        return min(due, self.stocks.due())

    def next(self, now: int) -> Optional[Request]:
        """Does what is due. Returns a request to send, or None."""
        self._tick(now)
        self._work()
        for batch in self._batches():
            request = self._batch_request(batch)
            if request:
                return request
        return None

    def response(self, request: Request, status: int, body: Any, now: int) -> Optional[str]:
        """Processes a response. Returns what is wrong with it, or None.
        body: the parsed JSON; anything else, such as None, is not valid."""
        self._tick(now)
        batch = self._batch_of(request)
        if batch.state != "requested" or batch.number != request.number:
            return None
        try:
            self._accept(batch, status, body)
        except InvalidResponse as wrong:
            if batch.asks_map:
                self._refuse_map(batch)
            else:
                self._fail(batch, False, isinstance(wrong, MessageRefused))
            return str(wrong)
        return None

    def failed(self, request: Request, now: int) -> None:
        """Says that a request got no response."""
        self._tick(now)
        batch = self._batch_of(request)
        if batch.state == "requested" and batch.number == request.number:
            self._fail(batch, False)

    def retry_soon(self, now: int) -> None:
        """P23: lets the test of an open breaker come early, because a master has answered leases.
        It comes at least a second after the last message."""
        if self.main.state == "backing_off":
            self.main.retry_at = min(self.main.retry_at, max(now, self.main.sent_at + SECOND))

    def decision(self, now: int) -> Optional[Acquired]:
        """Returns the next decision, or None."""
        self._tick(now)
        self._work()
        if not self.decided:
            return None
        call = self.decided.popleft()
        call.acquired.context = call.context
        missing = len(call.items) - len(call.acquired.units)
        call.acquired.units += [0.0] * missing
        return call.acquired

    def change(self, now: int) -> Optional[Held]:
        """Returns the next hold that has become smaller, or is gone, without a call of the
        application; or None."""
        self._tick(now)
        self._work()
        if not self.changes:
            return None
        hold = self.changes.popleft()
        hold.changed = False
        held = hold.describe()
        self._plan(hold)
        return held

    # ---- calls

    def _tick(self, now: int) -> None:
        self.now = max(self.now, now)

    def _number(self) -> int:
        self.last_number = self.last_number % REQUEST_ID_MAX + 1
        return self.last_number

    def _set_timer(self, owner: Any, at: int) -> None:
        """Sets the timer of a call or a hold. With the same time again, it keeps its order."""
        if owner.timer == at:
            return
        owner.timer = at
        if at < NEVER:
            owner.timer_order = next(self.timer_order)
            heapq.heappush(self.timers, (at, owner.timer_order, owner))

    @staticmethod
    def _is_stale(at: int, order: int, owner: Any) -> bool:
        return bool(owner.timer != at or owner.timer_order != order)

    def _leave(self, call: Call) -> None:
        """Takes a call out of the list of its state."""
        if call.state == State.QUEUED:
            assert call.port
            call.port.queues[call.kind].pop(call, None)
        elif call.state == State.WAITING:
            self.waiting.pop(call, None)
            self.learning.pop(call, None)
        elif call.state == State.SENT and call.batch:
            call.batch.sent[call.position].call = None
            call.batch = None

    def _move(self, call: Call, state: State) -> None:
        """Moves a call to another state. One whose message had no answer becomes the first one in
        its queue."""
        returns = call.state == State.SENT
        self._leave(call)
        call.state, call.is_moved = state, False
        if state == State.QUEUED:
            call.port = self._route(call)
            queue = call.port.queues[call.kind]
            queue[call] = None
            if returns:
                queue.move_to_end(call, last=False)
        elif state == State.WAITING:
            self.waiting[call] = None

    def _finish(self, call: Call) -> None:
        """Ends a call. If a caller waits for it, decision() returns it."""
        call.timer = NEVER
        self._part(call)
        self._move(call, State.DECIDED)
        self.calls.pop(call, None)
        if call.kind == Kind.SETTLE and not call.attended:
            self.settles -= 1
        if call.hold and call.hold.call is call:
            call.hold.call = None
        if call.attended:
            self.decided.append(call)
        elif call.hold and call is call.hold.action:
            call.state = State.NEW

    @staticmethod
    def _part(call: Call) -> Optional[Call]:
        peer, call.peer = call.peer, None
        if peer:
            peer.peer = None
        return peer

    def _finish_peer(self, call: Call) -> None:
        peer = self._part(call)
        if peer:
            self._finish(peer)

    def _start(self, call: Call) -> bool:
        """Queues a new call, or decides on it at once. Returns whether it is queued."""
        self.calls[call] = None
        is_report = call.kind == Kind.REPORT
        most, waiting = (REPORTS_MAX, len(self.learning)) if is_report else (CALLS_MAX, 0)
        port = self._route(call)
        full = len(port.queues[call.kind]) + waiting >= most
        index, refusal = (0, None) if is_report else self._known_refusal(call)
        if refusal and refusal.reason != "UNMATCHED":  # UNMATCHED is no decision
            self._refuse(call, index, refusal)
            return False
        if refusal:
            call.acquired.unmatched = call.items[index].resource_id
        if refusal or full or self._is_open(port):
            self._fall_back(call)
            return False
        self._move(call, State.QUEUED)
        self._set_timer(call, call.deadline)
        return True

    def _end_ask(self, call: Call) -> None:
        """Ends a call that gets no hold, and the hold that it asked for."""
        hold = call.hold
        if hold:
            self._end_hold(hold, hold.was_sent)
        self._finish(call)
        if hold:
            self._plan(hold)

    def _attended_calls(self) -> List[Call]:
        return [call for call in list(self.calls) if call.attended]

    # ---- decisions without a server

    def _grant(self, call: Call, in_full: bool) -> None:
        permit, acquired = call.permit, call.acquired
        acquired.granted = True
        self._note_reservation(call, self.now + check_duration("", permit.settle_within))
        acquired.units = [item.cost if in_full else permit.least(i)
                          for i, item in enumerate(permit.items)]

    @staticmethod
    def _note_reservation(call: Call, settle_by: int) -> None:
        if call.permit.settle_within:
            call.acquired.reservation, call.acquired.settle_by = call.number, settle_by

    def _fall_back(self, call: Call, fallback: Optional[str] = None) -> None:
        """P23: decides on a call without a server. A report is lost."""
        if call.prefetches:
            self._end_prefetch(call)
            return
        fallback = fallback or self.policy.fallback
        acquired = call.acquired
        acquired.by = "fallback"
        if call.kind == Kind.REPORT:
            self.counts.lost += 1
        elif call.kind in (Kind.SEIZURE, Kind.SETTLE, Kind.TRANSFER):
            fallback = "closed"
        if call.attended:
            granted = fallback == "open" or (fallback == "local" and self._is_local(call))
            if granted:
                self._grant(call, False)
                self.counts.fallback_granted += 1
            else:
                self._give_back(call)
                self.counts.fallback_refused += 1
        if fallback == "closed" and self.main.state == "backing_off":
            acquired.retry_after = seconds(max(self.main.retry_at - self.now, 0))
        if call.kind in (Kind.SETTLE, Kind.TRANSFER):
            self._finish(call)
        else:
            self._end_ask(call)

    def _is_local(self, call: Call) -> bool:
        """Returns whether the local limiters allow all items."""
        assert self.local
        for index, item in enumerate(call.items):
            wait = self.local.take(item.pair, call.permit.least(index), self.now)
            if wait is not None:
                call.acquired.item_index = index
                call.acquired.retry_after = None if wait == NEVER else seconds(wait)
                return False
        return True

    def _refuse(self, call: Call, index: int, refusal: _Refusal) -> None:
        acquired = call.acquired
        acquired.by, acquired.item_index = "refusal", index
        acquired.reason, acquired.limit = refusal.reason, refusal.limit
        if call.permit.detail:
            acquired.quota, acquired.window = refusal.quota, refusal.window
        if refusal.retry_at != NEVER:
            acquired.retry_after = seconds(max(refusal.retry_at - self.now, 0))
        self.counts.refused_locally += 1
        if not call.attended:
            self._refuse_copy(call)
        self._end_ask(call)

    def _bypass(self, call: Call) -> None:
        """P25: grants a permit in full, and sends a copy that no caller waits for."""
        hold, self.calls[call] = call.hold, None
        copy = Call(call.kind, call.permit, attended=False, alone=call.alone,
                    deadline=call.deadline, number=call.number)
        self._grant(call, True)
        call.acquired.by = "bypass"
        if hold:
            call.acquired.hold = hold.number
            self._detach(hold)
        self._finish(call)
        if hold:
            self._ask(copy, hold)
        self._start(copy)

    def _revoke(self, call: Call) -> None:
        """Refuses a call, because its caller has released the hold."""
        self._give_back(call)
        call.acquired = Acquired(by="caller")
        if call.state != State.DECIDED:
            self._finish(call)

    def _end_granted(self, call: Call) -> None:
        """Ends a permit because of the kill switch: it is granted in full, or as a server has
        granted it already."""
        hold = call.hold
        if call.kind not in (Kind.PERMIT, Kind.WAIT):
            return
        is_queued = call.state == State.QUEUED or call.is_moved
        if is_queued or call.state != State.WAITING:
            call.acquired.by = "bypass"
            self._grant(call, True)
        if hold and not is_queued:
            call.acquired.hold = hold.number
            self._detach(hold)
        elif hold:
            self._end_hold(hold, hold.state == "in_use" or hold.was_sent)
        self._finish(call)
        if hold:
            self._plan(hold)

    # ---- refusals that are still valid (P22)

    def _known_refusal(self, call: Call) -> Tuple[int, Optional[_Refusal]]:
        max_wait = check_duration("max_wait", call.permit.max_wait)
        if not self.refusals or call.kind not in (Kind.PERMIT, Kind.WAIT):
            return 0, None
        for index, item in enumerate(call.items):
            refusal = self.refusals.get(item.pair)
            if (refusal and self.now < refusal.until and max_wait <= refusal.max_wait
                    and call.permit.least(index) >= refusal.least):
                return index, refusal
        return 0, None

    def _remember_refusal(self, call: Call, decision: Decision, sent_at: int) -> None:
        until = sent_at + decision.valid_for
        if len(call.items) != 1 or until <= self.now:
            return
        while self.refusals:
            oldest = next(iter(self.refusals.values()))
            if oldest.until > self.now and len(self.refusals) < REFUSALS_MAX:
                break
            self.refusals.popitem(last=False)
        retry_at = NEVER if decision.retry_after is None else self.now + decision.retry_after
        figures = [limit for item in decision.figures[:1] for limit in item
                   if not limit.shadow and limit.name == (decision.limit or "")]
        quota, window = (figures[0].quota, seconds(figures[0].window)) if figures else (0.0, 0.0)
        self.refusals[call.items[0].pair] = _Refusal(
            until, call.permit.least(0), call.sent_max_wait, retry_at, decision.reason,
            decision.limit, quota, window)
        self.refusals.move_to_end(call.items[0].pair)

    # ---- reservations (P27)

    def _queue_settle(self, items: Sequence[Item], number: int) -> Call:
        call = Call(Kind.SETTLE, Permit(tuple(items)), attended=False, number=number)
        call.deadline = call.waits_until = self.now + SETTLE_WAIT
        self.calls[call] = None
        self.settles += 1
        self._move(call, State.QUEUED)
        self._set_timer(call, call.deadline)
        return call

    def _give_back(self, call: Call) -> None:
        """Settles a reservation that its caller does not get, with a cost of 0."""
        granted = call.acquired.granted and call.acquired.by == "server"
        if not call.attended or not call.permit.settle_within:
            return
        if not granted and not call.unanswered:
            return
        call.unanswered = False
        call.acquired.reservation = 0
        if self.settles < SETTLES_MAX:
            items = [replace(item, cost=0, min=None) for item in call.items]
            self._queue_settle(items, call.number)

    def _settle_is_local(self, number: int, result: Optional[Call]) -> bool:
        """Decides on a settle that needs no message. Returns False if it needs one."""
        copy = self.copies.pop(number, None) is not None
        full = self.settles >= SETTLES_MAX
        if number and not copy and not full:
            return False
        if number and not copy:
            self.counts.unsettled += 1
        if result:
            result.acquired.granted = copy
            result.acquired.by = "bypass" if copy else "fallback" if number else "caller"
            self._finish(result)
        return True

    def _refuse_copy(self, call: Call) -> None:
        """Notes that the copy of a permit was refused: its settle has no effect."""
        self.counts.bypassed += 1
        if not call.permit.settle_within:
            return
        while self.copies and (len(self.copies) >= COPIES_MAX
                               or next(iter(self.copies.values())) <= self.now):
            self.copies.popitem(last=False)
        within = check_duration("settle_within", call.permit.settle_within)
        self.copies[call.number] = self.now + within + SETTLE_WAIT

    def _lose_settle(self, call: Call) -> None:
        self.counts.unsettled += 1
        self._finish_peer(call)
        self._finish(call)

    def _decide_settle(self, call: Call, result: Settled) -> None:
        if result.reason == "LEARNING":
            if not call.failures:
                call.deadline = call.waits_until
            self._move(call, State.WAITING)
            self._set_timer(call, min(self.now + SECOND, call.deadline))
            return
        if result.reason:
            self.counts.unsettled += 1
        else:
            self.counts.settled += 1
        for item, (charged, _) in zip(call.items, result.items):
            if result.unknown and item.cost > charged:
                self.counts.uncharged += item.cost - charged
        if call.peer:
            out = call.peer.acquired
            out.by, out.granted, out.reason = "server", not result.reason, result.reason
            out.late, out.unknown = result.late, result.unknown
            out.units = [charged - returned for charged, returned in result.items]
        self._finish_peer(call)
        self._finish(call)

    # ---- units taken ahead (P24)

    def _uses_stock(self, call: Call) -> bool:
        permit = call.permit
        return bool(self.policy.prefetch and call.kind == Kind.PERMIT and call.attended
                    and not call.hold and not permit.settle_within and len(permit.items) == 1
                    and not permit.equal and permit.items[0].cost > 0)

    def _spend_stock(self, call: Call) -> bool:
        """Grants a permit out of the stock. Returns False if this is not possible."""
        if not self._uses_stock(call):
            return False
        item = call.items[0]
        cost = grains(item.cost) / GRAINS
        stock = self.stocks.spend(item, cost, self.now)
        if stock is None:
            return False
        self._grant(call, True)
        acquired = call.acquired
        acquired.by, acquired.warning, acquired.limit = "prefetch", stock.warning, stock.limit
        acquired.remaining = stock.remaining
        acquired.reset_after = seconds(max(stock.reset_at - self.now, 0))
        self.counts.prefetch_granted += 1
        self._finish(call)
        self.stocks.use(stock, cost, self.now)
        self._refill_stock(item)
        return True

    def _refill_stock(self, item: Item) -> None:
        """Takes units ahead, if the stock has few and the key is used often."""
        stock = self.stocks.find(item)
        missing = stock.missing() if stock else 0
        if stock is None or missing < 1:
            return
        call = Call(Kind.PERMIT, Permit((replace(item, cost=missing, min=0),)), attended=False,
                    prefetches=True)
        port = self._route(call)
        if len(port.queues[Kind.PERMIT]) >= CALLS_MAX or port.failures >= BREAKER_FAILURES:
            return
        stock.asking = True
        self.calls[call] = None
        self._move(call, State.QUEUED)

    def _end_prefetch(self, call: Call) -> None:
        stock = self.stocks.find(call.items[0])
        if stock:
            stock.asking = False
        self._finish(call)

    def _learn_stock(self, call: Call, decision: Decision, sent_at: int) -> None:
        if not decision.granted:
            self.stocks.learn_refusal(call.items[decision.item_index], decision.reason)
            return
        item, grant = call.items[0], decision.grants[0]
        if call.prefetches:
            units = min(decision.units[0], item.cost)
            stock = self.stocks.receive(item, units, decision.wait, sent_at, self.now)
        else:
            stock = self.stocks.open(item, self.now) if self._uses_stock(call) else None
        if stock is None:
            return
        stock.warning = decision.warning
        stock.remaining = grant.remaining
        stock.reset_at = self.now + grant.reset_after
        stock.limit = grant.limit
        if not call.prefetches:
            stock.granted_most = max(stock.granted_most, decision.units[0])
            self.stocks.lapse(stock, self.now)
            self.stocks.use(stock, decision.units[0], self.now)
            self._refill_stock(item)

    # ---- holds

    def _new_hold(self, permit: Optional[Permit]) -> Hold:
        number = self._number()
        hold = Hold(number, Call(Kind.RENEWAL, NOTHING, attended=False))
        hold.action.hold = hold
        if permit:
            hold.items = [item.pair for item in permit.items]
            hold.amounts = [0.0] * len(permit.items)
        self.holds[number] = hold
        return hold

    @staticmethod
    def _ask(call: Call, hold: Hold) -> None:
        call.hold, hold.call, call.number = hold, call, hold.number

    @staticmethod
    def _detach(hold: Hold) -> None:
        if hold.call:
            hold.call.hold = None
            hold.call = None

    def _set_changed(self, hold: Hold, changed: bool) -> None:
        if changed and not hold.changed:
            self.changes.append(hold)
        elif hold.changed and not changed:
            self.changes.remove(hold)
        hold.changed = changed

    def _act(self, hold: Hold, kind: Kind) -> None:
        """Queues the renewal or the release of a hold."""
        hold.action.kind, hold.action.moves = kind, 0
        self._move(hold.action, State.QUEUED)

    def _plan(self, hold: Hold) -> None:
        """Does what a hold needs next, or plans when to look at it."""
        action, ending = hold.action, hold.state == "ending"
        over = ending and self.now >= hold.give_up_at
        if over:
            hold.must_release = False
        stays = action.kind == Kind.RELEASE and not hold.transfers
        obsolete = over if stays else ending or hold.must_release
        if action.state in (State.QUEUED, State.WAITING) and obsolete:
            self._finish(action)
        if action.state == State.NEW and hold.must_release and not hold.transfers:
            self._act(hold, Kind.RELEASE)
        idle = action.state == State.NEW
        busy = hold.must_release or hold.asking or hold.transfers or hold.changed
        if ending and idle and not busy:
            self._detach(hold)
            hold.timer = NEVER
            self.holds.pop(hold.number, None)
            return
        at = hold.give_up_at if ending and not over else NEVER
        if hold.state == "in_use":
            at = min(hold.end, hold.renew_at) if idle and not hold.is_empty() else hold.end
        self._set_timer(hold, at)

    def _end_hold(self, hold: Hold, must_release: bool) -> None:
        """Ends a hold that its application no longer uses."""
        in_use = hold.state == "in_use"
        if hold.state == "ending":
            return
        self._detach(hold)
        hold.state, hold.must_release = "ending", must_release
        hold.give_up_at = hold.end + hold.life if in_use else self.now + RELEASE_TIME

    def _extend(self, hold: Hold, begin: int, life: int) -> None:
        """P8: sets the end of a hold that a server has granted or renewed."""
        hold.begin, hold.life = begin, life
        hold.end = max(hold.end, begin + life)
        hold.renew_at = max(begin + life // 3, self.now + RENEWAL_GAP)

    def _lose_hold(self, hold: Hold, must_release: bool) -> None:
        self._end_hold(hold, must_release)
        if not hold.is_empty():
            self.counts.holds_lost += 1
            self._set_changed(hold, True)

    def _renew_holds(self) -> None:
        """Queues the renewals of all holds that are past half of the time to their renewal."""
        for hold in self.holds.values():
            due = min(hold.begin + hold.life // 6, hold.renew_at) <= self.now
            if (hold.state == "in_use" and hold.action.state == State.NEW and due
                    and hold.end > self.now and not hold.is_empty()):
                self._act(hold, Kind.RENEWAL)
                self._set_timer(hold, hold.end)

    def _work_hold(self, hold: Hold) -> None:
        if hold.state == "in_use" and hold.end > self.now:
            self._renew_holds()
            return
        if hold.state == "in_use":
            self._lose_hold(hold, True)
        self._plan(hold)

    def _take_units(self, hold: Optional[Hold], amounts: Optional[Sequence[float]]) -> List[float]:
        """Takes units out of a hold, for a transfer. Returns them."""
        if hold is None or hold.state != "in_use":
            return []
        asked = list(hold.amounts) if amounts is None else [*amounts, *[0.0] * len(hold.amounts)]
        moved = [min(has, wants) for has, wants in zip(hold.amounts, asked)]
        hold.amounts = [has - less for has, less in zip(hold.amounts, moved)]
        return moved

    def _end_transfer(self, call: Call) -> None:
        hold = call.hold
        assert hold and hold.transfers > 0
        hold.transfers -= 1
        self._finish_peer(call)
        self._finish(call)
        if hold.state == "in_use" and not hold.transfers and hold.is_empty():
            self._end_hold(hold, hold.must_release)
        self._plan(hold)

    # ---- which node a call goes to (N9)

    def _route(self, call: Call) -> Batch:
        """Returns where a call goes: to the owner of its shard. If its node is not known or does
        not answer, or if the call has failed once, a server of the options forwards it. No call
        waits to find out whether a node answers, because this client may not reach it."""
        if self.map is None or call.failures:
            return self.main
        node = self.by_name.get(self._owner(self.map, call))
        if node and not node.answers and self.now >= node.retry_at:
            node.probes = True
        return node if node and node.answers else self.main

    @staticmethod
    def _owner(shards: ShardMap, call: Call) -> str:
        """The ids of holds and transfers tell their shard. All other calls have items."""
        hold, number = call.hold, call.transfer_id
        if hold and (call is hold.action or call.kind == Kind.TRANSFER):
            number = hold.id or hold.transfer_id
        if number:
            return shards.owner_of_id(number)
        pair = hold.items[0] if hold and call is hold.action else call.items[0].pair
        return shards.owner_of(*pair)

    def _use_map(self, shards: ShardMap) -> None:
        """Takes a later map, and moves the calls in the queues. A node without an address that may
        be used has no batch."""
        tls = any(is_tls(address) for address in self.main.addresses.own)
        nodes = {name: usable(addresses, tls) for name, addresses in shards.nodes.items()}
        last, self.map, self.by_name = self.by_name, shards, {}
        stay = [node for name, node in last.items() if nodes.get(name)]
        idle = [node for node in self.nodes if node not in stay and node.state != "requested"]
        for name, addresses in nodes.items():
            if not addresses:
                continue
            node = last.get(name) or (idle.pop() if idle else self._new_node(addresses))
            if node.node != name or node.addresses.own != addresses:
                node.node, node.addresses = name, Addresses(addresses)
                node.answers = node.probes = False
                node.failures = node.retry_at = 0
            self.by_name[name] = node
        for batch in self._batches():
            self._follow(batch)
        for call in [call for call in self.waiting if call.is_moved]:
            self._set_timer(call, self.now)

    def _is_node(self, batch: Batch) -> bool:
        return batch is not self.main and not batch.is_lane

    def _new_node(self, addresses: List[str]) -> Batch:
        node = Batch(len(self.lanes) + len(self.nodes), Addresses(addresses))
        self.nodes.append(node)
        return node

    def _follow(self, batch: Batch) -> None:
        """Moves the calls in the queues of a batch that go elsewhere now."""
        for queue in batch.queues:
            for call in list(queue):
                port = self._route(call)
                if port is not batch:
                    self._move(call, State.QUEUED)
                    if call.kind in FALLBACK_KINDS and self._is_open(port):
                        self._fall_back(call)

    def _ask_map(self, batch: Batch) -> None:
        """Lets a server be asked for its map, unless another one is, or was a moment ago."""
        if self.map_batch is None and self.now >= self.map_ask_at and not self._is_open(batch):
            self.map_batch = batch

    def _note_epoch(self, batch: Batch, epoch: Any) -> None:
        """A server that has a later map is asked for it."""
        if isinstance(epoch, int) and epoch > (self.map.epoch if self.map else 0):
            self._ask_map(batch)

    def _map_request(self, batch: Batch) -> Request:
        epoch = self.map.epoch if self.map else 0
        batch.asks_map, batch.sent = True, []
        batch.timeout = self.message_timeout
        return self._send(batch, "discovery", {"map_epoch": epoch})

    def _end_map_request(self, batch: Batch, pause: int) -> None:
        batch.asks_map, batch.probes, batch.state = False, False, "ready"
        if self.map_batch is batch:
            self.map_batch, self.map_ask_at = None, self.now + pause

    def _refuse_map(self, batch: Batch) -> None:
        """Processes an answer without a map. The server may serve permits all the same."""
        self._end_map_request(batch, MAP_PAUSE)
        if self._is_node(batch) and not batch.answers:
            self._delay(batch)

    def _accept_map(self, batch: Batch, body: Reader) -> None:
        """Processes the answer to a DISCOVERY. A process that is not master tells its map too."""
        shards = read_map(body) if body.has("map") else None
        batch.addresses.redirects = 0
        if body.flag("is_master"):
            batch.failures, batch.answers = 0, True
        elif self._is_node(batch) and not batch.answers:
            master = body.object("mastership").value.get("http_address")
            batch.answers = batch.addresses.follow(master)
            if not batch.answers:
                self._delay(batch)
        is_later = shards and shards.epoch > (self.map.epoch if self.map else 0)
        self._end_map_request(batch, 0 if is_later else MOVED_PAUSE)
        if shards and is_later:
            self._use_map(shards)

    # ---- messages

    def _batches(self) -> List[Batch]:
        """Returns all that can have a message under way, or one to send."""
        busy = [node for node in self.nodes
                if not node.is_idle() or node.probes or node is self.map_batch]
        return [self.main, *self.lanes, *busy]

    def _is_open(self, batch: Optional[Batch] = None) -> bool:
        """Returns whether no new call may wait for a message: the breaker is open. A node has none:
        while it fails, its calls go to the servers of the options."""
        if batch and batch is not self.main:
            return False
        if self.main.state == "backing_off":
            return self.now < self.main.retry_at
        return self.main.state == "requested" and self.main.failures >= BREAKER_FAILURES

    def _next_kind(self, batch: Batch) -> Optional[Kind]:
        """Returns the kind of the next message. The kinds alternate. Permits that may wait travel in
        lanes, if there are lanes."""
        for i in range(1, len(Kind) + 1):
            kind = Kind((batch.kind + i) % len(Kind))
            if batch.queues[kind] and not (kind == Kind.WAIT and self.lanes):
                return kind
        return None

    def _batch_due(self, batch: Batch) -> int:
        if batch.state == "requested":
            return batch.sent_at + batch.timeout
        if batch.is_lane:
            return min((self._opens_at(other) for other in (self.main, *self.nodes)
                        if other.queues[Kind.WAIT]), default=NEVER)
        asks = self._wants_map(batch) or self._next_kind(batch) is not None
        return self._opens_at(batch) if asks else NEVER

    def _wants_map(self, batch: Batch) -> bool:
        return batch.probes or self.map_batch is batch

    def _opens_at(self, batch: Batch) -> int:
        """Returns when a message may be sent."""
        if batch.state == "backing_off":
            return max(batch.retry_at, self.now)
        return NEVER if self._is_open(batch) else self.now

    def _batch_of(self, request: Request) -> Batch:
        return self.main if request.lane is None else [*self.lanes, *self.nodes][request.lane]

    def _work(self) -> None:
        """Ends the calls and holds whose time has come, and renews holds."""
        while self.timers and self.timers[0][0] <= self.now:
            at, order, owner = heapq.heappop(self.timers)
            if self._is_stale(at, order, owner):
                continue
            owner.timer = NEVER
            if isinstance(owner, Hold):
                self._work_hold(owner)
            else:
                self._work_call(owner)
        self.stocks.forget(self.now)

    def _work_call(self, call: Call) -> None:
        if call.is_moved:
            self._resume(call)
        elif call.kind == Kind.SETTLE and not call.attended:
            self._work_settle(call)
        elif call.kind == Kind.REPORT and call.state == State.WAITING:
            self._work_report(call)
        elif call.state == State.WAITING:
            self._finish(call)
        else:
            self.counts.timed_out += 1
            self._fall_back(call)

    def _work_settle(self, call: Call) -> None:
        if self.now >= call.deadline:
            self._lose_settle(call)
        else:
            self._move(call, State.QUEUED)
            self._set_timer(call, call.deadline)

    def _work_report(self, call: Call) -> None:
        """Sends a report again that waits because a server learns, or loses it."""
        if self.now >= call.waits_until:
            self._fall_back(call)
        elif self._is_open(self._route(call)):
            self._set_timer(call, self.now + SECOND)
        else:
            self._move(call, State.QUEUED)
            self._set_timer(call, call.deadline)

    def _batch_request(self, batch: Batch) -> Optional[Request]:
        if batch.state == "requested":
            if self.now < batch.sent_at + batch.timeout:
                return None
            self._fail(batch, False)
        if self._wants_map(batch) and not self._is_open(batch):
            return self._map_request(batch)
        source = self._find_source(batch) if batch.is_lane else batch
        kind = Kind.WAIT if batch.is_lane else self._next_kind(batch)
        if source is None or kind is None or self._is_open(source):
            return None
        batch.kind, batch.source = kind, source
        entries = self._fill(batch, source.queues[kind])
        name = "permit" if METHODS[kind] == "acquire" else "entry"
        return self._send(batch, METHODS[kind], {"client_id": self.client_id, name: entries})

    def _send(self, batch: Batch, method: str, message: Dict[str, Any]) -> Request:
        batch.sent_at, batch.state = self.now, "requested"
        batch.number += 1
        self.counts.messages += 1
        return Request(batch.addresses.current, method, message, batch.number, batch.timeout,
                       batch.lane, self.now)

    def _find_source(self, lane: Batch) -> Optional[Batch]:
        """Finds the batch whose permit a lane sends next, in turn. After a redirect a lane keeps
        its batch, unless another lane has sent the permit."""
        others = [self.main, *self.nodes]
        turns = [(self.lane_turn + 1 + i) % len(others) for i in range(len(others))]
        ready = [i for i in turns if others[i].queues[Kind.WAIT] and not self._is_open(others[i])]
        keeps = [i for i in ready if others[i] is lane.source and lane.addresses.redirects]
        if not ready:
            return None
        self.lane_turn = [*keeps, *ready][0]
        if not keeps:
            self._begin_lane(lane, others[self.lane_turn])
        return others[self.lane_turn]

    @staticmethod
    def _begin_lane(lane: Batch, source: Batch) -> None:
        """Gives the next message of a lane the address that its batch uses now, or another one if
        the permit has failed before."""
        own, call = source.addresses, next(iter(source.queues[Kind.WAIT]))
        failed = call.failures % len(own.own)
        lane.addresses.own, lane.addresses.redirects = own.own, 0
        lane.addresses.index = (own.index + failed) % len(own.own)
        lane.addresses.redirect = "" if failed else own.redirect

    def _fill(self, batch: Batch, queue: "OrderedDict[Call, None]") -> List[Dict[str, Any]]:
        """Fills a message with calls of one kind (P21). Sets how long to wait for its response."""
        entries: List[Dict[str, Any]] = []
        last, size, text, details = self.now, 0, 0, 0
        batch.sent = []
        while queue:
            call = next(iter(queue))
            size, text = size + call.size(), text + call.text_bytes()
            details += call.size() if call.permit.detail else 0
            first = batch.sent[0].call if batch.sent else None
            if batch.sent and (call.alone or (first and first.alone) or size > MESSAGE_ITEMS
                               or text > MESSAGE_TEXT or details > DETAILS_MAX):
                break
            last = max(last, self._put(batch, call, entries))
        most = self.message_timeout
        if batch.kind == Kind.WAIT:
            most += batch.sent[0].call.sent_max_wait if batch.sent[0].call else 0
        batch.timeout = min(most, max(last - self.now, MESSAGE_WAIT_MIN))
        return entries

    def _put(self, batch: Batch, call: Call, entries: List[Dict[str, Any]]) -> int:
        """Puts a call into a message. Returns until when the message should wait."""
        hold = call.hold if call.hold and call.hold.call is call else None
        self._move(call, State.SENT)
        call.batch, call.position, call.unanswered = batch, len(batch.sent), True
        batch.sent.append(Sent(call, hold))
        if hold:
            hold.asking = hold.was_sent = True
        if call.kind in (Kind.PERMIT, Kind.WAIT):
            self._set_max_wait(call)
            entries.append(call.permit.to_json(call.sent_max_wait, call.number))
            return call.deadline
        if call.kind == Kind.SETTLE and call.deadline == call.waits_until:
            call.deadline = min(call.waits_until, self.now + SETTLE_TIME)
            self._set_timer(call, call.deadline)
        entries.append(put_entry(call))
        return self.now + self.message_timeout

    def _set_max_wait(self, call: Call) -> None:
        """max_wait of a message is at most what is left of the timeout. For a permit that may
        queue, some of this time is left for the answer."""
        max_wait = check_duration("max_wait", call.permit.max_wait)
        rest = max(call.deadline - self.now, 0)
        if call.kind == Kind.WAIT:
            rest -= min(rest // 4, SECOND)
            call.waits_until = call.waits_until or self.now + max_wait
            rest = min(rest, max(call.waits_until - self.now, 0))
        call.sent_max_wait = min(max_wait, rest)

    def _fail(self, batch: Batch, alive: bool, refused: bool = False) -> None:
        """Ends a message that has failed. The breaker counts only those to the servers of the
        options. A node that fails has a pause, and its shards may have moved.
        alive: a server has answered that it knows no master. refused: a server has refused to read
        the message, which does not count, unless the message is sent again as it is."""
        is_node, source = self._is_node(batch), batch.source or batch
        batch.addresses.redirects = 0
        if not batch.is_lane and not (is_node and batch.asks_map):
            self.counts.failures += 1
        if batch.asks_map:
            self._end_map_request(batch, 0 if is_node else SECOND)
        if refused and batch.kind not in (Kind.RENEWAL, Kind.RELEASE, Kind.TRANSFER):
            batch.failures = 0
        elif batch is self.main:
            most = BREAKER_FAILURES + (DOUBLINGS_ALIVE if alive else DOUBLINGS)
            batch.failures = min(batch.failures + 1, most)
            batch.addresses.advance()
        elif is_node:
            self._delay(batch)
        self._return_all(batch, True, refused and len(batch.sent) == 1)
        batch.state = "ready"
        if batch is self.main and batch.failures >= BREAKER_FAILURES:
            self._open_breaker()
        if is_node:
            self._follow(batch)
        if self._is_node(source):
            self._ask_map(self.main)

    def _delay(self, node: Batch) -> None:
        """Notes that a node does not answer. It is asked again at its next address, after a pause
        that doubles each time."""
        node.answers, node.failures = False, min(node.failures + 1, DOUBLINGS)
        longest = check_duration("max_pause", self.policy.max_pause)
        node.retry_at = self.now + min(SECOND << node.failures - 1, longest)
        node.addresses.advance()

    def _open_breaker(self) -> None:
        main = self.main
        doublings = main.failures - BREAKER_FAILURES
        longest = check_duration("max_pause", self.policy.max_pause)
        main.state = "backing_off"
        main.retry_at = self.now + min(SECOND << doublings, longest)
        self.counts.pauses += 1
        for kind in FALLBACK_KINDS:
            while main.queues[kind]:
                self._fall_back(next(iter(main.queues[kind])))
        for kind in (Kind.TRANSFER, Kind.SETTLE):
            for call in main.queues[kind]:
                self._finish_peer(call)

    def _return_all(self, batch: Batch, failed: bool, refused: bool = False) -> None:
        """Takes all calls out of a message that has no valid response of a master.
        refused: a server has refused to read the only call."""
        sent, batch.sent = batch.sent, []
        for entry in reversed(sent):
            if entry.call:
                entry.call.batch = None
                self._return(entry.call, failed, refused)
            hold = entry.hold
            if hold is None:
                continue
            hold.asking = False
            if not hold.call and hold.state == "asked":
                self._end_hold(hold, hold.was_sent)
            if hold.state == "ending":
                hold.must_release = self.now < hold.give_up_at
            self._plan(hold)

    def _return(self, call: Call, failed: bool, refused: bool) -> None:
        """Puts a call back into its queue, or ends it."""
        if call.kind in (Kind.RENEWAL, Kind.RELEASE):
            hold = call.hold
            assert hold
            hold.must_release = hold.must_release or call.kind == Kind.RELEASE
            self._finish(call)
            self._plan(hold)
            return
        counts = failed and call.kind != Kind.TRANSFER and not call.prefetches
        call.failures += counts
        self._move(call, State.QUEUED)
        if call.kind == Kind.TRANSFER:
            if call.hold and self.now >= call.hold.end:
                self._end_transfer(call)
        elif failed and call.prefetches:
            self._end_prefetch(call)
        elif failed:
            call.alone = True
            if call.kind == Kind.SETTLE:
                if refused or call.failures >= SETTLE_FAILURES:
                    self._lose_settle(call)
            elif refused or call.failures > len(self.main.addresses.own):
                self._fall_back(call)

    # ---- calls that were refused as MOVED (N9)

    def _pause(self, call: Call) -> None:
        """Lets a call wait, and then be sent again: the shard of its key moves to another node. The
        refusal has no effect. So if no answer was lost, no server has granted the call."""
        self.counts.moved += 1
        call.unanswered = call.unanswered and call.failures > 0
        if call.prefetches:
            self._end_prefetch(call)
            return
        if call.kind in FALLBACK_KINDS and call.moves >= MOVES_MAX:
            self._fall_back(call)
            return
        pause = min(MOVED_PAUSE << call.moves, SECOND)
        call.moves = min(call.moves + 1, MOVES_MAX)
        if call.kind == Kind.SETTLE and not call.failures:
            call.deadline = call.waits_until
        self._move(call, State.WAITING)
        call.is_moved = True
        if call.kind == Kind.REPORT:
            self.learning[call] = None
        self._set_timer(call, min(self.now + pause, self._end_of_moved(call)))

    @staticmethod
    def _end_of_moved(call: Call) -> int:
        """Returns until when a call is sent again. The action of a hold ends with its hold."""
        return call.hold.end if call.kind == Kind.TRANSFER and call.hold else call.deadline

    def _resume(self, call: Call) -> None:
        """Sends a call again, or ends it. It waits for a map that was asked for."""
        end = self._end_of_moved(call)
        if self.map_batch and self.now < end:
            self._set_timer(call, min(self.now + MOVED_PAUSE, end))
        elif call.kind == Kind.SETTLE:
            self._work_settle(call)
        elif self.now < end:
            self._move(call, State.QUEUED)
            self._set_timer(call, call.deadline)
            if call.kind in FALLBACK_KINDS and self._is_open(call.port):
                self._fall_back(call)
        elif call.kind == Kind.TRANSFER:
            self._end_transfer(call)
        else:
            self.counts.timed_out += 1
            self._fall_back(call)

    def _pause_sent(self, call: Optional[Call], hold: Optional[Hold]) -> None:
        """Processes a refusal as MOVED."""
        if call:
            self._pause(call)
        if hold:
            hold.asking = False
            if not hold.call and hold.state == "asked":
                self._end_hold(hold, hold.was_sent)
            self._plan(hold)

    # ---- responses

    def _accept(self, batch: Batch, status: int, value: Any) -> None:
        body = read_body(value, status)
        if batch.asks_map:
            self._accept_map(batch, body)
            return
        if body.has("mastership"):
            master = body.object("mastership").value.get("http_address")
            if batch.addresses.follow(master):
                batch.state = "ready"
                self._return_all(batch, False)
            else:
                self._fail(batch, True)
            return
        name = "permit" if METHODS[batch.kind] == "acquire" else "entry"
        entries = body.list(name, len(batch.sent))
        results = [self._read(batch.kind, entry, sent) for entry, sent in zip(entries, batch.sent)]
        batch.failures = batch.addresses.redirects = 0
        batch.state = "ready"
        self._note_epoch(batch.source or batch, body.value.get("map_epoch"))
        sent, batch.sent = batch.sent, []
        for entry in sent:
            if entry.call:
                entry.call.batch = None
        for result, entry in zip(results, sent):
            self._process(batch, entry, result)

    @staticmethod
    def _read(kind: Kind, value: Any, sent: Sent) -> Any:
        call = sent.call
        if kind in (Kind.PERMIT, Kind.WAIT):
            owner = call.items if call else sent.hold.items if sent.hold else None
            return None if owner is None else read_decision(value, len(owner))
        if kind == Kind.REPORT:
            return read_reported(value)
        if kind == Kind.SETTLE:
            return read_settled(value, len(call.items) if call else None)
        return read_hold_result(value, kind, call)

    def _process(self, batch: Batch, sent: Sent, result: Any) -> None:
        call = sent.call
        if call and call.state != State.SENT:
            call = None  # a result before it has ended this call
        if result is not None and result.reason == "MOVED":
            self._pause_sent(call, sent.hold)
        elif batch.kind in (Kind.PERMIT, Kind.WAIT):
            if result is not None:
                self._decide_permit(call, sent.hold, result, batch.sent_at)
        elif batch.kind == Kind.SEIZURE:
            self._decide_seizure(call, sent.hold, result, batch.sent_at)
        elif call is None:
            return
        elif batch.kind == Kind.REPORT:
            self._decide_report(call, result)
        elif batch.kind == Kind.SETTLE:
            self._decide_settle(call, result)
        elif batch.kind == Kind.TRANSFER:
            self._decide_transfer(call, result, batch.sent_at)
        else:
            self._decide_action(call, result, batch.sent_at)

    def _decide_hold(self, hold: Hold, hold_id: int, begin: int, life: int) -> bool:
        """Processes the decision on a hold. Returns whether the application may use it."""
        hold.asking = False
        if hold_id:
            hold.id = hold_id
        if hold_id and hold.state == "asked":
            self._extend(hold, begin, life)
            if hold.end > self.now:
                hold.state = "in_use"
                return True
        if hold.state == "asked":
            self._end_hold(hold, bool(hold_id))
        hold.must_release = bool(hold_id) and self.now < hold.give_up_at
        return False

    def _decide_permit(self, call: Optional[Call], hold: Optional[Hold], decision: Decision,
                       sent_at: int) -> None:
        if hold:
            begin = sent_at + int(decision.waited / (1 + self.policy.drift))
            used = self._decide_hold(hold, decision.hold_id, begin, decision.expires_in)
            if used:
                hold.amounts = list(decision.units)
            elif call and decision.hold_id:  # it has ended already
                self._fall_back(call)
                call = None
        if call:
            self._decide_call(call, decision, sent_at)
        if hold:
            self._plan(hold)

    def _decide_call(self, call: Call, decision: Decision, sent_at: int) -> None:
        call.unanswered = False
        if not decision.granted:
            self._remember_refusal(call, decision, sent_at)
        if self.policy.prefetch:
            self._learn_stock(call, decision, sent_at)
        if call.prefetches:
            self._end_prefetch(call)
            return
        if not decision.granted and decision.reason == "UNMATCHED":
            call.acquired.unmatched = call.items[decision.item_index].resource_id
            self._fall_back(call)
            return
        call.acquired.by = "server"
        if decision.granted:
            self._note_grant(call, decision, sent_at)
        else:
            self._note_refusal(call, decision)
        if call.permit.detail:
            self._note_figures(call.acquired, decision)
        ready = self.now + decision.wait
        end = min(ready, call.deadline)
        call.acquired.wait = seconds(ready - end)
        if end <= self.now or not call.attended:
            self._finish(call)
        else:
            self._move(call, State.WAITING)
            self._set_timer(call, end)

    def _note_grant(self, call: Call, decision: Decision, sent_at: int) -> None:
        acquired, hold = call.acquired, call.hold
        self.counts.granted += 1
        acquired.granted, acquired.units = True, list(decision.units)
        acquired.warning = decision.warning
        limits = [grant for grant in decision.grants if grant.limit is not None]
        if limits:
            least = min(limits, key=lambda grant: grant.remaining)
            acquired.limit, acquired.remaining = least.limit, least.remaining
            acquired.reset_after = seconds(least.reset_after)
        if hold:
            acquired.hold, acquired.ends_at = hold.number, hold.end
        if decision.reservation:
            self._note_reservation(call, sent_at + decision.settle_within)

    def _note_refusal(self, call: Call, decision: Decision) -> None:
        acquired = call.acquired
        self.counts.refused += 1
        acquired.reason, acquired.item_index = decision.reason, decision.item_index
        acquired.limit = decision.limit
        if decision.retry_after is not None:
            acquired.retry_after = seconds(decision.retry_after)
        if not call.attended:
            self._refuse_copy(call)

    @staticmethod
    def _note_figures(acquired: Acquired, decision: Decision) -> None:
        """Copies the figures of the limit that the decision names."""
        items = decision.figures
        if not decision.granted:
            items = items[decision.item_index:decision.item_index + 1]
        for limit in (limit for item in items for limit in item):
            if limit.shadow or limit.name != (acquired.limit or ""):
                continue
            if acquired.quota > 0 and limit.remaining >= acquired.remaining:
                continue
            acquired.quota, acquired.remaining = limit.quota, limit.remaining
            acquired.window = seconds(limit.window)
            acquired.reset_after = seconds(limit.reset_after)

    def _decide_report(self, call: Call, result: Reported) -> None:
        """P28: a report that a server cannot remember is sent without a request_id."""
        if result.reason == "LEARNING":
            call.waits_until = call.waits_until or self.now + REPORT_TIME
            self._move(call, State.WAITING)
            self.learning[call] = None
            self._set_timer(call, self.now + SECOND)
        elif result.reason and result.reason != "REPEATED" and call.number:
            call.number = 0
            self._move(call, State.QUEUED)
        else:
            self.counts.uncharged += max(0, call.cost - result.charged)
            self.counts.reported += 1
            self._finish(call)

    def _decide_action(self, action: Call, result: HoldResult, sent_at: int) -> None:
        """Processes the answer to a renewal or a release."""
        hold = action.hold
        assert hold
        releases = action.kind == Kind.RELEASE
        self._finish(action)
        renewed = not releases and hold.state == "in_use" and not hold.is_empty()
        if releases and result.gone:
            hold.renew_at = self.now
        elif renewed and not result.gone:
            hold.claims = False
            self._extend(hold, sent_at, result.expires_in)
            for i, amount in enumerate(result.amounts):
                if amount < hold.amounts[i]:
                    hold.amounts[i] = amount
                    self._set_changed(hold, True)
        elif renewed and hold.claims:
            self._lose_hold(hold, False)
        elif renewed:
            hold.claims, hold.renew_at = True, self.now
        self._plan(hold)

    def _decide_transfer(self, call: Call, result: HoldResult, sent_at: int) -> None:
        hold = call.hold
        assert hold
        if result.reason and hold.state == "in_use" and call.peer:
            hold.amounts = [has + more for has, more in zip(hold.amounts, call.amounts)]
        elif result.reason:
            hold.must_release = True
        if call.peer:
            out = call.peer.acquired
            out.by, out.reason = "server", result.reason
            out.granted = not result.gone and not result.reason
            if out.granted:
                out.transfer_id, out.ends_at = result.id, sent_at + result.expires_in
                out.units = list(call.amounts)
        self._end_transfer(call)

    def _decide_seizure(self, call: Optional[Call], hold: Optional[Hold], result: HoldResult,
                        sent_at: int) -> None:
        if hold is None:
            return
        granted = not result.gone and not result.reason
        if granted and hold.state == "asked":
            hold.items, hold.amounts = result.items, result.amounts
        used = self._decide_hold(hold, result.id if granted else 0, sent_at, result.expires_in)
        if call:
            out = call.acquired
            out.by, out.granted, out.reason = "server", used, result.reason
            if used:
                out.hold, out.ends_at, out.units = hold.number, hold.end, list(hold.amounts)
                self.counts.granted += 1
            else:
                self.counts.refused += 1
            self._finish(call)
        self._plan(hold)
