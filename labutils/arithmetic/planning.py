"""Will it fit: weights, cache and logits of a model against the memory of a device, and what is not counted."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labutils.arithmetic.cache import KVCache, Rules, count
from labutils.arithmetic.config import Config
from labutils.arithmetic.errors import ConfigError
from labutils.arithmetic.expressions import shown
from labutils.arithmetic.gguf_file import GGUFFile, read_gguf
from labutils.arithmetic.quantized import WeightBytes, gguf_bytes, scheme_of, weight_bytes
from labutils.arithmetic.weights import logits, parameters

UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
NOT_COUNTED = (
    "activations and score matrices while the prompt is read (labutils.trace measures them)",
    "the second copy of one layer's cache while torch.cat grows it",
    "the CUDA context, the allocator's reserve and fragmentation",
    "what an inference engine reserves ahead of use",
)
MOST = 2**24


@dataclass(frozen=True)
class Plan:
    """What a model takes, in bytes, and whether it fits.

    `weights` and `cache` are exact (see tools/verify_arithmetic.py); `cache` is for a prompt of the whole context,
    `decoding` what the cache holds once tokens come one by one (less, in a sliding model); `logits` is one step of
    generate (the last token of each sequence, float32 copy included). `largest_batch` holds at this context,
    `longest_context` at this batch; both are None without a memory and 0 when not even one fits. `assumed` names sizes
    that the config left to transformers.
    """

    model_type: str
    family: str
    dtype: str
    scheme: str
    batch: int
    context: int
    parameters: int
    weights: WeightBytes
    cache: KVCache
    decoding: int
    logits: int
    memory: int | None
    fits: bool | None
    largest_batch: int | None
    longest_context: int | None
    not_counted: tuple[str, ...]
    assumed: tuple[str, ...]
    positions: int | None

    @property
    def total(self) -> int:
        return self.weights.total + self.cache.peak + self.logits


def plan(
    config: Any,
    memory: int | str | None = None,
    dtype: Any = None,
    quantization: str | None = None,
    batch: int = 1,
    context: int = 4096,
    encoder: int | None = None,
) -> Plan:
    """Return what a model takes at a batch and context (tokens of prompt and answer together), and what would fit.

    `memory` is in bytes or a text such as "24GB" or "16GiB"; `quantization` is "none", "int8", "fp4", "nf4", or one of the
    last two with "-double" (default: what the config says). Instead of a config it may be a .gguf file: its tensors are
    counted in their blocks, as llama.cpp holds them ("gguf"), or with "none" expanded, as transformers holds them. For
    an encoder-decoder, `context` counts decoder tokens and `encoder` input tokens
    (default: as many). Raises ConfigError and UnknownArchitecture as `kv_cache` and `parameters` do.
    """
    file = gguf_of(config)
    rules = Rules(file.config() if file else config)
    config = rules.config
    batch, context = count(batch, "batch", 1, MOST), count(context, "context", 1, MOST)
    dtype = rules.dtype(dtype)
    size = memory_bytes(memory) if memory is not None else None
    scheme = quantization or ("gguf" if file else scheme_of(config))
    if encoder is None and config.fields.get("is_encoder_decoder"):
        encoder = context
    found = parameters(config)
    weights = gguf_bytes(file) if file and scheme == "gguf" else weight_bytes(found, dtype, scheme)

    def total(batch: int, context: int) -> int:
        return weights.total + rules.cache(batch, context, 1, dtype, encoder).peak + _step_logits(config, batch, dtype)

    cache = rules.cache(batch, context, 1, dtype, encoder)
    fits = largest_batch = longest_context = None
    if size is not None:
        fits = total(batch, context) <= size
        largest_batch = _largest(lambda number: total(number, context) <= size)
        longest_context = _largest(lambda number: total(batch, number) <= size)
    positions = next(
        (
            config.text.fields[name]
            for name in ("max_position_embeddings", "n_positions", "max_seq_len")
            if isinstance(config.text.fields.get(name), int) and config.text.fields[name] > 0
        ),
        None,
    )
    return Plan(
        config.model_type,
        cache.family,
        dtype,
        scheme,
        batch,
        context,
        found.total,
        weights,
        cache,
        rules.cache(batch, max(context - 1, 1), 2, dtype, encoder).held,
        _step_logits(config, batch, dtype),
        size,
        fits,
        largest_batch,
        longest_context,
        NOT_COUNTED + tuple(f"{part} (no rule)" for part in found.not_counted),
        config.assumed + config.text.assumed,
        positions,
    )


def gguf_of(config: Any) -> GGUFFile | None:
    """Return the header of the .gguf file that `config` names, None when it is anything else."""
    if isinstance(config, GGUFFile):
        return config
    is_file = isinstance(config, (str, Path)) and str(config).lower().endswith(".gguf")
    return read_gguf(config) if is_file else None


def _step_logits(config: Config, batch: int, dtype: str) -> int:
    """Return the bytes of one step's logits: generate keeps the last token's and copies them to float32."""
    last = logits(config, batch, 1, dtype)
    return last if dtype == "float32" else last + logits(config, batch, 1, "float32")


def _largest(fits: Callable[[int], bool]) -> int:
    """Return the largest number for which `fits` holds, by doubling and bisection; 0 when it does not hold for 1.

    Cache sizes never shrink with more tokens, but they do not grow evenly (windows, states), so no division is used.
    """
    if not fits(1):
        return 0
    low, high = 1, 2
    while high < MOST and fits(high):
        low, high = high, high * 2
    high = min(high, MOST)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def memory_bytes(memory: Any) -> int:
    """Return a memory in bytes from 16000000000, "16GB" (10**9) or "16GiB" (2**30). Raises ConfigError otherwise."""
    if isinstance(memory, int) and not isinstance(memory, bool) and 0 < memory < 2**60:
        return memory
    found = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,9})?)\s*([A-Za-z]*)\s*", memory) if isinstance(memory, str) else None
    unit = found and found.group(2).upper()
    if not found or unit not in UNITS or not 0 < float(found.group(1)) * UNITS[unit] < 2**60:
        raise ConfigError(f"memory is {shown(memory)}; write it as 24GB (10**9 bytes), 24GiB (2**30 bytes) or in bytes")
    return int(float(found.group(1)) * UNITS[unit])
