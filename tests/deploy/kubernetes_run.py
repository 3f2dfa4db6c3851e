"""Runs the processes of a manifest on this machine, with the environment and the probes of their
containers: etcd with TLS and a user, a Redis with a user, the root, and the leaf. Checks that all
become ready, that a client gets capacity, that the root has another master after the first one is
killed, and that this one knows what was granted.

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
PERMIT = '{"client_id": "me", "permit": [{"item": [{"resource_id": "month", "cost": 3}]}]}'
manifest, server, folder = sys.argv[1], os.path.abspath(sys.argv[2]), sys.argv[3]
processes = []


def run(*command, **more):
    return subprocess.run(command, check=True, capture_output=True, text=True, **more).stdout


def start(name, command, environment=None):
    log = open(f"{folder}/{name}.log", "w", encoding="utf-8")
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


def ask(pod):
    return pod.request("/v1/acquire", "-d", PERMIT).replace(" ", "")


def decided(answer):
    return None if "LEARNING" in answer else answer


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
    root, leaf = make_pods(sets)
    for pod in root + leaf:
        await_success(f"{pod.name} is alive", lambda: pod.probe("livenessProbe"))
        await_success(f"{pod.name} is ready", lambda: pod.probe("readinessProbe"))
    first = master_of(root)
    await_success("capacity", lambda: '"gets"' in master_of(leaf).request(
        "/v1/get_capacity", "-d", REQUEST))
    if '"granted":3' not in ask(first):
        sys.exit("a permit is not granted")
    time.sleep(5)  # it is written after a second, or later on a busy machine
    first.process.kill()
    root.remove(first)
    second = master_of(root)
    print("the master", first.name, "was killed; the next one is", second.name)
    answer = await_success("a decision", lambda: decided(ask(second)))
    if '"RATE"' not in answer:
        sys.exit(f"the next master does not know what was granted: {answer}")
    for pod in root + leaf:
        await_success(f"{pod.name} is ready again", lambda: pod.probe("readinessProbe"))
    for process in processes:
        process.terminate()
    for pod in root + leaf:
        if pod.process.wait(TIMEOUT) != 0:
            sys.exit(f"{pod.name} has exited with {pod.process.returncode}")


try:
    main()
finally:
    for started in processes:
        started.kill()
