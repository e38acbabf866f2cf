"""Bad input of every kind: a clear message, the right exit code, never a signal."""

import json
import os
import struct
import unittest

from gguf_edit import ARRAY, STRING, UINT32, Gguf
from harness import Case, run, tiny

MODEL = tiny("qwen2_tied")
RUN = ["run", "-m", MODEL, "-n", "2"]


class Flags(Case):
    def test_an_unknown_command_flag_or_no_command_is_2(self):
        self.fails(2, "run", "-m", MODEL, "-p", "x", "--no-such-flag", names=["--no-such-flag"])
        self.fails(2, "conquer", names=["conquer"])
        self.fails(2)
        self.fails(2, "run", "-p", "x", names=["--model"])

    def test_a_bad_value_is_2_and_named(self):
        for flag, value in (
            ("--budget", "lots"), ("--budget", "-1"), ("--budget", "0"), ("--budget", "1.8X"),
            ("--threads", "0"), ("--threads", "-2"), ("--threads", "100000"), ("--threads", "two"),
            ("--ctx", "0"), ("--ctx", "-5"), ("--ctx", "x"), ("--seed", "x"), ("--seed", "-1"),
            ("--speculate", "8"), ("--speculate", "0"), ("--speculate", "yes"),
            ("--temp", "hot"), ("--top-k", "x"), ("--kv-type", "q9"), ("--compute", "slow"),
            ("-n", "-1"), ("-n", "x"), ("-n", "1e3"), ("--logprobs", "-1"), ("--stop", ""),
            ("--prompt-tokens", "1,2"), ("--force-tokens", "[]"), ("--force-tokens", '["a"]'),
        ):
            prompt = [] if flag == "--prompt-tokens" else ["-p", "x"]
            forms = [[flag, value], [f"{flag}={value}"]] if flag != "-n" else [[flag, value]]
            for form in forms:
                with self.subTest(form=form):
                    self.fails(2, *RUN, *prompt, *form)

    def test_a_sampler_setting_out_of_range_names_the_option(self):
        for flag, value, name in (("--temp", "-1", "temp"), ("--temp", "nan", "temp"),
                                  ("--top-p", "1.5", "top_?-?p"), ("--top-p", "nan", "top_?-?p"),
                                  ("--top-k", "-1", "top_?-?k"), ("--min-p", "-0.5", "min_?-?p"),
                                  ("--repeat-penalty", "-1", "repeat")):
            with self.subTest(flag=flag, value=value):
                self.fails(2, *RUN, "-p", "x", f"{flag}={value}", names=[name])

    def test_an_unknown_kv_type_names_those_that_there_are(self):
        self.fails(2, *RUN, "-p", "x", "--kv-type", "q3", names=["q3", "f16", "q8", "k8v4", "auto"])
        self.fails(2, *RUN, "-p", "x", "--kv-type-k", "q4", names=["q4", "f16", "q8"])
        self.fails(2, *RUN, "-p", "x", "--kv-type-v", "k8v4", names=["k8v4", "f16", "q8", "q4"])

    def test_a_context_longer_than_trained_names_both(self):
        self.fails(2, *RUN, "-p", "x", "--ctx", 513, names=["513", "512"])

    def test_two_sources_of_a_prompt_are_one_too_many(self):
        self.fails(2, *RUN, "-p", "x", "-f", "y")
        self.fails(2, *RUN, "-p", "x", "--prompt-tokens", "[1]")

    def test_help_is_0_and_has_an_example(self):
        for name in ("run", "chat", "tokenize", "inspect", "bench", "eval"):
            for flag in ("--help", "-h"):
                done = self.ok(name, flag)
                self.assertIn(f"tael {name} -m", done.out.decode())
        self.assertIn(b"run", self.ok("--help").out)
        self.assertIn(b"tael", self.ok("--version").out)


class Prompts(Case):
    def test_without_tokens_is_2(self):
        empty = self.folder / "empty"
        empty.write_bytes(b"")
        self.fails(2, *RUN, names=["no prompt tokens"])  # nothing on standard input
        self.fails(2, *RUN, "-p", "", names=["no prompt tokens"])
        self.fails(2, *RUN, "-f", empty, names=["no prompt tokens"])
        self.fails(2, *RUN, "--prompt-tokens", "[]", names=["no prompt tokens"])

    def test_from_a_file_that_is_not_there_is_2(self):
        self.fails(2, *RUN, "-f", self.folder / "nothing", names=["nothing"])
        self.fails(2, *RUN, "-f", self.folder, names=["directory"])

    def test_with_ids_outside_the_vocabulary_is_2(self):
        for ids in ("[384]", "[-1]", "[99999999999999999999]", "[1.5]", "[true]", "{}", "[1", "[[1]]"):
            with self.subTest(ids=ids):
                self.fails(2, *RUN, "--prompt-tokens", ids)
        self.fails(2, *RUN, "-p", "x", "--force-tokens", "[384]", names=["384"])

    def test_of_any_length_get_the_right_status(self):
        # The context is no multiple of 16; lengths from one token to four times the context.
        context = 100
        for length in [*range(1, 18), *range(90, 112), 113, 128, 150, 200, 201, 399, 400]:
            ids = json.dumps([7 + i % 300 for i in range(length)])
            with self.subTest(length=length):
                done = run(*RUN, "--ctx", context, "--prompt-tokens", ids, "--json")
                if length <= context:
                    self.assertEqual(done.code, 0, done)
                    result = done.json
                    self.assertEqual(result["prompt_tokens"], length)
                    self.assertGreaterEqual(result["completion_tokens"], 0)
                    self.assertLessEqual(result["completion_tokens"], context - length + 1)
                else:
                    self.assertEqual(done.code, 2, done)
                    error = done.json["error"]
                    self.assertEqual(error["code"], "context_length_exceeded")
                    self.assertIn(str(length), error["message"])
                    self.assertIn(str(context), error["message"])

    def test_of_any_bytes_are_answered(self):
        for prompt in (b"\xff\xfe\x00\x80", b"\xc3", bytes(range(256)), b"\xed\xa0\x80", b"a\x00b"):
            with self.subTest(prompt=prompt):
                self.json_of(*RUN, stdin=prompt)


class Budget(Case):
    def test_that_is_too_small_is_3_and_names_each_part(self):
        error = self.fails(3, "run", "-m", tiny("qwen2_hd128"), "-p", "x", "--budget", "3M",
                           names=["weights", "kv", "activations", "tokenizer", "kernel", "runtime",
                                  "missing"])
        self.assertEqual(error["code"], "out_of_budget")

    def test_the_smallest_that_is_named_works(self):
        message = self.fails(3, *RUN, "-p", "x", "--budget", "3M")["message"]
        smallest = int(message.rsplit("--budget", 1)[1])
        # What the process itself takes differs a little from start to start.
        result = self.json_of(*RUN, "-p", "x", "--budget", smallest + (1 << 20))
        self.assertLessEqual(result["memory"]["reserved_bytes"], smallest + (1 << 20))


class Models(Case):
    def refused(self, path, *names, code=4):
        for command in (["run", "-p", "x"], ["tokenize", "-p", "x"], ["inspect"]):
            done = run(command[0], "-m", path, *command[1:], "--json")
            if command[0] == "run":
                self.assertEqual(done.code, code, done)
                for name in names:
                    self.assertRegex(done.json["error"]["message"], name)
            self.assertIn(done.code, (0, code), done)  # the others need less of the file
        return run("run", "-m", path, "-p", "x", "--json").json["error"]

    def test_missing_directory_empty_or_unreadable_are_4(self):
        missing = self.folder / "missing.gguf"
        self.assertEqual(self.refused(missing, "missing.gguf")["code"], "not_found")
        self.refused(self.folder, "directory")
        empty = self.folder / "empty.gguf"
        empty.write_bytes(b"")
        self.refused(empty, "empty.gguf")
        self.refused("/dev/null")
        if os.geteuid() != 0:
            secret = self.folder / "secret.gguf"
            secret.write_bytes(b"GGUF")
            secret.chmod(0)
            self.refused(secret, "secret.gguf")

    def test_files_that_are_no_models_are_4(self):
        text = self.folder / "text.gguf"
        text.write_bytes(b"This is not a model. " * 100)
        self.refused(text, "GGUF|magic")
        header = struct.pack("<4sIQQ", b"GGUF", 3, 0, 0)
        for change, name in ((b"GGUF\x00\x00\x00\x03" + header[8:], "endian"),
                             (struct.pack("<4sIQQ", b"GGUF", 1, 0, 0), "version"),
                             (struct.pack("<4sIQQ", b"GGUF", 3, 1 << 60, 0), "tensors"),
                             (struct.pack("<4sIQQ", b"GGUF", 3, 0, 1 << 60), "keys"),
                             (header, "architecture")):
            path = self.folder / "odd.gguf"
            path.write_bytes(change)
            with self.subTest(change=change):
                self.refused(path, name)

    def test_cut_at_the_edge_of_each_tensor_names_it(self):
        with open(MODEL, "rb") as file:
            whole = file.read()
        listing = self.json_of("inspect", "-m", MODEL)
        path = self.folder / "cut.gguf"
        for tensor in listing["tensors"]:
            for cut in (tensor["offset"] + tensor["bytes"] - 1, tensor["offset"]):
                path.write_bytes(whole[:cut])
                message = self.fails(4, "run", "-m", path, "-p", "x")["message"]
                self.assertIn(str(cut), message)  # the size of the file
        path.write_bytes(whole[: listing["tensors"][-1]["offset"]])
        self.assertIn(listing["tensors"][-1]["name"],
                      self.fails(4, "run", "-m", path, "-p", "x")["message"])

    def test_cut_anywhere_in_the_header_is_refused(self):
        with open(MODEL, "rb") as file:
            whole = file.read()
        path = self.folder / "cut.gguf"
        end = self.json_of("inspect", "-m", MODEL)["data_offset"]
        for cut in (1, 3, 4, 7, 8, 15, 23, 24, 25, 40, *range(60, end, end // 12)):
            path.write_bytes(whole[:cut])
            with self.subTest(cut=cut):
                self.refused(path)

    def changed(self, change):
        gguf = Gguf(MODEL)
        change(gguf)
        return gguf.write(self.folder / "changed.gguf")

    def test_written_again_without_a_change_it_works(self):
        path = self.changed(lambda gguf: None)
        arguments = ["-p", "x", "-n", 5, "--temp", 0]
        self.assertEqual(self.json_of("run", "-m", path, *arguments)["tokens"],
                         self.json_of("run", "-m", MODEL, *arguments)["tokens"])

    def test_four_wrong_files_get_four_diagnoses(self):
        def unknown_architecture(gguf):
            gguf.set("general.architecture", STRING, "abacus")

        def unknown_type(gguf):
            gguf.tensor("output_norm.weight")["type"] = 77

        def missing_tensor(gguf):
            gguf.tensors.remove(gguf.tensor("blk.1.ffn_down.weight"))

        def extra_tensor(gguf):
            last = max(gguf.tensors, key=lambda t: t["offset"])
            offset = last["offset"] + len(last["data"]) + (-len(last["data"]) % 32)
            gguf.tensors.append({"name": "blk.0.surplus", "shape": [8], "type": 0,
                                 "offset": offset, "data": bytes(32)})

        messages = set()
        for change, names in ((unknown_architecture, ["abacus", "architecture"]),
                              (unknown_type, ["output_norm.weight", "77"]),
                              (missing_tensor, ["blk.1.ffn_down.weight"]),
                              (extra_tensor, ["blk.0.surplus"])):
            with self.subTest(change=change.__name__):
                error = self.refused(self.changed(change), *names)
                messages.add(error["message"].split(":")[0])
        self.assertEqual(len(messages), 4, messages)

    def test_crafted_headers_are_refused_by_name(self):
        def shape(values):
            return lambda gguf: gguf.tensor("output_norm.weight").update(shape=values)

        def offset(value):
            return lambda gguf: gguf.tensor("output_norm.weight").update(offset=value)

        def key(name, kind, value):
            return lambda gguf: gguf.set(name, kind, value)

        def twice(gguf):
            gguf.keys.append(list(gguf.keys[0]))

        def twin(gguf):
            gguf.tensor("output_norm.weight")["name"] = "token_embd.weight"

        cases = {
            "dimension 0": (shape([0]), "output_norm.weight"),
            "dimension 2^42+1": (shape([(1 << 42) + 1]), "output_norm.weight"),
            "dimension 2^63": (shape([1 << 63]), "output_norm.weight"),
            "product overflow": (shape([1 << 40, 1 << 40]), "output_norm.weight"),
            "five dimensions": (shape([1] * 5), "output_norm.weight"),
            "wrong shape": (shape([64]), "output_norm.weight"),
            "unaligned offset": (offset(33), "output_norm.weight"),
            "wrapping offset": (offset((1 << 64) - 32), "output_norm.weight"),
            "overlapping offset": (offset(0), "overlap"),
            "alignment 0": (key("general.alignment", UINT32, 0), "alignment"),
            "alignment 3": (key("general.alignment", UINT32, 3), "alignment"),
            "alignment 2^30": (key("general.alignment", UINT32, 1 << 30), "alignment"),
            "nested array": (key("x", ARRAY, (ARRAY, [(UINT32, [1])])), "x"),
            "key twice": (twice, "general.architecture"),
            "tensor twice": (twin, "token_embd.weight"),
            "no heads": (key("qwen2.attention.head_count", UINT32, 0), "head_count"),
            "2^31 heads": (key("qwen2.attention.head_count", UINT32, 1 << 31), "head_count"),
            "no layers": (key("qwen2.block_count", UINT32, 0), "block_count"),
            "too many layers": (key("qwen2.block_count", UINT32, 4_000_000), "block_count"),
            "no context": (key("qwen2.context_length", UINT32, 0), "context_length"),
            "text for a number": (key("qwen2.block_count", STRING, "2"), "block_count"),
            "unknown pre-tokeniser": (key("tokenizer.ggml.pre", STRING, "abacus"), "abacus"),
            "unknown tokeniser": (key("tokenizer.ggml.model", STRING, "abacus"), "abacus"),
            "no vocabulary": (key("tokenizer.ggml.tokens", ARRAY, (STRING, [])), "tokenizer"),
        }
        for title, (change, name) in cases.items():
            with self.subTest(title=title):
                self.refused(self.changed(change), name)

    def test_inspect_shows_an_unsupported_model_and_says_why(self):
        path = self.changed(lambda gguf: gguf.set("general.architecture", STRING, "abacus"))
        listing = self.json_of("inspect", "-m", path)
        self.assertFalse(listing["supported"])
        self.assertIn("abacus", listing["reason"])
        self.assertGreater(len(listing["tensors"]), 10)


if __name__ == "__main__":
    unittest.main()
