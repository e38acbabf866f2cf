"""tael chat: turns through a pipe, what is kept between them, Ctrl-C."""

import itertools
import os
import pty
import select
import signal
import subprocess
import time
import unittest

from harness import EMULATOR, Case, command, run, tiny
from test_run import with_template

SAMPLING = ["--temp", 0, "--ignore-eos"]


class Turns(Case):
    def setUp(self):
        super().setUp()
        self.model = with_template(self.folder)
        self.has_templates(self.model)

    def chat(self, lines, *flags, model=None):
        return run("chat", "-m", model or self.model, *SAMPLING, *flags,
                   stdin="".join(line + "\n" for line in lines).encode())

    def test_each_line_gets_an_answer(self):
        done = self.chat(["hello", "and then?"], "-n", 8)
        self.assertEqual(done.code, 0, done)
        turns = self.chat(["hello", "and then?"], "-n", 8, "--json").json["turns"]
        self.assertEqual(done.out.decode(), "".join(turn["text"] + "\n" for turn in turns))
        self.assertEqual([turn["completion_tokens"] for turn in turns], [8, 8])

    def test_earlier_turns_are_not_computed_again(self):
        turns = self.chat([f"turn {i}" for i in range(6)], "-n", 10, "--json").json["turns"]
        self.assertEqual(turns[0]["cached_tokens"], 0)
        for before, turn in itertools.pairwise(turns):
            # An answer's text may be cut into other tokens when it is rendered.
            self.assertGreaterEqual(turn["cached_tokens"], before["prompt_tokens"])
            self.assertGreater(turn["prompt_tokens"], before["prompt_tokens"])

    def test_an_answer_is_the_one_that_a_fresh_process_gives(self):
        turns = self.chat(["hello", "more", "again"], "-n", 6, "--json").json["turns"]
        self.assertGreater(turns[2]["cached_tokens"], 0)
        text = "".join(f"<|user|>{turn['user']}<|endoftext|><|assistant|>{turn['text']}<|endoftext|>"
                       for turn in turns[:2]) + "<|user|>again<|endoftext|><|assistant|>"
        fresh = self.json_of("run", "-m", self.model, "--raw", "-n", 6, *SAMPLING,
                             stdin=text.encode())
        self.assertEqual(fresh["prompt_tokens"], turns[2]["prompt_tokens"])
        self.assertEqual(fresh["text"], turns[2]["text"])

    def test_the_system_text_comes_first(self):
        plain = self.chat(["hello"], "-n", 1, "--json").json["turns"][0]
        turn = self.chat(["hello"], "-n", 1, "--json", "--system", "Be brief.").json["turns"][0]
        self.assertGreater(turn["prompt_tokens"], plain["prompt_tokens"])

    def test_reset_forgets(self):
        turns = self.chat(["hello", "/reset", "hello"], "-n", 4, "--json").json["turns"]
        self.assertEqual(turns[1]["cached_tokens"], 0)
        self.assertEqual(turns[0]["text"], turns[1]["text"])
        self.assertEqual(turns[0]["prompt_tokens"], turns[1]["prompt_tokens"])

    def test_slash_commands_are_no_turns(self):
        done = self.chat(["/help", "/mem", "/nonsense", "", "/quit", "hello"], "-n", 4)
        self.assertEqual(done.code, 0, done)
        out = done.out.decode()
        for word in ("/reset", "weights", "kv", "budget"):
            self.assertIn(word, out)
        self.assertIn(b"/nonsense", done.err)

    def test_a_full_context_says_so_and_the_conversation_goes_on(self):
        long_turn = "many words " * 40
        done = self.chat(["hello", long_turn, "/reset", "hello"], "-n", 4, "--ctx", 100)
        self.assertEqual(done.code, 0, done)
        self.assertRegex(done.err.decode(), r"context.*100.*/reset.*--ctx")
        self.assertEqual(len(done.out.decode().rstrip("\n").split("\n")), 2, done)

    def test_an_answer_that_fills_the_context_says_so(self):
        done = self.chat(["hello"], "--ctx", 64)
        self.assertEqual(done.code, 0, done)
        self.assertIn(b"full", done.err)

    def test_a_model_with_a_sliding_window_works_too(self):
        model = with_template(self.folder, source="mistral_swa24",
                              template="{% for m in messages %}{{ m.content }}. {% endfor %}")
        turns = self.chat([f"turn {i}" for i in range(4)], "-n", 30, "--json",
                          model=model).json["turns"]
        self.assertEqual(len(turns), 4)

    def test_a_model_without_a_template_gets_the_plain_form(self):
        done = self.chat(["hello"], "-n", 4, model=tiny("qwen2_tied"))
        self.assertEqual(done.code, 0, done)
        self.assertIn(b"no chat template", done.err)


@unittest.skipIf(EMULATOR, "signals and terminals are tested on the machine's own CPU")
class Terminal(Case):
    """A person at a terminal."""

    def setUp(self):
        super().setUp()
        self.model = with_template(self.folder, context=1_000_000)  # an answer without an end
        self.has_templates(self.model)
        self.seen = b""
        self.main, terminal = pty.openpty()
        self.addCleanup(os.close, self.main)
        self.process = subprocess.Popen(
            command("chat", "-m", self.model, *SAMPLING, "--ctx", 500_000),
            stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True)
        os.close(terminal)
        self.addCleanup(self.process.wait)
        self.addCleanup(self.process.kill)

    def read_until(self, what, seconds=60):
        deadline = time.monotonic() + seconds
        while what not in self.seen:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.main], [], [], left)[0]:
                self.fail(f"{what!r} did not come; seen: {self.seen[-1000:]!r}")
            self.seen += os.read(self.main, 4096)
        self.seen = self.seen[self.seen.index(what) + len(what) :]

    def test_ctrl_c_stops_the_answer_and_then_the_program(self):
        self.read_until(b"> ")
        os.write(self.main, b"hello\n")
        self.read_until(b"hello")
        time.sleep(0.2)
        self.process.send_signal(signal.SIGINT)
        self.read_until(b"stopped")
        self.read_until(b"> ")
        self.assertIsNone(self.process.poll())
        os.write(self.main, b"/help\n")
        self.read_until(b"/reset")
        self.read_until(b"> ")
        self.process.send_signal(signal.SIGINT)
        self.assertEqual(self.process.wait(timeout=30), 130)

    def test_the_end_of_input_leaves_with_0(self):
        self.read_until(b"> ")
        os.write(self.main, b"\x04")
        self.assertEqual(self.process.wait(timeout=30), 0)


if __name__ == "__main__":
    unittest.main()
