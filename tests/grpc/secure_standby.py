"""TLS on all ways: a client, a standby, and its link to the master.

    python3 tests/grpc/secure_standby.py FOLDER HOST:PORT HOST:PORT"""
import sys
import time

import grpc
from client import ENVOY, Client, request, wire

WAIT = 120
folder, addresses = sys.argv[1], sys.argv[2:]


def read(name):
    with open(f"{folder}/{name}", "rb") as file:
        return file.read()


credentials = grpc.ssl_channel_credentials(read("ca.pem"), read("own.key"), read("own.pem"))
clients = [Client(grpc.secure_channel(each, credentials)) for each in addresses]
end = time.monotonic() + WAIT
for each in clients:
    while each.health() != wire.SERVING:
        assert time.monotonic() < end, "a process does not serve"
        time.sleep(0.05)
left = [
    clients[i % 2].limit("shop", [("path", "/secure")]).statuses[0].limit_remaining
    for i in range(4)
]
assert left == [4, 3, 2, 1], left
assert clients[0].code(ENVOY + "ShouldRateLimit", request("", [("a", "b")]))[0] == "INVALID_ARGUMENT"
