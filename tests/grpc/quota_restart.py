"""Quotas of a server that does not learn, over a crash and a planned stop. What a client like Envoy
was assigned before the crash lasts until its end, so nothing may be assigned until then.

    python3 tests/grpc/quota_restart.py HOST:PORT fill FILE
    python3 tests/grpc/quota_restart.py HOST:PORT wait FILE

The first command gets all of shop/name=restart, whose capacity is 120, and writes into the file
when that ends. The second one asks the last of the next servers, until it is assigned something."""
import queue
import sys
import time

import grpc
from envoy import Bucket, Stream, bucket_id, reports

WAIT = 120
bucket = Bucket(bucket_id(name="restart"))
stream = Stream(grpc.insecure_channel(sys.argv[1]))


def ask_until(condition):
    """Asks for much, and returns when the condition holds after an assignment."""
    end = time.monotonic() + WAIT
    while not condition():
        now = time.monotonic()
        assert now < end, f"nothing is assigned: {stream.code}, {stream.details}"
        bucket.ask(1000, now)
        stream.send(reports("shop", bucket.report(now)))
        try:
            got = stream.messages.get(timeout=0.3)
        except queue.Empty:
            continue
        assert got, f"the stream has ended: {stream.code}, {stream.details}"
        for action in got[1].bucket_action:
            bucket.take(action, got[0])


if sys.argv[2] == "fill":
    ask_until(lambda: bucket.rate == 120)
    with open(sys.argv[3], "w", encoding="utf-8") as file:
        file.write(str(bucket.ends_at))
    sys.exit()

with open(sys.argv[3], encoding="utf-8") as file:
    ends_at = float(file.read())
ask_until(lambda: bucket.rate > 0)
assert time.monotonic() >= ends_at, f"{ends_at - time.monotonic()} s too early"
