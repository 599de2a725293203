"""data/prompts.jsonl and data/facts.jsonl: counts, kinds, uniqueness, and lengths in the chat checkpoint's tokens."""

import json
import re
import statistics
import unicodedata
from collections import Counter

import pytest

from labutils import data

KINDS = ("facts", "arithmetic", "writing", "extraction", "code", "translation", "reasoning", "advice")
SHORTEST, LONGEST = 10, 400


def rows(name: str) -> list[dict]:
    return [json.loads(line) for line in data.path(name).read_text(encoding="utf-8").splitlines()]


def contains(answer: str, reply: str) -> bool:
    """The rule of prompts.README.md."""
    return bool(re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", reply.lower()))


@pytest.fixture(scope="module")
def lengths() -> list[int]:
    checkpoints = pytest.importorskip("labutils.checkpoints")
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoints.checkpoint("chat"))
    return [len(tokenizer(row["prompt"], add_special_tokens=False).input_ids) for row in rows("prompts.jsonl")]


def test_ten_prompts_of_each_kind():
    prompts = rows("prompts.jsonl")
    assert all(list(row) == ["id", "kind", "prompt"] for row in prompts)
    assert Counter(row["kind"] for row in prompts) == dict.fromkeys(KINDS, 10)
    assert [row["id"] for row in prompts] == [f"{kind}-{n:02}" for kind in KINDS for n in range(1, 11)]


def test_prompts_are_unique_and_clean():
    texts = [row["prompt"] for row in rows("prompts.jsonl")]
    assert len({" ".join(text.lower().split()) for text in texts}) == 80
    for text in texts:
        assert text == text.strip()
        assert unicodedata.is_normalized("NFC", text)
        assert not {c for c in text if c != "\n" and unicodedata.category(c)[0] == "C"}


def test_prompt_lengths_spread_like_traffic(lengths):
    assert min(lengths) >= SHORTEST
    assert max(lengths) <= LONGEST
    assert sum(length < 50 for length in lengths) >= 45
    assert sum(length > 150 for length in lengths) >= 8


def test_readme_gives_the_measured_lengths(lengths):
    said = re.search(r"shortest (\d+), median ([\d.]+), nine in ten at most\s+(\d+), longest (\d+)",
                     (data.root() / "prompts.README.md").read_text(encoding="utf-8"))
    ninth = sorted(lengths)[len(lengths) * 9 // 10]
    assert [float(n) for n in said.groups()] == [min(lengths), statistics.median(lengths), ninth, max(lengths)]


def test_facts_have_one_short_answer():
    facts = rows("facts.jsonl")
    assert all(list(row) == ["id", "question", "answers"] for row in facts)
    assert [row["id"] for row in facts] == [f"fact-{n:02}" for n in range(1, 61)]
    assert len({row["question"].lower() for row in facts}) == 60
    for row in facts:
        assert row["question"].endswith("?")
        assert row["answers"]
        for answer in row["answers"]:
            assert answer == answer.lower().strip()
            assert 0 < len(answer) <= 20
            assert not contains(answer, row["question"]), "the question gives the answer away"


def test_the_rule_for_answers():
    assert contains("paris", "The capital of France is Paris.")
    assert contains("h2o", "H2O!")
    assert not contains("rome", "It was a romance.")
    assert not contains("6", "There are 60.")
