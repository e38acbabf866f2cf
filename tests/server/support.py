"""Starts `tael serve`, and speaks to it: whole requests, streams, and raw bytes."""

import contextlib
import http.client
import json
import pathlib
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "cli"))

from gguf_edit import STRING, UINT32, Gguf
from harness import (
    SANITIZED,
    Case,
    command,
    environment,
    not_under_sanitizers,
    run,
    tiny,
)

try:
    import openai
except ImportError:
    openai = None

__all__ = ["SANITIZED", "Case", "Reply", "Server", "ServerCase", "command", "needs_openai",
           "not_under_sanitizers", "openai", "raw", "read_until", "reset", "run", "templated",
           "tiny", "wait_for"]

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|endoftext|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
needs_openai = unittest.skipIf(openai is None, "no `openai` package: scripts/setup installs it")


def templated(folder, context=2048, name="tiny.gguf"):
    """A small model of random weights, with a template and a context of some length."""
    gguf = Gguf(tiny("qwen2_tied"))
    gguf.set("qwen2.context_length", UINT32, context)
    gguf.set("tokenizer.chat_template", STRING, TEMPLATE)
    gguf.set("general.name", STRING, "tiny-qwen")
    return str(gguf.write(pathlib.Path(folder) / name))


def wait_for(condition, seconds=10, step=0.005):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(step)
    return condition()


TEXT = "/v1/completions"
LONG = {"prompt": "hello", "max_tokens": 100_000, "temperature": 0, "ignore_eos": True}  # for ever


class Reply:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json["error"]

    def __repr__(self):
        return f"HTTP {self.status} {dict(self.headers)} {self.body[:1000]!r}"


class Server:
    """A running server. Leaving the context stops it and checks that it went in peace."""

    def __init__(self, model, *flags, budget="400M", env=None):
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            command("serve", "-m", model, "--port", 0, "--json", "--budget", budget, *flags),
            stdout=subprocess.PIPE, stderr=self.errors, env=environment(**(env or {})))
        line = self.process.stdout.readline()
        if not line.startswith(b'{"ready"'):
            self.process.wait(30)
            raise AssertionError(f"no server: {line!r} {self.log()!r}")
        self.ready = json.loads(line)
        self.port = self.ready["port"]
        self.url = self.ready["url"]

    def log(self):
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")

    def stop(self, how=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self.process.stdout.close()
            self.last_words = self.log()
            self.errors.close()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        code = self.stop()
        if kind is None and code != 0:
            raise AssertionError(f"exit {code}: {self.last_words}")

    def connect(self, timeout=60):
        return socket.create_connection(("127.0.0.1", self.port), timeout)

    def ask(self, method, path, body=None, headers=None, timeout=60):
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return Reply(response.status, response.headers, response.read())

    def post(self, path, body, **options):
        return self.ask("POST", path, body, **options)

    def get(self, path, **options):
        return self.ask("GET", path, **options)

    def chat(self, content="hello", **fields):
        return self.post("/v1/chat/completions",
                         {"messages": [{"role": "user", "content": content}], **fields})

    def complete(self, prompt="hello", **fields):
        return self.post("/v1/completions", {"prompt": prompt, **fields})

    def stream(self, path, body):
        """The data of every event; each line is checked on the way."""
        reply = self.post(path, {**body, "stream": True})
        if reply.status != 200:
            raise AssertionError(repr(reply))
        events = []
        for line in reply.body.decode().split("\n"):  # raises if it is not UTF-8
            if not line:
                continue
            if not line.startswith("data: "):
                raise AssertionError(f"no event: {line!r}")
            data = line.removeprefix("data: ")
            events.append(data if data == "[DONE]" else json.loads(data))
        return events

    def metric(self, name):
        match = re.search(rf"^{re.escape(name)} (\S+)$", self.get("/metrics").body.decode(), re.MULTILINE)
        return float(match[1])

    def openai(self, **options):
        return openai.OpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0, **options)


def raw(path, body):
    """The bytes of a POST request."""
    data = json.dumps(body).encode()
    return (f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode()
            + data)


def read_until(connection, what, times=1):
    """What came, with `what` in it so many times; fails where the connection ends before."""
    seen = b""
    while seen.count(what) < times:
        piece = connection.recv(1 << 16)
        if not piece:
            raise AssertionError(f"cut before {what!r}: {seen[-1000:]!r}")
        seen += piece
    return seen


def reset(connection):
    """Leaves without a farewell: RST instead of FIN."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


class ServerCase(Case):
    """Tests that share one server; subclasses say with which flags."""

    FLAGS = ()
    CONTEXT = 2048

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.model = templated(folder.name, cls.CONTEXT)
        cls.server = cls.enterClassContext(Server(cls.model, *cls.FLAGS))

    def refused(self, reply, status, param=None, code=None):
        """An error in OpenAI's form."""
        self.assertEqual(reply.status, status, reply)
        self.assertEqual(reply.headers["Content-Type"], "application/json")
        error = reply.error
        self.assertEqual(set(error), {"message", "type", "param", "code"})
        self.assertTrue(error["message"])
        if param is not None:
            self.assertEqual(error["param"], param)
        if code is not None:
            self.assertEqual(error["code"], code)
        return error
