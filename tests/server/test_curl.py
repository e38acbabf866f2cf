"""curl against the server, as docs/server.md shows it."""

import json
import pathlib
import re
import shutil
import subprocess
import unittest

from support import ServerCase

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "server.md"


@unittest.skipIf(shutil.which("curl") is None, "no curl here")
class Curl(ServerCase):
    def run_curl(self, *arguments):
        done = subprocess.run(["curl", "--silent", "--show-error", "--max-time", "60", *arguments],
                              capture_output=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        return done.stdout.decode()

    def test_the_example_of_the_documentation_streams(self):
        example = re.search(r"curl http://127\.0\.0\.1:8080(\S+) -d '(.*?)'", DOCS.read_text(), re.DOTALL)
        events = self.run_curl(self.server.url + example[1], "-d", example[2]).strip().split("\n\n")
        self.assertEqual(events[-1], "data: [DONE]")
        usage = json.loads(events[-2].removeprefix("data: "))["usage"]
        self.assertGreater(usage["completion_tokens"], 0)

    def test_a_body_by_pieces_and_one_that_waits_to_be_asked_for(self):
        body = json.dumps({"prompt": "x" * 2000, "max_tokens": 1})
        for header in ("Transfer-Encoding: chunked", "Expect: 100-continue"):
            text = self.run_curl(self.server.url + "/v1/completions", "-H", header, "-d", body)
            self.assertEqual(json.loads(text)["usage"]["completion_tokens"], 1, header)

    def test_an_error_has_a_status_and_says_why(self):
        text = self.run_curl(self.server.url + "/v1/completions", "-w", "\n%{http_code}", "-d", "{")
        body, status = text.rsplit("\n", 1)
        self.assertEqual(status, "400")
        self.assertTrue(json.loads(body)["error"]["message"])


if __name__ == "__main__":
    unittest.main()
