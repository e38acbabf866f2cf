"""tael plan and pack on tiny models."""

import pathlib
import unittest

from harness import Case, run, tiny

KEYS = {"fits", "fits_streamed", "min_budget_bytes", "min_streamed_bytes", "budget_bytes", "parts",
        "max_ctx", "max_sessions", "block_bytes", "blocks"}
# Runtime memory is measured, so two runs may differ by some pages.
FROM_RUN_TO_RUN = 1 << 19


class Plan(Case):
    def plan(self, *arguments, code=0):
        done = run("plan", "-m", tiny("gemma3"), *arguments, "--json")
        self.assertEqual(done.code, code, done)
        return done.json

    def test_has_the_keys_that_scripts_rely_on(self):
        plan = self.plan("--budget", "1G")
        self.assertLessEqual(KEYS, plan.keys())
        self.assertTrue(plan["fits"] and plan["fits_streamed"])
        self.assertEqual(sum(plan["parts"].values()), plan["needed_bytes"])

    def test_the_smallest_budgets_it_names_are_the_smallest(self):
        wide = self.plan("--budget", "1G", "--ctx", "256")
        tight = self.plan("--budget", wide["min_budget_bytes"] + FROM_RUN_TO_RUN, "--ctx", "256")
        self.assertTrue(tight["fits"], tight)
        self.assertEqual(tight["resident_layers"], tight["layers"])
        below = wide["min_streamed_bytes"] - FROM_RUN_TO_RUN
        self.plan("--budget", below, "--ctx", "256", code=3)

    def test_a_budget_below_the_weights_streams_layers_and_run_says_so(self):
        wide = self.plan("--budget", "1G", "--ctx", "256")
        middle = (wide["min_budget_bytes"] + wide["min_streamed_bytes"]) // 2
        streamed = self.plan("--budget", middle, "--ctx", "256")
        self.assertFalse(streamed["fits"])
        self.assertTrue(streamed["fits_streamed"])
        self.assertLess(streamed["resident_layers"], streamed["layers"])
        arguments = ["run", "-m", tiny("gemma3"), "--prompt-tokens", "[5,6,7]", "-n", "8", "--temp",
                     "0", "--ctx", "256", "--json"]
        done = self.ok(*arguments, "--budget", middle)
        self.assertIn(b"read from the file for every token", done.err)
        self.assertEqual(done.json["tokens"], self.ok(*arguments).json["tokens"])

    def test_what_a_run_takes_is_what_was_planned(self):
        # Far above the least: there, pages more or less of runtime memory choose other chunks.
        budget = self.plan("--budget", "1G", "--ctx", "256")["min_budget_bytes"] + 64_000_000
        flags = ["--ctx", "256", "--budget", budget]
        planned = self.plan(*flags)["parts"]
        run = self.json_of("run", "-m", tiny("gemma3"), "--prompt-tokens", "[5,6,7]", "-n", "2", *flags)
        reserved = run["memory"]["parts_reserved"]
        for part in ("weights", "activations", "tokenizer", "prefix"):
            self.assertEqual(planned[part], reserved[part], part)

    def test_capacity_grows_with_the_budget_and_shrinks_with_sessions(self):
        least = self.plan("--budget", "1G", "--ctx", "128")["min_budget_bytes"]
        small, large = (self.plan("--budget", least + more, "--ctx", "128")
                        for more in (4_000_000, 40_000_000))
        self.assertGreater(large["max_sessions"], small["max_sessions"])
        self.assertGreaterEqual(large["max_ctx"], small["max_ctx"])

    def test_kv_bytes_are_told_in_blocks_and_rows(self):
        plan = self.plan("--budget", "1G", "--kv-bytes", "1Mi")
        self.assertEqual(plan["blocks"], (1 << 20) // plan["block_bytes"])

    def test_kv_bytes_are_told_by_type(self):
        per_token = {}
        for kv_type in ("f16", "q8", "k8v4"):
            plan = self.json_of("plan", "-m", tiny("qwen2_hd128"), "--budget", "1G", "--kv-type", kv_type)
            self.assertEqual([share["type"] for share in plan["kv_types"]], [kv_type])
            self.assertEqual(plan["kv_types"][0]["layers"], plan["layers"])
            self.assertEqual(plan["kv_types"][0]["bytes_per_token"], plan["kv_bytes_per_token"])
            per_token[kv_type] = plan["kv_bytes_per_token"]
        self.assertLessEqual(per_token["q8"], 0.53 * per_token["f16"])
        self.assertLessEqual(per_token["k8v4"], 0.42 * per_token["f16"])

    def test_keys_and_values_may_have_types_of_their_own(self):
        for flags, name in ((["--kv-type-k", "q8"], "k q8 v f16"), (["--kv-type-v", "q4"], "k f16 v q4"),
                            (["--kv-type", "q8", "--kv-type-v", "q4"], "k8v4"),
                            (["--kv-type-v", "f16", "--kv-type", "q8"], "k q8 v f16"),
                            (["--kv-type", "auto"], "q8"), ([], "q8"), (["--compute", "reference"], "f32")):
            with self.subTest(flags=flags):
                plan = self.json_of("plan", "-m", tiny("qwen2_hd128"), "--budget", "1G", *flags)
                self.assertEqual([share["type"] for share in plan["kv_types"]], [name])

    def test_prints_for_people(self):
        done = self.ok("plan", "-m", tiny("gemma3"), "--budget", "100M")
        for word in (b"weights", b"verdict", b"fits", b"sessions", b"smallest", b"per token"):
            self.assertIn(word, done.out)


class Pack(Case):
    def test_the_copy_is_aligned_ordered_and_answers_the_same(self):
        arguments = ["--prompt-tokens", "[5,6,7]", "-n", "8", "--temp", "0", "--json"]
        before = self.ok("run", "-m", tiny("gemma3"), *arguments).json["tokens"]
        for align in (4096, 16384, 65536):
            packed = self.folder / f"packed-{align}.gguf"
            report = self.ok("pack", tiny("gemma3"), packed, "--align", align, "--json").json
            self.assertEqual(report["output_bytes"], packed.stat().st_size)
            about = self.ok("inspect", "-m", packed, "--json").json
            self.assertEqual(about["data_alignment"] % align, 0)
            self.assertEqual(about["alignment"], align)
            layers = [int(t["name"].split(".")[1]) for t in about["tensors"] if t["name"].startswith("blk.")]
            self.assertEqual(layers, sorted(layers))
            self.assertEqual(self.ok("run", "-m", packed, *arguments).json["tokens"], before)

    def test_packing_twice_changes_nothing(self):
        once, twice = self.folder / "once.gguf", self.folder / "twice.gguf"
        self.ok("pack", tiny("qwen3"), once)
        self.ok("pack", once, twice)
        self.assertEqual(once.read_bytes(), twice.read_bytes())

    def test_bad_arguments_are_2_and_leave_the_files_alone(self):
        model = self.folder / "model.gguf"
        model.write_bytes(pathlib.Path(tiny("qwen3")).read_bytes())
        before = model.read_bytes()
        for output, align in ((model, 16384), (self.folder, 16384), (self.folder / "no/such", 16384),
                              (self.folder / "new", 100), (self.folder / "new", 1 << 20)):
            self.assertEqual(run("pack", model, output, "--align", align).code, 2, output)
        self.assertEqual(model.read_bytes(), before)
        self.assertFalse((self.folder / "new").exists())

    def test_a_file_that_is_no_model_is_4(self):
        self.assertEqual(run("pack", __file__, self.folder / "new").code, 4)


if __name__ == "__main__":
    unittest.main()
