"""What --task and a table of `tael eval --kv-safety` make of the flags for keys and values."""

import json
import os
import pathlib
import shutil
import unittest

from harness import Case, run, tiny

MODEL = tiny("llama_gqa")  # trained for 512 tokens


class Tasks(Case):
    def plan(self, *flags):
        return self.json_of("plan", "-m", MODEL, "--budget", "1G", *flags)

    def test_a_task_sets_types_and_window_and_nothing_else(self):
        self.assertIsNone(self.plan()["task"])
        plain = self.plan()
        for task, kv_type, window in (("chat", "q8", 0), ("code", "q8", 300), ("summary", "q8", 300),
                                      ("doc-qa", "q8", 300), ("translate", "f16", 0),
                                      ("reason", "f16", 0)):
            with self.subTest(task=task):
                plan = self.plan("--task", task, "--ctx", 300)
                self.assertEqual(plan["task"], task)
                self.assertEqual(plan["kv_type"], kv_type)
                # As much as the context and the model hold: 512 to 1,024 would be more.
                self.assertEqual(plan["window"]["tokens"], window)
                self.assertEqual(plan["window"]["evict"], "drop")
        chat = self.plan("--task", "chat")
        for key in ("kv_type", "kv_reason", "window", "ctx", "kv_bytes"):
            self.assertEqual(chat[key], plain[key], key)
        self.assertEqual(self.plan("--task", "doc-qa")["window"]["tokens"], 512)

    def test_an_explicit_flag_wins_wherever_it_stands(self):
        for flags in (["--task", "code", "--window", 64], ["--window", 64, "--task", "code"]):
            window = self.plan(*flags)["window"]
            self.assertEqual(window["tokens"], 64)
            self.assertNotIn("start", window)
        for flags in (["--kv-type", "f16", "--task", "code"], ["--task", "code", "--kv-type", "f16"]):
            self.assertEqual(self.plan(*flags)["kv_type"], "f16")
        self.assertEqual(self.plan("--task", "reason", "--kv-type", "q8")["kv_type"], "q8")
        self.assertEqual(self.plan("--task", "reason", "--kv-type", "auto")["kv_type"], "f16")
        self.assertEqual(self.plan("--task", "reason", "--kv-type-v", "q8")["kv_type"],
                         "k f16 v q8")
        self.assertEqual(self.plan("--task", "code", "--window", "off")["window"]["tokens"], 0)
        heavy = self.plan("--evict", "heavy", "--task", "code")["window"]
        self.assertEqual((heavy["evict"], heavy["tokens"]), ("heavy", 512))

    def test_every_command_takes_it_and_says_what_it_means(self):
        ids = json.dumps(list(range(3, 63)))
        file = self.folder / "ids.json"
        file.write_text(ids)
        for command in (["run", "--prompt-tokens", ids, "-n", 2, "--temp", 0],
                        ["bench", "-p", 20, "-n", 4, "-r", 1], ["plan", "--budget", "1G"],
                        ["eval", "--ids", file]):
            with self.subTest(command=command[0]):
                flags = [command[0], "-m", MODEL, *command[1:], "--task"]
                result = self.json_of(*flags, "reason")
                self.assertEqual((result["task"], result["kv_type"]), ("reason", "f16"))
                self.assertEqual(result["window"]["tokens"], 0)
                said = self.ok(*flags, "code").err.decode()
                self.assertRegex(said, "task code: keys and values in q8, a window of")
        self.fails(2, "run", "-m", MODEL, "-p", "x", "--task", "poetry",
                   names=["poetry", "chat", "doc-qa", "reason"])


class KvSafety(Case):
    """Beside a copy of a model, in a folder of its own."""

    def setUp(self):
        super().setUp()
        self.model = self.folder / "model.gguf"
        shutil.copy(MODEL, self.model)
        self.table = self.folder / "model.gguf.kv-safety.json"
        self.ids = self.folder / "ids.json"
        self.ids.write_text(json.dumps([3 + i * 7 % 300 for i in range(300)]))
        self.cache = self.folder / "cache"

    def measure(self, model=None, **env):
        return self.json_of("eval", "-m", model or self.model, "--ids", self.ids, "--ctx", 150,
                            "--kv-safety", XDG_CACHE_HOME=str(self.cache), **env)["kv_safety"]

    def plan(self, *flags, **env):
        done = self.ok("plan", "-m", self.model, "--budget", "1G", "--json", *flags,
                       XDG_CACHE_HOME=str(self.cache), **env)
        return done.json["kv_type"], done.json["kv_reason"], done.err.decode()

    def change(self, **changes):
        table = json.loads(self.table.read_text())
        table.update(changes)
        self.table.write_text(json.dumps(table))

    def say_unsafe(self):
        types = json.loads(self.table.read_text())["types"]
        types["q8"]["safe"] = False
        self.change(types=types)

    def test_measures_against_f16_and_writes_a_table(self):
        measured = self.measure()
        self.assertEqual(measured["file"], str(self.table))
        written = json.loads(self.table.read_text())
        self.assertEqual({**measured, "file": None},
                         {**{k: v for k, v in written.items() if k not in ("format", "version")},
                          "file": None})
        self.assertLess(written["kl_floor"], 1e-4)
        for name in ("q8", "k8v4"):
            entry = written["types"][name]
            self.assertGreater(entry["kl_mean"], written["kl_floor"])
            self.assertTrue(0 < entry["top1_agreement"] <= 1)
            self.assertTrue(0 < entry["bytes_of_f16"] < 1)
            self.assertEqual(entry["safe"], entry["kl_above_floor"] <= entry["kl_at_most"]
                             and entry["top1_agreement"] >= entry["top1_at_least"])
        self.assertEqual(self.table.stat().st_mode & 0o077, 0o044)
        text = self.ok("eval", "-m", self.model, "--ids", self.ids, "--ctx", 150, "--kv-safety",
                       XDG_CACHE_HOME=str(self.cache)).out.decode()
        self.assertRegex(text, "q8: KL .* of f16's bytes")
        self.assertIn(str(self.table), text)

    def test_auto_follows_the_table_and_says_so(self):
        self.assertEqual(self.plan(), ("q8", "usual", ""))
        self.measure()
        self.change(types={"q8": {"safe": True}})
        self.assertEqual(self.plan(), ("q8", "safe", ""))
        self.say_unsafe()
        self.assertEqual(self.plan(), ("f16", "unsafe", ""))
        self.assertEqual(self.plan("--task", "code")[:2], ("f16", "unsafe"))
        kv_type, reason, said = self.plan("--kv-type", "q8")
        self.assertEqual((kv_type, reason), ("q8", "risky"))
        self.assertIn("measured to be unsafe for this model", said)
        text = self.ok("plan", "-m", self.model, "--budget", "1G").out
        self.assertIn(b"q8 was measured to be unsafe", text)
        verbose = self.ok("run", "-m", self.model, "--prompt-tokens", "[5,6]", "-n", 1, "-v")
        self.assertIn(b"q8 was measured to be unsafe", verbose.err)

    def test_a_table_that_says_nothing_is_ignored_with_its_name(self):
        self.measure()
        self.say_unsafe()
        whole = self.table.read_text()
        for damage in (lambda: self.change(model="7 of 9 bytes"), lambda: self.change(version=0),
                       lambda: self.change(format="x"), lambda: self.change(types={}),
                       lambda: self.change(types={"q8": {"safe": "no"}}),
                       lambda: self.change(model=5),
                       lambda: self.table.write_text(whole[:len(whole) // 2]),
                       lambda: self.table.write_text(""), lambda: self.table.write_text("[1]"),
                       lambda: self.table.write_text(" " * 100_000),
                       lambda: self.table.write_text("[" * 50_000),
                       lambda: self.table.write_bytes(bytes(range(256)))):
            damage()
            kv_type, reason, said = self.plan()
            self.assertEqual(kv_type, "q8")
            self.assertIn(reason, ("usual", "foreign"))
            self.assertRegex(said, "model.gguf.kv-safety.json. is ignored: ")
            self.assertIn("--kv-safety", said)
            self.table.write_text(whole)
        self.assertEqual(self.plan()[0], "f16")

    def test_a_model_that_was_changed_is_another_one(self):
        self.measure()
        self.say_unsafe()
        data = bytearray(self.model.read_bytes())
        half = len(data) // 2
        data[half:] = bytes(len(data) - half)
        self.model.write_bytes(data)
        self.assertEqual(self.plan()[:2], ("q8", "foreign"))
        copy = self.folder / "copy.gguf"
        shutil.copy(MODEL, copy)
        shutil.copy(self.table, self.folder / "copy.gguf.kv-safety.json")
        plan = self.json_of("plan", "-m", copy, "--budget", "1G")
        self.assertEqual(plan["kv_reason"], "unsafe")

    def test_where_the_models_folder_takes_no_file_the_cache_does(self):
        folder = self.folder / "models"
        folder.mkdir()
        self.model = folder / "model.gguf"
        shutil.copy(MODEL, self.model)
        # A folder where the file should be: nobody, not even root, can replace it.
        blocked = folder / "model.gguf.kv-safety.json.new"
        (blocked / "in the way").mkdir(parents=True)
        measured = self.measure()
        path = pathlib.Path(measured["file"])
        self.assertEqual(path.parent, self.cache / "tael/kv-safety")
        self.table = path
        self.say_unsafe()
        self.assertEqual(self.plan()[:2], ("f16", "unsafe"))
        self.assertEqual(os.listdir(folder).count("model.gguf.kv-safety.json"), 0)
        done = run("eval", "-m", self.model, "--ids", self.ids, "--ctx", 150, "--kv-safety",
                   XDG_CACHE_HOME="", HOME="")
        self.assertNotEqual(done.code, 0)


if __name__ == "__main__":
    unittest.main()
