"""What every checker shares: three verdicts, a look at what was handed in, and progress kept in one local file.

A checker is a function with `@exercise("5.3")` or `@prediction("5.3")`. It returns the sentence that a right answer earns,
raises `Wrong` with a diagnosis, or raises `NotAttempted`. What the learner sees is always a `Verdict`.
"""

import functools
import html
import json
import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from labutils import environment

NOT_ATTEMPTED, WRONG, RIGHT = "not attempted", "wrong", "right"
MARKS = {NOT_ATTEMPTED: "○", WRONG: "✗", RIGHT: "✓"}
COLOURS = {NOT_ATTEMPTED: "#6e7781", WRONG: "#b35900", RIGHT: "#0b6e4f"}

checkers: dict[str, Callable[..., "Verdict"]] = {}


class NotAttempted(Exception):
    """The learner has left the placeholder `...` as it was."""


class Wrong(Exception):
    """The answer is wrong; the message is the diagnosis."""


@dataclass(frozen=True)
class Verdict:
    """What a checker says. `state` is one of "not attempted", "wrong", "right"."""

    label: str      # "Exercise 5.3" or "Prediction 5.3"
    state: str
    message: str
    note: str = ""  # set where the progress file could not be written

    def __repr__(self) -> str:
        return f"{MARKS[self.state]} {self.label}: {self.message}{self.note}"

    def _repr_html_(self) -> str:
        colour = COLOURS[self.state]
        return (
            f'<div style="border-left:4px solid {colour};padding:.4em .8em;margin:.3em 0">'
            f'<b style="color:{colour}">{MARKS[self.state]} {html.escape(self.label)}</b> '
            f"{html.escape(self.message)}{html.escape(self.note)}</div>"
        )


def exercise(number: str) -> Callable:
    """Turn a checking function into a checker of exercise `number`, listed in `checkers`."""
    return _checker(f"Exercise {number}", "not attempted. Replace the ... and run this cell again.")


def prediction(number: str) -> Callable:
    """Turn a checking function into a checker of prediction `number`, listed in `checkers`."""
    return _checker(f"Prediction {number}", "not made yet. Guess first; being wrong is how it sticks.")


def _checker(label: str, invitation: str) -> Callable:
    def decorate(judge: Callable[..., str]) -> Callable[..., Verdict]:
        @functools.wraps(judge)
        def check(*answers: Any, **named: Any) -> Verdict:
            try:
                if any(answer is ... for answer in answers):
                    raise NotAttempted
                state, message = RIGHT, judge(*answers, **named)
            except NotAttempted:
                return Verdict(label, NOT_ATTEMPTED, invitation)
            except Wrong as diagnosis:
                state, message = WRONG, str(diagnosis)
            return Verdict(label, state, message, _remember(label, state))

        check.label = label
        checkers[label] = check
        return check

    return decorate


def call(function: Callable, *arguments: Any, shown: str | None = None, optional: bool = False) -> Any:
    """Call the learner's function and return its result.

    Raises NotAttempted where it still returns the placeholder, Wrong with the place in the learner's own code where it
    fails or forgets to return. `shown` is how the call is named in the message, by default the arguments themselves;
    with `optional` None is an answer.
    """
    if not callable(function):
        raise Wrong(f"Hand in the function itself, without calling it; this is a {type(function).__name__}.")
    named = f"{function.__name__}({shown if shown is not None else ', '.join(map(_short, arguments))})"
    try:
        result = function(*arguments)
    except (NotAttempted, Wrong):
        raise
    except Exception as error:
        own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.name == function.__name__]
        place = f" in its line {own[-1].lineno - function.__code__.co_firstlineno + 1}" if own else ""
        raise Wrong(f"{named} stopped{place} with {type(error).__name__}: {_short(str(error), 200)}") from error
    if result is ...:
        raise NotAttempted
    if result is None and not optional:
        raise Wrong(f"{named} returned None. Does every path end in a return?")
    return result


def _short(value: Any, limit: int = 60) -> str:
    text = value if isinstance(value, str) and limit > 60 else repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


# --- progress: one file, the learner's own ---------------------------------------------------------------------------


def progress_file() -> Path:
    return environment.progress_dir() / "progress.json"


def read_progress() -> dict[str, dict]:
    """Return what has been checked so far: label -> {"state", "tries", "first", "right"}. A broken file is set aside."""
    file = progress_file()
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(kept, dict) or not all(isinstance(entry, dict) for entry in kept.values()):
            raise ValueError("not a table of exercises")
        return kept
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except ValueError:
        os.replace(file, file.with_suffix(".broken"))   # nothing is lost, and the next check works again
        return {}


def _remember(label: str, state: str) -> str:
    """Write the verdict to the progress file. Return a note for the learner where that is not possible."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    file = progress_file()
    try:
        kept = read_progress()
        entry = kept.setdefault(label, {"state": state, "tries": 0, "first": now, "right": None})
        entry["tries"] = entry.get("tries", 0) + 1
        if entry.get("state") != RIGHT:     # once right stays right; trying further costs nothing
            entry["state"] = state
            entry["right"] = now if state == RIGHT else None
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f"progress.{os.getpid()}.tmp")
        draft.write_text(json.dumps(kept, indent=1, sort_keys=True), encoding="utf-8")
        os.replace(draft, file)
    except OSError as error:
        return f" (Not kept in your progress file: {error.strerror or error}. LAB_PROGRESS names another folder.)"
    return ""
