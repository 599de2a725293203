"""Views and explorers: the plain form says what the rich one shows; what cannot be drawn is refused with its reason."""

import base64

import numpy
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from labutils import views, widgets
from labutils.checkpoints import checkpoint


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(checkpoint("encoder"))


def test_a_table_sets_numbers_to_the_right_and_words_to_the_left():
    table = views.table(("name", "bytes"), [("a", 5), ("bcd", 12345)], caption="Two files")
    assert repr(table) == "Two files\nname   bytes\na          5\nbcd   12,345"
    assert "<caption>Two files</caption>" in table._repr_html_() and "text-align:right" in table._repr_html_()


def test_a_table_escapes_what_it_shows():
    assert "<script>" not in views.table(("x",), [("<script>alert(1)</script>",)])._repr_html_()


def test_a_row_of_the_wrong_length_is_named():
    with pytest.raises(ValueError, match="Row 1 has 1 values for 2 headers"):
        views.table(("a", "b"), [(1, 2), (3,)])


def test_a_token_strip_marks_padding_by_word_and_by_shade(tokenizer):
    strip = views.tokens(tokenizer, tokenizer(["A cat.", "The dog sleeps."], padding=True))
    assert "[SEP]" in repr(strip) and "[PAD] (pad)" in repr(strip)
    assert "background:#dddddd" in strip._repr_html_()


def test_a_batch_shows_one_row_a_text(tokenizer):
    shown = repr(views.batch(tokenizer, tokenizer(["A cat.", "The dog sleeps."], padding=True, return_tensors="pt")))
    assert shown.splitlines()[1].split() == ["[CLS]", "a", "cat", ".", "[SEP]", "░"]


def test_white_space_and_byte_level_marks_are_made_visible():
    assert [views.visible(token) for token in ("ĠParis", "▁Paris", " x", "Ċ", "\n")] == ["·Paris", "·Paris", "·x", "⏎", "⏎"]


def test_a_picture_says_in_words_what_it_shows():
    picture = views.bars(["Paris", "London $"], [0.75, -0.25], "What comes next?", "probability")
    assert repr(picture) == "What comes next (probability): Paris 0.75, London $ -0.25"
    data, metadata = picture._repr_mimebundle_()
    assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG") and metadata["image/png"]["alt"] == repr(picture)
    assert picture.png == views.bars(["Paris", "London $"], [0.75, -0.25], "What comes next?", "probability").png


def test_a_picture_is_the_same_where_only_the_last_bits_differ():
    assert views.bars(["a"], [0.1234567], "t", "u").png == views.bars(["a"], [0.1234568], "t", "u").png
    weights = numpy.full((2, 2), 0.5)
    assert views.mask_grid(weights, ["a", "b"], [1, 1], "t").png == views.mask_grid(weights + 1e-7, ["a", "b"], [1, 1], "t").png


def test_an_attention_map_measures_what_falls_on_padding():
    weights = numpy.full((4, 4), 0.25)
    shown = repr(views.mask_grid(weights, list("abcd"), [1, 1, 1, 0], "Even"))
    assert shown.endswith("4 tokens, 1 of them padding; share of attention that falls on padding: 0.25")
    with pytest.raises(ValueError, match=r"Attention of 3 tokens is \[3, 3\]; this is \[4, 4\]"):
        views.mask_grid(weights, list("abc"), [1, 1, 1], "Wrong")


def test_an_attention_map_names_what_each_token_looks_at_most():
    weights = numpy.array([[1.0, 0.0, 0.0], [0.3, 0.1, 0.6], [0.2, 0.5, 0.3]])
    shown = views.attention_map(weights, ["the", "Ġold", "bank"], "Head 1")
    assert repr(shown) == ("Head 1. Each token and the one that it looks at most: "
                           "the → the 1.00, ·old → bank 0.60, bank → ·old 0.50")
    assert shown.png == views.attention_map(weights + 1e-7, ["the", "Ġold", "bank"], "Head 1").png
    with pytest.raises(ValueError, match="Attention of 2 tokens is .2, 2.; this is .3, 3."):
        views.attention_map(weights, ["a", "b"], "Wrong")


def test_lines_by_layer_say_where_they_start_and_forget_the_last_bits():
    from_the_embedding = views.layer_lines("Apart?", "cosine", chat_model=[1.0, 0.5])
    assert repr(from_the_embedding) == "Apart (cosine, from the embedding up): chat model 1.00 0.50"
    assert "from layer 1 up" in repr(views.layer_lines("Share", "share", start=1, a=[0.1]))
    assert from_the_embedding.png == views.layer_lines("Apart?", "cosine", chat_model=[1.0, 0.5 + 1e-6]).png



def test_side_by_side_marks_what_differs_in_words():
    shown = repr(views.side_by_side(["q1", "q2"], alone=["a", "b"], batched=["a", "c"]))
    assert "= 'a'" in shown and "≠ 'c'" in shown


def test_an_explorer_redraws_and_shows_its_own_errors(tokenizer):
    model = AutoModel.from_pretrained(checkpoint("encoder"), attn_implementation="eager")
    explorer = widgets.attention(tokenizer, model, ["A cat.", "The dog sleeps on the old sofa."])
    masked = explorer.screen.value
    assert "falls on padding: 0.00" in masked
    explorer.controls["masked"].value = False
    assert explorer.screen.value != masked and "falls on padding: 0.00" not in explorer.screen.value
    data, _ = explorer._repr_mimebundle_()
    assert data["application/vnd.jupyter.widget-view+json"]["model_id"] == explorer.box.model_id
    assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG") and "starting values" in data["text/plain"]

    def draw(text):
        raise ValueError(f"nothing to draw for {text!r}")

    broken = widgets.Explorer(draw, {"text": explorer.controls["text"]}, "Broken")
    assert "nothing to draw for &#x27;A cat.&#x27;" in broken.screen.value


def test_the_next_token_explorer_asks_for_a_text(tokenizer):
    class Model:
        device = "cpu"

        def __call__(self, **inputs):
            return type("Output", (), {"logits": torch.zeros(1, 1, len(tokenizer))})

    explorer = widgets.next_token(tokenizer, Model(), text="a")
    explorer.controls["text"].value = ""
    assert "at least one character" in explorer.screen.value
