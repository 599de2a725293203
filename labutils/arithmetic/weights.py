"""What the weights take: every parameter and buffer of a model, counted from its config.

The rules stand in data/arithmetic/weights.jsonl: one line for each family, each tensor with its sizes as formulas of
config fields, the loops over layers and experts, and the condition under which a layer has it.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from labutils import data
from labutils.arithmetic.cache import DTYPE_BYTES, count, dtype_name
from labutils.arithmetic.config import Config, read
from labutils.arithmetic.errors import ConfigError, UnknownArchitecture
from labutils.arithmetic.expressions import evaluate

# The part a tensor belongs to, by the words in its name; the first that fits.
PARTS = (
    ("head", ("lm_head", "embed_out", "output_projection", "cls.predictions", "generator_lm_head", "lm_heads")),
    ("experts", ("experts", "expert.", "moe.", "block_sparse_moe", "input_linear", "output_linear")),
    ("embeddings", ("embed", "wte", "wpe", "shared.weight", "relative_attention_bias", "word_emb", "tok_")),
    ("norms", ("norm", "ln_", "layer_norm", "layernorm", "ln_f")),
    ("attention", ("attn", "attention", "linear_attn", "mamba", "mixer", "selfattention", "conv", "ssm", "recurrent")),
    ("feed-forward", ("mlp", "ffn", "feed_forward", "fc1", "fc2", "dense", "densereludense", "intermediate", "output")),
)


@dataclass(frozen=True)
class Tensor:
    """All tensors of one name and shape: `numbers` in each, `copies` of it, its dtype ("model" or a fixed one).

    `linear` is "linear" (rows, columns) or "conv1d" (columns, rows) for what bitsandbytes would quantize, else "".
    """

    name: str
    numbers: int
    copies: int
    shape: tuple[int, ...]
    dtype: str
    linear: str
    buffer: bool

    @property
    def total(self) -> int:
        return self.numbers * self.copies


@dataclass(frozen=True)
class Parameters:
    """The parameters of a model.

    `total` counts them all (shared ones once), `parts` by embeddings, attention, feed-forward, experts, norms, head and
    other; `not_counted` names the parts of a composite model that have no rule.
    """

    tensors: tuple[Tensor, ...]
    source: str
    not_counted: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        return sum(tensor.total for tensor in self.tensors if not tensor.buffer)

    @property
    def parts(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for tensor in self.tensors:
            if not tensor.buffer:
                part = part_of(tensor.name)
                found[part] = found.get(part, 0) + tensor.total
        return found

    def bytes(self, dtype: Any) -> int:
        """Return the bytes of the parameters in a dtype; what transformers keeps in another is counted in that."""
        size = DTYPE_BYTES[dtype_name(dtype)]
        return sum(_bytes(tensor, size) for tensor in self.tensors if not tensor.buffer)

    def buffer_bytes(self, dtype: Any) -> int:
        """Return the bytes of the buffers (rotary frequencies and the like), which a checkpoint may not hold."""
        size = DTYPE_BYTES[dtype_name(dtype)]
        return sum(_bytes(tensor, size) for tensor in self.tensors if tensor.buffer)


FIXED_BYTES = {**DTYPE_BYTES, "int64": 8, "int32": 4, "int16": 2, "bool": 1, "complex64": 8}


def _bytes(tensor: Tensor, size: int) -> int:
    return tensor.total * (size if tensor.dtype == "model" else FIXED_BYTES[tensor.dtype])


def part_of(name: str) -> str:
    """Return the part that a tensor of this name belongs to."""
    lower = name.lower()
    for part, words in PARTS:
        if any(word in lower for word in words):
            return part
    return "other"


@lru_cache(maxsize=1)
def _lines() -> dict[str, str]:
    lines = {}
    for line in data.path("arithmetic/weights.jsonl").read_text(encoding="utf-8").splitlines():
        types = line[line.index("[") + 1 : line.index("]")]  # {"types": ["llama", "mistral"], ...
        lines.update(dict.fromkeys((name.strip('" ') for name in types.split(",")), line))
    return lines


@lru_cache(maxsize=32)
def rules(model_type: str) -> dict | None:
    """Return the row of weights.jsonl for a model type, or None."""
    line = _lines().get(model_type)
    return json.loads(line) if line else None


def parameters(config: Any) -> Parameters:
    """Return every parameter and buffer of the model that AutoModelForCausalLM (or ForSeq2SeqLM) builds from a config.

    A composite type without rules of its own gives its text model, and names what is left out (`not_counted`).

    Raises ConfigError for a malformed config and UnknownArchitecture when the type has no rule or one of its tensors is
    not explained. Source: weights.jsonl, traced by tools/arithmetic_weights.py, checked by tools/verify_arithmetic.py.
    """
    config = read(config)
    row = rules(config.model_type)
    left_out: tuple[str, ...] = config.left_out
    if (row is None or row.get("unexplained")) and config.text is not config:
        left_out = (
            left_out
            or tuple(key for key in config.parts if key not in ("text_config", "decoder"))
            or (f"everything in {config.model_type} besides its text model",)
        )
        config = config.text
        row = rules(config.model_type)
    if row is None:
        raise UnknownArchitecture(
            f"there are no weight rules for the model type {config.model_type!r}; "
            "labutils.trace can count it with torch"
        )
    if row.get("unexplained"):
        raise UnknownArchitecture(
            f"the weight rules for {config.model_type!r} do not explain "
            f"{row['unexplained'][0].split(':')[0]}; labutils.trace can count it with torch"
        )
    return Parameters(tuple(tensors_of(row["tensors"], config)), row["source"], left_out)


def tensors_of(lines: list[list], config: Config) -> Iterator[Tensor]:
    """Yield the tensors that a row's rules give for a config."""
    for rule in lines:
        name, sizes, loops, where, marks = rule + [None] * (5 - len(rule))
        words = (marks or "").split()
        dtype = next((word for word in words if word not in ("linear", "conv1d", "buffer")), "model")
        linear = next((word for word in words if word in ("linear", "conv1d")), "")
        copies: dict[tuple[int, ...], int] = {}
        for fields in _places(config, loops or [], where, sizes):
            inner = math.prod(_whole(evaluate(loop, fields), loop) for loop in (loops or [])[1:])
            shape = tuple(_whole(evaluate(size, fields), size) for size in sizes)
            copies[shape] = copies.get(shape, 0) + inner
        for shape, number in copies.items():
            if number:
                yield Tensor(name, math.prod(shape), number, shape, dtype, linear, "buffer" in words)


def _places(config: Config, loops: list[str], where: str | None, sizes: list[str]) -> Iterator[dict]:
    """Yield the fields of every layer that has the tensor."""
    if not loops:
        if not where or evaluate(where, config.fields):
            yield config.fields
        return
    for index in range(_whole(config.value(loops[0]), loops[0], 10_000)):
        fields = config.layer(index)
        if not where or evaluate(where, fields):
            yield fields


def _whole(value: Any, rule: str, highest: int = 2**44) -> int:
    return count(value, f"`{rule}`", 0, highest)


def logits(config: Any, batch: int, tokens: int, dtype: Any = None, keep: int | None = None) -> int:
    """Return the bytes of the logits: batch x tokens x vocabulary, of the last `keep` tokens when given.

    `forward` returns them for every token of the prompt, `generate` asks for the last one only (keep=1).
    """
    config = read(config)
    text = config.text
    size = DTYPE_BYTES[dtype_name(dtype or config.dtype or text.dtype or "float32")]
    vocabulary = next(
        (
            text.fields.get(name)
            for name in ("output_vocab_size", "tgt_vocab_size", "vocab_size", "n_words")
            if text.fields.get(name)
        ),
        None,
    )
    if vocabulary is None:
        raise ConfigError(f"the config of type {text.model_type!r} does not say vocab_size")
    tokens = min(count(tokens, "tokens"), keep) if keep else count(tokens, "tokens")
    return count(batch, "batch") * tokens * count(vocabulary, "vocab_size") * size
