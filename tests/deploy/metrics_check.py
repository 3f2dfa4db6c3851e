"""Checks the dashboard and the alerts against the metrics of running servers: a root, a leaf, a
server with TLS, and a process whose etcd cannot be reached. Every metric must exist, with every label that an expression
uses. A value that an expression compares a label with must occur.

    python3 metrics_check.py SERVER FOLDER DASHBOARD RULES

Also writes the expressions of the dashboard as rules to FOLDER/dashboard.yml, for promtool."""

import json
import re
import ssl
import subprocess
import sys
import time
import urllib.request

TIMEOUT = 60
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

    def get(self, path, body=None):
        request = urllib.request.Request(
            self.http + path, data=body, headers={"Content-Type": "application/json"}
        )
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


def series_of(program, folder):
    """Returns the labels of all series of the servers, by the name of the metric."""
    config = ["--config", "config.example.json"]
    request = b'{"client_id": "a", "resource": [{"resource_id": "db/orders", "wants": 1}]}'
    servers = []
    try:
        servers.append(Server(program, f"{folder}/root", config))
        parent = ["--parent", servers[0].listen, "--node", "leaf"]
        servers.append(Server(program, f"{folder}/leaf", parent))
        etcd = ["--etcd", "http://127.0.0.1:1", "--election-key", "key"]
        servers.append(Server(program, f"{folder}/standby", config + etcd))
        servers.append(Server(program, f"{folder}/tls", config + make_certificate(folder)))
        for server in servers[:2]:
            server.get("/v1/get_capacity", request)
        pages = [server.get("/metrics") for server in servers]
    finally:
        for server in servers:
            server.stop()
    series = {}
    for name, labels in re.findall(r"^([a-z_]+)(?:\{(.*)\})? ", "\n".join(pages), re.M):
        series.setdefault(name, []).append(dict(re.findall(r'(\w+)="([^"]*)"', labels)))
    return series


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


def dashboard_targets(path):
    with open(path, encoding="utf-8") as file:
        panels = json.load(file)["panels"]
    return [target for panel in panels for target in panel.get("targets", [])]


def rule_expressions(path):
    """Returns the values of `expr`, which are a line or an indented block."""
    with open(path, encoding="utf-8") as file:
        return re.findall(r"^ +expr: (?:\|\n)?((?: {10}.*\n)+|.*\n)", file.read(), re.M)


def main():
    program, folder, dashboard, rules = sys.argv[1:]
    series = series_of(program, folder)
    targets = dashboard_targets(dashboard)
    alerts = rule_expressions(rules)
    problems = []
    for target in targets:
        problems += check_expression(series, target["expr"], target["legendFormat"])
    for text in alerts:
        problems += check_expression(series, text)
    assert targets and alerts
    with open(f"{folder}/dashboard.yml", "w", encoding="utf-8") as out:
        out.write("groups:\n  - name: dashboard\n    rules:\n")
        for i, target in enumerate(targets):
            text = target["expr"].replace("$__rate_interval", "5m")
            out.write(f"      - {{record: panel_{i}, expr: {json.dumps(text)}}}\n")
    print(f"{len(targets)} expressions of the dashboard and {len(alerts)} alerts")
    sys.exit("\n".join(sorted(set(problems))) if problems else 0)


main()
