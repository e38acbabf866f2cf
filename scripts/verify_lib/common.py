"""What the lines of every issue need: running programs, and printing a line with its figure."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
TAEL = ROOT / "build" / "release" / "tael"
results = []


def run(command, **kwargs):
    """Runs a command to its end and returns it with its output, whatever its exit status."""
    kwargs.setdefault("capture_output", True)
    return subprocess.run([str(c) for c in command], text=True, cwd=ROOT, check=False, **kwargs)


def must(command):
    done = run(command)
    if done.returncode != 0:
        sys.exit(f"verify: {' '.join(map(str, command))} failed\n{done.stdout}{done.stderr}")
    return done


def line(what, holds, figure):
    results.append(holds)
    print(f"{'ok  ' if holds else 'FAIL'} {what}: {figure}", flush=True)


def models():
    paths = {}
    for name in ("smollm2", "gemma3"):
        paths[name] = must(["scripts/get-model", name]).stdout.strip()
    must(["scripts/get-model", "vocabs"])
    os.environ["TAEL_TEST_MODELS"] = str(Path(paths["smollm2"]).parent)
    return paths


def gtest(program, pattern, preset="dev", **environ):
    """Number of passed, failed and skipped tests, and the output; with more in the environment."""
    done = run([ROOT / "build" / preset / program, f"--gtest_filter={pattern}"],
               env={**os.environ, **environ})
    passed = re.search(r"\[  PASSED  \] (\d+) test", done.stdout)
    skipped = re.search(r"\[  SKIPPED \] (\d+) test", done.stdout)
    return (int(passed[1]) if passed else 0, done.returncode,
            int(skipped[1]) if skipped else 0, done.stdout)


def gtest_line(what, program, pattern, preset="dev", **environ):
    passed, status, skipped, _ = gtest(program, pattern, preset, **environ)
    line(what, status == 0 and passed > 0 and skipped == 0,
         f"{passed} tests passed, {skipped} skipped, exit status {status} ({pattern})")
