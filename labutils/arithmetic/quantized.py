"""What quantized weights take, to the byte of what bitsandbytes holds: LLM.int8, NF4, and NF4 with double quantization.

bitsandbytes replaces the linear layers (never the head, nor what is tied to it) and leaves embeddings, norms, biases
and expert stacks in the dtype of the model. Beside the packed numbers it holds scales, which `get_memory_footprint`
forgets.
"""

import math
from dataclasses import dataclass
from typing import Any

from labutils.arithmetic.cache import DTYPE_BYTES, dtype_name
from labutils.arithmetic.config import Config
from labutils.arithmetic.errors import ConfigError, UnknownArchitecture
from labutils.arithmetic.expressions import shown
from labutils.arithmetic.weights import FIXED_BYTES, Parameters, Tensor

SCHEMES = ("none", "int8", "nf4", "nf4-double")
BLOCK = 64  # weights that share one scale in NF4
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


def weight_bytes(parameters: Parameters, dtype: Any, scheme: str = "none") -> WeightBytes:
    """Return what the weights hold in memory under a scheme: "none", "int8", "nf4" or "nf4-double".

    `dtype` is that of everything that is not quantized. Raises ConfigError for an unknown scheme.
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
            scales += tensor.copies * _scales(tensor, scheme)
    return WeightBytes(scheme, quantized, scales, rest, buffers)


def _scales(tensor: Tensor, scheme: str) -> int:
    if scheme == "int8":
        return 4 * (tensor.shape[1] if tensor.linear == "conv1d" else tensor.shape[0])
    blocks = math.ceil(tensor.numbers / BLOCK)
    if scheme == "nf4":
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
        if settings.get("load_in_4bit") and settings.get("bnb_4bit_quant_type", "fp4") in ("nf4", "fp4"):
            return "nf4-double" if settings.get("bnb_4bit_use_double_quant") else "nf4"
    raise UnknownArchitecture(
        f"the config is quantized with quant_method {shown(method)}, for which there is no rule; its weights are not "
        "computed. Give a scheme yourself to plan another one (none, int8, nf4, nf4-double)."
    )
