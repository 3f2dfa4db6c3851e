"""Calls of all methods with gRPC for Python, against a server that is master.

    python3 tests/grpc/calls.py HOST:PORT TEST...

Each function whose name starts with `test_` is one promise. The limits are those of
tests/grpc_check.sh, and each test has keys of its own."""
import sys
import time

import grpc
from client import ENVOY, HEALTH, KUADRANT, Client, request, run_tests, wire

OK, OVER = wire.ALLOWED, wire.OVER_LIMIT
SHOULD = ENVOY + "ShouldRateLimit"


def equal(got, expected):
    assert got == expected, f"got {got!r}, expected {expected!r}"


def codes(answer):
    equal(len(answer.response_headers_to_add), 0)
    return answer.overall_code, [status.code for status in answer.statuses]


def test_refuses_what_is_over_the_limit(client):
    for left in (4, 3, 2, 1, 0):
        answer = client.limit("shop", [("path", "/login")])
        equal(codes(answer), (OK, [OK]))
        status = answer.statuses[0]
        equal(status.limit_remaining, left)
        equal((status.current_limit.requests_per_unit, status.current_limit.unit), (5, wire.DAY))
        equal(status.current_limit.name, "daily")
        assert 0 < status.duration_until_reset.seconds <= 86400
    answer = client.limit("shop", [("path", "/login")])
    equal(codes(answer), (OVER, [OVER]))
    assert 0 < answer.statuses[0].duration_until_reset.seconds <= 86400


def test_refuses_with_the_body_of_the_template(client):
    names = [("body", "refused")]
    equal(client.limit("shop", names).raw_body, b"")
    for descriptors in ([names], [[("path", "/body")], names]):
        answer = client.limit("shop", *descriptors)
        equal((answer.overall_code, answer.raw_body), (OVER, '{"wait": "café"}'.encode()))
    equal(client.limit("shop", [("path", "/body")], hits=6).raw_body, b"")  # it has none


def test_says_month_for_any_month_of_the_calendar(client):
    limit = client.limit("shop", [("february", "x")]).statuses[0].current_limit
    equal((limit.requests_per_unit, limit.unit), (100, wire.MONTH))


def test_charges_all_descriptors_or_none(client):
    both = [("path", "/all")], [("user", "all")]
    equal(codes(client.limit("shop", *both, hits=3)), (OK, [OK, OK]))
    answer = client.limit("shop", *both, hits=1)
    equal(codes(answer), (OVER, [OK, OVER]))
    equal(answer.statuses[0].limit_remaining, 2)
    equal(client.limit("shop", [("path", "/all")], hits=2).overall_code, OK)


def test_allows_a_descriptor_without_limits(client):
    answer = client.limit("shop", [("nothing", "x")], [("path", "/some")])
    equal(codes(answer), (OK, [OK, OK]))
    assert not answer.statuses[0].HasField("current_limit")
    equal(answer.statuses[1].limit_remaining, 4)
    equal(codes(client.limit("other", [("nothing", "x")])), (OK, [OK]))


def test_takes_the_hits_of_a_descriptor_first(client):
    entries = [wire.Entry(key=b"path", value=b"/own")]
    own = wire.Descriptor(entries=entries, hits_addend=wire.Number(value=2))
    equal(client.limit("shop", own, hits=5).statuses[0].limit_remaining, 3)
    looks = wire.Descriptor(entries=entries, hits_addend=wire.Number(value=0))
    equal(client.limit("shop", looks, hits=5).statuses[0].limit_remaining, 3)
    huge = wire.Descriptor(entries=entries, hits_addend=wire.Number(value=2**64 - 1))
    equal(client.limit("shop", huge).overall_code, OVER)


def test_gives_units_back(client):
    entries = [wire.Entry(key=b"refund", value=b"a")]
    back = wire.Descriptor(
        entries=entries, hits_addend=wire.Number(value=2), is_negative_hits=True
    )
    equal(client.limit("shop", [("refund", "a")], hits=5).statuses[0].limit_remaining, 0)
    equal(client.limit("shop", back).overall_code, OK)
    equal(client.limit("shop", [("refund", "a")], hits=2).overall_code, OK)
    equal(client.limit("shop", [("refund", "a")]).overall_code, OVER)


def test_a_refused_call_gives_nothing_back(client):
    client.limit("shop", [("refund", "b")], hits=5)
    client.limit("shop", [("path", "/full")], hits=5)
    back = wire.Descriptor(
        entries=[wire.Entry(key=b"refund", value=b"b")], is_negative_hits=True
    )
    equal(client.limit("shop", back, [("path", "/full")]).overall_code, OVER)
    equal(client.limit("shop", [("refund", "b")]).overall_code, OVER)


def test_check_charges_nothing_and_report_charges_over_the_limit(client):
    check, report = KUADRANT + "CheckRateLimit", KUADRANT + "Report"
    for _ in range(9):
        equal(codes(client.limit("shop", [("path", "/k")], path=check, hits=9)), (OK, [OK]))
    equal(codes(client.limit("shop", [("path", "/k")], path=report, hits=4)), (OK, [OK]))
    equal(client.limit("shop", [("path", "/k")], path=check).overall_code, OK)
    equal(codes(client.limit("shop", [("path", "/k")], path=report, hits=4)), (OK, [OK]))
    equal(codes(client.limit("shop", [("path", "/k")], path=check)), (OVER, [OVER]))


def left(client, *descriptors):
    """Units that remain for the last descriptor."""
    looks = [
        wire.Descriptor(
            entries=[wire.Entry(key=k.encode(), value=v.encode()) for k, v in each],
            hits_addend=wire.Number(value=0),
        )
        for each in descriptors
    ]
    return client.limit("shop", *looks).statuses[-1].limit_remaining


def test_a_commit_gives_back_what_a_reservation_did_not_cost(client):
    names = [("path", "/reserve")]
    answer = client.reserve("shop", names, amount=4)
    equal((answer.code, left(client, names)), (OK, 1))
    refused = client.reserve("shop", names, amount=2, ttl=30)
    equal((refused.code, refused.reservation_id), (OVER, ""))
    equal(client.commit("shop", names, amount=1, reservation=answer.reservation_id), True)
    equal(left(client, names), 4)
    # the answer was lost, so it is repeated
    equal(client.commit("shop", names, amount=1, reservation=answer.reservation_id), True)
    equal(left(client, names), 4)
    other = client.reserve("shop", names, amount=1).reservation_id
    assert other != answer.reservation_id
    equal(client.commit("shop", names, amount=3, reservation=other), True)
    equal(left(client, names), 1)


def test_a_commit_always_charges_what_it_says(client):
    names = [("path", "/commit")]
    for reservation in ("", "0", "00000000abcdef", "00000000abcdef-0", "zzzzzzzzzzzzzz", "é" * 30):
        equal(client.commit("shop", names, amount=0, reservation=reservation), False)
    equal(client.commit("shop", names, amount=2), False)
    equal(client.commit("shop", names, amount=1, reservation="00000000abcde1"), False)
    equal(left(client, names), 2)
    reserved = client.reserve("shop", names, amount=1, ttl=1).reservation_id
    # other figures than those that it was settled with are charged too
    equal(client.commit("shop", names, amount=1, reservation=reserved), True)
    equal(client.commit("shop", names, amount=2, reservation=reserved), False)
    equal(left(client, names), 0)


def test_a_late_commit_charges_only_what_has_not_stayed_charged(client):
    names = [("path", "/late")]
    reserved = client.reserve("shop", names, amount=2, ttl=1).reservation_id
    time.sleep(1.5)
    equal(client.commit("shop", names, amount=3, reservation=reserved), False)
    equal(left(client, names), 2)


def test_a_reservation_has_only_descriptors_with_limits(client):
    names = [("path", "/mixed")], [("no", "limit")], [("user", "mixed")]
    answer = client.reserve("shop", *names, amount=3)
    equal((answer.code, len(answer.reservation_id)), (OK, 16))
    equal(client.commit("shop", *names, amount=1, reservation=answer.reservation_id), True)
    equal((left(client, names[0]), left(client, names[2])), (4, 2))
    answer = client.reserve("shop", [("no", "limit")], amount=3)
    equal((answer.code, answer.reservation_id), (OK, ""))
    equal(client.commit("shop", [("no", "limit")], amount=3), False)


def test_names_the_wrong_field_of_a_reservation(client):
    names = request("shop", [("path", "/wrong")]).descriptors
    negative = wire.ReserveRequest(domain=b"shop", descriptors=names, ttl=wire.Span(seconds=-1))
    slots = request("shop", [("slots", "x")]).descriptors
    for method, message, code, text in (
        ("Reserve", b"", "INVALID_ARGUMENT", "domain: "),
        ("Commit", b"", "INVALID_ARGUMENT", "domain: "),
        ("Reserve", negative, "INVALID_ARGUMENT", "ttl: "),
        ("Reserve", b"\x1a\x01a", "INVALID_ARGUMENT", "amount: "),
        ("Commit", b"\x18\x01", "INVALID_ARGUMENT", "reservation_id: "),
        ("Commit", wire.CommitRequest(domain=b"shop"), "INVALID_ARGUMENT", "descriptors: "),
        (
            "Reserve",
            wire.ReserveRequest(domain=b"shop", descriptors=slots, amount=1),
            "FAILED_PRECONDITION",
            "descriptors[0]: ",
        ),
    ):
        got = client.code(KUADRANT + method, message)
        assert got[0] == code and got[1].startswith(text), f"{got!r}, expected {code} {text!r}"


def test_says_what_it_does_not_have(client):
    equal(client.code(KUADRANT + "Other", b"")[0], "UNIMPLEMENTED")
    equal(client.code(ENVOY + "Other", b"")[0], "UNIMPLEMENTED")
    equal(client.code("/some.Service/Check", b"")[0], "UNIMPLEMENTED")


def test_names_the_wrong_field(client):
    entry, fine = [("a", "b")], request("shop", [("path", "/names")])
    many = request("shop", *[entry] * 101)
    for message, code, text in (
        (b"", "INVALID_ARGUMENT", "domain: "),
        (request("d" * 257, entry), "INVALID_ARGUMENT", "domain: "),
        (request("a\0b", entry), "INVALID_ARGUMENT", "domain: "),
        (request("shop"), "INVALID_ARGUMENT", "descriptors: "),
        (request("shop", entry, []), "INVALID_ARGUMENT", "descriptors[1].entries: "),
        (many, "RESOURCE_EXHAUSTED", "descriptors: "),
        (request("shop", entry, entry * 17), "RESOURCE_EXHAUSTED", "descriptors[1].entries: "),
        (b"\x12\x04\x0a\x02\x0a\x05", "INVALID_ARGUMENT", "descriptors[0].entries[0].key: "),
        (b"\x08\x01", "INVALID_ARGUMENT", "domain: "),
        (b"\x0a", "INVALID_ARGUMENT", "domain: "),
        (b"\x03", "INVALID_ARGUMENT", "message: "),
        (b"\x8a\x80\x80\x80\x80\x00\x01a", "INVALID_ARGUMENT", "message: "),
        (b"\x0a\x81\x80\x80\x80\x80\x00a", "INVALID_ARGUMENT", "domain: "),
        (b"\x20\x01" * 9000, "RESOURCE_EXHAUSTED", "message: "),
    ):
        got = client.code(SHOULD, message)
        assert got[0] == code and got[1].startswith(text), f"{got!r}, expected {code} {text!r}"
    equal(client.call(SHOULD, fine).overall_code, OK)


def test_hashes_names_that_are_no_valid_text(client):
    for value in (b"\xff\xfe", b"x" * 5000, b"line\n"):
        for left in (4, 3):
            answer = client.limit("shop", [("path", value)])
            equal(answer.statuses[0].limit_remaining, left)


def test_escapes_names(client):
    equal(client.limit("shop", [("pair", "a/b"), ("end", "c")]).statuses[0].limit_remaining, 4)
    equal(client.limit("shop", [("pair", "a"), ("end", "b/c")]).statuses[0].limit_remaining, 4)
    equal(client.limit("shop", [("pair", "a%2Fb"), ("end", "c")]).statuses[0].limit_remaining, 4)


def test_a_rule_gives_a_descriptor_its_names(client):
    for address in ("1.2.3.4", "5.6.7.8"):
        for host, code in (("api.a", OK), ("api.b", OK), ("api.a", OVER)):
            answer = client.limit("shop", [("host", host), ("remote_address", address)])
            equal(codes(answer), (code, [code]))
    other = client.limit("shop", [("host", "www.a"), ("remote_address", "1.2.3.4")])
    equal(codes(other), (OK, [OK]))
    assert not other.statuses[0].HasField("current_limit")


def test_refuses_a_message_that_is_too_large(client):
    message = b"\x22\xfb\xff\x3f" + b"x" * (1 << 20)
    code, text = client.code(SHOULD, message)
    equal((code, "at most 1048576" in text), ("RESOURCE_EXHAUSTED", True))
    code, text = client.code(HEALTH + "Check", b"x" * 5000, answer=wire.HealthResponse)
    equal((code, "at most 4096" in text), ("RESOURCE_EXHAUSTED", True))
    code, _ = client.code(SHOULD, b"", metadata=[("long", "x" * 20000)])
    equal(code, "RESOURCE_EXHAUSTED")


def test_refuses_a_limit_of_holds(client):
    code, text = client.code(SHOULD, request("shop", [("slots", "x")]))
    equal((code, "descriptors[0]" in text), ("FAILED_PRECONDITION", True))
    equal(client.code(KUADRANT + "CheckRateLimit", request("shop", [("slots", "x")]))[0],
          "FAILED_PRECONDITION")


def test_refuses_a_look_at_holds_before_it_charges(client):
    look = wire.Descriptor(
        entries=[wire.Entry(key=b"slots", value=b"x")], hits_addend=wire.Number(value=0)
    )
    code, text = client.code(SHOULD, request("shop", [("path", "/look")], look))
    equal((code, "descriptors[1]" in text), ("FAILED_PRECONDITION", True))
    equal(client.limit("shop", [("path", "/look")]).statuses[0].limit_remaining, 4)


def test_a_look_at_a_key_that_needs_no_hold_is_allowed(client):
    look = wire.Descriptor(
        entries=[wire.Entry(key=b"slots", value=b"free")], hits_addend=wire.Number(value=0)
    )
    equal(codes(client.limit("shop", look)), (OK, [OK]))


def test_says_that_it_serves(client):
    known = ["", "grpc.health.v1.Health", ENVOY.strip("/"), KUADRANT.strip("/")]
    for service in known:
        equal(client.health(service.encode()), wire.SERVING)
        watch = client.watch(service.encode())
        equal(next(watch).status, wire.SERVING)
        watch.cancel()
    equal(client.code(HEALTH + "Check", wire.HealthRequest(service=b"x"))[0], "NOT_FOUND")
    watch = client.watch(b"x")
    equal(next(watch).status, wire.SERVICE_UNKNOWN)
    watch.cancel()


def test_answers_many_streams_of_one_connection(client):
    method = client.channel.unary_unary(
        SHOULD, lambda each: each.SerializeToString(), wire.LimitResponse.FromString
    )
    message = request("shop", [("path", "/many")])
    calls = [method.future(message, timeout=60) for _ in range(300)]
    answers = [call.result().overall_code for call in calls]
    equal((answers.count(OK), answers.count(OVER)), (5, 295))


def run(_, test):
    with grpc.insecure_channel(sys.argv[1]) as channel:
        test(Client(channel))


run_tests(globals(), run)
