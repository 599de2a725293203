"""Public models by name: the config fields that decide their sizes, from data/arithmetic/known.toml."""

import tomllib
from functools import lru_cache

from labutils import data
from labutils.arithmetic.errors import ConfigError


@lru_cache(maxsize=1)
def _models() -> dict[str, dict]:
    return tomllib.loads(data.path("arithmetic/known.toml").read_text(encoding="utf-8"))


def known(name: str) -> dict:
    """Return the config of a public model such as "Llama-3.1-8B", as its config.json has it, sizes only.

    Raises ConfigError with the names that are known.
    """
    if name not in _models():
        raise ConfigError(f"there is no model {name!r} in known.toml; it has {', '.join(_models())}")
    return dict(_models()[name]["config"])


def known_names() -> tuple[str, ...]:
    """Return the names that `known` takes, smallest model first."""
    return tuple(_models())
