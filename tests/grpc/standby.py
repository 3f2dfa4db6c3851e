"""A node of two processes: both answer, and a standby answers when the master was killed.

    python3 tests/grpc/standby.py HOST:PORT PROCESS HOST:PORT PROCESS LOG LOG"""
import os
import signal
import sys
import threading
import time

import grpc
from client import ENVOY, KUADRANT, Client, request, wire

WAIT = 120
SHOULD = ENVOY + "ShouldRateLimit"
addresses = [sys.argv[1], sys.argv[3]]
processes = [int(sys.argv[2]), int(sys.argv[4])]
clients = [Client(grpc.insecure_channel(each)) for each in addresses]


def equal(got, expected):
    assert got == expected, f"got {got!r}, expected {expected!r}"


def eventually(what, condition):
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def remaining(client, hits=1):
    return client.limit("shop", [("path", "/both")], hits=hits).statuses[0].limit_remaining


def serves(client):
    return client.code(SHOULD, request("none", [("a", "b")]))[0] == "OK"


for client in clients:
    eventually("a process does not serve", lambda: client.health() == wire.SERVING)

# both decide on the same counters, one of them by asking the other
equal([remaining(clients[i % 2]) for i in range(4)], [4, 3, 2, 1])
for client in clients:
    answer = client.limit("shop", [("path", "/both")], [("user", "both")], [("no", "x")], hits=2)
    equal([status.code for status in answer.statuses], [2, 1, 1])
    equal(answer.overall_code, wire.OVER_LIMIT)
    equal(client.limit("shop", [("path", "/r")], path=KUADRANT + "Report", hits=2).overall_code, 1)
check = KUADRANT + "CheckRateLimit"
equal([each.limit("shop", [("path", "/r")], path=check).overall_code for each in clients], [1, 1])
clients[0].limit("shop", [("path", "/r")], path=KUADRANT + "Report", hits=5)
equal([each.limit("shop", [("path", "/r")], path=check).overall_code for each in clients], [2, 2])

# a reservation that one process has made is settled by any other
for i in range(2):
    names = [("path", f"/reserve{i}")], [("no", "x")]
    answer = clients[i].reserve("shop", *names, amount=5)
    equal((answer.code, clients[1 - i].reserve("shop", *names, amount=1).code), (1, 2))
    released = clients[1 - i].commit("shop", *names, amount=3, reservation=answer.reservation_id)
    equal((released, clients[i].reserve("shop", *names, amount=2).code), (True, 1))
    equal(clients[i].commit("shop", *names, amount=1, reservation="00000000000001"), False)
    equal(clients[1 - i].commit("shop", *names, amount=1), False)

# many calls at once
calls = []
method = [
    each.channel.unary_unary(SHOULD, lambda m: m.SerializeToString(), wire.LimitResponse.FromString)
    for each in clients
]
message = request("shop", [("path", "/many")])
for i in range(400):
    calls.append(method[i % 2].future(message, timeout=60))
equal([call.result().overall_code for call in calls].count(wire.ALLOWED), 5)

# the master ends; the standby says so, and then serves. The log of a master says that it is one.
def is_master(process):
    with open(sys.argv[5 + processes.index(process)], encoding="utf-8") as file:
        return "this server is the master" in file.read()


first = 0 if is_master(processes[0]) else 1

# a standby asks for a limit that only the master has, also beside what both do not know
name = ("one", "two")[first]
answer = clients[1 - first].limit("shop", [("no", "x")], [(name, "a")], [("no", "y")])
equal(answer.statuses[1].limit_remaining, 99)
equal([status.HasField("current_limit") for status in answer.statuses], [False, True, False])
changes = []
watch = clients[1 - first].watch(timeout=WAIT)
reader = threading.Thread(target=lambda: changes.extend(next(watch).status for _ in range(3)))
reader.start()
eventually("Watch does not answer", lambda: changes)
os.kill(processes[first], signal.SIGKILL)
eventually("no process serves", lambda: serves(clients[1 - first]))
reader.join(WAIT)
equal(changes, [wire.SERVING, wire.NOT_SERVING, wire.SERVING])
