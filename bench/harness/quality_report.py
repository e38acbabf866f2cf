"""docs/kv-quality.md and its chart, from the records of bench/quality."""

from . import kv_plan, quality, quality_chart, shell
from .quality import (
    BAD,
    BAD_LEAST,
    BASE,
    FULL,
    OFF,
    POLICIES,
    TEXTS,
    TYPES,
    USUAL,
    WINDOWS,
)
from .report import markdown_table, title_of

METHOD = f"""\
Each figure is that of `tael eval`: a text of {quality.CONTEXT:,} tokens goes through the policy and, in step, through an
engine that keeps everything in f16; KL is the mean over the scored tokens of the distance of their distributions (nats),
in brackets how often the likeliest token is the same. Scored is from where half as much again as the window has been
read. Weights are quantised and activations have 8 bits, as in production. Perplexity is not shown: it hides damage."""

COMMANDS = """\
```sh
bench/quality --results build/quality.jsonl --write     # this page and its chart; goes on where it was cut
```"""

NEEDLE_NOTE = f"""\
Five digits hidden in prose, at 10, 30, 50, 70 and 90 % of prompts of {quality.NEEDLE_PROMPTS[0]:,} to {quality.NEEDLE_PROMPTS[-1]:,} tokens, and
asked for at their end. Every policy keeps {quality.NEEDLE_SHARE} % of a prompt. A window forgets what lies between its first and its
last tokens: what it finds was still inside."""

PLAN_NOTE = f"""\
{kv_plan.TITLE}: 28 layers, 8 KV heads of 128. Planned by `tael plan` for one session, prompts in chunks; measured is
the ledger's KV after a prompt of {kv_plan.CONTEXTS[0]:,} tokens. With a window the text may be of any length. The smallest
budget is all of it: weights, KV, activations, program."""


def megabytes(value):
    return f"{value / 1e6:.1f} MB"


def damage(values):
    return f"{values['kl_mean']:.4f} ({values['top1_agreement']:.1%})" if values else "-"


def instrument_section(table):
    rows = []
    for text in TEXTS:
        for name in (BAD, "one-sink", BASE):
            values = table.find(quality.Cell(text, name, "f16", USUAL))
            if values:
                rows.append([title_of(text.model), text.title, quality.policy_named(name).title,
                             f"{values['ppl']:.1f}, not {values['full_ppl']:.1f}", damage(values)])
    return ["## Does it notice damage?", "",
            (f"A window of {USUAL} without its first tokens is known to be bad: KL above {BAD_LEAST} where the "
            "model parks its attention on them. Keys of 4 bits without a transform, which are no type here, are "
            "the other example: `tests/golden/kv_types_test.cpp` puts them in the caches of both models, KL 0.21 "
            "and 0.18."),
            "", markdown_table(("model", "text", "policy", "perplexity", "KL (same top token)"), rows, words=3),
            ""]


def verdict_section(table):
    found = quality.standings(table)
    if not found:
        return []
    rows = [[standing.policy.title, f"{standing.kl:.3f}", f"{standing.bytes:.3f}",
             f"{standing.worst:.2f}", str(standing.cells)] for standing in found]
    best = quality.best(table)
    used = ("that is what `--window auto` uses where the budget holds less than the model's context"
            if best.policy.name == quality.AUTO else
            f"`--window auto` uses {quality.policy_named(quality.AUTO).title}")
    return ["## Which policy is best?", "",
            (f"Beside `{BASE}` ({quality.policy_named(BASE).title}) at the same window, over all models, types and "
            "windows: geometric means of the ratios of KL and of bytes."), "",
            markdown_table(("policy", "KL", "bytes", "worst KL", "cells"), rows), "",
            (f"**At equal bytes the best is {best.policy.title}** "
            f"(`{' '.join(map(str, best.policy.flags))}`): {used}."), ""]


def matrix_section(table, model):
    rows = []
    for kind in TYPES:
        for policy in POLICIES:
            cells = [table.mean(model, policy.name, kind, window) for window in WINDOWS]
            if policy.offered and any(cells):
                rows.append([kind, policy.title,
                             *(damage(values) for values in cells),
                             *(megabytes(values["kv_bytes_peak"]) if values else "-" for values in cells)])
    if not rows:
        return []
    full = next(table.mean(model, FULL, kind, OFF) for kind in TYPES[1:])
    lines = [f"## {title_of(model)}", ""]
    if full:
        lines += [f"All of it in f16: {megabytes(full['full_kv_bytes_peak'])}.", ""]
    if any(text.one_group for text in TEXTS if text.model == model):
        lines += ["Its layers without a window of their own share a group: layered windows are uniform ones.", ""]
    headings = ("type", "policy", *(f"KL, {window} tokens" for window in WINDOWS),
                *(f"KV, {window}" for window in WINDOWS))
    return [*lines, markdown_table(headings, rows, words=2), ""]


def types_section(table):
    rows = []
    for model in quality.MODELS:
        for kind in (quality.NOISE, *TYPES[1:]):
            values = table.mean(model, FULL, kind, OFF)
            if values:
                share = values["kv_bytes_peak"] / values["full_kv_bytes_peak"]
                rows.append([title_of(model), kind, f"{values['kl_mean']:.5f}", f"{values['kl_p99']:.4f}",
                             f"{values['top1_agreement']:.1%}", f"{share:.3f}"])
    if not rows:
        return []
    return ["## Types of keys and values, nothing dropped", "",
            (f"`{quality.NOISE}` is the noise floor: it differs from f16 by less than a thousandth of a value, and "
            "activations of 8 bits make this much of it. What the types cost without that noise is in "
            "`docs/adr/0009`."), "",
            markdown_table(("model", "type", "mean KL", "99th percentile", "same top token", "bytes of f16's"),
                           rows, words=2), ""]


def needle_lines(table):
    """The table of pass keys; nothing where none were looked for."""
    rows, depths, prompts = [], [], set()
    for text in quality.NEEDLES:
        for cell in quality.needle_cells(text):
            values = table.find(cell)
            if values:
                depths = sorted(values["needle"], key=int)
                prompts.add(values["prompts"])
                policy = quality.policy_named(cell.policy)
                rows.append([title_of(text.model), policy.title if policy else "everything kept",
                             *(f"{values['needle'][depth]:.0%}" for depth in depths), f"{values['rate']:.0%}"])
    if not rows:
        return []
    count = " or ".join(map(str, sorted(prompts)))
    return [markdown_table(("model", f"found in {count} prompts", *(f"{depth} %" for depth in depths), "mean"), rows,
                           words=2)]


def needle_section(table):
    lines = needle_lines(table)
    return ["## Finding a needle", "", NEEDLE_NOTE, "", *lines, ""] if lines else []


def plan_rows(table):
    def find(measurement, kind, context, window):
        return table.get(kv_plan.SHAPE, measurement, kind, f"{context} {window}")

    for measurement, kind, context, window in kv_plan.cells():
        planned = find(measurement, kind, context, window)
        if measurement != "plan" or planned is None:
            continue
        measured = find("measured", kind, context, window)
        what = f"{context:,} tokens, all kept" if window == OFF else f"a window of {window:,}"
        yield [kind, what, megabytes(planned["kv_bytes"]),
               megabytes(measured["kv_bytes"]) if measured else "-",
               f"{planned['min_budget_bytes'] / 1e9:.2f} GB"]


def plan_section(table):
    rows = list(plan_rows(table))
    if not rows:
        return []
    return ["## A model of 3 billion parameters", "", PLAN_NOTE, "",
            markdown_table(("type", "context", "KV planned", "KV measured", "smallest budget"), rows, words=2), ""]


def conditions(header, records):
    commits = dict.fromkeys(record["values"].get("commit", header["commit"]) for record in records)
    return (f"Measured on {header['date']} at commit {', '.join(f'`{commit}`' for commit in commits)}, "
            f"{header['cpu']}. Nothing here is a matter of speed.")


def page(header, records, chart_name):
    table = quality.Table(records)
    lines = ["# Quality of little KV memory", "", "<!-- written by bench/quality; do not edit -->", "",
             conditions(header, records), "", METHOD, "", COMMANDS, "",
             f"![Bytes of keys and values against damage]({chart_name})", "",
             *verdict_section(table)]
    for model in quality.MODELS:
        lines += matrix_section(table, model)
    lines += [*types_section(table), *needle_section(table), *plan_section(table),
              *instrument_section(table)]
    return "\n".join(lines).rstrip() + "\n"


def charted(table):
    """Policies that have a point: at most as many as there are strokes."""
    return [policy for policy in POLICIES if policy.offered and any(
        table.mean(model, policy.name, kind, window)
        for model in quality.MODELS for kind in TYPES for window in WINDOWS)][:len(quality_chart.STROKES)]


def svg(records):
    table = quality.Table(records)
    policies = charted(table)
    panels = {}
    for model in quality.MODELS:
        series = []
        for colour, kind in enumerate(TYPES):
            for stroke, policy in enumerate(policies):
                found = [table.mean(model, policy.name, kind, window) for window in WINDOWS]
                points = [(values["kv_bytes_peak"] / 1e6, values["kl_mean"]) for values in found if values]
                if points:
                    series.append((colour, stroke, points))
        if series:
            panels[title_of(model)] = series
    return quality_chart.draw(
        f"What windows of {', '.join(map(str, WINDOWS))} tokens cost, by type and policy",
        "MB of keys and values", "mean KL to all of the KV in f16", TYPES,
        [policy.name for policy in policies], panels)


def write(header, records, folder):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kv-quality.svg").write_text(svg(records), encoding="utf-8")
    (folder / "kv-quality.md").write_text(page(header, records, "kv-quality.svg"), encoding="utf-8")
    shell.note(f"wrote {folder}/kv-quality.md and kv-quality.svg")
