"""The cores behave as the stories of clients/stories say."""
import copy
import unittest

import stories


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


if __name__ == "__main__":
    unittest.main()
