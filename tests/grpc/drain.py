"""A drain of a process without an election, and its end. Connections are told to go, and the health
check says that the process does not serve. New connections are answered all the same.

    python3 tests/grpc/drain.py HOST:PORT HTTP-ADDRESS"""
import sys
import time
import urllib.request

import grpc
from client import ENVOY, Client, request, wire
from frames import GOAWAY, Peer, equal

WAIT = 120
SHOULD = ENVOY + "ShouldRateLimit"
address, http = sys.argv[1:]
LONELY = [("grpc.use_local_subchannel_pool", 1)]


def post(path):
    head = {"Authorization": "Bearer admin-1", "Content-Type": "application/json"}
    asked = urllib.request.Request(http + path, data=b"", headers=head)
    with urllib.request.urlopen(asked, timeout=WAIT) as answer:
        equal(answer.status, 200)


def client():
    return Client(grpc.insecure_channel(address, LONELY), "admin-1")


def eventually(what, condition):
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.05)


message = request("shop", [("path", "/drain")])
peer = Peer()
watch = client().watch()
equal(next(watch).status, wire.SERVING)
equal(client().code(SHOULD, message)[0], "OK")
post("/v1/drain?force=1&reason=test")
while True:
    last = peer.read()
    assert last, "the connection has ended without GOAWAY"
    if last[0] == GOAWAY:
        break
peer.wait_for_end()
try:
    next(watch)
    raise AssertionError("Watch goes on")
except grpc.RpcError as error:
    equal(error.code(), grpc.StatusCode.UNAVAILABLE)
late = client()
equal(late.health(), wire.NOT_SERVING)
equal(late.code(SHOULD, message)[0], "UNAVAILABLE")
again = late.watch()
equal(next(again).status, wire.NOT_SERVING)
post("/v1/undrain")
equal(next(again).status, wire.SERVING)
equal(late.health(), wire.SERVING)
eventually("an undrained process does not answer", lambda: late.code(SHOULD, message)[0] == "OK")
