"""50 clients like Envoy share a resource by quotas. The master of the node is killed. Meanwhile
their assignments never exceed the capacity, and before and afterwards their shares are exact.

    python3 tests/grpc/quota_standby.py HOST:PORT PROCESS HOST:PORT PROCESS

The resource shop/name=all has a capacity of 120, and leases of 10 s."""
import os
import random
import signal
import sys
import time

import grpc
from envoy import Bucket, Stream, bucket_id, reports

WAIT = 240
LEASE = 10
CAPACITY = 120
COUNT = 50
addresses = [sys.argv[1], sys.argv[3]]
processes = [int(sys.argv[2]), int(sys.argv[4])]
codes = []


class Envoy:
    """One client. It asks for more than its share, and opens its stream again when it has ended."""

    def __init__(self, number):
        self.bucket = Bucket(bucket_id(name="all"))
        self.channels = [grpc.insecure_channel(each) for each in addresses]
        self.stream = None
        self.address = number % 2
        self.due = 0

    def take(self):
        while self.stream and not self.stream.messages.empty():
            got = self.stream.messages.get()
            if got is None:
                codes.append(self.stream.code)
                self.stream = None
                self.address = 1 - self.address  # as a list of endpoints does
                return
            at, message = got
            for action in message.bucket_action:
                self.bucket.take(action, at)

    def step(self, now):
        self.take()
        self.bucket.ask(20, now)
        if now < self.due:
            return
        self.due = now + random.uniform(0.8, 1.2)
        if not self.stream:
            self.stream = Stream(self.channels[self.address])
        self.stream.send(reports("shop", self.bucket.report(now)))


envoys = [Envoy(i) for i in range(COUNT)]
unsure_until = last = time.monotonic()


def run_until(what, condition):
    """Runs the clients, and checks the sum in each step. A pause of this program delays the ends of
    assignments in its model, so nothing is checked for a while after one."""
    global last, unsure_until
    end = time.monotonic() + WAIT
    while True:
        now = time.monotonic()
        if now - last > 0.5:
            unsure_until = now + 2 * LEASE
        last = now
        for envoy in envoys:
            envoy.step(now)
        total = sum(each.bucket.rate_at(time.monotonic()) for each in envoys)
        assert total <= CAPACITY or now < unsure_until, f"{total} is assigned"
        if condition():
            return
        assert now < end, f"{what}: {[each.bucket.rate for each in envoys]}, {codes}"
        time.sleep(0.05)


def is_exact():
    now = time.monotonic()
    return all(each.bucket.rate_at(now) == CAPACITY // COUNT for each in envoys)


def masters():
    return {each.address for each in envoys if each.stream}


def has_one_master():
    return len(masters()) == 1 and all(each.stream for each in envoys)


run_until("the shares are not exact", lambda: has_one_master() and is_exact())
assert set(codes) <= {"UNAVAILABLE"}, codes  # of streams to the standby
os.kill(processes[masters().pop()], signal.SIGKILL)
codes.clear()
run_until("streams do not end", lambda: len(codes) >= COUNT)
run_until("the shares are not exact after the kill", lambda: has_one_master() and is_exact())
assert set(codes) <= {"UNAVAILABLE"}, codes
for envoy in envoys:
    envoy.stream.call.cancel()
