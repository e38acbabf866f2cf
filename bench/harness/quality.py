"""What little memory for keys and values costs in quality: the matrix, its runs, and what follows.

A cell is one text through `tael eval` with a policy, a type and a window; its figures are against
all of the KV in f16 on the same ids. Records have the form of results.py: the text is the
measurement, the policy the engine, "TYPE WINDOW" the setting.
"""

import dataclasses
import json
import math

from . import shell

CONTEXT = 2304
NEEDLE_PROMPTS = (1050, 1183, 1316, 1450)  # tokens
NEEDLE_ANSWER = 16  # tokens that `tael eval` leaves for it
NEEDLE_SHARE = 40   # per cent of a prompt that stay
TYPES = ("f16", "q8", "k8v4")
DEFAULT = "q8"
WINDOWS = (256, 512, 1024)
USUAL = 512
OFF = 0  # no window
# Keys and values in f32 instead of f16: with activations of 8 bits, what any noise does.
NOISE = "f32"
BAD = "no-sinks"
BAD_LEAST = 0.3
ROUND = 1


@dataclasses.dataclass(frozen=True)
class Policy:
    """What becomes of tokens that are too many: flags of `tael`, beside --window."""
    name: str
    title: str
    flags: tuple
    layered: bool = False
    offered: bool = True  # compared with the others; else there to show that damage is seen


POLICIES = (
    Policy("uniform", "4 sinks, all layers alike", ("--window-shape", "uniform", "--evict", "drop")),
    Policy("layered", "4 sinks, deep layers keep more",
           ("--window-shape", "layered", "--evict", "drop"), layered=True),
    Policy("heavy", "old tokens by attention, all layers alike",
           ("--window-shape", "uniform", "--evict", "heavy")),
    Policy("heavy-layered", "old tokens by attention, deep layers keep more",
           ("--window-shape", "layered", "--evict", "heavy"), layered=True),
    Policy("merge", "old tokens by attention, means of the others",
           ("--window-shape", "uniform", "--evict", "merge")),
    Policy(BAD, "no sinks", ("--window-shape", "uniform", "--sinks", 0), offered=False),
    Policy("one-sink", "1 sink, all layers alike", ("--window-shape", "uniform", "--sinks", 1),
           offered=False),
)
BASE = "uniform"  # that the others are compared with
AUTO = "heavy-layered"  # that `--window auto` uses, where it loses anything
FULL = "full"     # no policy: everything is kept


def policy_named(name):
    return next((policy for policy in (*POLICIES, COMPRESS) if policy.name == name), None)


@dataclasses.dataclass(frozen=True)
class Text:
    name: str
    title: str
    model: str
    arguments: tuple
    # The model's layers without a window of their own are so few that they share a group: layered
    # windows are uniform ones.
    one_group: bool = False


TEXTS = (
    Text("moby", "Moby-Dick", "smollm2", ("--ids", shell.ROOT / "tests/data/kv/moby.json")),
    Text("wt2", "WikiText-2", "smollm2", ("--ids", shell.ROOT / "tests/data/kv/wt2.json")),
    Text("book", "Moby-Dick", "gemma3",
         ("-f", shell.ROOT / "tests/data/golden/moby-150k.txt", "--tokens", CONTEXT), one_group=True),
)
MODELS = ("smollm2", "gemma3")
NEEDLES = tuple(Text("needle", "pass keys in Moby-Dick", model,
                     ("-f", shell.ROOT / "tests/data/golden/moby-150k.txt")) for model in MODELS)
# Not a window: all of a prompt is read, and a part of it stays.
COMPRESS = Policy("compress", "compressed once it has been read", ("--compress-prompt", f"{NEEDLE_SHARE}%"))
NEEDLE_POLICIES = (COMPRESS, *(policy for policy in POLICIES if policy.offered and not policy.layered))


@dataclasses.dataclass(frozen=True)
class Cell:
    text: Text
    policy: str  # a name, or FULL
    kind: str    # of keys and values
    window: int

    @property
    def setting(self):
        return f"{self.kind} {self.window}"


def instrument_cells(texts):
    """Damage that has to be seen, first: without it no figure below means anything."""
    return [Cell(text, name, "f16", USUAL) for text in texts for name in (BAD, "one-sink")]


def matrix_cells(texts, windows=WINDOWS, types=TYPES, full=False):
    """The default type in every window; the others in the usual one, or in all of them."""
    alone = [NOISE, *(kind for kind in types if kind != "f16")]
    cells = [Cell(text, FULL, kind, OFF) for text in texts for kind in alone]
    return cells + [Cell(text, policy.name, kind, window)
                    for text in texts for policy in POLICIES
                    if policy.offered and not (policy.layered and text.one_group)
                    for kind in types for window in windows
                    if full or kind == DEFAULT or window == USUAL]


def score_from(window):
    """Tokens count from where half as much again as the window has been seen."""
    return (window or USUAL) * 3 // 2


def kept_flags(cell):
    """How keys and values are stored, and which stay."""
    window = [] if cell.policy == FULL else ["--window", cell.window, *policy_named(cell.policy).flags]
    return ["--kv-type", cell.kind, *window]


def arguments_of(cell):
    """Of `tael eval`, behind the model."""
    return [*cell.text.arguments, "--ctx", CONTEXT, "--score-from", score_from(cell.window),
            *kept_flags(cell)]


KEPT = ("kl_mean", "kl_p99", "top1_agreement", "ppl", "full_ppl", "kv_bytes_peak",
        "full_kv_bytes_peak", "scored_tokens", "seconds")


class Evaluator:
    """Runs `tael eval`."""

    def __init__(self, program, threads, commit, paths):
        self.program, self.threads, self.commit, self.paths = program, threads, commit, paths

    def _json(self, model, *arguments):
        return json.loads(shell.output_of(
            [self.program, "eval", "-m", self.paths[model], *arguments,
             "--threads", self.threads, "--json"]))

    def figures(self, cell):
        report = self._json(cell.text.model, *arguments_of(cell))
        return {**{key: report[key] for key in KEPT}, "commit": self.commit}

    def needles(self, cell, prompts):
        """`prompts` of each length at each depth, each with a key of its own; the policy keeps as much of all."""
        rates = {}
        for seed, length in enumerate(NEEDLE_PROMPTS):
            context = length + NEEDLE_ANSWER
            report = self._json(cell.text.model, *cell.text.arguments, "--ctx", context, "--tokens", context,
                                "--seed", seed, "--needle", prompts, "--kv-type", cell.kind,
                                *needle_flags(cell.policy, length))
            for depth, rate in report["needle"].items():
                rates[depth] = rates.get(depth, 0) + rate / len(NEEDLE_PROMPTS)
        return {"needle": rates, "rate": sum(rates.values()) / len(rates),
                "prompts": prompts * len(rates) * len(NEEDLE_PROMPTS), "commit": self.commit}


def needle_flags(policy, length):
    """The same share of a prompt for every policy but FULL."""
    if policy in (FULL, COMPRESS.name):
        return () if policy == FULL else COMPRESS.flags
    return ("--window", length * NEEDLE_SHARE // 100, *policy_named(policy).flags)


def needle_cells(text):
    return [Cell(text, FULL, DEFAULT, OFF),
            *(Cell(text, policy.name, DEFAULT, OFF) for policy in NEEDLE_POLICIES)]


def run_missing(cells, store, measure):
    """Runs the cells that the store does not have."""
    for number, cell in enumerate(cells, 1):
        key = {"model": cell.text.model, "measurement": cell.text.name, "engine": cell.policy,
               "setting": cell.setting}
        if store.find(**key):
            continue
        values = measure(cell)
        store.add(*key.values(), ROUND, values)
        shell.note(f"{number}/{len(cells)} {cell.text.model} {cell.text.name} {cell.policy} "
                   f"{cell.setting}: " + ", ".join(f"{name} {value:.4g}" for name, value in values.items()
                                                   if name in ("kl_mean", "top1_agreement", "rate")))


# ---- what follows from the records ----

class Table:
    """The records by cell."""

    def __init__(self, records):
        self._values = {(r["model"], r["measurement"], r["engine"], r["setting"]): r["values"]
                        for r in records}

    def get(self, model, measurement, engine, setting):
        return self._values.get((model, measurement, engine, setting))

    def find(self, cell):
        return self.get(cell.text.model, cell.text.name, cell.policy, cell.setting)

    def mean(self, model, policy, kind, window):
        """Over the model's texts; None where one is missing."""
        found = [self.find(Cell(text, policy, kind, window)) for text in TEXTS
                 if text.model == model]
        if not found or None in found:
            return None
        keys = ("kl_mean", "kl_p99", "top1_agreement", "kv_bytes_peak", "full_kv_bytes_peak")
        return {key: sum(values[key] for values in found) / len(found) for key in keys}


def blind_spots(table, texts):
    """Texts on which the known damage does not show: (text, KL)."""
    found = [(text, table.find(Cell(text, BAD, "f16", USUAL))) for text in texts]
    return [(text, values["kl_mean"] if values else None) for text, values in found
            if not values or values["kl_mean"] <= BAD_LEAST]


@dataclasses.dataclass(frozen=True)
class Standing:
    """A policy beside BASE, over all cells that both have."""
    policy: Policy
    kl: float     # geometric mean of the ratios of mean KL; below 1 is better
    bytes: float  # of the ratios of KV bytes
    cells: int
    worst: float  # largest ratio of KL


def standings(table, models=MODELS):
    """The offered policies, best first."""
    found = []
    for policy in POLICIES:
        ratios, sizes = [], []
        for model in models if policy.offered else ():
            for kind in TYPES:
                for window in WINDOWS:
                    own = table.mean(model, policy.name, kind, window)
                    base = table.mean(model, BASE, kind, window)
                    if own and base:
                        ratios.append(own["kl_mean"] / base["kl_mean"])
                        sizes.append(own["kv_bytes_peak"] / base["kv_bytes_peak"])
        if ratios:
            found.append(Standing(policy, geometric_mean(ratios), geometric_mean(sizes),
                                  len(ratios), max(ratios)))
    return sorted(found, key=lambda standing: standing.kl)


def geometric_mean(values):
    return math.exp(sum(math.log(value) for value in values) / len(values))


MOST_BYTES = 1.02  # of BASE's: no more counts as equal


def best(table):
    """The best offered policy that takes no more bytes than BASE."""
    return next((standing for standing in standings(table) if standing.bytes <= MOST_BYTES), None)
