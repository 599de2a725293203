"""Exact bytes from a config alone: a model's parameters, its cache layer by layer, its logits, and whether it fits.

    from labutils import arithmetic

    arithmetic.kv_cache("path/to/config.json", batch=16, prompt=4096, dtype="bfloat16").bytes
    arithmetic.parameters({"model_type": "llama", ...}).total
    arithmetic.plan("path/to/folder", memory="24GB", context=8192).fits

Only the standard library is used; a `PreTrainedConfig` is welcome but not needed. The rules are data
(data/arithmetic/): defaults of the config classes, one row per cache family, formulas of every tensor. They hold for
the version of transformers in `RULES_FOR` and are verified against its real tensors by tools/verify_arithmetic.py. What
has no rule is refused by name (`UnknownArchitecture`), what cannot be read is explained (`ConfigError`); nothing is
guessed.
"""

from labutils.arithmetic.cache import (
    KVCache,
    LayerCache,
    fp8_bytes,
    kv_cache,
    layer_kinds,
    naive_kv_bytes,
    static_capacity,
)
from labutils.arithmetic.config import Config, model_types, read
from labutils.arithmetic.errors import ConfigError, UnknownArchitecture
from labutils.arithmetic.gguf_file import GGUFFile, read_gguf
from labutils.arithmetic.known import known, known_names
from labutils.arithmetic.planning import Plan, memory_bytes, plan
from labutils.arithmetic.quantized import Format, WeightBytes, format_table, gguf_bytes, weight_bytes
from labutils.arithmetic.weights import Parameters, Tensor, logits, parameters

# transformers cached expanded keys and values for latent attention in older versions: the numbers belong to one
# version.
RULES_FOR = "transformers 5.24"

__all__ = [
    "RULES_FOR",
    "Config",
    "ConfigError",
    "Format",
    "GGUFFile",
    "KVCache",
    "LayerCache",
    "Parameters",
    "Plan",
    "Tensor",
    "UnknownArchitecture",
    "WeightBytes",
    "format_table",
    "fp8_bytes",
    "gguf_bytes",
    "known",
    "known_names",
    "kv_cache",
    "layer_kinds",
    "logits",
    "memory_bytes",
    "model_types",
    "naive_kv_bytes",
    "parameters",
    "plan",
    "read",
    "read_gguf",
    "static_capacity",
    "weight_bytes",
]
