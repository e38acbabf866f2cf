"""Results for people: tables for a terminal, a page for docs/, and its chart."""

from . import chart, shell, targets
from .engines import IK, LLAMA, TAEL
from .measurements import MEASUREMENTS
from .models import MODELS

ENGINES = (TAEL, LLAMA, IK)
CHARTED = ("decode64", "decode2048", "prefill512", "prefill2048")


def title_of(model):
    return MODELS[model].title if model in MODELS else model


def plain(value, unit):
    if value is None:
        return "-"
    if unit == "bytes":
        return f"{value / 1e6:.1f} MB"
    if unit == "share":
        return f"{value:.2%}"
    if unit == "s":
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f}" if value < 1000 else f"{value:,.0f}"


def cells(name, figures):
    """One row: our figure, the peers', the ratios, and the share of what the machine can do."""
    unit = MEASUREMENTS[name].unit
    values = [plain(figures["engines"].get(engine, {}).get("value"), unit) for engine in ENGINES]
    ratios = [f"{figures[key]:.2f}x" if key in figures else "-"
              for key in ("ratio", "ratio_best")]
    return [*values, *ratios, share_of(name, figures)]


def share_of(name, figures):
    if "share" in figures and name.startswith("decode"):
        return f"{figures['share']:.0%} of {figures['read_gbps']:.1f} GB/s"
    if "share" in figures:
        return f"{figures['share']:.0%} of {figures['peak_gmacs']:.0f} GMAC/s"
    if "upper" in figures:
        return f"95 % interval {figures['lower']:.2%} to {figures['upper']:.2%}"
    if "without_kv" in figures:
        return f"{figures['without_kv'] / 1e6:.1f} MB without KV"
    return "-"


HEADINGS = ("model", *ENGINES, "to llama.cpp", "to the better", "share of the machine's")


def tables(summary):
    """(measurement, rows) for what was measured, in the order of the measurements."""
    for name, measurement in MEASUREMENTS.items():
        rows = [[title_of(model), *cells(name, figures[name])]
                for model, figures in summary.items() if name in figures]
        if rows:
            yield measurement, rows


def plain_table(summary):
    """For a terminal."""
    lines = []
    for measurement, rows in tables(summary):
        lines.append(f"\n{measurement.title} ({measurement.unit})")
        for row in [HEADINGS, *rows]:
            lines.append(f"{row[0]:<26}" + "".join(f"{cell:>14}" for cell in row[1:6])
                         + f"  {row[6]}")
    lines += [check for model, figures in summary.items()
              for check in check_lines(model, figures.get("outputs"))]
    return "\n".join(lines)


def check_lines(model, outputs):
    """What the comparison of outputs found, one line each."""
    if not outputs:
        return []
    title = title_of(model)
    lines = [(f"{title}: mean |delta logprob| {outputs['mean_delta']:.4f}, largest "
              f"{outputs['max_delta']:.4f}")]
    for entry in outputs.get("texts", []):
        same, count = entry["same_tokens"], entry["tokens"]
        line = f"{title}, `{entry['prompt']!r}`: "
        if same == count:
            lines.append(f"{line}the same {count} greedy tokens")
        else:
            lines.append(f"{line}the same {same} of {count} greedy tokens, then "
                         f"`{entry['ours_then']!r}` where llama.cpp has "
                         f"`{entry['theirs_then']!r}`")
    return lines


def markdown_table(headings, rows, words=1):
    """The first `words` columns are words, the others numbers."""
    align = ["---"] * words + ["---:"] * (len(headings) - words)
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
                     for row in [headings, align, *rows])


def conditions(header):
    versions = ", ".join(f"{name}: {version}" for name, version in header["versions"].items())
    return (f"Measured on {header['date']} at commit `{header['commit'] or 'unknown'}`, "
            f"{header['threads']} threads on a machine with {header['cpus']} CPUs "
            f"({header['cpu']}; {header['system']}), of which others used "
            f"{header['cpus_in_use']} at the start. Peers: {versions}, built or installed on this machine.")


# Above it, engines that wait for their threads by spinning lose most: ratios are not to be quoted.
BUSY_CPUS = 0.2
BUSY = """\
**The machine was busy while this was measured: speeds and their ratios say nothing.** Run it again
on an idle one; then this page also judges the targets."""


METHOD = """\
All engines take turns on the same file (A B A B, every other round backwards), and each figure is
the median of the rounds. A peer runs in its best setting: llama.cpp with and without flash
attention and with every `-ub` from 128 to 2,048; ik_llama.cpp with and without flash attention and
run-time repacking. "Share of the machine's" is what the figure means in weight bytes per second
beside a plain read loop on as many threads (decode), or in multiply-accumulates of weights beside a
loop of int8 dot products in registers (prefill), each run just before the measurement. Models with
a "shape" have random weights in the shape of the named model and a real vocabulary."""

START_NOTE = """\
Wall clock from the start of the process to its first byte on standard output, page cache warm. For
llama.cpp the quickest of `llama-completion` and a small program on its library, each with and
without repacking."""

COMMANDS = """\
```sh
bench/compare --results build/bench/results.jsonl    # hours on a small machine; goes on where it was cut
bench/report build/bench/results.jsonl               # writes this page and its chart
```"""


OUTPUTS_NOTE = """\
What was timed was also compared with llama.cpp: log-probabilities of 64 forced ids, and for real
models the greedy text, which rounding may part in time."""


def outputs_section(summary):
    lines = [line for model, figures in summary.items()
             for line in check_lines(model, figures.get("outputs"))]
    if not lines:
        return []
    return ["## Outputs", "", OUTPUTS_NOTE, "",
            *("- " + line.replace("|", "\\|") for line in lines), ""]


def target_row(verdict):
    name, figure = verdict.measurement, verdict.target.figure
    what = MEASUREMENTS[name].title if name in MEASUREMENTS else name
    bound = f"{targets.WORDS[figure]} {verdict.target.sign} {targets.number(figure, verdict.bound)}"
    return [title_of(verdict.model), what, bound, targets.number(figure, verdict.figure),
            "yes" if verdict.holds else "**no**"]


def targets_section(summary):
    found = [verdict for verdict in targets.verdicts(
        summary, list(summary), [*MEASUREMENTS, "outputs"]) if verdict.figure is not None]
    if not found:
        return []
    rows = [target_row(verdict) for verdict in found]
    return ["## Targets", "", markdown_table(("model", "what", "target", "measured", "held"), rows,
                           words=3), ""]


def page(header, summary, chart_name):
    """docs/benchmarks.md."""
    busy = header["cpus_in_use"] > BUSY_CPUS
    lines = ["# Benchmarks", "", "<!-- written by bench/report; do not edit -->", "",
             conditions(header), "",
             *([BUSY, ""] if busy else []), METHOD, "", COMMANDS, "",
             f"![Speed of Tael beside the better peer]({chart_name})", ""]
    for measurement, rows in tables(summary):
        lines += [f"## {measurement.title[0].upper()}{measurement.title[1:]}", "",
                  *([START_NOTE, ""] if measurement.name == "start" else []),
                  markdown_table(HEADINGS, rows), ""]
    lines += outputs_section(summary) + ([] if busy else targets_section(summary))
    return "\n".join(lines).rstrip() + "\n"


def svg(summary):
    groups = {}
    for model, figures in summary.items():
        group = {MEASUREMENTS[name].title: figures[name]["ratio_best"] for name in CHARTED
                 if "ratio_best" in figures.get(name, {})}
        if group:
            groups[title_of(model)] = group
    return chart.draw("Speed of Tael, as a multiple of the better peer's",
                      [MEASUREMENTS[name].title for name in CHARTED], groups)


def write(header, summary, folder):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "benchmarks.svg").write_text(svg(summary), encoding="utf-8")
    (folder / "benchmarks.md").write_text(page(header, summary, "benchmarks.svg"),
                                          encoding="utf-8")
    shell.note(f"wrote {folder}/benchmarks.md and benchmarks.svg")
