"""Calls about keys for which another node decides. tests/system/forward_test.c starts the nodes.

    forward.py TOKEN ADDRESS KEY OTHER     ADDRESS: of a node that does not own KEY, but OTHER
"""
import sys

import grpc

from client import ENVOY, KUADRANT, Client, encode, request, wire

token, address, key, other = sys.argv[1:]
OK, OVER = 1, 2

with grpc.insecure_channel(address) as channel:
    client = Client(channel, token)
    limit = ENVOY + "ShouldRateLimit"

    def codes(message):
        answer = client.call(limit, message)
        return [answer.overall_code] + [each.code for each in answer.statuses]

    def ask(*keys, hits=0):
        return request("shop", *[[("tight", each)] for each in keys], hits=hits)

    def reserve(*keys):
        message = wire.ReserveRequest(domain=b"shop", amount=1)
        message.descriptors.extend(request("shop", *[[("wide", each)] for each in keys]).descriptors)
        return message

    first = client.call(limit, ask(key, hits=2))
    assert first.overall_code == OK, first
    assert first.statuses[0].limit_remaining == 1, first
    assert first.statuses[0].current_limit.requests_per_unit == 3, first
    assert codes(ask(key, hits=2)) == [OVER, OVER]
    assert codes(ask(other)) == [OK, OK]
    try:
        client.call(limit, ask(key, other))
        raise AssertionError("items in two shards were decided")
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.FAILED_PRECONDITION, error
        assert "SHARDS" in error.details(), error
        assert key in error.details() and other in error.details(), error
    checked = client.call(KUADRANT + "CheckRateLimit", ask(key))
    assert checked.overall_code == OK, checked
    client.call(KUADRANT + "Report", ask(key, other))  # each owner counts its own
    assert codes(ask(key)) == [OVER, OVER]
    assert client.call(KUADRANT + "CheckRateLimit", ask(key)).overall_code == OVER
    assert codes(ask(other, hits=2)) == [OVER, OVER]
    assert codes(ask(other)) == [OK, OK]

    # a reservation is made, found and settled at the owner
    names = [("wide", key)]
    reserved = client.reserve("shop", names, amount=4)
    assert reserved.code == OK and reserved.reservation_id, reserved
    assert client.reserve("shop", names, amount=2).code == OVER
    assert client.commit("shop", names, amount=1, reservation=reserved.reservation_id)
    again = client.reserve("shop", names, amount=4)
    assert again.code == OK and again.reservation_id != reserved.reservation_id, again
    assert client.commit("shop", names, amount=4, reservation=again.reservation_id)
    assert client.reserve("shop", names, amount=1).code == OVER
    code, text = client.code(KUADRANT + "Reserve", reserve(key, other))
    assert code == "FAILED_PRECONDITION" and key in text and other in text, text
print("forwarded")
