"""Broken copies of a checkpoint, for practice: each one fails to load, or should have failed.

    patients = seed(healthy, other, folder)     six folders, A to F, each with one fault
    renamed_head(healthy, folder)               a classifier whose head was saved under another name
    stranger(folder)                            a config that names Python code of its own

What is wrong with which letter stands below. Look afterwards. No function touches the healthy folder.
"""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

WEIGHTS = "model.safetensors"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "vocab.txt")


@dataclass(frozen=True)
class Patient:
    """One broken folder. `loader` names the Auto class with which its owner wants to load it."""

    name: str
    folder: Path
    loader: str


def seed(healthy: Path, other: Path, into: Path) -> list[Patient]:
    """Write six broken copies of a BERT encoder's folder into `into` and return them, by name.

    healthy: a folder with config.json, model.safetensors and a tokenizer. other: a folder with another model's tokenizer.
    Copies every file, links none: writing to a patient never reaches the healthy folder. What is in `into` is replaced.
    """
    patients = []
    for name, (loader, spoil) in FAULTS.items():
        folder = into / name
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(healthy, folder)
        spoil(folder, other)
        patients.append(Patient(name, folder, loader))
    return patients


def renamed_head(healthy: Path, into: Path) -> Path:
    """Write a copy of a classifier to into/"damaged", its tensors `classifier.*` renamed, and return that folder.

    healthy: a folder with config.json and model.safetensors. Only the header is written anew; the numbers are copied.
    """
    folder = into / "damaged"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(healthy / "config.json", folder / "config.json")
    weights = (healthy / WEIGHTS).read_bytes()
    start = 8 + int.from_bytes(weights[:8], "little")
    header = json.loads(weights[8:start])
    renamed = {re.sub(r"^classifier\b", "score", name): entry for name, entry in header.items()}
    text = json.dumps(renamed, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)     # the numbers begin at a multiple of eight
    (folder / WEIGHTS).write_bytes(len(text).to_bytes(8, "little") + text + weights[start:])
    return folder


def stranger(into: Path) -> Path:
    """Write into/"stranger", a folder whose config names a class in its own code.py, and return it."""
    folder = into / "stranger"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "code.py").write_text("raise SystemExit('code of the checkpoint was run')\n", encoding="utf-8")
    config = {"model_type": "stranger", "auto_map": {"AutoConfig": "code.Config"}}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def _edit(folder: Path, **fields) -> None:
    file = folder / "config.json"
    config = json.loads(file.read_text(encoding="utf-8")) | fields
    file.write_text(json.dumps(config, indent=2), encoding="utf-8")


def _tokenizer_of_another_model(folder: Path, other: Path) -> None:
    for name in TOKENIZER:
        (folder / name).unlink(missing_ok=True)
        if (other / name).exists():
            shutil.copy(other / name, folder / name)


def _broken_download(folder: Path, other: Path) -> None:
    weights = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(weights[: len(weights) // 2])


def _wrong_but_valid_class(folder: Path, other: Path) -> None:
    _edit(folder, model_type="roberta")     # the same names and shapes; it counts positions from another start


def _unknown_type(folder: Path, other: Path) -> None:
    _edit(folder, model_type="bert-next")


def _head_left_behind(folder: Path, other: Path) -> None:
    _edit(folder, architectures=["BertForSequenceClassification"])      # as its config says; the weights were never added


def _other_size(folder: Path, other: Path) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    _edit(folder, max_position_embeddings=2 * config["max_position_embeddings"])


FAULTS: dict[str, tuple[str, Callable[[Path, Path], None]]] = {
    "A": ("AutoModel", _tokenizer_of_another_model),
    "B": ("AutoModel", _broken_download),
    "C": ("AutoModel", _wrong_but_valid_class),
    "D": ("AutoModel", _unknown_type),
    "E": ("AutoModelForSequenceClassification", _head_left_behind),
    "F": ("AutoModel", _other_size),
}
