"""The examples of the README run with a real server, and its links lead to files."""
import contextlib
import io
import json
import os
import pathlib
import re
import unittest
from typing import Any, Dict, List

from doorman import Client
from server import PROGRAM, Server

PACKAGE = pathlib.Path(__file__).resolve().parents[1]
TEXT = (PACKAGE / "README.md").read_text("utf-8")


def blocks() -> List[str]:
    return re.findall(r"```python\n(.*?)```", TEXT, re.S)


class Readme(unittest.TestCase):
    def test_links_lead_to_files(self) -> None:
        links = re.findall(r"\]\(([^)#]+)\)", TEXT)
        self.assertGreater(len(links), 1)
        for link in links:
            self.assertTrue((PACKAGE / link).exists(), link)

    @unittest.skipUnless(os.path.exists(PROGRAM), f"there is no {PROGRAM}")
    def test_examples_run(self) -> None:
        config = json.loads((PACKAGE / "demo.json").read_text("utf-8"))
        server = Server(config=config)
        printed: List[str] = []
        try:
            for block in blocks():
                if "doorman.example" not in block:
                    printed.append(self.run_block(block, server.url))
        finally:
            server.stop()
        self.assertEqual(printed[0].count("welcome"), 5)
        self.assertEqual(printed[0].count("too many attempts"), 2)
        self.assertIn("one query to the database", printed[1])
        self.assertIn("True [1.0, 3.0] None", printed[3])
        self.assertIn("ends in", printed[4])
        self.assertEqual(printed[6], "True\n")

    def run_block(self, block: str, url: str) -> str:
        names: Dict[str, Any] = {"Client": Client}
        block = block.replace("http://127.0.0.1:15050", url)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(block, "README.md", "exec"), names)
        if isinstance(names.get("client"), Client):
            names["client"].close()
        return out.getvalue()


if __name__ == "__main__":
    unittest.main()
