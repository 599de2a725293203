"""Write the model card of the sentiment checkpoint, data/sentiment/README.md, from its report.json.

Every figure in the card comes from the report; tools/train_sentiment.py writes both. After a change of wording:

    python -m tools.sentiment_card
"""

import json
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "data" / "sentiment"

TEMPLATE = """\
# The course's sentiment checkpoint

<!-- Written by tools/sentiment_card.py from report.json; do not edit. -->

`delta.safetensors` turns the course's sentence encoder ({encoder}) into a classifier with two labels, `NEGATIVE` (0)
and `POSITIVE` (1). It holds only what we trained: the upper two layers, the pooler and the head; {parameters}
parameters in fp16, {bytes} bytes. `labutils.checkpoints.checkpoint("sentiment")` puts encoder and delta together
in a folder that `from_pretrained` and `pipeline("sentiment-analysis")` take as it is.

It is a teaching model: English, single sentences, good enough to be useful and wrong often enough to be interesting.
Do not use it to decide anything about people.

## Data

The movie, Amazon and tweet sentences of C. J. Hutto and E. Gilbert, *VADER: A Parsimonious Rule-based Model for
Sentiment Analysis of Social Media Text* (ICWSM 2014), as they stand in the source archive of the Python package
{package} (its SHA-256 is in `report.json`). The label is the sign of the mean of about twenty ratings, which run
from -4 to 4. Sentences with a mean between -{min_abs_rating} and {min_abs_rating} are left out; so are {duplicates}
that repeat the words of another one.

| sentences | training | held out | larger label, held out |
|---|---|---|---|
{data}

The held-out sentences are the same for every seed. Two sentences of one Amazon review can stand on both sides.

## Licence

The weights in this folder are ours, under Apache-2.0 like the course's code; the encoder below them is Apache-2.0 too.
The package of the sentences is MIT, but the words are those of reviewers on Rotten Tomatoes and Amazon and of people
on Twitter: the script reads them from the package, and none of them is in this repository.

## Accuracy on the held-out sentences

| seed | {columns} | mean confidence | calibration error | wrong, but surer than 95 % |
|---|{rule}
{results}

Each figure is that of the fp16 delta on a fresh encoder. The calibration error is the expected one over {bins} bins of
equal width; a mean confidence above the accuracy says that the checkpoint is too sure of itself. The first seed ships
whatever the others reach: to choose the best on the held-out sentences would flatter it.

## Known mistakes

Of {judged} sentences that we wrote to find mistakes it gets {wrong} wrong. There is no neutral label, so a sentence
without an opinion gets one all the same.

| kind | sentence | right | says | probability |
|---|---|---|---|---|
{mistakes}

The sentences that it gets right are in `report.json`.

## How to build it again

    python -m tools.train_sentiment            # about {minutes} minutes of one core where this was made
    python -m tools.train_sentiment --check    # measures the shipped delta again, without training

{epochs} epochs, batches of {batch_size}, AdamW at {learning_rate} with warm-up and linear decay, dropout as in the
encoder's config. The settings were fixed before the held-out sentences were looked at. Made with {versions}.
On one machine a seed always gives the same delta; another processor rounds differently, and so do its weights.
"""


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _rows(rows: list[tuple]) -> str:
    return "\n".join("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows)


def card(report: dict) -> str:
    """Return the model card of a report as tools/train_sentiment.py writes it."""
    sentences, settings, shipped = report["sentences"], report["settings"], report["shipped"]
    columns = list(report["seeds"][0]["accuracy"])
    judged = [row for row in report["probes"] if row["right"]]
    wrong = [row for row in judged if row["said"] != row["right"]]
    neutral = [row for row in report["probes"] if not row["right"]]
    cpu_seconds = report["frozen_outputs_cpu_seconds"] + sum(run["train_cpu_seconds"] for run in report["seeds"])
    return TEMPLATE.format(
        encoder=report["encoder"]["name"],
        parameters=f"{shipped['parameters']:,}",
        bytes=f"{shipped['bytes']:,}",
        package=f"{report['source']['package']} {report['source']['version']}",
        min_abs_rating=settings["min_abs_rating"],
        duplicates=sentences["duplicates_dropped"],
        data=_rows([
            (name, f"{sentences['train'][name]:,}", f"{sentences['held_out'][name]:,}",
             _percent(sentences["held_out_majority"][name]))
            for name in columns
        ]),
        columns=" | ".join(columns),
        rule="---|" * (len(columns) + 3),
        results=_rows([
            (f"{run['seed']} (ships)" if run["seed"] == shipped["seed"] else run["seed"],
             *(_percent(run["accuracy"][name]) for name in columns),
             _percent(run["mean_confidence"]), f"{run['calibration_error']:.3f}", run["wrong_above_0.95"])
            for run in report["seeds"]
        ]),
        bins=settings["calibration_bins"],
        judged=len(judged),
        wrong=len(wrong),
        mistakes=_rows([
            (row["kind"], row["sentence"], row["right"] or "neither", row["said"], f"{row['probability']:.3f}")
            for row in wrong + neutral
        ]),
        minutes=round(cpu_seconds / 60),
        epochs=settings["epochs"],
        batch_size=settings["batch_size"],
        learning_rate=f"{settings['learning_rate']:g}",
        versions=", ".join(f"{name} {version}" for name, version in report["versions"].items()),
    )


if __name__ == "__main__":
    (FOLDER / "README.md").write_text(card(json.loads((FOLDER / "report.json").read_text())))
