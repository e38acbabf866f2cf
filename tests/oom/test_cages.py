"""The budget is a promise: in a memory cgroup as large as the budget nothing is killed, and PSS
stays below it in every sample. At full length: scripts/verify 5 cages."""

import unittest

import cage
import caged
import support


class ACage(support.Case):
    """The cage itself: a test that cannot fail would prove nothing."""

    def test_kills_who_takes_more(self):
        with cage.Cage(32 << 20) as made:
            outcome = made.run(["python3", "-c", "x = bytearray(64 << 20)"])
        self.assertTrue(outcome.killed, outcome)

    def test_sees_what_is_taken(self):
        take = "import time; x = bytearray(24 << 20); time.sleep(0.3)"
        with cage.Cage(64 << 20) as made:
            outcome = made.run(["python3", "-c", take])
        self.assertFalse(outcome.killed, outcome)
        self.assertEqual(outcome.code, 0, outcome)
        self.assertGreater(outcome.peak_pss, 24 << 20)
        self.assertGreater(len(outcome.samples), 10)


class Budgets(support.Case):
    def keeps_its_promises(self, model, load):
        for name, budget in caged.budgets(model, load).items():
            with self.subTest(budget=name):
                outcome = caged.run(model, load, budget)
                self.assertEqual(caged.broken_promises(outcome, load, model), [], outcome)

    def test_hold_for_tiny_models(self):
        load = caged.Load(prompt_tokens=150, answer_tokens=40, context=256)
        for name in ("qwen3", "gemma3"):
            with self.subTest(model=name):
                self.keeps_its_promises(self.tiny(name), load)

    def test_hold_for_a_real_model(self):
        load = caged.Load(prompt_tokens=300, answer_tokens=32)
        self.keeps_its_promises(self.model("smollm2"), load)

    def test_keep_some_layers_beside_those_that_are_streamed(self):
        model, load = self.model("smollm2"), caged.Load(prompt_tokens=64, answer_tokens=32)
        found = caged.budgets(model, load)
        budget = (found["smallest"] + found["streamed"]) // 2
        outcome = caged.run(model, load, budget)
        self.assertRegex(outcome.err.decode(), r"[12]\d of 30 layers are read from the file")
        self.assertEqual(caged.broken_promises(outcome, load, model), [], outcome)

    def test_hold_beside_a_neighbour_that_takes_and_gives(self):
        """A storm of allocations in the same cage, up to what the budget leaves of it."""
        storm = ("import random\n"
                 "while True:\n"
                 "    x = bytearray(random.randrange(1 << 20, 48 << 20))\n"
                 "    x[::4096] = b'x' * len(x[::4096])\n")
        model = self.tiny("gemma3")
        load = caged.Load(prompt_tokens=150, answer_tokens=60, context=256)
        budget = caged.budgets(model, load)["smallest"]
        cage.forget_pages(model)
        with cage.Cage(budget + (80 << 20)) as made:
            neighbour = made.start(["python3", "-c", storm])
            outcome = made.run(caged.command(*load.arguments(model), "--budget", budget))
            self.assertIsNone(neighbour.process.poll(), "the neighbour was killed")
            neighbour.process.kill()
            neighbour.finish()
        outcome.limit = budget
        self.assertEqual(caged.broken_promises(outcome, load, model), [], outcome)


if __name__ == "__main__":
    unittest.main()
