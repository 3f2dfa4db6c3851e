"""Writes stories whose steps are random. What must be seen is what the cores of this package do, so
another client that passes the stories behaves in the same way.

    python3 random_stories.py leases|permits|shards SEED COUNT FOLDER

The wants of random leases are constant: when wants follow use, a client may look at its counts some
nanoseconds earlier than another one.
"""
from __future__ import annotations

import json
import pathlib
import random
import sys
from typing import Any, Dict, List

import stories
from doorman._base import Request, nanoseconds, seconds
from stories import START, TURNS_MAX, LeaseWorld, PermitWorld, World

PAUSES = [0, 0, 0.05, 0.1, 0.3, 1, 3, 6]
ERROR = {"status": 503, "body": {"error": {"code": "UNAVAILABLE", "message": "no"}}}
ABSENT = {"sends": ("request_id", "max_wait"), "resource": ("has",),
          "decides": ("limit", "reason", "retry_after", "ends_at", "settle_by", "transfer_id"),
          "reads": ("expires_at", "reason", "outcome", "safe_capacity")}


def complete(seen: Dict[str, Any], kind: str) -> Dict[str, Any]:
    """Returns what was seen, with null for what is absent."""
    return {**{key: None for key in ABSENT[kind]}, **seen}


def without_defaults(items: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Returns items of a message without a cost of 1, which clients may leave out."""
    return [{key: value for key, value in item.items() if (key, value) != ("cost", 1)}
            for item in items]


class Writer:
    """Runs random steps, and writes down what is seen."""

    def __init__(self, seed: int, client: Dict[str, Any], world: World) -> None:
        self.random, self.client, self.world = random.Random(seed), client, world
        self.steps: List[Dict[str, Any]] = []
        self.open: List[int] = []  # requests without an answer
        self.time = 0.0

    def tell(self, at: int, verb: str, what: Any) -> None:
        self.steps.append({"at": seconds(at - START), verb: what})

    def tell_requests(self) -> None:
        """Writes down all requests that no step has seen."""
        world = self.world
        while world.seen < len(world.sent):
            request, name = world.sent[world.seen], f"q{world.seen}"
            self.tell(request.sent_at, "sends", {
                "address": request.address, "method": request.method, "as": name,
                "message": self.expected(request)})
            world.names[world.seen] = name
            self.open.append(world.seen)
            world.seen += 1

    def tell_all(self) -> None:
        self.tell_requests()

    def expected(self, request: Request) -> Dict[str, Any]:
        raise NotImplementedError

    def answer_of(self, request: Request) -> Dict[str, Any]:
        raise NotImplementedError

    def wait(self) -> None:
        """Lets time pass until the time of the next step."""
        until = START + nanoseconds(self.time)
        for _ in range(TURNS_MAX):
            due = self.world.core.due()
            if due > until:
                break
            self.world.now = max(self.world.now, due)
            self.world.collect()
            self.tell_all()
        else:
            raise SystemExit("the core stays due, and does nothing")
        self.world.now = max(self.world.now, until)

    def act(self, verb: str, what: Any) -> None:
        """Does a step at the current time of the story."""
        self.wait()
        step = {"at": self.time, verb: what}
        self.steps.append(step)
        self.world.step = step
        getattr(self.world, f"step_{verb}")(what)
        self.world.collect()
        self.tell_all()

    def look(self, verb: str, what: Dict[str, Any]) -> Dict[str, Any]:
        """Does a step, and returns all that could be seen."""
        seen: Dict[str, Any] = {}
        compare = stories.match
        stories.match = lambda path, actual, expected: seen.update(actual)
        try:
            self.act(verb, what)
        finally:
            stories.match = compare
        return seen

    def later(self) -> None:
        self.time = round(self.time + self.random.choice(PAUSES), 3)

    def answer(self) -> bool:
        """Answers one of the last requests, or breaks its connection."""
        choose = self.random
        live = [index for index in self.open if index not in self.world.answered]
        if not live:
            return False
        index = choose.choice(live[-3:])
        name, kind = self.world.names[index], choose.random()
        masters = [{}, {"http_address": "http://x:1"}, {"http_address": "http://y:1"}]
        if kind < 0.06:
            self.act("breaks", {"to": name})
        elif kind < 0.1:
            self.act("answers", {"to": name, **ERROR})
        elif kind < 0.17:
            self.act("answers", {"to": name, "body": {"mastership": choose.choice(masters)}})
        elif kind < 0.19:
            self.act("answers", {"to": name, "text": "not JSON"})
        else:
            body = self.answer_of(self.world.sent[index])
            self.act("answers", {"to": name, "body": body})
        return True

    def story(self, name: str) -> Dict[str, Any]:
        return {"story": name, "why": "random", "client": self.client, "steps": self.steps}


def addresses(choose: random.Random) -> List[str]:
    return ["http://a:1", "http://b:1", "http://c:1"][:choose.randrange(1, 4)]


# ---- leases


class LeaseWriter(Writer):
    """Random stories of leases."""

    world: LeaseWorld

    def __init__(self, seed: int) -> None:
        choose = random.Random(seed)
        client = {"addresses": addresses(choose), "release_delay": choose.choice([0, 0.1])}
        super().__init__(seed, client, LeaseWorld(client))
        self.opened: List[str] = []
        self.leases = 0

    def expected(self, request: Request) -> Dict[str, Any]:
        entries = [{key: value for key, value in entry.items() if key != "priority"}
                   for entry in request.message["resource"]]
        if request.method == "get_capacity":
            entries = [complete(entry, "resource") for entry in entries]
        return {**request.message, "resource": json.loads(json.dumps(entries))}

    def answer_of(self, request: Request) -> Dict[str, Any]:
        if request.method == "release_capacity":
            return {}
        return {"response": [self.entry_of(entry) for entry in request.message["resource"]]}

    def entry_of(self, asked: Dict[str, Any]) -> Dict[str, Any]:
        choose = self.random
        entry: Dict[str, Any] = {"resource_id": asked["resource_id"]}
        if choose.random() < 0.5:
            entry["safe_capacity"] = choose.choice([0, 2, 10, -1])
        if choose.random() < 0.2:
            entry["learning"] = True
        if choose.random() < 0.15:
            reason = choose.choice(["TRY_LATER", "UNMATCHED", "FULL"])
            return {**entry, "refused": {"reason": reason,
                                         "refresh_interval": choose.choice([1, 8])}}
        self.leases += 1
        capacity = choose.choice([0, 1, 5, asked["wants"], asked["wants"], asked["wants"]])
        gets = {"id": self.leases, "node": choose.choice(["eu", "eu", "us"]),
                "capacity": capacity, "expires_in": choose.choice([4, 20, 60]),
                "refresh_interval": choose.choice([1, 2, 8, 15])}
        if asked["resource_id"] in "gh":
            gets["whole"] = True
        if capacity < asked["wants"]:
            gets["reason"] = "SHARE"
        return {**entry, "gets": gets}

    def open_one(self) -> None:
        choose = self.random
        name = choose.choice("abgh")
        if name in self.opened:
            return
        fallback = choose.choice(["safe", "safe", "pessimistic", "optimistic"])
        options: Dict[str, Any] = {"resource_id": name, "wants": choose.choice([1, 5, 50]),
                                   "kind": "gauge" if name in "gh" else "rate",
                                   "fallback": fallback}
        if fallback == "safe" and choose.random() < 0.5:
            options["safe_capacity"] = choose.choice([0, 3, -1])
        if choose.random() < 0.1:
            options["shadow"] = True
        self.opened.append(name)
        self.act("opens", options)

    def try_one(self, name: str) -> None:
        choose = self.random
        what = {"resource_id": name, "units": choose.choice([1, 1, 2, 7]),
                "times": choose.choice([1, 3, 30])}
        seen = self.look("tries", what)
        what.update(allowed=seen["allowed"], impossible=seen["impossible"],
                    retry_after=seen.get("retry_after"))
        if name in "gh" and seen["allowed"] and choose.random() < 0.7:
            self.act("returns", {"resource_id": name, "units": seen["allowed"] * what["units"]})

    def step(self) -> None:
        choose, kind = self.random, self.random.random()
        if kind < 0.4 and self.answer():
            return
        if kind < 0.55 or not self.opened:
            self.open_one()
            return
        name = choose.choice(self.opened)
        if kind < 0.6:
            self.opened.remove(name)
            self.act("closes", {"resource_id": name})
        elif kind < 0.66:
            self.act("wants", {"resource_id": name, "amount": choose.choice([0, 1, 4, 10])})
        elif kind < 0.9:
            self.try_one(name)
        elif kind < 0.97:
            what = {"resource_id": name}
            what.update(complete(self.look("reads", what), "reads"))
        else:
            self.act("kill_switch", choose.random() < 0.5)


# ---- permits


class PermitWriter(Writer):
    """Random stories of permits, holds and reservations."""

    world: PermitWorld

    def __init__(self, seed: int) -> None:
        choose = random.Random(seed)
        client: Dict[str, Any] = {"kind": "permits", "addresses": addresses(choose),
                                  "fallback": choose.choice(["open", "closed", "local"])}
        if client["fallback"] == "local":
            client["local"] = choose.choice([
                {"kind": "TOKEN_BUCKET", "rate": 1, "size": 4},
                {"kind": "FIXED_WINDOW", "limit": 5, "window": 3},
                {"kind": "SLIDING_WINDOW", "limit": 5, "window": 3}])
        for name, chance, values in (("shadow", 0.15, [True]), ("prefetch", 0.3, [0.5, 1, 2]),
                                     ("report_once", 0.3, [True]), ("lanes", 0.6, [0, 1, 2])):
            if choose.random() < chance:
                client[name] = choose.choice(values)
        super().__init__(seed, client, PermitWorld(client))
        self.calls = self.changes = 0
        self.told: List[str] = []

    def expected(self, request: Request) -> Dict[str, Any]:
        message = json.loads(json.dumps(request.message))
        if request.method == "discovery":
            return message
        name = "permit" if "permit" in message else "entry"
        entries = without_defaults(message[name])
        for entry in entries:
            if "item" in entry:
                entry["item"] = without_defaults(entry["item"])
        if name == "permit":
            entries = [complete(entry, "sends") for entry in entries]
        return {**message, name: entries}

    def tell_all(self) -> None:
        self.tell_requests()
        world = self.world
        for call, (acquired, at) in list(world.decisions.items()):
            if call not in self.told:
                self.told.append(call)
                self.tell(at, "decides", {"call": call, **complete(stories.describe(acquired),
                                                                  "decides")})
        while self.changes < len(world.changes):
            held, at = world.changes[self.changes]
            self.changes += 1
            owner = next(call for call in world.calls if world.number_of(call) == held.hold)
            what = {"call": owner, "gone": held.gone, "units": list(held.units)}
            if held.ends_at:
                what["ends_at"] = seconds(held.ends_at - START)
            self.tell(at, "changes", what)
        world.changes_seen = self.changes
        world.told.update(self.told)

    # ---- what servers answer

    def answer_of(self, request: Request) -> Dict[str, Any]:
        name = "permit" if request.method == "acquire" else "entry"
        answer = getattr(self, f"{request.method}_of")
        most = self.random.choice([0, 0, 0.1, 1])  # some messages are for shards that all move
        return {name: [self.moved(name) if self.random.random() < most else answer(entry)
                       for entry in request.message[name]]}

    @staticmethod
    def moved(name: str) -> Dict[str, Any]:
        refused = {"decision": "REFUSED", "item_index": 0} if name == "permit" else {}
        return {**refused, "reason": "MOVED"}

    def acquire_of(self, permit: Dict[str, Any]) -> Dict[str, Any]:
        if self.random.random() < 0.35:
            return self.refusal_of(permit)
        choose = self.random
        out: Dict[str, Any] = {"decision": "GRANTED", "item": []}
        for item in permit["item"]:
            least = item.get("min", item["cost"])
            grant: Dict[str, Any] = {"granted": item["cost"] if choose.random() < 0.7 else least}
            if choose.random() < 0.7:
                grant.update(limit=choose.choice("ab"), remaining=choose.randrange(50),
                             reset_after=choose.randrange(20))
            out["item"].append(grant)
        if choose.random() < 0.2:
            out["wait"] = choose.choice([0.1, 0.5, 2])
        if choose.random() < 0.1:
            out["warning"] = True
        if "request_id" in permit and choose.random() < (0.5 if "settle_within" in permit else 0.9):
            out["hold"] = {"id": choose.randrange(1, 10**6), "node": "eu",
                           "waited": choose.choice([0, 0, 0.3]),
                           "expires_in": choose.choice([3, 9, 15])}
        if "settle_within" in permit and choose.random() < 0.9:
            out["reservation"] = {"id": choose.randrange(1, 10**6),
                                  "settle_within": permit["settle_within"]}
        return out

    def refusal_of(self, permit: Dict[str, Any]) -> Dict[str, Any]:
        choose = self.random
        out: Dict[str, Any] = {
            "decision": "REFUSED", "resource_id": permit["item"][0]["resource_id"],
            "reason": choose.choice(["RATE", "BANNED", "UNMATCHED", "LEARNING", "MAX_COST"])}
        for name, chance, values in (("limit", 0.5, ["a"]), ("valid_for", 0.6, [0.5, 1, 3]),
                                     ("retry_after", 0.6, [0.5, 2, 7])):
            if choose.random() < chance:
                out[name] = choose.choice(values)
        if len(permit["item"]) > 1:
            out["item_index"] = choose.randrange(len(permit["item"]))
        return out

    def report_of(self, entry: Dict[str, Any]) -> Dict[str, Any]:
        return self.random.choice([{"charged": entry["cost"]}, {"charged": 0},
                                   {"charged": 0, "reason": "LEARNING"},
                                   {"charged": 0, "reason": "REPEATS"}])

    def renew_of(self, entry: Dict[str, Any]) -> Dict[str, Any]:
        if self.random.random() < 0.2:
            return {"gone": True}
        holds = [hold for hold in self.world.core.holds.values() if hold.id == entry["id"]]
        amounts = list(holds[0].amounts) if holds else [1]
        if self.random.random() < 0.2:
            amounts = [amount / 2 for amount in amounts]
        return {"expires_in": self.random.choice([3, 9, 15]), "amount": amounts}

    def release_of(self, _entry: Dict[str, Any]) -> Dict[str, Any]:
        return self.random.choice([{"gone": True}, {"amount": []}])

    def transfer_of(self, entry: Dict[str, Any]) -> Dict[str, Any]:
        moved = {"transfer_id": self.random.randrange(1, 10**6), "expires_in": 15,
                 "amount": entry["amount"]}
        return self.random.choice([{"gone": True}, {"reason": "MAX_HOLDS"}, moved, moved])

    def seize_of(self, _entry: Dict[str, Any]) -> Dict[str, Any]:
        seized = {"id": self.random.randrange(1, 10**6), "node": "eu", "expires_in": 9,
                  "item": [{"resource_id": "t", "amount": 2}]}
        return self.random.choice([{"gone": True}, {"reason": "MAX_HOLDS"}, seized])

    def settle_of(self, entry: Dict[str, Any]) -> Dict[str, Any]:
        def items(returned: float, charged: float) -> Dict[str, Any]:
            return {"item": [{"returned": returned, "charged": charged} for _ in entry["item"]]}

        return self.random.choice([
            {"reason": "LEARNING"}, {"reason": "REPEATED"}, {"unknown": True, **items(0, 1)},
            {"id": 5, **items(1, 0)}, {"id": 5, "late": True, **items(0, 2)}])

    # ---- what the application does

    def name(self, kind: str) -> str:
        self.calls += 1
        return f"{kind}{self.calls}"

    def acquire(self) -> None:
        choose = self.random
        items = []
        for _ in range(choose.choice([1, 1, 1, 2])):
            item = {"resource_id": choose.choice("tuv"), "key": choose.choice("km"),
                    "cost": choose.choice([1, 2, 3])}
            if choose.random() < 0.3:
                item["min"] = choose.choice([0, 1])
            items.append(item)
        what: Dict[str, Any] = {"call": self.name("c"), "item": items,
                                "timeout": choose.choice([0, 0.3, 1, 3, 20])}
        if choose.random() < 0.35:
            what["hold"] = True
        if choose.random() < 0.3:
            what["max_wait"] = choose.choice([1, 5])
        if choose.random() < 0.3:
            what["settle_within"] = choose.choice([2, 30])
        if len({str(item) for item in items}) == 1 and "min" not in items[0]:
            what["equal"] = choose.random() < 0.2
        self.act("acquires", what)

    def holds(self) -> List[str]:
        """Returns the calls whose hold the application knows."""
        world = self.world
        return [call for call in world.calls
                if world.number_of(call) and (call[0] != "z" or call in world.decisions)]

    def settle(self) -> None:
        choose, world = self.random, self.world
        known = [call for call, (acquired, _) in world.decisions.items()
                 if acquired.reservation and call in world.items]
        if not known:
            return
        call = choose.choice(known)
        what = {"reservation": call, "cost": [choose.choice([0, 1, 5]) for _ in world.items[call]]}
        if choose.random() < 0.5:
            what.update(call=self.name("s"), timeout=choose.choice([0.5, 5]))
        self.act("settles", what)

    def step(self) -> None:
        choose, kind = self.random, self.random.random()
        if kind < 0.45 and self.answer():
            return
        if kind < 0.75:
            self.acquire()
        elif kind < 0.8:
            self.act("reports", {"resource_id": choose.choice("tu"), "key": "k",
                                 "cost": choose.choice([1, 2, -1])})
        elif kind < 0.88 and self.holds():
            keep = {"keep": [choose.choice([0, 1])]} if choose.random() < 0.3 else {}
            self.act("releases", {"call": choose.choice(self.holds()), **keep})
        elif kind < 0.92:
            self.settle()
        elif kind < 0.95 and self.holds():
            amount = {"amount": [1]} if choose.random() < 0.5 else {}
            self.act("transfers", {"call": self.name("t"), "hold": choose.choice(self.holds()),
                                   **amount})
        elif kind < 0.97:
            self.act("seizes", {"call": self.name("z"), "transfer_id": 7})
        elif kind < 0.985:
            self.act("kill_switch", choose.random() < 0.6)

    def story(self, name: str) -> Dict[str, Any]:
        counts = dict(self.world.core.read())
        for key in ("is_pausing", "prefetched", "lapsed"):
            del counts[key]
        self.steps.append({"counts": counts})
        return super().story(name)


class ShardWriter(PermitWriter):
    """Random stories of permits whose keys belong to nodes, as those of the folder http. They are
    not for the client in C."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.epoch = 1
        self.addresses = {name: self.random.choice([[], *[[f"http://n{name}:1"]] * 3, [
            f"http://n{name}:1", f"http://n{name}:2"]]) for name in "abcd"}

    def answer_of(self, request: Request) -> Dict[str, Any]:
        if request.method == "discovery":
            return self.discovery()
        if self.random.random() < 0.1:
            self.epoch += 1
        return {**super().answer_of(request), "map_epoch": self.epoch}

    def discovery(self) -> Dict[str, Any]:
        choose = self.random
        names = choose.sample("abcd", choose.choice([1, 3, 4, 4]))
        nodes = [{"name": name, "addresses": [f"tcp://{name}"],
                  "http_addresses": self.addresses[name]} for name in names]
        rules = choose.choice([[], [{"glob": choose.choice(["t", "[t-u]", "*"]), "by": "resource"}]])
        found = {"epoch": self.epoch, "seed": f"{choose.getrandbits(128):032x}", "nodes": nodes,
                 "shards": [{"owner": choose.choice(names)} for _ in range(5)], "rules": rules}
        if choose.random() < 0.05:
            found["seed"] = "wrong"
        out = {"is_master": choose.random() < 0.9,
               "mastership": choose.choice([{}, {"http_address": "http://x:1"}])}
        return {**out, "map": found} if choose.random() < 0.8 else out

    def step(self) -> None:
        if self.random.random() > 0.5 or not self.answer():
            super().step()


def write(kind: str, seed: int) -> Dict[str, Any]:
    """Returns the random story of a seed."""
    writer = {"leases": LeaseWriter, "permits": PermitWriter, "shards": ShardWriter}[kind](seed)
    for _ in range(writer.random.randrange(5, 45)):
        writer.later()
        writer.step()
    writer.time = round(writer.time + writer.random.choice([1, 30, 120]), 3)
    writer.act("waits", {})
    return writer.story(f"random {kind}, seed {seed}")


def main() -> None:
    kind, seed, count, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    for first in range(seed, seed + count, 50):
        all_stories = [write(kind, each) for each in range(first, min(first + 50, seed + count))]
        path = pathlib.Path(folder, f"{first}.json")
        path.write_text(json.dumps({"stories": all_stories}), "utf-8")


if __name__ == "__main__":
    main()
