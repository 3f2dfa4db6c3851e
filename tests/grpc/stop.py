"""A server that stops says so: a request in progress still gets its answer, Watch ends, and no
connection takes new requests. A stream of quotas ends too.

    python3 tests/grpc/stop.py HOST:PORT PROCESS"""
import os
import signal
import sys

import grpc
from client import Client, request, wire
from envoy import Stream, bucket_id, reports, usage
from frames import DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, Peer, body, equal, frame, head

peer = Peer()
peer.send(frame(HEADERS, END_HEADERS, 1, head()))
peer.call(3, request("shop", [("path", "/stop")]))
equal(peer.status(3), 0)
watch = Client(grpc.insecure_channel(sys.argv[1])).watch()
equal(next(watch).status, wire.SERVING)
quota = Stream(grpc.insecure_channel(sys.argv[1]))
quota.send(reports("shop", usage(bucket_id(name="stop"), 1, 0)))
quota.call.initial_metadata()  # the server has the stream
os.kill(int(sys.argv[2]), signal.SIGTERM)
while True:
    last = peer.read()
    assert last, "the connection has ended without GOAWAY"
    if last[0] == GOAWAY:
        break
peer.send(frame(DATA, END_STREAM, 1, body(request("shop", [("path", "/stop")]))))
equal(peer.status(1), 14)
equal(quota.wait_for_end(60), "UNAVAILABLE")
peer.wait_for_end()
try:
    next(watch)
    raise AssertionError("Watch goes on")
except grpc.RpcError as error:
    equal(error.code(), grpc.StatusCode.UNAVAILABLE)
