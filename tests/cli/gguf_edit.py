"""Reads a small GGUF file into plain values, and writes it again with whatever was changed.

Holds no opinion on what makes sense: tests use it to make files that lie.
"""

import struct

FIXED = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
UINT32, FLOAT32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self, code):
        (value,) = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def string(self):
        length = self.number("Q")
        self.at += length
        return self.data[self.at - length : self.at]

    def value(self, kind):
        if kind in FIXED:
            return self.number(FIXED[kind])
        if kind == STRING:
            return self.string()
        element = self.number("I")
        return element, [self.value(element) for _ in range(self.number("Q"))]


class Gguf:
    """keys: [name, kind, value]; tensors: dicts of name, shape, type, offset, data."""

    def __init__(self, path):
        with open(path, "rb") as file:
            data = file.read()
        reader = Reader(data)
        assert reader.number("I") == 0x46554747
        self.version = reader.number("I")
        num_tensors, num_keys = reader.number("Q"), reader.number("Q")
        self.keys = []
        for _ in range(num_keys):
            name, kind = reader.string().decode(), reader.number("I")
            self.keys.append([name, kind, reader.value(kind)])
        self.tensors = []
        for _ in range(num_tensors):
            name = reader.string().decode()
            shape = [reader.number("Q") for _ in range(reader.number("I"))]
            kind, offset = reader.number("I"), reader.number("Q")
            self.tensors.append({"name": name, "shape": shape, "type": kind, "offset": offset})
        self.alignment = self.get("general.alignment", 32)
        start = -(-reader.at // self.alignment) * self.alignment
        ends = sorted(t["offset"] for t in self.tensors) + [len(data) - start]
        for tensor in self.tensors:
            end = ends[ends.index(tensor["offset"]) + 1]
            tensor["data"] = data[start + tensor["offset"] : start + end]

    def get(self, name, default=None):
        return next((value for key, _, value in self.keys if key == name), default)

    def set(self, name, kind, value):
        self.keys = [entry for entry in self.keys if entry[0] != name]
        self.keys.append([name, kind, value])

    def tensor(self, name):
        return next(tensor for tensor in self.tensors if tensor["name"] == name)

    def write(self, path):
        """Tensor data in file order; offsets as they are in `tensors`."""
        out = bytearray(struct.pack("<IIQQ", 0x46554747, self.version, len(self.tensors),
                                    len(self.keys)))
        for name, kind, value in self.keys:
            out += packed_string(name) + struct.pack("<I", kind) + packed(kind, value)
        for tensor in self.tensors:
            out += packed_string(tensor["name"]) + struct.pack("<I", len(tensor["shape"]))
            out += struct.pack(f"<{len(tensor['shape'])}Q", *tensor["shape"])
            out += struct.pack("<IQ", tensor["type"], tensor["offset"])
        out += bytes(-len(out) % self.alignment)
        start = len(out)
        for tensor in sorted(self.tensors, key=lambda t: t["offset"]):
            gap = start + tensor["offset"] - len(out)
            out += bytes(gap if 0 < gap < 1 << 20 else 0) + tensor["data"]
        with open(path, "wb") as file:
            file.write(out)
        return path


def packed_string(text):
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def packed(kind, value):
    if kind in FIXED:
        return struct.pack("<" + FIXED[kind], value)
    if kind == STRING:
        return packed_string(value)
    element, values = value
    return struct.pack("<IQ", element, len(values)) + b"".join(packed(element, v) for v in values)
