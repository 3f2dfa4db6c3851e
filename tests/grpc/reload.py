"""A certificate is replaced: open connections stay, and new ones get the new certificate.

    python3 tests/grpc/reload.py HOST:PORT FOLDER PROCESS"""
import os
import shutil
import signal
import sys
import time

import grpc
from client import ENVOY, Client, request

WAIT = 120
SHOULD = ENVOY + "ShouldRateLimit"
address, folder, process = sys.argv[1:]
message = request("shop", [("path", "/reload")])


def client(authority):
    with open(f"{folder}/{authority}.pem", "rb") as file:
        credentials = grpc.ssl_channel_credentials(file.read())
    options = [("grpc.use_local_subchannel_pool", 1)]
    return Client(grpc.secure_channel(address, credentials, options), timeout=20)


def is_admitted(authority):
    code, _ = client(authority).code(SHOULD, message)
    assert code in ("OK", "UNAVAILABLE"), code
    return code == "OK"


first = client("ca")
assert first.code(SHOULD, message)[0] == "OK"
assert not is_admitted("ca2")
for kind in ("key", "pem"):
    shutil.copy(f"{folder}/other.{kind}", f"{folder}/served.{kind}")
os.kill(int(process), signal.SIGHUP)
end = time.monotonic() + WAIT
while not is_admitted("ca2"):
    assert time.monotonic() < end, "the new certificate is not in use"
    time.sleep(0.1)
assert not is_admitted("ca")
assert first.code(SHOULD, message)[0] == "OK", "the open connection has ended"
