"""Tables and chart for people."""

import unittest
from xml.etree import ElementTree

from support import chart, figures, models, record, report, synthetic

HEADER = {"date": "2026-01-01", "commit": "abc", "threads": 2, "cpu": "a CPU", "cpus": 2,
          "system": "Linux", "cpus_in_use": 0.01, "versions": {"llama.cpp": "1"}}
RECORDS = [record("tael", 300, share=0.9, read_gbps=30), record("llama.cpp", 100),
           record("tael", 0.1, measurement="start"), record("llama.cpp", 0.4, measurement="start"),
           record("tael", 0, measurement="outputs", mean_delta=0.01, max_delta=0.2, texts=[
               {"prompt": "a | b", "tokens": 48, "same_tokens": 14, "ours_then": "x",
                "theirs_then": "y"}])]


class Page(unittest.TestCase):
    def setUp(self):
        self.summary = figures.summary(RECORDS)
        self.page = report.page(HEADER, self.summary, "benchmarks.svg")

    def test_a_row_has_figures_ratio_and_share(self):
        self.assertIn("| SmolLM2-135M Q4_1 | 300.0 | 100.0 | - | 3.00x | 3.00x | 90% of 30.0 GB/s |",
                      self.page)

    def test_times_are_shown_in_milliseconds(self):
        self.assertIn("| 100 ms | 400 ms |", self.page)

    def test_the_page_says_where_and_with_what_it_was_measured(self):
        for part in ("2026-01-01", "`abc`", "a CPU", "2 threads", "llama.cpp: 1", "bench/compare"):
            self.assertIn(part, self.page)

    def test_a_busy_machine_is_confessed_and_judges_nothing(self):
        self.assertNotIn("busy", self.page)
        busy = report.page({**HEADER, "cpus_in_use": 0.5}, self.summary, "benchmarks.svg")
        self.assertIn("The machine was busy", busy)
        self.assertNotIn("## Targets", busy)
        self.assertIn("## Targets", self.page)

    def test_a_bar_in_a_text_does_not_break_a_table(self):
        self.assertNotIn(" | b", self.page)

    def test_targets_that_were_measured_are_listed(self):
        self.assertIn("| SmolLM2-135M Q4_1 | decode, context 64 | ratio to llama.cpp >= 1.80x | "
                      "3.00x | yes |", self.page)
        self.assertNotIn("not measured", self.page)

    def test_the_terminal_gets_the_same_figures(self):
        text = report.plain_table(self.summary)
        self.assertIn("3.00x", text)
        self.assertIn("the same 14 of 48 greedy tokens, then `'x'` where llama.cpp has `'y'`", text)


class Chart(unittest.TestCase):
    def test_it_is_xml_with_a_bar_per_figure_and_dark_colours(self):
        svg = chart.draw("A & B", ["one", "two"], {"m<1>": {"one": 2.0, "two": 0.5}, "n": {"one": 1}})
        root = ElementTree.fromstring(svg)
        bars = [element for element in root.iter("{http://www.w3.org/2000/svg}rect")
                if element.get("height") == str(chart.BAR)]
        self.assertEqual(len(bars), 3)
        self.assertAlmostEqual(float(bars[0].get("width")), 4 * float(bars[1].get("width")), 0)
        self.assertIn("prefers-color-scheme: dark", svg)

    def test_nothing_measured_is_an_empty_chart(self):
        ElementTree.fromstring(report.svg({}))


class Models(unittest.TestCase):
    def test_the_start_of_a_name_chooses_all_that_begin_so(self):
        self.assertEqual(len(models.chosen(["qwen2.5-0.5b"])), 3)
        self.assertEqual(len(models.chosen([])), len(models.MODELS))

    def test_a_tied_table_is_read_for_every_token_and_an_untied_one_is_not(self):
        meta = {"general.architecture": "llama", "llama.embedding_length": 64,
                "llama.attention.head_count": 2, "llama.attention.head_count_kv": 1,
                "llama.block_count": 3}
        tensors = [{"name": "token_embd.weight", "shape": [64, 100], "bytes": 1000},
                   {"name": "blk.0.ffn_up.weight", "shape": [64, 128], "bytes": 10},
                   {"name": "blk.0.ffn_norm.weight", "shape": [64], "bytes": 1}]
        tied = models.facts_from({"metadata": meta, "tensors": tensors}, "f")
        self.assertEqual((tied.decode_bytes, tied.macs_per_token), (1011, 64 * 128))
        self.assertEqual(tied.kv_bytes_per_token, 2 * 3 * 64)
        head = {"name": "output.weight", "shape": [64, 100], "bytes": 2000}
        untied = models.facts_from({"metadata": meta, "tensors": [*tensors, head]}, "f")
        self.assertEqual(untied.decode_bytes, 2011)


class Shapes(unittest.TestCase):
    def test_a_shape_has_the_parameters_of_its_model(self):
        for name, millions in (("qwen2.5-0.5b", 494), ("qwen2.5-1.5b", 1544), ("llama3.2-1b", 1236),
                               ("llama3.2-3b", 3213)):
            total = sum(rows * columns for _, rows, columns, _
                        in synthetic.matrices(synthetic.SHAPES[name]))
            self.assertAlmostEqual(total / 1e6, millions, delta=1)

    def test_a_vocabulary_is_padded_or_cut_to_the_shape(self):
        self.assertEqual(synthetic.fitted("tokens", ["a", "b"], 3), ["a", "b", "[PAD2]"])
        self.assertEqual(synthetic.fitted("token_type", [1, 1, 1], 2), [1, 1])


if __name__ == "__main__":
    unittest.main()
