"""The server in a cage as large as its budget. At full length: scripts/verify 5 server."""

import subprocess
import time
import unittest

import caged
import served
import storm
import support

CONTEXT = 512


class Server(support.Case):
    def setUp(self):
        super().setUp()
        asked = subprocess.run(caged.command("serve", "--help"), capture_output=True, check=False)
        if asked.returncode != 0:
            self.skipTest("this build has no server")

    def least_budget(self, model):
        return caged.plan(model, 1, CONTEXT, "--sessions", 2, "--server")["min_budget_bytes"]

    def test_stays_below_its_budget_whatever_comes(self):
        model = self.tiny("qwen3")
        with served.Served(model, self.least_budget(model), "--ctx", CONTEXT, "--sessions",
                           2) as server:
            wrong, _ = served.one_shots(server, 100)
            memory = server.memory()
        self.assertEqual(wrong, [])
        self.assertFalse(server.outcome.killed, server.outcome)
        self.assertEqual(server.outcome.code, 0, server.outcome.err)
        self.assertLessEqual(server.outcome.peak_pss, server.budget, server.outcome)
        self.assertLessEqual(memory["used_bytes"], memory["budget_bytes"])

    def test_a_storm_of_clients_leaves_nothing_behind(self):
        model = self.tiny("qwen3")
        with served.Served(model, self.least_budget(model), "--ctx", CONTEXT, "--sessions",
                           2) as server:
            clients = storm.Storm(server.port, 40, 8, most_pause=0.5)
            clients.run()
            left = server.blocks_left()
        self.assertEqual(clients.wrong, [])
        self.assertEqual(left, 0)
        self.assertFalse(server.outcome.killed, server.outcome)
        self.assertEqual(server.outcome.code, 0, server.outcome.err)
        self.assertLessEqual(server.outcome.peak_pss, server.budget, server.outcome)
        answered = sum(count for what, count in clients.told.items() if what.endswith("answered"))
        self.assertGreater(answered, 20, clients.told)

    def test_gives_kv_back_within_a_second_when_sessions_end(self):
        model = self.tiny("qwen3")
        with served.Served(model, 2 * self.least_budget(model), "--ctx", CONTEXT, "--sessions", 2,
                           "--prefix-cache", "off") as server:
            # The same length: what a longer prompt touches of the activations stays touched.
            server.complete("y " * (CONTEXT // 3), 4)
            time.sleep(1)
            before = server.anonymous()
            status, _ = server.complete("x " * (CONTEXT // 3), 4)
            self.assertEqual(status, 200)
            time.sleep(1)
            self.assertEqual(server.memory()["parts"]["kv"], 0)
            self.assertLess(server.anonymous(), before + (256 << 10))


if __name__ == "__main__":
    unittest.main()
