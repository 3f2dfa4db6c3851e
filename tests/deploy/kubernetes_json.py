"""Prints the objects of manifests as one list in JSON.

    python3 tests/deploy/kubernetes_json.py FILE...
"""
import json
import sys
import yaml

objects = []
for path in sys.argv[1:]:
    with open(path, encoding="utf-8") as file:
        objects += list(yaml.safe_load_all(file))
json.dump(objects, sys.stdout)
