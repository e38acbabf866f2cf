"""Models with random weights in the shape of real ones, and with a real vocabulary.

Speed depends on shapes and formats, not on what the weights say, and files of this size need no
download. Weights are scaled so that activations neither grow nor vanish through the layers; a
model quantised from them computes the same as another engine's, so outputs can be compared.

Runs in a Python with numpy and gguf (toolbox.model_python).
"""

import dataclasses
import math
import re


@dataclasses.dataclass(frozen=True)
class Shape:
    """The numbers of an architecture; names as in GGUF metadata."""
    architecture: str
    vocabulary: str  # file of llama.cpp's vocabularies
    layers: int
    width: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_dim: int
    num_tokens: int
    rope_base: float
    tied: bool           # the output matrix is the embedding table
    biases: bool = False  # of the Q, K and V projections


SHAPES = {
    "qwen2.5-0.5b": Shape("qwen2", "qwen2", layers=24, width=896, feed_forward=4864, heads=14,
                          kv_heads=2, head_dim=64, num_tokens=151936, rope_base=1e6, tied=True,
                          biases=True),
    "qwen2.5-1.5b": Shape("qwen2", "qwen2", layers=28, width=1536, feed_forward=8960, heads=12,
                          kv_heads=2, head_dim=128, num_tokens=151936, rope_base=1e6, tied=True,
                          biases=True),
    # The model that the first design notes reckon with.
    "seed-1.1b": Shape("llama", "llama-spm", layers=24, width=1536, feed_forward=8960, heads=12,
                       kv_heads=2, head_dim=128, num_tokens=32000, rope_base=1e4, tied=False),
    "llama3.2-1b": Shape("llama", "llama-bpe", layers=16, width=2048, feed_forward=8192, heads=32,
                         kv_heads=8, head_dim=64, num_tokens=128256, rope_base=5e5, tied=True),
    "llama3.2-3b": Shape("llama", "llama-bpe", layers=28, width=3072, feed_forward=8192, heads=24,
                         kv_heads=8, head_dim=128, num_tokens=128256, rope_base=5e5, tied=True),
}

CONTEXT_LENGTH = 32768
RMS_EPSILON = 1e-6
UNUSED = 5  # GGUF's token type of ids that no text gives
# Per vocabulary entry, and what entries beyond the vocabulary's own get (shapes round the
# number of tokens up).
PER_TOKEN = {"tokens": lambda i: f"[PAD{i}]", "token_type": lambda i: UNUSED,
             "scores": lambda i: -1000.0}


def matrices(shape):
    """(name, rows, columns, standard deviation) of every matrix, in order of use."""
    query, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    # Small: a tied table is also the output matrix, and logits should stay in a natural range.
    yield "token_embd", shape.num_tokens, shape.width, 0.05
    for layer in range(shape.layers):
        for name, rows, columns in (
                ("attn_q", query, shape.width), ("attn_k", kv, shape.width),
                ("attn_v", kv, shape.width), ("attn_output", shape.width, query),
                ("ffn_gate", shape.feed_forward, shape.width),
                ("ffn_up", shape.feed_forward, shape.width),
                ("ffn_down", shape.width, shape.feed_forward)):
            yield f"blk.{layer}.{name}", rows, columns, 1 / math.sqrt(columns)
    if not shape.tied:
        yield "output", shape.num_tokens, shape.width, 1 / math.sqrt(shape.width)


def vectors(shape):
    """(name, length, mean) of every norm and bias."""
    yield "output_norm.weight", shape.width, 1
    for layer in range(shape.layers):
        yield f"blk.{layer}.attn_norm.weight", shape.width, 1
        yield f"blk.{layer}.ffn_norm.weight", shape.width, 1
        if shape.biases:
            for name, heads in (("q", shape.heads), ("k", shape.kv_heads), ("v", shape.kv_heads)):
                yield f"blk.{layer}.attn_{name}.bias", heads * shape.head_dim, 0


def fitted(name, values, count):
    """A list per token, cut or padded to the shape's number of tokens."""
    values = list(values[:count])
    return values + [PER_TOKEN[name](i) for i in range(len(values), count)]


def add_shape(writer, name, shape):
    writer.add_name(f"{name}, random weights")
    writer.add_block_count(shape.layers)
    writer.add_context_length(CONTEXT_LENGTH)
    writer.add_embedding_length(shape.width)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(RMS_EPSILON)
    writer.add_file_type(1)  # mostly F16


def add_vocabulary(writer, path, num_tokens):
    """Copies a vocabulary-only file's tokenizer."""
    from gguf import GGUFReader
    lists = {"tokens": writer.add_token_list, "token_type": writer.add_token_types,
             "scores": writer.add_token_scores}
    for key, field in GGUFReader(path).fields.items():
        if not key.startswith("tokenizer."):
            continue
        name, value = key.rsplit(".", 1)[-1], field.contents()
        if name in lists:
            lists[name](fitted(name, value, num_tokens))
        elif name == "merges":
            writer.add_token_merges(value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)


def write_f16(name, vocabulary, path):
    """Writes the F16 file tensor by tensor: no more than one matrix is in memory."""
    import numpy

    from gguf import GGUFWriter
    shape = SHAPES[name]
    writer = GGUFWriter(path, shape.architecture)
    add_shape(writer, name, shape)
    add_vocabulary(writer, vocabulary, shape.num_tokens)
    for tensor, length, _ in vectors(shape):
        writer.add_tensor_info(tensor, (length,), numpy.dtype(numpy.float32), length * 4)
    for tensor, rows, columns, _ in matrices(shape):
        writer.add_tensor_info(f"{tensor}.weight", (rows, columns), numpy.dtype(numpy.float16),
                               rows * columns * 2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    random = numpy.random.default_rng(1)
    for _, length, mean in vectors(shape):
        writer.write_tensor_data((mean + 0.1 * random.standard_normal(length)).astype("float32"))
    for _, rows, columns, deviation in matrices(shape):
        values = random.standard_normal((rows, columns), dtype=numpy.float32) * deviation
        writer.write_tensor_data(values.astype(numpy.float16))
    writer.close()


def hollow_type(tensor, shape, kind):
    """The type that llama-quantize would give a matrix."""
    is_head = tensor == "output" or (shape.tied and tensor == "token_embd")
    return "Q6_K" if is_head and kind.startswith("Q4") else kind


def write_hollow(name, vocabulary, path, kind):
    """Writes a file whose weights are a hole, all zero: enough for `tael plan`, and for what memory a
    pass takes. It is as long as the real one, and takes no room on the disk."""
    import os

    import numpy

    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
    shape = SHAPES[name]
    writer = GGUFWriter(path, shape.architecture)
    add_shape(writer, name, shape)
    add_vocabulary(writer, vocabulary, shape.num_tokens)
    alignment, num_bytes = writer.data_alignment, 0

    def padded(count):
        return -(-count // alignment) * alignment

    for tensor, length, _ in vectors(shape):
        writer.add_tensor_info(tensor, (length,), numpy.dtype(numpy.float32), length * 4)
        num_bytes += padded(length * 4)
    for tensor, rows, columns, _ in matrices(shape):
        of = GGMLQuantizationType[hollow_type(tensor, shape, kind)]
        values, size = GGML_QUANT_SIZES[of]
        row_bytes = columns // values * size
        writer.add_tensor_info(f"{tensor}.weight", (rows, row_bytes), numpy.dtype(numpy.uint8),
                               rows * row_bytes, raw_dtype=of)
        num_bytes += padded(rows * row_bytes)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    os.truncate(path, padded(os.path.getsize(path)) + num_bytes)


def is_type(name):
    """Whether a quantisation has a name that is safe in a file name; llama-quantize knows which."""
    return re.fullmatch(r"[A-Z][A-Z0-9_]{1,11}", name) is not None
