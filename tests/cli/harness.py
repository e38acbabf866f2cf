"""Runs the program under test: TAEL_BINARY, under TAEL_EMULATOR where it is built for another CPU."""

import json
import os
import pathlib
import shlex
import subprocess
import tempfile
import unittest

DATA = pathlib.Path(__file__).resolve().parent.parent / "data"
BINARY = os.environ.get("TAEL_BINARY", "tael")
EMULATOR = shlex.split(os.environ.get("TAEL_EMULATOR", ""))
TIMEOUT = 300

# A sanitizer has memory of its own, and makes the program several times as slow.
SANITIZED = pathlib.Path(BINARY).is_file() and b"__asan_init" in pathlib.Path(BINARY).read_bytes()
not_under_sanitizers = unittest.skipIf(SANITIZED, "says nothing under sanitizers")


def tiny(name):
    return str(DATA / "tiny" / f"{name}.gguf")


def command(*arguments):
    return [*EMULATOR, BINARY, *(str(argument) for argument in arguments)]


def environment(**changes):
    return {**os.environ, **changes}


class Done:
    """A finished run: code, out and err as bytes."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    @property
    def json(self):
        return json.loads(self.out)

    def __repr__(self):
        return f"exit {self.code}\nstdout: {self.out[:2000]!r}\nstderr: {self.err[:2000]!r}"


def run(*arguments, stdin=b"", **env):
    done = subprocess.run(command(*arguments), input=stdin, capture_output=True, timeout=TIMEOUT,
                          env=environment(**env), check=False)
    return Done(done.returncode, done.stdout, done.stderr)


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def ok(self, *arguments, **options):
        done = run(*arguments, **options)
        self.assertEqual(done.code, 0, done)
        return done

    def json_of(self, *arguments, **options):
        return self.ok(*arguments, "--json", **options).json

    def fails(self, code, *arguments, names=(), **options):
        """Fails with this code and, in both forms of output, a message that names these things."""
        done = run(*arguments, **options)
        self.assertEqual(done.code, code, done)
        self.assertEqual(done.out, b"", done)
        message = done.err.decode()
        for name in names:
            self.assertRegex(message, name)
        as_json = run(*arguments, "--json", **options)
        self.assertEqual(as_json.code, code, as_json)
        error = as_json.json["error"]
        self.assertEqual(set(error), {"code", "message"})
        self.assertRegex(error["code"], "^[a-z_]+$")
        for name in names:
            self.assertRegex(error["message"], name)
        return error

    def models(self, *names):
        """Paths of real models (scripts/get-model), or a skipped test."""
        folder = pathlib.Path(os.environ.get("TAEL_TEST_MODELS", ""))
        paths = [folder / f"{name}.gguf" for name in names]
        if not os.environ.get("TAEL_TEST_MODELS") or not all(path.exists() for path in paths):
            self.skipTest("TAEL_TEST_MODELS names no folder with " + ", ".join(names))
        return [str(path) for path in paths]

    def has_templates(self, model):
        """Skips where the build has no template engine."""
        done = run("run", "-m", model, "-p", "x", "-n", "0", "--json")
        if done.code == 4 and b"renders no chat templates" in done.out:
            self.skipTest("built without chat templates")
