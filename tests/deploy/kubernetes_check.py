"""Checks that the objects in the manifests of examples/deploy fit together: selectors match pods,
ports and volumes have names, and containers mount what they name. Prints each fault.

    python3 tests/deploy/kubernetes_check.py FILE...
"""
import re
import sys
import yaml

faults = []


def check(good, *text):
    if not good:
        faults.append(" ".join(map(str, text)))


def check_pods(name, workload):
    template = workload["template"]
    claims = {claim["metadata"]["name"] for claim in workload.get("volumeClaimTemplates", [])}
    labels, pod = template["metadata"]["labels"], template["spec"]
    check(selects(workload["selector"], labels), name, "does not select its pods")
    for constraint in pod.get("topologySpreadConstraints", []):
        check(selects(constraint["labelSelector"], labels), name, "spreads other pods")
    volumes = {volume["name"] for volume in pod["volumes"]} | claims
    for container in pod["containers"]:
        mounts = container["volumeMounts"]
        check({mount["name"] for mount in mounts} == volumes, name, "mounts other volumes")
        ports = {port["name"] for port in container["ports"]}
        for probe in container["livenessProbe"], container["readinessProbe"]:
            check("exec" in probe or probe["httpGet"]["port"] in ports, name, "probes no port")
        folders = [mount["mountPath"] + "/" for mount in mounts]
        named = set()
        for variable in container["env"]:
            # Kubernetes replaces $(NAME) only by a variable that comes before.
            for used in re.findall(r"\$\((\w+)\)", variable.get("value", "")):
                check(used in named, name, "has", variable["name"], "before", used)
            named.add(variable["name"])
            value = variable.get("value", "")
            if value.startswith("/"):
                check(value.startswith(tuple(folders)), name, "mounts no", value)


def selects(selector, labels):
    return selector["matchLabels"].items() <= labels.items()


def check_file(path):
    with open(path, encoding="utf-8") as file:
        objects = list(yaml.safe_load_all(file))
    workloads = [o["spec"] for o in objects if o["kind"] == "StatefulSet"]
    templates = [workload["template"] for workload in workloads]
    services = {o["metadata"]["name"]: o["spec"] for o in objects if o["kind"] == "Service"}
    for item in objects:
        name = f"{path}: {item['kind']} {item['metadata']['name']}"
        kind, spec = item["kind"], item.get("spec", {})
        selector = spec.get("podSelector") or spec.get("selector")
        if kind == "Service":
            selector = {"matchLabels": selector}
        if kind in ("Service", "PodDisruptionBudget", "NetworkPolicy"):
            chosen = [t for t in templates if selects(selector, t["metadata"]["labels"])]
            check(len(chosen) == 1, name, "selects", len(chosen), "nodes")
        if kind == "StatefulSet":
            check_pods(name, spec)
            check(spec["serviceName"] in services, name, "has no service")
        if kind == "ServiceMonitor":
            check(selects(selector, {"app": "doorman"}), name, "selects no service")
    check(objects, path, "is empty")


for argument in sys.argv[1:]:
    check_file(argument)
print("\n".join(faults))
sys.exit(bool(faults))
