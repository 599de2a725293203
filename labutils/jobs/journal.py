"""The files of a job, moved forward together, and where they were when the last run ended.

Beside `answers.jsonl` stand `answers.rejects.jsonl` (only when a line was rejected) and the folder `answers.jsonl.job`
with a lock and the journal. The journal's first line holds the settings; each further line is one commit: how far the
input was read, how long both outputs were, and the digests of all three. It is written after the bytes that it speaks
of are on the disk. Whatever stands behind the last commit is cut off when the job goes on, and done again.
"""

import contextlib
import errno
import hashlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from filelock import FileLock, Timeout

from labutils.jobs.errors import InputError, JobError

FORMAT = 1
PIECE = 2**20
FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up",
        errno.EFBIG: "files may not become larger here (ulimit -f, or the file system)"}


@dataclass(frozen=True)
class Commit:
    """How far a job is. Sizes and offsets in bytes; digests are sha256 of the first so many bytes of a file."""

    offset: int = 0
    lines: int = 0
    prompts: int = 0
    answers: int = 0
    rejected: int = 0
    new_tokens: int = 0
    output: int = 0
    rejects: int = 0
    input_digest: str = hashlib.sha256().hexdigest()
    output_digest: str = hashlib.sha256().hexdigest()
    rejects_digest: str = hashlib.sha256().hexdigest()


class Files:
    """The open files of a job: `with Files(output, settings) as files`. One process at a time.

    pause: seconds that lie between two commits at least; what comes in between is held in memory.
    Raises InputError where the files are not those of a job with these settings, JobError where they cannot be written.
    """

    def __init__(self, output: Path, settings: dict, pause: float = 0.2):
        self.output, self.settings, self.pause = output, settings, pause
        self.folder = output.with_name(f"{output.name}.job")
        self.answers = Part(output)
        self.rejects = Part(output.with_name(f"{output.stem}.rejects{output.suffix}"))
        self.journal = Part(self.folder / "journal.jsonl")
        self.last = self.now = Commit()     # what the journal says, and what has been handed in since

    def __enter__(self) -> "Files":
        self.stack = contextlib.ExitStack()
        try:
            with _explained(self.output):
                self._open()
        except BaseException:
            self.stack.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.close()

    def _open(self) -> None:
        outputs = [self.answers.path, self.rejects.path]
        for path in outputs:
            if path.exists() and not path.is_file():
                raise InputError(f"{path} is no regular file. Name a file that can be written on and cut off.")
        if not self.output.parent.is_dir():
            raise InputError(f"There is no folder {self.output.parent} for {self.output.name}. Make it first.")
        foreign = next((path for path in outputs if path.exists() and path.stat().st_size), None)
        if foreign and not self.journal.path.exists():
            raise InputError(f"{foreign} exists, and there is no {self.folder.name} beside it that says how it was made. "
                             "Name another output, or move it away.")
        self.folder.mkdir(exist_ok=True)
        self._lock()
        for part in (self.journal, self.answers, self.rejects):
            self.stack.callback(part.close)
        self._resume()
        self.answers.append(b"")        # there is an output even where there is no answer
        if not self.journal.size:
            head = {"job": "labutils generate", "format": FORMAT, "settings": self.settings}
            self.journal.append(json.dumps(head).encode() + b"\n")
        self.when = time.monotonic()

    def _lock(self) -> None:
        lock = FileLock(self.folder / "lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise InputError(f"Another process is at work on {self.output}. Wait for it, or name another output.") from None
        self.stack.callback(lock.release)

    # --- where the last run ended -------------------------------------------------------------------------------------

    def _resume(self) -> None:
        """Find the last commit that the files bear out, and cut off what stands behind it."""
        answers, rejects = _Reader(self.answers.path), _Reader(self.rejects.path)
        lines = _whole_lines(self.journal.path)
        head, kept = next(lines, (None, 0))
        if head is not None:
            self._compare(head)
        elif answers.size or rejects.size:
            raise InputError(f"{self.journal.path} is damaged, so nobody knows how far {self.output} is. Move both away.")
        for found, end in lines:
            try:
                commit = Commit(**found)
            except TypeError:
                raise InputError(f"{self.journal.path} was changed. Name another output.") from None
            if commit.output > answers.size or commit.rejects > rejects.size:
                break           # an output was cut off: go back to where it is whole
            if (answers.upto(commit.output), rejects.upto(commit.rejects)) != (commit.output_digest, commit.rejects_digest):
                raise InputError(f"{self.output} or {self.rejects.path.name} was changed since this job wrote it. Name "
                                 f"another output, or move both and {self.folder.name} away to begin anew.")
            self.last, kept = commit, end
        self.now = self.last
        self.answers.go_on(self.last.output)
        self.rejects.go_on(self.last.rejects)
        self.journal.go_on(kept)

    def _compare(self, head: dict) -> None:
        if head.get("format") != FORMAT:
            raise InputError(f"{self.folder} is of another version of labutils. Name another output.")
        old, new = head.get("settings", {}), self.settings
        told = [f"{name} was {json.dumps(old.get(name))} and is now {json.dumps(new.get(name))}"
                for name in {**old, **new} if old.get(name) != new.get(name)]
        if told:
            raise InputError(f"{self.output} was begun with other settings: {'; '.join(told)}. Give the same ones to go on, "
                             "or name another output.")

    def compare_input(self, path: Path) -> "hashlib._Hash":
        """Return the running sha256 of the input up to where the job is. Raises InputError for another input."""
        reader, last = _Reader(path), self.last
        if last.offset > reader.size or reader.upto(last.offset) != last.input_digest:
            raise InputError(f"{path} is not the input that {self.output} was begun with: the first {last.lines:,} lines "
                             "differ. Give the same file to go on, or name another output.")
        if 0 < last.offset < reader.size and not reader.ends_a_line:
            raise InputError(f"Line {last.lines:,} of {path} was answered as the last one, and has become longer since. "
                             "Name another output.")
        return reader.digest

    # --- forward ------------------------------------------------------------------------------------------------------

    def add(self, answers: bytes, rejects: bytes, now: Commit) -> None:
        """Take the lines of one chunk; `now` counts how far the job is after it (sizes and output digests are filled in)."""
        self.answers.held.append(answers)
        self.rejects.held.append(rejects)
        self.now = now
        if time.monotonic() - self.when >= self.pause:
            self.commit()

    def commit(self) -> None:
        """Write what is held, then the journal's line. After a JobError the files are as at the last commit."""
        if self.now is self.last:
            return
        try:
            with _explained(self.output):
                self.answers.flush()
                self.rejects.flush()
                now = replace(self.now, output=self.answers.size, output_digest=self.answers.digest.hexdigest(),
                              rejects=self.rejects.size, rejects_digest=self.rejects.digest.hexdigest())
                self.journal.append(json.dumps(asdict(now)).encode() + b"\n")
        except JobError:
            with contextlib.suppress(OSError):      # else the next run cuts them off
                self.answers.go_on(self.last.output)
                self.rejects.go_on(self.last.rejects)
            raise
        self.last = self.now = now
        self.when = time.monotonic()


class Part:
    """One file that is only ever written at its end: its path, size and running digest, and what waits to be written."""

    def __init__(self, path: Path):
        self.path, self.size, self.digest = path, 0, hashlib.sha256()
        self.held: list[bytes] = []
        self.file: int | None = None

    def go_on(self, size: int) -> None:
        """Cut the file off at `size` bytes."""
        reader = _Reader(self.path)
        if reader.size > size:
            os.truncate(self.path, size)
        reader.upto(size)
        self.size, self.digest = size, reader.digest

    def flush(self) -> None:
        """Write what is held."""
        data, self.held = b"".join(self.held), []
        if data:
            self.append(data)

    def append(self, data: bytes) -> None:
        """Write all of it and wait until the disk has it."""
        if self.file is None:
            self.file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o666)
            _sync_folder(self.path.parent)
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self.file, rest):]
        os.fsync(self.file)
        self.size += len(data)
        self.digest.update(data)

    def close(self) -> None:
        if self.file is not None:
            os.close(self.file)
            self.file = None


class _Reader:
    """The beginning of a file and its running sha256, read forward in pieces; a file that is not there is empty."""

    def __init__(self, path: Path):
        self.path, self.place, self.digest = path, 0, hashlib.sha256()
        self.size = path.stat().st_size if path.exists() else 0
        self.ends_a_line = True

    def upto(self, place: int) -> str:
        """Return the digest of the first `place` bytes, which must not be before those of an earlier call."""
        if place > self.place:
            with self.path.open("rb") as file:
                file.seek(self.place)
                while self.place < place and (piece := file.read(min(PIECE, place - self.place))):
                    self.digest.update(piece)
                    self.place += len(piece)
                    self.ends_a_line = piece.endswith(b"\n")
        return self.digest.hexdigest()


def _whole_lines(path: Path) -> Iterator[tuple[dict, int]]:
    """Yield the journal's lines and where each ends, up to the first that is not whole."""
    if not path.exists():
        return
    end = 0
    with path.open("rb") as file:
        for line in file:
            try:
                found = json.loads(line) if line.endswith(b"\n") else None
            except ValueError:
                found = None
            if not isinstance(found, dict):
                return
            end += len(line)
            yield found, end


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


@contextlib.contextmanager
def _explained(output: Path) -> Iterator[None]:
    """Turn what the system says of a file into a sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise JobError(f"{output} cannot grow: {FULL[error.errno]}. What was answered is kept. Make room, then run the "
                           "same command again to go on.") from error
        name = error.filename or output
        raise JobError(f"{name} cannot be written: {error.strerror}. What was answered is kept. Put that right, then run "
                       "the same command again to go on.") from error
