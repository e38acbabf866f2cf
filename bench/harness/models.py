"""The models that are compared, and what their files hold."""

import dataclasses
import functools
import json
import math
import pathlib

from . import shell


@dataclasses.dataclass(frozen=True)
class Model:
    """A file to measure. `shape` names one with random weights; else scripts/get-model has it."""
    name: str
    title: str
    shape: str = ""
    kind: str = ""

    @property
    def is_real(self):
        return not self.shape

    def path(self):
        """Fetches or makes the file if it is not there."""
        if self.is_real:
            return shell.get(self.name)
        made = shell.output_of([shell.ROOT / "bench/make-model", self.shape, self.kind])
        return pathlib.Path(made.strip())


def shaped(shape, title, kind):
    return Model(f"{shape}.{kind}", f"{title} shape {kind}", shape, kind)


MODELS = {model.name: model for model in (
    shaped("qwen2.5-0.5b", "Qwen2.5-0.5B", "Q4_0"),
    shaped("qwen2.5-0.5b", "Qwen2.5-0.5B", "Q8_0"),
    shaped("qwen2.5-0.5b", "Qwen2.5-0.5B", "Q4_K_M"),
    shaped("qwen2.5-1.5b", "Qwen2.5-1.5B", "Q4_0"),
    shaped("qwen2.5-1.5b", "Qwen2.5-1.5B", "Q8_0"),
    Model("smollm2", "SmolLM2-135M Q4_1"),
    Model("gemma3", "Gemma-3-270M Q4_K_M"),
)}


def chosen(names):
    """Models by name or by the start of one: `qwen2.5-0.5b` is three. All when none is named."""
    if not names:
        return list(MODELS.values())
    found = []
    for name in names:
        matching = [model for key, model in MODELS.items() if key.startswith(name)]
        if not matching:
            raise shell.Failed(f"no model '{name}'; there are {', '.join(MODELS)}")
        found += [model for model in matching if model not in found]
    return found


@dataclasses.dataclass(frozen=True)
class Facts:
    """Of one file."""
    path: pathlib.Path
    decode_bytes: int        # of weights that one token reads
    macs_per_token: int      # of the layers' matrices; a prompt needs the head for its last token only
    kv_bytes_per_token: int  # f16


def facts_from(report, path):
    """From what `tael inspect --json` says."""
    tensors, meta = report["tensors"], report["metadata"]
    tied = not any(tensor["name"] == "output.weight" for tensor in tensors)
    arch = meta["general.architecture"]
    head_dim = meta.get(f"{arch}.attention.key_length",
                        meta[f"{arch}.embedding_length"] // meta[f"{arch}.attention.head_count"])
    value_dim = meta.get(f"{arch}.attention.value_length", head_dim)
    return Facts(
        path=path,
        decode_bytes=sum(tensor["bytes"] for tensor in tensors
                         if tied or tensor["name"] != "token_embd.weight"),
        macs_per_token=sum(math.prod(tensor["shape"]) for tensor in tensors
                           if tensor["name"].startswith("blk.") and len(tensor["shape"]) == 2),
        kv_bytes_per_token=2 * meta[f"{arch}.block_count"] * (head_dim + value_dim)
        * meta[f"{arch}.attention.head_count_kv"])


@functools.cache
def facts(model, tael):
    path = model.path()
    return facts_from(json.loads(shell.output_of([tael, "inspect", "-m", path, "--json"])), path)
