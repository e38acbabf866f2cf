"""Issue 3: right outputs, honest memory and errors, and a speed no worse than the peer's."""

import json
import os
import re

from .common import DATA, ROOT, TAEL, gtest, gtest_line, line, must, run


def tiny(_):
    gtest_line("golden/tiny, 14 architectures, 3 ways, 4 cuts", "tests/tael_golden_tests",
               "*TinyArchitecture*")
    gtest_line("golden/tiny, 15 quantised files", "tests/tael_golden_tests", "*TinyQuantised*")


LIMITS = {("SmolLM2", "Fast"): (0.038, 0.955), ("Gemma3", "Fast"): (0.033, 0.97),
          ("SmolLM2", "Reference"): (0.003, 0), ("Gemma3", "Reference"): (0.003, 0)}


def goldens(_):
    os.environ["TAEL_FULL_GOLDENS"] = "1"
    for (model, path), (limit, top) in LIMITS.items():
        _, status, _, out = gtest("tests/tael_golden_tests", f"*{model}{path}*")
        found = re.search(r"mean \|delta logprob\| ([\d.]+), top-1 agreement ([\d.]+) over (\d+)",
                          out)
        mean, agreement, steps = float(found[1]), float(found[2]), int(found[3])
        line(f"{model} {path.lower()} path: mean |delta logprob| <= {limit}, top-1 >= {top}",
             status == 0 and mean <= limit and agreement >= top,
             f"{mean:.4f}, top-1 {agreement:.4f} over {steps} steps")


# Perplexity of the same weights in f32 (transformers), by model and context.
F32_PERPLEXITY = {("smollm2", 512): 44.170, ("smollm2", 2048): 40.260,
                  ("gemma3", 512): 48.579, ("gemma3", 2048): 41.448}


def perplexity(paths):
    for (model, ctx), want in F32_PERPLEXITY.items():
        for compute, limit in (("fast", 0.006), ("reference", 0.003)):
            done = must([TAEL, "eval", "-m", paths[model], "-f", DATA / "golden/moby-150k.txt",
                         "--ctx", ctx, "--tokens", 8192, "--compute", compute, "--json"])
            got = json.loads(done.stdout)["ppl"]
            off = got / want - 1
            line(f"perplexity {model} ctx {ctx} {compute}, within {limit:.1%} of f32 {want}",
                 abs(off) <= limit, f"{got:.3f} ({off:+.3%})")


def tokens(_):
    gtest_line("golden/tok-*, every line", "src/tael_tokenizer_tests", "*Golden*")
    gtest_line("vocabularies of the peer's own tests", "src/tael_tokenizer_tests", "*Vocab*")


def memory(paths):
    ids = json.dumps([1 + i % 900 for i in range(1000)])
    done = must([TAEL, "run", "-m", paths["smollm2"], "--prompt-tokens", ids, "-n", 32, "--json",
                 "--ignore-eos", "--temp", 0])
    answer = json.loads(done.stdout)
    anon = answer["memory"]["rss_anon_bytes"]
    line("1,000-token prompt: anonymous memory <= 60 MB", anon <= 60e6, f"{anon / 1e6:.1f} MB")
    small = run([TAEL, "run", "-m", paths["smollm2"], "-p", "hi", "--budget", "8M"])
    parts = all(p in small.stderr for p in ("weights", "kv", "activations", "tokenizer", "runtime"))
    line("--budget 8M exits 3 and names every part", small.returncode == 3 and parts,
         f"exit {small.returncode}: {small.stderr.strip()}")
    gtest_line("an unused KV block is not touched", "src/tael_kv_tests", "*Touch*:*Commit*")
    gtest_line("no allocation on the decode path", "tests/engine/tael_allocation_tests", "*")


def speed(_):
    done = must(["bench/compare", "--models", "smollm2", "--only", "prefill512", "--only",
                 "decode64", "--json"])
    figures = json.loads(done.stdout)["figures"]["smollm2"]
    for part, name in (("prefill", "prefill512"), ("decode", "decode64")):
        ratio = figures[name]["ratio"]
        line(f"SmolLM2 {part} at least as fast as the peer", ratio >= 1, f"{ratio:.2f}x")


def faults(_):
    for preset in ("dev", "asan"):
        gtest_line(f"F1-F3: hostile files ({preset})", "src/tael_gguf_tests", "*", preset)
        gtest_line(f"F3: four diagnoses ({preset})", "src/tael_model_tests", "Model*", preset)
        gtest_line(f"F1: a file cut short in use ({preset})", "src/tael_engine_tests",
                   "*CutShort*", preset)
        env = dict(os.environ, TAEL_BINARY=str(ROOT / "build" / preset / "tael"))
        done = run(["python3", "-B", "-m", "unittest", "discover", "-s", "tests/cli"], env=env)
        ran = re.search(r"Ran (\d+) tests", done.stderr)
        line(f"bad input, exit codes, C3, G1-G3 at the command line ({preset})",
             done.returncode == 0, f"{ran[1] if ran else 0} tests, {done.stderr.splitlines()[-1]}")


LINES = {"tiny": tiny, "goldens": goldens, "perplexity": perplexity, "tokens": tokens,
         "memory": memory, "speed": speed, "faults": faults}


def presets(chosen):
    return ["dev", "release"] + (["asan"] if "faults" in chosen else [])
