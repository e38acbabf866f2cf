"""What the tests in cages share: models in a folder of their own, and reasons to skip."""

import mmap
import os
import pathlib
import struct
import tempfile
import unittest

import cage
import caged

DATA = pathlib.Path(__file__).resolve().parent.parent / "data"


class Case(unittest.TestCase):
    def setUp(self):
        reason = caged.own_memory()
        if reason:
            self.skipTest(reason)
        try:
            with cage.Cage(1 << 30):
                pass
        except cage.NoCage as none:
            self.skipTest(str(none))
        # Beside the program: a file on tmpfs would be memory itself.
        folder = tempfile.TemporaryDirectory(dir=pathlib.Path(caged.BINARY).resolve().parent)
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def tiny(self, name):
        return cage.private_copy(DATA / "tiny" / f"{name}.gguf", self.folder)

    def model(self, name):
        """A private copy of a real model (scripts/get-model), or a skipped test."""
        folder = os.environ.get("TAEL_TEST_MODELS", "")
        path = pathlib.Path(folder) / f"{name}.gguf"
        if not folder or not path.exists():
            self.skipTest(f"TAEL_TEST_MODELS names no folder with {name}")
        return cage.private_copy(path, self.folder)


def set_uint32(path, key, value):
    """Changes a number of a GGUF file's metadata where it is."""
    uint32 = 4
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        name = key.encode()
        at = data.find(struct.pack("<Q", len(name)) + name + struct.pack("<I", uint32))
        if at < 0:
            raise ValueError(f"{path} has no {key}")
        struct.pack_into("<I", data, at + 8 + len(name) + 4, value)
