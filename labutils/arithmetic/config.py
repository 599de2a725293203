"""Reading a config: from a dict, a config.json, a folder or a `PreTrainedConfig`, with the defaults of transformers.

A config.json leaves out what the config class of transformers computes (head_dim, layer_types, the text model's own
fields). `read` fills these in from data/arithmetic/configs.jsonl, checks every field that the arithmetic uses, and
keeps a list of the sizes that the config did not say (`Config.assumed`). It needs neither torch nor transformers.
"""

import json
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from labutils import data
from labutils.arithmetic.errors import ConfigError, UnknownArchitecture
from labutils.arithmetic.expressions import evaluate, shown
from labutils.arithmetic.gguf_file import GGUFFile, read_gguf

MAX_LAYERS = 10_000
MAX_SIZE = 2**40
MAX_CONFIG_BYTES = 20 * 2**20
# As get_text_config(decoder=True) of transformers looks for the text model, then names that other code bases use.
TEXT_KEYS = ("decoder", "generator", "text_config")
FOREIGN_TEXT_KEYS = ("text_config", "thinker_config", "language_config", "llm_config")
LEGACY_KINDS = {
    "mamba": "linear_attention",
    "attention": "full_attention",
    "deepseek_sparse_attention": "indexed_attention",
    "qwen_sparse_attention": "indexed_attention",
}
# Values that no model leaves out: transformers would put the size of another model in their place.
ESSENTIAL = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
# Integers that may be zero or negative in a working config.
MAY_BE_ZERO = {
    "shared",
    "mtp",
    "nextn",
    "replace",
    "start",
    "end",
    "offset",
    "rank",
    "hash",
    "sparse",
    "window",
    "group",
    "topk",
    "conv",
    "labels",
    "freq",
    "cross",
    "encoder",
    "position",
    "positions",
    "id",
    "ids",
    "index",
    "step",
    "zero",
    "bytes",
    "interval",
    "ple",
    "per",
    "local",
    "padding",
    "seed",
    "length",
    "len",
    "num_layers",
    "reuse",
    "mem",
}
# What transformers reads from any config, whether its class declares it or not.
ANY_CONFIG = ("head_dim", "layer_types", "sliding_window", "attention_chunk_size")


@dataclass(frozen=True)
class Config:
    """A config with every default filled in.

    `fields` holds the values by their name in the config class; `layers[i]` the same for layer i where layers differ
    (`per_layer_config`); `text` is the config of the part that generates text (itself when there is only one part);
    `assumed` names the sizes that stand in the class and not in the config; `dtype` is the name the config gives.
    """

    model_type: str
    fields: dict[str, Any]
    source: str
    assumed: tuple[str, ...] = ()
    dtype: str | None = None
    quantization: dict | None = None
    parts: dict[str, "Config"] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    @property
    def text(self) -> "Config":
        for key in TEXT_KEYS:
            if key in self.parts:
                return self.parts[key].text
        return self

    def layer(self, index: int) -> dict[str, Any]:
        """Return the fields as layer `index` sees them, with `i` for the index."""
        overrides = (self.fields.get("per_layer_config") or {}).get(index, {})
        for key, part in self.parts.items():
            changed = (part.fields.get("per_layer_config") or {}).get(index, {})
            overrides = {**overrides, **{f"{key}__{name}": value for name, value in changed.items()}}
        return {**self.fields, **overrides, "i": index}

    def value(self, expression: str) -> Any:
        """Return the value of a rule over this config's fields."""
        return evaluate(expression, self.fields)


@lru_cache(maxsize=1)
def _lines() -> dict[str, str]:
    text = data.path("arithmetic/configs.jsonl").read_text(encoding="utf-8")
    return {line[10 : line.index('"', 10)]: line for line in text.splitlines()}  # {"type": "llama", ...


@lru_cache(maxsize=64)
def row(model_type: str) -> dict[str, Any]:
    """Return what is known about a config class: its fields with defaults, aliases, computations and parts.

    Raises UnknownArchitecture, with the nearest known names, for a model type that is not in the table.
    """
    line = _lines().get(model_type)
    if line is None:
        import difflib

        near = difflib.get_close_matches(model_type, _lines(), n=3)
        raise UnknownArchitecture(
            f"there is no rule for the model type {model_type!r}, so its memory is not computed"
            + (f"; the nearest known types are {', '.join(near)}" if near else "")
            + ". labutils.trace can measure it with torch."
        )
    return json.loads(line)


def model_types() -> list[str]:
    """Return every model type whose config can be read, by name."""
    return list(_lines())


def read(source: Any) -> Config:
    """Read a config from a dict, the path of a config.json or a .gguf file, a folder with a config, or a PreTrainedConfig.

    Raises ConfigError when it cannot be read (naming the field, its value and what it must be) and UnknownArchitecture
    when there is no rule for its model type.
    """
    if isinstance(source, Config):
        return source
    if hasattr(source, "to_dict"):
        return _from_dict(source.to_dict(), strict=False)
    if isinstance(source, (str, Path)) and str(source).lower().endswith(".gguf"):
        source = read_gguf(source)
    if isinstance(source, GGUFFile):
        source = source.config()
    if isinstance(source, (str, Path)):
        source = load(Path(source))
    if not isinstance(source, dict):
        raise ConfigError(f"the config is {shown(source)}; it must be an object with a model_type")
    return _from_dict(source)


def load(path: Path) -> Any:
    """Return the JSON of a config.json, or of the one in a folder. Raises ConfigError when it cannot be read."""
    file = path / "config.json" if path.is_dir() else path
    try:
        if file.stat().st_size > MAX_CONFIG_BYTES:
            raise ConfigError(
                f"{file} has {file.stat().st_size:,} bytes; a config.json has at most {MAX_CONFIG_BYTES:,}"
            )
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not a text file in UTF-8, so it is no config.json") from None
    return parse(text, str(file))


def parse(text: str, name: str = "the config") -> Any:
    """Return the JSON value of a text; raises ConfigError with the line of the first mistake."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{name} is not JSON: {error.msg} in line {error.lineno}, column {error.colno}") from None
    except (RecursionError, ValueError) as error:
        raise ConfigError(f"{name} cannot be read as JSON: {str(error)[:120] or 'nested too deeply'}") from None


def _from_dict(raw: dict[str, Any], strict: bool = True) -> Config:
    model_type = raw.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise ConfigError(f"model_type is {shown(model_type)}; it must be a name such as 'llama'")
    if model_type not in _lines():
        return _foreign(model_type, raw, strict)
    return resolve(model_type, raw, strict)


def _foreign(model_type: str, raw: dict, strict: bool) -> Config:
    """Descend into the text model of a composite type that has no row of its own; else refuse it by name."""
    for key in FOREIGN_TEXT_KEYS:
        part = raw.get(key)
        if isinstance(part, dict):
            if isinstance(part.get("model_type"), str):
                inner = _from_dict(part, strict=False)
            elif any(isinstance(part.get(deeper), dict) for deeper in FOREIGN_TEXT_KEYS):
                inner = _foreign(f"{model_type}.{key}", part, strict)
            else:
                raise UnknownArchitecture(
                    f"there is no rule for the model type {model_type!r}, and its {key} names no model_type"
                )
            return Config(
                model_type,
                raw,
                inner.source,
                inner.assumed,
                _dtype(raw) or inner.dtype,
                _quantization(raw),
                {"text_config": inner},
                tuple(
                    other
                    for other, value in raw.items()
                    if other != key
                    and isinstance(value, dict)
                    and other.endswith("_config")
                    and other != "quantization_config"
                ),
            )
    row(model_type)
    raise UnknownArchitecture(f"there is no rule for the model type {model_type!r}")


def resolve(model_type: str, raw: dict[str, Any], strict: bool = True) -> Config:
    """Fill in the defaults and computed fields of one config class; `strict` refuses a config without its own sizes."""
    known = row(model_type)
    aliases, defaults = known.get("aliases", {}), known["fields"]
    given = {}
    for name, value in raw.items():
        if isinstance(name, str) and (name not in aliases or aliases[name] not in raw):
            given[aliases.get(name, name)] = value
    fields = {**defaults, **{name: value for name, value in given.items() if name in defaults}}
    missing = [
        aliases.get(name, name)
        for name in ESSENTIAL
        if aliases.get(name, name) in defaults
        and defaults[aliases.get(name, name)] is not None
        and aliases.get(name, name) not in given
    ]
    if strict and missing and not known.get("parts"):
        raise ConfigError(
            f"the config of type {model_type!r} does not say {', '.join(missing)}; the defaults of transformers belong "
            "to another model, so nothing is computed. Give the whole config.json."
        )
    _check(fields, defaults, model_type)
    _rotary(fields, raw, defaults)
    for name, expression in known.get("derive", []):
        fields.setdefault(name, None)
        fields[name] = evaluate(expression, fields)
    # As in transformers, what a config says about a computed attribute wins over the computation.
    fields.update({name: value for name, value in given.items() if name in fields and name not in defaults})
    for name in ANY_CONFIG:
        if name not in aliases:
            fields.setdefault(name, given.get(name))
    _kinds(fields, aliases)
    fields["per_layer_config"] = _per_layer(given.get("per_layer_config", fields.get("per_layer_config")))
    _check(fields, {**dict.fromkeys(ANY_CONFIG), **defaults}, model_type)
    for alias, real in aliases.items():
        if real in fields and alias not in fields:
            fields[alias] = fields[real]
    parts = {key: _part(key, spec, given.get(key)) for key, spec in known.get("parts", {}).items()}
    parts = {key: part for key, part in parts.items() if part}
    for key, part in parts.items():  # the weight rules of a composite model read text_config__hidden_size and the like
        fields.update({f"{key}__{name}": value for name, value in part.fields.items()})
    return Config(model_type, fields, known["source"], tuple(missing), _dtype(raw), _quantization(raw), parts, ())


def _part(key: str, spec: dict, raw: Any) -> Config | None:
    if raw is None:
        raw = {}
    if not isinstance(raw, dict):
        raise ConfigError(f"{key} is {shown(raw)}; it must be an object")
    kind = raw.get("model_type") or spec["type"]
    if not isinstance(kind, str):
        raise ConfigError(f"model_type in {key} is {shown(kind)}; it must be a name")
    if kind not in _lines():
        if spec["type"] in _lines():
            kind = spec["type"]
        else:
            return None if key not in TEXT_KEYS else _foreign(kind, raw, False)  # a part without text is not counted
    return resolve(kind, {**spec["fields"], **raw}, strict=False)


def _check(fields: dict[str, Any], defaults: dict[str, Any], model_type: str) -> None:
    """Hold each field against the type of its default: a count must be a whole number that is not negative."""
    for name, default in defaults.items():
        value = fields.get(name)
        if value is None:
            continue
        wanted = _wanted(name, default, value)
        if wanted:
            raise ConfigError(f"{name} is {shown(value)} in the config of type {model_type!r}; it must be {wanted}")


def _wanted(name: str, default: Any, value: Any) -> str | None:
    """Return what a value should have been, or None when it is well formed."""
    if isinstance(value, bool) or isinstance(default, bool):
        if isinstance(value, bool) and (isinstance(default, bool) or default is None):
            return None
        return "true or false" if isinstance(default, bool) else "a whole number"
    if isinstance(value, int):
        if (
            isinstance(default, (str, list, dict))
            and not (isinstance(default, str) and default == "auto")
            and not (isinstance(default, list) and "intermediate_size" in name)
        ):
            return f"a {'text' if isinstance(default, str) else 'list' if isinstance(default, list) else 'object'}"
        optional = default in (0, None) and name not in ANY_CONFIG or name in MAY_BE_ZERO
        lowest = 0 if optional or MAY_BE_ZERO & set(name.rsplit("__")[-1].split("_")) else 1
        if isinstance(default, int) and default < 0:
            lowest = default
        limit = MAX_LAYERS if name.endswith("layers") else MAX_SIZE
        return None if lowest <= value <= limit else f"a whole number from {lowest} to {limit}"
    if isinstance(value, float):
        ok = isinstance(default, float) or (default is None and abs(value) < MAX_SIZE) or _may_be_float(name, default)
        return None if ok and abs(value) < MAX_SIZE and value == value else "a whole number"
    if isinstance(default, int):
        return None if isinstance(value, list) and "intermediate_size" in name else "a whole number"
    for kind, text in ((str, "a text"), (list, "a list"), (dict, "an object")):
        if isinstance(default, kind) and not isinstance(value, kind):
            return text
    if isinstance(value, list) and len(value) > MAX_LAYERS:
        return f"a list of at most {MAX_LAYERS} items"
    return None


def _may_be_float(name: str, default: Any) -> bool:
    return (
        "expand" in name
        or isinstance(default, int)
        and not any(word in name for word in ("size", "heads", "layers", "dim", "rank", "window", "expert", "kernel"))
    )


def _rotary(fields: dict[str, Any], raw: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Set `partial_rotary_factor`, the share of a head that is rotated, also by layer kind where kinds differ."""
    rope = fields.get("rope_parameters") or {}
    default = defaults.get("rope_parameters") or {}
    if not isinstance(rope, dict):
        raise ConfigError(f"rope_parameters is {shown(rope)}; it must be an object")
    for kind in {kind for kind, value in {**default, **rope}.items() if isinstance(value, dict)}:
        inner = _dict(rope.get(kind))
        fields[f"partial_rotary_factor__{kind}"] = _share(
            inner.get("partial_rotary_factor", _dict(default.get(kind)).get("partial_rotary_factor", 1.0))
        )
    if fields.get("partial_rotary_factor") is None:
        fields["partial_rotary_factor"] = (
            None
            if "partial_rotary_factor" in defaults and not rope
            else _share(
                rope.get(
                    "partial_rotary_factor", raw.get("partial_rotary_factor", default.get("partial_rotary_factor", 1.0))
                )
            )
        )
    elif "partial_rotary_factor" in rope:
        fields["partial_rotary_factor"] = _share(rope["partial_rotary_factor"])


def _dict(value: Any) -> dict:
    return value if isinstance(value, dict) else {}


def _share(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 8:
        raise ConfigError(f"partial_rotary_factor is {shown(value)}; it must be a number from 0 to 1")
    return value


def _kinds(fields: dict[str, Any], aliases: dict[str, str]) -> None:
    """Check layer_types and give its kinds their present names."""
    name = aliases.get("layer_types", "layer_types")
    for key in {name, "layer_types"}:
        kinds = fields.get(key)
        if kinds is None:
            continue
        if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
            raise ConfigError(f"{key} is {shown(kinds)}; it must be a list of names such as 'full_attention'")
        fields[key] = [LEGACY_KINDS.get(kind, kind) for kind in kinds]


def _per_layer(overrides: Any) -> dict[int, dict[str, Any]] | None:
    if overrides is None:
        return None
    if not isinstance(overrides, dict):
        raise ConfigError(f"per_layer_config is {shown(overrides)}; it must be an object of layers")
    layers = {}
    for index, changed in overrides.items():
        if not str(index).isdecimal() or len(str(index)) > 5 or not isinstance(changed, dict):
            raise ConfigError(
                f"per_layer_config has {shown(index)}: {shown(changed)}; it must map layer numbers to objects"
            )
        for name, value in changed.items():
            if isinstance(value, float) or isinstance(value, int) and not 0 <= value <= MAX_SIZE:
                raise ConfigError(
                    f"per_layer_config gives layer {index} {name} = {shown(value)}; "
                    f"it must be a whole number up to {MAX_SIZE}"
                )
        layers[int(index)] = changed
    return layers


def _dtype(raw: dict[str, Any]) -> str | None:
    """Return the dtype the config names (`dtype`, or `torch_dtype` in older files), without the `torch.` in front."""
    value = raw.get("dtype") if raw.get("dtype") is not None else raw.get("torch_dtype")
    if value is None:
        return None
    if not isinstance(value, str):
        value = str(value)
    return value.removeprefix("torch.")


def _quantization(raw: dict[str, Any]) -> dict | None:
    value = raw.get("quantization_config")
    if value is None and isinstance(raw.get("text_config"), dict):
        value = raw["text_config"].get("quantization_config")
    if value is not None and not isinstance(value, dict):
        raise ConfigError(f"quantization_config is {shown(value)}; it must be an object")
    return value
