"""Issue 5: the budget is a promise. Plan it, keep it, survive pressure."""

import itertools
import json
import os
import pathlib
import random
import statistics
import sys
import tempfile
import threading
import time

from .common import ROOT, TAEL, gtest_line, line, must

sys.path[:0] = [str(ROOT / "tests" / "oom"), str(ROOT / "bench")]
os.environ["TAEL_BINARY"] = str(TAEL)


PEER_PATIENCE = 8  # times what we take


def cages(paths):
    """Load, 1k prefill and 256 decode in a cgroup as large as the budget, at three budgets."""
    import cage
    import caged

    # Just the context that is needed: all of the KV is touched in the end.
    load = caged.Load(prompt_tokens=1000, answer_tokens=256, context=1264)
    for model, path in served_models(paths):
        with tempfile.TemporaryDirectory(dir=pathlib.Path(path).parent) as folder:
            copy = cage.private_copy(path, folder)
            for name, budget in caged.budgets(copy, load).items():
                what = f"{model}, {name} budget: no kill, PSS <= budget in every sample"
                outcome = caged.run(copy, load, budget)
                broken = caged.broken_promises(outcome, load, copy)
                line(what, not broken, "; ".join([*broken, str(outcome)]))


def streams(_):
    """Layers that are read for every token, and a cgroup that has room for no other file page."""
    import cage
    import caged

    load = caged.Load(prompt_tokens=64, answer_tokens=24, context=512)
    path = must(["bench/make-model", "qwen2.5-1.5b", "Q4_0"]).stdout.strip()
    with tempfile.TemporaryDirectory(dir=pathlib.Path(path).parent) as folder:
        copy = cage.private_copy(path, folder)
        found = caged.budgets(copy, load)
        for size, share in (("the smallest streamed budget", 0), ("a budget for some layers", 0.4)):
            budget = int(found["streamed"] + share * (found["smallest"] - found["streamed"]))
            outcome = caged.run(copy, load, budget)
            broken = caged.broken_promises(outcome, load, copy)
            speed = json.loads(outcome.out)["timings"]["decode_tps"] if outcome.code == 0 else 0
            line(f"Qwen2.5-1.5b shape Q4_0, {size}: what is read pushes out nothing that is to stay",
                 not broken, "; ".join([*broken, f"{speed:.2f} tok/s", str(outcome)]))


def reloads(_):
    """A model of 380 MiB, 20 times in one cgroup of 700 MiB (ACCEPTANCE A3)."""
    import cage
    import caged

    load = caged.Load(prompt_tokens=8, answer_tokens=2, context=256)
    path = must(["bench/make-model", "qwen2.5-0.5b", "Q4_K_M"]).stdout.strip()
    outcomes, budgets = [], []
    with tempfile.TemporaryDirectory(dir=pathlib.Path(path).parent) as folder:
        copy = cage.private_copy(path, folder)
        with cage.Cage(700 << 20) as made:
            for _ in range(20):
                outcomes.append(made.run(caged.command(*load.arguments(copy))))
                if outcomes[-1].code != 0:
                    break
                budgets.append(json.loads(outcomes[-1].out)["memory"]["budget_bytes"])
    holds = len(budgets) == 20 and min(budgets) > 0.95 * max(budgets)
    line("A3: 20 starts with --budget auto in a cgroup of 734 MB find the same memory", holds,
         f"{len(budgets)} started, budgets {min(budgets, default=0) / 1e6:.0f} to "
         f"{max(budgets, default=0) / 1e6:.0f} MB; the last: {outcomes[-1]}")


def faults(_):
    for program in ("src/tael_base_tests", "tests/engine/tael_fault_tests"):
        gtest_line("every n-th reservation, mapping, read and thread refused", program, "*Fault*")


def headline(_):
    """The specification's own figures, on its shape; and what they are worth on one trace."""
    path = must(["bench/make-model", "seed-1.1b", "Q4_0"]).stdout.strip()
    for kv, blocks, rows in (("256Mi", 4096, 682), ("192Mi", 3072, 512)):
        plan = json.loads(must([TAEL, "plan", "-m", path, "--kv-type", "f16", "--kv-bytes", kv,
                                "--budget", "4G", "--json"]).stdout)
        line(f"seed-1.1b: {kv}B are {blocks} blocks, {rows} rows",
             (plan["blocks"], plan["block_rows"]) == (blocks, rows),
             f"{plan['blocks']} blocks of {plan['block_bytes']} bytes, {plan['block_rows']} rows")
    traces = {}
    for allocator in ("contiguous", "paged"):
        done = must([ROOT / "build/bench/bench/micro/tael_kv_trace", allocator])
        traces[allocator] = json.loads(done.stdout)
    slots, blocks = traces["contiguous"], traces["paged"]
    line("one trace in 192 MiB, blocks against slots of the longest context: fewer refusals",
         blocks["refused"] < slots["refused"],
         f"{slots['refused']} refused of {slots['sessions']}, {slots['most_at_once']} at once, peak "
         f"PSS {slots['peak_pss_bytes'] / 1e6:.0f} MB; blocks: {blocks['refused']} refused, "
         f"{blocks['most_at_once']} at once, {blocks['peak_pss_bytes'] / 1e6:.0f} MB")


def activations(_):
    """A 3B shape: what all intermediates would take, and what they do."""
    path = must(["bench/make-model", "llama3.2-3b", "Q4_0"]).stdout.strip()
    plan = json.loads(must([TAEL, "plan", "-m", path, "--budget", "2.6G", "--ctx", 2048, "--json"])
                      .stdout)
    arena, live = plan["arena_bytes"], plan["arena_peak_live_bytes"]
    line("3B shape, 2,048 tokens: activations far below 360 MB, fragmentation <= 5 %",
         plan["parts"]["activations"] < 360e6 / 4 and arena <= 1.05 * live,
         f"all results kept {plan['intermediates_bytes'] / 1e6:.0f} MB; planned "
         f"{plan['parts']['activations'] / 1e6:.1f} MB with scratch, arena {arena / 1e6:.1f} MB, "
         f"{100 * (arena / live - 1):.2f} % above what is alive at once")


def cold(_):
    """First token with an empty page cache, by how the file is read; and of a packed file."""
    program = ROOT / "build/bench/bench/micro/tael_cold_start"
    path = must(["bench/make-model", "qwen2.5-0.5b", "Q4_0"]).stdout.strip()
    packed = pathlib.Path(path).with_suffix(".packed.gguf")
    must([TAEL, "pack", path, packed, "--align", 65536])
    arms = {"chosen": [path, "chosen"], "ahead": [path, "ahead"], "all": [path, "all"],
            "first three layers": [path, "first"], "lazy": [path, "lazy"], "heap": [path, "heap"],
            "packed": [packed, "chosen"], "sequential": [path, "chosen", "--advice", "sequential"],
            "random": [path, "chosen", "--advice", "random"],
            "chosen, a CPU spare": [path, "chosen", "--threads", 1],
            "first three layers, a CPU spare": [path, "first", "--threads", 1],
            "heap, a CPU spare": [path, "heap", "--threads", 1]}
    found = {name: [] for name in arms}
    order = random.Random(5)
    for _ in range(9):
        for name in order.sample(list(arms), len(arms)):  # who comes after whom matters
            found[name].append(json.loads(must([program, *arms[name]]).stdout))
    packed.unlink()
    figures = {name: {key: statistics.median([run[key] for run in runs])
                      for key in ("first_token_ms", "peak_rss_bytes", "decode_tps")}
               for name, runs in found.items()}
    for name, figure in figures.items():
        line(f"cold start, {name}", True,
             f"first token {figure['first_token_ms']:.0f} ms, peak RSS "
             f"{figure['peak_rss_bytes'] / 1e6:.0f} MB, decode {figure['decode_tps']:.1f} tok/s")
    # What is chosen is one of the others: their runs count together, being the same.
    for spare, twins, others in (
            ("", ("chosen", "first three layers"), ("ahead", "all", "lazy", "heap")),
            (", a CPU spare", ("chosen, a CPU spare",),
             ("first three layers, a CPU spare", "heap, a CPU spare"))):
        mine = statistics.median([run["first_token_ms"] for name in twins for run in found[name]])
        best = min(others, key=lambda name: figures[name]["first_token_ms"])
        each = ", ".join(f"{figures[name]['first_token_ms']:.0f}" for name in twins)
        line(f"cold start: nothing is 10 % faster than what is chosen{spare}",
             mine <= 1.1 * figures[best]["first_token_ms"],
             f"{mine:.0f} ms ({each}), "
             f"{best} {figures[best]['first_token_ms']:.0f} ms")


def server_budgets(path, context, sessions):
    """The same budgets as one answer's, for so many sessions and the server's own part."""
    import caged

    found = caged.plan(path, 1, context, "--sessions", sessions, "--server")
    least = found["min_budget_bytes"]
    return {"smallest": least, "twice": 2 * least, "streamed": found["min_streamed_bytes"]}


class Growth:
    """What a server's memory grows by, each time with no KV left: RSS from the 50th of a load to its
    end, anonymous memory without the arena from its half on, when tables have been touched as far
    as they will be. (When the pass comes that touches most of the arena is chance.)"""

    def __init__(self, running, load, count):
        self.wrong, self.left = [], 0
        marks = [0, min(50, count // 4), count // 2, count]
        sizes = []
        for begin, end in itertools.pairwise(marks):
            self.wrong += load(running, range(begin, end))
            self.left += running.blocks_left()
            sizes.append((running.resident(), running.anonymous() - running.arena()))
        (self.before, _), (_, half), (self.after, whole) = sizes
        self.slope = (whole - half) / (count - count // 2)

    def holds(self):
        """A2, A7: RSS within 2 %, less than 1 KiB of anonymous memory each, no block left."""
        return self.after <= 1.02 * self.before and self.slope < 1024 and self.left == 0

    def __str__(self):
        return (f"RSS {self.before / 1e6:.2f} and {self.after / 1e6:.2f} MB, {self.slope:.0f} bytes each, "
                f"{self.left} bytes of KV left")


def serve_in_cages(name, path, load, what, count):
    """So many of a load at each budget; memory must not creep."""
    import cage
    import served

    with tempfile.TemporaryDirectory(dir=pathlib.Path(path).parent) as folder:
        copy = cage.private_copy(path, folder)
        for size, budget in server_budgets(copy, 512, served.CLIENTS).items():
            start = time.monotonic()
            with served.Served(copy, budget, "--ctx", 512, "--sessions", served.CLIENTS) as running:
                growth = Growth(running, load, count)
            outcome = running.outcome
            line(f"{name}, {size} budget: {count} {what}, no kill, PSS <= budget",
                 not growth.wrong and not outcome.killed and outcome.peak_pss <= budget,
                 f"{len(growth.wrong)} wrong {growth.wrong[:1]}, {time.monotonic() - start:.0f} s; "
                 f"{outcome}")
            line(f"A2, A7: {name}, {size}: RSS after {count} {what} within 2 % of that after 50, "
                 "< 1 KiB of anonymous memory each", growth.holds(), str(growth))


def served_models(paths):
    yield "SmolLM2", paths["smollm2"]
    yield "Gemma-3-270M", paths["gemma3"]
    for shape in ("0.5b", "1.5b"):
        made = must(["bench/make-model", f"qwen2.5-{shape}", "Q4_0"]).stdout.strip()
        yield f"Qwen2.5-{shape} shape Q4_0", made


def server(paths):
    """2,000 one-shot prompts at each budget."""
    import served

    for model, path in served_models(paths):
        serve_in_cages(model, path, served.one_shots, "one-shot prompts and trims", 2000)


def sessions(paths):
    """1,000 sessions of two to four turns that are opened and closed, at each budget."""
    import served

    for model, path in served_models(paths):
        serve_in_cages(model, path, served.sessions, "sessions and trims", 1000)


def long_answers(paths):
    """A prompt of 1,000 tokens and an answer of 256 while somebody trims, at each budget."""
    import cage
    import served

    for model, path in served_models(paths):
        with tempfile.TemporaryDirectory(dir=pathlib.Path(path).parent) as folder:
            copy = cage.private_copy(path, folder)
            for size, budget in server_budgets(copy, 1264, 1).items():
                with (served.Served(copy, budget, "--ctx", 1264, "--sessions", 1) as running,
                      served.trims(running, wrong := [], pause=1)):
                    ended, failed = ask_until_written(running, served.ids(1, 1000), 256)
                outcome = running.outcome
                line(f"{model}, {size} budget: 1,000 tokens read and 256 written under trims, no kill, "
                     "PSS <= budget", not wrong + failed and not outcome.killed
                     and outcome.peak_pss <= budget,
                     f"{len(wrong + failed)} wrong {(wrong + failed)[:1]}, {ended} ended by a critical "
                     f"trim; {outcome}")


def ask_until_written(running, prompt, answer_tokens):
    """How often memory ended an answer, as a critical trim may (it leaves room for 256 tokens), until
    one was whole; and what went wrong."""
    for ended in range(100):
        failed = ask_at_once(running, [prompt], answer_tokens)
        if not failed or failed[0].get("choices", [{}])[0].get("finish_reason") != "memory":
            return ended, failed
    return ended, failed


def cycles(_):
    """A6 and A7 inside the engine: peaks against the table, 1,000 sessions."""
    gtest_line("A6, A7: peaks of each stage, memory after 1,000 sessions",
               "tests/engine/tael_memory_tests", "*", TAEL_TEST_FULL="1")


def aborts(paths):
    """1,000 streams that their readers leave, at each budget."""
    import served

    serve_in_cages("SmolLM2", paths["smollm2"], served.aborts, "aborted streams", 1000)


def anonymous(_):
    """Eight sessions of 250 tokens of their own over a prompt of 150 that they share."""
    import cage
    import served

    path = must(["bench/make-model", "qwen2.5-0.5b", "Q4_0"]).stdout.strip()
    budget = 1 << 30
    with tempfile.TemporaryDirectory(dir=pathlib.Path(path).parent) as folder:
        copy = cage.private_copy(path, folder)
        with served.Served(copy, budget, "--ctx", 512, "--sessions", 8) as running:
            shared = served.ids(1, 150)
            prompts = [shared + served.ids(10 + i, 200) for i in range(8)]
            wrong = ask_at_once(running, prompts, 50)
        outcome = running.outcome
        most = max(sample.anon for sample in outcome.samples)
        line("0.5B Q4_0, 8 sessions of 250 tokens over 150 shared ones: anonymous <= 80 MB",
             not wrong and most <= 80e6, f"{most / 1e6:.1f} MB, {len(wrong)} wrong {wrong[:1]}; {outcome}")


def idle(_):
    """What idle weights give back, and how fast they come back from the disk."""
    import cage
    import served

    path = must(["bench/make-model", "qwen2.5-0.5b", "Q8_0"]).stdout.strip()
    ratios, given = [], []
    with tempfile.TemporaryDirectory(dir=pathlib.Path(path).parent) as folder:
        copy = cage.private_copy(path, folder)
        size = os.path.getsize(copy)
        flags = ("--ctx", 512, "--sessions", 1, "--idle-release", 2)
        with served.Served(copy, 1 << 30, *flags) as running:
            for _ in range(5):
                running.complete(served.ids(1, 8), 2, ignore_eos=True)
                before = running.mapped(copy)
                time.sleep(4)
                given.append(1 - running.mapped(copy) / before)
                cage.forget_pages(copy)
                start = time.monotonic()
                running.complete(served.ids(1, 8), 1, ignore_eos=True)
                first = time.monotonic() - start
                time.sleep(4)
                cage.forget_pages(copy)
                start = time.monotonic()
                with open(copy, "rb", buffering=0) as file:
                    while file.read(1 << 20):
                        pass
                ratios.append((time.monotonic() - start) / first)
    line("idle release gives back >= 95 % of the weights' resident pages", min(given) >= 0.95,
         f"{100 * min(given):.1f} % at least, of {size / 1e6:.0f} MB")
    line("the next token comes from the disk at >= 90 % of sequential speed",
         statistics.median(ratios) >= 0.9,
         f"reading the file takes {', '.join(f'{ratio:.2f}' for ratio in ratios)} of the first token")


def cap(paths):
    """A1: a prefix cache of 64 MiB in a budget of 600 MiB."""
    import cage
    import served

    size = 64 << 20
    with tempfile.TemporaryDirectory(dir=pathlib.Path(paths["smollm2"]).parent) as folder:
        copy = cage.private_copy(paths["smollm2"], folder)
        flags = ("--ctx", 4608, "--sessions", 1, "--kv-type", "f16", "--prefix-cache", size)
        token = 23040  # bytes of KV in f16
        rng = random.Random(1)
        lengths = [(96 << 20) // token, *[rng.randrange(8 << 20, 40 << 20) // token for _ in range(200)]]
        with served.Served(copy, 600 << 20, *flags) as running:
            most, wrong = served.fill_prefix_cache(running, lengths)
        outcome = running.outcome
        line("A1: 96 MiB once and 200 prompts of 8 to 40 MiB: the cache stays below its cap of 64 MiB",
             not wrong and size / 2 < most <= size and not outcome.killed
             and outcome.peak_pss <= 600 << 20,
             f"at most {most / (1 << 20):.1f} MiB, {len(wrong)} wrong; {outcome}")


def trim(paths):
    """A critical trim while an answer is written in a window; what idle weights give back."""
    import cage
    import served

    with tempfile.TemporaryDirectory(dir=pathlib.Path(paths["smollm2"]).parent) as folder:
        copy = cage.private_copy(paths["smollm2"], folder)
        flags = ("--ctx", 2048, "--sessions", 1, "--window", 2048, "--floor", 256, "--window-shape",
                 "uniform", "--kv-type", "f16", "--prefix-cache", "off")
        token = 23040
        with served.Served(copy, 400 << 20, *flags) as running:
            shrunk = served.trim_while_it_answers(running, 2000 * token, 2600)
        given = shrunk.anonymous_before - shrunk.anonymous_after
        line("trim(critical) in a decode: KV at the floor of 256 tokens a second later, pages with "
             "the kernel, and the answer goes on",
             shrunk.tokens == 2600 and 0 < shrunk.kv_after <= (256 + 64) * token
             and given >= 0.9 * (shrunk.kv_before - shrunk.kv_after),
             f"KV {shrunk.kv_before / 1e6:.1f} -> {shrunk.kv_after / 1e6:.1f} MB, anonymous "
             f"{shrunk.anonymous_before / 1e6:.1f} -> {shrunk.anonymous_after / 1e6:.1f} MB, status {shrunk.status}")


def ask_at_once(running, prompts, answer_tokens):
    """An answer of so many tokens to each; what went wrong."""
    import concurrent.futures

    with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        answers = list(pool.map(
            lambda ids: running.complete(ids, answer_tokens, ignore_eos=True), prompts))
    return [answer for status, answer in answers
            if status != 200 or answer["usage"]["completion_tokens"] != answer_tokens]


def long_sessions(running, sessions, prompt_tokens, answer_tokens):
    """Sessions of so many tokens at once; what went wrong."""
    prompts = [[100 + (7 * i + 13 * index) % 2000 for i in range(prompt_tokens)]
               for index in range(sessions)]
    return ask_at_once(running, prompts, answer_tokens)


def board(_):
    """A 4 GB board: 1.5B Q8_0 in 2.0 GB, four sessions of 2,048 tokens; llama-server beside it."""
    import cage
    import served
    from harness import serving, toolbox

    budget, prompt, answer = 2_000_000_000, 1984, 64
    path = must(["bench/make-model", "qwen2.5-1.5b", "Q8_0"]).stdout.strip()
    with tempfile.TemporaryDirectory(dir=pathlib.Path(path).parent) as folder:
        copy = cage.private_copy(path, folder)
        with served.Served(copy, budget, "--ctx", 2048, "--sessions", 4) as running:
            start = time.monotonic()
            wrong = long_sessions(running, 4, prompt, answer)
            seconds = time.monotonic() - start
        outcome = running.outcome
        line("a 4 GB board: 1.5B Q8_0 in 2.0 GB, 4 sessions of 2,048 tokens, no kill, PSS <= budget",
             not wrong and not outcome.killed and outcome.peak_pss <= budget,
             f"{len(wrong)} wrong {wrong[:1]}, {seconds:.0f} s; {outcome}")
        cage.forget_pages(copy)
        port = serving.free_port()
        command = [toolbox.llama_cpp("llama-server"), "-m", copy, "--port", port, "-t", 2, "-np", 4,
                   "-c", 4 * 2048]
        with cage.Cage(budget) as made:
            peer = served.Peer(made, command, port)
            # One that reads its weights again for every token would take hours.
            patience = PEER_PATIENCE * seconds
            stopper = threading.Timer(patience, peer.caged.process.kill)
            stopper.start()
            wrong = long_sessions(peer, 4, prompt, answer) if peer.ready() else ["not ready"]
            by_us = "" if stopper.is_alive() else f"; we gave it up after {patience:.0f} s, alive"
            stopper.cancel()
            outcome = peer.stop()
        line("llama-server in the same cage, same load (no bound)", True,
             f"{len(wrong)} of 4 answers missing{by_us}; {outcome}")


def phones(_):
    """3B Q4_0: 4,096 tokens in 2.6 GB, 8,192 in 3.6 GB (the specification's phones)."""
    import cage
    import caged

    path = must(["bench/make-model", "llama3.2-3b", "Q4_0"]).stdout.strip()
    with tempfile.TemporaryDirectory(dir=pathlib.Path(path).parent) as folder:
        copy = cage.private_copy(path, folder)
        for name, budget, context in (("4 GB", 2_600_000_000, 4096), ("6 GB", 3_600_000_000, 8192)):
            load = caged.Load(prompt_tokens=context - 32, answer_tokens=32, context=context)
            outcome = caged.run(copy, load, budget)
            broken = caged.broken_promises(outcome, load, copy)
            line(f"a {name} phone: 3B Q4_0, {context} tokens in {budget / 1e9:.1f} GB", not broken,
                 "; ".join([*broken, str(outcome)]))


LINES = {"cages": cages, "streams": streams, "reloads": reloads, "faults": faults, "headline": headline,
         "activations": activations, "cold": cold, "server": server,
         "sessions": sessions, "long_answers": long_answers, "cycles": cycles, "aborts": aborts,
         "anonymous": anonymous, "idle": idle, "cap": cap, "trim": trim, "board": board,
         "phones": phones}


def presets(chosen):
    presets_of = {"faults": ["dev"], "cycles": ["dev"], "headline": ["release", "bench"],
                  "cold": ["release", "bench"]}
    return sorted({preset for name in chosen for preset in presets_of.get(name, ["release"])})
