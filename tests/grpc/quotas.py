"""Quotas for Envoy, over a stream: what is assigned, and how a stream ends.

    python3 tests/grpc/quotas.py HOST:PORT TEST...

Each function whose name starts with `test_` is one promise. The server has a resource shop/name=...
with a capacity of 120, and leases of 4 s that are renewed each second."""
import queue
import struct
import sys
import time

import grpc
from client import Client, run_tests, wire
from envoy import STREAM, Stream, bucket_id, reports, usage
from frames import (
    DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, RST, SETTINGS, Peer, body, frame, head
)

WAIT = 120
LEASE = 4
address = sys.argv[1]


def equal(got, expected):
    assert got == expected, f"got {got!r}, expected {expected!r}"


def channel():
    return grpc.insecure_channel(address)


def subscribe(stream, name, allowed=0, denied=1):
    stream.send(reports("shop", usage(bucket_id(name=name), allowed, denied)))


def actions(stream, name):
    """The next actions for a bucket, with their bytes."""
    while True:
        message = stream.next(WAIT)
        assert message, f"the stream has ended: {stream.code}, {stream.details}"
        found = [
            each
            for each in message.bucket_action
            if wire.BucketId.FromString(each.bucket_id) == bucket_id(name=name)
        ]
        if found:
            return found


def first_action(stream, name):
    """The first action for a bucket, which is reported each second, as Envoy does. A new server may
    wait longer than a lease before it assigns anything, and a stream that reports nothing for a
    lease gets no assignment."""
    end = time.monotonic() + WAIT
    while True:
        subscribe(stream, name)
        try:
            message = stream.next(1)
        except queue.Empty:
            assert time.monotonic() < end, "no action"
            continue
        assert message, f"the stream has ended: {stream.code}, {stream.details}"
        return message.bucket_action[0]


def tokens(action):
    strategy = action.quota_assignment_action.rate_limit_strategy
    if strategy.WhichOneof("strategy") != "token_bucket":
        return 0
    return strategy.token_bucket.tokens_per_fill.value


def eventually(what, condition):
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end, what


def test_an_assignment_is_a_token_bucket_with_an_end():
    stream = Stream(channel())
    action = first_action(stream, "one")
    assignment = action.quota_assignment_action
    equal(assignment.assignment_time_to_live, wire.Span(seconds=LEASE - 1))
    bucket = assignment.rate_limit_strategy.token_bucket
    equal(bucket.fill_interval, wire.Span(seconds=1))
    equal(bucket.max_tokens, bucket.tokens_per_fill.value)
    assert bucket.max_tokens >= 1
    stream.call.cancel()


def test_an_assignment_that_does_not_change_is_the_same_bytes():
    stream = Stream(channel())
    seen = []
    while len(seen) < 5:
        subscribe(stream, "same", 0, 1000)
        found = actions(stream, "same")
        seen = seen if seen and seen[-1] == found[0] else []
        seen.append(found[0])
        equal(len(found), 1)
    equal({each.SerializeToString() for each in seen}, {seen[0].SerializeToString()})
    equal(tokens(seen[0]), 120)
    stream.call.cancel()


def test_the_order_of_the_keys_does_not_matter():
    stream = Stream(channel())
    stream.send(reports("shop", usage(bucket_id(name="order", a="1"), 0, 1)))
    stream.send(reports("shop", usage(bucket_id(a="1", name="order"), 0, 1)))
    message = stream.next(WAIT)
    equal(len(message.bucket_action), 1)
    equal(
        wire.BucketId.FromString(message.bucket_action[0].bucket_id), bucket_id(a="1", name="order")
    )
    stream.call.cancel()


def test_of_entries_with_the_same_key_the_last_one_counts():
    stream = Stream(channel())
    twice = bucket_id(name="twice", a="1")
    twice.bucket.add(key=b"a", value=b"2")
    stream.send(reports("shop", usage(twice, 0, 1)))
    message = stream.next(WAIT)
    equal([each.bucket_id for each in message.bucket_action],
          [bucket_id(a="2", name="twice").SerializeToString()])
    stream.call.cancel()


def test_a_share_of_0_denies_all():
    stream = Stream(channel())
    strategy = first_action(stream, "closed").quota_assignment_action.rate_limit_strategy
    equal(strategy.WhichOneof("strategy"), "blanket_rule")
    equal(strategy.blanket_rule, wire.DENY_ALL)
    stream.call.cancel()


def test_two_streams_share_a_resource():
    streams = [Stream(channel()) for _ in range(2)]
    last = [0, 0]

    def is_shared():
        for i, stream in enumerate(streams):
            subscribe(stream, "two", 0, 1000)
            last[i] = tokens(actions(stream, "two")[-1])
        return last == [60, 60]

    eventually("the shares are not equal", is_shared)
    for stream in streams:
        stream.call.cancel()


def test_a_stream_continues_the_one_that_had_its_name():
    metadata = [("x-doorman-client", "edge-1")]
    first = Stream(channel(), metadata)
    eventually("no capacity", lambda: subscribe(first, "joined", 0, 1000)
               or tokens(actions(first, "joined")[-1]) == 120)
    first.call.cancel()
    first.wait_for_end(WAIT)
    second = Stream(channel(), metadata)
    subscribe(second, "joined", 0, 1000)
    equal(tokens(actions(second, "joined")[0]), 120)  # a new holder would have nothing yet
    # while it lives, another one with its name is another holder
    third = Stream(channel(), metadata)
    subscribe(third, "joined", 0, 1000)
    equal(tokens(actions(third, "joined")[0]), 0)
    for stream in (second, third):
        stream.call.cancel()


def test_what_an_ended_stream_was_assigned_stays_committed():
    first = Stream(channel())
    eventually("no capacity", lambda: subscribe(first, "ended", 0, 1000)
               or tokens(actions(first, "ended")[-1]) == 120)
    first.call.cancel()
    first.wait_for_end(WAIT)
    ended_at = time.monotonic()
    second = Stream(channel())
    subscribe(second, "ended", 0, 1000)
    equal(tokens(actions(second, "ended")[0]), 0)
    eventually("the capacity is lost", lambda: subscribe(second, "ended", 0, 1000)
               or tokens(actions(second, "ended")[-1]) == 120)
    assert time.monotonic() - ended_at > 1
    second.call.cancel()


def test_a_bucket_without_requests_is_abandoned():
    stream = Stream(channel())
    subscribe(stream, "idle")
    started = time.monotonic()
    while True:
        found = actions(stream, "idle")
        if found[-1].WhichOneof("action") == "abandon_action":
            break
        subscribe(stream, "idle", 0, 0)
    assert time.monotonic() - started > 3 * LEASE
    subscribe(stream, "idle")  # it may begin again
    equal(actions(stream, "idle")[0].WhichOneof("action"), "quota_assignment_action")
    stream.call.cancel()


def test_a_bucket_without_a_template_gets_no_assignment():
    stream = Stream(channel())
    stream.send(reports("none", usage(bucket_id(name="x"), 0, 1)))
    time.sleep(1)
    assert stream.messages.empty()
    stream.end()
    equal(stream.wait_for_end(WAIT), "OK")


def test_a_stream_that_the_client_ends_is_ok():
    stream = Stream(channel())
    subscribe(stream, "end")
    actions(stream, "end")
    stream.end()
    equal(stream.wait_for_end(WAIT), "OK")


def test_wrong_messages_name_the_field():
    entries = {str(i): "v" for i in range(17)}
    for message, code, text in (
        (reports("", usage(bucket_id(a="1"))), "INVALID_ARGUMENT", "domain: must be 1 to 256"),
        (reports("x" * 257), "INVALID_ARGUMENT", "domain: at most 256 bytes"),
        (reports("shop", wire.BucketUsage()), "INVALID_ARGUMENT",
         "bucket_quota_usages[0].bucket_id.bucket: must have 1 to 16"),
        (reports("shop", usage(bucket_id(**entries))), "RESOURCE_EXHAUSTED",
         "bucket_quota_usages[0].bucket_id.bucket: at most 16"),
        (reports("shop", usage(bucket_id(a="x" * 5000))), "INVALID_ARGUMENT",
         "bucket_quota_usages[0].bucket_id: at most 4096 bytes"),
        (reports("shop", *[wire.BucketUsage()] * 10001), "RESOURCE_EXHAUSTED",
         "bucket_quota_usages: at most 10000"),
        (b"\x0a", "INVALID_ARGUMENT", "domain"),
        (bytes((1 << 20) + 1), "RESOURCE_EXHAUSTED", "the message has 1048577 bytes"),
    ):
        stream = Stream(channel())
        stream.send(message)
        equal(stream.wait_for_end(WAIT), code)
        assert stream.details.startswith(text), stream.details
    stream = Stream(channel())
    stream.send(reports("shop"))
    stream.send(reports("other"))
    equal(stream.wait_for_end(WAIT), "INVALID_ARGUMENT")
    equal(stream.details, "domain: must be that of the first message")


def test_long_names_become_a_hash():
    stream = Stream(channel())
    bucket = bucket_id(name="x" * 1000)
    stream.send(reports("sha256:", usage(bucket, 0, 1)))  # this name is one as well
    stream.send(reports("sha256:", usage(bucket_id(a="/", b="="), 0, 1)))
    got = {each.bucket_id for _ in range(2) for each in stream.next(WAIT).bucket_action}
    equal(got, {bucket.SerializeToString(), bucket_id(a="/", b="=").SerializeToString()})
    stream.call.cancel()


def test_a_deadline_ends_the_stream():
    stream = Stream(channel(), timeout=1)
    subscribe(stream, "deadline")
    equal(stream.wait_for_end(WAIT), "DEADLINE_EXCEEDED")


def by_hand(stream, *parts):
    """Frames of a stream of quotas."""
    start = frame(HEADERS, END_HEADERS, stream, head(path=STREAM))
    return start + b"".join(frame(DATA, 0, stream, part) for part in parts)


def test_a_message_in_pieces_is_one_message():
    peer = Peer()
    data = body(reports("shop", usage(bucket_id(name="pieces"), 0, 1)))
    peer.send(by_hand(1, data[:3], data[3:9], data[9:] + data[:4], data[4:]))
    while True:
        got = peer.read()
        assert got, "the connection has ended"
        if got[0] == DATA:
            break
    peer.send(frame(DATA, END_STREAM, 1))
    equal(peer.status(1), 0)
    peer.close()


def test_a_stream_without_a_whole_message_ends():
    peer = Peer()
    data = body(reports("shop", usage(bucket_id(name="half"), 0, 1)))
    peer.send(by_hand(1) + by_hand(3, data[:-1]) + by_hand(5, data, data[:2]))
    equal([peer.status(stream) for stream in (1, 3, 5)], [4, 4, 4])
    peer.send(by_hand(7, data[:-1]) + frame(DATA, END_STREAM, 7))
    equal(peer.status(7), 3)
    peer.close()


def test_a_peer_that_gives_no_room_loses_its_stream():
    peer = Peer(PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0)))
    peer.send(by_hand(1, body(reports("shop", usage(bucket_id(name="room"), 0, 1)))))
    while 1 not in peer.resets:
        assert peer.read(), "the connection has ended"
    peer.close()


def test_rapid_resets_of_streams_end_the_connection():
    peer = Peer()
    data = body(reports("shop", usage(bucket_id(name="resets"), 0, 1)))
    at, sent = 1, True
    while sent and at < 200000:
        sent = peer.send(by_hand(at, data) + frame(RST, 0, at, b"\0\0\0\x08"))
        at += 2
    peer.wait_for_end()
    peer.close()


def run(_, test):
    test()
    with channel() as own:
        equal(Client(own).health(b"envoy.service.rate_limit_quota.v3.RateLimitQuotaService"), 1)


if __name__ == "__main__":
    run_tests(globals(), run)
