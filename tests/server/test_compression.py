"""A server that compresses prompts once it has read them."""

import unittest

from support import ServerCase


class Compression(ServerCase):
    FLAGS = ("--ctx", 512, "--compress-prompt", "auto", "--sessions", 2)

    def ids(self, count):
        return [65 + i * 7 % 50 for i in range(count)]

    def details(self, reply):
        self.assertEqual(reply.status, 200, reply)
        return reply.json["usage"]["prompt_tokens_details"]

    def test_usage_says_how_much_of_a_prompt_was_let_go(self):
        texts = []
        for cached in (False, True):
            reply = self.server.complete(self.ids(400), max_tokens=8, ignore_eos=True, n=2,
                                         temperature=0)
            details = self.details(reply)
            self.assertEqual(details["compressed_tokens"], 240)
            self.assertEqual(details["truncated_tokens"], 0)
            # What chooses is computed: the last 24 tokens.
            self.assertEqual(details["cached_tokens"], 376 if cached else 0)
            texts += [choice["text"] for choice in reply.json["choices"]]
        self.assertEqual(len(set(texts)), 1)

    def test_short_prompts_stay_whole(self):
        reply = self.server.complete([70, *self.ids(199)], max_tokens=8, ignore_eos=True)
        self.assertEqual(self.details(reply)["compressed_tokens"], 0)


if __name__ == "__main__":
    unittest.main()
