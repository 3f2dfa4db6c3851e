"""The map of shards: each key is in the same shard as for the servers."""
import json
import unittest

import stories
from doorman._base import InvalidResponse, Reader
from doorman._shards import glob_matches, read_glob, read_map, usable


def map_of(**fields):
    found = {"epoch": 1, "seed": "0" * 32, "nodes": [{"name": "a"}], "shards": [{"owner": "a"}],
             **fields}
    return read_map(Reader({"map": found}, "response"))


class Shards(unittest.TestCase):
    def test_keys_are_in_the_shards_of_the_vectors(self):
        path = stories.FOLDER / "vectors" / "shards.json"
        vectors = json.loads(path.read_text("utf-8"))
        shards = map_of(**vectors["map"], shards=[{"owner": "a"}] * vectors["shards"])
        for item in vectors["items"]:
            with self.subTest(item=item):
                found = shards.shard_of(item["resource_id"], item["key"])
                self.assertEqual(found, item["shard"])

    def test_globs_are_those_of_the_shell(self):
        for glob, text, expected in (
                ("*", "", True), ("a*c", "abbc", True), ("a*c", "abcd", False), ("?", "", False),
                ("[a-c]", "b", True), ("[^a-c]", "b", False), ("\\*", "*", True), ("a\\", "a\\", True),
                ("[a", "[a", True), ("[\\]]", "]", True), ("*b*c", "abxbyc", True)):
            self.assertEqual(glob_matches(read_glob(glob), text), expected, glob)

    def test_wrong_maps_are_not_taken(self):
        for wrong in ({"seed": "0"}, {"shards": []}, {"shards": [{"owner": "b"}]}, {"epoch": "x"},
                      {"nodes": [{"name": "a"}, {"name": "a"}]}, {"rules": [{"by": "key"}]}):
            with self.subTest(wrong=wrong), self.assertRaises(InvalidResponse):
                map_of(**wrong)

    def test_a_map_leads_as_little_to_plain_text_as_a_redirect(self):
        addresses = ["http://a", "https://b/", "ftp://c", 5]
        self.assertEqual(usable(addresses, True), ["https://b"])
        self.assertEqual(usable(addresses, False), ["http://a", "https://b"])


if __name__ == "__main__":
    unittest.main()
