"""The cores behave as the stories of clients/stories say."""
import copy
import unittest
from typing import Any

import stories
from doorman.permits import Item, Permit, PermitCore


class Stories(unittest.TestCase):
    def test_the_cores_behave_as_the_stories_say(self) -> None:
        every = stories.load()
        self.assertGreater(len(every), 60)
        for story in every:
            with self.subTest(story["story"]):
                stories.run(story)

    def test_a_story_that_is_wrong_fails(self) -> None:
        opens = {"opens": {"resource_id": "a", "wants": 5}}
        asks = {"acquires": {"call": "p", "item": [{"resource_id": "a"}]}}
        wrong = [
            {"client": {}, "steps": [opens, {"sends": {"message": {"resource": [{"wants": 6}]}}}]},
            {"client": {}, "steps": [opens, {"sends": {}}, {"breaks": {}},
                                     {"at": [1.5, 2], "sends": {}}]},
            {"client": {}, "steps": [opens, {"at": 1, "waits": {}}]},
            {"client": {}, "steps": [opens, {"sends": {"message": {"client_id": None}}}]},
            {"client": {}, "steps": [opens, {"sends": {}},
                                     {"reads": {"resource_id": "a", "capacity": 5}}]},
            {"client": {"kind": "permits"}, "steps": [asks, {"sends": {}},
                                                      {"at": 0.5, "decides": {"call": "p"}}]},
            {"client": {"kind": "permits"}, "steps": [asks, {"sends": {}},
                                                      {"at": 2, "waits": {}}]},
            {"client": {}, "steps": [{"sings": {}}]},
            {"client": {}, "steps": [{"waits": {"long": True}}]},
        ]
        for story in wrong:
            with self.subTest(story), self.assertRaises(stories.StoryFailed):
                stories.run({"story": "wrong", "why": "", **copy.deepcopy(story)})


class Details(unittest.TestCase):
    """The stories have no permits with invalid details."""

    WRONG: Any = [
        {"item": [{"granted": 1, "limits": 7}]}, {"item": [{"granted": 1, "limits": [7]}]},
        {"item": [{"granted": 1, "limits": [{"name": "a", "window": -1}]}]},
        {"item": [{"granted": 1, "limit": 7}]}, {"item": [{"granted": 1}], "warning": "yes"},
        {"decision": "REFUSED", "reason": "RATE", "limit": 7},
        {"decision": "REFUSED", "reason": "RATE", "item": [{"limits": [{"limit": -1}]}]},
    ]

    def test_a_message_with_invalid_details_decides_nothing_and_is_repeated(self) -> None:
        good = {"decision": "GRANTED", "item": [{"granted": 1}]}
        for wrong in self.WRONG:
            with self.subTest(str(wrong)):
                core = PermitCore("me", ["http://a:1"], 0)
                for name in "ab":
                    core.acquire(Permit((Item(name),), detail=True), 1, name, 0)
                request = core.next(0)
                assert request
                body = {"permit": [good, {**good, **wrong}]}
                self.assertIsNotNone(core.response(request, 200, body, 0))
                self.assertIsNone(core.decision(0))
                counts = core.read()
                self.assertEqual([counts[name] for name in ("granted", "refused", "failures")],
                                 [0, 0, 1])
                again = core.next(0)
                assert again
                self.assertEqual(again.message["permit"][0]["item"][0]["resource_id"], "a")


if __name__ == "__main__":
    unittest.main()
