"""Do both engines compute the same? A fast wrong answer is worth nothing.

Log-probabilities of the same forced ids tell: a right kernel differs by rounding. Real models also
give their greedy text, side by side; rounding parts those in time, so they are for the reader.
"""

import json
import random

from . import shell

FORCED, PROMPT = 64, 32
LIMIT = 0.1  # mean |delta logprob|
ANSWER_TOKENS = 48
QUESTIONS = ("The capital of France is", "Once upon a time, in a village by the sea,",
             "def fibonacci(n):\n")
# Ordinary prose, more than FORCED + PROMPT tokens in every vocabulary.
PROSE = (
    "The harbour master kept two books. In the first he wrote what the rules asked for: the name "
    "of each ship, its captain, its cargo and the hour it came. In the second, which nobody had "
    "asked for, he wrote what he saw. A cook who sang to the gulls. Three crates of lemons, one of "
    "them open. A boy on deck who counted the steps of the lighthouse and got a different number "
    "each time. When the old man died, the town kept the first book and sold the second for the "
    "price of its paper, and it is only because the buyer could read that we know anything about "
    "that winter at all.")


def common_prefix(ours, theirs):
    count = 0
    while count < min(len(ours), len(theirs)) and ours[count] == theirs[count]:
        count += 1
    return count


def joined(ids):
    return ",".join(str(number) for number in ids)


def text_of(rig, path, ids):
    return shell.output_of([rig.tael.program, "tokenize", "-m", path, "--decode", *ids])


def compare_text(rig, model, question):
    """Greedy ids of both engines for one prompt, and what follows where they part."""
    path = rig.tael.facts(model).path
    ours = rig.tael.answer(model, "-p", question, generate=ANSWER_TOKENS)["tokens"]
    out = rig.llama.probe(path, "ids", question, ANSWER_TOKENS)
    theirs = [int(word) for word in out.split()]
    same = common_prefix(ours, theirs)
    found = {"prompt": question, "tokens": len(ours), "same_tokens": same}
    if same < len(ours):
        found["ours_then"] = text_of(rig, path, ours[same:same + 8])
        found["theirs_then"] = text_of(rig, path, theirs[same:same + 8])
    return found


def ids_to_force(rig, model):
    """Prose where weights are real; elsewhere any ids do."""
    if not model.is_real:
        numbers = random.Random(7)
        return [numbers.randrange(1000, 30000) for _ in range(PROMPT + FORCED)]
    out = shell.output_of([rig.tael.program, "tokenize", "-m", rig.tael.facts(model).path, "-p",
                           PROSE, "--json"])
    return json.loads(out)["tokens"][:PROMPT + FORCED]


def compare_logprobs(rig, model):
    """Mean and largest |delta logprob| over forced ids."""
    ids = ids_to_force(rig, model)
    prompt, forced = ids[:PROMPT], ids[PROMPT:]
    answer = rig.tael.answer(model, "--prompt-tokens", json.dumps(prompt), "--force-tokens",
                             json.dumps(forced), "--logprobs", 0)
    ours = [entry["logprob"] for entry in answer["logprobs"]]
    out = rig.llama.probe(rig.tael.facts(model).path, "force", joined(prompt), joined(forced))
    theirs = [float(line) for line in out.split()]
    if len(ours) != FORCED or len(theirs) != FORCED:
        raise shell.Failed(f"{len(ours)} and {len(theirs)} log-probabilities, not {FORCED} each")
    deltas = [abs(a - b) for a, b in zip(ours, theirs, strict=True)]
    return {"mean_delta": sum(deltas) / FORCED, "max_delta": max(deltas)}


def check(rig, model, results):
    """Compares once, unless the results have it."""
    if results.find(model=model.name, measurement="outputs"):
        return
    shell.note(f"{model.title}: outputs")
    values = compare_logprobs(rig, model)
    if model.is_real:
        values["texts"] = [compare_text(rig, model, question) for question in QUESTIONS]
    shell.note(f"  mean |delta logprob| {values['mean_delta']:.4f}")
    results.add(model.name, "outputs", "tael", "", 1, values)


def all_right(summary):
    """Whether no output that was compared is wrong."""
    return all(figures["outputs"]["mean_delta"] <= LIMIT for figures in summary.values()
               if "outputs" in figures)
