"""Checkers of the exercises: `check.left_pad(left_pad)` says not attempted, wrong with a diagnosis, or right.

One module a lesson; every checker is reached from here by its name. `check.progress()` shows what has been done.
"""

import importlib
import pkgutil
from typing import Any


def _lessons() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name.startswith("lesson"))


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    for lesson in _lessons():
        module = importlib.import_module(f"{__name__}.{lesson}")
        found = getattr(module, name, None)
        if hasattr(found, "label"):
            return found
    known = ", ".join(sorted(check.__name__ for check in load_all().values()))
    raise AttributeError(f"There is no checker {name!r}. The checkers are {known}.")


def load_all() -> dict:
    """Return every checker of the course by its label, such as "Exercise 5.3"."""
    from labutils.check import core

    for lesson in _lessons():
        importlib.import_module(f"{__name__}.{lesson}")
    return dict(core.checkers)


def progress(lesson: str | None = None):
    """Return a table of what you have tried so far, of one lesson ("05") or of all."""
    from labutils import views
    from labutils.check import core

    kept = core.read_progress()
    labels = sorted(load_all(), key=lambda label: ([int(part) for part in label.split()[1].split(".")], label))
    rows = [
        (f"{core.MARKS[kept.get(label, {}).get('state', core.NOT_ATTEMPTED)]} {label}",
         kept.get(label, {}).get("state", core.NOT_ATTEMPTED), kept.get(label, {}).get("tries", 0))
        for label in labels
        if lesson is None or int(label.split()[1].split(".")[0]) == int(lesson)
    ]
    right = sum(state == core.RIGHT for _, state, _ in rows)
    return views.table(("", "state", "tries"), rows, caption=f"{right} of {len(rows)} right")
