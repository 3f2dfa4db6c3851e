"""Runs the processes of a manifest on this machine, with the environment and the probes of their
containers, beside an etcd with TLS and a user and a Redis with a user.

With the root and the leaf of `election`, it checks that all become ready, that a client gets
capacity, that the root has another master after the first one is killed, and that this one knows
what was granted. With the three nodes of `shards` it does what the file says with doormanctl:
divides the shards, and takes a node away. It checks that each node answers for the keys of all, and
that no unit is granted twice, also when a node is killed and starts again.

    unshare --net --mount --pid --fork --kill-child \\
        python3 tests/deploy/kubernetes_run.py MANIFEST SERVER FOLDER

Each pod has an IP address of loopback instead of a network of its own. /etc/hosts in the namespace
replaces DNS. FOLDER must be empty. Afterwards it has the certificates, the secrets and the logs.
All processes end with this one, because it is the first process of its PID namespace.
"""
import json
import os
import re
import subprocess
import sys
import time
import yaml

TIMEOUT = 120  # seconds; long, because machines can be slow
REQUEST = '{"client_id": "me", "resource": [{"resource_id": "db/orders", "wants": 5}]}'
KEYS = [f"user-{number}" for number in range(24)]
manifest, server, folder = sys.argv[1], os.path.abspath(sys.argv[2]), sys.argv[3]
processes = []


def run(*command, **more):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT,
                          **more).stdout


def start(name, command, environment=None):
    log = open(f"{folder}/{name}.log", "a", encoding="utf-8")
    process = subprocess.Popen(command, stderr=log, stdout=log, env=environment)
    processes.append(process)
    return process


def await_success(what, function):
    """Calls the function until it returns a true value."""
    end, last = time.monotonic() + TIMEOUT, ""
    while time.monotonic() < end:
        try:
            result = function()
            if result:
                return result
        except subprocess.CalledProcessError as error:
            last = error.stderr
        time.sleep(0.2)
    sys.exit(f"no success within {TIMEOUT} s: {what}: {last}")


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def make_certificate(target, names, ca="ca"):
    """Makes a certificate of the authority `ca`, for servers and for clients."""
    write(f"{folder}/extensions", "subjectAltName=" + ",".join("DNS:" + n for n in names)
          + "\nextendedKeyUsage=serverAuth,clientAuth\n")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    if not os.path.exists(f"{folder}/{ca}.crt"):
        run("openssl", "req", "-x509", *key, "-days", "2", "-subj", "/CN=authority",
            "-keyout", f"{folder}/{ca}.key", "-out", f"{folder}/{ca}.crt")
    os.makedirs(target, exist_ok=True)
    run("openssl", "req", *key, "-subj", "/CN=doorman", "-keyout", f"{target}/tls.key",
        "-out", f"{folder}/request")
    run("openssl", "x509", "-req", "-in", f"{folder}/request", "-CA", f"{folder}/{ca}.crt",
        "-CAkey", f"{folder}/{ca}.key", "-CAcreateserial", "-days", "2",
        "-extfile", f"{folder}/extensions", "-out", f"{target}/tls.crt")
    run("cp", f"{folder}/{ca}.crt", f"{target}/ca.crt")


def start_etcd():
    """Starts https://etcd.etcd:2379, with the user doorman as docs/operations.md describes."""
    make_certificate(f"{folder}/etcd", ["etcd.etcd"], "etcd-ca")
    run("cp", f"{folder}/etcd-ca.crt", f"{folder}/etcd/ca.crt")
    start("etcd", [
        "etcd", "--data-dir", f"{folder}/etcd/data", "--cert-file", f"{folder}/etcd/tls.crt",
        "--key-file", f"{folder}/etcd/tls.key", "--listen-client-urls", "https://127.2.0.1:2379",
        "--advertise-client-urls", "https://etcd.etcd:2379",
        "--listen-peer-urls", "http://127.2.0.1:2380",
        "--initial-advertise-peer-urls", "http://127.2.0.1:2380",
        "--initial-cluster", "default=http://127.2.0.1:2380"])
    control = ["etcdctl", "--endpoints", "https://etcd.etcd:2379",
               "--cacert", f"{folder}/etcd/ca.crt"]
    environment = dict(os.environ, ETCDCTL_API="3")
    await_success("etcd", lambda: run(*control, "endpoint", "health", env=environment) or True)
    for words in ("role add doorman", "role grant-permission doorman readwrite doorman/ --prefix",
                  "user add doorman:secret", "user grant-role doorman doorman",
                  "user add root:root", "user grant-role root root", "auth enable"):
        run(*control, *words.split(), env=environment)


def start_redis():
    """Starts redis://redis.redis, with the user doorman as docs/operations.md describes."""
    with open("docs/operations.md", encoding="utf-8") as page:
        user = re.search("`ACL SETUSER (.+ on )>PASSWORD (.+)`", page.read())
    write(f"{folder}/redis/users.acl", f"user default off\nuser {user[1]}>secret {user[2]}\n")
    start("redis", ["redis-server", "--bind", "127.2.0.2", "--port", "6379", "--save", "",
                    "--dir", f"{folder}/redis", "--aclfile", f"{folder}/redis/users.acl"])


class Pod:
    def __init__(self, template, name, address):
        container = template["containers"][0]
        self.name, self.address, self.container = name, address, container
        self.environment = {"POD": name, "PATH": os.environ["PATH"]}
        for variable in container["env"]:
            value = variable.get("value", name).replace("$(POD)", name)
            self.environment[variable["name"]] = self.localize(value)
        self.process = start(name, [server], self.environment)

    def restart(self):
        self.process.kill()
        self.process.wait()
        self.process = start(self.name, [server], self.environment)

    def localize(self, text):
        text = text.replace("/etc/doorman", f"{folder}/doorman")
        return text.replace("0.0.0.0", self.address).replace("127.0.0.1", self.address)

    def probe(self, name):
        command = self.container[name]["exec"]["command"]
        run(*[self.localize(word) for word in command])
        return True

    def request(self, path, *more):
        service = self.name.rsplit("-", 1)[0]
        tls = f"{folder}/doorman-tls"
        return run("curl", "-sS", "--max-time", "10", "--cacert", f"{tls}/ca.crt",
                   "--cert", f"{tls}/tls.crt", "--key", f"{tls}/tls.key",
                   "-H", "Authorization: Bearer token", "-H", "Content-Type: application/json",
                   *more, f"https://{self.name}.{service}.doorman:15050{path}")

    def is_master(self):
        return "\ndoorman_server_is_master 1\n" in self.request("/metrics")


def make_pods(objects):
    """Starts all pods of a list of StatefulSets."""
    addresses = {}
    for number, item in enumerate(objects):
        for index in range(item["spec"]["replicas"]):
            name = f"{item['metadata']['name']}-{index}"
            addresses[name] = f"127.1.{number}.{index + 1}"
    hosts = "127.0.0.1 localhost\n127.2.0.1 etcd.etcd\n127.2.0.2 redis.redis\n" + "".join(
        f"{address} {name}.{name.rsplit('-', 1)[0]}.doorman\n"
        for name, address in addresses.items())
    write(f"{folder}/hosts", hosts)
    run("mount", "--bind", f"{folder}/hosts", "/etc/hosts")
    start_redis()
    start_etcd()
    return [[Pod(item["spec"]["template"]["spec"], f"{item['metadata']['name']}-{index}",
                 addresses[f"{item['metadata']['name']}-{index}"])
             for index in range(item["spec"]["replicas"])] for item in objects]


def for_test(text):
    """Returns a configuration whose new masters do not learn leases, so that the test is short. It
    also has a quota that is used up by two permits."""
    config = json.loads(text)
    for template in config["resources"]:
        algorithm = template.setdefault("algorithm", {"kind": "FAIR_SHARE"})
        algorithm.update(lease_length=60, refresh_interval=10, learning_mode_duration=0)
    config["resources"].insert(0, {"identifier_glob": "month", "limits": [
        {"name": "month", "kind": "FIXED_WINDOW", "limit": 5, "window": "month"}]})
    return json.dumps(config)


def master_of(pods):
    return await_success("a master", lambda: next((p for p in pods if p.is_master()), None))


def ask(pod, key=""):
    """Asks for 3 of the 5 units that a key has in a month. Returns the answer, if it is decided."""
    item = {"resource_id": "month", "key": key, "cost": 3}
    body = json.dumps({"client_id": "me", "permit": [{"item": [item]}]})
    answer = pod.request("/v1/acquire", "-d", body).replace(" ", "")
    return None if "LEARNING" in answer or "UNAVAILABLE" in answer or "MOVED" in answer else answer


def expect(pod, key, text):
    answer = await_success("a decision", lambda: ask(pod, key))
    if text not in answer:
        sys.exit(f"{pod.name} does not answer {text} about '{key}': {answer}")


def await_ready(pods):
    for probe in ("livenessProbe", "readinessProbe"):
        for pod in pods:
            await_success(f"the {probe} of {pod.name}", lambda: pod.probe(probe))


def check_election(root, leaf):
    await_ready(root + leaf)
    first = master_of(root)
    await_success("capacity", lambda: '"gets"' in master_of(leaf).request(
        "/v1/get_capacity", "-d", REQUEST))
    expect(first, "", '"granted":3')
    time.sleep(5)  # it is written after a second, or later on a busy machine
    first.process.kill()
    root.remove(first)
    second = master_of(root)
    print("the master", first.name, "was killed; the next one is", second.name)
    expect(second, "", '"RATE"')
    await_ready(root + leaf)


def check_shards(nodes):
    tls = f"{folder}/doorman-tls"
    environment = dict(os.environ, DOORMAN_TOKEN="token", DOORMAN_CACERT=f"{tls}/ca.crt",
                       DOORMAN_CERT=f"{tls}/tls.crt", DOORMAN_KEY=f"{tls}/tls.key",
                       DOORMAN_URL="https://doorman-shards-0.doorman-shards.doorman:15050")

    def control(*words):
        return run("build/doormanctl", "shards", *words, env=environment) or True

    def owned(node):
        return int(re.search("\ndoorman_shards_owned ([0-9]+)\n", node.request("/metrics"))[1])

    await_ready(nodes)
    await_success("three nodes", lambda: control().count("doorman-shards-") == len(nodes))
    control("rebalance")
    await_success("equal parts", lambda: min(map(owned, nodes)) >= 21)
    for number, key in enumerate(KEYS):
        expect(nodes[number % 3], key, '"granted":3')
        expect(nodes[(number + 1) % 3], key, '"RATE"')
    time.sleep(5)  # it is written after a second, or later on a busy machine
    nodes[2].restart()
    await_ready(nodes)
    for number, key in enumerate(KEYS):
        expect(nodes[number % 3], key, '"RATE"')
    print(f"the node {nodes[2].name} was killed, and knows what was granted")
    control("drain", nodes[2].name)
    await_success("a drain", lambda: owned(nodes[2]) == 0)
    last = nodes.pop()
    last.process.terminate()
    last.process.wait(TIMEOUT)
    control("remove", last.name)
    for number, key in enumerate(KEYS):
        expect(nodes[number % 2], key, '"RATE"')
    print(f"the node {last.name} was removed, and the others know what was granted")


def main():
    run("ip", "link", "set", "lo", "up")
    with open(manifest, encoding="utf-8") as file:
        objects = list(yaml.safe_load_all(file))
    sets = [item for item in objects if item["kind"] == "StatefulSet"]
    names = [item["metadata"]["name"] + ".doorman" for item in sets]
    config = next(item for item in objects if item["kind"] == "ConfigMap")["data"]["config.json"]
    write(f"{folder}/doorman/config.json", for_test(config))
    write(f"{folder}/doorman-http/token", "token\n")
    for store in ("etcd", "redis"):
        write(f"{folder}/doorman-{store}/password", "secret\n")
    make_certificate(f"{folder}/doorman-tls", [p + n for n in names for p in ("", "*.")])
    make_certificate(f"{folder}/doorman-etcd", ["unused"], "etcd-ca")
    pods = make_pods(sets)
    {"doorman-root": check_election, "doorman-shards": check_shards}[sets[0]["metadata"]["name"]](*pods)
    for process in processes:
        process.terminate()
    for pod in sum(pods, []):
        if pod.process.wait(TIMEOUT) != 0:
            sys.exit(f"{pod.name} has exited with {pod.process.returncode}")


try:
    main()
finally:
    for started in processes:
        started.kill()
