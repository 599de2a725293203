"""What answers prompts: a small protocol, and the engines that keep it."""

import hashlib
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from labutils.jobs.errors import InputError

TAIL = 2**20        # bytes at the end of each weight file by which a checkpoint is known


class Engine(Protocol):
    """Answers rows. It is pickled for workers before it is loaded, so it holds settings only until then.

    A row has `prompt` (text) or `messages`, `line`, and may have `max_tokens`, `id` and keys of its own.
    """

    def settings(self) -> dict:
        """Return what decides the answers, as JSON has it; a job is not continued under other settings."""

    def load(self) -> None:
        """Load the model. Called once, in the process that answers, before the first `answer`."""

    def answer(self, rows: list[dict]) -> list[dict]:
        """Return one dictionary per row, in order: `text`, `prompt_tokens`, `new_tokens` and `finish` ("stop", "length").

        A row that can never be answered gets `{"error": reason}`; whatever else goes wrong is raised.
        """


@dataclass
class TransformersEngine:
    """The course's own batched generation, `labutils.generation.generate`, greedy.

    model: a role such as "chat", a folder, or (in the hub profile) a Hub id. batch_size: prompts at once.
    """

    model: str
    dtype: str = "float32"
    max_tokens: int = 128
    batch_size: int = 8
    stop: tuple[str, ...] = ()

    def settings(self) -> dict:
        raise NotImplementedError

    def load(self) -> None:
        raise NotImplementedError

    def answer(self, rows: list[dict]) -> list[dict]:
        raise NotImplementedError


class VllmEngine:
    pass
