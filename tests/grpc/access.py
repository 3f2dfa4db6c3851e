"""Who may call: tokens, TLS and its certificates.

    python3 tests/grpc/access.py HOST:PORT FOLDER TEST [HOST:PORT of HTTP]

FOLDER has the certificates of tests/grpc_check.sh."""
import socket
import ssl
import sys

import grpc
from client import ENVOY, Client, request, wire

SHOULD = ENVOY + "ShouldRateLimit"
address, folder = sys.argv[1:3]


def equal(got, expected):
    assert got == expected, f"got {got!r}, expected {expected!r}"


def read(name):
    with open(f"{folder}/{name}", "rb") as file:
        return file.read()


def plain():
    return grpc.insecure_channel(address)


def secure(own=None):
    key, certificate = (read(own + ".key"), read(own + ".pem")) if own else (None, None)
    credentials = grpc.ssl_channel_credentials(read("ca.pem"), key, certificate)
    return grpc.secure_channel(address, credentials)


def test_a_call_needs_a_token_with_the_role_write():
    message = request("shop", [("path", "/token")])
    for token, code in (
        (None, "UNAUTHENTICATED"),
        ("wrong", "UNAUTHENTICATED"),
        ("read-1", "PERMISSION_DENIED"),
        ("write-1", "OK"),
        ("figures-1", "OK"),
        ("admin-1", "OK"),
    ):
        with plain() as channel:
            equal((token, Client(channel, token).code(SHOULD, message)[0]), (token, code))
            equal(Client(channel, token).health(), wire.SERVING)
            equal(next(Client(channel, token).watch()).status, wire.SERVING)


def test_a_limit_of_a_descriptor_counts_with_the_role_figures():
    def left(token, requests, unit, key="path", multiplier=0):
        wanted = wire.Wanted(
            requests_per_unit=requests, unit=unit, unit_multiplier=multiplier)
        entries = [wire.Entry(key=key.encode(), value=b"figures")]
        status = Client(channel, token).limit(
            "shop", wire.Descriptor(entries=entries, limit=wanted)).statuses[0]
        return status.code, status.limit_remaining, status.current_limit.requests_per_unit

    with plain() as channel:
        equal(left("write-1", 8, wire.DAY), (wire.ALLOWED, 4, 5))
        equal(left("figures-1", 8, wire.DAY), (wire.ALLOWED, 6, 8))
        equal(left("write-1", 3, wire.DAY), (wire.ALLOWED, 5, 8))  # the counter remembers
        equal(left("figures-1", 51, wire.DAY), (wire.ALLOWED, 4, 8))  # more than set_max
        equal(left("figures-1", 6, 77), (wire.ALLOWED, 3, 8))  # no such unit
        equal(left("figures-1", 5, wire.DAY), (wire.OVER_LIMIT, 0, 5))
        equal(left("figures-1", 9, wire.HOUR, multiplier=24), (wire.ALLOWED, 3, 9))
        equal(left("figures-1", 0, wire.DAY, "user")[:2], (wire.ALLOWED, 2))  # no rate
        equal(left("figures-1", 20, wire.MONTH, "user")[:2], (wire.ALLOWED, 1))
        equal(left("admin-1", 20, wire.MONTH, "new")[:2], (wire.ALLOWED, 0))


def test_watches_without_a_token_do_not_take_all():
    """The server of this test has --grpc-connections 8."""
    own = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.insecure_channel(address, own) for _ in range(8)]
    watches = [Client(channel).watch() for channel in channels]
    equal([next(watch).status for watch in watches], [wire.SERVING] * 8)
    message = request("shop", [("path", "/watches")])
    with grpc.insecure_channel(address, own) as channel:
        equal(Client(channel, "write-1", timeout=20).code(SHOULD, message)[0], "OK")
    for channel in channels:
        channel.close()


def test_tls_needs_the_right_authority():
    with secure() as channel:
        equal(Client(channel).limit("shop", [("path", "/tls")]).overall_code, wire.ALLOWED)
    with plain() as channel:
        code, _ = Client(channel, timeout=60).code(SHOULD, request("shop", [("path", "/tls")]))
        equal(code, "UNAVAILABLE")


def test_tls_needs_h2():
    host, port = address.rsplit(":", 1)
    for protocols in ([], ["http/1.1"]):
        context = ssl.create_default_context(cafile=folder + "/ca.pem")
        context.check_hostname = False
        if protocols:
            context.set_alpn_protocols(protocols)
        try:
            with socket.create_connection((host, int(port)), 60) as raw:
                with context.wrap_socket(raw) as wrapped:
                    equal(wrapped.recv(100), b"")
        except (ssl.SSLError, ConnectionResetError):
            pass
    test_tls_needs_the_right_authority()


def test_tls_needs_a_certificate_of_the_client():
    message = request("shop", [("path", "/client")])
    for own, code in ((None, "UNAVAILABLE"), ("other", "UNAVAILABLE"), ("own", "OK")):
        with secure(own) as channel:
            equal((own, Client(channel, timeout=60).code(SHOULD, message)[0]), (own, code))


tests = {k[5:]: v for k, v in globals().items() if k.startswith("test_")}
tests[sys.argv[3]]()
