"""What text comes out: whole characters, and nothing of a stop string (ACCEPTANCE H1, H2)."""

import unittest

from support import Server, ServerCase, not_under_sanitizers

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


class Utf8(ServerCase):
    """Random weights over single bytes: most of what they say is cut or broken characters."""

    def test_a_stream_is_valid_at_every_step_and_the_whole_in_the_end(self):
        broken = 0
        for seed in range(12):
            body = {"prompt": "hé", "max_tokens": 60, "seed": seed, "temperature": 2, "top_k": 0,
                    "min_p": 0, "top_p": 1, "ignore_eos": True}
            whole = self.server.post(TEXT, body).json["choices"][0]["text"]
            events = self.server.stream(TEXT, body)  # fails on a line that is no UTF-8 or JSON
            self.assertEqual(events[-1], "[DONE]")
            text = "".join(choice["text"] for event in events[:-1] for choice in event["choices"])
            self.assertEqual(text, whole)
            broken += whole.count("\ufffd")
        self.assertGreater(broken, 0, "no broken character: the test shows nothing")

    def test_an_unfinished_tail_becomes_one_replacement_character(self):
        # Teacher forcing is not for clients: look for an answer that ends within a character.
        ends = 0
        for seed in range(60):
            body = {"prompt": "a", "max_tokens": 3, "seed": seed, "temperature": 2, "top_k": 0,
                    "min_p": 0, "top_p": 1, "ignore_eos": True, "logprobs": 0}
            choice = self.server.post(TEXT, body).json["choices"][0]
            last = choice["logprobs"]["tokens"][-1]
            if last.startswith("bytes:\\x") and int(last[8:10], 16) >= 0xC2:
                ends += 1
                self.assertTrue(choice["text"].endswith("\ufffd"))
        self.assertGreater(ends, 0, "no unfinished tail: the test shows nothing")


class StopStrings(ServerCase):
    def setUp(self):
        super().setUp()
        self.body = {"prompt": "hello", "max_tokens": 60, "temperature": 0, "ignore_eos": True}
        self.whole = self.server.post(TEXT, self.body).json["choices"][0]["text"]

    def both(self, **fields):
        """The text and the reason, checked to be the same as a stream."""
        body = {**self.body, **fields}
        choice = self.server.post(TEXT, body).json["choices"][0]
        events = self.server.stream(TEXT, body)[:-1]
        text = "".join(event["choices"][0]["text"] for event in events)
        reasons = [event["choices"][0]["finish_reason"] for event in events]
        self.assertEqual(text, choice["text"])
        self.assertEqual([reason for reason in reasons if reason], [choice["finish_reason"]])
        return choice["text"], choice["finish_reason"]

    def test_nothing_leaks_and_nothing_is_lost(self):
        for at in range(1, len(self.whole) - 6):
            for length in (1, 2, 5):
                stop = self.whole[at : at + length]
                text, reason = self.both(stop=stop)
                self.assertEqual(text, self.whole[: self.whole.index(stop)])
                self.assertEqual(reason, "stop")

    def test_of_several_the_first_that_is_complete_wins(self):
        a, b = self.whole[10:14], self.whole[12:15]  # overlapping
        first = min((self.whole.index(stop) + len(stop), self.whole.index(stop)) for stop in (a, b))
        self.assertEqual(self.both(stop=[a, b])[0], self.whole[: first[1]])
        prefix = a[:2]  # a prefix of the other
        self.assertEqual(self.both(stop=[a, prefix])[0], self.whole[: self.whole.index(prefix)])

    def test_what_only_begins_like_a_stop_string_comes_out(self):
        stop = self.whole[-3:] + "\x01 never"
        self.assertEqual(self.both(stop=stop), (self.whole, "length"))
        self.assertEqual(self.both(stop=["never there"]), (self.whole, "length"))


@not_under_sanitizers
class RealModel(ServerCase):
    """SmolLM2: an answer with an end of its own (scripts/get-model)."""

    @classmethod
    def setUpClass(cls):
        pass

    def test_paris_whole_and_as_a_stream(self):
        (model,) = self.models("smollm2")
        with Server(model, "--ctx", 1024, "--compute", "reference") as server:
            body = {"messages": [{"role": "user", "content": "What is the capital of France?"}],
                    "temperature": 0}
            whole = server.post(CHAT, body).json["choices"][0]
            self.assertIn("Paris", whole["message"]["content"])
            self.assertEqual(whole["finish_reason"], "stop")
            events = server.stream(CHAT, body)[:-1]
            text = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
            self.assertEqual(text, whole["message"]["content"])


if __name__ == "__main__":
    unittest.main()
