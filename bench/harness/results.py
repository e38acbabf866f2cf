"""Results as JSON lines, written as they come: a run that was cut goes on where it was.

The first line says what was measured where. Each other line is one run:
{"model", "measurement", "engine", "setting", "round", "values"}; round 0 is the search for an
engine's best setting and enters no median. Lines of the measurement "outputs" are checks.
"""

import datetime
import json
import os
import pathlib
import platform
import time

from . import shell

KEYS = ("model", "measurement", "engine", "setting", "round")
# A file is not continued when one of these has changed: its medians would mix two things.
SAME = ("commit", "threads", "cpu")


# As /proc/cpuinfo names what kernels choose by, the best last.
VECTORS = ("asimd", "asimddp", "i8mm", "avx2", "avx512f", "avx512_vnni")


def cpu_name():
    """Name and best vector instructions: the same CPU may be rented with fewer of them."""
    name, flags = platform.machine(), set()
    for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model"):
            name = value.strip()
        elif key.strip() in ("flags", "Features"):
            flags.update(value.split())
    return ", ".join([name, *[vector for vector in VECTORS if vector in flags][-1:]])


def cpu_times():
    """Ticks of all CPUs: (busy, all)."""
    with open("/proc/stat", encoding="utf-8") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]
    idle, waiting = ticks[3:5]
    return sum(ticks) - idle - waiting, sum(ticks)


def cpus_in_use(seconds=2):
    """How many CPUs work now. A load average would still tell of what was built a minute ago."""
    before = cpu_times()
    time.sleep(seconds)
    busy, every = (now - then for now, then in zip(cpu_times(), before, strict=True))
    return round(busy / every * os.cpu_count(), 2)


def describe(commit, threads, versions):
    return {"date": datetime.date.today().isoformat(), "commit": commit, "threads": threads,
            "cpu": cpu_name(), "cpus": os.cpu_count(), "system": platform.platform(),
            "cpus_in_use": cpus_in_use(), "versions": versions}


class Results:
    """A results file that grows."""

    def __init__(self, path, header, same=SAME):
        self.path = pathlib.Path(path)
        self.header, self.records = header, []
        if self.path.exists() and self.path.stat().st_size > 0:
            self._read(header, same)
        else:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._append({"header": header})

    def _read(self, header, same):
        self.header, self.records = load(self.path)
        for key in same:
            if self.header.get(key) != header[key]:
                raise shell.Failed(f"{self.path} has {key} {self.header.get(key)}, this run has "
                                   f"{header[key]}; give another file")

    def _append(self, line):
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def find(self, **wanted):
        return [record for record in self.records
                if all(record[key] == value for key, value in wanted.items())]

    def add(self, model, measurement, engine, setting, number, values):
        record = dict(zip(KEYS, (model, measurement, engine, setting, number)), values=values)
        self.records.append(record)
        self._append(record)
        return record


def load(path):
    """(header, records) of a file; a last line that was cut in the middle is left out."""
    header, records = {}, []
    for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
        try:
            parsed = json.loads(line)
        except ValueError:
            continue
        if "header" in parsed:
            header = parsed["header"]
        else:
            records.append(parsed)
    if not header:
        raise shell.Failed(f"{path} is no file of results: it has no header")
    return header, records
