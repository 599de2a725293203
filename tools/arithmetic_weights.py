"""Write data/arithmetic/weights.jsonl: every parameter and buffer of every model type, as formulas of config fields.

    python tools/arithmetic_weights.py [TYPE ...]     # needs torch and the pinned transformers; about an hour for all

The formulas are traced, not guessed: each model is built on the meta device from a config whose numbers carry their own
names (`Traced`), so `nn.Linear(config.hidden_size, config.num_heads * config.head_dim)` yields its formula. Which
parameters exist in which layer is found by building about thirty random variations and searching the shortest condition
over config fields that holds in all of them (`Condition`). What is not explained stays out, and `parameters` refuses
the type by name; `tools/verify_arithmetic.py` then checks the result on configs that this tool has not seen.
"""

import argparse
import contextlib
import copy
import functools
import hashlib
import itertools
import json
import math
import random
import re
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "tools"))

import torch  # noqa: E402
import verify_arithmetic as real  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from transformers import PreTrainedConfig  # noqa: E402
from transformers.quantizers.base import get_keys_to_not_convert  # noqa: E402
from transformers.quantizers.quantizers_utils import should_convert_module  # noqa: E402

from labutils.arithmetic import config as configs  # noqa: E402
from labutils.arithmetic.expressions import evaluate  # noqa: E402

OUT = ROOT / "data" / "arithmetic" / "weights.jsonl"
VARIATIONS = 44
NUMBER = re.compile(r"(?:(?<=\.)|(?<=expert_))\d+(?=\.|$)")


class Traced(int):
    """A whole number that remembers which config fields it was computed from."""

    def __new__(cls, value: int, name: str | None = None):
        self = int.__new__(cls, value)
        self.name = name or str(int(value))
        return self

    def __deepcopy__(self, memo):
        return self

    def __copy__(self):
        return self

    def __reduce__(self):
        return Traced, (int(self), self.name)


def _operator(symbol: str, method: str):
    def apply(self, other):
        if isinstance(other, bool) or not isinstance(other, int):
            return NotImplemented
        result = getattr(int, method)(int(self), int(other))
        left, right = (_name(other), _name(self)) if method.startswith("__r") else (_name(self), _name(other))
        return result if result is NotImplemented else Traced(result, f"({left} {symbol} {right})")

    return apply


def _name(number: int | float) -> str:
    return getattr(number, "name", None) or (str(int(number)) if isinstance(number, int) else repr(float(number)))


for _symbol, _method in (("+", "add"), ("-", "sub"), ("*", "mul"), ("//", "floordiv")):
    setattr(Traced, f"__{_method}__", _operator(_symbol, f"__{_method}__"))
    setattr(Traced, f"__r{_method}__", _operator(_symbol, f"__r{_method}__"))


class TracedFloat(float):
    """A quotient or product of traced numbers, until `int` or `ceil` makes a size of it."""

    def __new__(cls, value: float, name: str):
        self = float.__new__(cls, value)
        self.name = name
        return self

    def __mul__(self, other):
        return TracedFloat(float(self) * float(other), f"({self.name} * {_name(other)})")

    __rmul__ = __mul__

    def __add__(self, other):
        return TracedFloat(float(self) + float(other), f"({self.name} + {_name(other)})")

    def __sub__(self, other):
        return TracedFloat(float(self) - float(other), f"({self.name} - {_name(other)})")

    def __floordiv__(self, other):
        return TracedFloat(float(self) // float(other), f"({self.name} // {_name(other)})")

    def __truediv__(self, other):
        return TracedFloat(float(self) / float(other), f"({self.name} / {_name(other)})")

    def __copy__(self):
        return self

    def __reduce__(self):
        return TracedFloat, (float(self), self.name)

    def __ceil__(self):
        return Traced(math.ceil(float(self)), f"ceil({self.name})")

    def __deepcopy__(self, memo):
        return self


def _divide(self, other):
    if isinstance(other, bool) or not isinstance(other, int):
        return NotImplemented
    return TracedFloat(int(self) / int(other), f"({_name(self)} / {_name(other)})")


def _scale(self, other):
    if isinstance(other, float):
        return TracedFloat(int(self) * float(other), f"({_name(self)} * {_name(other)})")
    return _whole_product(self, other)


_whole_product = Traced.__mul__
Traced.__truediv__ = _divide
Traced.__mul__ = Traced.__rmul__ = _scale


class _IntType(type):
    def __instancecheck__(cls, value):
        return isinstance(value, int)

    def __call__(cls, *arguments):
        if arguments and isinstance(arguments[0], TracedFloat):
            return Traced(int(float(arguments[0])), f"int({arguments[0].name})")
        return arguments[0] if arguments and isinstance(arguments[0], Traced) else int(*arguments)


class _TracedInt(metaclass=_IntType):
    """Stands for `int` inside the modeling modules, so that int(a / b) keeps its formula."""


def trace_int() -> None:
    """Put the tracing `int` into every modeling module that is loaded."""
    for name, module in list(sys.modules.items()):
        if name.startswith("transformers.models.") and ".modeling_" in name and "int" not in vars(module):
            module.int = _TracedInt


class RememberShapes(TorchFunctionMode):
    """Keeps on every new tensor the formulas of the sizes it was asked for."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        if getattr(function, "__name__", "") in ("empty", "zeros", "ones", "rand", "randn", "full"):
            size = kwargs.get("size", args[0] if args and isinstance(args[0], (tuple, list)) else args)
            with contextlib.suppress(Exception):
                result._formula = [_name(number) for number in size]
        return result


_new_parameter = torch.nn.Parameter.__new__


def _remembering_parameter(cls, data=None, requires_grad=True):
    parameter = _new_parameter(cls, data, requires_grad)
    if hasattr(data, "_formula"):
        parameter._formula = data._formula
    return parameter


torch.nn.Parameter.__new__ = staticmethod(_remembering_parameter)


def name_numbers(config, prefix: str = "") -> None:
    """Replace every whole number of a config object by one that carries the field's name."""
    for name, value in list(vars(config).items()):
        if name.startswith("_"):
            continue
        if isinstance(value, int) and not isinstance(value, bool):
            vars(config)[name] = Traced(value, prefix + name)
        elif isinstance(value, float) and any(
            word in name for word in ("expand", "multiplier", "ratio", "proj_factor")
        ):
            vars(config)[name] = TracedFloat(value, prefix + name)
        elif isinstance(value, PreTrainedConfig):
            name_numbers(value, f"{prefix}{name}__")


@dataclass
class Tensor:
    """One parameter or buffer of one model: template name with {i} and {j} for numbers, and where it occurred."""

    template: str
    numbers: tuple[int, ...]
    shape: tuple[int, ...]
    formula: tuple[str, ...] | None
    dtype: str  # "model" or a fixed dtype
    linear: str  # "linear" or "conv1d" when bitsandbytes would quantize it
    buffer: bool


@dataclass
class Example:
    """One variation: the fields as labutils.arithmetic reads them, and the tensors of the real model."""

    fields: configs.Config
    tensors: list[Tensor]


def half_precision(model_type: str, values: dict) -> set[str]:
    """Return the tensors that stay in bfloat16 whatever the dtype of the model."""
    model = real.build(model_type, real.prepare(model_type, values), "meta", torch.float32)
    return {
        counted(model, name)[0]
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
        if tensor.dtype == torch.bfloat16
    }


def observe(model_type: str, values: dict) -> Example:
    """Build a model on the meta device with named numbers and list its parameters and buffers."""
    raw = json.loads(real.prepare(model_type, values).to_json_string(use_diff=False))
    resolved = configs.resolve(raw.get("model_type") or model_type, raw, strict=False)
    config = real.prepare(model_type, values)
    name_numbers(config)
    with torch.device("meta"), RememberShapes():
        model = real.make(model_type, config, torch.bfloat16)
    kept = get_keys_to_not_convert(model) + list(model._keep_in_fp32_modules or [])
    linear = {
        f"{name}.weight": "linear" if type(module) is torch.nn.Linear else "conv1d"
        for name, module in model.named_modules()
        if (type(module) is torch.nn.Linear or type(module).__name__ == "Conv1D") and should_convert_module(name, kept)
    }
    tensors = []
    for name, tensor, buffer in itertools.chain(
        ((n, p, False) for n, p in model.named_parameters()), ((n, b, True) for n, b in model.named_buffers())
    ):
        template, numbers = counted(model, name)
        dtype = "model" if tensor.dtype == torch.bfloat16 else str(tensor.dtype).removeprefix("torch.")
        formula = getattr(tensor, "_formula", None)
        tensors.append(
            Tensor(
                template,
                numbers,
                tuple(tensor.shape),
                tuple(formula) if formula else None,
                dtype,
                linear.get(name, ""),
                buffer,
            )
        )
    return Example(resolved, tensors)


def counted(model, name: str) -> tuple[str, tuple[int, ...]]:
    """Return a tensor's name with {i}, {j} for its places in lists of modules, and these places.

    A number inside `nn.Sequential` stays: its members are different things.
    """
    letters, places = iter("ijklm"), []

    def letter(found: re.Match) -> str:
        holder = name[: found.start()].rstrip(".")
        if found.string[found.start() - 1] == "." and isinstance(model.get_submodule(holder), torch.nn.Sequential):
            return found.group()
        places.append(int(found.group()))
        return "{" + next(letters) + "}"

    return NUMBER.sub(letter, name), tuple(places)


def missing_kinds(model_type: str):
    """Return a key that puts configs first that have every layer kind of the default config."""

    def kinds(values) -> set[str]:
        found = set()
        for part in real._parts(values):
            for name, value in part.items():
                if name.endswith(("layer_types", "block_type")) and isinstance(value, list):
                    found |= {f"{name} {kind}" for kind in value if isinstance(kind, str)}
        return found

    whole = kinds(real.default_values(model_type))
    return lambda values: len(whole - kinds(values))


def examples(model_type: str, wanted: int = VARIATIONS, seconds: int = 60) -> list[Example]:
    """Return the base config and random variations that transformers can build."""
    values, found, seen = None, [], set()
    for candidate in sorted(real.candidates(model_type)[:4], key=missing_kinds(model_type)):
        with contextlib.suppress(Exception):
            with real.limit(60):
                real.build(model_type, real.prepare(model_type, candidate), "meta")  # loads its modules
                trace_int()
                found.append(observe(model_type, candidate))
            values = candidate
            break
    if values is None:
        raise RuntimeError("no config can be built")
    fixed = half_precision(model_type, values)
    with contextlib.suppress(Exception), real.limit(60):
        found.append(observe(model_type, real.default_values(model_type)))
    rng, started, tries = random.Random(model_type), time.process_time(), 0
    parts = real._parts(values)
    flags = [
        (number, name)
        for number, part in enumerate(parts)
        for name, value in part.items()
        if isinstance(value, bool) and not any(word in name for word in real.NOT_VARIED)
    ]
    singles = []
    for number, name in flags:  # every switch alone
        one = copy.deepcopy(values)
        real._parts(one)[number][name] = not parts[number][name]
        singles.append(one)
        part = real._parts(one)[number]
        if "head_dim" not in part and "hidden_size" in part:  # with a head_dim that the class does not declare
            singles.append(copy.deepcopy(one))
            real._parts(singles[-1])[number]["head_dim"] = 48
    for number, part in enumerate(parts):  # every optional number alone
        for name, value in part.items():
            if (value is None and re.search(r"rank|_size$|_dim$|n_inner|^d_|heads$|shared", name)) or (
                isinstance(value, int) and not isinstance(value, bool) and "lora" in name
            ):
                one = copy.deepcopy(values)
                real._parts(one)[number][name] = 48 if value is None else None
                singles.append(one)
    attempts = itertools.chain(
        singles,
        (
            real.vary(values, rng)
            if rng.random() < 0.8
            else real.vary(values, rng, rng.choice(("layers", "heads", "widths", "pattern", "switches")))
            for _ in range(wanted * 4)
        ),
    )
    for changed in attempts:
        if len(found) >= wanted + len(singles) or time.process_time() - started > seconds:
            break
        tries += 1
        key = json.dumps(changed, sort_keys=True, default=str)
        if key in seen:
            continue
        seen.add(key)
        with contextlib.suppress(Exception), real.limit(30):
            found.append(observe(model_type, changed))
    for example in found:
        for tensor in example.tensors:
            if tensor.template in fixed:
                tensor.dtype = "bfloat16"
    return found


# --- what no search finds
# -----------------------------------------------------------------------------------------


@dataclass
class ByHand:
    """A rule stated from the source: where a tensor is, its inner loops and sizes (None: these are found as usual).

    It is still held against every example (`check`), as the rules that are found are by the way they are found.
    """

    names: str  # a regular expression of templates
    where: str | None = None
    inner: tuple[str, ...] | None = None
    sizes: tuple[str, ...] | None = None
    loop: str | None = None


# zamba 2 repeats num_mem_blocks transformer blocks; each holds the adapters of its own turns.
_TURN = "len([kind for kind in layer_types[:i] if kind == 'hybrid'])"
_BLOCK = f"layer_types[i] == 'hybrid' and (not tie_word_embeddings or {_TURN} < num_mem_blocks)"
_TURNS = f"len([k for k in range(len(hybrid_layer_ids)) if k % num_mem_blocks == {_TURN} % num_mem_blocks])"
_SHARED = r"model\.layers\.\{i\}\.shared_transformer\."


def _tokenizer(part: str) -> list[ByHand]:
    """Return the rules of vibevoice's sound encoders: every stage twice as wide, as deep as `depths` says."""
    stage = rf"model\.{part}\.conv_layers\.\{{i\}}\.stage\.\{{j\}}\."
    stem = rf"model\.{part}\.stem\.stage\.\{{i\}}\."
    first, config = f"{part}_config__num_filters", f"{part}_config__"
    rules = []
    for prefix, width, loop, inner in (
        (stem, first, f"{config}depths[0]", None),
        (stage, f"{first} * 2 ** (i + 1)", f"len({config}downsampling_ratios)", (f"{config}depths[i + 1]",)),
    ):
        wide = f"{width} * {config}ffn_expansion"
        for names, sizes in (
            (r"(ffn_)?(gamma|norm\.weight)", (width,)),
            (r"ffn\.linear1\.weight", (wide, width)),
            (r"ffn\.linear1\.bias", (wide,)),
            (r"ffn\.linear2\.weight", (width, wide)),
            (r"ffn\.linear2\.bias", (width,)),
            (r"mixer\.conv\.weight", (width, "1", f"{config}kernel_size")),
            (r"mixer\.conv\.bias", (width,)),
        ):
            rules.append(ByHand(prefix + names, inner=inner, sizes=sizes, loop=loop))
    step = rf"model\.{part}\.conv_layers\.\{{i\}}\.conv\.conv\."
    wide, before = f"{first} * 2 ** (i + 1)", f"{first} * 2 ** i"
    loop = f"len({config}downsampling_ratios)"
    rules.append(ByHand(step + "weight", sizes=(wide, before, f"2 * {config}downsampling_ratios[i]"), loop=loop))
    rules.append(ByHand(step + "bias", sizes=(wide,), loop=loop))
    head = rf"model\.{part}\.head\.conv\.weight"
    last = f"{first} * 2 ** len({config}downsampling_ratios)"
    rules.append(ByHand(head, sizes=(f"{config}hidden_size", last, f"{config}kernel_size")))
    return rules


BY_HAND: dict[str, list[ByHand]] = {
    "blt": [
        ByHand(
            r"model\.global_transformer\.token_embedding_projection\.weight",
            "cross_attn_k * encoder_config__hidden_size != global_config__hidden_size",
            sizes=("global_config__hidden_size", "cross_attn_k * encoder_config__hidden_size"),
        )
    ],
    "zamba2": [
        ByHand(_SHARED + r"self_attn\.linear_._adapter.*", f"use_shared_attention_adapter and {_BLOCK}", (_TURNS,)),
        ByHand(_SHARED + r"feed_forward\.gate_up_proj_adapter.*", _BLOCK, (_TURNS,)),
        ByHand(_SHARED + r".*\.bias", f"add_bias_linear and {_BLOCK}"),
        ByHand(_SHARED + ".*", _BLOCK),
    ],
    "omniasr": [
        ByHand(
            r"model\.audio_tower\.subsampling\.conv_layers\.\{i\}\.conv\.weight",
            sizes=("audio_config__conv_dim[i]", "audio_config__conv_dim[i - 1] if i else 1", "audio_config__conv_kernel[i]"),
            loop="len(audio_config__conv_dim)",
        )
    ],
    "vibevoice_asr": [*_tokenizer("acoustic_tokenizer_encoder"), *_tokenizer("semantic_tokenizer_encoder")],
    "reformer": [
        ByHand(
            r"reformer\.embeddings\.position_embeddings\.weights\.\{i\}",
            "axial_pos_embds",
            sizes=(
                "axial_pos_shape[i] if i == 0 else 1",
                "axial_pos_shape[i] if i == 1 else 1",
                "axial_pos_embds_dim[i]",
            ),
            loop="2",
        )
    ],
}


def by_hand(model_type: str, groups: dict, found: list["Example"], fitter) -> tuple[list["Rule"], list[str]]:
    """Take the templates out of `groups` that have a rule of their own; return their rules and what these miss."""
    rules, failures, cache = [], [], {"formulas": []}
    for template in list(groups):
        hand = next((one for one in BY_HAND.get(model_type, ()) if re.fullmatch(one.names, template)), None)
        if hand is None:
            continue
        occurrences = groups.pop(template)
        sizes = list(hand.sizes) if hand.sizes else best_sizes(occurrences, fitter, cache["formulas"])[0]
        first = occurrences[0][1]
        loops = [hand.loop or "num_hidden_layers"] if "{i}" in template else []
        rule = Rule(
            template,
            [simplify(size) for size in sizes or []],
            loops + list(hand.inner or ()),
            hand.where,
            first.dtype,
            first.linear,
            first.buffer,
        )
        try:
            wrong = sizes and next(filter(None, (check([rule], one, template) for one in found)), None)
        except configs.ConfigError as error:
            wrong = str(error)
        if sizes is None or wrong:
            failures.append(f"{template}: the rule by hand gives {wrong or 'no sizes'}")
        rules.append(rule)
    return rules, failures


# --- from examples to formulas
# -----------------------------------------------------------------------------------------


@dataclass
class Rule:
    """One line of a row: where the tensor is, its sizes and its condition, as expressions."""

    name: str
    sizes: list[str]
    loops: list[str] = field(default_factory=list)
    where: str | None = None
    dtype: str = "model"
    linear: str = ""
    buffer: bool = False

    def as_list(self) -> list:
        """Return the compact form of the file: [name, sizes, loops, condition, marks]."""
        marks = f"{self.linear} {'buffer' if self.buffer else ''}".strip()
        if self.dtype != "model":
            marks = f"{marks} {self.dtype}".strip()
        line = [self.name, self.sizes, self.loops, self.where, marks]
        while line and not line[-1]:
            line.pop()
        return line


def whole_numbers(found: list[Example]) -> list[str]:
    names = set.intersection(*(set(example.fields.fields) for example in found))
    return sorted(
        name
        for name in names
        if not name.startswith("_")
        and all(
            isinstance(example.fields.fields[name], int) and not isinstance(example.fields.fields[name], bool)
            for example in found
        )
    )


class Fitter:
    """Finds expressions over config fields that give the same values as the models, in every example."""

    def __init__(self, found: list[Example]):
        self.found = found
        self.fields = [example.fields.fields for example in found]
        self.numbers = whole_numbers(found)
        self.pool: list[str] = []

    def value(self, expression: str, index: int, extra: dict | None = None):
        try:
            return evaluate(expression, {**self.fields[index], **(extra or {})} if extra else self.fields[index])
        except Exception:
            return None

    def fit(self, points: list[tuple[int, int]], tried: list[str], names: list[str] | None = None) -> str | None:
        """Return an expression that equals the value at every (example, value) point; a constant as the last resort."""
        values = {value for _, value in points}
        groups = [list(dict.fromkeys(tried))]
        if len(values) == 1:
            groups.append([str(next(iter(values)))])
        groups.append(self._simple())
        for group in groups:
            for expression in group:
                if all(self.value(expression, index) == value for index, value in points):
                    return expression
        return None

    def _simple(self) -> list[str]:
        if not self.pool:
            one = self.numbers
            self.pool = list(one) + [f"len({name})" for name in self._lists()] + [f"isqrt({name})" for name in one]
            parts = sorted({name for fields in self.fields for name in fields if "partial_rotary" in name})
            for p in ("", "text_config__", "decoder__"):
                self.pool.append(f"({p}head_dim or {p}hidden_size // {p}num_attention_heads) // 2")
            for part in parts:
                p = part.split("__")[0] + "__" if part.startswith(("text_config__", "decoder__", "encoder__")) else ""
                for head in ("head_dim", f"hidden_size // {p}num_attention_heads"):
                    self.pool.append(
                        f"(int({p}{head} * {part}) + 1) // 2"
                        if head == "head_dim"
                        else f"(int(({p}{head}) * {part}) + 1) // 2"
                    )
                self.pool.append(f"(int(({p}head_dim or {p}hidden_size // {p}num_attention_heads) * {part}) + 1) // 2")
            self.pool += [
                "vocab_size if share_encoder_decoder_embeddings else decoder_vocab_size",
                "int((hidden_size * ffn_proj_factor + ffn_round_up_to_multiple_of - 1) // "
                "ffn_round_up_to_multiple_of) * ffn_round_up_to_multiple_of",
            ]
            self.pool += [f"2 * isqrt({name})" for name in one] + [f"({name} + 1) // 2" for name in one]
            self.pool += [
                f"{a} {op}" for a in one for op in ("// 2", "* 2", "* 3", "* 4", "+ 1", "+ 2", "- 1", "// 4", "- 2")
            ]
            self.pool += [f"{a} * {b}" for a, b in itertools.combinations_with_replacement(one, 2)]
            self.pool += [f"{a} {op} {b}" for a, b in itertools.permutations(one, 2) for op in ("//", "+", "-")]
            self.pool += [f"{a} // {b} // 2" for a, b in itertools.permutations(one, 2)]
        return self.pool

    def _lists(self) -> list[str]:
        names = set.intersection(*(set(fields) for fields in self.fields))
        return sorted(name for name in names if all(isinstance(fields[name], list) for fields in self.fields))


def cost(text: str) -> float:
    """Return how far-fetched a condition is: a switch is likelier to decide than a comparison of two sizes."""
    if re.fullmatch(r"(not )?\w+", text):
        return 1
    if text.endswith(("is None", "is not None")):
        return 1.5
    if "[i]" in text or "[:i]" in text:
        return 2
    if text.startswith(("i ", "(i ")):
        return 6 if "size" in text else 3
    if re.fullmatch(r"\w+ (>|==) 0", text):
        return 2.5
    return 4 if re.fullmatch(r"\w+ (>|==|!=) ('.*'|\d+)", text) else 5


class Conditions:
    """Searches the shortest condition that is true exactly where a tensor exists."""

    def __init__(self, found: list[Example], points: list[tuple[int, int | None]], layers: dict[int, int] | None):
        self.points, self.found = points, found
        self.atoms: dict[int, str] = {}
        self.all = (1 << len(points)) - 1
        for text in self._texts(found, layers):
            mask = self._mask(text)
            if mask is not None and (mask not in self.atoms or cost(text) < cost(self.atoms[mask])):
                self.atoms[mask] = text

    def _mask(self, text: str) -> int | None:
        mask = 0
        for bit, (index, layer) in enumerate(self.points):
            fields = self.found[index].fields
            try:
                if evaluate(text, fields.layer(layer) if layer is not None else fields.fields):
                    mask |= 1 << bit
            except Exception:
                if " and " not in text:
                    return None
                return None
        return mask

    def _texts(self, found, layers):
        names = sorted(set.intersection(*(set(example.fields.fields) for example in found)))
        per_layer, plain = [], []
        for name in names:
            if (name.startswith("_") and not name.startswith("_remove")) or name in ("per_layer_config",):
                continue
            values = [example.fields.fields[name] for example in found]
            kinds = {type(value) for value in values}
            if bool in kinds:
                plain += [f"{name}", f"not {name}"]
            if type(None) in kinds and len(kinds) > 1:
                plain += [f"{name} is not None", f"{name} is None"]
            if int in kinds and bool not in kinds and type(None) not in kinds:
                plain += [f"{name} > 0", f"{name} == 0", f"{name} > 1"]
                if layers is not None:
                    per_layer += [
                        f"i < {name}",
                        f"i >= {name}",
                        f"i % {name} == 0 if {name} else False",
                        f"(i + 1) % {name} == 0 if {name} else False",
                        f"i % {name} != 0 if {name} else False",
                        f"(i + 1) % {name} != 0 if {name} else False",
                        f"i == {name} - 1",
                        f"i != {name} - 1",
                        f"(i - 1) % {name} == 0 if {name} else False",
                        f"(i - 1) % {name} != 0 if {name} else False",
                        f"i % {name} == 1 if {name} else False",
                        f"i % {name} != 1 if {name} else False",
                    ]
                    per_layer += [f"i % {name} == {other}" for other in names if other.endswith("offset")]
                    per_layer += [f"i % {name} != {other}" for other in names if other.endswith("offset")]
                    if "shared" in name:
                        part = name.rpartition("__")[0] and name.rpartition("__")[0] + "__"
                        per_layer += [f"i < {part}num_hidden_layers - {name}", f"i >= {part}num_hidden_layers - {name}"]
            if str in kinds:
                for value in sorted({value for value in values if isinstance(value, str)})[:6]:
                    plain += [f"{name} == {value!r}", f"{name} != {value!r}"]
            if list in kinds and kinds <= {list, type(None)} and layers is not None:
                flat = {
                    item
                    for value in values
                    if value
                    for item in value
                    if isinstance(item, (str, int, bool, type(None)))
                }
                aligned = all(
                    value is None or len(value) >= layers[index]
                    for index, value in enumerate(values)
                    if index in layers
                )
                if aligned and flat and all(isinstance(value, list) for value in values):
                    for item in sorted(flat, key=str)[:8]:
                        per_layer += [f"{name}[i] == {item!r}", f"{name}[i] != {item!r}"]
                    per_layer += [
                        f"{item!r} not in {name}[:i]" for item in sorted(flat, key=str)[:8] if isinstance(item, str)
                    ]
                if all(isinstance(value, list) for value in values):
                    per_layer += [f"i in {name}", f"i not in {name}"]
                    per_layer += [f"{name}[i] > 0", f"{name}[i]"] if aligned else []
            if all(isinstance(value, list) for value in values):
                flat = {item for value in values for item in value if isinstance(item, (str, int))}
                plain += [
                    text
                    for item in sorted(flat, key=str)[:6]
                    for text in (f"{item!r} in {name}", f"{item!r} not in {name}")
                ]
            if name == "layer_types" and layers is not None:
                for group in (
                    ("full_attention", "sliding_attention"),
                    ("full_attention", "sliding_attention", "hybrid"),
                ):
                    per_layer += [f"layer_types[i] in {list(group)!r}", f"layer_types[i] not in {list(group)!r}"]
        sizes = [
            name
            for name in names
            if name.endswith(("_size", "_dim"))
            and all(isinstance(example.fields.fields[name], int) for example in found)
        ]
        plain += [f"{a} {op} {b}" for a, b in itertools.combinations(sizes[:24], 2) for op in ("==", "!=")]
        if layers is not None:
            per_layer += ["i == 0", "i > 0", "i % 2 == 0", "i % 2 == 1", "i == 1"]
        return ["True", *plain, *per_layer]

    def find(self, wanted: int) -> str | None:
        """Return the shortest condition whose mask is `wanted`, with up to three parts."""
        if wanted == self.all:
            return ""
        if wanted in self.atoms:
            return self.atoms[wanted]
        tight = sorted(
            ((mask, text) for mask, text in self.atoms.items() if mask & wanted == wanted and mask != self.all),
            key=lambda atom: atom[0].bit_count(),
        )
        pairs = [(a, b) for (first, a), (second, b) in itertools.combinations(tight, 2) if first & second == wanted]
        if pairs:
            return "({}) and ({})".format(*min(pairs, key=lambda pair: cost(pair[0]) + cost(pair[1])))
        below = [(mask, text) for mask, text in self.atoms.items() if mask & ~wanted == 0 and mask]
        pairs = [(a, b) for (first, a), (second, b) in itertools.combinations(below, 2) if first | second == wanted]
        if pairs:
            return "({}) or ({})".format(*min(pairs, key=lambda pair: cost(pair[0]) + cost(pair[1])))
        triples = [
            (a, b, c)
            for (first, a), (second, b), (third, c) in itertools.combinations(tight[:120], 3)
            if first & second & third == wanted
        ]
        if triples:
            return "({}) and ({}) and ({})".format(*min(triples, key=lambda parts: sum(map(cost, parts))))
        return self._with_alternatives(wanted, tight)

    def _with_alternatives(self, wanted: int, tight: list[tuple[int, str]]) -> str | None:
        """Return "c or d", "a and (c or d)" or "a and b and (c or d)"."""
        either: dict[int, tuple[float, str]] = {}
        for (first, a), (second, b) in itertools.combinations(self.atoms.items(), 2):
            if (first | second) & wanted == wanted:
                found = (cost(a) + cost(b), f"({a}) or ({b})")
                either[first | second] = min(found, either.get(first | second, found))
        either = {mask: text for mask, (_, text) in either.items()}
        loose = sorted(either.items(), key=lambda atom: atom[0].bit_count())
        for mask, text in loose:
            if mask == wanted:
                return text
        for (first, a), (second, b) in itertools.product(tight, loose):
            if first & second == wanted:
                return f"({a}) and ({b})"
        for (first, a), (second, b) in itertools.combinations(tight[:60], 2):
            for third, c in loose[:300]:
                if first & second & third == wanted:
                    return f"({a}) and ({b}) and ({c})"
        return None


def simplify(formula: str) -> str:
    """Return a formula with outer brackets removed."""
    while formula.startswith("(") and formula.endswith(")"):
        depth = 0
        for position, letter in enumerate(formula):
            depth += (letter == "(") - (letter == ")")
            if depth == 0 and position < len(formula) - 1:
                return formula
        formula = formula[1:-1]
    return formula


def infer(found: list[Example]) -> tuple[list[Rule], list[str]]:
    """Return the rules of a type and what could not be explained."""
    fitter = Fitter(found)
    groups: dict[str, list[tuple[int, Tensor]]] = defaultdict(list)
    for index, example in enumerate(found):
        for tensor in example.tensors:
            groups[tensor.template].append((index, tensor))
    rules, failures = by_hand(found[0].fields.model_type, groups, found, fitter)
    groups = split_members(groups)
    stacks = stack_lengths(found)
    cache: dict = {
        "formulas": list(
            dict.fromkeys(
                part
                for example in found
                for tensor in example.tensors
                for part in tensor.formula or ()
                if not part.isdecimal()
            )
        )
    }
    for template, occurrences in groups.items():
        try:
            rules += rules_of(template, occurrences, found, fitter, stacks, cache)
        except LookupError as reason:
            failures.append(f"{template}: {reason}")
    return rules, failures


def split_members(groups: dict) -> dict[str, list]:
    """Keep an inner number where a list holds different things (t5: attention, cross attention, feed-forward)."""
    result: dict[str, list] = defaultdict(list)
    for template, occurrences in groups.items():
        members: dict[tuple, set[int]] = defaultdict(set)
        for index, tensor in occurrences:
            if len(tensor.numbers) > 1:
                members[index, tensor.numbers[0], *tensor.numbers[2:]].add(tensor.numbers[1])
        if all(found == set(range(len(found))) for found in members.values()):
            result[template] += occurrences
            continue
        for index, tensor in occurrences:
            name = template.replace("{j}", str(tensor.numbers[1])).replace("{k}", "{j}")
            numbers = (tensor.numbers[0], *tensor.numbers[2:])
            result[name].append((index, replace(tensor, template=name, numbers=numbers)))
    return result


def stack_lengths(found: list[Example]) -> dict[str, dict[int, int]]:
    """Return, for each numbered list of modules, its length in every example."""
    lengths: dict[str, dict[int, int]] = defaultdict(dict)
    for index, example in enumerate(found):
        for tensor in example.tensors:
            if tensor.numbers:
                prefix = tensor.template.split("{i}")[0]
                lengths[prefix][index] = max(lengths[prefix].get(index, 0), tensor.numbers[0] + 1)
    return lengths


def rules_of(template, occurrences, found, fitter, stacks, cache) -> list[Rule]:
    depth = template.count("{")
    prefix = template.split("{i}")[0] if depth else None
    loops: list[str] = []
    if depth:
        lengths = stacks[prefix]
        if ("loop", prefix) not in cache:
            names = [f"{part}__num_hidden_layers" for part in found[0].fields.parts]
            names += [
                "num_hidden_layers",
                "decoder_layers",
                "encoder_layers",
                "num_layers",
                "n_layer",
                "n_layers",
                "num_decoder_layers",
                "num_encoder_layers",
            ]
            cache["loop", prefix] = fitter.fit(list(lengths.items()), names)
        if cache["loop", prefix] is None:
            raise LookupError(f"no field gives the number of {prefix}* ({sorted(set(lengths.values()))})")
        loops.append(cache["loop", prefix])
        # Where a switch leaves the whole list out, its places are there to be told apart.
        lengths = {index: lengths.get(index) or fitter.value(loops[0], index) or 0 for index in range(len(found))}
        points = [(index, layer) for index in range(len(found)) for layer in range(lengths[index])]
    else:
        points = [(index, None) for index in range(len(found))]
        lengths = None
    place = {point: bit for bit, point in enumerate(points)}
    key = ("conditions", prefix)
    if key not in cache:
        cache[key] = Conditions(found, points, lengths)
    conditions = cache[key]
    rules = []
    inner: list[str] = []
    for level in range(1, depth):
        inner.append(inner_loop(template, level, occurrences, fitter))
    # One rule for each formula: the same tensor can have different sizes in different layers.
    remaining = [(index, tensor) for index, tensor in occurrences]
    shapes: list[tuple[list[str], list]] = by_formula(remaining, fitter)
    if shapes:
        remaining = []
    while remaining:
        sizes, explained = best_sizes(remaining, fitter, cache["formulas"])
        if sizes is None:
            raise LookupError(f"no formula for {remaining[0][1].shape}")
        shapes.append((sizes, explained))
        done = {id(tensor) for _, tensor in explained}
        remaining = [(index, tensor) for index, tensor in remaining if id(tensor) not in done]
    first = occurrences[0][1]
    for sizes, explained in shapes:
        mask = 0
        for index, tensor in explained:
            mask |= 1 << place[(index, tensor.numbers[0] if depth else None)]
        where = conditions.find(mask)
        if where is None:
            raise LookupError(f"no condition for the size {sizes} ({mask.bit_count()} of {len(points)} places)")
        rules.append(
            Rule(
                template,
                [simplify(size) for size in sizes],
                loops + inner,
                where or None,
                first.dtype,
                first.linear,
                first.buffer,
            )
        )
    return rules


def by_formula(occurrences, fitter) -> list[tuple[list[str], list]]:
    """Return the occurrences by the formula each was built with, or nothing when a single one explains them all.

    A size that went through a plain number (a literal in the formula) is fitted inside its group.
    """
    groups: dict[tuple, list] = defaultdict(list)
    for index, tensor in occurrences:
        groups[tensor.formula and tuple("#" if part.isdecimal() else part for part in tensor.formula)].append(
            (index, tensor)
        )
    if None in groups or len(groups) == 1 or len(groups) > 4:
        return []
    for formula in groups:
        if "#" not in formula and explains(formula, occurrences, fitter):
            return []
    found = []
    for formula, group in groups.items():
        sizes = [part if part != "#" else fit_axis(group, axis, fitter) for axis, part in enumerate(formula)]
        if None in sizes or not explains(sizes, group, fitter):
            return []
        found.append((sizes, group))
    return found


def explains(sizes, occurrences, fitter) -> bool:
    return all(
        len(tensor.shape) == len(sizes)
        and all(
            layer_value(fitter, part, index, tensor, "[" in part) == size
            for part, size in zip(sizes, tensor.shape, strict=True)
        )
        for index, tensor in occurrences
    )


def fit_axis(group, axis: int, fitter: Fitter) -> str | None:
    points = list({(index, tensor.shape[axis]) for index, tensor in group})
    if len({value for _, value in points}) == 1:
        return by_layer(group, axis, fitter) or fitter.fit(points, [])
    return fitter.fit(points, []) or by_layer(group, axis, fitter)


def inner_loop(template: str, level: int, occurrences, fitter) -> str:
    counts: dict[tuple, int] = defaultdict(int)
    for index, tensor in occurrences:
        place = (index, *tensor.numbers[:level])
        counts[place] = max(counts[place], tensor.numbers[level] + 1)
    per_example: dict[int, set[int]] = defaultdict(set)
    for place, number in counts.items():
        per_example[place[0]].add(number)
    if any(len(numbers) > 1 for numbers in per_example.values()):
        raise LookupError(f"its inner list {template} differs from layer to layer")
    expression = fitter.fit([(index, next(iter(numbers))) for index, numbers in per_example.items()], [])
    if expression is None:
        raise LookupError("no field gives the length of its inner list")
    return expression


def best_sizes(remaining, fitter, everywhere) -> tuple[list[str] | None, list]:
    """Return the sizes that explain most of the remaining occurrences, and which these are."""
    formulas = list(dict.fromkeys(tensor.formula for _, tensor in remaining if tensor.formula))
    best, explained = None, []
    for formula in formulas[:12]:
        if any(
            part.isdecimal() and len({tensor.shape[axis] for _, tensor in remaining if len(tensor.shape) > axis}) > 1
            for axis, part in enumerate(formula)
        ):
            continue  # a number that should have been a formula
        good = [
            (index, tensor)
            for index, tensor in remaining
            if len(tensor.shape) == len(formula)
            and all(
                layer_value(fitter, part, index, tensor) == size
                for part, size in zip(formula, tensor.shape, strict=True)
            )
        ]
        if len(good) > len(explained):
            best, explained = list(formula), good
    if best and len(explained) == len(remaining):
        return best, explained
    # Sizes that were computed through floats or torch: fit each one alone.
    rank = len(remaining[0][1].shape)
    subset = [(index, tensor) for index, tensor in remaining if len(tensor.shape) == rank]
    tried = [part for formula in formulas for part in formula if not part.isdecimal()]
    sizes = []
    for axis in range(rank):
        same = [formula[axis] for formula in formulas if len(formula) == rank and not formula[axis].isdecimal()]
        points = list({(index, tensor.shape[axis]) for index, tensor in subset})
        sizes.append(
            fitter.fit(points, same + tried) or by_layer(subset, axis, fitter) or fitter.fit(points, everywhere)
            if len({value for _, value in points}) > 1
            else fitter.fit(points, same + tried + everywhere)
        )
    if None not in sizes and len(subset) > len(explained):
        return sizes, subset
    return best, explained


def by_layer(occurrences, axis: int, fitter: Fitter) -> str | None:
    """Return a list or a table of the config that gives the size layer by layer."""
    names = set.intersection(*(set(fields) for fields in fitter.fields))
    lists = [
        f"{name}[i]"
        for name in sorted(names)
        if all(
            isinstance(f[name], list) and f[name] and all(isinstance(item, int) for item in f[name])
            for f in fitter.fields
        )
    ]
    tables = [
        f"{name}[layer_types[i]]"
        for name in sorted(names)
        if all(isinstance(f[name], dict) and f[name] for f in fitter.fields)
    ]
    for expression in lists + tables:
        if all(
            tensor.numbers and layer_value(fitter, expression, index, tensor, True) == tensor.shape[axis]
            for index, tensor in occurrences
        ):
            return expression
    return None


def layer_value(fitter: Fitter, expression: str, index: int, tensor: Tensor, always: bool = False):
    config = fitter.found[index].fields
    varied = always or any(part.fields.get("per_layer_config") for part in (config, *config.parts.values()))
    try:
        return evaluate(expression, config.layer(tensor.numbers[0]) if tensor.numbers and varied else config.fields)
    except Exception:
        return None


def explained(lines: list[list], example: Example) -> bool:
    """Say whether a row of the file gives the parameters and buffers of a real model, name by name."""
    from labutils.arithmetic import weights

    ours, theirs = defaultdict(int), defaultdict(int)
    try:
        for tensor in weights.tensors_of(lines, example.fields):
            ours[plain_name(tensor.name), tensor.dtype] += tensor.total
    except configs.ConfigError:
        return False
    for tensor in example.tensors:
        theirs[plain_name(tensor.template), tensor.dtype] += math.prod(tensor.shape)
    return {key: number for key, number in ours.items() if number} == {
        key: number for key, number in theirs.items() if number
    }


def plain_name(name: str) -> str:
    """Return a name without its numbers and letters for them: rules may keep an inner number that examples count."""
    return re.sub(r"\{\w\}|(?<=\.)\d+(?=\.|$)", "#", name)


def check(rules: list[Rule], example: Example, template: str | None = None) -> list[str]:
    """Return how the rules' tensors differ from those of a real model (all of them, or those of one template)."""
    from labutils.arithmetic import weights

    ours = defaultdict(int)
    for tensor in weights.tensors_of([rule.as_list() for rule in rules], example.fields):
        ours[tensor.name] += tensor.numbers * tensor.copies
    theirs = defaultdict(int)
    for tensor in example.tensors:
        if template in (None, tensor.template):
            theirs[tensor.template] += math.prod(tensor.shape)
    return [
        f"{name}: {ours.get(name, 0):,} computed, {theirs.get(name, 0):,} real"
        for name in {*ours, *theirs}
        if ours.get(name, 0) != theirs.get(name, 0)
    ]


def source_of(model_type: str) -> str:
    import inspect

    config = real.CONFIG_MAPPING[model_type]
    module = inspect.getsourcefile(config)
    return Path(module).as_posix().split("/transformers/")[-1].replace("configuration_", "modeling_")


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("types", nargs="*")
    parser.add_argument("--variations", type=int, default=VARIATIONS, help="random variations of each type")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once (default: 1)")
    parser.add_argument("--fresh", action="store_true", help="infer also what the stored rows explain")
    args = parser.parse_args()
    done = {}
    if OUT.exists():
        for line in OUT.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            for model_type in row["types"]:
                done[model_type] = row
    work = functools.partial(one_type, variations=args.variations, old={} if args.fresh else done)
    for model_type, row, told in real.in_turn(work, args.types or real.TYPES, args.jobs):
        print(told, flush=True)
        if row:
            done[model_type] = row
            write(done)


def one_type(model_type: str, variations: int, old: dict[str, dict]) -> tuple[str, dict | None, str]:
    """Return the type that the row is for (of musicgen: the decoder it is built from), its row and what to print.

    A row that explains every example stays as it is, so that what was verified with it stays verified.
    """
    torch.set_num_threads(1)
    started = time.time()
    try:
        found = examples(model_type, variations)
        kept = old.get(found[0].fields.model_type)
        if kept and not kept.get("unexplained") and all(explained(kept["tensors"], one) for one in found):
            seconds = time.time() - started
            return found[0].fields.model_type, None, f"{model_type}: kept, right for {len(found)} models, {seconds:.1f} s"
        rules, failures = infer(found)
    except Exception as error:
        return model_type, None, f"{model_type}: {type(error).__name__}: {str(error)[:200]}"
    row = {"source": source_of(model_type), "tensors": [rule.as_list() for rule in rules]}
    if failures:
        row["unexplained"] = failures
    told = f"{model_type}: {len(rules)} rules from {len(found)} models, {time.time() - started:.1f} s"
    return found[0].fields.model_type, row, told + (f"; UNEXPLAINED {failures[:4]}" if failures else "")


def write(done: dict[str, dict]) -> None:
    """Write one line for each family: types whose tensors and formulas are the same."""
    families: dict[str, list[str]] = defaultdict(list)
    for model_type, row in done.items():
        text = json.dumps(row["tensors"]) + json.dumps(row.get("unexplained", []))
        families[hashlib.sha256(text.encode()).hexdigest()].append(model_type)
    lines = []
    for types in sorted(families.values()):
        row = done[types[0]]
        lines.append(
            json.dumps(
                {"types": sorted(types), **{k: v for k, v in row.items() if k != "types"}}, separators=(", ", ": ")
            )
        )
    OUT.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
