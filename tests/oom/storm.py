"""Hundreds of clients of every kind at one server: polite, slow, gone, wrong and too large.

Each client does one thing after another until the time is up, with pauses between. What comes back
is either a whole answer or an error in the API's form; anything else is remembered as wrong.
"""

import collections
import contextlib
import http.client
import json
import random
import socket
import threading
import time

from served import words

TIMEOUT = 600
REFUSALS = (400, 404, 413, 429, 431, 503)


class Wrong(Exception):
    """Neither a whole answer nor a typed error."""


def is_error(status, text):
    """Whether it is an error as the API forms them."""
    if status not in REFUSALS:
        return False
    with contextlib.suppress(ValueError, KeyError, TypeError):
        error = json.loads(text)["error"]
        return bool(error["message"]) and "type" in error and "code" in error
    return False


def checked(status, text, is_whole):
    if status == 200 and is_whole(text):
        return "answered"
    if is_error(status, text):
        return f"refused {status}"
    raise Wrong(f"status {status}: {text[-300:]}")


def whole_completion(choices):
    def is_whole(text):
        answer = json.loads(text)
        return (len(answer["choices"]) == choices and "usage" in answer and
                all(choice["finish_reason"] in ("stop", "length") for choice in answer["choices"]))
    return is_whole


def whole_stream(text):
    """Ends as a stream should, with one reason for its only choice; an error ends one, too."""
    events = [line[6:] for line in text.decode().split("\n") if line.startswith("data: ")]
    if not events or events[-1] != "[DONE]":
        return False
    parsed = [json.loads(event) for event in events[:-1]]
    if any("error" in event for event in parsed):
        return True
    reasons = [choice["finish_reason"] for event in parsed for choice in event["choices"]
               if choice.get("finish_reason")]
    return len(reasons) == 1


class Storm:
    """Clients at `port`. `told` counts what became of their requests, `wrong` is what must not be."""

    def __init__(self, port, clients, seconds, seed=7, most_pause=20.0):
        self.port, self.clients, self.most_pause = port, clients, most_pause
        self.end = time.monotonic() + seconds
        self.seed = seed
        self.lock = threading.Lock()
        self.told, self.wrong = collections.Counter(), []

    def run(self):
        threads = [threading.Thread(target=self.client, args=(index,))
                   for index in range(self.clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def client(self, index):
        rng = random.Random(self.seed * 1000003 + index)
        time.sleep(rng.uniform(0, min(self.most_pause, 10)))
        while time.monotonic() < self.end:
            kind = rng.choice(KINDS)
            try:
                became = kind(self, rng)
            except (OSError, http.client.HTTPException) as lost:
                became = f"lost: {type(lost).__name__}"
                with self.lock:
                    self.wrong.append((kind.__name__, str(lost)))
            except Exception as broken:  # noqa: BLE001  a client thread says what it saw
                became = "wrong"
                with self.lock:
                    self.wrong.append((kind.__name__, repr(broken)))
            with self.lock:
                self.told[f"{kind.__name__}: {became}"] += 1
            time.sleep(rng.uniform(0, self.most_pause))

    # ---- one request ----

    def body(self, rng, **fields):
        return {"prompt": words(rng, rng.randrange(1, 80)), "max_tokens": rng.randrange(1, 40),
                "temperature": 0, **fields}

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def post(self, body, path="/v1/completions"):
        return self.ask("POST", path, body)

    def raw(self, body, receive_buffer=None):
        """A connection on which a request has been sent."""
        text = json.dumps(body).encode()
        connection = socket.socket()
        if receive_buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.settimeout(TIMEOUT)
        connection.connect(("127.0.0.1", self.port))
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nConnection: close\r\n"
                           b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" %
                           (len(text), text))
        return connection


# ---- kinds of clients ----

def whole(storm, rng):
    choices = rng.choice((1, 1, 1, 2))
    return checked(*storm.post(json.dumps(storm.body(rng, n=choices))), whole_completion(choices))


def chats(storm, rng):
    messages = [{"role": "system", "content": "You watch the pumps of line 4."},
                {"role": "user", "content": words(rng, rng.randrange(1, 60))}]
    body = {"messages": messages, "max_tokens": rng.randrange(1, 40)}
    return checked(*storm.post(json.dumps(body), "/v1/chat/completions"), whole_completion(1))


def streams(storm, rng):
    return checked(*storm.post(json.dumps(storm.body(rng, stream=True))), whole_stream)


def leaves(storm, rng):
    """Goes away while it waits or reads, sometimes with a reset."""
    with storm.raw(storm.body(rng, stream=True, max_tokens=200, ignore_eos=True)) as connection:
        time.sleep(rng.uniform(0, 2))
        if rng.random() < 0.5:
            linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    return "left"


def reads_slowly(storm, rng):
    """Takes a little at a time, and gives up after a while."""
    body = storm.body(rng, stream=True, max_tokens=200, ignore_eos=True)
    until = time.monotonic() + rng.uniform(1, 8)
    with storm.raw(body, receive_buffer=2048) as connection:
        connection.settimeout(5)
        with contextlib.suppress(TimeoutError, ConnectionError):
            while time.monotonic() < until and connection.recv(64):
                time.sleep(0.1)
    return "left"


def sends_bad_json(storm, rng):
    body = rng.choice((b"{", b"[]", b"", b"\xff\xfe", b'{"prompt": 1e999}', b'{"prompt": {}}',
                       b'{"prompt": "x", "max_tokens": -1}', b'{"prompt": "x", "n": 1000000}',
                       b"[" * 5000))
    status, text = storm.post(body)
    if status != 400 and status != 503:
        raise Wrong(f"{body[:40]} got {status}: {text[:200]}")
    return checked(status, text, lambda _: False)


def sends_too_much(storm, rng):
    size = rng.choice((300_000, 3_000_000))
    status, text = storm.post(json.dumps({"prompt": "x" * size, "max_tokens": 1}))
    if status not in (413, 503):
        raise Wrong(f"a body of {size} bytes got {status}")
    return checked(status, text, lambda _: False)


def asks_beyond_the_context(storm, rng):
    status, text = storm.post(json.dumps(storm.body(rng, prompt=words(rng, 3000))))
    return checked(status, text, lambda _: False)


def sends_half(storm, rng):
    """A request whose body never comes."""
    with socket.create_connection(("127.0.0.1", storm.port), timeout=TIMEOUT) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: h\r\n"
                           b"Content-Length: 1000\r\n\r\n{\"prompt\": ")
        time.sleep(rng.uniform(0, 3))
    return "left"


def looks(storm, rng):
    path = rng.choice(("/health", "/metrics", "/v1/memory", "/v1/models", "/", "/nowhere"))
    return checked(*storm.ask("GET", path), bool)


def trims(storm, rng):
    level = rng.choice(("moderate", "critical"))
    return checked(*storm.post(json.dumps({"level": level}), "/v1/memory/trim"), json.loads)


KINDS = (whole, whole, chats, chats, streams, streams, streams, leaves, leaves, reads_slowly,
         sends_bad_json, sends_too_much, asks_beyond_the_context, sends_half, looks, trims)
