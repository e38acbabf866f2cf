"""What the world can refuse the whole program, refused one by one."""

import json
import os
import subprocess
import unittest

import caged
import support


class EveryFaultOfTheProgram(unittest.TestCase):
    """Fails the n-th reservation, mapping, read or thread of the whole program, for every n."""

    def test_is_an_exit_status_and_a_message(self):
        load = caged.Load(prompt_tokens=20, answer_tokens=4, context=64)
        model = support.DATA / "tiny" / "qwen3.gguf"
        for kind, code in (("reserve", 3), ("map", None), ("read", None), ("thread", None)):
            failures = 0
            for n in range(1, 100):
                with self.subTest(kind=kind, n=n):
                    done = subprocess.run(
                        caged.command(*load.arguments(model), "--budget", "256M", "--threads", 2),
                        env={**os.environ, "TAEL_FAULT": f"{kind}:{n}"}, capture_output=True,
                        check=False, timeout=60)
                    if done.returncode == 0:
                        continue
                    failures += 1
                    self.assertIn(done.returncode, (code,) if code else range(1, 10), done)
                    self.assertGreater(len(json.loads(done.stdout)["error"]["message"]), 10)
                if n > 12 + failures:
                    break
            self.assertGreater(failures, 0, kind)


if __name__ == "__main__":
    unittest.main()
