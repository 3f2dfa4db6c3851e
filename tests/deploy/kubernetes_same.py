"""Checks that two manifests have the same objects, in any order. Prints the objects that differ.

    python3 tests/deploy/kubernetes_same.py FILE FILE
"""
import sys
import yaml


def read(path):
    with open(path, encoding="utf-8") as file:
        objects = list(yaml.safe_load_all(file))
    found = {(item["kind"], item["metadata"]["name"]): item for item in objects}
    assert len(found) == len(objects), path
    return found


first, second = read(sys.argv[1]), read(sys.argv[2])
faults = [key for key in {**first, **second} if first.get(key) != second.get(key)]
print(faults)
sys.exit(bool(faults))
