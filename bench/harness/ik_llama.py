"""ik_llama.cpp's side: prompts only, through its Python package, in a process of its own."""

import itertools

from . import shell, toolbox
from .engines import IK, Contender, Unavailable, json_of

WORKER = shell.ROOT / "bench/peers/ik_prefill.py"


class IkLlama:
    """Absent (no contenders) where its package is not available."""

    def __init__(self, threads):
        self.threads = threads
        self._python = None

    @staticmethod
    def _run(command):
        try:
            return {"value": json_of(command)["tps"]}
        except shell.Failed as failed:  # a setting or a model that it does not support
            raise Unavailable(str(failed)) from failed

    def prefill(self, path, tokens):
        if self._python is None:
            self._python = toolbox.ik_python() or ""
        if not self._python:
            return []

        def contender(flash, ubatch, repack):
            command = [self._python, WORKER, path, self.threads, tokens, flash, ubatch, repack]
            return Contender(IK, f"flash {flash} ubatch {ubatch} repack {repack}",
                             lambda: self._run(command))
        return [contender(*setting) for setting
                in itertools.product((0, 1), sorted({min(512, tokens), tokens}), (0, 1))]
