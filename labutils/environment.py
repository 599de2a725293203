"""What this machine is, what it can hold, and which settings the course runs under."""

import os
from pathlib import Path

from labutils.errors import SettingError

PROFILES = ("bundled", "hub")
DEVICES = ("auto", "cpu", "cuda", "mps")


def _choice(variable: str, allowed: tuple[str, ...]) -> str:
    value = os.environ.get(variable, "").strip().lower() or allowed[0]
    if value not in allowed:
        raise SettingError(
            f"{variable} is {os.environ[variable]!r}; it can be {', '.join(allowed[:-1])} or {allowed[-1]}. "
            f"Set it to one of these, or unset it for {allowed[0]!r}, then restart the kernel."
        )
    return value


def profile() -> str:
    """Return where checkpoints come from: "bundled" (default) or "hub". Set by LAB_PROFILE.

    Raises SettingError for any other value.
    """
    return _choice("LAB_PROFILE", PROFILES)


def device() -> str:
    """Return the torch device of the lessons: "cuda", "mps" or "cpu". Set by LAB_DEVICE (auto, cpu, cuda, mps).

    Needs torch. Raises SettingError for an unknown name or a device that this machine does not have.
    """
    wanted = _choice("LAB_DEVICE", DEVICES)
    import torch

    present = [name for name, there in (("cuda", torch.cuda.is_available()), ("mps", torch.backends.mps.is_available()))
               if there] + ["cpu"]
    if wanted == "auto":
        return present[0]
    if wanted not in present:
        raise SettingError(
            f"LAB_DEVICE is {wanted!r}, but torch {torch.__version__} finds only {', '.join(present)} here. "
            "Set LAB_DEVICE=auto, then restart the kernel."
        )
    return wanted


def dtype():
    """Return the torch dtype in which the lessons load a model that writes, by what the device computes well.

    float32 on a CPU, where answers are compared; bfloat16 on a card that has it; float16 on one that has not (Turing, such
    as Colab's T4, and older) and on mps. Needs torch. Raises SettingError as `device` does.
    """
    import torch

    if device() == "cpu":
        return torch.float32
    # is_bf16_supported() also says yes where bfloat16 is only emulated, slowly; compute capability 8 has it.
    native = device() == "cuda" and torch.cuda.get_device_capability()[0] >= 8
    return torch.bfloat16 if native else torch.float16


def _folder(variable: str, default: str) -> Path:
    import platformdirs

    return Path(os.environ.get(variable) or getattr(platformdirs, default)("open-the-pipeline")).expanduser().absolute()


def cache_dir() -> Path:
    """Return the folder of downloaded and converted checkpoints. LAB_CACHE moves it (a room may share one)."""
    return _folder("LAB_CACHE", "user_cache_path")


def progress_dir() -> Path:
    """Return the folder of the learner's own progress file. LAB_PROGRESS moves it."""
    return _folder("LAB_PROGRESS", "user_data_path")


def apply_settings() -> None:
    """Set the environment variables that the Hub client and tokenizers read once, when they are first imported.

    A variable that the user has set is left as it is. The bundled profile never touches the network. A profile that does
    not exist is treated as offline here and refused by the first call that needs it: an import is no place for an error.
    """
    if os.environ.get("LAB_PROFILE", "").strip().lower() != "hub":
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


# --- what this machine is --------------------------------------------------------------------------------------------


def memory() -> tuple[int, int]:
    """Return (total, available) memory of this machine in bytes; a container's limit counts where it is lower."""
    import psutil

    state = psutil.virtual_memory()
    limit = _container_limit()
    if limit is not None and limit < state.total:
        return limit, min(state.available, limit)
    return state.total, state.available


def _container_limit() -> int | None:
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(file).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            return int(text)
    return None


def device_memory() -> int | None:
    """Return the total memory of the first CUDA device in bytes, or None where there is none. Needs torch."""
    import torch

    return torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else None


def versions() -> dict[str, str]:
    """Return the versions that decide how a lesson behaves; "missing" where a package is not installed."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for name in ("torch", "transformers", "tokenizers", "huggingface_hub", "ipywidgets"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "missing"
    return found


def describe() -> dict[str, str]:
    """Return what a learner should know of this machine, by name, ready to show. Needs torch."""
    import platform

    import torch

    total, available = memory()
    card = device_memory()
    return {
        **versions(),
        "system": f"{platform.system()} on {platform.machine()}",
        "cores": f"{os.cpu_count()}, of which torch uses {torch.get_num_threads()}",
        "memory": f"{total / 1e9:.1f} GB, {available / 1e9:.1f} GB of it free",
        "GPU memory": f"{card / 1e9:.1f} GB" if card else "no CUDA device",
        "device": f"{device()} (LAB_DEVICE={os.environ.get('LAB_DEVICE') or 'auto'})",
        "profile": f"{profile()} (LAB_PROFILE={os.environ.get('LAB_PROFILE') or 'bundled'})",
    }


# --- labutils doctor --------------------------------------------------------------------------------------------------

OLDEST = {"torch": (2, 11), "transformers": (5, 15), "ipywidgets": (7, 7)}
ROOM_MB = 1600      # what a lesson's kernel may take, see data/course.toml


def doctor():
    """Check this machine and yield (ok, what, cure) for each thing looked at; the cure is empty where it is fine."""
    import shutil
    import sys

    yield (sys.version_info >= (3, 11), f"Python {sys.version.split()[0]}", "Python 3.11 or newer is needed: python.org.")
    found = versions()
    for name, oldest in OLDEST.items():
        wanted = ".".join(map(str, oldest))
        number = tuple(int(part) for part in found[name].split("+")[0].split(".")[:2] if part.isdigit())
        yield (number >= oldest, f"{name} {found[name]}",
               f"{name} {wanted} or newer is needed: in the course folder run `python run.py lab`, or pip install '{name}>={wanted}'.")
    for setting, read in (("LAB_PROFILE", profile), ("LAB_DEVICE", device)):
        try:
            yield True, f"{setting}: {read()}", ""
        except (SettingError, ImportError) as error:
            yield False, setting, str(error)
    _, available = memory()
    yield (available >= ROOM_MB * 10**6, f"{available / 1e9:.1f} GB of memory free",
           f"A lesson may need {ROOM_MB / 1000} GB: close other notebooks (Kernel > Shut Down All) or programs.")
    for what, folder, need in (("checkpoints", cache_dir(), 10**9), ("progress", progress_dir(), 10**6)):
        there = next(parent for parent in (folder, *folder.parents) if parent.exists())
        free = shutil.disk_usage(there).free
        variable = "LAB_CACHE" if what == "checkpoints" else "LAB_PROGRESS"
        yield (os.access(there, os.W_OK), f"{what} can be written to {folder}", f"Set {variable} to a folder that you may write to.")
        yield (free >= need, f"{free / 1e9:.1f} GB of disk free for {what}",
               f"About {need / 1e9:g} GB are needed: make room, or set {variable} to a folder on another disk.")
    yield from _doctor_checkpoints()


def _doctor_checkpoints():
    from labutils import checkpoints
    from labutils.errors import LabError

    try:
        profile()
    except SettingError:
        return  # said above; without a profile there is no telling where checkpoints are
    for role in checkpoints.roles():
        try:
            checkpoints.verify(role)
            yield True, f"checkpoint {role} is complete", ""
        except LabError as error:
            yield False, f"checkpoint {role}", str(error)
