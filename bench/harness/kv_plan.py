"""Bytes of keys and values of a model of 3 billion parameters, planned and measured.

Nobody needs its weights for that: the file is a header and a hole (synthetic.write_hollow).
"""

import json

from . import shell
from .quality import OFF, ROUND, TYPES

SHAPE, KIND = "llama3.2-3b", "Q4_0"
TITLE = "Llama-3.2-3B shape Q4_0"
CONTEXTS = (4096, 8192)
WINDOWS = (1024, 2048)
BUDGET = "6G"
# (type, window): a prompt of the shorter context is computed, and the ledger asked.
MEASURED = (("f16", OFF), ("q8", OFF), ("q8", 1024))


def path():
    return shell.output_of([shell.ROOT / "bench/make-model", "--hollow", SHAPE, KIND]).strip()


def flags_of(kind, window):
    flags = ["--kv-type", kind]
    return flags if window == OFF else [*flags, "--window", window]


def plan(program, model, kind, context, window):
    report = json.loads(shell.output_of([program, "plan", "-m", model, "--budget", BUDGET, "--ctx",
                                         context, *flags_of(kind, window), "--json"]))
    return {"kv_bytes": report["kv_bytes"], "min_budget_bytes": report["min_budget_bytes"]}


def measure(program, model, kind, window, threads):
    """The ledger's KV after a prompt that fills the context."""
    ids = json.dumps([100 + i % 1000 for i in range(CONTEXTS[0])])
    report = json.loads(shell.output_of(
        [program, "run", "-m", model, "--prompt-tokens", ids, "-n", 1, "--temp", 0, "--budget", BUDGET,
         "--ctx", CONTEXTS[0], "--threads", threads, *flags_of(kind, window), "--json"]))
    return {"kv_bytes": report["memory"]["parts"]["kv"],
            "rss_anon_bytes": report["memory"]["rss_anon_bytes"]}


def cells():
    """(measurement, type, context, window); a window's KV does not depend on the context."""
    found = [("plan", kind, context, OFF) for kind in TYPES for context in CONTEXTS]
    found += [("plan", kind, CONTEXTS[0], window) for kind in TYPES for window in WINDOWS]
    return found + [("measured", kind, CONTEXTS[0], window) for kind, window in MEASURED]


def run_missing(program, threads, store):
    for measurement, kind, context, window in cells():
        key = {"model": SHAPE, "measurement": measurement, "engine": kind,
               "setting": f"{context} {window}"}
        if store.find(**key):
            continue
        if measurement == "plan":
            values = plan(program, path(), kind, context, window)
        else:
            values = measure(program, path(), kind, window, threads)
        store.add(*key.values(), ROUND, values)
        shell.note(f"{SHAPE} {measurement} {kind} {context} {window}: "
                   f"{values['kv_bytes'] / 1e6:.1f} MB")
