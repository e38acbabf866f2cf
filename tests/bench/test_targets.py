"""What must hold is judged by the table alone."""

import unittest

from support import figures, measurements, models, record, targets


class Targets(unittest.TestCase):
    def verdict(self, measurement, model, figure, values):
        summary = {model: {measurement: values}}
        found = [verdict for verdict in targets.verdicts(summary, [model], [measurement])
                 if verdict.target.figure == figure]
        self.assertEqual(len(found), 1)
        return found[0]

    def test_a_ratio_at_the_bound_holds_and_one_below_does_not(self):
        name = "qwen2.5-0.5b.Q4_0"
        self.assertTrue(self.verdict("decode64", name, "ratio", {"ratio": 1.15}).holds)
        self.assertFalse(self.verdict("decode64", name, "ratio", {"ratio": 1.149}).holds)

    def test_time_to_first_token_must_be_small(self):
        self.assertTrue(self.verdict("start", "smollm2", "ratio", {"ratio": 0.4}).holds)
        self.assertFalse(self.verdict("start", "smollm2", "ratio", {"ratio": 0.6}).holds)

    def test_a_fast_read_pass_lowers_the_share_that_is_asked(self):
        name = "qwen2.5-1.5b.Q8_0"
        slow, fast = {"share": 0.87, "read_gbps": 30}, {"share": 0.87, "read_gbps": 36}
        self.assertFalse(self.verdict("decode64", name, "share", slow).holds)
        self.assertTrue(self.verdict("decode64", name, "share", fast).holds)

    def test_what_was_not_measured_does_not_hold(self):
        verdict = self.verdict("decode64", "smollm2", "ratio", {})
        self.assertFalse(verdict.holds)
        self.assertIn("not measured", targets.sentence(verdict))

    def test_only_what_was_asked_for_is_judged(self):
        found = targets.verdicts({}, ["smollm2"], ["decode64"])
        self.assertEqual({(one.model, one.measurement) for one in found},
                         {("smollm2", "decode64")})

    def test_every_target_names_models_and_measurements_that_exist(self):
        for target in targets.TARGETS:
            self.assertLessEqual(set(target.models), set(models.MODELS))
            self.assertLessEqual(set(target.measurements),
                                 {*measurements.MEASUREMENTS, "outputs"})

    def test_every_figure_of_a_target_is_computed(self):
        summary = figures.summary([
            record("tael", 2, share=0.5, without_kv=1, upper=1), record("llama.cpp", 1),
            record("tael", 2, measurement="decode2048"),
            record("tael", 2, measurement="outputs", mean_delta=0.1)])
        computed = set().union(*(row for row in summary["smollm2"].values()))
        self.assertLessEqual({target.figure for target in targets.TARGETS}, computed)


if __name__ == "__main__":
    unittest.main()
