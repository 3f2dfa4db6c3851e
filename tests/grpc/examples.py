"""The examples for Envoy and Kuadrant: what they say of Doorman is true.

    python3 tests/grpc/examples.py HOST:PORT QUOTAS

The first server has the configuration of docs/tasks/envoy.md, and the one at the address QUOTAS that
of docs/tasks/envoy_quotas.md."""
import json
import re
import sys
import time

import grpc
import yaml
from client import ENVOY, Client, wire
from envoy import Stream, bucket_id, reports, usage

FLAGS = open("server/core/flags.h", encoding="utf-8").read()


def equal(got, expected):
    assert got == expected, f"got {got!r}, expected {expected!r}"


def load(name):
    with open("examples/deploy/" + name, encoding="utf-8") as file:
        return list(yaml.safe_load_all(file))


def cluster_of(config, name):
    return next(each for each in config["static_resources"]["clusters"] if each["name"] == name)


def address_of(cluster):
    endpoint = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
    address = endpoint["address"]["socket_address"]
    return f"{address['address']}:{address['port_value']}"


def manager_of(config):
    chain = config["static_resources"]["listeners"][0]["filter_chains"][0]
    return chain["filters"][0]["typed_config"]


def check_envoy(client):
    config = load("envoy.yaml")[0]
    manager = manager_of(config)
    limiter = next(
        each["typed_config"]
        for each in manager["http_filters"]
        if each["name"] == "envoy.filters.http.ratelimit"
    )
    service = limiter["rate_limit_service"]
    equal(service["transport_api_version"], "V3")
    doorman = cluster_of(config, service["grpc_service"]["envoy_grpc"]["cluster_name"])
    options = next(iter(doorman["typed_extension_protocol_options"].values()))
    equal(options["explicit_http_config"], {"http2_protocol_options": {}})
    page = open("docs/tasks/envoy.md", encoding="utf-8").read()
    assert f"--grpc {address_of(doorman)}" in page
    checked = doorman["health_checks"][0]["grpc_health_check"]["service_name"]
    equal(client.health(checked.encode()), wire.SERVING)
    # each action makes a descriptor that a limit of the page has
    route = manager["route_config"]["virtual_hosts"][0]["routes"][0]["route"]
    for limit in route["rate_limits"]:
        entries = []
        for action in limit["actions"]:
            kind, fields = next(iter(action.items()))
            entries.append((fields.get("descriptor_key", kind), "x"))
        status = client.limit(limiter["domain"], entries).statuses[0]
        assert status.HasField("current_limit"), f"{entries} has no limit"


def settings_of(matchers):
    """The settings of all buckets."""
    found = [each["on_match"] for each in matchers["matcher_list"]["matchers"]]
    return [each["action"]["typed_config"] for each in [*found, matchers["on_no_match"]]]


def check_quotas(channel):
    config = load("envoy_quota.yaml")[0]
    page = open("docs/tasks/envoy_quotas.md", encoding="utf-8").read()
    template = json.loads(re.search(r"```json\n(.*?)```", page, re.S)[1])["resources"][0]
    filters = manager_of(config)["http_filters"]
    quota = next(each for each in filters if each["name"] == "envoy.filters.http.rate_limit_quota")
    quota = quota["typed_config"]
    service = quota["rlqs_server"]
    doorman = cluster_of(config, service["envoy_grpc"]["cluster_name"])
    options = next(iter(doorman["typed_extension_protocol_options"].values()))
    equal(options["explicit_http_config"], {"http2_protocol_options": {}})
    assert f"--grpc {address_of(doorman)}" in page
    checked = doorman["health_checks"][0]["grpc_health_check"]["service_name"]
    equal(Client(channel).health(checked.encode()), wire.SERVING)
    metadata = [(each["key"], "test") for each in service["initial_metadata"]]
    equal([key for key, _ in metadata], ["x-doorman-client"])
    stream = Stream(channel, metadata)
    ids = set()
    for settings in settings_of(quota["bucket_matchers"]):
        seconds = float(settings["reporting_interval"].rstrip("s"))
        assert seconds <= template["algorithm"]["refresh_interval"]
        # a limit without an assignment, whose sum over 50 Envoys is the capacity
        for name in ("no_assignment_behavior", "expired_assignment_behavior"):
            equal(list(settings[name]), ["fallback_rate_limit"])
            bucket = settings[name]["fallback_rate_limit"]["token_bucket"]
            equal(50 * bucket["tokens_per_fill"], template["capacity"])
            equal(bucket["fill_interval"], "1s")
            assert bucket["max_tokens"] != bucket["tokens_per_fill"]
        entries = settings["bucket_id_builder"]["bucket_id_builder"]
        bucket = bucket_id(**{key: value["string_value"] for key, value in entries.items()})
        ids.add(bucket.SerializeToString())
    # the server assigns something to each of them
    seen, end = set(), time.monotonic() + 120
    while seen != ids:
        assert time.monotonic() < end and stream.code is None, stream.details
        for each in ids:
            stream.send(reports(quota["domain"], usage(wire.BucketId.FromString(each), 0, 1)))
        time.sleep(0.2)
        while not stream.messages.empty():
            seen |= {each.bucket_id for each in stream.next(1).bucket_action}
    stream.call.cancel()


def check_kuadrant():
    objects = {(each["kind"], each["metadata"]["name"]): each for each in load("kuadrant.yaml")}
    service = objects["Service", "limitador-limitador"]["spec"]
    pod = objects["Deployment", "doorman"]["spec"]["template"]
    policy = objects["NetworkPolicy", "doorman"]["spec"]
    equal(service["selector"], pod["metadata"]["labels"])
    equal(policy["podSelector"]["matchLabels"], service["selector"])
    proxy = yaml.safe_load(objects["ConfigMap", "doorman-envoy"]["data"]["envoy.yaml"])
    container = next(each for each in pod["spec"]["containers"] if each["name"] == "doorman")
    values = {each["name"]: each["value"] for each in container["env"]}
    for name in values:
        assert f'"{name}"' in FLAGS, name
    equal(address_of(cluster_of(proxy, "doorman")), values["DOORMAN_GRPC"])
    listener = proxy["static_resources"]["listeners"][0]["address"]["socket_address"]
    equal(listener["port_value"], service["ports"][0]["targetPort"])
    equal(policy["ingress"][0]["ports"][0]["port"], service["ports"][0]["targetPort"])


with grpc.insecure_channel(sys.argv[1]) as channel:
    check_envoy(Client(channel))
with grpc.insecure_channel(sys.argv[2]) as channel:
    check_quotas(channel)
check_kuadrant()
