"""`tael serve` in a cage, and loads that make it tell what it does with memory."""

import concurrent.futures
import contextlib
import dataclasses
import http.client
import json
import pathlib
import random
import re
import signal
import subprocess
import threading
import time

import cage
import caged

READY_SECONDS = 120
STOP_SECONDS = 30
IDLE_SECONDS = 20
CLIENTS = 8


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
    """`tael serve` in a cage of `budget` bytes, or of `limit`; a context manager. `outcome` is there
    afterwards."""

    def __init__(self, model, budget, *flags, limit=None):
        self.budget, self.limit, self.outcome = budget, limit or budget, None
        self.command = caged.command("serve", "-m", model, "--budget", budget, "--port", 0, "--json",
                                     *flags)

    def __enter__(self):
        self.cage = cage.Cage(self.limit).__enter__()
        self.caged = self.cage.start(self.command, stdin=subprocess.DEVNULL)
        line = self.caged.process.stdout.readline()
        if not line.startswith(b'{"ready"'):
            self.__exit__()
            raise RuntimeError(f"the server did not start: {line.decode()} {self.outcome.err.decode()}")
        self.port = json.loads(line)["port"]
        return self

    def __exit__(self, *_):
        self.caged.process.send_signal(signal.SIGTERM)
        self.outcome = self.caged.finish(timeout=STOP_SECONDS)
        self.cage.__exit__()

    def memory(self):
        return json.loads(self.request("GET", "/v1/memory")[1])

    def why_degraded(self):
        return json.loads(self.request("GET", "/health")[1]).get("why", "")

    def trim(self, level):
        return self.request("POST", "/v1/memory/trim", {"level": level})

    def metrics(self):
        """Values of those that have no labels, by name."""
        text = self.request("GET", "/metrics")[1].decode()
        found = re.findall(r"^(\w+) ([\d.e+]+)$", text, re.MULTILINE)
        return {name: float(value) for name, value in found}

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
        return self.resident("RssAnon")

    def arena(self):
        """Resident bytes of the forward pass's arena: fixed, counted whole from the start, touched
        as far as the largest pass so far."""
        size = self.memory()["parts"]["activations"]
        text = pathlib.Path(f"/proc/{self.caged.process.pid}/smaps").read_text()
        parts = re.findall(r"^[0-9a-f]+-[0-9a-f]+ \S+ 0+ 00:00 0 *\nSize: +(\d+).*?^Anonymous: +(\d+)",
                           text, re.MULTILINE | re.DOTALL)
        (found,) = [1024 * int(anonymous) for mapped, anonymous in parts
                    if size <= 1024 * int(mapped) < size + (1 << 16)]
        return found

    def resident(self, kind="VmRSS"):
        return cage.fields(f"/proc/{self.caged.process.pid}/status")[kind] * 1024

    def mapped(self, path):
        """Bytes of a file that are in its memory now."""
        text = pathlib.Path(f"/proc/{self.caged.process.pid}/smaps").read_text()
        found = re.findall(rf"{re.escape(str(path))}\n.*?^Rss: +(\d+) kB", text, re.MULTILINE | re.DOTALL)
        return 1024 * sum(map(int, found))


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


@contextlib.contextmanager
def trims(server, wrong, pause):
    """Somebody trims at random moments meanwhile, up to `pause` seconds apart; refusals are added to
    `wrong`."""
    done = threading.Event()

    def keep_trimming():
        rng = random.Random(1)
        while not done.wait(rng.uniform(0.05, pause)):
            status, answer = server.trim(rng.choice(("moderate", "critical")))
            if status != 200:
                wrong.append(("trim", status, answer))

    trimmer = threading.Thread(target=keep_trimming)
    trimmer.start()
    try:
        yield
    finally:
        done.set()
        trimmer.join()


# Loads. Several clients at once do one thing for each index; what went wrong is returned.


def by_clients(serve, indices):
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        return [wrong for wrong in pool.map(serve, indices) if wrong]


def problem(index, status, answer):
    """Of an answer that is none; None if it is one."""
    if status == 200 and answer["choices"][0]["finish_reason"] in ("stop", "length"):
        return None
    return index, status, answer


# Most prompts and answers are short: thousands of a large model's, whose layers are read for each
# token, would take a day.
LONG_EVERY = 50


def one_shots(server, indices, pause=4, long_every=LONG_EVERY):
    """Prompts that have nothing in common, some of them long, and trims."""

    def ask(index):
        rng = random.Random(1000003 + index)
        least, most, most_tokens = (20, 60, 12) if index % long_every == 0 else (1, 4, 3)
        prompt = words(rng, rng.randrange(least, most))
        return problem(index, *server.complete(prompt, rng.randrange(1, most_tokens)))

    with trims(server, wrong := [], pause):
        wrong += by_clients(ask, indices)
    return wrong


def sessions(server, indices, pause=4, long_every=LONG_EVERY):
    """Sessions of two to four turns with a start that all share, and trims."""
    start = words(random.Random(7), 6)

    def talk(index):
        rng = random.Random(2000003 + index)
        least, most, most_tokens = (2, 8, 12) if index % long_every == 0 else (1, 3, 3)
        text = start
        for _ in range(rng.randrange(2, 5)):
            text += " " + words(rng, rng.randrange(least, most))
            status, answer = server.complete(text, rng.randrange(1, most_tokens))
            if wrong := problem(index, status, answer):
                return wrong
            text += answer["choices"][0]["text"]
        return None

    with trims(server, wrong := [], pause):
        wrong += by_clients(talk, indices)
    return wrong


def aborts(server, indices):
    """Streams that are left after a few events."""

    def leave(index):
        rng = random.Random(3000003 + index)
        body = {"prompt": words(rng, rng.randrange(2, 20)), "max_tokens": 200, "stream": True,
                "ignore_eos": True}
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            with contextlib.closing(connection):
                connection.request("POST", "/v1/completions", json.dumps(body))
                answer = connection.getresponse()
                if answer.status != 503:
                    lines = [answer.readline() for _ in range(2 * rng.randrange(1, 10))]
                    events = all(line.startswith(b"data: ") for line in lines if line.strip())
                    return None if answer.status == 200 and events else (index, lines)
            time.sleep(0.05)

    return by_clients(leave, indices)


def ids(seed, count):
    rng = random.Random(seed)
    return [rng.randrange(100, 300) for _ in range(count)]


def fill_prefix_cache(server, token_counts):
    """Prompts of these lengths one after the other, nothing in common. Returns the most bytes that
    the prefix cache ever had, also while it took them in, and what went wrong."""
    most, done = [0], threading.Event()

    def keep_looking():
        while not done.wait(0.01):
            most[0] = max(most[0], server.metrics()["tael_prefix_bytes"])

    looker = threading.Thread(target=keep_looking)
    looker.start()
    try:
        answers = [server.complete(ids(i, count), 1) for i, count in enumerate(token_counts)]
    finally:
        done.set()
        looker.join()
    return most[0], [answer for answer in answers if answer[0] != 200]


@dataclasses.dataclass
class Shrunk:
    """Bytes of KV blocks and anonymous ones before a trim in the middle of an answer, and a second
    after it; and what became of the answer."""

    kv_before: int
    kv_after: int
    anonymous_before: int
    anonymous_after: int
    status: int
    tokens: int


def trim_while_it_answers(server, window_bytes, tokens):
    """Trims as hard as it goes once an answer of so many tokens fills its window."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.complete, ids(1, 8), tokens, ignore_eos=True)
        while (before := server.metrics()["tael_kv_bytes_in_use"]) < window_bytes and not answer.done():
            time.sleep(0.02)
        anonymous = server.anonymous()
        server.trim("critical")
        time.sleep(1)
        after, anonymous_after = server.metrics()["tael_kv_bytes_in_use"], server.anonymous()
        status, body = answer.result()
    return Shrunk(before, after, anonymous, anonymous_after, status,
                  body["usage"]["completion_tokens"] if status == 200 else 0)
