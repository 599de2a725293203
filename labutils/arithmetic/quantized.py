"""What quantized weights take, to the byte: bitsandbytes' LLM.int8, FP4, NF4 and double quantization, and GGUF blocks.

bitsandbytes replaces the linear layers (never the head, nor what is tied to it) and leaves embeddings, norms, biases
and expert stacks in the dtype of the model. Beside the packed numbers it holds scales, which `get_memory_footprint`
forgets. The numbers are those after loading. A CPU with AVX512-BF16 repacks a 4-bit layer at its first forward pass:
its scales become bfloat16, and double quantization is undone (`repacked`).
"""

import math
from dataclasses import dataclass
from typing import Any

from labutils.arithmetic.cache import DTYPE_BYTES, count, dtype_name
from labutils.arithmetic.config import Config
from labutils.arithmetic.errors import ConfigError, UnknownArchitecture
from labutils.arithmetic.expressions import shown
from labutils.arithmetic.gguf_file import GGUFFile, block_formats
from labutils.arithmetic.weights import FIXED_BYTES, Parameters, Tensor

SCHEMES = ("none", "int8", "fp4", "fp4-double", "nf4", "nf4-double")
BLOCK = 64  # weights that share one scale in FP4 and NF4
NESTED_BLOCK = 256  # scales that share one scale in double quantization
CODE_BOOK = 16 * 4
NESTED_CODE_BOOK = 256 * 4 + 4  # and the offset of the scales


@dataclass(frozen=True)
class WeightBytes:
    """The bytes of a model's weights: quantized numbers, their scales and code books, everything else, and buffers."""

    scheme: str
    quantized: int
    scales: int
    rest: int
    buffers: int

    @property
    def total(self) -> int:
        return self.quantized + self.scales + self.rest + self.buffers


@dataclass(frozen=True)
class Format:
    """One format: `weights` share a block of `bytes` bytes (both 0 where the scale belongs to a whole row)."""

    name: str
    library: str
    weights: int
    bytes: int
    bits_per_weight: float


def format_table(columns: int = 4096) -> tuple[Format, ...]:
    """Return the bits per weight, scales included, of each bitsandbytes and GGUF format, fewest bits first.

    `columns` is the length of a row, over which LLM.int8 spreads one scale. Code books, the same few bytes for a whole
    layer, are left out. Raises ConfigError for columns < 1.
    """
    columns = count(columns, "columns")
    four, nested = BLOCK // 2 + 4, BLOCK * NESTED_BLOCK // 2 + NESTED_BLOCK + 4
    ours = [Format("LLM.int8", "bitsandbytes", columns, columns + 4, (columns + 4) * 8 / columns)]
    for name in ("FP4", "NF4"):
        ours.append(Format(name, "bitsandbytes", BLOCK, four, four * 8 / BLOCK))
        weights = BLOCK * NESTED_BLOCK
        ours.append(Format(f"{name}, double", "bitsandbytes", weights, nested, nested * 8 / weights))
    theirs = [Format(name, "GGUF", block, size, size * 8 / block) for name, block, size in block_formats()]
    return tuple(sorted(ours + theirs, key=lambda each: (each.bits_per_weight, each.library, each.name)))


def weight_bytes(parameters: Parameters, dtype: Any, scheme: str = "none", repacked: bool = False) -> WeightBytes:
    """Return what the weights hold in memory under a scheme: "none", "int8", "fp4", "nf4", or one of them "-double".

    `dtype` is that of everything that is not quantized. `repacked`: after the first forward pass on a CPU with
    AVX512-BF16 (4-bit schemes only). Raises ConfigError for an unknown scheme.
    """
    if scheme not in SCHEMES:
        raise ConfigError(f"quantization is {shown(scheme)}; it can be {', '.join(SCHEMES)}")
    size = DTYPE_BYTES[dtype_name(dtype)]
    quantized = scales = rest = buffers = 0
    for tensor in parameters.tensors:
        amount = tensor.total * (size if tensor.dtype == "model" else FIXED_BYTES[tensor.dtype])
        if tensor.buffer:
            buffers += amount
        elif scheme == "none" or not tensor.linear:
            rest += amount
        else:
            quantized += tensor.copies * (tensor.numbers if scheme == "int8" else math.ceil(tensor.numbers / 2))
            scales += tensor.copies * _scales(tensor, scheme, repacked)
    return WeightBytes(scheme, quantized, scales, rest, buffers)


def gguf_bytes(file: GGUFFile) -> WeightBytes:
    """Return what the tensors of a GGUF file take where they stay in their blocks, as in llama.cpp."""
    blocks = sum(tensor.bytes for tensor in file.tensors if not tensor.plain)
    return WeightBytes("gguf", blocks, 0, file.tensor_bytes - blocks, 0)


def _scales(tensor: Tensor, scheme: str, repacked: bool) -> int:
    if scheme == "int8":
        return 4 * (tensor.shape[1] if tensor.linear == "conv1d" else tensor.shape[0])
    blocks = math.ceil(tensor.numbers / BLOCK)
    if repacked:
        return blocks * 2 + CODE_BOOK + (4 if scheme.endswith("-double") else 0)
    if not scheme.endswith("-double"):
        return blocks * 4 + CODE_BOOK
    return blocks + math.ceil(blocks / NESTED_BLOCK) * 4 + NESTED_CODE_BOOK + CODE_BOOK


def scheme_of(config: Config) -> str:
    """Return the scheme that a config's quantization_config asks for.

    A model loaded from GGUF says "gguf" but is held dequantized, so it is "none". Raises UnknownArchitecture, naming
    the method, for those whose held bytes no rule here gives (gptq, awq, fp8, mxfp4, compressed-tensors, ...).
    """
    settings = config.quantization
    if not settings:
        return "none"
    method = settings.get("quant_method")
    if method == "gguf":
        return "none"
    if method == "bitsandbytes" or method is None and (settings.get("load_in_8bit") or settings.get("load_in_4bit")):
        if settings.get("load_in_8bit"):
            return "int8"
        kind = settings.get("bnb_4bit_quant_type", "fp4")
        if settings.get("load_in_4bit") and kind in ("nf4", "fp4"):
            return f"{kind}-double" if settings.get("bnb_4bit_use_double_quant") else kind
    raise UnknownArchitecture(
        f"the config is quantized with quant_method {shown(method)}, for which there is no rule; its weights are not "
        f"computed. Give a scheme yourself to plan another one ({', '.join(SCHEMES)})."
    )
