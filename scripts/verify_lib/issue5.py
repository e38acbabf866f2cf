"""Issue 5: the budget is a promise. Plan it, keep it, survive pressure."""

import json
import os
import pathlib
import sys
import tempfile

from .common import ROOT, TAEL, gtest_line, line, must

sys.path.insert(0, str(ROOT / "tests" / "oom"))
os.environ["TAEL_BINARY"] = str(TAEL)


def cages(paths):
    """Load, 1k prefill and 256 decode in a cgroup as large as the budget, at three budgets."""
    import cage
    import caged

    # Just the context that is needed: all of the KV is touched in the end.
    load = caged.Load(prompt_tokens=1000, answer_tokens=256, context=1264)
    models = {"SmolLM2": paths["smollm2"], "Gemma-3-270M": paths["gemma3"]}
    for shape in ("0.5b", "1.5b"):
        made = must(["bench/make-model", f"qwen2.5-{shape}", "Q4_0"]).stdout.strip()
        models[f"Qwen2.5-{shape} shape Q4_0"] = made
    for model, path in models.items():
        with tempfile.TemporaryDirectory(dir=pathlib.Path(path).parent) as folder:
            copy = cage.private_copy(path, folder)
            for name, budget in caged.budgets(copy, load).items():
                what = f"{model}, {name} budget: no kill, PSS <= budget in every sample"
                outcome = caged.run(copy, load, budget)
                broken = caged.broken_promises(outcome, load, copy)
                line(what, not broken, "; ".join([*broken, str(outcome)]))


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


LINES = {"cages": cages, "reloads": reloads, "faults": faults}


def presets(chosen):
    return ["release"] + (["dev"] if "faults" in chosen else [])
