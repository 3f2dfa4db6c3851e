"""What the status and the page say of quotas.

    python3 tests/grpc/quota_status.py HOST:PORT HTTP"""
import json
import queue
import sys
import time
import urllib.request

import grpc
from envoy import Stream, bucket_id, reports, usage

WAIT = 120


def equal(got, expected):
    assert got == expected, f"got {got!r}, expected {expected!r}"


def read(path):
    with urllib.request.urlopen(sys.argv[2] + path, timeout=WAIT) as answer:
        return answer.read().decode()


def assign(stream, name):
    """Reports a bucket until it has an assignment of requests."""
    end = time.monotonic() + WAIT
    while True:
        assert time.monotonic() < end, "nothing is assigned"
        stream.send(reports("shop", usage(bucket_id(name=name), 0, 10)))
        try:
            message = stream.next(1)
        except queue.Empty:
            continue
        for action in message.bucket_action:
            strategy = action.quota_assignment_action.rate_limit_strategy
            if strategy.WhichOneof("strategy") == "token_bucket":
                return


def shows(**expected):
    """Waits until the status has these numbers."""
    end = time.monotonic() + WAIT
    while True:
        got = json.loads(read("/v1/status"))["grpc"]["quotas"]
        if all(got[name] == value for name, value in expected.items()):
            return got
        assert time.monotonic() < end, f"got {got}, expected {expected}"
        time.sleep(0.1)


shows(streams=0, buckets=0, resources=0, ended_streams=0, ended_committed=0)
assert "; quotas:" not in read("/")
streams = []
for _ in range(2):
    streams.append(Stream(grpc.insecure_channel(sys.argv[1])))
    assign(streams[-1], "status")
assign(streams[0], "status-too")
shows(streams=2, buckets=3, resources=2, ended_streams=0, ended_committed=0)
assert "; quotas: 2 streams, 3 buckets of 2 resources</dd>" in read("/"), read("/")
streams[0].call.cancel()
got = shows(streams=1, buckets=3, resources=2, ended_streams=1)
assert 1 <= got["ended_committed"] <= 240, got
text = f"3 buckets of 2 resources; 1 ended stream may still use {got['ended_committed']} request"
page = read("/")
assert text in page or "ended stream" not in page, page  # its assignment ends soon
got = shows(streams=1, ended_streams=0, ended_committed=0)
assert got["buckets"] <= 1, got  # the other stream reports nothing, so its bucket ends too
streams[1].call.cancel()
