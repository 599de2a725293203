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

    A variable that the user has set is left as it is. The bundled profile never touches the network.
    """
    if profile() == "bundled":
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
