"""Prompts that are compressed once they have been read, on the command line."""

import json
import unittest

from harness import Case, run, tiny
from test_run import with_template

MODEL = tiny("llama_gqa")


class CompressPrompt(Case):
    def run_of(self, count, *flags):
        ids = json.dumps([3 + i * 7 % 300 for i in range(count)])
        return ["run", "-m", MODEL, "--prompt-tokens", ids, "-n", 8, "--temp", 0, "--ignore-eos",
                *flags]

    def test_a_run_says_how_many_tokens_of_its_prompt_were_let_go(self):
        gone = {how: self.json_of(*self.run_of(400, "--compress-prompt", how))["compressed_tokens"]
                for how in ("off", "auto", "40%", "160", "90%")}
        self.assertEqual(gone["off"], 0)
        # 336 to 399 are looked at and stay, and of the 21 blocks before (160 - 64) / 16.
        self.assertEqual(gone["auto"], 15 * 16)
        self.assertEqual(gone["40%"], gone["auto"])
        self.assertEqual(gone["160"], gone["auto"])
        self.assertEqual(gone["90%"], 3 * 16)

    def test_short_prompts_stay_whole_unless_a_number_says_otherwise(self):
        for flags, some in ((["auto"], False), (["200"], False), (["40%"], True), (["100"], True)):
            result = self.json_of(*self.run_of(200, "--compress-prompt", *flags))
            self.assertEqual(result["compressed_tokens"] > 0, some, flags)

    def test_what_makes_no_sense_is_refused_by_name(self):
        for bad in ("0", "63", "0%", "100%", "%", "-1", "most", ""):
            self.fails(2, *self.run_of(100, "--compress-prompt", bad), names=["--compress-prompt"])
        self.fails(2, *self.run_of(100, "--compress-prompt", "auto", "--window", 64),
                   names=["--window", "--compress-prompt"])

    def test_a_plan_counts_the_scores(self):
        plan = ["plan", "-m", MODEL, "--budget", "1G", "--ctx", 512, "--sessions", 4]
        off, on = (self.json_of(*plan, *flags)["parts"]["kv"]
                   for flags in ([], ["--compress-prompt", "auto"]))
        self.assertGreater(on, off)
        self.assertEqual((on - off) % (4 * 512 * 16), 0)

    def test_needles_are_looked_for_in_compressed_prompts(self):
        text = self.folder / "text.txt"
        text.write_text("It was a bright cold day in April. " * 100)
        result = self.json_of("eval", "-m", MODEL, "-f", text, "--ctx", 400, "--tokens", 400,
                              "--needle", 1, "--compress-prompt", "40%")
        self.assertEqual(list(result["needle"]), ["10", "30", "50", "70", "90"])

    def test_a_conversation_is_compressed_turn_by_turn(self):
        model = with_template(self.folder)  # trained for 512 tokens
        self.has_templates(model)
        lines = "".join(f"{'long ' * 20} turn {i}\n" for i in range(3)).encode()
        done = run("chat", "-m", model, "-n", 8, "--temp", 0, "--ignore-eos", "--json",
                   "--compress-prompt", "50%", stdin=lines)
        self.assertEqual(done.code, 0, done)
        gone = [turn["compressed_tokens"] for turn in done.json["turns"]]
        self.assertGreater(gone[0], 0)
        self.assertEqual(gone, sorted(gone))
        self.assertGreater(gone[2], gone[0])


if __name__ == "__main__":
    unittest.main()
