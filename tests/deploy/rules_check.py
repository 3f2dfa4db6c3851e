"""Checks that each alert has a test in which it fires, and one in which it is silent.

    python3 rules_check.py RULES TESTS...

A test of an alert counts only if its story has every metric that the expression of the alert needs:
an alert without its metrics is always silent. promtool runs the tests, and ignores a misspelt name
of an alert, so this program checks the names."""

import re
import sys

import yaml

METRIC = r"\b(?:(?:doorman|process)_[a-z_]+|up)\b"


def metrics_of(text):
    """Returns the names of metrics in an expression or in the name of a series."""
    return set(re.findall(METRIC, re.sub(r'"[^"]*"|\b(?:by|on) \([^)]*\)', "", text)))


def results_of(test):
    """Returns pairs of an alert and whether a test expects it."""
    for one in test.get("alert_rule_test", []):
        yield one["alertname"], bool(one.get("exp_alerts"))
    for one in test.get("promql_expr_test", []):
        for alert in re.findall(r'alertname="(\w+)"', one["expr"]):
            yield alert, bool(one.get("exp_samples"))


def read(path):
    with open(path, encoding="utf-8") as file:
        return yaml.safe_load(file)


def main():
    rules = read(sys.argv[1])
    tests = [test for path in sys.argv[2:] for test in read(path)["tests"]]
    alerts = {
        rule["alert"]: metrics_of(rule["expr"])
        for group in rules["groups"]
        for rule in group["rules"]
    }
    tested, problems = set(), []
    for test in tests:
        given = set().union(*(metrics_of(one["series"]) for one in test["input_series"]))
        for alert, fires in results_of(test):
            if alert not in alerts:
                problems.append(f"'{test['name']}' names {alert}, which is no alert")
            elif alerts[alert] <= given:
                tested.add((alert, fires))
    for alert in alerts:
        if (alert, True) not in tested:
            problems.append(f"{alert} has no test in which it fires")
        if (alert, False) not in tested:
            problems.append(f"{alert} has no test in which it is silent, with all of its metrics")
    print(f"{len(alerts)} alerts, {len(tests)} stories")
    sys.exit("\n".join(problems) if problems or not alerts else 0)


main()
