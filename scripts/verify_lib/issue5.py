"""Issue 5: the budget is a promise. Plan it, keep it, survive pressure."""

import os
import pathlib
import sys
import tempfile

from .common import ROOT, TAEL, line, must

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


LINES = {"cages": cages}


def presets(_):
    return ["release"]
