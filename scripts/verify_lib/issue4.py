"""Issue 4: the fastest engine on a small CPU, without a second copy of the weights.

The speeds are bench/compare's; the bounds are its table of targets (bench/harness/targets.py).
"""

import datetime
import json
import subprocess
import sys

from . import issue3
from .common import ROOT, line, must

# A new file for each call: everything is measured anew.
RESULTS = ROOT / f"build/bench/verify-4-{datetime.datetime.now():%Y%m%d-%H%M%S}.jsonl"


def compare(*measurements):
    """A line for each target of these measurements; progress goes to standard error."""
    command = ["bench/compare", "--json", "--results", str(RESULTS)]
    for name in measurements:
        command += ["--only", name]
    done = subprocess.run(command, text=True, cwd=ROOT, check=False, stdout=subprocess.PIPE)
    if not done.stdout:
        sys.exit(f"verify: {' '.join(command)} failed")
    for verdict in json.loads(done.stdout)["verdicts"]:
        line(verdict["what"], verdict["holds"], verdict["figure"])


def decode(_):
    # At both contexts: one target is how much of the speed is left at the longer.
    compare("decode64", "decode2048")


def prefill(_):
    compare("prefill512", "prefill2048")


def start(_):
    compare("start")


def memory(_):
    compare("memory")


def sequences(_):
    compare("batched8")


def paging(_):
    compare("paging")


def program_lines(model, command):
    """A line for each thing that a program of bench/ says must hold, of its --json."""
    done = subprocess.run([str(word) for word in command], text=True, cwd=ROOT, check=False,
                          stdout=subprocess.PIPE)
    if not done.stdout:
        sys.exit(f"verify: {' '.join(command)} failed")
    for found in json.loads(done.stdout):
        line(f"{model} {found['what']}, {found['kind']}: ratio >= {found['least']:.2f}",
             found["holds"], f"{found['ratio']:.2f}")


def threads(paths):
    half = must(["bench/make-model", "qwen2.5-0.5b", "Q4_0"]).stdout.strip()
    for model, path in (("SmolLM2", paths["smollm2"]), ("Qwen2.5-0.5B shape Q4_0", half)):
        program_lines(model, ["bench/threads", "-m", path, "--json"])


def lookup(paths):
    for model in ("smollm2", "gemma3"):
        program_lines(model, ["bench/lookup", "-m", paths[model], "--json"])


def outputs(_):
    compare("outputs")


LINES = {"outputs": outputs, "decode": decode, "prefill": prefill, "start": start,
         "memory": memory, "sequences": sequences, "paging": paging,
         "threads": threads, "lookup": lookup,
         "goldens": issue3.goldens, "tiny": issue3.tiny}


def presets(chosen):
    return ["release"] + (["dev"] if {"goldens", "tiny"} & set(chosen) else [])
