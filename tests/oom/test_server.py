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

    def smallest_server(self):
        model = self.tiny("qwen3")
        return served.Served(model, self.least_budget(model), "--ctx", CONTEXT, "--sessions", 2)

    def kept_its_promise(self, server):
        self.assertFalse(server.outcome.killed, server.outcome)
        self.assertEqual(server.outcome.code, 0, server.outcome.err)
        self.assertLessEqual(server.outcome.peak_pss, server.budget, server.outcome)

    def test_stays_below_its_budget_whatever_comes(self):
        with self.smallest_server() as server:
            wrong = served.one_shots(server, range(100), pause=0.3, long_every=1)
            memory = server.memory()
        self.assertEqual(wrong, [])
        self.kept_its_promise(server)
        self.assertLessEqual(memory["used_bytes"], memory["budget_bytes"])

    def test_sessions_come_and_go_below_its_budget(self):
        with self.smallest_server() as server:
            wrong = served.sessions(server, range(40), pause=0.3, long_every=1)
            left = server.blocks_left()
        self.assertEqual(wrong, [])
        self.assertEqual(left, 0)
        self.kept_its_promise(server)

    def test_a_storm_of_clients_leaves_nothing_behind(self):
        with self.smallest_server() as server:
            clients = storm.Storm(server.port, 40, 8, most_pause=0.5)
            clients.run()
            left = server.blocks_left()
        self.assertEqual(clients.wrong, [])
        self.assertEqual(left, 0)
        self.kept_its_promise(server)
        answered = sum(count for what, count in clients.told.items() if what.endswith("answered"))
        self.assertGreater(answered, 20, clients.told)
        said = sum(clients.told[f"{kind}: answered"] for kind in ("whole", "chats", "streams"))
        self.assertGreater(said, 10, clients.told)

    def test_the_prefix_cache_stays_below_its_cap_while_it_takes_prompts_in(self):
        model = self.tiny("qwen3")
        row = caged.plan(model, "60M", CONTEXT)["kv_bytes_per_token"] * 16
        cap = 24 * row
        with served.Served(model, "60M", "--ctx", CONTEXT, "--sessions", 2, "--prefix-cache",
                           cap) as server:
            lengths = [500, *[40 + 37 * i % 300 for i in range(40)]]  # the first is larger than the cap
            most, wrong = served.fill_prefix_cache(server, lengths)
        self.assertEqual(wrong, [])
        self.assertLessEqual(most, cap)
        self.assertGreater(most, cap / 2)

    def test_a_critical_trim_shrinks_the_window_of_an_answer_that_goes_on(self):
        model = self.tiny("qwen3")
        token = caged.plan(model, "60M", CONTEXT)["kv_bytes_per_token"]
        with served.Served(model, "60M", "--ctx", CONTEXT, "--sessions", 1, "--window", 256,
                           "--floor", 64, "--window-shape", "uniform", "--prefix-cache",
                           "off") as server:
            shrunk = served.trim_while_it_answers(server, 250 * token, 20000)
        self.assertEqual((shrunk.status, shrunk.tokens), (200, 20000))
        self.assertGreater(shrunk.kv_after, 0)  # it had not ended by then
        self.assertLessEqual(shrunk.kv_after, (64 + 32) * token, shrunk)

    def test_the_plan_is_what_the_server_reserves_and_the_ledger_what_is_resident(self):
        model = self.model("smollm2")
        flags = ("--ctx", 1024, "--sessions", 2)
        planned = caged.plan(model, "300M", 0, *flags, "--server")["parts"]
        with served.Served(model, "300M", *flags) as server:
            wrong = served.one_shots(server, range(20), pause=0.3, long_every=1)
            memory = server.memory()
        self.assertEqual(wrong, [])
        for tag, expected in planned.items():
            reserved = memory["parts_reserved"][tag]
            self.assertLessEqual(abs(expected - reserved), max(0.03 * reserved, 1 << 20), tag)
        gap, allowed = caged.ledger_gap(memory), max(0.03 * memory["used_bytes"], 1 << 20)
        self.assertGreaterEqual(gap, -allowed, memory)
        self.assertLessEqual(gap, allowed + caged.UNTOUCHED_CODE, memory)

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
