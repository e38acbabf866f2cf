"""llama.cpp's side: its own programs, with every setting that could be its best."""

import itertools
import json

from . import shell, toolbox
from .engines import DECODED_TOKENS, LLAMA, Contender, json_of

FLASH_ATTENTION = (0, 1)
UBATCHES = (128, 256, 512, 1024, 2048)  # sizes of one computation over a prompt; 512 is its default


class LlamaCpp:
    """The programs are built when they are first used."""

    def __init__(self, threads):
        self.threads = threads

    def bench(self, path, *arguments):
        return json_of([toolbox.llama_cpp("llama-bench"), "-m", path, "-t", self.threads, "-r", 1,
                        "-o", "json", *arguments])[0]["avg_ts"]

    def decode(self, path, context):
        def contender(flash):
            return Contender(LLAMA, f"-fa {flash}", lambda: {"value": self.bench(
                path, "-p", 0, "-n", DECODED_TOKENS, "-d", context, "-fa", flash)})
        return [contender(flash) for flash in FLASH_ATTENTION]

    def prefill(self, path, tokens):
        def contender(flash, ubatch):
            return Contender(LLAMA, f"-fa {flash} -ub {ubatch}", lambda: {"value": self.bench(
                path, "-p", tokens, "-n", 0, "-fa", flash, "-ub", ubatch)})
        return [contender(flash, ubatch) for flash, ubatch
                in itertools.product(FLASH_ATTENTION, UBATCHES) if ubatch <= tokens]

    def batched(self, path, context, sequences):
        def run(flash, unified):
            out = shell.output_of([
                toolbox.llama_cpp("llama-batched-bench"), "-m", path, "-t", self.threads,
                "-npp", context, "-ntg", DECODED_TOKENS, "-npl", sequences,
                "-c", sequences * (context + DECODED_TOKENS), "-fa", ("off", "on")[flash],
                "-kvu" if unified else "-no-kvu", "--output-format", "jsonl"])
            rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
            return {"value": rows[-1]["speed_tg"]}

        def contender(flash, unified):
            return Contender(LLAMA, f"-fa {flash} {'-kvu' if unified else '-no-kvu'}",
                             lambda: run(flash, unified))
        return [contender(*setting) for setting in itertools.product(FLASH_ATTENTION, (0, 1))]

    def first_token(self, path, text, context):
        """Its own completion program and the leanest one that its library allows."""
        def completion(repack):
            command = [toolbox.llama_cpp("llama-completion"), "-m", path, "-t", self.threads,
                       "-c", context, "-p", text, "-n", 16, "--temp", 0, "--ignore-eos", "-no-cnv",
                       "--no-display-prompt", "--no-warmup", "-fit", "off",
                       "--repack" if repack else "--no-repack"]
            return Contender(LLAMA, f"llama-completion, repack {repack}",
                             lambda: {"value": shell.seconds_to_first_byte(command)})

        def probe(repack):
            command = [toolbox.llama_probe(), path, self.threads, repack, "text", text, 16]
            return Contender(LLAMA, f"lean program, repack {repack}",
                             lambda: {"value": shell.seconds_to_first_byte(command)})
        return [completion(1), completion(0), probe(1), probe(0)]

    def memory(self, path, tokens):
        """As it comes: with its repacked copy of the weights, which its speed rests on."""
        command = [toolbox.llama_cpp("llama-bench"), "-m", path, "-t", self.threads, "-r", 1,
                   "-p", 0, "-n", DECODED_TOKENS, "-d", tokens, "-fa", 1]
        return [Contender(LLAMA, "", lambda: {"value": shell.peak_anonymous_bytes(command)})]

    def probe(self, path, mode, prompt, last):
        return shell.output_of([toolbox.llama_probe(), path, self.threads, 1, mode, prompt, last])
