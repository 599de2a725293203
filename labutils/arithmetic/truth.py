"""The table of what was verified: one row a model type, made by tools/verify_arithmetic.py from real tensors."""

import csv
import hashlib
import json
from dataclasses import dataclass

from labutils import data
from labutils.arithmetic import cache, config, weights
from labutils.arithmetic.errors import UnknownArchitecture


@dataclass(frozen=True)
class Verified:
    """What was found for one model type: bytes in bfloat16 at `tokens` tokens and batch 1 (batch 2 if `small`).

    `naive_bytes` is the formula everyone quotes, `exact_bytes` ours, `real_bytes` the sum of the real tensors; `ratio`
    is naive over exact. `configs` were tried; in `cache_exact` and `weights_exact` of them every byte agreed. `error`
    says what differed, or why the type cannot be run.
    """

    type: str
    family: str
    kinds: str
    tokens: int | None
    naive_bytes: int | None
    exact_bytes: int | None
    real_bytes: int | None
    ratio: float | None
    parameters: int | None
    weight_bytes_bf16: int | None
    config: str
    cache_exact: int
    weights_exact: int
    configs: int
    rules: str
    error: str


def table() -> list[Verified]:
    """Return the rows of data/arithmetic/truth.csv, by type."""
    with data.path("arithmetic/truth.csv").open(encoding="utf-8", newline="") as file:
        return [_row(line) for line in csv.DictReader(file)]


def _row(line: dict[str, str]) -> Verified:
    kinds = Verified.__annotations__
    return Verified(**{name: _value(text, kinds[name]) for name, text in line.items()})


def _value(text: str, kind: object) -> object:
    if kind is str:
        return text
    if text == "":
        return None
    return float(text) if kind == float | None else int(text)


def fingerprint(model_type: str) -> str:
    """Return a short hash of every rule that a type's numbers come from, so that a stale row of the table is found."""
    types, rules = [model_type], []
    for name in types:
        try:
            row = config.row(name)
        except UnknownArchitecture:
            continue
        rules.append(row)
        found = weights.rules(name)
        rules.append({key: value for key, value in (found or {}).items() if key != "types"})
        rules.append({key: value for key, value in cache.families().get(name, {}).items() if key != "types"})
        types += [part["type"] for part in row.get("parts", {}).values() if part["type"] and part["type"] not in types]
    return hashlib.sha256(json.dumps(rules, sort_keys=True).encode()).hexdigest()[:12]
