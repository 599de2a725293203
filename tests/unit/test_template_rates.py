"""The recording that lesson 04 shows belongs to the prompts, the template and the tool that are here now."""

import json

import pytest

import labutils  # noqa: F401 - settles the profile before the Hub client is imported
from labutils.checkpoints import checkpoint
from tools import measure_templates as tool

transformers = pytest.importorskip("transformers")
RECORDED = json.loads(tool.STORED.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tokenizer():
    return transformers.AutoTokenizer.from_pretrained(checkpoint("chat"))


def test_it_was_measured_on_these_prompts_and_this_template(tokenizer):
    now = {file: tool.digest((tool.ROOT / "data" / file).read_text(encoding="utf-8")) for file, _ in tool.SETS.values()}
    assert RECORDED["sha256"] == {**now, "chat template": tool.digest(tokenizer.chat_template)}, "measure again"
    assert RECORDED["max_new_tokens"] == tool.LIMIT


def test_every_prompt_was_asked_every_way_and_the_counts_follow():
    for name in tool.SETS:
        for way in tool.WAYS:
            kept = RECORDED["replies"][name][way]
            assert [row["id"] for row in kept] == [row["id"] for row in tool.rows(name)]
            assert RECORDED["counts"][name][way] == tool.counts(kept)
            for row, asked in zip(kept, tool.rows(name), strict=True):
                assert row["answered"] == tool.answered(row["reply"], asked["answers"])
                assert row["silent"] == (row["stopped"] and row["new_tokens"] == 1) and row["new_tokens"] <= tool.LIMIT


@pytest.mark.parametrize("way", tool.WAYS)
def test_the_model_says_it_again(tokenizer, way, monkeypatch):
    """Four questions whose replies are short and far from any tie."""
    monkeypatch.setattr(tool, "LIMIT", 16)
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint("chat"))
    part = [row for row in tool.rows("facts") if row["id"] in ("fact-02", "fact-05", "fact-07", "fact-26")]
    kept = {row["id"]: row for row in RECORDED["replies"]["facts"][way]}
    for row in tool.replies(model, tokenizer, part, way):
        stored = dict(kept[row["id"]])
        assert stored.pop("margin") > 0.1 and abs(row.pop("margin") - kept[row["id"]]["margin"]) < 0.01
        assert row == stored


def test_circles_are_six_tokens_three_times():
    assert tool.loops([1, 2, 3, 4, 5, 6] * 3) and not tool.loops([1, 2, 3, 4, 5, 6] * 2) and not tool.loops([1, 2])
    assert tool.loops([7] * 8) and not tool.loops([7] * 7)
    assert tool.answered("It is Tokyo.", ["tokyo"]) and not tool.answered("Tokyoite", ["tokyo"])
    assert tool.answered("anything", None) is None
