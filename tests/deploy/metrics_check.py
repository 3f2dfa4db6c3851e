"""Checks the dashboard and the alerts against the metrics of running servers: a root, a leaf, a
server with TLS, one with versions of its configuration, a process whose etcd cannot be reached, and
two nodes that share their keys. Needs etcd and redis-server.
Every metric must exist, with every label that an expression or a text uses. A value that an
expression compares a label with must occur. The dashboard must show every metric that a server has,
with the right unit.

    python3 metrics_check.py SERVER FOLDER DASHBOARD RULES

Also writes the expressions of the dashboard as rules to FOLDER/dashboard.yml, for promtool."""

import json
import re
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request

TIMEOUT = 60
TOKEN = "0123456789abcdef"
TARGET_LABELS = {"job", "instance", "node"}  # Prometheus adds them to each series
NAME = r"\b(?:doorman|process)_[a-z_]+"


def value_of(log, key, server):
    """Waits until the log of a server has a key, and returns its value."""
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end and server.poll() is None:
        with open(log, encoding="utf-8") as file:
            found = re.search(rf" {key}=(\S+)", file.read())
        if found:
            return found[1]
        time.sleep(0.05)
    sys.exit(f"a server did not start: see {log}")


class Server:
    def __init__(self, program, log, flags):
        command = [program, "--listen", "tcp://127.0.0.1:0", "--http", "127.0.0.1:0", *flags]
        with open(log, "w", encoding="utf-8") as out:
            self.process = subprocess.Popen(command, stderr=out)
        self.http = value_of(log, "http", self.process)
        self.listen = value_of(log, "listen", self.process)

    def get(self, path, body=None, method=None, headers=()):
        token = {"Authorization": f"Bearer {TOKEN}"}
        headers = {"Content-Type": "application/json"} | token | dict(headers)
        request = urllib.request.Request(self.http + path, body, headers, method=method)
        tls = ssl._create_unverified_context()
        with urllib.request.urlopen(request, timeout=TIMEOUT, context=tls) as response:
            return response.read().decode()

    def stop(self):
        self.process.terminate()
        self.process.wait(TIMEOUT)


def make_certificate(folder):
    """Returns the flags that name a certificate and its key."""
    pem, key = f"{folder}/own.pem", f"{folder}/own.key"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    names = ["-subj", "/CN=localhost", "-keyout", key, "-out", pem]
    subprocess.run(command.split() + names, check=True, stderr=subprocess.DEVNULL)
    return ["--tls-cert", pem, "--tls-key", key]


def start_with_versions(program, folder):
    """Starts a server whose configuration has a version."""
    tokens = f"{folder}/tokens"
    with open(tokens, "w", encoding="utf-8") as file:
        file.write(f"admin ann {TOKEN}\n")
    flags = ["--config", "store:", "--state", f"{folder}/versions", "--http-token", tokens]
    server = Server(program, f"{folder}/stored", flags)
    with open("config.example.json", "rb") as file:
        config = file.read()
    put_first(server, config)
    return server


def put_first(server, config):
    """Puts the first version of a configuration. A store on a busy disk answers late; the act is
    then refused, or was perhaps done."""
    end = time.monotonic() + TIMEOUT
    late = ""
    while True:
        try:
            server.get("/v1/config?reason=first", config, "PUT", {"If-None-Match": "*"})
            return
        except urllib.error.HTTPError as error:
            if late and error.code == 412:
                return
            late = error.read().decode()
            if error.code != 503 or time.monotonic() > end:
                sys.exit(f"the first version is refused: {error.code} {late}")
            print("the first version is late:", late.strip())
            time.sleep(1)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def start_tool(command, port, log):
    """Starts a program, and waits until it listens."""
    with open(log, "w", encoding="utf-8") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end and process.poll() is None:
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return process
        time.sleep(0.05)
    sys.exit(f"{command[0]} did not start: see {log}")


def start_etcd(folder):
    """Returns the process and its URL."""
    port = free_port()
    url, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{free_port()}"
    command = ["etcd", "--data-dir", f"{folder}/etcd", "--listen-client-urls", url,
               "--advertise-client-urls", url, "--listen-peer-urls", peer,
               "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
    return start_tool(command, port, f"{folder}/etcd.log"), url


def start_redis(folder):
    """Returns the process and its URL."""
    port = free_port()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", folder,
               "--save", ""]
    return start_tool(command, port, f"{folder}/redis.log"), f"redis://127.0.0.1:{port}"


def start_shards(program, folder, etcd, redis):
    """Starts two nodes. The first owns all shards, so the second forwards a permit."""
    limit = {"name": "day", "kind": "FIXED_WINDOW", "limit": 10, "window": 86400}
    config = {"shards": 4, "resources": [{"identifier_glob": "*", "limits": [limit]}]}
    with open(f"{folder}/shards.json", "w", encoding="utf-8") as file:
        json.dump(config, file)
    nodes = []
    for name in "ab":
        nodes.append(Server(program, f"{folder}/{name}", [
            "--config", f"{folder}/shards.json", "--etcd", etcd, "--state", redis,
            "--election-key", f"doorman/{name}", "--election-ttl", "4", "--node", name,
            "--shards", "doorman/shards"]))
        end = time.monotonic() + TIMEOUT
        while "doorman_shards_owned 4" not in nodes[0].get("/metrics"):
            if time.monotonic() > end:
                sys.exit(f"the first node owns no shards: see {folder}/a")
            time.sleep(0.1)
    nodes[1].get("/v1/allow?resource=api&key=bob")
    return nodes


def series_of(program, folder):
    """Returns the labels of all series of the servers, by the name of the metric, and the names of
    all metrics, also of those without a series."""
    config = ["--config", "config.example.json"]
    request = b'{"client_id": "a", "resource": [{"resource_id": "db/orders", "wants": 1}]}'
    servers, tools = [], []
    try:
        state = ["--state", f"{folder}/counters", "--events", "tcp://127.0.0.1:0"]
        gateways = ["--grpc", "127.0.0.1:0"]
        servers.append(Server(program, f"{folder}/root", config + state + gateways))
        parent = ["--parent", servers[0].listen, "--node", "leaf"]
        servers.append(Server(program, f"{folder}/leaf", parent))
        etcd = ["--etcd", "http://127.0.0.1:1", "--election-key", "key"]
        servers.append(Server(program, f"{folder}/standby", config + etcd))
        servers.append(Server(program, f"{folder}/tls", config + make_certificate(folder)))
        servers.append(start_with_versions(program, folder))
        for start in (start_etcd, start_redis):
            tools.append(start(folder))
        servers += start_shards(program, folder, tools[0][1], tools[1][1])
        for server in servers[:2]:
            server.get("/v1/get_capacity", request)
        pages = [server.get("/metrics") for server in servers]
    finally:
        for server in servers:
            server.stop()
        for process, _ in tools:
            process.kill()
            process.wait(TIMEOUT)
    series = {}
    for name, labels in re.findall(r"^([a-z_]+)(?:\{(.*)\})? ", "\n".join(pages), re.M):
        series.setdefault(name, []).append(dict(re.findall(r'(\w+)="([^"]*)"', labels)))
    return series, set(re.findall(r"^# TYPE (\w+) ", "\n".join(pages), re.M))


def check_selector(series, metric, selector):
    """Returns what is wrong with a selector such as doorman_server_connections{kind="nng"}."""
    problems = []
    for label, operator, value in re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"', selector):
        values = [one[label] for one in series[metric] if label in one]
        if label in TARGET_LABELS or "$" in value and values:
            continue
        pattern = value if operator in ("=~", "!~") else re.escape(value)
        if not any(re.fullmatch(pattern, one) for one in values):
            problems.append(f'{metric} has no series with {label}{operator}"{value}"')
    return problems


def check_expression(series, text, legend=""):
    """Returns what is wrong with an expression, and with the labels in its legend."""
    problems, known = [], set(TARGET_LABELS)
    for metric, selector in re.findall(rf"({NAME})(\{{[^}}]*\}})?", text):
        if metric not in series:
            problems.append(f"no server has {metric}")
            continue
        for one in series[metric]:
            known.update(one)
        problems += check_selector(series, metric, selector)
    groups = re.findall(r"\b(?:by|on|without|group_left)\s*\(([^)]*)\)", text)
    used = {label.strip() for group in groups for label in group.split(",") if label.strip()}
    used.update(re.findall(r"\{\{\s*(\w+)\s*\}\}", legend))
    problems += [f"no series in '{text}' has the label {label}" for label in used - known]
    return problems


def check_unit(text, unit):
    """Returns what is wrong with the unit of an expression of the dashboard."""
    rates = {"cps", "ops", "reqps"}
    if "/" in text:
        right = {"s"} if re.search(r"_seconds_total.* / ", text) else {"percentunit"}
    elif "timestamp_seconds" in text and "- time()" not in text:
        right = {"dateTimeAsIso"}
    elif re.search(r"_seconds(?!_total)", text):
        right = {"s"}
    elif "_bytes" in text:
        right = {"bytes"}
    elif "rate(" in text:
        right = {"short"} if "cpu_seconds" in text else rates
    else:
        right = {"short"}
    return [] if unit in right else [f"the unit {unit} is wrong for '{text}'"]


def dashboard_panels(path):
    with open(path, encoding="utf-8") as file:
        return [panel for panel in json.load(file)["panels"] if panel.get("targets")]


def check_dashboard(panels, series, names):
    """Returns what is wrong with the dashboard."""
    problems, shown = [], set()
    for panel in panels:
        unit = panel["fieldConfig"]["defaults"]["unit"]
        for target in panel["targets"]:
            problems += check_expression(series, target["expr"], target["legendFormat"])
            problems += check_unit(target["expr"], unit)
            shown.update(re.findall(NAME, re.sub(r"_bucket\b", "", target["expr"])))
    ids = [panel["id"] for panel in panels]
    problems += [f"two panels have the id {one}" for one in set(ids) if ids.count(one) > 1]
    return problems + [f"the dashboard does not show {name}" for name in names - shown]


def rules_of(path):
    """Returns the expression of each alert, which is a line or an indented block, and its text."""
    with open(path, encoding="utf-8") as file:
        alerts = file.read().split("- alert: ")[1:]
    block = r"^ +expr: (?:\|\n)?((?: {10}.*\n)+|.*\n)"
    return [(re.search(block, alert, re.M)[1], alert) for alert in alerts]


def check_alert(series, expression, text):
    """Returns what is wrong with an alert. A text may name only labels that the result has."""
    problems = check_expression(series, expression)
    used = set(re.findall(r"\$labels\.(\w+)", text))
    groups = re.match(r"\s*(?:sum|count|max) by \(([^)]*)\)", expression)
    if groups:
        known = {label.strip() for label in groups[1].split(",")}
    else:
        metric = re.search(NAME + r"|\bup\b", expression)[0]
        known = TARGET_LABELS.union(*series.get(metric, []))
    return problems + [f"no label {label} in the result of '{expression}'" for label in used - known]


def main():
    program, folder, dashboard, rules = sys.argv[1:]
    series, names = series_of(program, folder)
    panels, alerts = dashboard_panels(dashboard), rules_of(rules)
    problems = check_dashboard(panels, series, names)
    for expression, text in alerts:
        problems += check_alert(series, expression, text)
    assert panels and alerts and names
    with open(f"{folder}/dashboard.yml", "w", encoding="utf-8") as out:
        out.write("groups:\n  - name: dashboard\n    rules:\n")
        for i, target in enumerate(one for panel in panels for one in panel["targets"]):
            text = target["expr"].replace("$__rate_interval", "5m")
            out.write(f"      - {{record: panel_{i}, expr: {json.dumps(text)}}}\n")
    print(f"{len(panels)} panels of the dashboard and {len(alerts)} alerts")
    sys.exit("\n".join(sorted(set(problems))) if problems else 0)


main()
