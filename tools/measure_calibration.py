"""Measure once how often classifiers are right at the probability that they state; lesson 06 shows the result.

    python -m tools.measure_calibration            data/traces/calibration.json, about 5 minutes on one core
    python -m tools.measure_calibration --summary  only print what is stored

The first 600 of the sentences that tools/train_sentiment.py held out are classified in three ways: a yes/no question in the
chat checkpoint's template, a continuation that it may complete with one of two words, and the sentiment checkpoint. Both
prompts were chosen on training sentences. Scores and labels are kept, the sentences are not. Each finished batch is kept
in a file beside the result, so that a run that was stopped goes on where it was.
"""

import argparse
import hashlib
import json
import os
import platform
from collections.abc import Callable
from datetime import UTC, datetime

from tools.course import ROOT

STORED = ROOT / "data" / "traces" / "calibration.json"
SENTENCES, BATCH = 600, 20
QUESTION = "Is this sentence positive? Answer Yes or No.\n\n{}"
CONTINUATION = "Review: {}\nSentiment:"
WORDS = {"question": ("Yes", "No"), "continuation": (" positive", " negative")}     # for the label 1, for the label 0
WAYS = (*WORDS, "sentiment")


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def asked(tokenizer, way: str, sentence: str) -> str:
    """Return what the chat checkpoint gets to read."""
    if way == "continuation":
        return CONTINUATION.format(sentence)
    chat = [{"role": "user", "content": QUESTION.format(sentence)}]
    return tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)


def word_scores(model, tokenizer, way: str, sentences: list[str]) -> list[dict]:
    """Return for each sentence the logit of the positive word minus that of the negative, and the share of both words."""
    import torch

    words = [tokenizer(word)["input_ids"] for word in WORDS[way]]
    if any(len(ids) != 1 for ids in words):
        raise SystemExit(f"{WORDS[way]} are not one token each: {words}.")
    (positive,), (negative,) = words
    batch = tokenizer([asked(tokenizer, way, sentence) for sentence in sentences], padding=True, padding_side="left",
                      return_tensors="pt", add_special_tokens=False).to(model.device)
    with torch.inference_mode():
        logits = model(**batch, logits_to_keep=1).logits[:, -1].float()
    difference = logits[:, positive] - logits[:, negative]
    share = logits.softmax(-1)[:, [positive, negative]].sum(-1)
    return [{"score": round(one, 4), "share": round(both, 4)}
            for one, both in zip(difference.tolist(), share.tolist(), strict=True)]


def label_scores(model, tokenizer, way: str, sentences: list[str]) -> list[dict]:
    """Return for each sentence the logit of POSITIVE minus that of NEGATIVE."""
    import torch

    batch = tokenizer(sentences, padding=True, truncation=True, return_tensors="pt").to(model.device)
    with torch.inference_mode():
        logits = model(**batch).logits.float()
    column = model.config.label2id
    return [{"score": round(one, 4)}
            for one in (logits[:, column["POSITIVE"]] - logits[:, column["NEGATIVE"]]).tolist()]


def models() -> dict[str, tuple[Callable, object, object]]:
    """Return for each way the function that scores and what it scores with."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

    from labutils.checkpoints import checkpoint

    chat, sentiment = checkpoint("chat"), checkpoint("sentiment")
    writer = AutoModelForCausalLM.from_pretrained(chat, dtype=torch.float32)
    judge = AutoModelForSequenceClassification.from_pretrained(sentiment, dtype=torch.float32)
    speller = AutoTokenizer.from_pretrained(chat)
    return {**{way: (word_scores, writer, speller) for way in WORDS},
            "sentiment": (label_scores, judge, AutoTokenizer.from_pretrained(sentiment))}


def measure(rows: list[tuple[str, int, str]]) -> dict[str, list[dict]]:
    """Score every row that is not in the partial file yet. Returns way -> what is kept, in the order of the rows."""
    partial = STORED.with_suffix(".partial.jsonl")
    done: dict[tuple[str, int], dict] = {}
    for line in partial.read_text(encoding="utf-8").splitlines() if partial.exists() else []:
        entry = json.loads(line)
        done[entry["way"], entry["number"]] = entry["kept"]
    for way, (score, model, tokenizer) in models().items():
        # Like lengths together: less padding, the same scores.
        left = sorted((at for at in range(len(rows)) if (way, at) not in done), key=lambda at: len(rows[at][2]))
        for start in range(0, len(left), BATCH):
            part = left[start:start + BATCH]
            for at, kept in zip(part, score(model, tokenizer, way, [rows[at][2] for at in part]), strict=True):
                done[way, at] = kept
                with partial.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"way": way, "number": at, "kept": kept}) + "\n")
            print(f"{way}: {min(start + BATCH, len(left))} of {len(left)}", flush=True)
    return {way: [done[way, at] for at in range(len(rows))] for way in WAYS}


def record(rows: list[tuple[str, int, str]], total: list[tuple[str, int, str]], scored: dict[str, list[dict]]) -> dict:
    """Return the file's content: when, with what and on what it was measured, then a column for each thing kept."""
    import torch
    import transformers

    return {
        "measured": datetime.now(UTC).date().isoformat(),
        "checkpoints": "chat and sentiment, bundled profile",
        "versions": {"python": platform.python_version(), "torch": torch.__version__.split("+")[0],
                     "transformers": transformers.__version__},
        "device": "cpu", "dtype": "float32",
        "prompts": {"question": QUESTION, "continuation": CONTINUATION}, "words": WORDS,
        "sentences_sha256": digest(json.dumps(total)),
        "held_out": f"the first {len(rows)}",
        "source": [source for source, _, _ in rows],
        "label": [label for _, label, _ in rows],
        "score": {way: [kept["score"] for kept in scored[way]] for way in WAYS},
        "share": {way: [kept["share"] for kept in scored[way]] for way in WORDS},
    }


def summary(stored: dict) -> dict[str, dict[str, float]]:
    """Return for each way: share right, mean confidence, calibration error, chance that a positive outscores a negative."""
    import torch

    from tools.train_sentiment import calibration_error

    labels = torch.tensor(stored["label"])
    result = {}
    for way in WAYS:
        scores = torch.tensor(stored["score"][way])
        said = (scores > 0).long()
        confidence = scores.abs().sigmoid()
        ranked = (scores[labels == 1][:, None] > scores[labels == 0][None]).float().mean()
        result[way] = {
            "right": round((said == labels).float().mean().item(), 3),
            "said positive": round(said.float().mean().item(), 3),
            "confidence": round(confidence.mean().item(), 3),
            "calibration error": round(calibration_error(confidence, said == labels), 3),
            "ranked right": round(ranked.item(), 3),
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--summary", action="store_true", help="print the stored figures and stop")
    if not parser.parse_args().summary:
        os.environ.setdefault("LAB_DEVICE", "cpu")
        from tools.train_sentiment import SETTINGS, labelled_sentences

        total, _ = labelled_sentences()
        rows = total[:SETTINGS["held_out"]][:SENTENCES]
        STORED.parent.mkdir(exist_ok=True)
        draft = STORED.with_suffix(".tmp")
        draft.write_text(json.dumps(record(rows, total, measure(rows)), indent=1) + "\n", encoding="utf-8")
        os.replace(draft, STORED)
        STORED.with_suffix(".partial.jsonl").unlink()
    for way, figures in summary(json.loads(STORED.read_text(encoding="utf-8"))).items():
        print(f"{way:13} {figures}")


if __name__ == "__main__":
    main()
