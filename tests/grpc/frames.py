"""Frames of HTTP/2 that a client of gRPC does not send, by hand. After each test, and in most of them
meanwhile, another client gets its answers.

    python3 tests/grpc/frames.py HOST:PORT TEST...

Each function whose name starts with `test_` is one promise. A test that waits for the patience of
the server takes its ten seconds."""
import socket
import struct
import sys
import time

import grpc
import hpack
from client import ENVOY, HEALTH, Client, request, run_tests, wire

DATA, HEADERS, RST, SETTINGS, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
WAIT = 60
PATIENCE = 10  # of the server
SHOULD = ENVOY + "ShouldRateLimit"
address = sys.argv[1]


def equal(got, expected):
    assert got == expected, f"got {got!r}, expected {expected!r}"


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(text):
    data = text if isinstance(text, bytes) else text.encode()
    if len(data) < 127:
        return bytes([len(data)]) + data
    rest, out = len(data) - 127, b"\x7f"
    while rest >= 128:
        out += bytes([rest % 128 + 128])
        rest //= 128
    return out + bytes([rest]) + data


def fields(pairs):
    return b"".join(b"\0" + literal(name) + literal(value) for name, value in pairs)


def head(path=SHOULD, method="POST", kind="application/grpc", more=()):
    first = [(":method", method), (":scheme", "http"), (":path", path), (":authority", "x")]
    return fields(first + [("content-type", kind), *more])


def body(message, flag=0):
    data = message if isinstance(message, bytes) else message.SerializeToString()
    return struct.pack(">BI", flag, len(data)) + data


class Peer:
    """A connection of HTTP/2 that sends what it likes."""

    def __init__(self, preface=PREFACE + frame(SETTINGS, 0, 0), to=address):
        host, port = to.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), WAIT)
        self.decoder = hpack.Decoder()
        self.input = b""
        self.headers = {}
        self.resets = {}
        self.send(preface)

    def send(self, data):
        """Returns false if the server has closed the connection."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def call(self, stream, message, **options):
        return self.send(
            frame(HEADERS, END_HEADERS, stream, head(**options))
            + frame(DATA, END_STREAM, stream, body(message))
        )

    def read(self):
        """The next frame; None: the connection has ended."""
        while len(self.input) < 9 or len(self.input) < 9 + int.from_bytes(self.input[:3], "big"):
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self.input += data
        length = int.from_bytes(self.input[:3], "big")
        kind, flags, stream = struct.unpack(">BBI", self.input[3:9])
        payload, self.input = self.input[9 : 9 + length], self.input[9 + length :]
        if kind == HEADERS:
            self.headers.setdefault(stream, {}).update(self.decoder.decode(payload))
        if kind == RST:
            self.resets[stream] = int.from_bytes(payload, "big")
        return kind, flags, stream

    def status(self, stream):
        """Waits for the end of a stream, and returns its code of gRPC."""
        while "grpc-status" not in self.headers.get(stream, {}):
            assert stream not in self.resets, f"reset with {self.resets[stream]}"
            assert self.read(), "the connection has ended"
        return int(self.headers[stream]["grpc-status"])

    def wait_for_end(self):
        while self.read():
            pass

    def close(self):
        self.socket.close()


def good(key, to=address):
    """Another client gets an answer."""
    with grpc.insecure_channel(to) as channel:
        return Client(channel, timeout=WAIT).limit("shop", [("path", key)]).overall_code


def ends(data, rounds, key):
    """A peer sends this again and again, and the connection ends. Others do not notice."""
    peer = Peer()
    sent = 0
    while sent < rounds and peer.send(data(sent)):
        sent += 1
    assert sent < rounds, "it takes all"  # a silent connection would end later
    peer.socket.settimeout(WAIT)
    equal(good(key), wire.ALLOWED)
    peer.wait_for_end()
    peer.close()


def test_a_call_by_hand_works():
    peer = Peer()
    peer.call(1, request("shop", [("path", "/hand")]))
    equal(peer.status(1), 0)
    equal(peer.headers[1][":status"], "200")
    peer.close()


def test_a_flood_of_pings_ends_the_connection():
    ends(lambda _: frame(PING, 0, 0, b"12345678") * 100, 10000, "/pings")


def test_a_flood_of_settings_ends_the_connection():
    ends(lambda _: frame(SETTINGS, 0, 0) * 100, 10000, "/settings")


def test_a_flood_of_windows_ends_the_connection():
    ends(lambda _: frame(WINDOW, 0, 0, b"\0\0\0\1") * 100, 10000, "/windows")


def test_rapid_resets_end_the_connection():
    def reset(at):
        stream = 2 * at + 1
        return frame(HEADERS, END_HEADERS, stream, head()) + frame(RST, 0, stream, b"\0\0\0\x08")

    ends(reset, 100000, "/resets")


def test_a_flood_of_empty_data_ends_the_connection():
    def data(at):
        start = frame(HEADERS, END_HEADERS, 1, head()) if at == 0 else b""
        return start + frame(DATA, 0, 1) * 100

    ends(data, 10000, "/empty")


def test_a_flood_of_unknown_frames_ends_the_connection():
    ends(lambda _: frame(0x40, 0, 0, b"x") * 100, 10000, "/unknown")


def test_a_flood_of_empty_continuations_ends_the_connection():
    def part(at):
        start = frame(HEADERS, 0, 1, fields([("a", "b")])) if at == 0 else b""
        return start + frame(CONTINUATION, 0, 1) * 100

    ends(part, 10000, "/continuations")


def test_a_flood_of_data_of_ended_streams_ends_the_connection():
    def data(at):
        start = frame(HEADERS, END_HEADERS | END_STREAM, 1, head()) if at == 0 else b""
        return start + frame(DATA, 0, 1, b"x") * 100

    ends(data, 10000, "/ended")


def test_endless_headers_end_the_connection():
    def part(at):
        kind = HEADERS if at == 0 else CONTINUATION
        return frame(kind, 0, 1, fields([("a", "x" * 8000)]))

    ends(part, 10000, "/headers")


def test_what_is_no_http_2_ends_the_connection():
    for start in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\0" + bytes(600),
                  PREFACE + b"\xff" * 100):
        peer = Peer(start)
        peer.wait_for_end()
        peer.close()
    equal(good("/other"), wire.ALLOWED)


def test_a_silent_connection_ends():
    peers = [Peer(start) for start in (b"", PREFACE[:10], PREFACE + frame(SETTINGS, 0, 0))]
    for peer in peers:
        peer.wait_for_end()
        peer.close()


def test_a_request_that_does_not_end_gets_a_status():
    peer = Peer()
    peer.call(1, request("shop", [("path", "/half")]))
    equal(peer.status(1), 0)
    peer.send(frame(HEADERS, END_HEADERS, 3, head()) + frame(DATA, 0, 3, b"\0\0\0"))
    peer.send(frame(HEADERS, END_HEADERS, 5, head()))
    equal((peer.status(3), peer.status(5)), (4, 4))
    peer.call(7, request("shop", [("path", "/half")]))
    equal(peer.status(7), 0)
    peer.close()


def test_a_peer_that_gives_no_room_loses_its_stream():
    peer = Peer(PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0)))
    peer.call(1, request("shop", [("path", "/room")]))
    while 1 not in peer.resets:
        assert peer.read(), "the connection has ended"
    peer.close()
    equal(good("/room"), wire.ALLOWED)


def test_a_peer_that_takes_no_answers_gets_no_more():
    peer = Peer(PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0)))
    large = request("shop", *[[("wide", "/none")]] * 100)
    for stream in range(1, 200, 2):
        peer.call(stream, large)
    equal(peer.status(199), 8)  # a status needs no room
    assert 1 not in peer.resets and "grpc-status" not in peer.headers[1], peer.headers[1]
    equal(good("/taken"), wire.ALLOWED)
    peer.send(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 1 << 20)))
    peer.send(frame(WINDOW, 0, 0, struct.pack(">I", 1 << 30)))
    equal(peer.status(1), 0)
    peer.close()


def test_a_head_that_does_not_end_is_given_up():
    peer = Peer()
    peer.call(1, request("shop", [("path", "/head")]))
    equal(peer.status(1), 0)
    peer.send(frame(HEADERS, 0, 3, fields([("a", "b")])))
    peer.socket.settimeout(WAIT)
    while 3 not in peer.resets and "grpc-status" not in peer.headers.get(3, {}):
        if not peer.read():
            break
    peer.close()


def test_a_peer_that_does_not_read_loses_its_connection():
    peer = Peer()
    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.socket.settimeout(0.5)
    stream, sent, end = 1, True, time.monotonic() + WAIT
    while sent and time.monotonic() < end:
        try:
            sent = peer.call(stream, request("shop", *[[("path", "/slow")]] * 90))
            stream += 2
        except socket.timeout:  # the server does not read either
            equal(good("/reader"), wire.ALLOWED)
            break
    peer.socket.settimeout(WAIT)
    time.sleep(PATIENCE + 2)
    peer.wait_for_end()
    peer.close()


def test_the_deadline_counts_before_the_decision():
    peer = Peer()
    message = request("shop", [("path", "/deadline")], hits=5)
    peer.call(1, message, more=[("grpc-timeout", "0n")])
    equal(peer.status(1), 4)
    peer.call(3, message, more=[("grpc-timeout", "99999999H")])
    equal(peer.status(3), 0)
    peer.close()


def test_wrong_requests_get_a_status():
    peer = Peer()
    message = body(request("shop", [("path", "/wrong")]))
    for stream, options, data, code in (
        (1, {}, body(b"x", flag=1), 12),
        (3, {}, message + message, 3),
        (5, {}, message[:-1], 3),
        (7, {}, b"", 3),
        (9, {"method": "GET"}, message, 3),
        (11, {"kind": "application/json"}, message, 3),
        (13, {"path": "/"}, message, 12),
        (15, {}, b"\0\xff\xff\xff\xff" + message, 8),
        (17, {"kind": "application/grpc+proto"}, message, 0),
        (19, {"path": HEALTH + "Watch", "more": [("grpc-timeout", "1m")]}, body(b""), 4),
    ):
        peer.send(
            frame(HEADERS, END_HEADERS, stream, head(**options))
            + frame(DATA, END_STREAM, stream, data)
        )
        equal((stream, peer.status(stream)), (stream, code))
    peer.send(frame(HEADERS, END_HEADERS | END_STREAM, 21, head()))
    equal(peer.status(21), 3)
    peer.close()


def test_more_streams_than_allowed_are_refused():
    peer = Peer()
    for stream in range(1, 2 * 101 + 1, 2):
        peer.send(frame(HEADERS, END_HEADERS, stream, head()))
    while 201 not in peer.resets:
        assert peer.read(), "the connection has ended"
    equal(peer.resets, {201: 7})
    peer.send(frame(DATA, END_STREAM, 1, body(request("shop", [("path", "/streams")]))))
    equal(peer.status(1), 0)
    peer.close()


def test_half_health_checks_leave_room_for_calls():
    half = frame(DATA, 0, 0, struct.pack(">BI", 0, 4096) + bytes(4090))
    check = {"path": HEALTH + "Check"}
    peers = [Peer() for _ in range(100)]
    for peer in peers:
        for stream in range(1, 200, 2):
            data = half[:5] + struct.pack(">I", stream) + half[9:]
            peer.send(frame(HEADERS, END_HEADERS, stream, head(**check)) + data)
    last, stream = Peer(), 1
    last.call(stream, bytes(4090), **check)
    while last.status(stream) != 8:  # there is room for one more, until the server has read all
        assert stream < 1000, "there is always room"
        time.sleep(0.01)
        stream += 2
        last.call(stream, bytes(4090), **check)
    equal(good("/half-checks"), wire.ALLOWED)
    for peer in [*peers, last]:
        peer.close()


def test_silent_connections_do_not_take_all():
    """The server of this test has --grpc-connections 8."""
    peers = [Peer(b"") for _ in range(40)]
    equal(good("/crowd"), wire.ALLOWED)
    for peer in peers:
        peer.close()


def run(name, test):
    test()
    equal(good("/after/" + name), wire.ALLOWED)


if __name__ == "__main__":
    run_tests(globals(), run)
