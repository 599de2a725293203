"""What a GGUF file says of itself: metadata, tensors with their block types, bytes and bits per weight.

Only the header is read, so that a file of many gigabytes answers at once. Source: the GGUF specification of ggml
(docs/gguf.md); the block types equal gguf.GGML_QUANT_SIZES (tests/unit/test_arithmetic_quantized.py compares them).
"""

import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from labutils.arithmetic.errors import ConfigError, UnknownArchitecture

# Number in the file -> name, weights in a block, bytes of a block.
BLOCK_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}
# Types of metadata values: number in the file -> struct format; 8 is a text, 9 an array.
SCALARS = dict(enumerate(("B", "b", "H", "h", "I", "i", "f", "?"))) | {10: "Q", 11: "q", 12: "d"}
TEXT, ARRAY = 8, 9
KEPT = 64  # arrays longer than this (vocabularies) are kept as their length
LONGEST = 2**24  # bytes of one text
# Metadata of a Llama-type model -> transformers' name. The architecture's name is the model type.
FIELDS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
}
ARCHITECTURES = ("llama", "qwen2", "qwen3")


@dataclass(frozen=True)
class FileTensor:
    """One tensor of a file. `shape` is in torch's order, `offset` counts from the start of the file."""

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int

    @property
    def numbers(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        _, block, size = next(row for row in BLOCK_TYPES.values() if row[0] == self.type)
        return self.numbers // block * size

    @property
    def plain(self) -> bool:
        """True where a number stands for itself (F32, BF16, ...), False for blocks with scales."""
        return next(block for name, block, _ in BLOCK_TYPES.values() if name == self.type) == 1


@dataclass(frozen=True)
class GGUFFile:
    """The header of a GGUF file. A long array of the metadata is kept as a text such as "49,152 entries"."""

    version: int
    metadata: dict[str, Any]
    lengths: dict[str, int]
    tensors: tuple[FileTensor, ...]
    data_start: int
    size: int

    @property
    def parameters(self) -> int:
        return sum(tensor.numbers for tensor in self.tensors)

    @property
    def tensor_bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.tensors)

    @property
    def bits_per_weight(self) -> float:
        """Bits for each weight, scales included, metadata and padding left out."""
        return self.tensor_bytes * 8 / self.parameters

    def types(self) -> dict[str, tuple[int, int, int]]:
        """Return for each block type: how many tensors, weights, bytes; the largest share of bytes first."""
        found: dict[str, list[int]] = {}
        for tensor in self.tensors:
            row = found.setdefault(tensor.type, [0, 0, 0])
            for place, amount in enumerate((1, tensor.numbers, tensor.bytes)):
                row[place] += amount
        return {name: tuple(row) for name, row in sorted(found.items(), key=lambda each: -each[1][2])}

    def config(self) -> dict[str, Any]:
        """Return a config as transformers writes it, from the metadata and the tensors.

        Raises UnknownArchitecture for a model that is not of a Llama type.
        """
        architecture = self.metadata.get("general.architecture")
        if architecture not in ARCHITECTURES:
            raise UnknownArchitecture(
                f"the file holds a model of architecture {architecture!r}; from GGUF only {', '.join(ARCHITECTURES)} are "
                "planned. Give the config.json of the original model instead"
            )
        if any("_exps." in tensor.name for tensor in self.tensors):
            raise UnknownArchitecture("the file holds experts (ffn_*_exps), for which there is no rule here; give the "
                                      "config.json of the original model instead")
        config = {"model_type": architecture}
        for theirs, ours in FIELDS.items():
            value = self.metadata.get(f"{architecture}.{theirs}")
            if isinstance(value, list) and len(set(value)) == 1:
                value = value[0]
            if value is not None:
                config[ours] = value
        if architecture == "qwen2":
            config.pop("head_dim", None)
        names = {tensor.name: tensor for tensor in self.tensors}
        if "token_embd.weight" not in names:
            raise ConfigError("the file has no tensor token_embd.weight, so it is not a whole model")
        config["vocab_size"] = names["token_embd.weight"].shape[0]
        config["tie_word_embeddings"] = "output.weight" not in names
        config["dtype"] = "float16"  # llama.cpp's cache, unless told otherwise
        config["quantization_config"] = {"quant_method": "gguf"}
        return config


def read_gguf(path: Any) -> GGUFFile:
    """Read the header of a GGUF file (versions 2 and 3, little-endian).

    Raises ConfigError when it is no GGUF file, ends too early, or holds a type that is not known.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            return _header(file, path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None
    except (struct.error, UnicodeDecodeError):
        raise ConfigError(f"{path} ends inside its header or is damaged: it is no whole GGUF file") from None


def _header(file: BinaryIO, path: Path) -> GGUFFile:
    size = path.stat().st_size
    if file.read(4) != b"GGUF":
        raise ConfigError(f"{path} does not begin with GGUF, so it is no GGUF file")
    version, tensor_count, value_count = _take(file, "IQQ")
    if version not in (2, 3):
        raise ConfigError(f"{path} is GGUF version {version}; versions 2 and 3 (little-endian) are read")
    if max(tensor_count, value_count) > size // 8:
        raise ConfigError(f"{path} says it has {tensor_count:,} tensors and {value_count:,} values, more than fit in it")
    metadata, lengths = {}, {}
    for _ in range(value_count):
        name = _text(file)
        metadata[name], lengths[name] = _value(file, *_take(file, "I"))
    rows = [_tensor_row(file) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 0 < alignment <= 2**20:
        raise ConfigError(f"{path}: general.alignment is {alignment!r}; it must be a small whole number")
    start = math.ceil(file.tell() / alignment) * alignment
    tensors = tuple(_tensor(path, *row, start) for row in rows)
    end = max((tensor.offset + tensor.bytes for tensor in tensors), default=start)
    if end > size:
        raise ConfigError(f"{path} has {size:,} bytes, but its tensors end at {end:,}: the download is not complete")
    return GGUFFile(version, metadata, lengths, tensors, start, size)


def _take(file: BinaryIO, kinds: str) -> tuple:
    return struct.unpack(f"<{kinds}", file.read(struct.calcsize(f"<{kinds}")))


def _text(file: BinaryIO) -> str:
    (length,) = _take(file, "Q")
    if length > LONGEST:
        raise struct.error
    data = file.read(length)
    if len(data) < length:
        raise struct.error
    return data.decode()


def _value(file: BinaryIO, kind: int) -> tuple[Any, int]:
    """Return a metadata value and, for an array, its length (else 1)."""
    if kind in SCALARS:
        return _take(file, SCALARS[kind])[0], 1
    if kind == TEXT:
        return _text(file), 1
    if kind != ARRAY:
        raise ConfigError(f"the header holds a value of type {kind}, which GGUF does not have")
    inner, length = _take(file, "IQ")
    if inner in SCALARS:
        width = struct.calcsize(f"<{SCALARS[inner]}")
        data = file.read(width * length) if length <= LONGEST else b""
        values = list(struct.unpack(f"<{length}{SCALARS[inner]}", data))
    else:
        values = [_value(file, inner)[0] for _ in range(length)]
    return (values if length <= KEPT else f"{length:,} entries"), length


def _tensor_row(file: BinaryIO) -> tuple[str, tuple[int, ...], int, int]:
    name = _text(file)
    (dimensions,) = _take(file, "I")
    if dimensions > 8:
        raise ConfigError(f"the tensor {name} has {dimensions} dimensions")
    shape = tuple(reversed(_take(file, "Q" * dimensions)))
    return name, shape, *_take(file, "IQ")


def _tensor(path: Path, name: str, shape: tuple[int, ...], kind: int, offset: int, start: int) -> FileTensor:
    if kind not in BLOCK_TYPES:
        raise ConfigError(f"{path}: the tensor {name} is of block type {kind}, which is not known here")
    label, block, _ = BLOCK_TYPES[kind]
    if not shape or min(shape) < 1 or shape[-1] % block:
        raise ConfigError(f"{path}: the tensor {name} {list(shape)} does not divide into {label} blocks of {block}")
    return FileTensor(name, shape, label, start + offset)


def block_formats() -> Iterable[tuple[str, int, int]]:
    """Yield name, weights in a block and bytes of a block for every GGUF type that holds weights."""
    return (row for row in BLOCK_TYPES.values() if not row[0].startswith("I") or row[0].startswith("IQ"))
