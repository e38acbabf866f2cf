"""What the comparison needs and a machine does not have: built or installed once, into the cache.

llama.cpp is built from the source package of llama-cpp-python for this very CPU (GGML_NATIVE).
ik_llama.cpp has no program of its own; its Python package does the measuring.
"""

import contextlib
import fcntl
import subprocess
import sys

from . import shell

LLAMA_PROGRAMS = ("llama-bench", "llama-batched-bench", "llama-quantize", "llama-completion",
                  "llama-server")
LLAMA_OFF = ("BUILD_SHARED_LIBS", "LLAMA_CURL", "LLAMA_OPENSSL", "LLAMA_BUILD_TESTS",
             "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_UI")
# What make-model needs; ik_llama.cpp is installed apart, since it has no package for some CPUs.
MODEL_PACKAGES = ("numpy==2.4.6", "gguf==0.19.0")
IK_PACKAGE = "ik-llama-cpp-python==0.1.5"


@contextlib.contextmanager
def alone(name):
    """One process at a time: a second one waits, then finds the work done."""
    folder = shell.cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f".lock-{name}", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def python_with(packages, name):
    """The Python of a virtual environment that holds these packages."""
    venv = shell.cache_folder() / "tools" / name
    python, stamp = venv / "bin/python", venv / ".installed"
    wanted = " ".join(packages)
    with alone(name):
        if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
            return python
        shell.note(f"installing {wanted}")
        shell.output_of([sys.executable, "-m", "venv", "--clear", venv])
        shell.output_of([python, "-m", "pip", "install", "--quiet", "--no-cache-dir",
                         "--disable-pip-version-check", *packages])
        stamp.write_text(wanted, encoding="utf-8")
    return python


def model_python():
    return python_with(MODEL_PACKAGES, "models-venv")


def ik_python():
    """Python with ik_llama.cpp, or None where there is no such package (not on every CPU)."""
    try:
        return python_with((*MODEL_PACKAGES, IK_PACKAGE), "ik-venv")
    except shell.Failed as failed:
        shell.note(f"no ik_llama.cpp here, going on without it: {failed}")
        return None


def llama_cpp(program):
    """Path of a program of llama.cpp, built if it is not there."""
    source = shell.get("llama.cpp")
    build = source.parent / "llama.cpp-build"
    binary = build / "bin" / program
    with alone("llama.cpp"):
        if not binary.exists():
            shell.note(f"building {program}; the first of its programs takes some minutes")
            shell.output_of(["cmake", "-S", source, "-B", build, "-G", "Ninja",
                             "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DLLAMA_BUILD_SERVER=ON",
                             *(f"-D{name}=OFF" for name in LLAMA_OFF)])
            shell.output_of(["cmake", "--build", build, "--target", program])
    return binary


def llama_probe():
    """Our own small program on llama.cpp's library; rebuilt when its source is newer."""
    llama_cpp("llama-bench")  # builds the libraries
    source = shell.get("llama.cpp")
    build = source.parent / "llama.cpp-build"
    code, binary = shell.ROOT / "bench/peers/llama_probe.cpp", build / "bin/tael-llama-probe"
    libraries = ("src/libllama.a", "ggml/src/libggml.a", "ggml/src/libggml-cpu.a",
                 "ggml/src/libggml-base.a")
    with alone("llama.cpp"):
        if not binary.exists() or binary.stat().st_mtime < code.stat().st_mtime:
            shell.output_of(["c++", "-std=c++17", "-O2", f"-I{source}/include",
                             f"-I{source}/ggml/include", code, "-o", binary,
                             *(build / library for library in libraries),
                             "-fopenmp", "-ldl", "-lm", "-lpthread"])
    return binary


def bench_program(target):
    """A program of bench/, built with the preset `bench`."""
    shell.output_of(["cmake", "--preset", "bench", "-S", shell.ROOT])
    shell.output_of(["cmake", "--build", shell.ROOT / "build/bench", "--target", target])
    return shell.ROOT / "build/bench/bench/micro" / target


def tael():
    shell.note("building tael")
    shell.output_of(["cmake", "--preset", "release", "-S", shell.ROOT])
    shell.output_of(["cmake", "--build", shell.ROOT / "build/release", "--target", "tael"])
    return shell.ROOT / "build/release/tael"


def llama_version():
    """Of the source package that scripts/get-model fetches."""
    archives = sorted((shell.cache_folder() / "src").glob("llama_cpp_python-*.tar.gz"))
    return archives[-1].name.removesuffix(".tar.gz").rsplit("-", 1)[-1] if archives else "unknown"


def commit():
    """The commit of the working tree, with '+' when files differ from it; '' without git."""
    git = ["git", "-C", str(shell.ROOT)]
    head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], check=False,
                          capture_output=True, text=True)
    dirty = subprocess.run([*git, "status", "--porcelain", "--untracked-files=no"], check=False,
                           capture_output=True, text=True)
    return head.stdout.strip() + ("+" if dirty.stdout.strip() else "")
