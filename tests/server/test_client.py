"""The official `openai` package against the server: every combination of what it can ask for."""

import itertools
import math
import unittest

from support import ServerCase, needs_openai, not_under_sanitizers, openai

MESSAGES = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "hello"}]
LOGPROBS = ("off", "on", "top 5")


@needs_openai
class Matrix(ServerCase):
    """{chat, completions} x {stream, not} x n x logprobs (ACCEPTANCE H7)."""

    def setUp(self):
        super().setUp()
        self.client = self.server.openai()
        self.addCleanup(self.client.close)

    def check_usage(self, usage, n, tokens):
        self.assertGreater(usage.prompt_tokens, 0)
        self.assertEqual(usage.completion_tokens, n * tokens)
        self.assertEqual(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)
        self.assertGreaterEqual(usage.prompt_tokens_details.cached_tokens, 0)

    def check_logprob(self, entry):
        self.assertTrue(math.isfinite(entry.logprob))
        self.assertLessEqual(entry.logprob, 0)
        self.assertIsInstance(entry.bytes, list)

    def check_chat_logprobs(self, logprobs, wanted, tokens):
        if wanted == "off":
            self.assertIsNone(logprobs)
            return
        self.assertEqual(len(logprobs.content), tokens)
        for entry in logprobs.content:
            self.check_logprob(entry)
            self.assertEqual(len(entry.top_logprobs), 5 if wanted == "top 5" else 0)
            for top in entry.top_logprobs:
                self.check_logprob(top)

    def check_text_logprobs(self, logprobs, wanted, tokens):
        if wanted == "off":
            self.assertIsNone(logprobs)
            return
        for values in (logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs,
                       logprobs.text_offset):
            self.assertEqual(len(values), tokens)
        self.assertEqual(logprobs.text_offset, sorted(logprobs.text_offset))
        for top in logprobs.top_logprobs:
            self.assertLessEqual(len(top), 5 if wanted == "top 5" else 0)

    def chat(self, n, logprobs, **fields):
        if logprobs != "off":
            fields |= {"logprobs": True}
        if logprobs == "top 5":
            fields |= {"top_logprobs": 5}
        return self.client.chat.completions.create(
            model="any", messages=MESSAGES, n=n, max_tokens=6, seed=1, temperature=1.0,
            extra_body={"ignore_eos": True}, **fields)

    def complete(self, n, logprobs, **fields):
        if logprobs != "off":
            fields |= {"logprobs": 5 if logprobs == "top 5" else 0}
        return self.client.completions.create(
            model="any", prompt="hello", n=n, max_tokens=6, seed=1, temperature=1.0,
            extra_body={"ignore_eos": True}, **fields)

    def test_chat_whole(self):
        for n, logprobs in itertools.product((1, 3), LOGPROBS):
            with self.subTest(n=n, logprobs=logprobs):
                answer = self.chat(n, logprobs)
                self.assertEqual((answer.object, answer.model), ("chat.completion", "tiny-qwen"))
                self.assertEqual([choice.index for choice in answer.choices], list(range(n)))
                for choice in answer.choices:
                    self.assertEqual(choice.finish_reason, "length")
                    self.assertEqual(choice.message.role, "assistant")
                    self.assertIsInstance(choice.message.content, str)
                    self.check_chat_logprobs(choice.logprobs, logprobs, 6)
                self.check_usage(answer.usage, n, 6)

    def test_chat_stream_is_chat_whole(self):
        for n, logprobs in itertools.product((1, 3), LOGPROBS):
            with self.subTest(n=n, logprobs=logprobs):
                whole = self.chat(n, logprobs)
                texts, finishes, entries, usages = [""] * n, [[] for _ in range(n)], [0] * n, []
                stream = self.chat(n, logprobs, stream=True,
                                   stream_options={"include_usage": True})
                for chunk in stream:
                    self.assertEqual(chunk.object, "chat.completion.chunk")
                    if chunk.usage:
                        self.assertEqual(chunk.choices, [])
                        usages.append(chunk.usage)
                    for choice in chunk.choices:
                        texts[choice.index] += choice.delta.content or ""
                        if choice.finish_reason:
                            finishes[choice.index].append(choice.finish_reason)
                        if choice.logprobs:
                            entries[choice.index] += len(choice.logprobs.content)
                self.assertEqual(texts, [choice.message.content for choice in whole.choices])
                self.assertEqual(finishes, [["length"]] * n)
                self.assertEqual(entries, [0 if logprobs == "off" else 6] * n)
                self.assertEqual(len(usages), 1)
                self.check_usage(usages[0], n, 6)

    def test_completions_whole(self):
        for n, logprobs in itertools.product((1, 3), LOGPROBS):
            with self.subTest(n=n, logprobs=logprobs):
                answer = self.complete(n, logprobs)
                self.assertEqual(answer.object, "text_completion")
                self.assertEqual([choice.index for choice in answer.choices], list(range(n)))
                for choice in answer.choices:
                    self.assertEqual(choice.finish_reason, "length")
                    self.check_text_logprobs(choice.logprobs, logprobs, 6)
                self.check_usage(answer.usage, n, 6)

    def test_completions_stream_is_completions_whole(self):
        for n, logprobs in itertools.product((1, 3), LOGPROBS):
            with self.subTest(n=n, logprobs=logprobs):
                whole = self.complete(n, logprobs)
                texts, finishes, tokens, usages = [""] * n, [[] for _ in range(n)], [0] * n, []
                stream = self.complete(n, logprobs, stream=True,
                                       stream_options={"include_usage": True})
                for chunk in stream:
                    self.assertEqual(chunk.object, "text_completion")
                    if chunk.usage:
                        usages.append(chunk.usage)
                    for choice in chunk.choices:
                        texts[choice.index] += choice.text
                        if choice.finish_reason:
                            finishes[choice.index].append(choice.finish_reason)
                        if choice.logprobs:
                            tokens[choice.index] += len(choice.logprobs.tokens)
                self.assertEqual(texts, [choice.text for choice in whole.choices])
                self.assertEqual(finishes, [["length"]] * n)
                self.assertEqual(tokens, [0 if logprobs == "off" else 6] * n)
                self.check_usage(usages[0], n, 6)

    def test_without_stream_options_no_chunk_has_usage(self):
        for chunk in self.chat(1, "off", stream=True):
            self.assertIsNone(chunk.usage)
            self.assertEqual(len(chunk.choices), 1)

    @not_under_sanitizers
    def test_long_lists_of_logprobs_take_no_memory_beside_the_numbers(self):
        def anonymous():
            return self.server.get("/v1/memory").json["rss_anon_bytes"]

        fields = {"messages": MESSAGES, "max_tokens": 1500, "logprobs": True, "top_logprobs": 20,
                  "ignore_eos": True}
        for _ in range(2):
            before = anonymous()
            reply = self.server.post("/v1/chat/completions", fields)
            self.assertEqual(len(reply.json["choices"][0]["logprobs"]["content"]), 1500)
        # As JSON in one piece it would take some 10 MB.
        self.assertGreater(len(reply.body), 1_500_000)
        self.assertLess(anonymous() - before, 1 << 20)

    def test_a_greedy_token_is_the_first_of_the_top(self):
        answer = self.client.chat.completions.create(
            model="any", messages=MESSAGES, max_tokens=8, temperature=0, logprobs=True,
            top_logprobs=3)
        for entry in answer.choices[0].logprobs.content:
            self.assertEqual(entry.top_logprobs[0].logprob, entry.logprob)
            self.assertEqual(entry.top_logprobs[0].bytes, entry.bytes)


@needs_openai
class Behaviour(ServerCase):
    def setUp(self):
        super().setUp()
        self.client = self.server.openai()
        self.addCleanup(self.client.close)

    def chat(self, **fields):
        fields.setdefault("max_tokens", 12)
        extra = {"ignore_eos": True, **fields.pop("extra_body", {})}
        return self.client.chat.completions.create(
            model="whatever", messages=fields.pop("messages", MESSAGES), extra_body=extra, **fields)

    def text(self, **fields):
        return self.chat(**fields).choices[0].message.content

    def test_the_same_seed_gives_the_same_text(self):
        first = self.text(seed=5, temperature=1.5)
        self.assertEqual(self.text(seed=5, temperature=1.5), first)
        self.assertNotEqual(self.text(seed=6, temperature=1.5), first)

    def test_choices_differ_and_are_those_of_seeds_in_a_row(self):
        texts = [choice.message.content
                 for choice in self.chat(n=3, seed=5, temperature=1.5).choices]
        self.assertEqual(len(set(texts)), 3)
        self.assertEqual(texts, [self.text(seed=5 + i, temperature=1.5) for i in range(3)])

    def test_one_token_of_choice_is_greedy(self):
        greedy = self.text(temperature=0)
        self.assertEqual(self.text(temperature=1.5, top_p=0, seed=3), greedy)
        self.assertEqual(self.text(temperature=1.5, seed=3, extra_body={"top_k": 1}), greedy)
        self.assertEqual(self.text(temperature=1.5, seed=3, extra_body={"min_p": 1}), greedy)

    def test_a_prompt_seen_before_is_found_again(self):
        messages = [{"role": "user", "content": "z" * 200}]
        self.chat(messages=messages, max_tokens=1)
        usage = self.chat(messages=messages, max_tokens=1).usage
        self.assertGreaterEqual(usage.prompt_tokens_details.cached_tokens,
                                usage.prompt_tokens - 32)

    def test_earlier_turns_are_found_again(self):
        messages = [{"role": "system", "content": "Be brief. " * 8}]
        before = 0
        for turn in range(6):
            messages.append({"role": "user", "content": f"turn {turn} " + "q" * 20})
            answer = self.chat(messages=messages, temperature=0, max_tokens=20)
            cached = answer.usage.prompt_tokens_details.cached_tokens
            # All that was prompt then; an answer may be cut into other tokens when it comes back.
            self.assertGreaterEqual(cached, before - 16)
            before = answer.usage.prompt_tokens
            messages.append(answer.choices[0].message)

    def test_a_raw_prompt_takes_text_or_ids(self):
        ids = self.server.post("/tokenize", {"content": "hello"}).json["tokens"]
        texts = [self.client.completions.create(model="x", prompt=prompt, temperature=0,
                                                max_tokens=8).choices[0].text
                 for prompt in ("hello", ["hello"], ids, [ids])]
        self.assertEqual(len(set(texts)), 1)

    def test_the_background_waits_but_is_answered(self):
        self.assertEqual(self.chat(service_tier="flex").choices[0].finish_reason, "length")

    def test_errors_are_the_exceptions_that_the_package_knows(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(temperature=3)
        self.assertEqual(caught.exception.param, "temperature")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(messages=[{"role": "user", "content": "x" * 5000}])
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("nothing")
        with self.assertRaises(openai.InternalServerError):
            self.client.embeddings.create(model="x", input="x")

    def test_what_is_not_built_is_refused_by_name(self):
        tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
        for name, value in (("tools", [tool]), ("response_format", {"type": "json_object"}),
                            ("logit_bias", {"5": 10}), ("frequency_penalty", 0.5),
                            ("presence_penalty", 0.5), ("reasoning_effort", "low")):
            with self.assertRaises(openai.BadRequestError) as caught:
                self.chat(**{name: value})
            self.assertEqual(caught.exception.param, name)
            self.assertIn(name, caught.exception.message)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(extra_body={"grammar": "root ::= x"})
        self.assertEqual(caught.exception.param, "grammar")

    def test_what_asks_for_nothing_is_taken(self):
        self.chat(tool_choice="none", response_format={"type": "text"}, user="u", store=False,
                  metadata={"a": "b"}, frequency_penalty=0, parallel_tool_calls=False)

    def test_models_are_listed(self):
        self.assertEqual([model.id for model in self.client.models.list()], ["tiny-qwen"])


if __name__ == "__main__":
    unittest.main()
