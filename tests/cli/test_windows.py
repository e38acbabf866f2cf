"""Windows on the command line: prompts longer than the context, plans, and what eval says of them."""

import itertools
import json
import unittest

from harness import DATA, Case, not_under_sanitizers, run, tiny
from test_run import with_template

MODEL = tiny("llama_gqa")


class Windows(Case):
    def ids(self, count):
        return json.dumps([3 + i * 7 % 300 for i in range(count)])

    def test_a_prompt_longer_than_the_context_is_refused_or_truncated_and_said(self):
        run = ["run", "-m", MODEL, "--prompt-tokens", self.ids(300), "-n", 3, "--temp", 0,
               "--ctx", 128]
        error = self.fails(2, *run, names=["300", "128", "--window"])
        self.assertEqual(error["code"], "context_length_exceeded")
        result = self.json_of(*run, "--window", 100, "--window-shape", "uniform")
        self.assertEqual(result["truncated_tokens"], 200)
        self.assertEqual(result["prompt_tokens"], 300)
        done = self.ok(*run, "--window", 100, "--window-shape", "uniform")
        self.assertRegex(done.err.decode(), "truncated: 200 of 300")
        fits = self.json_of("run", "-m", MODEL, "--prompt-tokens", self.ids(90), "-n", 3,
                            "--window", 100)
        self.assertEqual(fits["truncated_tokens"], 0)

    def test_what_is_unknown_is_refused_by_name(self):
        run = ["run", "-m", MODEL, "-p", "x", "--raw", "-n", 1, "--window", 64]
        self.fails(2, *run, "--evict", "fold", names=["fold", "drop, heavy or merge", "--evict"])
        self.ok(*run, "--evict", "drop")
        self.fails(2, *run, "--window-shape", "round", names=["round", "layered"])
        for bad in ("0", "-1", "many", "9999", "96..64", "..64", "64..", "64..9999"):
            self.fails(2, "run", "-m", MODEL, "-p", "x", "--raw", "--window", bad)
        self.fails(2, *run, "--sinks", 64, names=["64", "--sinks"])

    def test_a_plan_counts_the_window_and_not_the_context(self):
        plan = ["plan", "-m", MODEL, "--budget", "1G", "--ctx", 512, "--sessions", 32]
        off = self.json_of(*plan)
        windowed = self.json_of(*plan, "--window", 64)
        self.assertEqual(off["window"]["tokens"], 0)
        self.assertEqual(windowed["window"],
                         {"tokens": 64, "sinks": 4, "shape": "layered", "evict": "drop"})
        self.assertLess(windowed["kv_bytes"], off["kv_bytes"])
        self.assertIn(b"64 tokens are kept", self.ok(*plan, "--window", 64).out)

    def test_small_blocks_do_not_leave_large_pages_empty(self):
        plan = ["plan", "-m", MODEL, "--ctx", 512, "--window", 64]
        small, large = (self.json_of(*plan, "--budget", budget)["kv_bytes"]
                        for budget in ("900M", "2G"))  # from 1 GiB on there are pages of 2 MiB
        self.assertLessEqual(large, 1.07 * small)

    def test_eviction_by_attention_needs_a_window_that_holds_a_tail(self):
        run = ["run", "-m", MODEL, "--prompt-tokens", self.ids(300), "-n", 40, "--temp", 0,
               "--ctx", 128, "--evict", "heavy"]
        self.fails(2, *run, names=["--window", "--evict heavy"])
        self.fails(2, *run, "--window", 63, names=["63", "64", "--window"])
        result = self.json_of(*run, "--window", 100, "--window-shape", "uniform")
        self.assertEqual(result["prompt_tokens"], 300)
        self.assertEqual(result["completion_tokens"], 40)
        self.assertGreater(result["truncated_tokens"], 190)
        done = self.ok(*run, "--window", 100)
        self.assertRegex(done.err.decode(), "got most attention")
        again = self.json_of(*run, "--window", 100, "--window-shape", "uniform", "--threads", 1)
        self.assertEqual(again["text"], result["text"])

    def test_a_plan_counts_the_scores_of_a_tail_and_no_pass_longer_than_its_window(self):
        plan = ["plan", "-m", MODEL, "--budget", "1G", "--ctx", 512, "--sessions", 4,
                "--window", 128, "--window-shape", "uniform"]
        drop = self.json_of(*plan)
        heavy = self.json_of(*plan, "--evict", "heavy")
        self.assertEqual(heavy["window"]["evict"], "heavy")
        # 128 / 16 + 3 blocks of slots, 16 bytes each, for 4 sessions; KV of the same rows.
        scores = 4 * heavy["layers"] * 11 * 16 * 16
        slabs = heavy["parts"]["kv"] - heavy["kv_bytes"]
        self.assertGreaterEqual(slabs, scores)
        self.assertLess(slabs, scores + 64 * 512)
        self.assertLess(heavy["kv_bytes"], drop["kv_bytes"])
        self.assertIn(b"for the attention they got", self.ok(*plan, "--evict", "heavy").out)
        merge = self.json_of(*plan, "--evict", "merge")  # 8 bytes more: a bias, and where it lies
        self.assertEqual(merge["window"]["evict"], "merge")
        self.assertEqual(merge["parts"]["kv"] - heavy["parts"]["kv"], scores // 2)
        self.assertIn(b"mean of others", self.ok(*plan, "--evict", "merge").out)

    def test_an_automatic_window_keeps_what_got_most_attention_where_it_loses_anything(self):
        plan = ["plan", "-m", MODEL, "--budget", "1G", "--window", "auto"]
        evict = lambda *flags: self.json_of(*plan, *flags)["window"]["evict"]
        self.assertEqual(evict("--ctx", 256), "heavy")
        self.assertEqual(evict(), "drop")  # as long as the model's context
        self.assertEqual(evict("--ctx", 256, "--server"), "drop")  # its sessions share prefixes
        self.assertEqual(evict("--ctx", 256, "--evict", "drop"), "drop")
        self.assertEqual(evict("--ctx", 256, "--window-shape", "layered"), "drop")
        run = ["run", "-m", MODEL, "--prompt-tokens", self.ids(300), "-n", 5, "--temp", 0]
        found = self.json_of(*run, "--ctx", 128, "--window", "auto")
        self.assertEqual((found["window"]["evict"], found["completion_tokens"]), ("heavy", 5))

    def test_a_window_that_grows_is_as_wide_as_there_is_room(self):
        run = ["run", "-m", MODEL, "--prompt-tokens", self.ids(400), "-n", 5, "--temp", 0,
               "--ctx", 128, "--window-shape", "uniform"]
        grown = self.json_of(*run, "--window", "64..256")
        self.assertEqual(grown["window"]["start"], 64)
        self.assertEqual(grown["window"]["tokens"], 256)
        self.assertEqual(grown["text"], self.json_of(*run, "--window", 256)["text"])
        self.assertEqual(grown["truncated_tokens"], 144)
        self.assertNotIn("start", self.json_of(*run, "--window", "64..64")["window"])
        done = self.ok(*run, "--window", "64..256", "-v")
        self.assertRegex(done.err.decode(), "a layer keeps up to 256 tokens now")
        # It is planned as the narrow one, and takes what the budget has left.
        plan = ["plan", "-m", MODEL, "--ctx", 128, "--window-shape", "uniform", "--json"]
        narrow = self.json_of(*plan, "--budget", "1G", "--window", 64)
        both = self.json_of(*plan, "--budget", "1G", "--window", "64..256")
        # What the process itself takes differs by a page or two from one run to the next.
        self.assertAlmostEqual(both["min_budget_bytes"], narrow["min_budget_bytes"], delta=1 << 16)
        self.assertGreater(both["kv_bytes"], narrow["kv_bytes"])
        least = self.json_of(*plan, "--budget", narrow["min_budget_bytes"], "--window", "64..256")
        self.assertTrue(least["fits"])
        self.assertEqual(least["kv_bytes"], narrow["kv_bytes"])
        again = self.json_of(*run, "--window", "64..256", "--budget", narrow["min_budget_bytes"],
                             "--threads", 1)
        self.assertEqual(again["completion_tokens"], 5)
        self.assertGreaterEqual(again["truncated_tokens"], 144)
        self.fails(2, *run, "--window", "64..256", "--evict", "heavy", names=["--evict heavy"])

    def test_eval_compares_a_window_with_all_of_the_kv(self):
        file = self.folder / "ids.json"
        file.write_text(self.ids(260))
        evaluate = ["eval", "-m", MODEL, "--ids", file, "--score-from", 100]
        self.assertNotIn("kl_mean", self.json_of(*evaluate))
        plain = self.json_of(*evaluate, "--kv-type", "f16")
        self.assertEqual(plain["kl_mean"], 0)
        windowed = self.json_of(*evaluate, "--window", 64)
        self.assertAlmostEqual(windowed["full_ppl"], plain["ppl"], delta=1e-3 * plain["ppl"])
        self.assertGreater(windowed["kl_mean"], 0)
        self.assertGreaterEqual(windowed["kl_p99"], windowed["kl_median"])
        self.assertLess(windowed["kv_bytes_peak"], windowed["full_kv_bytes_peak"])
        self.assertTrue(0 <= windowed["top1_agreement"] <= 1)
        nothing = self.json_of(*evaluate, "--window", 260, "--window-shape", "uniform",
                               "--compute", "reference", "--kv-type", "f16")
        self.assertLess(nothing["kl_mean"], 1e-6)
        self.assertEqual(nothing["top1_agreement"], 1)
        self.assertRegex(self.ok(*evaluate, "--window", 64).out.decode(), "KL mean")

    def test_eval_looks_for_needles_and_repetition(self):
        text = self.folder / "text.txt"
        text.write_text("It was a bright cold day in April. " * 100)
        evaluate = ["eval", "-m", MODEL, "-f", text, "--ctx", 400, "--tokens", 400]
        result = self.json_of(*evaluate, "--needle", 1, "--generate", 40)
        self.assertEqual(list(result["needle"]), ["10", "30", "50", "70", "90"])
        self.assertTrue(0 <= result["repetition"] <= 1)
        self.json_of(*evaluate, "--generate", 201)  # half of the context before, the last not fed
        error = self.fails(2, *evaluate, "--generate", 202, names=["202", "400", "--window"])
        self.assertEqual(error["code"], "context_length_exceeded")
        self.json_of(*evaluate, "--generate", 202, "--window", 64)
        self.fails(2, *evaluate[:5], "--ctx", 64, "--needle", 1, names=["too short", "--ctx"])


class Chat(Case):
    def test_a_conversation_goes_on_in_the_memory_of_its_window(self):
        model = with_template(self.folder)  # trained for 512 tokens
        self.has_templates(model)
        turns = 60
        lines = "".join(f"turn {i}\n" for i in range(turns)).encode()
        done = run("chat", "-m", model, "--window", 96, "--system", "Be brief.", "-n", 12,
                   "--temp", 1, "--seed", 5, "--ignore-eos", "--json", stdin=lines)
        self.assertEqual(done.code, 0, done)
        result = done.json
        self.assertEqual(len(result["turns"]), turns)
        self.assertGreater(result["turns"][-1]["prompt_tokens"], 1000)
        self.assertEqual({turn["completion_tokens"] for turn in result["turns"]}, {12})
        for before, turn in itertools.pairwise(result["turns"]):
            # Only what is new is computed, all the way.
            self.assertEqual(turn["cached_tokens"], before["prompt_tokens"] + 11)
            self.assertGreaterEqual(turn["truncated_tokens"], before["truncated_tokens"])
        self.assertGreater(turn["truncated_tokens"], 900)
        short = run("chat", "-m", model, "--window", 96, "--system", "Be brief.", "-n", 12,
                    "--temp", 1, "--seed", 5, "--ignore-eos", "--json",
                    stdin=b"".join(lines.splitlines(True)[:turns // 2]))
        self.assertEqual(result["memory"]["parts"]["kv"], short.json["memory"]["parts"]["kv"])


@not_under_sanitizers
class SmolLM2(Case):
    """The figures of two texts of 2,304 tokens, 512 kept, scored from 768 on."""

    def kl(self, text, *flags):
        result = self.json_of("eval", "-m", self.models("smollm2")[0], "--ids",
                              DATA / f"kv/{text}.json", "--ctx", 2304, "--window", 512,
                              "--score-from", 768, "--kv-type", "f16", *flags)
        return result["kl_mean"]

    def test_sinks_are_what_a_window_needs_and_layers_and_attention_help(self):
        for text, without in (("moby", 0.637), ("wt2", 0.653)):
            uniform = ["--window-shape", "uniform"]
            # Damage that the measurement has to see: perplexity nearly doubles.
            self.assertAlmostEqual(self.kl(text, *uniform, "--sinks", 0), without,
                                   delta=0.25 * without)
            four = self.kl(text, *uniform)
            self.assertLessEqual(four, 0.08)
            layered = self.kl(text)
            self.assertLessEqual(layered, four + 0.003)
            # What a simulation found, which chose every 32 tokens and held 16 tokens more.
            simulated = {"moby": 0.0270, "wt2": 0.0354}[text]
            heavy = self.kl(text, "--evict", "heavy")
            self.assertAlmostEqual(heavy, simulated, delta=max(0.01, 0.25 * simulated))
            self.assertLess(heavy, 0.9 * layered)


if __name__ == "__main__":
    unittest.main()
