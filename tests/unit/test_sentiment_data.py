"""data/sentiment: the card says what the report says, the report is about this delta, and the delta classifies."""

import hashlib
import json
import struct
import sys
from pathlib import Path

import pytest

from labutils import data

ROOT = Path(__file__).resolve().parents[2]
MAX_BYTES = 8_000_000
HIDDEN, INTERMEDIATE = 384, 1536
UPPER_LAYERS = (4, 5)

CLEAR = {
    "I loved every minute of it.": "POSITIVE",
    "This is the best phone that I have ever owned.": "POSITIVE",
    "What a beautiful, funny and moving film!": "POSITIVE",
    "This is the worst film that I have ever seen.": "NEGATIVE",
    "The battery died after two days.": "NEGATIVE",
    "What a waste of time and money!": "NEGATIVE",
}


@pytest.fixture(scope="module")
def report() -> dict:
    return json.loads((data.path("sentiment") / "report.json").read_text())


@pytest.fixture(scope="module")
def delta() -> bytes:
    return (data.path("sentiment") / "delta.safetensors").read_bytes()


@pytest.fixture(scope="module")
def header(delta) -> dict:
    """A safetensors file starts with the length of its JSON header, so that it can be read without torch."""
    (length,) = struct.unpack("<Q", delta[:8])
    return json.loads(delta[8 : 8 + length])


def expected_shapes() -> dict[str, list[int]]:
    shapes = {}
    for layer in UPPER_LAYERS:
        stem = f"bert.encoder.layer.{layer}"
        linears = {
            "attention.self.query": (HIDDEN, HIDDEN),
            "attention.self.key": (HIDDEN, HIDDEN),
            "attention.self.value": (HIDDEN, HIDDEN),
            "attention.output.dense": (HIDDEN, HIDDEN),
            "intermediate.dense": (INTERMEDIATE, HIDDEN),
            "output.dense": (HIDDEN, INTERMEDIATE),
        }
        for name, shape in linears.items():
            shapes |= {f"{stem}.{name}.weight": list(shape), f"{stem}.{name}.bias": [shape[0]]}
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes |= {f"{stem}.{name}.weight": [HIDDEN], f"{stem}.{name}.bias": [HIDDEN]}
    shapes |= {"bert.pooler.dense.weight": [HIDDEN, HIDDEN], "bert.pooler.dense.bias": [HIDDEN]}
    return shapes | {"classifier.weight": [2, HIDDEN], "classifier.bias": [2]}


def test_delta_holds_the_trained_tensors_only_in_fp16(delta, header):
    tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
    assert {name: entry["shape"] for name, entry in tensors.items()} == expected_shapes()
    assert {entry["dtype"] for entry in tensors.values()} == {"F16"}
    assert len(delta) <= MAX_BYTES


def test_report_is_about_this_delta(delta, header, report):
    shipped = report["shipped"]
    assert shipped["sha256"] == hashlib.sha256(delta).hexdigest()
    assert shipped["bytes"] == len(delta)
    metadata = header["__metadata__"]
    assert metadata["seed"] == str(shipped["seed"])
    assert metadata["encoder_sha256"] == report["encoder"]["sha256"]
    assert metadata["sentences_sha256"] == report["sentences"]["sha256"]
    assert {name: metadata[name] for name in report["versions"]} == report["versions"]


def test_three_seeds_reach_the_accuracy_and_the_first_ships(report):
    assert [run["seed"] for run in report["seeds"]] == [0, 1, 2]
    assert report["shipped"]["seed"] == 0
    assert min(run["accuracy"]["all"] for run in report["seeds"]) >= 0.87


def test_accuracy_by_source_adds_up(report):
    held_out = report["sentences"]["held_out"]
    sources = [name for name in held_out if name != "all"]
    assert held_out["all"] == sum(held_out[name] for name in sources) == 2000
    for run in report["seeds"]:
        right = sum(run["accuracy"][name] * held_out[name] for name in sources)
        # Each accuracy is rounded to 4 digits.
        assert right / held_out["all"] == pytest.approx(run["accuracy"]["all"], abs=2e-4)


def test_card_says_what_the_report_says(report, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "tools"), *sys.path])
    from sentiment_card import card

    assert (data.path("sentiment") / "README.md").read_text() == card(report), (
        "README.md and report.json differ; run: python -m tools.sentiment_card"
    )


def test_checkpoint_classifies_clear_sentences():
    checkpoints = pytest.importorskip("labutils.checkpoints")
    transformers = pytest.importorskip("transformers")
    classify = transformers.pipeline("sentiment-analysis", model=str(checkpoints.checkpoint("sentiment")), device="cpu")
    assert {sentence: classify(sentence)[0]["label"] for sentence in CLEAR} == CLEAR
