"""Medians, ratios and shares, from records alone."""

import unittest

from support import figures, record


class Figures(unittest.TestCase):
    def figures_of(self, *records, model="smollm2", measurement="decode64"):
        return figures.summary(list(records))[model][measurement]

    def test_an_engines_figure_is_the_median_of_its_rounds(self):
        row = self.figures_of(record("tael", 10, 1), record("tael", 90, 2), record("tael", 20, 3))
        self.assertEqual(row["engines"]["tael"]["value"], 20)
        self.assertEqual((row["engines"]["tael"]["low"], row["engines"]["tael"]["high"]), (10, 90))

    def test_the_search_for_a_setting_enters_no_median(self):
        row = self.figures_of(record("tael", 10), record("tael", 1000, 0))
        self.assertEqual(row["engines"]["tael"]["value"], 10)

    def test_a_peer_counts_with_its_best_setting(self):
        row = self.figures_of(record("tael", 30), record("llama.cpp", 10, setting="-fa 0"),
                              record("llama.cpp", 15, setting="-fa 1"))
        self.assertEqual(row["engines"]["llama.cpp"]["setting"], "-fa 1")
        self.assertEqual(row["ratio"], 2)

    def test_where_less_is_better_the_best_setting_is_the_lowest(self):
        row = self.figures_of(record("tael", 1, measurement="start"),
                              record("llama.cpp", 4, measurement="start", setting="a"),
                              record("llama.cpp", 2, measurement="start", setting="b"),
                              measurement="start")
        self.assertEqual(row["ratio"], 0.5)

    def test_the_better_peer_counts(self):
        row = self.figures_of(record("tael", 30), record("llama.cpp", 10), record("ik_llama.cpp", 20))
        self.assertEqual((row["ratio"], row["ratio_ik"], row["ratio_best"]), (3, 1.5, 1.5))

    def test_a_share_is_the_median_of_each_rounds_own_share(self):
        row = self.figures_of(record("tael", 10, 1, share=0.9, read_gbps=30),
                              record("tael", 20, 2, share=0.8, read_gbps=50),
                              record("tael", 12, 3, share=0.7, read_gbps=31))
        self.assertEqual((row["share"], row["read_gbps"]), (0.8, 31))

    def test_the_speed_left_at_depth_is_that_of_one_engine(self):
        summary = figures.summary([record("tael", 100), record("tael", 80, measurement="decode2048"),
                                   record("llama.cpp", 100),
                                   record("llama.cpp", 50, measurement="decode2048")])
        deep = summary["smollm2"]["decode2048"]
        self.assertEqual(deep["keeps"], 0.8)
        self.assertEqual(deep["engines"]["llama.cpp"]["keeps"], 0.5)

    def test_a_measurement_without_us_has_no_ratio(self):
        self.assertNotIn("ratio", self.figures_of(record("llama.cpp", 10)))


if __name__ == "__main__":
    unittest.main()
