"""A Commit while a master does not know the reservations of the last one, because it cannot read the
store yet (P27).

    python3 tests/grpc/learning.py HOST:PORT reserve FILE
    python3 tests/grpc/learning.py HOST:PORT commit FILE PROCESS

The first command reserves, and writes the id of the reservation into the file. The second one asks
the next master, while the store stands still. Then it lets the process of the store go on."""
import os
import signal
import sys
import time

import grpc
from client import KUADRANT, Client, request, wire

WAIT = 120
COMMIT = KUADRANT + "Commit"
names = [("path", "/learning")]
client = Client(grpc.insecure_channel(sys.argv[1]))


def equal(got, expected):
    assert got == expected, f"got {got!r}, expected {expected!r}"


def left():
    look = wire.Descriptor(
        entries=[wire.Entry(key=b"path", value=b"/learning")], hits_addend=wire.Number(value=0)
    )
    return client.limit("shop", look).statuses[0].limit_remaining


def commit(reservation):
    """The code and the text of a Commit that has cost 1 unit."""
    message = wire.CommitRequest(
        domain=b"shop", actual_amount=1, reservation_id=reservation.encode(),
        descriptors=request("shop", names).descriptors,
    )
    return client.code(COMMIT, message)


if sys.argv[2] == "reserve":
    answer = client.reserve("shop", names, amount=4, ttl=600)
    equal((answer.code, left()), (wire.ALLOWED, 1))
    with open(sys.argv[3], "w", encoding="utf-8") as file:
        file.write(answer.reservation_id)
    sys.exit()

with open(sys.argv[3], encoding="utf-8") as file:
    reservation = file.read()
for _ in range(3):
    code, text = commit(reservation)
    equal(code, "UNAVAILABLE")
    equal(text, "the master does not know all reservations yet: send it again")
os.kill(int(sys.argv[4]), signal.SIGCONT)
end = time.monotonic() + WAIT
while commit(reservation)[0] == "UNAVAILABLE":
    assert time.monotonic() < end, "the master does not read the store"
    time.sleep(0.05)
# it is settled once, although it was sent several times: 3 of the 4 units have come back
equal(client.commit("shop", names, amount=1, reservation=reservation), True)
equal(left(), 4)
