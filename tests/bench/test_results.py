"""Results are kept as they come, and a comparison goes on where it was cut."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

from support import engines, measurements, results, runner, shell

HEADER = {"commit": "abc", "threads": 2, "cpu": "a CPU"}


class Machine(unittest.TestCase):
    def test_a_cpu_at_work_is_seen(self):
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
            try:
                self.assertGreater(results.cpus_in_use(seconds=0.5), 0.3)
            finally:
                busy.kill()

    def test_a_cpu_has_a_name_and_its_vectors(self):
        name, _, vectors = results.cpu_name().rpartition(", ")
        self.assertTrue(name)
        self.assertIn(vectors, results.VECTORS)


class ResultsFile(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "results.jsonl"

    def test_a_record_is_there_for_who_opens_the_file_next(self):
        results.Results(self.path, HEADER).add("m", "decode64", "tael", "", 1, {"value": 5})
        again = results.Results(self.path, HEADER)
        self.assertEqual(again.find(model="m", round=1)[0]["values"], {"value": 5})

    def test_a_line_that_was_cut_is_left_out(self):
        store = results.Results(self.path, HEADER)
        store.add("m", "decode64", "tael", "", 1, {"value": 5})
        with open(self.path, "a", encoding="utf-8") as file:
            file.write('{"model": "m", "meas')
        self.assertEqual(len(results.load(self.path)[1]), 1)

    def test_a_file_of_another_commit_is_not_continued(self):
        results.Results(self.path, HEADER)
        with self.assertRaisesRegex(shell.Failed, "commit abc"):
            results.Results(self.path, {**HEADER, "commit": "def"})

    def test_a_file_without_header_is_refused(self):
        self.path.write_text("{}\n", encoding="utf-8")
        with self.assertRaisesRegex(shell.Failed, "no header"):
            results.load(self.path)


class FakeRig:
    """Its only fact is a file that can be read."""

    class tael:
        @staticmethod
        def facts(_):
            return type("Facts", (), {"path": __file__})


class Rounds(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "results.jsonl"
        self.calls = []
        self.model = type("Model", (), {"name": "m", "title": "M"})
        shell.note, self.note = lambda text: None, shell.note
        self.addCleanup(lambda: setattr(shell, "note", self.note))

    def contender(self, engine, setting, value):
        def run():
            self.calls.append(f"{engine}{setting}")
            if value is None:
                raise engines.Unavailable("no such flag")
            return {"value": value}
        return engines.Contender(engine, setting, run)

    def run_rounds(self, rounds, *contenders):
        measurement = measurements.Measurement("decode64", "", "", lambda rig, model: list(contenders))
        store = results.Results(self.path, HEADER)
        runner.Runner(FakeRig, store, rounds).run(self.model, measurement)
        return store

    def test_engines_take_turns_and_every_other_round_goes_backwards(self):
        self.run_rounds(3, self.contender("A", "", 1), self.contender("B", "", 1))
        self.assertEqual("".join(self.calls), "ABBAAB")

    def test_what_the_file_has_is_not_run_again(self):
        both = (self.contender("A", "", 1), self.contender("B", "", 1))
        self.run_rounds(1, *both)
        self.calls.clear()
        self.run_rounds(2, *both)
        self.assertEqual(self.calls, ["B", "A"])

    def test_a_setting_far_from_the_best_takes_no_part(self):
        store = self.run_rounds(1, *(self.contender("B", name, value) for name, value in
                                     (("0", 10), ("1", 99), ("2", 100), ("3", 98), ("4", 96))))
        self.assertEqual([record["setting"] for record in store.find(round=1)], ["1", "2", "3"])

    def test_an_engine_that_cannot_is_asked_once_and_the_others_go_on(self):
        store = self.run_rounds(2, self.contender("A", "", None), self.contender("B", "", 1))
        self.assertEqual(self.calls, ["A", "B", "B"])
        self.assertEqual(len(store.find(engine="B")), 2)


if __name__ == "__main__":
    unittest.main()
