"""Tokens per second of a prompt with ik_llama.cpp, as JSON; run by the Python that has its package.

  ik_prefill.py MODEL THREADS TOKENS FLASH UBATCH REPACK
"""

import json
import os
import sys
import time

from ik_llama_cpp import _ctypes_api as api
from ik_llama_cpp import _internals as ik


def silence():
    """The library talks on both streams; our answer keeps the real standard output."""
    out = os.fdopen(os.dup(1), "w")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    return out


def load(path, repack):
    api.llama_backend_init()
    params = api.llama_model_default_params()
    params.repack_tensors = bool(repack)
    return api.llama_model_load_from_file(path.encode(), params)


def open_context(model, threads, tokens, flash, ubatch):
    params = api.llama_context_default_params()
    params.n_ctx = params.n_batch = tokens
    params.n_ubatch = ubatch
    params.n_threads = params.n_threads_batch = threads
    params.flash_attn = bool(flash)
    return api.llama_init_from_model(model, params)


def main():
    path, numbers = sys.argv[1], [int(word) for word in sys.argv[2:]]
    threads, tokens, flash, ubatch, repack = numbers
    out = silence()
    model = load(path, repack)
    context = model and open_context(model, threads, tokens, flash, ubatch)
    if not context:
        sys.exit(f"ik_prefill: {path} could not be loaded")
    batch = ik.make_batch([100 + i * 7919 % 20000 for i in range(tokens)])
    seconds = 0.0
    for _ in range(2):  # the first run warms up
        api.llama_kv_cache_clear(context)
        begin = time.perf_counter()
        status = api.llama_decode(context, batch)
        api.llama_get_logits_ith(context, tokens - 1)
        seconds = time.perf_counter() - begin
        if status != 0:
            sys.exit(f"ik_prefill: llama_decode gave {status}")
    print(json.dumps({"tps": tokens / seconds}), file=out, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
