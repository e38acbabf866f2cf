"""Issue 4: the fastest engine on a small CPU, without a second copy of the weights.

The speeds are bench/compare's; the bounds are its table of targets (bench/harness/targets.py).
"""

import datetime
import json
import subprocess
import sys

from . import issue3
from .common import ROOT, line

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


def outputs(_):
    compare("outputs")


LINES = {"outputs": outputs, "decode": decode, "prefill": prefill, "start": start,
         "memory": memory, "sequences": sequences, "paging": paging,
         "goldens": issue3.goldens, "tiny": issue3.tiny}


def presets(chosen):
    return ["release"] + (["dev"] if {"goldens", "tiny"} & set(chosen) else [])
