"""Tael's side of each measurement.

The roofline is measured just before each run whose figure is a share of it: clocks and neighbours
change it within minutes.
"""

from . import models, shell, toolbox
from .engines import DECODED_TOKENS, TAEL, Contender, json_of

PAGING_PAIRS = 600


class Tael:
    """A built tael, and the threads to give it."""

    def __init__(self, program, threads):
        self.program = program
        self.threads = threads
        self._roofline = None

    def facts(self, model):
        return models.facts(model, self.program)

    def roofline(self):
        if self._roofline is None:
            self._roofline = toolbox.bench_program("tael_roofline")
        return json_of([self._roofline, self.threads])

    def bench_command(self, model, prompt, generate, *more):
        # Like for like: the peers keep keys and values in f16.
        return [self.program, "bench", "-m", self.facts(model).path, "-p", prompt, "-n", generate,
                "--kv-type", "f16", "--threads", self.threads, "--repeats", 1, "--json", *more]

    def decode(self, model, context):
        def run():
            roof = self.roofline()
            report = json_of(self.bench_command(model, context, DECODED_TOKENS))
            gbps = report["decode_tps"] * self.facts(model).decode_bytes / 1e9
            return {"value": report["decode_tps"], "gbps": gbps, "read_gbps": roof["read_gbps"],
                    "share": gbps / roof["read_gbps"]}
        return [Contender(TAEL, "", run)]

    def prefill(self, model, tokens):
        def run():
            roof = self.roofline()
            tps = json_of(self.bench_command(model, tokens, 1))["prefill_tps"]
            gmacs = tps * self.facts(model).macs_per_token / 1e9
            peak = roof["int8_gmacs"]
            return {"value": tps, "gmacs": gmacs, "peak_gmacs": peak,
                    "share": gmacs / peak if peak else None}
        return [Contender(TAEL, "", run)]

    def batched(self, model, context, sequences):
        command = self.bench_command(model, context, DECODED_TOKENS, "--sessions", sequences)
        return [Contender(TAEL, "", lambda: {"value": json_of(command)["decode_tps"]})]

    def first_token(self, model, text, context):
        command = [self.program, "run", "-m", self.facts(model).path, "--raw", "-p", text, "-n", 16,
                   "--temp", 0, "--ignore-eos", "--ctx", context, "--threads", self.threads]
        return [Contender(TAEL, "", lambda: {"value": shell.seconds_to_first_byte(command)})]

    def memory(self, model, tokens):
        def run():
            peak = shell.peak_anonymous_bytes(self.bench_command(model, tokens, DECODED_TOKENS))
            blocks = -(-(tokens + DECODED_TOKENS) // 16)
            kv = 16 * blocks * self.facts(model).kv_bytes_per_token
            return {"value": peak, "kv_bytes": kv, "without_kv": peak - kv}
        return [Contender(TAEL, "", run)]

    def paging(self, model, context):
        """What paging adds to a decode step, as a share of it, with its interval."""
        def run():
            step = json_of(self.bench_command(model, context, DECODED_TOKENS))
            step_us = 1e6 / step["decode_tps"]
            report = json_of([toolbox.bench_program("tael_paging"), "--pairs", PAGING_PAIRS,
                              "--threads", self.threads, "--context", context,
                              "--step-ms", step_us / 1000])
            line, by_layer = report["line"], report["by_layer"]
            return {"value": line["difference_us"] / step_us, "lower": line["low_us"] / step_us,
                    "upper": line["high_us"] / step_us, "step_us": step_us,
                    "paged_us": line["first_us"],
                    "by_layer_value": by_layer["difference_us"] / step_us,
                    "by_layer_upper": by_layer["high_us"] / step_us,
                    "scattered_value": report["scattered"]["difference_us"] / step_us}
        return [Contender(TAEL, "", run)]

    def text_of_tokens(self, model, text, count):
        """The start of a text that is exactly `count` tokens of this model."""
        path = self.facts(model).path
        ids = json_of([self.program, "tokenize", "-m", path, "-p", text, "--json"])["tokens"]
        if len(ids) < count:
            raise shell.Failed(f"the prompt has {len(ids)} tokens, not {count}")
        return shell.output_of([self.program, "tokenize", "-m", path, "--decode", *ids[:count]]
                               ).rstrip("\n")

    def answer(self, model, *prompt, generate=None):
        count = [] if generate is None else ["-n", generate]
        return json_of([self.program, "run", "-m", self.facts(model).path, "--raw", *prompt, *count,
                        "--temp", 0, "--ignore-eos", "--threads", self.threads, "--json"])
