"""Issue 7: serve many users from one small board."""

import json
import os
import pathlib
import re
import sys
import tempfile

from .common import ROOT, TAEL, gtest_line, line, must, run

sys.path[:0] = [str(ROOT / "tests" / "oom"), str(ROOT / "bench")]
os.environ["TAEL_BINARY"] = str(TAEL)
SHARED, OWN = 256, 100


def clients(_):
    """Eight clients at once, against llama-server at the best of its settings."""
    done = run(["bench/serve", "--tael", TAEL, "--json"])
    if not done.stdout:
        sys.exit(f"verify: bench/serve failed\n{done.stderr}")
    for verdict in json.loads(done.stdout)["verdicts"]:
        line(verdict["what"], verdict["holds"], verdict["figure"])


def scheduling(_):
    """A second session, and the gap that a long prompt makes for others."""
    path = must(["bench/make-model", "qwen2.5-0.5b", "Q4_0"]).stdout.strip()
    said = must([ROOT / "build/bench/bench/micro/tael_scheduling", path, "--shared", SHARED, "--own",
                 OWN]).stdout
    ratio = float(re.search(r"^second: .* after ([\d.]+) of", said, re.MULTILINE)[1])
    bound = 1.1 * (OWN + 1) / (SHARED + OWN)
    line(f"second session, {SHARED} shared and {OWN} own tokens: first token <= {bound:.3f} of cold",
         ratio <= bound, f"{ratio:.3f}")
    gap = re.search(r"^gap: .*\(([\d.]+)\)$", said, re.MULTILINE)
    line("a 2,000-token prompt beside four answers: no gap above 2 chunks", float(gap[1]) <= 2,
         gap[0])


def accounts(_):
    """Bytes of sessions that share a prompt, and references under random operations."""
    gtest_line("B3: a million random operations for each of four shapes", "src/tael_kv_tests",
               "*PrefixFuzz*", TAEL_TEST_OPERATIONS="1000000")
    gtest_line("KV of N sessions = prefix + N x own", "src/tael_engine_tests",
               "*SessionsOfOneSystemPromptHoldItOnce*:*ChoicesHoldThePromptOnce*")


def freed(_):
    """B4: cancel, preempt and trim at random moments, ten thousand requests, freed blocks are NaN."""
    gtest_line("B4: survivors equal what they would say alone", "src/tael_engine_tests",
               "*SchedulerStress*", TAEL_TEST_FULL="1")


def vanishing(_):
    """H3: the network goes away under a client that reads and one that waits."""
    done = run(["ctest", "--test-dir", "build/dev", "-R", "server.test_leaving", "-V"],
               env={**os.environ, "TAEL_TEST_FULL": "1"})
    found = re.search(r"^.*(test_is_noticed_while_it_reads_and_while_it_waits .*)$", done.stdout,
                      re.MULTILINE)
    line("H3: clients whose network is gone are noticed within 45 s, queued and in decode",
         bool(found) and found[1].endswith("... ok"), found[1] if found else done.stdout[-300:])


def storm(paths):
    """500 clients of every kind, 10 minutes, in a cage as large as the smallest budget."""
    import cage
    import caged
    import served
    import storm as clients_of

    with tempfile.TemporaryDirectory(dir=pathlib.Path(paths["smollm2"]).parent) as folder:
        copy = cage.private_copy(paths["smollm2"], folder)
        budget = caged.plan(copy, 1, 2048, "--sessions", 4, "--server")["min_budget_bytes"]
        with served.Served(copy, budget, "--ctx", 2048, "--sessions", 4) as server:
            early = clients_of.Storm(server.port, 100, 60, seed=1)
            early.run()
            server.blocks_left()  # drops idle prefixes, whose pages would hide a leak
            before = server.anonymous()
            all_of_them = clients_of.Storm(server.port, 500, 540, seed=2)
            all_of_them.run()
            left, after = server.blocks_left(), server.anonymous()
    outcome, told = server.outcome, all_of_them.told
    print(json.dumps(dict(sorted(told.items())), indent=1))
    line("500 mixed clients, 10 minutes: no kill, PSS <= budget",
         not outcome.killed and outcome.code == 0 and outcome.peak_pss <= budget, str(outcome))
    line("every answer complete or a typed error", not all_of_them.wrong and not early.wrong,
         f"{sum(told.values())} requests, {len(all_of_them.wrong)} wrong {all_of_them.wrong[:2]}")
    line("block accounting exact at the end", left == 0, f"{left} bytes of KV left")
    line("no leak: anonymous memory after all of them within 2 % or 1 MiB of that after a minute",
         after <= max(1.02 * before, before + (1 << 20)),
         f"{before / 1e6:.2f} and {after / 1e6:.2f} MB")


LINES = {"clients": clients, "scheduling": scheduling, "accounts": accounts, "freed": freed,
         "vanishing": vanishing, "storm": storm}


def presets(chosen):
    presets_of = {"scheduling": ["bench"], "accounts": ["dev"], "freed": ["dev"],
                  "vanishing": ["dev"]}
    return sorted({preset for name in chosen for preset in presets_of.get(name, ["release"])})
