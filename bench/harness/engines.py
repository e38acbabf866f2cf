"""What every engine has in common: a way to run it once, under a name and a setting."""

import dataclasses
import json
from collections.abc import Callable

from . import shell

TAEL, LLAMA, IK = "tael", "llama.cpp", "ik_llama.cpp"
DECODED_TOKENS = 48  # that a decode measurement generates


@dataclasses.dataclass(frozen=True)
class Contender:
    """One engine with one setting. run() gives figures; `value` is the one that counts."""
    engine: str
    setting: str
    run: Callable[[], dict]


class Unavailable(shell.Failed):
    """This engine cannot be measured so; go on without it."""


def json_of(command):
    return json.loads(shell.output_of(command))
