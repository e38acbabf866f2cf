"""Running programs: their output, their memory, and the moment of their first byte."""

import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Failed(Exception):
    """Something outside went wrong; the message is for people."""


def note(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


def cache_folder():
    """The folder that scripts/get-model uses, too."""
    if os.environ.get("TAEL_CACHE"):
        return pathlib.Path(os.environ["TAEL_CACHE"])
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "tael"


def words(command):
    return [str(part) for part in command]


def complaint(command, status, text):
    return Failed(f"{' '.join(words(command))} gave {status}: {text.strip()[-2000:]}")


def output_of(command, env=None):
    """Standard output of a command that must succeed."""
    done = subprocess.run(words(command), check=False, capture_output=True, text=True,
                          env={**os.environ, **(env or {})}, errors="replace")
    if done.returncode != 0:
        raise complaint(command, done.returncode, done.stderr or done.stdout)
    return done.stdout


def get(name):
    """A model or source that scripts/get-model fetches."""
    return pathlib.Path(output_of([ROOT / "scripts/get-model", name]).strip())


def seconds_to_first_byte(command):
    """From the start of a process to its first byte on standard output; then it is ended."""
    begin = time.perf_counter()
    with subprocess.Popen(words(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, bufsize=0) as process:
        first = process.stdout.read(1)
        elapsed = time.perf_counter() - begin
        process.kill()
    if not first:
        raise complaint(command, process.returncode, "it printed nothing")
    return elapsed


def anonymous_bytes(pid):
    """RssAnon of a process: heap, stacks, KV; not the mapped file."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii") as status:
            for line in status:
                if line.startswith("RssAnon:"):
                    return int(line.split()[1]) * 1024
    except (FileNotFoundError, ProcessLookupError):
        pass
    return 0


def peak_anonymous_bytes(command, interval=0.005):
    """The largest RssAnon seen, every few milliseconds until the command ends."""
    peak = 0
    with subprocess.Popen(words(command), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            peak = max(peak, anonymous_bytes(process.pid))
            time.sleep(interval)
    if process.returncode != 0:
        raise complaint(command, process.returncode, "its memory could not be measured")
    return peak


def warm_page_cache(path):
    """Reads a file once, so that no engine waits for the disk."""
    with open(path, "rb", buffering=0) as file:
        while file.read(1 << 24):
            pass
