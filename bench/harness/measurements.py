"""What is measured: for which models, and which engines in which settings."""

import dataclasses
from collections.abc import Callable

from .engines import TAEL, Contender
from .ik_llama import IkLlama
from .llama_cpp import LlamaCpp
from .tael import Tael

SHORT, LONG = 64, 2048  # contexts of the decode measurements
SEQUENCES = 8
START_TOKENS, START_CONTEXT = 32, 512
# Ordinary prose: at least START_TOKENS tokens in every vocabulary.
START_TEXT = (
    "A small machine in the corner of the hall counts every bottle that passes, and when the belt "
    "stops it writes down the time, the temperature of the motor and the last message that the "
    "controller sent before it went quiet.")


class Rig:
    """The engines of one comparison."""

    def __init__(self, tael_program, threads):
        self.threads = threads
        self.tael = Tael(tael_program, threads)
        self.llama = LlamaCpp(threads)
        self.ik = IkLlama(threads)


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One row of the tables. contenders(rig, model) lists every engine with every setting."""
    name: str
    title: str
    unit: str
    contenders: Callable[[Rig, object], list[Contender]]
    higher_is_better: bool = True
    only_models: tuple = ()  # all when empty

    def applies_to(self, model):
        return not self.only_models or model.name in self.only_models

    def best(self, values):
        return max(values) if self.higher_is_better else min(values)


def decode(context):
    return lambda rig, model: (rig.tael.decode(model, context)
                               + rig.llama.decode(rig.tael.facts(model).path, context))


def prefill(tokens):
    def contenders(rig, model):
        path = rig.tael.facts(model).path
        return (rig.tael.prefill(model, tokens) + rig.llama.prefill(path, tokens)
                + rig.ik.prefill(path, tokens))
    return contenders


def first_token(rig, model):
    text = rig.tael.text_of_tokens(model, START_TEXT, START_TOKENS)
    path = rig.tael.facts(model).path
    return (rig.tael.first_token(model, text, START_CONTEXT)
            + rig.llama.first_token(path, text, START_CONTEXT))


def memory(rig, model):
    return (rig.tael.memory(model, LONG)
            + rig.llama.memory(rig.tael.facts(model).path, LONG))


def batched(rig, model):
    return (rig.tael.batched(model, SHORT, SEQUENCES)
            + rig.llama.batched(rig.tael.facts(model).path, SHORT, SEQUENCES))


def paging(rig, model):
    return rig.tael.paging(model, LONG)


MEASUREMENTS = {measurement.name: measurement for measurement in (
    Measurement("decode64", "decode, context 64", "tokens/s", decode(SHORT)),
    Measurement("decode2048", "decode, context 2,048", "tokens/s", decode(LONG)),
    Measurement("prefill512", "prefill, 512 tokens", "tokens/s", prefill(512)),
    Measurement("prefill2048", "prefill, 2,048 tokens", "tokens/s", prefill(LONG)),
    Measurement("start", "start of process to first token, prompt of 32 tokens", "s", first_token,
                higher_is_better=False),
    Measurement("memory", "anonymous memory at 2,048 tokens", "bytes", memory,
                higher_is_better=False, only_models=("qwen2.5-0.5b.Q4_0",)),
    Measurement("batched8", "8 sequences together, all tokens", "tokens/s", batched,
                only_models=("qwen2.5-0.5b.Q4_0",)),
    Measurement("paging", "cost of paged attention, of a decode step at 2,048 tokens", "share",
                paging, higher_is_better=False, only_models=("qwen2.5-0.5b.Q4_0",)),
)}


def is_peer(engine):
    return engine != TAEL
