"""A model of Envoy's client of quotas, as its source has it: one stream, a report of all buckets in
each interval, and a new bucket of tokens, which is full, only when an assignment has other numbers.
The seconds of the interval are not compared, and times are cut to whole seconds."""
import queue
import threading
import time

import grpc
from client import encode, wire

STREAM = "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas"


def bucket_id(**entries):
    """In any order, as a map has none."""
    pairs = [wire.Entry(key=encode(k), value=encode(v)) for k, v in entries.items()]
    return wire.BucketId(bucket=pairs)


def usage(bucket, allowed=0, denied=0, seconds=0):
    return wire.BucketUsage(
        bucket_id=bucket,
        time_elapsed=wire.Span(seconds=seconds),
        num_requests_allowed=allowed,
        num_requests_denied=denied,
    )


def reports(domain, *usages):
    return wire.QuotaReports(domain=encode(domain), bucket_quota_usages=usages)


class Stream:
    """One stream. Messages that arrive are in a queue; None: the stream has ended."""

    def __init__(self, channel, metadata=(), timeout=None):
        self.out = queue.Queue()
        self.messages = queue.Queue()
        self.code = self.details = None
        method = channel.stream_stream(
            STREAM,
            request_serializer=lambda each: each if isinstance(each, bytes) else each.SerializeToString(),
            response_deserializer=wire.QuotaResponse.FromString,
        )
        self.call = method(iter(self.out.get, None), metadata=metadata, timeout=timeout)
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        try:
            for message in self.call:
                self.messages.put((time.monotonic(), message))
        except grpc.RpcError:
            pass
        self.code, self.details = self.call.code().name, self.call.details()
        self.messages.put(None)

    def send(self, message):
        self.out.put(message)

    def next(self, wait):
        """The next message; None: the stream has ended."""
        got = self.messages.get(timeout=wait)
        return got and got[1]

    def end(self):
        """Ends it as a client that has nothing more to say."""
        self.out.put(None)

    def wait_for_end(self, wait):
        while self.next(wait):
            pass
        return self.code


class Bucket:
    """The state of one bucket in one Envoy."""

    def __init__(self, bucket, domain="shop"):
        self.id = bucket
        self.domain = domain
        self.allowed = self.denied = 0
        self.reported_at = time.monotonic()
        self.action = None  # of the last assignment
        self.ends_at = 0
        self.rate = self.size = self.tokens = 0
        self.filled_at = 0
        self.fills = []  # when a full bucket has begun, and with how many tokens
        self.is_known = True

    def take(self, action, now):
        """Takes an action of the server."""
        if action.WhichOneof("action") == "abandon_action":
            self.action, self.is_known = None, False
            return
        assignment = action.quota_assignment_action
        strategy = assignment.rate_limit_strategy
        last = self.action.rate_limit_strategy if self.action else None
        if strategy.WhichOneof("strategy") == "token_bucket":
            bucket = strategy.token_bucket
            same = (
                last is not None
                and last.WhichOneof("strategy") == "token_bucket"
                and last.token_bucket.max_tokens == bucket.max_tokens
                and last.token_bucket.tokens_per_fill.value == bucket.tokens_per_fill.value
                and last.token_bucket.fill_interval.nanos == bucket.fill_interval.nanos
            )
            if not same:
                self.rate = bucket.tokens_per_fill.value / bucket.fill_interval.seconds
                self.size = self.tokens = bucket.max_tokens
                self.filled_at = now
                self.fills.append((now, bucket.max_tokens))
        else:
            assert strategy.blanket_rule == wire.DENY_ALL, strategy
            self.rate = self.size = self.tokens = 0
        self.action = assignment
        self.ends_at = now + assignment.assignment_time_to_live.seconds

    def rate_at(self, now):
        """What an assignment in force gives it, in requests a second."""
        return self.rate if self.action and now < self.ends_at else 0

    def ask(self, count, now):
        """So many requests want to pass. Without an assignment none does, as with a fallback that
        denies all."""
        passed = 0
        if self.action and now < self.ends_at:
            self.tokens = min(self.size, self.tokens + self.rate * (now - self.filled_at))
            self.filled_at = now
            passed = min(count, int(self.tokens))
            self.tokens -= passed
        self.allowed += passed
        self.denied += count - passed
        return passed

    def report(self, now):
        seconds = int(now - self.reported_at)
        out = usage(self.id, self.allowed, self.denied, seconds)
        self.allowed = self.denied = 0
        self.reported_at = now
        return out
