"""What the programs of this folder share: the messages, made by protoc, and calls without stubs."""
import importlib
import os
import subprocess
import sys
import tempfile
import traceback

import grpc

ENVOY = "/envoy.service.ratelimit.v3.RateLimitService/"
KUADRANT = "/kuadrant.service.ratelimit.v1.RateLimitService/"
HEALTH = "/grpc.health.v1.Health/"


def load_messages():
    """Makes the module of the messages. The file is the one that the server uses."""
    folder = tempfile.mkdtemp()
    subprocess.run(
        ["protoc", "--proto_path=server/grpc", "--python_out=" + folder, "messages.proto"], check=True
    )
    sys.path.insert(0, folder)
    module = importlib.import_module("messages_pb2")
    subprocess.run(["rm", "-r", folder], check=True)
    return module


wire = load_messages()


def request(domain, *descriptors, hits=0):
    """A request. Each descriptor is a list of (key, value), or a Descriptor."""
    message = wire.LimitRequest(domain=encode(domain), hits_addend=hits)
    for descriptor in descriptors:
        if not isinstance(descriptor, wire.Descriptor):
            entries = [wire.Entry(key=encode(k), value=encode(v)) for k, v in descriptor]
            descriptor = wire.Descriptor(entries=entries)
        message.descriptors.append(descriptor)
    return message


def encode(text):
    return text if isinstance(text, bytes) else text.encode()


class Client:
    """Calls of one channel."""

    def __init__(self, channel, token=None, timeout=60):
        self.channel = channel
        self.metadata = [("authorization", "Bearer " + token)] if token else []
        self.timeout = timeout

    def call(self, path, message, timeout=None, answer=wire.LimitResponse, metadata=()):
        method = self.channel.unary_unary(
            path,
            request_serializer=lambda each: each if isinstance(each, bytes) else each.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        return method(
            message, timeout=timeout or self.timeout, metadata=self.metadata + list(metadata)
        )

    def limit(self, *arguments, path=ENVOY + "ShouldRateLimit", **options):
        return self.call(path, request(*arguments, **options))

    def reserve(self, domain, *descriptors, amount, ttl=None):
        """Reserves an amount, for a ttl in seconds."""
        message = wire.ReserveRequest(domain=encode(domain), amount=amount)
        message.descriptors.extend(request(domain, *descriptors).descriptors)
        if ttl is not None:
            message.ttl.seconds = ttl
        return self.call(KUADRANT + "Reserve", message, answer=wire.ReserveResponse)

    def commit(self, domain, *descriptors, amount, reservation=""):
        """Says what a reservation has cost. Returns whether it was still there."""
        message = wire.CommitRequest(
            domain=encode(domain), actual_amount=amount, reservation_id=encode(reservation)
        )
        message.descriptors.extend(request(domain, *descriptors).descriptors)
        answer = self.call(KUADRANT + "Commit", message, answer=wire.CommitResponse)
        return answer.reservation_released

    def code(self, path, message, **options):
        """The code and the text of a call that fails."""
        try:
            self.call(path, message, **options)
        except grpc.RpcError as error:
            return error.code().name, error.details()
        return "OK", ""

    def health(self, service=b""):
        message = wire.HealthRequest(service=service)
        return self.call(HEALTH + "Check", message, answer=wire.HealthResponse).status

    def watch(self, service=b"", timeout=None):
        method = self.channel.unary_stream(
            HEALTH + "Watch",
            request_serializer=wire.HealthRequest.SerializeToString,
            response_deserializer=wire.HealthResponse.FromString,
        )
        return method(wire.HealthRequest(service=service), timeout=timeout or self.timeout)


def run_tests(namespace, run):
    """The main function of a program of tests, with HOST:PORT, and --list or names of tests.

    `run` gets each function. A failure does not end the others. Prints a line for each test."""
    tests = {k[5:]: v for k, v in namespace.items() if k.startswith("test_")}
    if sys.argv[2] == "--list":
        print("\n".join(tests))
        return
    failed = False
    for name in sys.argv[2:]:
        try:
            run(name, tests[name])
            print("passed", name, flush=True)
        except Exception:
            traceback.print_exc(file=sys.stdout)
            print("failed", name, flush=True)
            failed = True
    sys.exit(failed)
