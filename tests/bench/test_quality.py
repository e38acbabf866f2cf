"""The matrix of bench/quality: which runs there are, and what follows from their figures."""

import pathlib
import tempfile
import unittest
from xml.etree import ElementTree

from support import (
    kv_plan,
    quality,
    quality_chart,
    quality_report,
    results,
    shell,
)
from test_results import HEADER

SMOL = [text for text in quality.TEXTS if text.model == "smollm2"]
SVG = "{http://www.w3.org/2000/svg}"


def values(kl, kv_bytes=1e6, top1=0.9):
    return {"kl_mean": kl, "kl_p99": 10 * kl, "top1_agreement": top1, "ppl": 20, "full_ppl": 10,
            "kv_bytes_peak": kv_bytes, "full_kv_bytes_peak": 4e6, "scored_tokens": 100, "seconds": 1}


def record(text, policy, kind, window, *figures, **more):
    cell = quality.Cell(text, policy, kind, window)
    return {"model": text.model, "measurement": text.name, "engine": policy,
            "setting": cell.setting, "round": 1, "values": values(*figures, **more)}


def records(policy, kl, kv_bytes=1e6, windows=(512,), kind="f16"):
    """The same figures for both texts of SmolLM2."""
    return [record(text, policy, kind, window, kl, kv_bytes) for text in SMOL for window in windows]


class Cells(unittest.TestCase):
    def test_every_offered_policy_meets_every_type_and_window_and_no_cell_comes_twice(self):
        cells = quality.matrix_cells(quality.TEXTS, full=True)
        offered = [policy for policy in quality.POLICIES if policy.offered]
        pairs = sum(not (policy.layered and text.one_group)
                    for policy in offered for text in quality.TEXTS)
        self.assertEqual(len(set(cells)), len(cells))
        self.assertEqual(sum(cell.policy != quality.FULL for cell in cells),
                         pairs * len(quality.TYPES) * len(quality.WINDOWS))

    def test_the_default_type_is_seen_in_every_window_and_the_others_in_one(self):
        cells = [cell for cell in quality.matrix_cells(SMOL[:1]) if cell.policy == "layered"]
        self.assertEqual([(cell.kind, cell.window) for cell in cells],
                         [("f16", 512), ("q8", 256), ("q8", 512), ("q8", 1024), ("k8v4", 512)])

    def test_the_runs_are_those_of_the_documented_protocol(self):
        words = shell.words(quality.arguments_of(quality.Cell(SMOL[0], "layered", "q8", 512)))
        text = " ".join(words)
        for part in ("--ids ", "moby.json", "--ctx 2304", "--window 512", "--score-from 768",
                     "--kv-type q8", "--window-shape layered"):
            self.assertIn(part, text)
        full = quality.arguments_of(quality.Cell(SMOL[0], quality.FULL, "q8", quality.OFF))
        self.assertNotIn("--window", full)

    def test_a_window_is_scored_from_where_it_has_been_full_for_a_while(self):
        self.assertEqual([quality.score_from(window) for window in (256, 1024, quality.OFF)],
                         [384, 1536, 768])


class Runs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "results.jsonl"
        self.asked = []
        shell.note, self.note = lambda text: None, shell.note
        self.addCleanup(lambda: setattr(shell, "note", self.note))

    def run_missing(self, cells):
        def measure(cell):
            self.asked.append(cell)
            return values(0.5)
        store = results.Results(self.path, HEADER)
        quality.run_missing(cells, store, measure)
        return store

    def test_what_the_file_has_is_not_run_again(self):
        cells = quality.matrix_cells(SMOL, windows=(512,), types=("f16",))
        self.run_missing(cells[:3])
        self.asked.clear()
        store = self.run_missing(cells)
        self.assertEqual(self.asked, cells[3:])
        self.assertEqual(len(store.records), len(cells))


class Verdict(unittest.TestCase):
    def test_damage_that_does_not_show_is_a_blind_spot(self):
        seen = quality.Table(records(quality.BAD, 0.64))
        self.assertEqual(quality.blind_spots(seen, SMOL), [])
        unseen = quality.Table([record(SMOL[0], quality.BAD, "f16", 512, 0.64),
                                record(SMOL[1], quality.BAD, "f16", 512, 0.3)])
        self.assertEqual(quality.blind_spots(unseen, SMOL), [(SMOL[1], 0.3)])
        self.assertEqual(len(quality.blind_spots(quality.Table([]), SMOL)), 2)

    def test_a_figure_is_the_mean_over_the_models_texts_or_none(self):
        both = [record(SMOL[0], "layered", "f16", 512, 0.2, 1e6), record(SMOL[1], "layered", "f16", 512, 0.4, 3e6)]
        mean = quality.Table(both).mean("smollm2", "layered", "f16", 512)
        self.assertAlmostEqual(mean["kl_mean"], 0.3)
        self.assertEqual(mean["kv_bytes_peak"], 2e6)
        self.assertIsNone(quality.Table(both[:1]).mean("smollm2", "layered", "f16", 512))

    def test_policies_stand_by_the_geometric_mean_of_their_ratios(self):
        table = quality.Table(records("uniform", 0.1, windows=(256, 512, 1024))
                              + records("layered", 0.05, 0.9e6, windows=(256,))
                              + records("layered", 0.2, 0.9e6, windows=(512,)))
        layered = next(s for s in quality.standings(table) if s.policy.name == "layered")
        self.assertAlmostEqual(layered.kl, 1.0)  # a half and twice
        self.assertAlmostEqual(layered.worst, 2.0)
        self.assertAlmostEqual(layered.bytes, 0.9)
        self.assertEqual(layered.cells, 2)  # what only one of the two has does not count

    def test_the_best_has_the_least_kl_among_those_of_equal_bytes(self):
        table = quality.Table(records("uniform", 0.1) + records("layered", 0.09)
                              + records("heavy", 0.05, 1.2e6) + records(quality.BAD, 0.01))
        self.assertEqual([s.policy.name for s in quality.standings(table)], ["heavy", "layered", "uniform"])
        self.assertEqual(quality.best(table).policy.name, "layered")
        self.assertIsNone(quality.best(quality.Table([])))


class Page(unittest.TestCase):
    def setUp(self):
        self.records = (records(quality.BAD, 0.64) + records("uniform", 0.1) + records("layered", 0.09)
                        + records(quality.FULL, 0.001, windows=(quality.OFF,), kind="q8"))
        planned = {"kv_bytes": 470e6, "min_budget_bytes": 2.6e9}
        self.records += [{"model": kv_plan.SHAPE, "measurement": what, "engine": "f16",
                          "setting": "4096 0", "round": 1, "values": planned}
                         for what in ("plan", "measured")]
        needle = quality.needle_cells(quality.NEEDLES[0])[0]
        self.records.append({"model": "smollm2", "measurement": "needle", "engine": needle.policy,
                             "setting": needle.setting, "round": 1,
                             "values": {"needle": {"90": 1.0, "10": 0.5}, "rate": 0.75, "prompts": 20}})
        self.page = quality_report.page({**HEADER, "date": "2026-01-01"}, self.records, "kv-quality.svg")

    def test_it_names_the_best_policy_and_its_flags(self):
        self.assertIn("At equal bytes the best is 4 sinks, deep layers keep more", self.page)
        self.assertIn("--window-shape layered", self.page)

    def test_a_cell_has_kl_agreement_and_bytes(self):
        self.assertIn("| f16 | 4 sinks, all layers alike | - | 0.1000 (90.0%) | - | - | 1.0 MB | - |", self.page)
        self.assertIn("| q8 | 0.00100 | 0.0100 | 90.0% | 0.250 |", self.page)

    def test_known_damage_needles_and_plans_are_shown(self):
        self.assertIn("| no sinks | 20.0, not 10.0 | 0.6400 (90.0%) |", self.page)
        self.assertIn("| SmolLM2-135M Q4_1 | everything kept | 50% | 100% | 75% |", self.page)
        self.assertIn("| f16 | 4,096 tokens, all kept | 470.0 MB | 470.0 MB | 2.60 GB |", self.page)

    def test_every_commit_that_a_figure_comes_from_is_named(self):
        self.records[0]["values"]["commit"] = "def"
        page = quality_report.page({**HEADER, "date": "2026-01-01"}, self.records, "kv-quality.svg")
        self.assertIn("at commit `def`, `abc`", page)

    def test_without_figures_there_is_a_page_all_the_same(self):
        page = quality_report.page({**HEADER, "date": "2026-01-01"}, [], "kv-quality.svg")
        self.assertNotIn("Which policy", page)

    def test_the_chart_has_a_point_for_each_window_and_a_line_for_each_policy(self):
        root = ElementTree.fromstring(quality_report.svg(self.records))
        points = [c for c in root.iter(f"{SVG}circle") if c.get("r") == "3"]
        self.assertEqual(len(points), 2)  # uniform and layered; what is not offered is not drawn
        self.assertEqual(len(list(root.iter(f"{SVG}polyline"))), 2)


class Chart(unittest.TestCase):
    def test_axes_are_logarithmic(self):
        panel = quality_chart.Panel(0, [(0, 0, [(1, 0.01), (10, 0.1), (100, 1)])])
        self.assertAlmostEqual(panel.x(10) - panel.x(1), panel.x(100) - panel.x(10))
        self.assertAlmostEqual(panel.y(0.01) - panel.y(0.1), panel.y(0.1) - panel.y(1))
        self.assertGreater(panel.y(0.01), panel.y(1))  # less damage is lower

    def test_ticks_are_round_numbers_inside(self):
        self.assertEqual(quality_chart.ticks(3, 60, (1, 2, 5)), [5, 10, 20, 50])


if __name__ == "__main__":
    unittest.main()
