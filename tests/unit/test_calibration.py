"""The recording that lesson 06 shows belongs to the sentences, the prompts and the checkpoints that are here now."""

import json

import pytest

import labutils  # noqa: F401 - settles the profile before the Hub client is imported
from labutils import views, widgets
from labutils.checkpoints import checkpoint
from labutils.widgets.lens import layer_logits
from tools import measure_calibration as tool

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
RECORDED = json.loads(tool.STORED.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def chat():
    folder = checkpoint("chat")
    return (transformers.AutoTokenizer.from_pretrained(folder),
            transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))


def test_it_was_measured_on_the_sentences_that_were_held_out():
    report = json.loads((tool.ROOT / "data" / "sentiment" / "report.json").read_text(encoding="utf-8"))
    assert RECORDED["sentences_sha256"] == report["sentences"]["sha256"]
    assert len(RECORDED["label"]) == tool.SENTENCES and 500 <= tool.SENTENCES <= report["settings"]["held_out"]
    assert RECORDED["prompts"] == {"question": tool.QUESTION, "continuation": tool.CONTINUATION}
    assert {way: tuple(words) for way, words in RECORDED["words"].items()} == tool.WORDS
    assert all(len(scores) == tool.SENTENCES for scores in RECORDED["score"].values())


def test_no_sentence_is_shipped():
    """Beside numbers the file holds the names of the three sources and our own prompts, nothing else that is text."""
    assert set(RECORDED["source"]) <= {"movie", "amazon", "tweet"} and set(RECORDED["label"]) == {0, 1}
    assert set(RECORDED) == {"measured", "checkpoints", "versions", "device", "dtype", "prompts", "words", "sentences_sha256",
                             "held_out", "source", "label", "score", "share"}


def test_the_sentiment_checkpoint_is_as_right_as_its_report_says():
    figures = tool.summary(RECORDED)
    assert abs(figures["sentiment"]["right"] - 0.879) < 0.035      # 600 of the 2,000: two standard errors and a half
    assert figures["question"]["right"] < 0.5 < 0.7 < figures["continuation"]["right"] < figures["sentiment"]["right"]


def test_a_batch_gives_the_scores_of_each_alone(chat):
    tokenizer, model = chat
    sentences = ["I loved every minute of it.", "It stopped working after a week, and nobody answered my letters."]
    for way in tool.WORDS:
        together = tool.word_scores(model, tokenizer, way, sentences)
        alone = [tool.word_scores(model, tokenizer, way, [sentence])[0] for sentence in sentences]
        for a, b in zip(together, alone, strict=True):
            assert abs(a["score"] - b["score"]) < 1e-3 and abs(a["share"] - b["share"]) < 1e-3


def test_the_last_row_of_the_lens_is_what_the_model_says(chat):
    tokenizer, model = chat
    inputs = tokenizer("The capital of France is", return_tensors="pt")
    with torch.inference_mode():
        logits = model(**inputs).logits[0]
    assert torch.allclose(layer_logits(model, inputs)[-1], logits[-1], atol=1e-4)
    assert torch.allclose(layer_logits(model, inputs, 2)[-1], logits[2], atol=1e-4)
    explorer = widgets.logit_lens(tokenizer, model, "The capital of France is")
    assert "= ·Paris" in repr(explorer) and len(explorer.view.rows) == model.config.num_hidden_layers + 1
    explorer.controls["back"].value = 9
    assert "there is none" in repr(explorer.view)


def test_a_reliability_diagram_says_its_points():
    picture = views.reliability([0, 1, 1, 1], "Two bins", bins=2, one_way=[0.1, 0.3, 0.7, 1.0])
    assert repr(picture) == "Two bins. Stated → true (count). one way: 0.20 → 0.50 (2), 0.85 → 1.00 (2)"
    assert picture.png.startswith(b"\x89PNG")
