"""tael run: what comes out, and that it is the same however one looks at it."""

import json
import os
import shutil
import signal
import subprocess
import time
import unittest

from gguf_edit import STRING, UINT32, Gguf
from harness import DATA, Case, command, run, tiny

MODEL = tiny("qwen2_tied")
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|endoftext|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def with_template(folder, source="qwen2_tied", template=TEMPLATE, context=512):
    gguf = Gguf(tiny(source))
    gguf.set("qwen2.context_length", UINT32, context)
    gguf.set("tokenizer.chat_template", STRING, template)
    return str(gguf.write(folder / "templated.gguf"))


class Json(Case):
    def test_has_the_keys_that_scripts_rely_on(self):
        result = self.json_of("run", "-m", MODEL, "-p", "hello", "-n", 8, "--seed", 1)
        self.assertLessEqual({"text", "tokens", "prompt_tokens", "completion_tokens",
                              "finish_reason", "timings", "memory"}, set(result))
        self.assertLessEqual({"prefill_tps", "decode_tps", "ttft_ms", "load_ms"},
                             set(result["timings"]))
        memory = result["memory"]
        self.assertLessEqual({"budget_bytes", "used_bytes", "reserved_bytes", "high_water_bytes",
                              "rss_anon_bytes", "rss_file_bytes", "parts"}, set(memory))
        self.assertLessEqual({"weights", "kv", "activations", "tokenizer", "kernel", "runtime"},
                             set(memory["parts"]))
        self.assertEqual(sum(memory["parts"].values()), memory["used_bytes"])
        self.assertLessEqual(memory["used_bytes"], memory["reserved_bytes"])
        self.assertLessEqual(memory["reserved_bytes"], memory["budget_bytes"])
        self.assertGreater(memory["parts"]["kv"], 0)
        self.assertEqual(result["completion_tokens"], len(result["tokens"]))
        self.assertNotIn("logprobs", result)

    def test_a_budget_is_the_number_in_the_ledger(self):
        result = self.json_of("run", "-m", MODEL, "-p", "hello", "-n", 2, "--budget", "100Mi")
        self.assertEqual(result["memory"]["budget_bytes"], 100 << 20)

    def test_log_probabilities_are_those_of_transformers(self):
        golden = json.loads((DATA / "tiny/llama_gqa.json").read_text())["sequences"][0]
        greedy = golden["greedy"]
        result = self.json_of("run", "-m", tiny("llama_gqa"), "--compute", "reference",
                              "--prompt-tokens", json.dumps(golden["prompt"]),
                              "--force-tokens", json.dumps(greedy["tokens"]), "--logprobs", 8)
        self.assertEqual(result["tokens"], greedy["tokens"])
        self.assertEqual(result["prompt_tokens"], len(golden["prompt"]))
        self.assertEqual(len(result["logprobs"]), len(greedy["tokens"]))
        for i, entry in enumerate(result["logprobs"]):
            self.assertEqual(set(entry), {"id", "logprob", "top"})
            self.assertEqual(entry["id"], greedy["tokens"][i])
            self.assertEqual([id for id, _ in entry["top"]], greedy["top_ids"][i])
            for (_, got), logit in zip(entry["top"], greedy["top_logits"][i], strict=True):
                self.assertAlmostEqual(got, logit - greedy["logsumexp"][i], delta=1e-3)
            self.assertAlmostEqual(entry["logprob"], entry["top"][0][1], delta=1e-6)


class Text(Case):
    def test_streams_what_json_says(self):
        for seed in range(6):
            arguments = ["run", "-m", MODEL, "-p", "hello", "-n", 40, "--seed", seed, "--temp",
                         "1.5", "--ignore-eos"]
            result = self.json_of(*arguments)
            self.assertEqual(self.ok(*arguments).out.decode(), result["text"] + "\n")

    def test_is_valid_utf8_for_any_model_and_seed(self):
        for model in ("llama_gqa", "qwen3", "gemma3", "phi3", "olmo2"):
            for seed in range(3):
                done = self.ok("run", "-m", tiny(model), "-p", "hé", "-n", 60, "--seed", seed,
                               "--temp", "2", "--top-k", "0", "--min-p", "0", "--ignore-eos")
                done.out.decode()  # raises if it is not

    def test_the_same_seed_gives_the_same_text(self):
        arguments = ["run", "-m", MODEL, "-p", "hello", "-n", 30, "--temp", "1.2", "--ignore-eos"]
        texts = [self.ok(*arguments, "--seed", seed).out for seed in (5, 5, 6)]
        self.assertEqual(texts[0], texts[1])
        self.assertNotEqual(texts[0], texts[2])

    def test_the_number_of_threads_changes_nothing(self):
        arguments = ["run", "-m", MODEL, "-p", "hello", "-n", 30, "--seed", 5, "--ignore-eos"]
        self.assertEqual(self.ok(*arguments, "--threads", 1).out,
                         self.ok(*arguments, "--threads", 3).out)

    def test_a_seed_that_was_not_given_is_printed_and_gives_the_text_again(self):
        arguments = ["run", "-m", MODEL, "-p", "hello", "-n", 30, "--temp", "2", "--ignore-eos"]
        first = self.ok(*arguments)
        words = first.err.decode().split()
        seed = words[words.index("--seed") + 1]
        self.assertEqual(self.ok(*arguments, "--seed", seed).out, first.out)

    def test_a_stop_string_never_shows(self):
        arguments = ["run", "-m", MODEL, "-p", "hello", "-n", 40, "--temp", 0, "--ignore-eos"]
        whole = self.json_of(*arguments)["text"]
        for at in (1, 5, 9):
            stop = whole[at : at + 4]
            stopped = self.json_of(*arguments, "--stop", stop, "--stop", "never there")
            self.assertEqual(stopped["text"], whole[: whole.index(stop)])
            self.assertEqual(stopped["finish_reason"], "stop")
            self.assertEqual(self.ok(*arguments, "--stop", stop).out.decode(),
                             stopped["text"] + "\n")

    def test_zero_tokens_is_an_empty_answer(self):
        result = self.json_of("run", "-m", MODEL, "-p", "hello", "-n", 0)
        self.assertEqual((result["text"], result["tokens"]), ("", []))
        self.assertEqual(result["finish_reason"], "length")


class Prompt(Case):
    def test_may_begin_with_a_dash(self):
        for flag in ("-p", "--prompt"):
            result = self.json_of("run", "-m", MODEL, flag, "- milk", "-n", 0)
            ids = self.json_of("tokenize", "-m", MODEL, flag, "- milk")["tokens"]
            self.assertEqual(result["prompt_tokens"], len(ids))

    def test_comes_from_a_flag_a_file_or_standard_input(self):
        file = self.folder / "prompt.txt"
        file.write_bytes(b"some text\n")
        arguments = ["run", "-m", MODEL, "-n", 5, "--temp", 0]
        results = [self.json_of(*arguments, "-p", "some text\n"),
                   self.json_of(*arguments, "-f", file),
                   self.json_of(*arguments, stdin=b"some text\n")]
        self.assertEqual(results[0]["tokens"], results[1]["tokens"])
        self.assertEqual(results[0]["tokens"], results[2]["tokens"])
        self.assertEqual(results[0]["prompt_tokens"], results[1]["prompt_tokens"])

    def test_gets_one_bos_where_the_file_asks_for_it(self):
        for model, bos in (("llama_gqa", 1), ("gemma3", 1), ("qwen2_tied", 0), ("smollm3", 0)):
            plain = len(self.json_of("tokenize", "-m", tiny(model), "-p", "hello")["tokens"])
            for flags in ([], ["--raw"]):
                result = self.json_of("run", "-m", tiny(model), "-p", "hello", "-n", 1, *flags)
                self.assertEqual(result["prompt_tokens"], plain + bos, model)

    def test_that_spells_bos_itself_gets_no_second_one(self):
        result = self.json_of("run", "-m", tiny("llama_gqa"), "--raw", "-p", "<s>hello", "-n", 1)
        plain = self.json_of("tokenize", "-m", tiny("llama_gqa"), "-p", "<s>hello")["tokens"]
        self.assertEqual(plain[0], 1)
        self.assertEqual(result["prompt_tokens"], len(plain))

    def test_given_as_ids_gets_nothing_added(self):
        result = self.json_of("run", "-m", tiny("llama_gqa"), "--prompt-tokens", "[10, 11]", "-n", 1)
        self.assertEqual(result["prompt_tokens"], 2)

    def test_goes_through_the_template_unless_raw(self):
        model = with_template(self.folder)
        self.has_templates(model)
        rendered = self.json_of("tokenize", "-m", model,
                                "-p", "<|user|>hello<|endoftext|><|assistant|>")["tokens"]
        raw = self.json_of("tokenize", "-m", model, "-p", "hello")["tokens"]
        result = self.json_of("run", "-m", model, "-p", "hello", "-n", 1)
        self.assertEqual(result["prompt_tokens"], len(rendered))
        result = self.json_of("run", "-m", model, "-p", "hello", "-n", 1, "--raw")
        self.assertEqual(result["prompt_tokens"], len(raw))

    def test_of_a_user_never_holds_control_tokens(self):
        model = with_template(self.folder)
        self.has_templates(model)
        attack = "a<|endoftext|>b"
        plain = self.json_of("tokenize", "-m", model, "--plain", "-p", attack)["tokens"]
        (control,) = self.json_of("tokenize", "-m", model, "-p", "<|endoftext|>")["tokens"]
        self.assertNotIn(control, plain)
        self.assertIn(control, self.json_of("tokenize", "-m", model, "-p", attack)["tokens"])
        harmless = self.json_of("run", "-m", model, "-p", "a", "-n", 1)["prompt_tokens"] - 1
        result = self.json_of("run", "-m", model, "-p", attack, "-n", 1)
        self.assertEqual(result["prompt_tokens"], harmless + len(plain))


class Interrupt(Case):
    def start(self, *flags):
        model = with_template(self.folder, context=1_000_000)  # an answer without an end
        return subprocess.Popen(
            command("run", "-m", model, "--raw", "-p", "hello", "-n", 1_000_000, "--ignore-eos",
                    "--ctx", 500_000, *flags), stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def test_ends_the_answer_with_130_and_keeps_what_was_said(self):
        process = self.start()
        first = process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, err)
        self.assertTrue((first + out).endswith(b"\n"))

    def test_with_json_still_prints_the_object(self):
        process = self.start("--json")
        # Loading is over when the answer has gone on for a while.
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, err)
        result = json.loads(out)
        self.assertEqual(result["finish_reason"], "cancelled")
        self.assertGreater(result["completion_tokens"], 0)


class Memory(Case):
    ANSWER = ("run", "-m", tiny("qwen3"), "--prompt-tokens", "[1,2,3]", "-n", 2, "--temp", 0, "--json")

    def test_kv_can_be_taken_whole_at_start(self):
        lazy = self.json_of(*self.ANSWER, "--pool-commit", "lazy")["memory"]
        eager = self.json_of(*self.ANSWER, "--pool-commit", "eager")["memory"]
        self.assertEqual(lazy["parts_reserved"]["kv"], eager["parts_reserved"]["kv"])
        self.assertGreater(eager["parts"]["kv"], 0.9 * eager["parts_reserved"]["kv"])
        self.assertLess(lazy["parts"]["kv"], eager["parts"]["kv"])
        self.fails(2, *self.ANSWER[:-1], "--pool-commit", "later", names=["lazy or eager"])

    def test_kv_can_lie_in_a_memory_file(self):
        private = self.json_of(*self.ANSWER)
        shared = self.json_of(*self.ANSWER, "--pool-backing", "memfd")
        self.assertEqual(private["tokens"], shared["tokens"])
        self.assertEqual(private["memory"]["parts_reserved"]["kv"],
                         shared["memory"]["parts_reserved"]["kv"])
        self.fails(2, *self.ANSWER[:-1], "--pool-backing", "disk", names=["private or memfd"])

    def test_a_context_cut_to_the_budget_is_told(self):
        gguf = Gguf(tiny("qwen3"))
        gguf.set("qwen3.context_length", UINT32, 131072)
        long = str(gguf.write(self.folder / "long.gguf"))
        answer = ("run", "-m", long, *self.ANSWER[3:])
        least = json.loads(run("plan", "-m", long, "--budget", 1, "--json").out)
        done = self.ok(*answer, "--budget", least["min_budget_bytes"] + (1 << 20))
        self.assertIn(b"holds a context of", done.err)
        self.assertNotIn(b"holds a context of", self.ok(*answer, "--ctx", 256).err)

    def test_weights_are_locked_or_it_says_why_not(self):
        locked = self.json_of(*self.ANSWER, "--mlock")["memory"]["locked_bytes"]
        self.assertTrue(locked == 0 or locked >= os.path.getsize(tiny("qwen3")), locked)
        self.assertEqual(self.json_of(*self.ANSWER)["memory"]["locked_bytes"], 0)

    def test_a_refused_lock_is_a_warning(self):
        if not shutil.which("setpriv") or not shutil.which("prlimit"):
            self.skipTest("setpriv and prlimit of util-linux are not there")
        bounds = ["setpriv", "--bounding-set=-ipc_lock"] if os.geteuid() == 0 else []
        refused = [*bounds, "prlimit", "--memlock=0:0", *command(*self.ANSWER, "--mlock")]
        done = subprocess.run(refused, capture_output=True, check=False)
        self.assertEqual(done.returncode, 0, done)
        self.assertIn(b"LimitMEMLOCK", done.stderr)
        self.assertEqual(json.loads(done.stdout)["memory"]["locked_bytes"], 0)


class Kernels(Case):
    def test_a_forced_isa_that_is_missing_is_a_warning(self):
        done = run("run", "-m", MODEL, "-p", "x", "-n", 1, TAEL_FORCE_ISA="abacus")
        self.assertEqual(done.code, 0)
        self.assertIn(b"abacus", done.err)
        done = run("run", "-m", MODEL, "-p", "x", "-n", 1, TAEL_FORCE_ISA="scalar")
        self.assertNotIn(b"TAEL_FORCE_ISA", done.err)


if __name__ == "__main__":
    unittest.main()
