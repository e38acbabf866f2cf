"""tael in cages: the budgets that its plan names, and one run at each of them."""

import dataclasses
import json
import os
import pathlib
import shlex
import subprocess

import cage

BINARY = os.environ.get("TAEL_BINARY", "tael")
EMULATOR = shlex.split(os.environ.get("TAEL_EMULATOR", ""))
CONTEXT = 2048
UNTOUCHED_CODE = 1 << 20


def command(*arguments):
    return [*EMULATOR, BINARY, *(str(argument) for argument in arguments)]


def own_memory():
    """Why a cage would measure somebody else's memory too; none if it would not."""
    if EMULATOR:
        return "an emulator has memory of its own"
    if b"__asan_init" in pathlib.Path(BINARY).read_bytes():
        return "sanitizers have memory of their own"
    return None


@dataclasses.dataclass(frozen=True)
class Load:
    """What is asked of a model: ids that every vocabulary has."""

    prompt_tokens: int
    answer_tokens: int
    context: int = CONTEXT

    def arguments(self, model):
        ids = [100 + i % 200 for i in range(self.prompt_tokens)]
        context = ["--ctx", self.context] if self.context else []
        return ["run", "-m", model, "--prompt-tokens", json.dumps(ids), "-n", self.answer_tokens,
                *context, "--ignore-eos", "--temp", 0, "--json"]


def plan(model, budget, context=0, *more):
    """What `tael plan` says of a budget, whether it fits or not."""
    flags = [*more, *(["--ctx", context] if context else [])]
    done = subprocess.run(command("plan", "-m", model, *flags, "--budget", budget, "--json"),
                          capture_output=True, check=False)
    return json.loads(done.stdout)


def budgets(model, load):
    """The smallest budgets for this load, as the plan names them."""
    found = plan(model, 1, load.context)
    smallest = found["min_budget_bytes"]
    return {"smallest": smallest, "twice": 2 * smallest, "streamed": found["min_streamed_bytes"]}


def run(model, load, budget):
    """One answer in a cage as large as the budget, from a file that is in no page cache."""
    cage.forget_pages(model)
    with cage.Cage(budget) as made:
        return made.run(command(*load.arguments(model), "--budget", budget))


def ledger_gap(memory):
    """Bytes that the ledger says are used, less those that are resident, at the end of a run."""
    # Page tables are charged to a cgroup and are resident nowhere.
    used = memory["used_bytes"] - memory["parts"]["kernel"]
    return used - memory["rss_anon_bytes"] - memory["rss_file_bytes"]


def broken_promises(outcome, load, model):
    """What did not hold in a run: a list of sentences."""
    if outcome.killed:
        return ["the kernel killed it"]
    if outcome.code != 0:
        return [f"exit status {outcome.code}: {outcome.err.decode()[-300:]}"]
    result = json.loads(outcome.out)
    memory = result["memory"]
    broken = []
    if result["completion_tokens"] != load.answer_tokens:
        broken.append(f"{result['completion_tokens']} tokens of {load.answer_tokens}")
    # Of PSS, the promise; but on a board where nobody else has our libraries mapped, RSS is PSS.
    for name, peak in (("PSS", outcome.peak_pss), ("RSS", outcome.peak_rss)):
        if peak > outcome.limit:
            broken.append(f"{name} {peak - outcome.limit} bytes over the budget")
    # Code counts whole, though a short run touches a part of it; and of streamed weights the kernel
    # may have dropped what the ledger allows.
    gap, allowed = ledger_gap(memory), max(0.03 * memory["used_bytes"], 1 << 20)
    streams = memory["parts"]["weights"] < os.path.getsize(model)
    if gap < -allowed or (gap > allowed + UNTOUCHED_CODE and not streams):
        broken.append(f"the ledger says {gap} bytes more than are resident")
    # Before anything was loaded, and then.
    for tag, planned in plan(model, outcome.limit, load.context)["parts"].items():
        reserved = memory["parts_reserved"][tag]
        if abs(planned - reserved) > max(0.03 * reserved, 1 << 20):
            broken.append(f"{tag}: planned {planned} bytes, reserved {reserved}")
    if memory["reserved_bytes"] > memory["budget_bytes"]:
        broken.append("more reserved than the budget")
    if b"the system has no room for the weights" in outcome.err:
        broken.append("weights that the plan keeps were taken away")
    return broken
