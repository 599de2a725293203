"""Ten thousand malformed configs: each is explained, refused by name, or counted as a well-formed one would be."""

import contextlib
import copy
import json
import random

import pytest

from labutils import arithmetic
from labutils.arithmetic import config

MALFORMED = 10_000
WRONG = [
    None,
    True,
    False,
    -1,
    -(2**70),
    0,
    1,
    2**31,
    2**63,
    10**30,
    1.5,
    -0.0,
    float("inf"),
    float("nan"),
    1e308,
    "",
    "x",
    "12",
    "full_attention",
    [],
    [None],
    [[]],
    [-1],
    ["full_attention"],
    [1, 2, 3],
    {},
    {"a": 1},
    {"0": {}},
    {"model_type": "llama"},
    "\x00",
    "🤗" * 50,
    list(range(300)),
    ["sliding_attention"] * 50,
    [["global", "local"], 12],
    {"head_dim": -4},
    "auto",
]
WORDS = [
    "num_hidden_layers",
    "hidden_size",
    "layer_types",
    "sliding_window",
    "text_config",
    "quantization_config",
    "head_dim",
    "per_layer_config",
    "num_key_value_heads",
    "torch_dtype",
    "model_type",
    "rope_parameters",
    "num_experts",
    "dtype",
    "attention_chunk_size",
    "tie_word_embeddings",
    "linear_attn_config",
    "is_encoder_decoder",
    "compress_rates",
]


def defaults(model_type: str) -> dict:
    row = config.row(model_type)
    values = {name: copy.deepcopy(value) for name, value in row["fields"].items() if value is not None}
    for key, part in row.get("parts", {}).items():
        if part["type"] and part["type"] in config.model_types():
            values[key] = {"model_type": part["type"], **defaults(part["type"])}
    return {"model_type": model_type, **values}


def broken(values: dict, rng: random.Random) -> object:
    """Return the config with one to four mistakes: wrong values, missing fields, nonsense nesting."""
    values = copy.deepcopy(values)
    for _ in range(rng.choice((1, 1, 2, 4))):
        target = values
        while isinstance(target, dict) and any(isinstance(v, dict) for v in target.values()) and rng.random() < 0.4:
            target = rng.choice([v for v in target.values() if isinstance(v, dict)])
        name = rng.choice([*target, *WORDS]) if target else rng.choice(WORDS)
        kind = rng.random()
        if kind < 0.7:
            target[name] = copy.deepcopy(rng.choice(WRONG))
        elif kind < 0.8:
            target.pop(name, None)
        elif kind < 0.9 and isinstance(target.get(name), int):
            target[name] = rng.choice(
                (str(target[name]), float(target[name]), [target[name]], -target[name], target[name] * 10**9)
            )
        else:
            target[name] = {name: copy.deepcopy(values)}
    return values


def check(values: object, memory: str | None = None) -> str:
    """Run everything on a config; return "refused" or "counted". Anything but a ConfigError is a bug."""
    try:
        found = arithmetic.plan(values, memory, "bfloat16", context=100)
    except arithmetic.ConfigError as error:
        text = str(error)
        assert len(text) > 15 and "Traceback" not in text and len(text) < 1500, text
    else:
        amounts = (found.total, found.parameters, found.cache.bytes, found.logits)
        assert all(isinstance(amount, int) and amount >= 0 for amount in amounts) and found.parameters > 0
        return "counted"
    for compute in (lambda: arithmetic.kv_cache(values, 2, 33, 3), lambda: arithmetic.parameters(values)):
        with contextlib.suppress(arithmetic.ConfigError):
            compute()
    return "refused"


def test_malformed_configs():
    rng = random.Random(20261130)
    types = config.model_types()
    outcomes = {"refused": 0, "counted": 0}
    pool = [defaults(model_type) for model_type in types]
    for _ in range(MALFORMED):
        outcomes[check(broken(rng.choice(pool), rng), "24GB" if rng.random() < 0.05 else None)] += 1
    assert outcomes["refused"] > MALFORMED / 3


def test_cut_and_scrambled_files(tmp_path):
    rng = random.Random(7)
    text = json.dumps(defaults("gemma3_text"))
    file = tmp_path / "config.json"
    for _ in range(300):
        cut = text[: rng.randrange(len(text))]
        if rng.random() < 0.5:
            place = rng.randrange(len(text))
            cut = (
                text[:place]
                + rng.choice(("}", "[", '"', "\\", "\x07", "NaN", "1e999", ",,", "{" * 50))
                + text[place + 1 :]
            )
        file.write_text(cut, encoding="utf-8")
        check(str(file))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\x00",
        b"[]",
        b"null",
        b"7",
        b'"llama"',
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"model_type": "llama"',
        b"9" * 10_000,
        b'{"model_type": "llama", "hidden_size": ' + b"9" * 6000 + b"}",
    ],
)
def test_files_that_are_no_config(tmp_path, content):
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(arithmetic.ConfigError):
        arithmetic.kv_cache(file, 1, 1)


def test_values_that_are_no_config():
    for value in (None, 3, [], (), "no/such/file", b"", object(), {1: 2}, {"model_type": ["llama"]}, {None: None}):
        with pytest.raises(arithmetic.ConfigError):
            arithmetic.kv_cache(value, 1, 1)


@pytest.mark.parametrize(
    "field, value",
    [
        ("hidden_size", 2**70),
        ("num_hidden_layers", "many"),
        ("num_attention_heads", -9),
        ("num_key_value_heads", 2.5),
        ("vocab_size", None),
        ("head_dim", -64),
        ("intermediate_size", "big"),
        ("sliding_window", -4),
        ("layer_types", 7),
    ],
)
def test_a_wrong_field_never_gives_a_number(field, value):
    values = {
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        field: value,
    }
    with pytest.raises(arithmetic.ConfigError, match=field):
        arithmetic.plan(values, "24GB")
