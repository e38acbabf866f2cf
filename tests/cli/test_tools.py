"""tael tokenize, inspect, bench and eval on tiny models."""

import json
import math
import unittest

from harness import DATA, Case, run, tiny

MODEL = tiny("qwen2_tied")


class Tokenize(Case):
    def test_there_and_back(self):
        for model in ("qwen2_tied", "llama_gqa"):
            for text in ("hello world", " two  spaces", "Grüße, 世界\r\n", "tab\there"):
                ids = self.json_of("tokenize", "-m", tiny(model), "-p", text)["tokens"]
                back = self.json_of("tokenize", "-m", tiny(model), "--decode", *ids)["text"]
                self.assertEqual(back, text)

    def test_takes_its_text_byte_for_byte(self):
        file = self.folder / "text"
        file.write_bytes(b"a\r\n")
        from_file = self.json_of("tokenize", "-m", MODEL, "-f", file)["tokens"]
        self.assertEqual(from_file, self.json_of("tokenize", "-m", MODEL, "-p", "a\r\n")["tokens"])
        self.assertEqual(from_file, self.json_of("tokenize", "-m", MODEL, stdin=b"a\r\n")["tokens"])
        self.assertNotEqual(from_file, self.json_of("tokenize", "-m", MODEL, "-p", "a")["tokens"])
        self.assertEqual(self.json_of("tokenize", "-m", MODEL, stdin=b"")["tokens"], [])

    def test_what_it_prints_can_be_read_by_its_other_half_and_by_run(self):
        printed = self.ok("tokenize", "-m", MODEL, "-p", "hello world").out
        self.assertEqual(self.ok("tokenize", "-m", MODEL, "--decode", stdin=printed).out,
                         b"hello world\n")
        result = self.json_of("run", "-m", MODEL, "--prompt-tokens", printed.decode(), "-n", 1)
        self.assertEqual(result["prompt_tokens"], len(json.loads(printed)))

    def test_control_tokens_bos_and_plain_text(self):
        parsed = self.json_of("tokenize", "-m", tiny("llama_gqa"), "-p", "<s>")["tokens"]
        plain = self.json_of("tokenize", "-m", tiny("llama_gqa"), "-p", "<s>", "--plain")["tokens"]
        bos = self.json_of("tokenize", "-m", tiny("llama_gqa"), "-p", "<s>", "--bos")["tokens"]
        self.assertEqual(parsed, [1])
        self.assertGreater(len(plain), 1)
        self.assertNotIn(1, plain)
        self.assertEqual(bos, [1, 1])

    def test_bad_ids_are_2(self):
        for ids in (["384"], ["-1"], ["x"], ["[1", "2"], ["99999999999999999999"]):
            with self.subTest(ids=ids):
                done = run("tokenize", "-m", MODEL, "--decode", "--json", "--", *ids)
                self.assertEqual(done.code, 2, done)
                self.assertIn("error", done.json)
        self.fails(2, "tokenize", "-m", MODEL, "1", "2", names=["--decode"])


class Inspect(Case):
    def test_lists_metadata_tensors_and_types(self):
        listing = self.json_of("inspect", "-m", tiny("qwen2_q256.Q4_K_M-mixed"))
        self.assertTrue(listing["supported"], listing.get("reason"))
        self.assertEqual(listing["metadata"]["general.architecture"], "qwen2")
        self.assertLessEqual({"F32", "Q4_K", "Q6_K"}, set(listing["types"]))
        self.assertEqual(sum(use["tensors"] for use in listing["types"].values()),
                         len(listing["tensors"]))
        self.assertEqual(listing["metadata"]["tokenizer.ggml.tokens"]["count"], 512)
        for tensor in listing["tensors"]:
            self.assertEqual(tensor["offset"] % listing["alignment"], 0)
            self.assertLessEqual(tensor["offset"] + tensor["bytes"], listing["file_bytes"])

    def test_every_tiny_model_is_supported_and_prints(self):
        for path in sorted((DATA / "tiny").glob("*.gguf")):
            with self.subTest(path=path.name):
                text = self.ok("inspect", "-m", path).out.decode()
                self.assertIn("token_embd.weight", text)
                self.assertRegex(text, r"supported +yes")


class Bench(Case):
    def test_has_the_keys_that_scripts_rely_on(self):
        result = self.json_of("bench", "-m", MODEL, "-p", 64, "-n", 16, "-r", 2, "--threads", 2)
        for key in ("prefill_tps", "decode_tps", "ttft_ms", "peak_rss_anon_bytes",
                    "peak_pss_bytes", "weights_bytes"):
            self.assertGreater(result[key], 0, key)
        self.assertEqual(result["threads"], 2)
        self.assertIsInstance(result["isa"], str)

    def test_sessions_decode_together_and_their_memory_is_planned(self):
        one = self.json_of("bench", "-m", MODEL, "-p", 40, "-n", 12, "-r", 1)
        for model, sessions in ((MODEL, 5), (tiny("gemma3"), 2), (MODEL, 2)):
            many = self.json_of("bench", "-m", model, "-p", 40, "-n", 12, "-r", 1,
                                "--sessions", sessions)
            self.assertEqual(many["sessions"], sessions)
            self.assertAlmostEqual(many["decode_tps_per_session"] * sessions, many["decode_tps"])
        self.assertEqual(one["sessions"], 1)
        self.assertEqual(one["decode_tps_per_session"], one["decode_tps"])
        ledger = many["memory"]
        self.assertEqual(ledger["high_water_bytes"], ledger["reserved_bytes"])
        self.assertGreaterEqual(ledger["parts_reserved"]["kv"],
                                one["memory"]["parts_reserved"]["kv"])
        out = self.ok("bench", "-m", MODEL, "-p", 8, "-n", 2, "-r", 1, "--sessions", 3).out
        self.assertIn(b"of each of 3 sessions", out)
        self.fails(2, "bench", "-m", MODEL, "--sessions", 0)
        self.fails(2, "bench", "-m", MODEL, "--sessions", 1000, names=["128"])

    def test_prints_for_people_and_refuses_what_does_not_fit(self):
        out = self.ok("bench", "-m", MODEL, "-p", 20, "-n", 1, "-r", 1).out.decode()
        self.assertRegex(out, r"prefill +[0-9.]+ tokens/s")
        self.fails(2, "bench", "-m", MODEL, "-p", 4000, names=["512"])
        self.fails(2, "bench", "-m", MODEL, "-p", 0)


class Eval(Case):
    def golden(self, name):
        sequence = json.loads((DATA / f"tiny/{name}.json").read_text())["sequences"][2]
        return sequence["prompt"], sequence["prompt_logits"]

    def test_perplexity_of_ids_is_that_of_transformers(self):
        for name in ("llama_gqa", "gemma3"):
            ids, logits = self.golden(name)
            file = self.folder / "ids.json"
            file.write_text(json.dumps(ids))
            # The goldens hold the 8 likeliest: score each position that is among them by forcing.
            scored = self.json_of("eval", "-m", tiny(name), "--ids", file, "--score-from", 90,
                                  "--compute", "reference")
            forced = self.json_of("run", "-m", tiny(name), "--compute", "reference",
                                  "--prompt-tokens", json.dumps(ids[:91]),
                                  "--force-tokens", json.dumps(ids[91:]), "--logprobs", 1)
            nll = [-entry["logprob"] for entry in forced["logprobs"]]
            self.assertEqual(scored["scored_tokens"], len(ids) - 1 - 90)
            self.assertAlmostEqual(scored["ppl"], math.exp(sum(nll) / len(nll)),
                                   delta=scored["ppl"] * 1e-4)
            self.assertEqual(scored["tokens"], len(ids))
            self.assertEqual(len(logits["argmax"]), len(ids))

    def test_a_text_is_cut_into_chunks_that_are_evaluated_alone(self):
        text = self.folder / "text.txt"
        text.write_text("It was a bright cold day in April. " * 40)
        for model, bos in (("llama_gqa", [1]), ("qwen2_tied", [])):
            whole = self.json_of("eval", "-m", tiny(model), "-f", text, "--ctx", 64,
                                 "--tokens", 200)
            self.assertEqual(whole["chunks"], 3)
            self.assertEqual(whole["tokens"], 192)
            self.assertEqual(whole["scored_tokens"], 3 * (64 - 1 - 32))
            ids = bos + self.json_of("tokenize", "-m", tiny(model), "--plain", "-f",
                                     text)["tokens"]
            total = 0.0
            for i in range(3):
                chunk = ids[i * 64 : (i + 1) * 64]
                chunk[: len(bos)] = bos
                file = self.folder / "chunk.json"
                file.write_text(json.dumps(chunk))
                part = self.json_of("eval", "-m", tiny(model), "--ids", file)
                total += part["nll_mean"] * part["scored_tokens"]
            self.assertAlmostEqual(whole["nll_mean"], total / whole["scored_tokens"], places=6)

    def test_bad_input_is_2(self):
        text = self.folder / "text.txt"
        text.write_text("too short")
        self.fails(2, "eval", "-m", MODEL, "-f", text, "--ctx", 64, names=["64"])
        self.fails(2, "eval", "-m", MODEL, names=["-f"])
        self.fails(2, "eval", "-m", MODEL, "-f", self.folder / "none", names=["none"])
        bad = self.folder / "ids.json"
        for content in ("", "[]", "[1]", "[1, 2, 384]", '{"a": 1}', "[1, 2"):
            bad.write_text(content)
            with self.subTest(content=content):
                self.fails(2, "eval", "-m", MODEL, "--ids", bad)
        bad.write_text("[1, 2, 3, 4]")
        self.fails(2, "eval", "-m", MODEL, "--ids", bad, "--score-from", 3, names=["3"])
        self.json_of("eval", "-m", MODEL, "--ids", bad, "--score-from", 2)


if __name__ == "__main__":
    unittest.main()
