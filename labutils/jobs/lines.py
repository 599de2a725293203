"""A JSON Lines file in chunks of lines, and what a line has to be: `{"prompt": "..."}` or `{"messages": [...]}`.

A line may also have an `id` (text or whole number), which its answer carries, and `max_tokens`. Other keys are left
alone, but for those that look like settings and would have no effect.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_LINE = 16 * 2**20       # bytes of one line; a longer one is rejected without being held in memory
MAX_CHUNK = 8 * 2**20       # bytes of lines after which a chunk is closed even if it has fewer lines than asked for
BOM = b"\xef\xbb\xbf"
PER_JOB = ("max_new_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "stop", "seed", "n", "model")


class BadLine(Exception):
    """A line that cannot be answered; the message is the reason."""


@dataclass(frozen=True)
class Chunk:
    """Lines of the input, in order, without their line ends; None stands for a line of more than MAX_LINE bytes.

    `first` is the number of the first line, counted from 1; `start` and `end` are offsets in bytes; `digest` is the
    sha256 of the whole input up to `end`.
    """

    first: int
    start: int
    end: int
    digest: str
    lines: list[bytes | None]


@dataclass(frozen=True)
class Source:
    """What is left of an input to be answered: iterating yields its chunks of `size` lines.

    `start` is the offset where it goes on, `first` the number of the line there, `before` the running sha256 up to there.
    """

    path: Path
    size: int
    start: int = 0
    first: int = 1
    before: "hashlib._Hash | None" = None

    def __iter__(self) -> Iterator[Chunk]:
        return chunks(self.path, self.size, self.start, self.first, self.before)


def chunks(path: Path, size: int, start: int = 0, first: int = 1, before: "hashlib._Hash | None" = None) -> Iterator[Chunk]:
    """Yield the input from the offset `start` on, `size` lines at a time; memory does not grow with the file.

    `first` is the number of the line at `start`, `before` the running sha256 of the bytes up to there.
    """
    digest = before.copy() if before else hashlib.sha256()
    with path.open("rb") as file:
        file.seek(start)
        while True:
            lines, end, held = [], start, 0
            while len(lines) < size and held < MAX_CHUNK and (raw := file.readline(MAX_LINE + 1)):
                length = len(raw)
                digest.update(raw)
                if length > MAX_LINE and not raw.endswith(b"\n"):
                    raw = None
                    while piece := file.readline(2**20):
                        digest.update(piece)
                        length += len(piece)
                        if piece.endswith(b"\n"):
                            break
                lines.append(raw)
                end += length
                held += len(raw or b"")
            if not lines:
                return
            yield Chunk(first, start, end, digest.hexdigest(), lines)
            start, first = end, first + len(lines)


def parse(raw: bytes | None, number: int) -> dict | None:
    """Return the row of a line, or None for a blank one. Raises BadLine with the reason.

    A byte order mark at the start of the file and carriage returns at the end of lines are no faults.
    """
    if raw is None:
        raise BadLine(f"longer than {MAX_LINE // 2**20} MiB")
    if number == 1:
        raw = raw.removeprefix(BOM)
    if not raw or raw.isspace():
        return None
    try:
        row = DECODER.decode(raw.decode("utf-8").strip(" \t\r\n"))
    except UnicodeDecodeError as error:
        raise BadLine(f"not UTF-8: byte {error.start + 1} of the line") from None
    except json.JSONDecodeError as error:
        raise BadLine(f"not JSON: {error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise BadLine("not JSON that can be read: nested too deeply") from None
    except ValueError as error:
        raise BadLine(f"not JSON: {error}") from None
    check(row)
    if b"\\u" in raw and _has_lone_surrogate(row):
        raise BadLine("holds half of a surrogate pair, which is no text")
    return row


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def check(row: object) -> None:
    """Raise BadLine unless the row has what an engine needs, in the right types."""
    if not isinstance(row, dict):
        raise BadLine(f"a JSON object is needed, not {_kind(row)}")
    if ("prompt" in row) == ("messages" in row):
        raise BadLine("has both prompt and messages" if "prompt" in row else "has neither prompt nor messages")
    if "prompt" in row:
        if not isinstance(row["prompt"], str):
            raise BadLine(f"prompt must be text, not {_kind(row['prompt'])}")
    else:
        _check_messages(row["messages"])
    limit = row.get("max_tokens")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise BadLine("max_tokens must be a whole number from 1")
    if "id" in row and type(row["id"]) not in (str, int):
        raise BadLine(f"id must be text or a whole number, not {_kind(row['id'])}")
    for name in PER_JOB:
        if name in row:
            raise BadLine(f"{name} holds for the whole job and cannot be set by a line")


def _check_messages(messages: object) -> None:
    if not isinstance(messages, list) or not messages:
        raise BadLine("messages must be a list with at least one message")
    for place, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise BadLine(f"messages[{place}] must be an object with a role")
        if not isinstance(message.get("content"), (str, list)):
            raise BadLine(f"messages[{place}] must have content: text or a list of parts")


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a truth value", int: "a number", float: "a number"}
    return names.get(type(value), "null")


def _has_lone_surrogate(value: object) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False
