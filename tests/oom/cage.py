"""A memory cgroup with a hard limit and no swap, and one program in it that is sampled.

The program is in the cage before it is executed, so every page it touches is charged there; a
breach is a kill by the kernel. Version 1 (its own hierarchy) and version 2 are both known.
"""

import contextlib
import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import threading
import time

CGROUPS = pathlib.Path("/sys/fs/cgroup")
INTERVAL = 0.010  # seconds from one sample to the next
WALKING = 0.1  # share of the time that goes to walks over all pages, at most
TIMEOUT = 1800


class NoCage(Exception):
    """This machine lets us make no memory cgroup; the message says why."""


@dataclasses.dataclass(frozen=True)
class Version:
    """Where a version of cgroups keeps what."""

    root: pathlib.Path
    limit: str
    usage: str
    peak: str
    events: str  # has a line "oom_kill N"
    no_swap: tuple  # file and value


V1 = Version(CGROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
             "memory.max_usage_in_bytes", "memory.oom_control", ("memory.swappiness", "0"))
V2 = Version(CGROUPS, "memory.max", "memory.current", "memory.peak", "memory.events",
             ("memory.swap.max", "0"))


def fields(path):
    """The numbers of a file of "name number" or "name: number kB" lines; none if it is gone."""
    try:
        text = pathlib.Path(path).read_text()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return {}
    found = re.findall(r"^(\w+):?\s+(\d+)", text, re.MULTILINE)
    return {name: int(value) for name, value in found}


def number(path):
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


@dataclasses.dataclass
class Sample:
    """Bytes at one moment: of the process, and charged to its cage.

    rss is what PSS would be if nobody else had the same libraries mapped, and is put for it where
    only the kernel's counters were read."""

    rss: int
    pss: int
    anon: int
    file: int
    charged: int


class Outcome:
    """What a caged program did: exit status (negative: the signal), output, and the samples."""

    def __init__(self, limit, code, out, err, samples, cage):
        self.limit, self.code, self.out, self.err = limit, code, out, err
        self.samples = samples
        self.killed = cage.kills() > 0 or code == -signal.SIGKILL
        self.reclaims = cage.reclaims()
        self.peak_charged = cage.peak()

    @property
    def peak_pss(self):
        return max((sample.pss for sample in self.samples), default=0)

    @property
    def peak_rss(self):
        return max((sample.rss for sample in self.samples), default=0)

    def at_peak(self):
        return max(self.samples, key=lambda sample: sample.pss)

    def __str__(self):
        top = self.at_peak() if self.samples else Sample(0, 0, 0, 0, 0)
        return (f"budget {self.limit / 1e6:.1f} MB, PSS at most {top.pss / 1e6:.1f} MB "
                f"(RSS {self.peak_rss / 1e6:.1f}; {top.anon / 1e6:.1f} anonymous, {top.file / 1e6:.1f} of files) in "
                f"{len(self.samples)} samples, cage charged up to {self.peak_charged / 1e6:.1f} MB, "
                f"limit hit {self.reclaims} times, exit status {self.code}"
                f"{', KILLED' if self.killed else ''}")


class Cage:
    """A cgroup of its own; a context manager, gone at the end with what is in it."""

    def __init__(self, limit):
        self.limit = limit
        has_v1 = (V1.root / V1.limit).exists()
        self.version = V1 if has_v1 else V2
        self.folder = self.version.root / f"tael-cage-{os.getpid()}-{time.monotonic_ns()}"

    def __enter__(self):
        try:
            self.folder.mkdir()
        except OSError as error:
            raise NoCage(f"cannot make a memory cgroup in {self.version.root}: {error}") from error
        try:
            (self.folder / self.version.limit).write_text(str(self.limit))
            with contextlib.suppress(OSError):  # a kernel without swap has no such file
                name, value = self.version.no_swap
                (self.folder / name).write_text(value)
        except OSError as error:
            self.folder.rmdir()
            raise NoCage(f"cannot set a limit in {self.folder}: {error}") from error
        return self

    def __exit__(self, *_):
        for _ in range(100):  # a process that has just ended is charged a little longer
            with contextlib.suppress(OSError):
                self.folder.rmdir()
                return
            time.sleep(0.05)

    def set_limit(self, limit):
        (self.folder / self.version.limit).write_text(str(limit))

    def kills(self):
        return fields(self.folder / self.version.events).get("oom_kill", 0)

    def reclaims(self):
        """How often the limit was reached and pages had to be given up."""
        if self.version is V1:
            return number(self.folder / "memory.failcnt")
        return fields(self.folder / self.version.events).get("max", 0)

    def peak(self):
        return number(self.folder / self.version.peak)

    def stat(self):
        return fields(self.folder / "memory.stat")

    def sample(self, pid, walk):
        """None when the process is gone. A walk over its page tables knows what others share."""
        file, names = (("smaps_rollup", ("Rss", "Pss", "Pss_Anon", "Pss_File")) if walk else
                       ("status", ("VmRSS", "VmRSS", "RssAnon", "RssFile")))
        found = fields(f"/proc/{pid}/{file}")
        if names[0] not in found:
            return None
        charged = number(self.folder / self.version.usage)
        return Sample(*(found[name] * 1024 for name in names), charged)

    def start(self, command, env=None, watch=None, stdin=subprocess.PIPE):
        return Caged(self, command, env, watch, stdin)

    def run(self, command, stdin=b"", env=None, watch=None):
        """Runs it to its end. `watch`, if any, is called with the process id at each sample."""
        return self.start(command, env, watch).finish(stdin)


class Caged:
    """A program that runs in a cage, sampled all the time."""

    def __init__(self, cage, command, env, watch, stdin):
        self.cage, self.watch = cage, watch
        # The shell enters the cage and becomes the program: no page of it is charged elsewhere.
        enter = ["sh", "-c", f'echo $$ > {cage.folder}/cgroup.procs && exec "$@"', "sh"]
        self.process = subprocess.Popen([*enter, *map(str, command)], stdin=stdin, env=env,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.samples, self.times, self.stop = [], [], threading.Event()
        self.sampler = threading.Thread(target=self.keep_sampling)
        self.sampler.start()

    def keep_sampling(self):
        """A walk takes as long as there are pages and holds the process up: of a large one most
        samples are its counters."""
        due = next_walk = time.monotonic()
        while not self.stop.is_set():
            start = time.monotonic()
            walk = start >= next_walk
            sample = self.cage.sample(self.process.pid, walk)
            if walk:
                next_walk = start + (time.monotonic() - start) / WALKING
            if sample is not None:
                self.times.append(time.monotonic())
                self.samples.append(sample)
                if self.watch is not None:
                    self.watch(self.process.pid)
            due = max(due + INTERVAL, time.monotonic())
            self.stop.wait(due - time.monotonic())

    def timed_samples(self):
        return zip(self.times, self.samples)  # one more time than samples, for a moment

    def finish(self, stdin=None, timeout=TIMEOUT):
        """Waits for its end; it is killed where that does not come."""
        try:
            out, err = self.process.communicate(stdin, timeout=timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, err = self.process.communicate()
        finally:
            self.stop.set()
            self.sampler.join()
        return Outcome(self.cage.limit, self.process.returncode, out, err, self.samples, self.cage)


def forget_pages(path):
    """Drops a file's clean pages from the page cache, so that whoever reads it next is charged."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def private_copy(path, folder):
    """A copy of a model that nobody else has mapped or cached: its pages are the cage's own."""
    copy = pathlib.Path(folder) / pathlib.Path(path).name
    with open(path, "rb") as source, open(copy, "wb") as target:
        while os.copy_file_range(source.fileno(), target.fileno(), 1 << 26):
            pass
    forget_pages(copy)
    return copy
