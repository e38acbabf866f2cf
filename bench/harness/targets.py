"""What must hold, as data, and whether it does."""

import dataclasses
import operator

Q05, Q15 = "qwen2.5-0.5b", "qwen2.5-1.5b"
SHAPES_05 = (f"{Q05}.Q4_0", f"{Q05}.Q8_0", f"{Q05}.Q4_K_M")
SHAPES_15 = (f"{Q15}.Q4_0", f"{Q15}.Q8_0")
SHAPES = SHAPES_05 + SHAPES_15
REAL = ("smollm2", "gemma3")
PREFILLS = ("prefill512", "prefill2048")
OPERATORS = {">=": operator.ge, "<=": operator.le}
# Above this read bandwidth (quiet neighbours) the core is the limit of a decode kernel, not memory.
FAST_READ_GBPS = 35


@dataclasses.dataclass(frozen=True)
class Target:
    """`figure` of each model in each measurement is on the right side of `bound`."""
    measurements: tuple
    models: tuple
    figure: str
    sign: str
    bound: float
    bound_when_read_is_fast: float | None = None

    def bound_for(self, figures):
        fast = figures.get("read_gbps", 0) > FAST_READ_GBPS
        return self.bound_when_read_is_fast if fast and self.bound_when_read_is_fast else self.bound

    def holds(self, figures):
        return OPERATORS[self.sign](figures[self.figure], self.bound_for(figures))


def target(measurements, models, figure, sign, bound, **more):
    as_tuple = lambda value: (value,) if isinstance(value, str) else tuple(value)
    return Target(as_tuple(measurements), as_tuple(models), figure, sign, bound, **more)


# ratio: to llama.cpp. ratio_best: to the better of llama.cpp and ik_llama.cpp. share: of the read
# pass (decode) or of the int8 peak (prefill, weights only). keeps: of the speed at context 64.
TARGETS = (
    target("decode64", f"{Q05}.Q4_0", "ratio", ">=", 1.15),
    target("decode64", (f"{Q05}.Q8_0", f"{Q05}.Q4_K_M"), "ratio", ">=", 1.3),
    target("decode64", f"{Q15}.Q4_0", "ratio", ">=", 0.97),
    target("decode64", f"{Q15}.Q8_0", "ratio", ">=", 1.0),
    target("decode64", "gemma3", "ratio", ">=", 1.4),
    target("decode64", "smollm2", "ratio", ">=", 1.8),
    target("decode64", SHAPES, "share", ">=", 0.90, bound_when_read_is_fast=0.85),
    target("decode2048", (*SHAPES_05, *REAL), "ratio", ">=", 1.5),
    target("decode2048", f"{Q15}.Q4_0", "ratio", ">=", 1.25),
    target("decode2048", f"{Q15}.Q8_0", "ratio", ">=", 1.15),
    target("decode2048", SHAPES, "keeps", ">=", 0.85),
    target(PREFILLS, (f"{Q05}.Q4_0", f"{Q05}.Q8_0"), "ratio_best", ">=", 2.5),
    target(PREFILLS, (f"{Q05}.Q4_K_M", *SHAPES_15), "ratio_best", ">=", 2.2),
    target(PREFILLS, REAL, "ratio_best", ">=", 2.0),
    target(PREFILLS, "smollm2", "ratio", ">=", 4.0),
    target("prefill512", SHAPES, "share", ">=", 0.50),
    target("start", (*SHAPES, *REAL), "ratio", "<=", 0.5),
    target("memory", f"{Q05}.Q4_0", "without_kv", "<=", 60e6),
    target("batched8", f"{Q05}.Q4_0", "ratio", ">=", 2.0),
    target("paging", f"{Q05}.Q4_0", "upper", "<=", 0.003),
    target("outputs", (*SHAPES, *REAL), "mean_delta", "<=", 0.1),
)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """One target for one model: figure is None where it was not measured."""
    measurement: str
    model: str
    target: Target
    bound: float
    figure: float | None

    @property
    def holds(self):
        return self.figure is not None and OPERATORS[self.target.sign](self.figure, self.bound)


def verdicts(summary, models, measurements):
    """Every target of these models and measurements, in the order of the table above."""
    found = []
    for entry in TARGETS:
        for measurement in entry.measurements:
            for model in entry.models:
                if model in models and measurement in measurements:
                    figures = summary.get(model, {}).get(measurement, {})
                    found.append(Verdict(measurement, model, entry, entry.bound_for(figures),
                                         figures.get(entry.figure)))
    return found


def number(figure, value):
    """A figure as people read it."""
    if value is None:
        return "not measured"
    if figure == "upper":
        return f"{value:.2%}"
    if figure in ("share", "keeps"):
        return f"{value:.0%}"
    if figure == "without_kv":
        return f"{value / 1e6:.1f} MB"
    return f"{value:.3f}" if figure == "mean_delta" else f"{value:.2f}" + (
        "x" if figure.startswith("ratio") else "")


WORDS = {"ratio": "ratio to llama.cpp", "ratio_best": "ratio to the better peer",
         "keeps": "speed left of context 64", "share": "share of the roofline",
         "upper": "upper end of the 95 % interval",
         "without_kv": "anonymous memory without KV", "mean_delta": "mean |delta logprob|"}


def claim(verdict):
    """What must hold, in words."""
    figure = verdict.target.figure
    return (f"{verdict.measurement} {verdict.model}: {WORDS[figure]} {verdict.target.sign} "
            f"{number(figure, verdict.bound)}")


def sentence(verdict):
    """ok or FAIL, what must hold, and the figure."""
    mark = "ok  " if verdict.holds else "FAIL"
    return f"{mark} {claim(verdict)}: {number(verdict.target.figure, verdict.figure)}"
