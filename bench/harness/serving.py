"""Servers, and clients that all come at once: what bench/serve measures."""

import concurrent.futures
import contextlib
import dataclasses
import http.client
import json
import random
import re
import signal
import socket
import subprocess
import threading
import time

WORDS = ("valve", "pump", "pressure", "sensor", "motor", "spindle", "alarm", "temperature",
         "coolant", "conveyor", "bearing", "torque", "relay", "fuse", "inverter")
READY_SECONDS = 300


@dataclasses.dataclass(frozen=True)
class Load:
    clients: int
    shared_words: int = 150
    own_words: int = 100
    new_tokens: int = 48

    def prompt(self, client):
        shared = random.Random(1).choices(WORDS, k=self.shared_words)
        own = random.Random(1000 + client).choices(WORDS, k=self.own_words)
        return " ".join(shared + own)

    def context(self):
        """Tokens for each client, at two to a word and in whole blocks."""
        return -(-(2 * (self.shared_words + self.own_words) + self.new_tokens) // 256) * 256


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def tael(binary, model, load, threads):
    return lambda port: [binary, "serve", "-m", model, "--port", port, "--threads", threads,
                         "--sessions", load.clients, "--ctx", load.context(), "--budget", "1G"]


def llama(binary, model, load, threads):
    """Its settings that matter here."""
    settings = {"-fa on": ["-fa", "on"], "-fa off": ["-fa", "off"],
                "-fa on -ub 256": ["-fa", "on", "-ub", "256"],
                "-fa off, not repacked": ["-fa", "off", "--no-repack"]}
    return {name: lambda port, flags=flags: [
        binary, "-m", model, "--port", port, "-t", threads, "-np", load.clients, "-c",
        load.context() * load.clients, "--log-disable", *flags] for name, flags in settings.items()}


@contextlib.contextmanager
def running(command):
    """A server process, once it answers."""
    port = free_port()
    process = subprocess.Popen([str(word) for word in command(port)], stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + READY_SECONDS
        while not is_ready(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command(port)} does not answer")
            time.sleep(0.05)
        yield process, port
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def is_ready(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def ask(port, load, client):
    """Seconds to the first text, and tokens of the answer."""
    body = {"prompt": load.prompt(client), "max_tokens": load.new_tokens, "temperature": 0,
            "stream": True, "ignore_eos": True, "stream_options": {"include_usage": True}}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    start, first, tokens = time.monotonic(), None, 0
    try:
        connection.request("POST", "/v1/completions", json.dumps(body),
                           {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"status {answer.status}: {answer.read()[:300]}")
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if first is None and event.get("choices"):
                first = time.monotonic() - start
            tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
    finally:
        connection.close()
    return first, tokens


def all_at_once(port, load):
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(load.clients) as pool:
        found = list(pool.map(lambda client: ask(port, load, client), range(load.clients)))
    seconds = time.monotonic() - start
    if any(tokens != load.new_tokens for _, tokens in found):
        raise RuntimeError(f"not all answers are complete: {found}")
    return (sum(tokens for _, tokens in found) / seconds,
            sum(first for first, _ in found) / load.clients)


class PeakAnonymous:
    """The largest RssAnon of a process while it is watched."""

    def __init__(self, pid):
        self.pid, self.peak, self.stop = pid, 0, threading.Event()
        self.thread = threading.Thread(target=self.watch)

    def watch(self):
        while not self.stop.wait(0.02):
            with contextlib.suppress(OSError), open(f"/proc/{self.pid}/status") as status:
                found = re.search(r"RssAnon:\s+(\d+)", status.read())
                self.peak = max(self.peak, int(found[1]) * 1024 if found else 0)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()


def measure(command, load):
    with running(command) as (process, port), PeakAnonymous(process.pid) as memory:
        cold = all_at_once(port, load)
        warm = all_at_once(port, load)
    return {"cold_tps": cold[0], "cold_ttft_s": cold[1], "warm_tps": warm[0],
            "warm_ttft_s": warm[1], "anonymous": memory.peak}
