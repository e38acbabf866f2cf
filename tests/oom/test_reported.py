"""Faults that other engines were reported for, as tests in a cage."""

import concurrent.futures
import json
import os
import time
import unittest

import cage
import caged
import served
import support

MIB = 1 << 20


class Reported(support.Case):
    def answer_in(self, limit, model, *arguments, prompt=8):
        """A short answer in a cage of so many bytes; it must be one."""
        load = caged.Load(prompt_tokens=prompt, answer_tokens=8, context=0)
        cage.forget_pages(model)
        with cage.Cage(limit) as made:
            outcome = made.run(caged.command(*load.arguments(model), *arguments))
        self.assertFalse(outcome.killed, outcome)
        self.assertEqual(outcome.code, 0, (str(outcome), outcome.err))
        return outcome, json.loads(outcome.out)["memory"]

    def test_a_claim_of_a_long_context_is_cut_to_the_budget_and_touches_nothing_unused(self):
        model = self.model("smollm2")
        support.set_uint32(model, "llama.context_length", 131072)
        self.assertLess(caged.plan(model, 512 * MIB)["ctx"], 131072)
        outcome, memory = self.answer_in(512 * MIB, model, "--budget", 512 * MIB)
        self.assertLessEqual(memory["reserved_bytes"], 512 * MIB)
        # 30 layers of 3 heads of 64 in two halves of f16, in blocks of 16 tokens.
        per_block = 30 * 2 * 3 * 64 * 2 * 16
        self.assertGreater(memory["parts_reserved"]["kv"], 200 * MIB)
        self.assertLessEqual(memory["parts"]["kv"], 4 * per_block)
        self.assertLess(max(sample.anon for sample in outcome.samples), 60 * MIB, outcome)

    def test_weights_have_no_second_copy(self):
        model = self.model("gemma3")
        size = os.path.getsize(model)
        limit = size * 5 // 4
        outcome, memory = self.answer_in(limit, model, "--budget", limit, "--ctx", 256)
        self.assertEqual(memory["parts"]["weights"], size)
        self.assertLess(max(sample.anon for sample in outcome.samples), size / 8, outcome)

    def test_what_the_page_cache_holds_is_free(self):
        """The same cage again and again: its page cache is full of the model after the first."""
        model = self.model("smollm2")
        limit = os.path.getsize(model) * 7 // 4
        load = caged.Load(prompt_tokens=8, answer_tokens=2, context=256)
        budgets = []
        with cage.Cage(limit) as made:
            for _ in range(6):
                outcome = made.run(caged.command(*load.arguments(model)))
                self.assertEqual(outcome.code, 0, (str(outcome), outcome.err))
                budgets.append(json.loads(outcome.out)["memory"]["budget_bytes"])
        self.assertLessEqual(max(budgets), limit)
        self.assertGreater(min(budgets), max(budgets) * 0.95, budgets)

    def test_weights_that_lose_their_room_are_streamed_and_it_says_so(self):
        """The budget is larger than what the system really gives: room for 60 % of the file."""
        model = self.model("gemma3")
        load = caged.Load(prompt_tokens=8, answer_tokens=24, context=256)
        plan = caged.plan(model, 1 << 30, load.context)
        needed = sum(plan["parts"].values()) - plan["parts"]["weights"]
        cage.forget_pages(model)
        with cage.Cage(needed + os.path.getsize(model) * 6 // 10) as made:
            outcome = made.run(caged.command(*load.arguments(model), "--budget", 1 << 30))
        self.assertFalse(outcome.killed, outcome)
        self.assertEqual(outcome.code, 0, (str(outcome), outcome.err))
        self.assertEqual(json.loads(outcome.out)["completion_tokens"], 24)
        self.assertIn(b"the system has no room for the weights", outcome.err)

    def test_a_server_whose_weights_lose_their_room_begins_nothing_new_until_it_is_back(self):
        model = self.model("gemma3")
        flags = ("--ctx", 512, "--sessions", 2)
        parts = caged.plan(model, 1 << 30, 0, *flags, "--server")["parts"]
        limit = sum(parts.values()) - parts["weights"] + os.path.getsize(model) * 6 // 10
        cage.forget_pages(model)
        lost = "the system has no room for the weights"
        with served.Served(model, 1 << 30, *flags, "--prefix-cache", "off",
                           limit=limit) as server:
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                answer = pool.submit(server.complete, [100] * 8, 60, ignore_eos=True)
                self.assertTrue(wait_for(lambda: lost in str(server.why_degraded())))
                status, body = server.request("POST", "/v1/completions",
                                              {"prompt": [101] * 8, "max_tokens": 1})
                self.assertEqual(status, 503, body)
                self.assertIn(lost, json.loads(body)["error"]["message"])
                self.assertFalse(answer.done())
                self.assertEqual(answer.result()[0], 200)
            self.assertEqual(server.complete([102] * 8, 1)[0], 200)  # alone
            self.assertIn(lost, str(server.why_degraded()))

            server.cage.set_limit(1 << 30)
            self.assertTrue(wait_for(lambda: lost not in str(server.why_degraded())))
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                answers = [pool.submit(server.request, "POST", "/v1/completions",
                                       {"prompt": [id] * 8, "max_tokens": 8}) for id in (103, 104)]
                self.assertEqual([answer.result()[0] for answer in answers], [200, 200])
        self.assertFalse(server.outcome.killed, server.outcome)
        self.assertEqual(server.outcome.code, 0, server.outcome)


def wait_for(condition, seconds=60):
    """Asks again and again; what it was in the end."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


if __name__ == "__main__":
    unittest.main()
