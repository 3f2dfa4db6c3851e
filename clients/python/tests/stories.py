"""Runs the stories of clients/stories with the cores of this package.

The README of that folder has the form of a story. A runner raises StoryFailed with the step at
which something was not as it must be.
"""
from __future__ import annotations

import json
import os
import pathlib
from typing import Any, Dict, List, Optional

from doorman._base import NEVER, SECOND, Request, nanoseconds, seconds
from doorman._calls import Call, Held
from doorman._limiters import Limit
from doorman.leases import LeaseCore, Resource, ResourceOptions
from doorman.permits import Acquired, Item, Permit, PermitCore, PermitPolicy

START = 1000 * SECOND
TOLERANCE = SECOND // 1_000_000
TURNS_MAX = 20000
FOLDER = pathlib.Path(os.environ.get("STORIES",
                                     pathlib.Path(__file__).resolve().parents[2] / "stories"))


class StoryFailed(AssertionError):
    """Something was not as the story says."""


def load() -> List[Dict[str, Any]]:
    """Returns all stories. Each gets the name of its file."""
    stories = []
    for path in sorted([*FOLDER.glob("*.json"), *FOLDER.glob("http/*.json")]):
        for story in json.loads(path.read_text("utf-8"))["stories"]:
            stories.append({**story, "story": f"{path.stem}: {story['story']}"})
    return stories


def match(path: str, actual: Any, expected: Any) -> None:
    """Compares a value with what the story expects. `...` is an absent value."""
    if isinstance(expected, dict) and "between" in expected:
        least, most = expected["between"]
        good = isinstance(actual, (int, float)) and least - 1e-6 <= actual <= most + 1e-6
    elif isinstance(expected, dict) and isinstance(actual, dict):
        for key, value in expected.items():
            match(f"{path}.{key}", actual.get(key, ...), value)
        return
    elif isinstance(expected, list) and isinstance(actual, list):
        good = len(actual) == len(expected)
        for i, value in enumerate(expected if good else []):
            match(f"{path}[{i}]", actual[i], value)
    elif expected is None:
        good = actual is ...
    elif isinstance(expected, bool) or isinstance(actual, bool):
        good = actual is expected
    elif isinstance(expected, (int, float)):
        tolerance = 1e-6 + 1e-9 * abs(expected)
        good = isinstance(actual, (int, float)) and abs(actual - expected) <= tolerance
    else:
        good = actual == expected
    if not good:
        shown = "absent" if actual is ... else json.dumps(actual)
        raise StoryFailed(f"{path} is {shown}, expected {json.dumps(expected)}")


def present(**values: Any) -> Dict[str, Any]:
    """Returns the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def keys(given: Dict[str, Any], known: str) -> Dict[str, Any]:
    """Fails if the story has a key that the form does not know."""
    for key in given:
        if key not in known.split():
            raise StoryFailed(f"the story has an unknown key: {key}")
    return given


def reorder(entries: Any, order: Any) -> Any:
    """Returns entries in the order of another list, by their resource_id."""
    if not isinstance(entries, list) or not isinstance(order, list):
        return entries
    names = [entry.get("resource_id") for entry in order]
    return sorted(entries, key=lambda entry: names.index(entry["resource_id"])
                  if entry.get("resource_id") in names else len(names))


class World:
    """A core, a clock, and what the core has sent. Subclasses have the steps of each core."""

    looks = {"counts"}
    expects = {"sends"}

    def __init__(self, core: Any) -> None:
        self.core, self.now = core, START
        self.sent: List[Request] = []
        self.names: Dict[int, str] = {}
        self.answered: set = set()
        self.seen = 0
        self.step: Dict[str, Any] = {}

    # ---- time

    def collect(self) -> None:
        for _ in range(TURNS_MAX):
            request = self.core.next(self.now)
            if request is None:
                return
            json.dumps(request.message)  # it is JSON
            request.sent_at = self.now
            self.sent.append(request)
        raise StoryFailed("the client never stops sending")

    def advance(self, until: int, is_over: Any) -> None:
        for _ in range(TURNS_MAX):
            if is_over():
                return
            due = self.core.due()
            if due > until:
                self.now = max(self.now, until)
                return
            self.now = max(self.now, due)
            self.collect()
        raise StoryFailed("the client stays due, and does nothing")

    def advance_for(self, is_over: Any = lambda: False, expects: bool = True) -> int:
        at = self.step.get("at", seconds(self.now - START))
        first, last = at if isinstance(at, list) else (at, at)
        if "at" not in self.step:
            first = last = None
        until = self.now if last is None else START + nanoseconds(last)
        if until < self.now - TOLERANCE:
            raise StoryFailed("the story goes back in time")
        start = self.now
        self.advance(until + TOLERANCE if expects else until, is_over)
        return start if first is None else START + nanoseconds(first)

    def check_time(self, what: str, at: int, first: int) -> None:
        if at < first - TOLERANCE:
            raise StoryFailed(f"{what} came at {seconds(at - START)} s, expected at "
                              f"{seconds(first - START)} s")

    # ---- steps

    def run(self, steps: List[Dict[str, Any]]) -> None:
        self.collect()
        for number, step in enumerate(steps, 1):
            try:
                self.run_step(step)
            except StoryFailed as failed:
                raise StoryFailed(f"step {number}: {failed}") from None
        self.check_end()

    def run_step(self, step: Dict[str, Any]) -> None:
        self.step = step
        verbs = [key for key in step if key != "at"]
        if len(verbs) != 1 or not hasattr(self, f"step_{verbs[0]}"):
            raise StoryFailed(f"the story has an unknown step: {verbs}")
        verb = verbs[0]
        if verb not in self.expects:
            self.advance_for(expects=False)
            if verb not in self.looks:
                self.check_all_is_seen()
        getattr(self, f"step_{verb}")(step[verb])
        self.collect()

    def check_all_is_seen(self) -> None:
        if self.seen < len(self.sent):
            request = self.sent[self.seen]
            raise StoryFailed(f"the story does not tell that the client sends {request.method} at "
                              f"{seconds(request.sent_at - START)} s: {request.message}")

    def check_end(self) -> None:
        self.check_all_is_seen()

    def step_sends(self, expected: Dict[str, Any]) -> None:
        keys(expected, "address method message as")
        first = self.advance_for(lambda: self.seen < len(self.sent))
        if self.seen == len(self.sent):
            raise StoryFailed(f"the client sends nothing until {seconds(self.now - START)} s")
        request = self.sent[self.seen]
        self.seen += 1
        message = dict(request.message)
        if "resource" in message:
            message["resource"] = reorder(message["resource"],
                                          expected.get("message", {}).get("resource"))
        match("the request", {"address": request.address, "method": request.method,
                              "message": message},
              {key: value for key, value in expected.items() if key != "as"})
        self.check_time("the request", request.sent_at, first)
        self.names[self.seen - 1] = expected.get("as", "")

    def request_of(self, answer: Dict[str, Any]) -> Request:
        for i in reversed(range(self.seen)):
            name = answer.get("to")
            if self.names[i] == name if name else i not in self.answered:
                self.answered.add(i)
                return self.sent[i]
        raise StoryFailed("there is no request to answer")

    def step_answers(self, answer: Dict[str, Any]) -> None:
        keys(answer, "to status body text")
        request = self.request_of(answer)
        body = answer.get("body")
        if isinstance(body, dict) and "response" in body:
            body = {**body, "response": reorder(body["response"],
                                                request.message.get("resource"))}
        if "text" in answer:
            try:
                body = json.loads(answer["text"])
            except ValueError:
                body = None
        self.core.response(request, answer.get("status", 200), body, self.now)

    def step_breaks(self, what: Dict[str, Any]) -> None:
        self.core.failed(self.request_of(keys(what, "to")), self.now)

    def step_waits(self, nothing: Dict[str, Any]) -> None:
        keys(nothing, "")

    def step_kill_switch(self, on: bool) -> None:
        self.core.kill_switch(on)

    def step_hears_master(self, nothing: Dict[str, Any]) -> None:
        keys(nothing, "")
        self.core.retry_soon(self.now)


class LeaseWorld(World):
    """Stories of leases."""

    looks = {"reads"}

    def __init__(self, options: Dict[str, Any]) -> None:
        keys(options, "kind client_id addresses request_timeout release_delay")
        super().__init__(LeaseCore(options.get("client_id", "me"),
                                   options.get("addresses", ["http://a:1"]), START,
                                   request_timeout=options.get("request_timeout", 5),
                                   release_delay=options.get("release_delay", 0),
                                   random=lambda: 0.0))
        self.resources: Dict[str, Resource] = {}

    def step_opens(self, options: Dict[str, Any]) -> None:
        self.resources[options["resource_id"]] = self.core.open(ResourceOptions(**options),
                                                                self.now)

    def step_closes(self, what: Dict[str, Any]) -> None:
        self.core.close(self.resources[keys(what, "resource_id")["resource_id"]], self.now)

    def step_wants(self, what: Dict[str, Any]) -> None:
        keys(what, "resource_id amount")
        self.core.set_wants(self.resources[what["resource_id"]], what["amount"], self.now)

    def step_tries(self, what: Dict[str, Any]) -> None:
        keys(what, "resource_id units times allowed impossible retry_after")
        resource, units = self.resources[what["resource_id"]], what.get("units", 1)
        allowed, decision = 0, "refused"
        for _ in range(what.get("times", 1)):
            decision = self.core.take(resource, units, self.now)
            allowed += decision == "allowed"
        wait: Optional[int] = None
        if decision == "refused":
            wait = self.core.retry_after(resource, units, self.now)
        seen = present(allowed=allowed, impossible=decision == "impossible",
                       retry_after=None if wait in (None, NEVER) else seconds(wait))
        match("the try", seen, {key: value for key, value in what.items()
                                if key not in ("resource_id", "units", "times")})

    def step_returns(self, what: Dict[str, Any]) -> None:
        keys(what, "resource_id units")
        self.resources[what["resource_id"]].limiter.release(what.get("units", 1))

    def step_repeats(self, what: Dict[str, Any]) -> None:
        keys(what, "every times tries ignores_requests")
        start = self.now
        for i in range(1, what["times"] + 1):
            self.advance(start + i * nanoseconds(what["every"]), lambda: False)
            if what.get("ignores_requests"):
                while self.seen < len(self.sent):
                    self.names[self.seen] = ""
                    self.seen += 1
            self.check_all_is_seen()
            self.step_tries(what["tries"])

    def step_reads(self, what: Dict[str, Any]) -> None:
        info = self.core.read(self.resources[what["resource_id"]], self.now)
        expires_at = None if info.expires_in is None else (
            seconds(self.now - START) + info.expires_in)
        seen = present(leased=info.leased, capacity=info.capacity, wants=info.wants,
                       in_use=info.in_use, expires_at=expires_at, reason=info.reason,
                       outcome=info.outcome, learning=info.learning,
                       safe_capacity=info.safe_capacity, allowed=info.allowed,
                       refused=info.refused, excess=info.excess, failures=info.failures)
        match("the resource", seen, {k: v for k, v in what.items() if k != "resource_id"})


class PermitWorld(World):
    """Stories of permits, holds and reservations."""

    looks = {"holds", "counts"}
    expects = {"sends", "decides", "changes"}

    def __init__(self, options: Dict[str, Any]) -> None:
        keys(options, "kind client_id addresses request_timeout fallback local shadow prefetch "
                      "max_pause report_once lanes")
        names = ("fallback", "shadow", "prefetch", "max_pause", "report_once")
        policy = PermitPolicy(local=Limit(**options["local"]) if "local" in options else None,
                              lanes=options.get("lanes", 0),
                              **{name: options[name] for name in names if name in options})
        super().__init__(PermitCore(options.get("client_id", "me"),
                                    options.get("addresses", ["http://a:1"]), START,
                                    policy=policy, first_number=1,
                                    request_timeout=options.get("request_timeout", 1)))
        self.calls: Dict[str, Call] = {}
        self.items: Dict[str, Any] = {}
        self.decisions: Dict[str, Any] = {}
        self.told: set = set()
        self.changes: List[Any] = []
        self.changes_seen = 0

    def collect(self) -> None:
        more = True
        while more:
            super().collect()
            acquired, held = self.core.decision(self.now), self.core.change(self.now)
            more = acquired is not None or held is not None
            if acquired is not None:
                self.decisions[acquired.context] = (acquired, self.now)
            if held is not None:
                self.changes.append((held, self.now))

    def check_end(self) -> None:
        super().check_end()
        if set(self.decisions) - self.told:
            raise StoryFailed(f"the story does not tell the decisions on "
                              f"{sorted(set(self.decisions) - self.told)}")
        if self.changes_seen < len(self.changes):
            raise StoryFailed("the story does not tell a change")

    def number_of(self, name: str) -> int:
        if name in self.decisions:
            return self.decisions[name][0].hold
        call = self.calls[name]
        return call.hold.number if call.hold else 0

    def step_acquires(self, what: Dict[str, Any]) -> None:
        keys(what, "call item max_wait equal detail timeout hold time_to_live priority share "
                   "settle_within")
        items = tuple(Item(**item) for item in what["item"])
        options = {key: value for key, value in what.items()
                   if key not in ("call", "item", "timeout")}
        self.items[what["call"]] = items
        self.calls[what["call"]] = self.core.acquire(Permit(items, **options),
                                                     what.get("timeout", 1), what["call"],
                                                     self.now)

    def step_decides(self, what: Dict[str, Any]) -> None:
        name = what["call"]
        first = self.advance_for(lambda: name in self.decisions)
        if name not in self.decisions:
            raise StoryFailed(f"{name} has no decision at {seconds(self.now - START)} s")
        acquired, at = self.decisions[name]
        match(name, describe(acquired), {k: v for k, v in what.items() if k != "call"})
        self.check_time("the decision", at, first)
        self.told.add(name)

    def step_reports(self, what: Dict[str, Any]) -> None:
        keys(what, "resource_id key cost")
        self.core.report(Item(what["resource_id"], what.get("key", "")), what.get("cost", 1),
                         self.now)

    def step_settles(self, what: Dict[str, Any]) -> None:
        keys(what, "call reservation cost timeout")
        name = what["reservation"]
        items = [Item(item.resource_id, item.key, cost)
                 for item, cost in zip(self.items[name], what["cost"])]
        self.core.settle(self.decisions[name][0].reservation, items, what.get("timeout", 0),
                         what.get("call"), self.now)

    def step_releases(self, what: Dict[str, Any]) -> None:
        keys(what, "call keep")
        self.core.release(self.number_of(what["call"]), what.get("keep"), self.now)

    def step_transfers(self, what: Dict[str, Any]) -> None:
        keys(what, "call hold amount time_to_live timeout")
        self.core.transfer(self.number_of(what["hold"]), what.get("amount"),
                           what.get("timeout", 1), what["call"], self.now,
                           what.get("time_to_live", 0))

    def step_seizes(self, what: Dict[str, Any]) -> None:
        keys(what, "call transfer_id time_to_live timeout")
        self.calls[what["call"]] = self.core.seize(what["transfer_id"], what.get("timeout", 1),
                                                   what["call"], self.now,
                                                   what.get("time_to_live", 0))

    def match_hold(self, held: Held, what: Dict[str, Any]) -> None:
        keys(what, "call gone ends_at units")
        ends_at = None if held.ends_at is None else seconds(held.ends_at - START)
        seen = present(gone=held.gone, ends_at=ends_at, units=list(held.units))
        match("the hold", seen, {k: v for k, v in what.items() if k != "call"})

    def step_changes(self, what: Dict[str, Any]) -> None:
        first = self.advance_for(lambda: self.changes_seen < len(self.changes))
        if self.changes_seen == len(self.changes):
            raise StoryFailed(f"no hold has changed at {seconds(self.now - START)} s")
        held, at = self.changes[self.changes_seen]
        self.changes_seen += 1
        if held.hold != self.number_of(what["call"]):
            raise StoryFailed("another hold has changed")
        self.match_hold(held, what)
        self.check_time("the change", at, first)

    def step_holds(self, what: Dict[str, Any]) -> None:
        self.match_hold(self.core.hold(self.number_of(what["call"])), what)

    def step_counts(self, what: Dict[str, Any]) -> None:
        match("the counts", self.core.read(), what)


def describe(acquired: Acquired) -> Dict[str, Any]:
    """Returns a decision as stories have it."""
    def since(at: Optional[int]) -> Optional[float]:
        return None if at is None else seconds(at - START)

    return present(granted=acquired.granted, by=acquired.by, units=acquired.units,
                   warning=acquired.warning, wait=acquired.wait, remaining=acquired.remaining,
                   reset_after=acquired.reset_after, quota=acquired.quota, window=acquired.window,
                   item_index=acquired.item_index, hold=acquired.granted and acquired.hold > 0,
                   reservation=acquired.reservation > 0, late=acquired.late,
                   unknown=acquired.unknown, limit=acquired.limit, reason=acquired.reason,
                   retry_after=acquired.retry_after, ends_at=since(acquired.ends_at),
                   settle_by=since(acquired.settle_by), transfer_id=acquired.transfer_id or None)


def run(story: Dict[str, Any]) -> None:
    """Runs a story. Raises StoryFailed."""
    keys(story, "story why client steps")
    options = story["client"]
    if options.get("kind", "leases") == "leases":
        LeaseWorld(options).run(story["steps"])
    else:
        PermitWorld(options).run(story["steps"])
