"""A server with a window: texts longer than the context are answered, and what was cut is said."""

import json
import unittest

from support import ServerCase, needs_openai

WINDOW = 100


class Windows(ServerCase):
    """ACCEPTANCE C2: a prompt of twice the context, with a window chosen."""

    CONTEXT = 256
    FLAGS = ("--ctx", 256, "--window", WINDOW, "--window-shape", "uniform", "--kv-type", "f16",
             "--sessions", 2)

    def ids(self, count):
        return [65 + i * 7 % 50 for i in range(count)]

    def check(self, reply, dropped, of_prompt):
        self.assertEqual(reply.status, 200, reply)
        answer = reply.json
        self.assertIs(answer["truncated"], dropped > 0)
        self.assertEqual(answer["dropped_tokens"], dropped)
        details = answer["usage"]["prompt_tokens_details"]
        self.assertEqual(details["truncated_tokens"], of_prompt)

    def test_a_prompt_of_twice_the_context_is_answered_and_says_what_was_dropped(self):
        for _ in range(2):  # computed, and from the cache
            reply = self.server.complete(self.ids(512), max_tokens=8, ignore_eos=True)
            # The last token is never fed.
            self.check(reply, 512 + 7 - WINDOW, 512 - WINDOW)
            self.assertEqual(reply.json["usage"]["prompt_tokens"], 512)

    def test_what_fits_is_whole_until_the_answer_outgrows_the_window(self):
        self.check(self.server.complete(self.ids(60), max_tokens=8, ignore_eos=True), 0, 0)
        self.check(self.server.complete(self.ids(90), max_tokens=30, ignore_eos=True), 19, 0)

    def test_a_stream_says_the_same_where_a_choice_ends(self):
        for path, fields in (("/v1/completions", {"prompt": self.ids(512)}),
                             ("/v1/chat/completions",
                              {"messages": [{"role": "user", "content": "x" * 512}]})):
            body = {**fields, "max_tokens": 8, "ignore_eos": True, "n": 2}
            whole = self.server.post(path, body).json
            self.assertTrue(whole["truncated"])
            events = self.server.stream(path, {**body, "stream_options": {"include_usage": True}})
            self.assertEqual(events.pop(), "[DONE]")
            usage = events.pop()["usage"]
            self.assertEqual(usage["prompt_tokens_details"]["truncated_tokens"],
                             whole["usage"]["prompt_tokens_details"]["truncated_tokens"])
            last = [event for event in events if event["choices"][0]["finish_reason"]]
            self.assertEqual(len(last), 2)
            for event in events:
                self.assertEqual("truncated" in event, event in last)
            for event in last:
                self.assertIs(event["truncated"], True)
                self.assertEqual(event["dropped_tokens"], whole["dropped_tokens"])

    def test_an_answer_that_could_not_be_kept_is_refused_before_it_begins(self):
        endless = {"max_tokens": 1 << 30, "ignore_eos": True}
        reply = self.server.complete(self.ids(8), **endless)
        self.assertEqual(reply.status, 503, reply)
        self.assertIn("fewer tokens", reply.error["message"])
        self.check(self.server.complete(self.ids(8), max_tokens=512, ignore_eos=True),
                   8 + 511 - WINDOW, 0)

    def test_a_system_prompt_is_kept_and_a_text_that_long_ago_is_not(self):
        # So far behind the window, through all layers of it, nothing is left of the first words but
        # what is kept of them.
        tail = "The machine stands still. " * 60
        start = "You are always "

        def logprobs(reply):
            self.assertEqual(reply.status, 200, reply)
            return json.dumps(reply.json["choices"][0]["logprobs"])

        def chat(word):
            return logprobs(self.server.post("/v1/chat/completions", {
                "messages": [{"role": "system", "content": start + word},
                             {"role": "user", "content": tail}],
                "max_tokens": 4, "temperature": 0, "logprobs": True}))

        def text(id):
            ids = self.ids(10) + [id] * 20 + self.ids(1000)
            return logprobs(self.server.complete(ids, max_tokens=4, temperature=0, logprobs=1))

        self.assertNotEqual(chat("kind"), chat("rude"))
        self.assertEqual(text(70), text(90))

    @needs_openai
    def test_the_official_client_shows_it(self):
        with self.server.openai() as client:
            answer = client.completions.create(model="any", prompt=self.ids(512), max_tokens=8,
                                               extra_body={"ignore_eos": True})
        self.assertEqual(answer.model_extra["truncated"], True)
        self.assertEqual(answer.model_extra["dropped_tokens"], 512 + 7 - WINDOW)


class NoWindow(ServerCase):
    CONTEXT = 256
    FLAGS = ("--ctx", 256)

    def test_without_a_window_nothing_is_ever_cut(self):
        answer = self.server.complete([65] * 200, max_tokens=20, ignore_eos=True).json
        self.assertIs(answer["truncated"], False)
        self.assertEqual(answer["dropped_tokens"], 0)
        self.assertEqual(answer["usage"]["prompt_tokens_details"]["truncated_tokens"], 0)
        self.refused(self.server.complete([65] * 512), 400, "prompt", "context_length_exceeded")


if __name__ == "__main__":
    unittest.main()
