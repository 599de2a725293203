"""Measure once what the chat template does to the chat checkpoint's replies; lesson 04 shows the result.

    python -m tools.measure_templates            data/traces/template_rates.json, about 15 minutes on one core
    python -m tools.measure_templates --summary  only print what is stored

Every question of data/facts.jsonl and data/prompts.jsonl is asked in three ways: as bare text, rendered without the
generation prompt, rendered with it. Greedy, float32, left-padded batches: the batch changes nothing. Each finished batch is
kept in a file beside the result, so that a run that was stopped goes on where it was.
"""

import argparse
import hashlib
import json
import os
import platform
import re
from collections import Counter
from datetime import UTC, datetime

from tools.course import ROOT

STORED = ROOT / "data" / "traces" / "template_rates.json"
SETS = {"facts": ("facts.jsonl", "question"), "prompts": ("prompts.jsonl", "prompt")}
WAYS = ("bare text", "no generation prompt", "template")
LIMIT = 64          # new tokens
BATCH = 20


def rows(name: str) -> list[dict]:
    """Return the questions of one set: id, text and, for facts, the accepted answers."""
    file, field = SETS[name]
    lines = (ROOT / "data" / file).read_text(encoding="utf-8").splitlines()
    return [{"id": row["id"], "text": row[field], "answers": row.get("answers")} for row in map(json.loads, lines)]


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def asked(tokenizer, text: str, way: str) -> str:
    """Return what the model gets to read."""
    if way == "bare text":
        return text
    chat = [{"role": "user", "content": text}]
    return tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=way == "template")


def answered(reply: str, answers: list[str] | None) -> bool | None:
    """Say whether the reply holds an accepted answer as whole words (data/prompts.README.md); None without answers."""
    if answers is None:
        return None
    return any(re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", reply.lower()) for answer in answers)


def loops(ids: list[int], width: int = 6, times: int = 3) -> bool:
    """Say whether the same `width` tokens in a row occur at least `times` times."""
    runs = Counter(tuple(ids[at:at + width]) for at in range(len(ids) - width + 1))
    return bool(runs) and max(runs.values()) >= times


def judged(row: dict, ids: list[int], margin: float, tokenizer) -> dict:
    """Return what is kept of one reply. ids: the new tokens, its end of turn included where it came."""
    stopped = ids[-1:] == [tokenizer.eos_token_id]
    words = ids[:-1] if stopped else ids
    text = tokenizer.decode(words)
    return {
        "id": row["id"], "reply": text, "new_tokens": len(ids), "stopped": stopped, "silent": not words,
        "header": text.startswith("<|im_start|>assistant"), "answered": answered(text, row["answers"]),
        "loops": loops(words), "margin": round(margin, 3),
    }


def replies(model, tokenizer, part: list[dict], way: str) -> list[dict]:
    """Ask one batch and return what is kept of each reply."""
    import torch

    batch = tokenizer([asked(tokenizer, row["text"], way) for row in part], padding=True, padding_side="left",
                      return_tensors="pt", add_special_tokens=False).to(model.device)
    output = model.generate(**batch, max_new_tokens=LIMIT, do_sample=False, output_scores=True,
                            return_dict_in_generate=True)
    first, second = torch.stack(output.scores, dim=1).float().topk(2).values.unbind(-1)
    kept = []
    for row, ids, gaps in zip(part, output.sequences[:, batch["input_ids"].shape[1]:].tolist(),
                              (first - second).tolist(), strict=True):
        end = ids.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in ids else len(ids)
        kept.append(judged(row, ids[:end], min(gaps[:end]), tokenizer))
    return kept


def measure() -> dict[str, dict[str, list[dict]]]:
    """Ask everything that is not in the partial file yet. Returns set -> way -> rows in the order of the set."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from labutils.checkpoints import checkpoint

    partial = STORED.with_suffix(".partial.jsonl")
    partial.parent.mkdir(exist_ok=True)
    done = {}
    for line in partial.read_text(encoding="utf-8").splitlines() if partial.exists() else []:
        entry = json.loads(line)
        done[entry["set"], entry["way"], entry["row"]["id"]] = entry["row"]
    tokenizer = AutoTokenizer.from_pretrained(checkpoint("chat"))
    model = AutoModelForCausalLM.from_pretrained(checkpoint("chat"), dtype=torch.float32)
    for name in SETS:
        for way in WAYS:
            # Like lengths together: less padding, the same replies.
            left = sorted((row for row in rows(name) if (name, way, row["id"]) not in done), key=lambda row: len(row["text"]))
            for start in range(0, len(left), BATCH):
                for row in replies(model, tokenizer, left[start:start + BATCH], way):
                    done[name, way, row["id"]] = row
                    with partial.open("a", encoding="utf-8") as file:
                        file.write(json.dumps({"set": name, "way": way, "row": row}, ensure_ascii=False) + "\n")
                print(f"{name}, {way}: {min(start + BATCH, len(left))} of {len(left)}", flush=True)
    return {name: {way: [done[name, way, row["id"]] for row in rows(name)] for way in WAYS} for name in SETS}


def counts(kept: list[dict]) -> dict[str, int]:
    """Return how many of one set's replies were silent, answered (facts only), stopped in time, and so on."""
    keys = [key for key in ("silent", "header", "answered", "stopped", "loops") if kept[0][key] is not None]
    total = {"asked": len(kept), **{key: sum(row[key] for row in kept) for key in keys}}
    total["wrote_and_stopped"] = sum(row["stopped"] and not row["silent"] for row in kept)
    return total


def record(replied: dict) -> dict:
    """Return the file's content: when and with what it was measured, the counts, every reply."""
    import torch
    import transformers
    from transformers import AutoTokenizer

    from labutils.checkpoints import checkpoint

    tokenizer = AutoTokenizer.from_pretrained(checkpoint("chat"))
    return {
        "measured": datetime.now(UTC).date().isoformat(),
        "checkpoint": "chat, bundled profile",
        "versions": {"python": platform.python_version(), "torch": torch.__version__.split("+")[0],
                     "transformers": transformers.__version__},
        "device": "cpu", "dtype": "float32", "max_new_tokens": LIMIT, "decoding": "greedy",
        "sha256": {**{file: digest((ROOT / "data" / file).read_text(encoding="utf-8")) for file, _ in SETS.values()},
                   "chat template": digest(tokenizer.chat_template)},
        "counts": {name: {way: counts(kept) for way, kept in ways.items()} for name, ways in replied.items()},
        "replies": replied,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--summary", action="store_true", help="print the stored counts and stop")
    if not parser.parse_args().summary:
        os.environ.setdefault("LAB_DEVICE", "cpu")
        STORED.parent.mkdir(exist_ok=True)
        draft = STORED.with_suffix(".tmp")
        draft.write_text(json.dumps(record(measure()), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(draft, STORED)
        STORED.with_suffix(".partial.jsonl").unlink()
    for name, ways in json.loads(STORED.read_text(encoding="utf-8"))["counts"].items():
        for way, total in ways.items():
            print(f"{name:8} {way:22} {total}")


if __name__ == "__main__":
    main()
