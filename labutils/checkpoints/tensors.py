"""Read and write safetensors piece by piece, so that a conversion holds one piece of one tensor and no framework.

The format: 8 bytes little-endian header length, a JSON header {name: {dtype, shape, data_offsets}}, then the bytes.
"""

import json
import math
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labutils.errors import CheckpointError

# bfloat16 is the upper half of a float32; numpy has no name for it, so its pieces are uint16.
STORED = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2"), "I64": np.dtype("<i8")}
NAMES = {"float32": "F32", "bfloat16": "BF16"}
PIECE = 2**21  # numbers in one piece: 8 MiB of float32


@dataclass(frozen=True)
class Tensor:
    """A named tensor whose content comes in pieces: `pieces()` yields flat arrays of STORED[dtype], in order."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: Callable[[], Iterator[np.ndarray]]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * STORED[self.dtype].itemsize

    def renamed(self, name: str) -> "Tensor":
        return Tensor(name, self.dtype, self.shape, self.pieces)

    def cast(self, dtype: str) -> "Tensor":
        """Return the tensor as "float32" or "bfloat16" (rounded to nearest even, as torch does); integers stay."""
        to = NAMES[dtype]
        if self.dtype in (to, "I64"):
            return self
        change = _to_bfloat16 if to == "BF16" else _identity
        return Tensor(self.name, to, self.shape,
                      lambda: (change(to_float32(piece, self.dtype)) for piece in self.pieces()))


def _identity(piece: np.ndarray) -> np.ndarray:
    return piece


def to_float32(piece: np.ndarray, dtype: str) -> np.ndarray:
    """Return a piece stored as F32, F16 or BF16 as float32. No value changes."""
    if dtype == "BF16":
        return (piece.astype(np.uint32) << 16).view(np.float32)
    return piece.astype(np.float32, copy=False)


def _to_bfloat16(piece: np.ndarray) -> np.ndarray:
    if not np.isfinite(piece).all():
        raise CheckpointError("A weight is not a finite number; the source is damaged.")
    bits = np.ascontiguousarray(piece).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def read(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file by name; their bytes are read when their pieces are asked for.

    Raises CheckpointError when the file is not whole or holds a type that no course checkpoint has.
    """
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > size:
                raise ValueError("header is longer than the file")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        found = {}
        for name, entry in header.items():
            start, end = (8 + length + offset for offset in entry["data_offsets"])
            tensor = Tensor(name, entry["dtype"], tuple(entry["shape"]), _reader(path, entry["dtype"], start, end))
            if end > size or end - start != tensor.nbytes:
                raise ValueError(f"{name} is cut off")
            found[name] = tensor
        return found
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is not a whole safetensors file: {error}.") from error


def _reader(path: Path, dtype: str, start: int, end: int) -> Callable[[], Iterator[np.ndarray]]:
    stored = STORED[dtype]

    def pieces() -> Iterator[np.ndarray]:
        with path.open("rb") as file:
            file.seek(start)
            left = end - start
            while left:
                data = file.read(min(left, PIECE * stored.itemsize))
                if not data:
                    raise CheckpointError(f"{path} ends too early.")
                left -= len(data)
                yield np.frombuffer(data, dtype=stored)

    return pieces


def write(file, tensors: Iterable[Tensor], step: Callable[[int], None] = lambda count: None) -> None:
    """Write `tensors` to `file` (anything with write(bytes)); `step(count)` is told after every piece of bytes."""
    tensors = list(tensors)
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for tensor in tensors:
        header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape),
                               "data_offsets": [offset, offset + tensor.nbytes]}
        offset += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the tensors start at a multiple of 8 bytes
    file.write(struct.pack("<Q", len(text)) + text)
    for tensor in tensors:
        written = 0
        for piece in tensor.pieces():
            piece = np.ascontiguousarray(piece, dtype=STORED[tensor.dtype])
            file.write(piece.data.cast("B"))
            written += piece.nbytes
            step(piece.nbytes)
        if written != tensor.nbytes:
            raise CheckpointError(f"The tensor {tensor.name} came with {written} of {tensor.nbytes} bytes.")
