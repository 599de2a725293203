"""Will it fit: weights, cache and logits of a model against the memory of a device, and what is not counted."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labutils.arithmetic.cache import KVCache, Rules, count, dtype_name
from labutils.arithmetic.config import Config
from labutils.arithmetic.errors import ConfigError, UnknownArchitecture
from labutils.arithmetic.expressions import shown
from labutils.arithmetic.gguf_file import GGUFFile, read_gguf
from labutils.arithmetic.quantized import WeightBytes, gguf_bytes, scheme_of, weight_bytes
from labutils.arithmetic.tracing import PARTS, Run
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
WITHOUT_A_TRACE = (
    "activations and score matrices while the prompt is read (a trace measures them)",
    "the second copy of one layer's cache while torch.cat grows it",
)
NOT_COUNTED = (
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
    that the config left to transformers. `exact` and `traced` name the parts that come from rules and from a run on the
    meta device; with a trace, `peak_prefill` and `peak_decode` are the most alive beyond the weights while the prompt is
    read and while one more token is, cache and logits included, with `attention`.
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
    exact: tuple[str, ...] = ("weights", "cache", "logits")
    traced: tuple[str, ...] = ()
    attention: str | None = None
    peak_prefill: int | None = None
    peak_decode: int | None = None

    @property
    def total(self) -> int:
        return _total(self.weights.total, self.cache.peak + self.logits, self.peak_prefill, self.peak_decode)


def _total(weights: int, kept: int, *peaks: int | None) -> int:
    """Return weights and the most beyond them: what is kept between steps, or a traced peak."""
    return weights + max(kept, *(peak or 0 for peak in peaks))


def plan(
    config: Any,
    memory: int | str | None = None,
    dtype: Any = None,
    quantization: str | None = None,
    batch: int = 1,
    context: int = 4096,
    encoder: int | None = None,
    trace: bool = False,
    attention: str = "sdpa",
) -> Plan:
    """Return what a model takes at a batch and context (tokens of prompt and answer together), and what would fit.

    `memory` is in bytes or a text such as "24GB" or "16GiB"; `quantization` is "none", "int8", "fp4", "nf4", or one of the
    last two with "-double" (default: what the config says). Instead of a config it may be a .gguf file: its tensors are
    counted in their blocks, as llama.cpp holds them ("gguf"), or with "none" expanded, as transformers holds them. For
    an encoder-decoder, `context` counts decoder tokens and `encoder` input tokens (default: as many). `trace=True` (needs
    torch) adds the peaks of a run on the meta device with `attention` "sdpa" or "eager"; what the rules refuse is then
    traced instead. Raises ConfigError and UnknownArchitecture as `kv_cache` and `parameters` do, and TraceError when a
    model cannot be traced.
    """
    batch, context = count(batch, "batch", 1, MOST), count(context, "context", 1, MOST)
    size = memory_bytes(memory) if memory is not None else None
    file = gguf_of(config)
    given = file.config() if file else config
    try:
        rules = Rules(given)
        found = parameters(rules.config)
    except UnknownArchitecture as refusal:
        if not trace:
            raise
        return _traced_plan(given, dtype, quantization, size, batch, context, attention, refusal)
    config = rules.config
    dtype = rules.dtype(dtype)
    scheme = quantization or ("gguf" if file else scheme_of(config))
    if encoder is None and config.fields.get("is_encoder_decoder"):
        encoder = context
    weights = gguf_bytes(file) if file and scheme == "gguf" else weight_bytes(found, dtype, scheme)
    run = Run(given, dtype, attention) if trace else None

    def kept(batch: int, context: int) -> int:
        return rules.cache(batch, context, 1, dtype, encoder).peak + _step_logits(config, batch, dtype)

    return Plan(
        config.model_type,
        rules.row["name"],
        dtype,
        scheme,
        batch,
        context,
        found.total,
        weights,
        rules.cache(batch, context, 1, dtype, encoder),
        rules.cache(batch, max(context - 1, 1), 2, dtype, encoder).held,
        _step_logits(config, batch, dtype),
        size,
        *_limits(size, weights.total, kept, run, batch, context),
        (*(() if run else WITHOUT_A_TRACE), *NOT_COUNTED, *(f"{part} (no rule)" for part in found.not_counted)),
        config.assumed + config.text.assumed,
        _positions(config.text.fields.get),
        **_peaks(run, batch, context),
    )


def _peaks(run: Run | None, batch: int, context: int) -> dict[str, Any]:
    if run is None:
        return {}
    peak = run.peak(batch, context)
    return {
        "traced": PARTS,
        "attention": run.attention,
        "peak_prefill": peak.prefill,
        "peak_decode": peak.decode,
    }


def _traced_plan(source, dtype, quantization, size, batch, context, attention, refusal) -> Plan:
    """Return a plan all of whose numbers come from the meta device, for an architecture that the rules refuse."""
    run = Run(source, dtype and dtype_name(dtype), attention)
    if quantization not in (None, "none") or (run.quantized and quantization is None):
        raise UnknownArchitecture(f"{refusal} (a trace counts weights that are not quantized: give quantization none)")
    weights, peak = run.weights(), run.peak(batch, context)
    text = run.config.get_text_config()
    return Plan(
        run.model_type,
        "no rule: a run on the meta device",
        run.dtype,
        "none",
        batch,
        context,
        run.parameters,
        weights,
        run.cache(batch, context),
        peak.held,
        peak.logits,
        size,
        *_limits(size, weights.total, lambda *_: 0, run, batch, context),
        (*NOT_COUNTED, f"by rules, because {refusal}"),
        (),
        _positions(lambda name: getattr(text, name, None)),
        **_peaks(run, batch, context) | {"exact": (), "traced": ("weights", "cache", "logits", *PARTS)},
    )


def _limits(
    size: int | None, weights: int, kept: Callable[[int, int], int], run: Run | None, batch: int, context: int
) -> tuple[bool | None, int | None, int | None]:
    """Return whether it fits, the largest batch and the longest context; with a run, its peaks are in them."""
    if size is None:
        return None, None, None

    def by_rule(batch: int, context: int) -> bool:
        return weights + kept(batch, context) <= size

    def fits(batch: int, context: int) -> bool:
        if not by_rule(batch, context):
            return False
        peak = run and run.peak(batch, context)
        return peak is None or _total(weights, 0, peak.prefill, peak.decode) <= size

    return (
        fits(batch, context),
        _largest(lambda number: fits(number, context)),
        _largest(lambda number: fits(batch, number)),
    )


def _positions(get: Callable[[str], Any]) -> int | None:
    """Return the positions that a model was made for, when its config says them."""
    said = (get(name) for name in ("max_position_embeddings", "n_positions", "max_seq_len"))
    return next((value for value in said if isinstance(value, int) and value > 0), None)


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
