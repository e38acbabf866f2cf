"""`tael serve` in a cage, and loads that make it tell what it does with memory."""

import concurrent.futures
import contextlib
import http.client
import json
import random
import signal
import subprocess
import threading
import time

import cage
import caged

READY_SECONDS = 120
STOP_SECONDS = 30
IDLE_SECONDS = 20
CLIENTS = 4


class Client:
    """Requests to a server on this machine, each on a connection of its own."""

    port = 0

    def request(self, method, path, body=None, timeout=1800):
        """Status and body of one answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def complete(self, prompt, tokens, **fields):
        """A completion; retried while the server says that it is busy."""
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, **fields}
        while True:
            try:
                status, text = self.request("POST", "/v1/completions", body)
            except (OSError, http.client.HTTPException) as lost:
                return 0, str(lost)
            if status not in (429, 503):
                return status, json.loads(text)
            time.sleep(0.05)


class Served(Client):
    """`tael serve` in a cage of `budget` bytes; a context manager. `outcome` is there afterwards."""

    def __init__(self, model, budget, *flags):
        self.budget, self.outcome = budget, None
        self.command = caged.command("serve", "-m", model, "--budget", budget, "--port", 0, "--json",
                                     *flags)

    def __enter__(self):
        self.cage = cage.Cage(self.budget).__enter__()
        self.caged = self.cage.start(self.command, stdin=subprocess.DEVNULL)
        line = self.caged.process.stdout.readline()
        if not line:
            self.__exit__()
            raise RuntimeError(f"the server did not start: {self.outcome.err.decode()}")
        self.port = json.loads(line)["port"]
        return self

    def __exit__(self, *_):
        self.caged.process.send_signal(signal.SIGTERM)
        self.outcome = self.caged.finish(timeout=STOP_SECONDS)
        self.cage.__exit__()

    def memory(self):
        return json.loads(self.request("GET", "/v1/memory")[1])

    def trim(self, level):
        return self.request("POST", "/v1/memory/trim", {"level": level})

    def blocks_left(self):
        """KV bytes that are still held when every client has gone and idle prefixes are dropped."""
        deadline = time.monotonic() + IDLE_SECONDS
        while True:
            self.trim("moderate")
            held = self.memory()["parts"]["kv"]
            if held == 0 or time.monotonic() > deadline:
                return held
            time.sleep(0.2)

    def anonymous(self):
        """Bytes resident now that are no file's."""
        return cage.fields(f"/proc/{self.caged.process.pid}/status")["RssAnon"] * 1024


class Peer(Client):
    """Another engine's server in a cage, for what happens to it there."""

    def __init__(self, made, command, port):
        self.port = port
        self.caged = made.start(command, stdin=subprocess.DEVNULL)

    def ready(self):
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline and self.caged.process.poll() is None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.request("GET", "/health")[0] == 200:
                    return True
            time.sleep(0.2)
        return False

    def stop(self):
        self.caged.process.send_signal(signal.SIGTERM)
        return self.caged.finish(timeout=STOP_SECONDS)


def words(rng, count):
    """Text that no other prompt begins with."""
    return " ".join(str(rng.randrange(100000)) for _ in range(count))


def one_shots(server, count):
    """`count` prompts that have nothing in common, from several clients at once, while somebody trims
    at random moments. Returns what went wrong, and anonymous bytes after each prompt."""
    wrong, anonymous = [], []
    done = threading.Event()

    def ask(index):
        rng = random.Random(1000003 + index)
        status, answer = server.complete(words(rng, rng.randrange(4, 60)), rng.randrange(1, 12))
        if status != 200 or answer["choices"][0]["finish_reason"] not in ("stop", "length"):
            wrong.append((index, status, answer))
        anonymous.append(server.anonymous())

    def keep_trimming():
        rng = random.Random(1)
        while not done.wait(rng.uniform(0.05, 1.0)):
            status, answer = server.trim(rng.choice(("moderate", "critical")))
            if status != 200:
                wrong.append(("trim", status, answer))

    trimmer = threading.Thread(target=keep_trimming)
    trimmer.start()
    try:
        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(ask, range(count)))
    finally:
        done.set()
        trimmer.join()
    return wrong, anonymous
