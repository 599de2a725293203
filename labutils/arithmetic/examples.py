"""Configs to compute with: published models, small ones of every kind of cache, and public reports of wrong estimates.

They stand in data/arithmetic/examples.toml. Only what the arithmetic needs of each config is there.
"""

import tomllib
from typing import Any

from labutils import data

UNITS = {"bytes": 1, "MiB": 2**20, "GiB": 2**30}


def _read() -> dict[str, Any]:
    return tomllib.loads(data.path("arithmetic/examples.toml").read_text(encoding="utf-8"))


def public(*names: str) -> dict[str, dict]:
    """Return configs of published models by name, in the order asked for (default: all). Raises KeyError, naming those known."""
    known = _read()["public"]
    for name in names:
        if name not in known:
            raise KeyError(f"There is no example {name!r}. The examples are {', '.join(known)}.")
    return {name: known[name] for name in names or known}


def small() -> dict[str, dict]:
    """Return configs of small models (two to six layers of width 32), one for each kind of cache."""
    values = _read()["small"]
    kinds = values.pop("kinds")
    # No end token: nothing may stop a model that is only asked for shapes.
    values |= {"bos_token_id": None, "eos_token_id": None}
    return {name: {**values, **fields} for name, fields in kinds.items()}


def reports() -> list[dict]:
    """Return public reports: where, model (a name of `public`), tokens, what the tool said, unit (see UNITS)."""
    return _read()["report"]
