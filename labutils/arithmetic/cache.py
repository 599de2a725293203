"""What a model keeps between two tokens: the bytes of every layer's cache, before and while it decodes.

The rules stand in data/arithmetic/caches.toml, one row per family. Three amounts differ and are never mixed: the
tensors (`bytes`), what their storages hold right after the prompt (`held_after_prefill`; a sliding layer still holds
the whole prompt), and what they hold at the end of generation (`held`).
"""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from labutils import data
from labutils.arithmetic.config import Config, read
from labutils.arithmetic.errors import ConfigError, UnknownArchitecture
from labutils.arithmetic.expressions import evaluate, shown

DTYPE_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
    "uint8": 1,
}
STATE_BYTES = {**DTYPE_BYTES, "int64": 8}
SHORT_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp8": "float8_e4m3fn", "half": "float16"}
SLIDING = ("sliding_attention", "hybrid_sliding", "compressed_sparse_attention", "heavily_compressed_attention")
CHUNKED = "chunked_attention"
STATE_ONLY = ("linear_attention", "conv", "state space")
NO_CACHE = ("moe", "mlp", "dummy")
ATTENTION = ("full_attention", "hybrid", "indexed_attention", "minimax_m3_sparse", *SLIDING, CHUNKED)
WORDS = {
    "full_attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
    "conv": "convolution",
    "linear_attention": "state space",
    "indexed_attention": "indexed",
    "minimax_m3_sparse": "indexed",
    "hybrid": "full + state space",
    "hybrid_sliding": "sliding + state space",
    "compressed_sparse_attention": "compressed",
    "heavily_compressed_attention": "compressed",
    "dummy": "shared",
    "moe": "no attention",
    "mlp": "no attention",
}


@dataclass(frozen=True)
class LayerCache:
    """The cache of one layer; every amount in bytes for the whole batch.

    `kind` says what the layer keeps (full, sliding, chunked, latent, indexed, shared, state space, convolution, cross
    attention, none); `per_token` is what one more token adds while the layer still grows, for the whole batch.
    """

    index: int
    kind: str
    bytes: int
    held_after_prefill: int
    held: int
    per_token: int
    window: int | None = None


@dataclass(frozen=True)
class KVCache:
    """The cache of a model, layer by layer; amounts in bytes for the whole batch.

    `bytes` is the tensors after `tokens` tokens; `held_after_prefill` is what their storages hold right after the
    prompt (the peak of a long prompt in a sliding model), `held` while the last token is decoded.
    """

    layers: tuple[LayerCache, ...]
    batch: int
    prompt: int
    tokens: int
    dtype: str
    family: str
    source: str

    @property
    def bytes(self) -> int:
        return sum(layer.bytes for layer in self.layers)

    @property
    def held_after_prefill(self) -> int:
        return sum(layer.held_after_prefill for layer in self.layers)

    @property
    def held(self) -> int:
        return sum(layer.held for layer in self.layers)

    @property
    def peak(self) -> int:
        """The most that the cache holds between two steps (a step that grows a tensor needs its new copy on top)."""
        return max(self.held_after_prefill, self.held)

    def kinds(self) -> dict[str, int]:
        """Return how many layers there are of each kind."""
        counts: dict[str, int] = {}
        for layer in self.layers:
            counts[layer.kind] = counts.get(layer.kind, 0) + 1
        return counts


@lru_cache(maxsize=1)
def families() -> dict[str, dict]:
    """Return the rows of caches.toml by model type."""
    text = data.path("arithmetic/caches.toml").read_text(encoding="utf-8")
    return {model_type: family for family in tomllib.loads(text)["family"] for model_type in family["types"]}


def dtype_name(dtype: Any) -> str:
    """Return the full name of a dtype given as "bfloat16", "bf16" or torch.bfloat16. Raises ConfigError otherwise."""
    name = str(dtype).removeprefix("torch.").strip().lower()
    name = SHORT_DTYPES.get(name, name)
    if name not in DTYPE_BYTES:
        raise ConfigError(f"dtype is {shown(dtype)}; it can be {', '.join(DTYPE_BYTES)}")
    return name


def count(value: Any, name: str, lowest: int = 1, highest: int = 2**40) -> int:
    """Return a whole number in its bounds; raises ConfigError that names it."""
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
        raise ConfigError(f"{name} is {shown(value)}; it must be a whole number from {lowest} to {highest}")
    return value


@dataclass(frozen=True)
class _Plan:
    """One layer as the rules see it: its kind, its window, and numbers per token and per sequence."""

    index: int
    kind: str
    window: int | None
    per_token: tuple[tuple[int, str], ...]
    states: tuple[tuple[str, str], ...]
    after_prompt: tuple[tuple[str, str], ...]
    while_decoding: tuple[tuple[str, str], ...]
    fields: dict[str, Any]
    word: str


def family(config: Any) -> dict:
    """Return the row of caches.toml for a config. Raises UnknownArchitecture when there is none."""
    text = read(config).text
    row = families().get(text.model_type)
    if row is None:
        raise UnknownArchitecture(
            f"there is no cache rule for the model type {text.model_type!r}, so its cache is not computed. "
            "labutils.trace can measure it with torch."
        )
    for name, reason in row.get("refuse", {}).items():
        if text.fields.get(name):
            raise UnknownArchitecture(
                f"{text.model_type} with {name} = {shown(text.fields[name])} is refused: {reason}"
            )
    return row


def kv_cache(
    config: Any, batch: int = 1, prompt: int = 1, new: int = 1, dtype: Any = None, encoder: int | None = None
) -> KVCache:
    """Return the cache after `prompt` tokens were read and `new` tokens generated, layer by layer.

    The last generated token is never forwarded, so the cache holds prompt + new - 1 tokens (new=0: the prompt alone).
    `dtype` is that of the model (default: the config's own, else float32, as transformers takes it); states that
    transformers keeps in float32 are counted in float32. For an encoder-decoder, `prompt` counts decoder tokens and
    `encoder` (needed) the tokens of the input.

    Raises ConfigError for a malformed config or argument and UnknownArchitecture for a model type or layer kind without
    a rule. Source: caches.toml, verified by tools/verify_arithmetic.py.
    """
    return Rules(config).cache(batch, prompt, new, dtype, encoder)


class Rules:
    """The cache rules of one config, read once and used for many batches and contexts."""

    def __init__(self, config: Any):
        self.config = read(config)
        self.row = family(self.config)
        self.plans = _plans(self.config.text, self.row)
        rule = self.row.get("extra_tokens")
        self.extra = count(self.config.text.value(rule), rule, 0) if rule else 0

    def dtype(self, dtype: Any = None) -> str:
        return dtype_name(dtype or self.config.dtype or self.config.text.dtype or "float32")

    def cache(self, batch: int, prompt: int, new: int = 1, dtype: Any = None, encoder: int | None = None) -> KVCache:
        """Return the cache as `kv_cache` does."""
        batch, prompt, new = count(batch, "batch"), count(prompt, "prompt"), count(new, "new", 0)
        dtype, encoder = self.dtype(dtype), _encoder_tokens(self.config, self.row, encoder)
        tokens = prompt + max(new - 1, 0)
        layers = [_layer(plan, batch, prompt + self.extra, tokens + self.extra, dtype, new > 1) for plan in self.plans]
        if encoder is not None:
            layers += _cross(self.plans, self.row, batch, encoder, dtype)
        return KVCache(tuple(layers), batch, prompt, tokens, dtype, self.row["name"], self.row["source"])


def static_capacity(config: Any, batch: int, capacity: int, dtype: Any = None) -> KVCache:
    """Return what a StaticCache of `capacity` tokens allocates at its first token, counters left out.

    Full layers take the whole capacity, sliding ones min(window, capacity); states are as in a dynamic cache.
    """
    rules = Rules(config)
    batch, capacity, dtype = count(batch, "batch"), count(capacity, "capacity"), rules.dtype(dtype)
    layers = []
    for plan in rules.plans:
        kept = min(plan.window, capacity) if plan.window else capacity
        amount = _per_token(plan, batch, dtype) * kept + _state_bytes(plan.states, plan, batch, capacity, dtype)
        layers.append(LayerCache(plan.index, plan.word, amount, amount, amount, 0, plan.window))
    return KVCache(tuple(layers), batch, capacity, capacity, dtype, rules.row["name"], rules.row["source"])


def fp8_bytes(config: Any, batch: int, tokens: int) -> int:
    """Return the bytes of an fp8 QuantizedCache: one byte a number, one float32 scale for keys and values of a layer.

    Raises UnknownArchitecture for models with other than full attention, which transformers refuses too.
    """
    rules = Rules(config)
    total = 0
    for plan in rules.plans:
        if plan.kind != "full_attention" or plan.states:
            raise UnknownArchitecture(
                f"layer {plan.index} of {rules.config.text.model_type} is of kind {plan.word}; a quantized cache takes "
                "full attention only"
            )
        total += sum(count(batch, "batch") * count(tokens, "tokens") * numbers + 4 for numbers, _ in plan.per_token)
    return total


def naive_kv_bytes(config: Any, batch: int, tokens: int, dtype: Any = None) -> int:
    """Return what the formula everyone quotes gives: 2 x layers x KV heads x head_dim x tokens x batch x bytes.

    Raises ConfigError when the config has no such fields. It is here to be compared, not to be trusted.
    """
    text = read(config).text
    layers = _first(text, "num_hidden_layers", "n_layer", "num_layers", "decoder_layers")
    heads = _first(text, "num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads")
    kv_heads = _first(text, "num_key_value_heads", default=heads)
    head_dim = _first(text, "head_dim", default=0) or _first(text, "hidden_size", "d_model", "n_embd") // heads
    return 2 * layers * batch * tokens * kv_heads * head_dim * DTYPE_BYTES[dtype_name(dtype or text.dtype or "float32")]


def _first(config: Config, *names: str, default: int | None = None) -> int:
    for name in names:
        value = config.fields.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    if default is None:
        raise ConfigError(f"the config of type {config.model_type!r} does not say {' or '.join(names)}")
    return default


def _encoder_tokens(config: Config, row: dict, encoder: int | None) -> int | None:
    is_seq2seq = bool(config.fields.get("is_encoder_decoder")) and bool(row.get("cross", row.get("attention")))
    if not is_seq2seq:
        if encoder is not None:
            raise ConfigError(
                f"encoder is {encoder}, but {config.model_type} has no encoder whose cache could be counted"
            )
        return None
    if encoder is None:
        raise ConfigError(
            f"{config.model_type} is an encoder-decoder: say how many input tokens it reads (encoder=...)"
        )
    return count(encoder, "encoder")


def layer_kinds(config: Any) -> list[str]:
    """Return the kind of every layer, as transformers names them (layer_types)."""
    return [plan.kind for plan in Rules(config).plans]


def _plans(text: Config, row: dict) -> list[_Plan]:
    kinds = _kinds(text, row)
    empty = set(text.value(row["empty"]) or ()) if "empty" in row else set()
    order = list(range(len(kinds))) + (text.value(row["repeat"]) if "repeat" in row else [])
    plans: dict[int, _Plan] = {}
    for index in order:
        if index not in plans:
            if not 0 <= index < len(kinds):
                raise ConfigError(f"the rule `{row['repeat']}` repeats layer {index} of {len(kinds)}")
            plans[index] = _plan(text, row, index, "none" if index in empty else kinds[index])
    return [plans[index] for index in order]


def _kinds(text: Config, row: dict) -> list[str]:
    """Return the kinds of the layers that hold a cache, as get_layer_types_and_kwargs of transformers finds them."""
    layers = count(text.value(row["layers"]), row["layers"], 1, 10_000)
    kinds = text.fields.get("layer_types") or text.fields.get("layers_block_type")
    if row["types"] and "cross" in row and "layer_types" not in text.fields:
        kinds = None
    if kinds is None:
        kinds = [_kind_of(text.layer(index), row) for index in range(layers)]
    if len(kinds) < layers:
        raise ConfigError(f"layer_types names {len(kinds)} layers, but {row['layers']} is {layers}; the two must agree")
    shared = text.fields.get("kv_sharing_modes") or []
    return [
        "dummy" if mode == "reuse" else kind
        for kind, mode in zip(kinds[:layers], (shared + [None] * layers)[:layers], strict=True)
    ]


def _kind_of(fields: dict[str, Any], row: dict) -> str:
    if "default_kind" in row:
        return row["default_kind"]
    if fields.get("sliding_window") is not None:
        return "sliding_attention"
    return CHUNKED if fields.get("attention_chunk_size") is not None else "full_attention"


def _plan(text: Config, row: dict, index: int, kind: str) -> _Plan:
    fields = text.layer(index)
    if kind in (*NO_CACHE, "none"):
        return _Plan(index, kind, None, (), (), (), (), fields, WORDS.get(kind, "none"))
    states = _states(row, "states", kind)
    if kind not in ATTENTION and not states or kind not in (*ATTENTION, *STATE_ONLY):
        raise UnknownArchitecture(
            f"layer {index} of {text.model_type} is of kind {shown(kind)}, which has no cache rule; it is refused"
        )
    per_token = []
    if kind in ATTENTION:
        if "attention" not in row:
            raise UnknownArchitecture(
                f"layer {index} of {text.model_type} is of kind {kind}, but the family "
                f"{row['name']!r} has no attention; it is refused"
            )
        for rule in row.get("kind", {}).get(kind, row["attention"]):
            per_token.append((_numbers(rule, fields), "model"))
        if kind in row.get("index", {}) and not _shares_index(fields, index):
            per_token += [(_numbers(rule, fields), dtype) for rule, dtype in row["index"][kind]]
        if ("hybrid" in kind or "compressed" in kind) and not states:
            raise UnknownArchitecture(
                f"layer {index} of {text.model_type} is of kind {kind}, for which the family "
                f"{row['name']!r} has no state rule; it is refused"
            )
    word = "latent" if row.get("latent") and kind == "full_attention" else WORDS.get(kind, kind)
    window = evaluate(row["window"], fields) if "window" in row else _window(fields, kind, index)
    return _Plan(
        index,
        kind,
        window,
        tuple(per_token),
        states,
        _states(row, "after_prompt", kind) or states,
        _states(row, "while_decoding", kind) or states,
        fields,
        word,
    )


def _states(row: dict, moment: str, kind: str) -> tuple[tuple[str, str], ...]:
    return tuple((numbers, dtype) for numbers, dtype in row.get(moment, {}).get(kind, ()))


def _shares_index(fields: dict[str, Any], index: int) -> bool:
    kinds = fields.get("indexer_types")
    return isinstance(kinds, list) and index < len(kinds) and kinds[index] == "shared"


def _window(fields: dict[str, Any], kind: str, index: int) -> int | None:
    name = "attention_chunk_size" if kind == CHUNKED else "sliding_window"
    if kind != CHUNKED and kind not in SLIDING:
        return None
    return count(fields.get(name), f"{name} of layer {index}, which is of kind {kind},", 2)


def _numbers(rule: str, fields: dict[str, Any]) -> int:
    return count(evaluate(rule, fields), f"`{rule}`", 0, 2**62)


def _layer(plan: _Plan, batch: int, prompt: int, tokens: int, dtype: str, decoded: bool) -> LayerCache:
    """Return the bytes of a layer after `tokens` tokens, `prompt` of which came at once."""
    window = plan.window
    kept = min(tokens, window - 1) if window else tokens
    held = (min(tokens, window) if window else tokens) if decoded else prompt
    per_token = _per_token(plan, batch, dtype)
    return LayerCache(
        plan.index,
        plan.word,
        per_token * kept + _state_bytes(plan.states, plan, batch, tokens, dtype),
        per_token * prompt + _state_bytes(plan.after_prompt, plan, batch, prompt, dtype),
        per_token * held
        + _state_bytes(plan.while_decoding if decoded else plan.after_prompt, plan, batch, tokens, dtype),
        per_token,
        window,
    )


def _per_token(plan: _Plan, batch: int, dtype: str) -> int:
    return batch * sum(numbers * _size(kind, dtype) for numbers, kind in plan.per_token)


def _state_bytes(states: tuple[tuple[str, str], ...], plan: _Plan, batch: int, tokens: int, dtype: str) -> int:
    if not states:
        return 0
    fields = {**plan.fields, "tokens": tokens}
    return sum(
        _numbers(rule, fields) * _size(kind, dtype) * (1 if kind.endswith(" once") else batch) for rule, kind in states
    )


def _size(kind: str, dtype: str) -> int:
    return STATE_BYTES[dtype if kind == "model" else kind.removesuffix(" once")]


def _cross(plans: list[_Plan], row: dict, batch: int, encoder: int, dtype: str) -> Iterator[LayerCache]:
    for plan in plans:
        numbers = sum(_numbers(rule, plan.fields) for rule in row.get("cross", row["attention"]))
        amount = batch * encoder * numbers * DTYPE_BYTES[dtype]
        yield LayerCache(plan.index, "cross attention", amount, amount, amount, 0)
