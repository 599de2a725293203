"""Where the course's data folder is: at the root of a checkout, inside the package in an installed wheel."""

from pathlib import Path

from labutils.errors import LabError

_PACKAGE = Path(__file__).resolve().parent


def root() -> Path:
    """Return the folder that holds course.toml, checkpoints.toml and the data sets."""
    for folder in (_PACKAGE.parent / "data", _PACKAGE / "_data"):
        if (folder / "course.toml").is_file():
            return folder
    raise LabError(
        f"The course data is missing: neither {_PACKAGE.parent / 'data'} nor {_PACKAGE / '_data'} holds course.toml. "
        "Install labutils again, from a checkout or from its wheel."
    )


def path(name: str) -> Path:
    """Return the file or folder `name` of the course data, e.g. path("course.toml") or path("sentiment").

    Raises LabError with the names that exist when there is no such entry.
    """
    entry = root() / name
    if not entry.exists():
        known = ", ".join(sorted(child.name for child in root().iterdir()))
        raise LabError(f"The course data has no entry named {name!r}. It has: {known}.")
    return entry


def parallel() -> dict[str, list[str]]:
    """Return data/parallel: the name of each language -> its 20 sentences; sentence n says the same in all of them."""
    import tomllib

    folder = path("parallel")
    languages = tomllib.loads((folder / "languages.toml").read_text(encoding="utf-8"))["language"]
    return {language["name"]: (folder / f"{language['code']}.txt").read_text(encoding="utf-8").splitlines()
            for language in languages}
