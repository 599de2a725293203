"""Train the course's sentiment checkpoint, measure it, and write its model card.

Fine-tunes the upper two layers, the pooler and a new head of the course's sentence encoder on the labelled sentences
of Hutto and Gilbert (2014). The lower layers and the embeddings stay frozen, so what they give for each sentence is
computed once and reused for every epoch and seed; that makes it a job for one CPU core.

    python -m tools.train_sentiment            # train three seeds, ship the first, write data/sentiment/
    python -m tools.train_sentiment --check    # measure the shipped delta again on a fresh encoder

One thread and fixed seeds: on one machine a seed always gives the same delta. Another processor rounds differently.
"""

import argparse
import hashlib
import io
import json
import platform
import random
import re
import subprocess
import sys
import tarfile
import time
import zipfile
from collections import Counter
from pathlib import Path

# Before transformers: labutils settles whether the Hub client may use the network.
from labutils import environment
from labutils.checkpoints import checkpoint

# isort: split
import safetensors
import safetensors.torch
import torch
import transformers
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer, BertForSequenceClassification, BertModel, get_linear_schedule_with_warmup

from tools.sentiment_card import FOLDER, card

PACKAGE, VERSION, ARCHIVE = "vaderSentiment", "0.5", "vaderSentiment-0.5.zip"
ARCHIVE_SHA256 = "5d97c37f3ef6e24eef331122e055dbedafeb6a56abfce0608b326701116ea49a"
SOURCES = {"movie": "movieReviewSnippets", "amazon": "amazonReviewSnippets", "tweet": "tweets"}
LABELS = ("NEGATIVE", "POSITIVE")

# Fixed before the held-out sentences were looked at. The learning rate was the best of three on a part of the
# training sentences; the first seed ships whatever the others reach.
SEEDS = (0, 1, 2)
SETTINGS = {
    "min_abs_rating": 0.5,
    "held_out": 2000,
    "split_seed": 2026,
    "frozen_layers": 4,
    "max_tokens": 128,
    "epochs": 4,
    "batch_size": 32,
    "learning_rate": 3e-4,
    "warmup": 0.1,
    "weight_decay": 0.01,
    "max_grad_norm": 1.0,
    "calibration_bins": 15,
}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def archive() -> Path:
    """Return the source archive of the labelled sentences, downloaded once into the course's cache."""
    folder = environment.cache_dir() / "sentences"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / ARCHIVE).is_file():
        # With a hash pip checks the archive before it runs the archive's setup.py to learn its name.
        pinned = folder / "requirements.txt"
        pinned.write_text(f"{PACKAGE}=={VERSION} --hash=sha256:{ARCHIVE_SHA256}\n")
        options = ["--quiet", "--no-deps", "--no-binary", ":all:", "--dest", str(folder), "--requirement", str(pinned)]
        subprocess.run([sys.executable, "-m", "pip", "download", *options], check=True)
    found = sha256((folder / ARCHIVE).read_bytes())
    if found != ARCHIVE_SHA256:
        raise SystemExit(f"{folder / ARCHIVE} has sha256 {found}, not {ARCHIVE_SHA256}. Delete it and run again.")
    return folder / ARCHIVE


def labelled_sentences() -> tuple[list[tuple[str, int, str]], int]:
    """Return the (source, label, sentence) rows, shuffled in a fixed order, and how many duplicates were dropped."""
    with zipfile.ZipFile(archive()) as outer:
        inner = next(name for name in outer.namelist() if name.endswith("hutto_ICWSM_2014.tar.gz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(inner))) as tar:
            texts = {
                source: tar.extractfile(f"hutto_ICWSM_2014/{stem}_GroundTruth.txt").read().decode("utf-8")
                for source, stem in SOURCES.items()
            }
    rows, seen, duplicates = [], set(), 0
    for source, text in texts.items():
        for line in text.splitlines():
            _, rating, sentence = line.split("\t")  # the mean of about twenty ratings, -4 to 4
            if abs(float(rating)) < SETTINGS["min_abs_rating"]:
                continue
            # "Great!" in training and "great" held out would flatter the figures: compare words only.
            words = " ".join(re.findall(r"\w+", sentence.lower()))
            duplicates += words in seen
            if words not in seen:
                rows.append((source, int(float(rating) > 0), sentence))
            seen.add(words)
    random.Random(SETTINGS["split_seed"]).shuffle(rows)
    return rows, duplicates


def tokenized(encoder: Path, sentences: list[str]) -> list[list[int]]:
    """Return the input_ids of each sentence."""
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    return tokenizer(sentences, truncation=True, max_length=SETTINGS["max_tokens"])["input_ids"]


def batches(lengths: list[int], size: int = 64) -> list[list[int]]:
    """Return batches of indices, sentences of like length together, so that little padding is computed."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    return [order[start : start + size] for start in range(0, len(order), size)]


def padded(rows: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows (each: tokens, ...) padded to one tensor, and the attention_mask (batch, tokens)."""
    lengths = torch.tensor([len(row) for row in rows])
    tensor = pad_sequence(rows, batch_first=True)
    return tensor, (torch.arange(tensor.shape[1]) < lengths[:, None]).long()


@torch.no_grad()
def frozen_outputs(encoder: Path, ids: list[list[int]]) -> list[torch.Tensor]:
    """Return what the frozen lower layers give for each sentence: fp16, (tokens, hidden size)."""
    lower = BertModel.from_pretrained(
        encoder, num_hidden_layers=SETTINGS["frozen_layers"], add_pooling_layer=False, dtype=torch.float32
    ).eval()
    outputs = [None] * len(ids)
    for batch in batches([len(row) for row in ids]):
        input_ids, mask = padded([torch.tensor(ids[i]) for i in batch])
        hidden = lower(input_ids=input_ids, attention_mask=mask).last_hidden_state.half()
        for i, row in zip(batch, hidden, strict=True):
            outputs[i] = row[: len(ids[i])].clone()  # a view would keep the whole padded batch
    return outputs


class Skip(torch.nn.Module):
    """Stands where a frozen module stood whose output is already known, and hands that output on."""

    def forward(self, hidden_states=None, *_, inputs_embeds=None, **__):
        return inputs_embeds if hidden_states is None else hidden_states


def classifier(encoder: Path) -> BertForSequenceClassification:
    """Return the encoder with a new, untrained head for the two labels."""
    names = dict(enumerate(LABELS))
    return BertForSequenceClassification.from_pretrained(
        encoder, id2label=names, label2id={name: i for i, name in names.items()}, dtype=torch.float32
    )


def train(encoder: Path, hidden: list[torch.Tensor], labels: list[int], seed: int, settings: dict) -> dict:
    """Return the trained tensors as fp16, under their names in BertForSequenceClassification.state_dict()."""
    torch.manual_seed(seed)  # the head's first weights and dropout
    order = random.Random(seed)
    model = classifier(encoder)
    # Without the modules that are skipped, state_dict() holds exactly the trained tensors.
    model.bert.embeddings = Skip()
    for i in range(settings["frozen_layers"]):
        model.bert.encoder.layer[i] = Skip()
    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings["learning_rate"], weight_decay=settings["weight_decay"]
    )
    steps = settings["epochs"] * -(-len(hidden) // settings["batch_size"])
    schedule = get_linear_schedule_with_warmup(optimizer, int(settings["warmup"] * steps), steps)
    for epoch in range(settings["epochs"]):
        started, total = time.process_time(), 0.0
        # Random noise on the lengths keeps like lengths together and still changes the batches every epoch.
        epoch_batches = batches([len(row) + order.uniform(0, 6) for row in hidden], settings["batch_size"])
        order.shuffle(epoch_batches)
        for batch in epoch_batches:
            inputs, mask = padded([hidden[i] for i in batch])
            targets = torch.tensor([labels[i] for i in batch])
            loss = model(inputs_embeds=inputs.float(), attention_mask=mask, labels=targets).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings["max_grad_norm"])
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            total += loss.item() * len(batch)
        seconds = time.process_time() - started
        print(f"seed {seed}, epoch {epoch + 1}: loss {total / len(hidden):.4f}, {seconds:.0f} CPU s", flush=True)
    return {name: tensor.half().contiguous() for name, tensor in model.state_dict().items()}


@torch.no_grad()
def probabilities(encoder: Path, delta: dict, sentences: list[str]) -> torch.Tensor:
    """Return P(NEGATIVE), P(POSITIVE) of each sentence, from a fresh encoder with the delta: nothing is cached."""
    model = classifier(encoder)
    unexpected = model.load_state_dict(delta, strict=False).unexpected_keys
    if unexpected:
        raise SystemExit(f"The delta holds tensors that the model does not have: {', '.join(unexpected)}.")
    model.eval()
    ids = tokenized(encoder, sentences)
    result = torch.empty(len(ids), len(LABELS))
    for batch in batches([len(row) for row in ids]):
        input_ids, mask = padded([torch.tensor(ids[i]) for i in batch])
        result[batch] = model(input_ids=input_ids, attention_mask=mask).logits.softmax(-1)
    return result


def calibration_error(confidence: torch.Tensor, right: torch.Tensor) -> float:
    """Return the expected calibration error: the mean gap of confidence and accuracy over bins of equal width."""
    bins = (confidence * SETTINGS["calibration_bins"]).ceil()
    gaps = [(right[bins == b].float().sum() - confidence[bins == b].sum()).abs() for b in bins.unique()]
    return float(sum(gaps) / len(right))


def measure(encoder: Path, delta: dict, rows: list[tuple[str, int, str]]) -> dict:
    """Return accuracy (all and by source), mean confidence and calibration error on the rows."""
    confidence, said = probabilities(encoder, delta, [sentence for _, _, sentence in rows]).max(-1)
    right = said == torch.tensor([label for _, label, _ in rows])
    accuracy = {"all": right.float().mean().item()}
    for source in SOURCES:
        accuracy[source] = right[[i for i, row in enumerate(rows) if row[0] == source]].float().mean().item()
    return {
        "accuracy": {name: round(value, 4) for name, value in accuracy.items()},
        "mean_confidence": round(confidence.mean().item(), 4),
        "calibration_error": round(calibration_error(confidence, right), 4),
        "wrong_above_0.95": int(((confidence > 0.95) & ~right).sum()),
    }


# Written by us to find mistakes, not to be fair: (kind, right label or None where neither is right, sentence).
PROBES = [
    ("negation", "POSITIVE", "Not bad at all."),
    ("negation", "POSITIVE", "There is nothing to complain about."),
    ("negation", "POSITIVE", "I have never been disappointed by this shop."),
    ("negation", "POSITIVE", "Nobody could call this film boring."),
    ("negation", "NEGATIVE", "I do not like this course."),
    ("negation", "NEGATIVE", "It is not the masterpiece they promised."),
    ("idiom", "POSITIVE", "I can't recommend it enough."),
    ("idiom", "POSITIVE", "You can't go wrong with this one."),
    ("idiom", "POSITIVE", "At that price the phone is a steal."),
    ("idiom", "POSITIVE", "I couldn't put the book down."),
    ("idiom", "NEGATIVE", "I would not touch it with a barge pole."),
    ("idiom", "NEGATIVE", "The repair cost an arm and a leg."),
    ("comparison", "NEGATIVE", "The old version was far better than this one."),
    ("comparison", "NEGATIVE", "I wish I had bought the other model."),
    ("sarcasm", "NEGATIVE", "Great, it broke on the first day."),
    ("sarcasm", "NEGATIVE", "Wonderful, another two hours in the waiting room."),
    ("contrast", "NEGATIVE", "The acting is superb, but the film bored me to tears."),
    ("contrast", "POSITIVE", "It looks cheap, yet it has never let me down."),
    ("dark praise", "POSITIVE", "A brutal, heartbreaking film that I will never forget."),
    ("other subject", "POSITIVE", "The teacher explains everything clearly."),
    ("other subject", "POSITIVE", "The bus was on time again."),
    ("other subject", "POSITIVE", "The scan shows that the tumour is gone."),
    ("other subject", "NEGATIVE", "Sales fell by half in a year."),
    ("other subject", "NEGATIVE", "My landlord kept the deposit."),
    ("no opinion", None, "The meeting starts at nine."),
    ("no opinion", None, "The box holds twelve pencils."),
]


def probe(encoder: Path, delta: dict) -> list[dict]:
    """Return what the checkpoint says to each hand-written sentence."""
    confidence, said = probabilities(encoder, delta, [sentence for _, _, sentence in PROBES]).max(-1)
    return [
        {"kind": kind, "sentence": sentence, "right": right, "said": LABELS[label], "probability": round(score, 3)}
        for (kind, right, sentence), score, label in zip(PROBES, confidence.tolist(), said.tolist(), strict=True)
    ]


def counts(rows: list[tuple[str, int, str]]) -> dict[str, int]:
    return {"all": len(rows)} | {source: Counter(row[0] for row in rows)[source] for source in SOURCES}


def majority(rows: list[tuple[str, int, str]]) -> dict[str, float]:
    """Return the accuracy of always saying the label that is more frequent in these rows."""
    shares = {}
    for name in ("all", *SOURCES):
        labels = [label for source, label, _ in rows if name in ("all", source)]
        shares[name] = round(max(labels.count(0), labels.count(1)) / len(labels), 4)
    return shares


def check(encoder: Path, held_out: list[tuple[str, int, str]]) -> None:
    """Measure the shipped delta again; SystemExit when it does not reach what the report says."""
    report = json.loads((FOLDER / "report.json").read_text())
    said = next(run for run in report["seeds"] if run["seed"] == report["shipped"]["seed"])
    found = measure(encoder, safetensors.torch.load_file(FOLDER / "delta.safetensors"), held_out)
    for name, value in found["accuracy"].items():
        print(f"{name:8} {value:.4f}  report {said['accuracy'][name]:.4f}")
    # Another processor may round a sentence or two over the border.
    if abs(found["accuracy"]["all"] - said["accuracy"]["all"]) > 0.002:
        raise SystemExit("delta.safetensors is not the one that report.json describes: restore both, or train again.")


def in_fixed_order(content: bytes) -> bytes:
    """Return a safetensors file with its header sorted; the library writes metadata in another order each time."""
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8:start]), sort_keys=True).encode()
    header += b" " * (-len(header) % 8)  # the tensors begin at a multiple of 8 bytes
    return len(header).to_bytes(8, "little") + header + content[start:]


def ship(delta: dict, seed: int, report: dict) -> dict:
    """Write delta.safetensors with its origin in the header, and return what the report says about the file."""
    origin = {
        "seed": str(seed),
        "encoder_sha256": report["encoder"]["sha256"],
        "sentences_sha256": report["sentences"]["sha256"],
        "license": "Apache-2.0",
        **report["versions"],
    }
    content = in_fixed_order(safetensors.torch.save(delta, metadata={"format": "pt", **origin}))
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "delta.safetensors").write_bytes(content)
    parameters = sum(tensor.numel() for tensor in delta.values())
    return {"seed": seed, "sha256": sha256(content), "bytes": len(content), "parameters": parameters}


def build(encoder: Path, rows: list[tuple[str, int, str]], duplicates: int) -> None:
    """Train every seed; write delta.safetensors after the first, report.json and README.md after the last."""
    held_out, training = rows[: SETTINGS["held_out"]], rows[SETTINGS["held_out"] :]
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    versions |= {"transformers": transformers.__version__, "safetensors": safetensors.__version__}
    report = {
        "source": {"package": PACKAGE, "version": VERSION, "file": ARCHIVE, "sha256": ARCHIVE_SHA256},
        "encoder": {"name": "all-MiniLM-L6-v2", "sha256": sha256((encoder / "model.safetensors").read_bytes())},
        "sentences": {
            "sha256": sha256(json.dumps(rows).encode()),
            "duplicates_dropped": duplicates,
            "train": counts(training),
            "held_out": counts(held_out),
            "held_out_majority": majority(held_out),
        },
        "settings": SETTINGS,
        "versions": versions,
        "seeds": [],
    }
    started = time.process_time()
    hidden = frozen_outputs(encoder, tokenized(encoder, [sentence for _, _, sentence in training]))
    report["frozen_outputs_cpu_seconds"] = round(time.process_time() - started)
    for seed in SEEDS:
        started = time.process_time()
        delta = train(encoder, hidden, [label for _, label, _ in training], seed, SETTINGS)
        seconds = round(time.process_time() - started)
        report["seeds"].append({"seed": seed, **measure(encoder, delta, held_out), "train_cpu_seconds": seconds})
        print(json.dumps(report["seeds"][-1]), flush=True)
        if seed == SEEDS[0]:
            report["shipped"] = ship(delta, seed, report)
            report["probes"] = probe(encoder, delta)
    (FOLDER / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    (FOLDER / "README.md").write_text(card(report))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--encoder", type=Path, help="folder of the sentence encoder (default: the course's own)")
    parser.add_argument("--check", action="store_true", help="measure the shipped delta again, without training")
    options = parser.parse_args()
    encoder = options.encoder or checkpoint("encoder")
    torch.set_num_threads(1)  # sums in one order: the same delta every time
    transformers.logging.set_verbosity_error()  # "newly initialized" is what we want here
    rows, duplicates = labelled_sentences()
    if options.check:
        check(encoder, rows[: SETTINGS["held_out"]])
    else:
        build(encoder, rows, duplicates)


if __name__ == "__main__":
    main()
