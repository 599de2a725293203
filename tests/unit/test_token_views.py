"""The views and the explorer of lesson 03: tokens with their bytes, what is lost, what a text costs; its data, its download."""

import pytest

from labutils import checkpoints, data, views
from tools.course import download_mb

transformers = pytest.importorskip("transformers")

BYTES = {"smollm2", "deepseek", "qwen", "sp-bpe"}   # those that lose nothing
TEXT = "Grüße, naïve 👩‍🚀! 日本語 <0x41>"


@pytest.fixture(scope="module")
def shelf():
    return {role.removeprefix("tokenizer-"): transformers.AutoTokenizer.from_pretrained(checkpoints.checkpoint(role))
            for role in checkpoints.roles() if role.startswith("tokenizer-")}


@pytest.mark.parametrize("name", sorted(BYTES))
def test_the_bytes_of_the_tokens_are_the_bytes_of_the_text(name, shelf):
    for text in (TEXT, *data.parallel()["Tamil"][:3], *data.parallel()["Thai"][:3]):
        found = b"".join(piece.data for piece in views.pieces(shelf[name], text))
        assert found.removeprefix(b" ") == text.encode()     # SentencePiece puts a space in front
        assert not any("\ufffd" in piece.text or piece.lost for piece in views.pieces(shelf[name], text))


def test_a_character_in_several_tokens_is_counted_out(shelf):
    shown = [piece.text for piece in views.pieces(shelf["smollm2"], "naïve 🌙")]
    assert shown == ["na", "ïve", "·🌙 1/3", "·🌙 2/3", "·🌙 3/3"]
    assert [piece.text for piece in views.pieces(shelf["sp-bpe"], "🌙")] == ["·", "🌙 1/4", "🌙 2/4", "🌙 3/4", "🌙 4/4"]


def test_bytes_that_are_no_character_are_shown_as_bytes():
    class Backend:
        decoder = "ByteLevel"

    class Half:
        """A tokenizer that makes half a moon, as truncation in the middle of a character does."""

        backend_tokenizer, unk_token_id = Backend, None

        def __call__(self, text, **settings):
            return {"input_ids": [1, 2], "offset_mapping": [(0, 1), (1, 2)]}

        def convert_ids_to_tokens(self, ids):
            return ["A", "ðŁ"]

    assert [piece.text for piece in views.pieces(Half(), "A🌙")] == ["A", "⟨F0 9F⟩"]


@pytest.mark.parametrize("name", ["wordpiece", "unigram"])
def test_an_unknown_token_keeps_what_it_lost(name, shelf):
    found = views.strips("cat 🌙", **{name: shelf[name]})
    assert [piece.lost.strip() for piece in found.strips[name] if piece.lost] == ["🌙"]
    assert "✗" in repr(found) and "characters lost" in repr(found) and "lost: " in found._repr_html_()


def test_strips_say_the_same_in_words_and_escape_what_they_show(shelf):
    found = views.strips("<b> 7", smollm2=shelf["smollm2"])
    assert repr(found) == "smollm2: 5 tokens for 5 characters, 5 bytes\n  │<│b│>│·│7│"
    assert "<b> 7" not in found._repr_html_() and "&lt;" in found._repr_html_()


def test_costs_are_shaded_by_the_first_language_and_greyed_where_text_is_lost():
    shown = views.token_costs({"English": {"a": (10, 0.0)}, "Tamil": {"a": (41, 0.0)}, "Thai": {"a": (3, 0.84)}})
    assert [row[1].text for row in shown.rows] == ["10", "41", "3  ✗ 84%"]
    assert len({row[1].shade for row in shown.rows}) == 3


def test_playground_shows_one_column_for_the_same_tokenizer_twice(shelf):
    from labutils import widgets

    explorer = widgets.playground(shelf, "Two boats", left="smollm2", right="smollm2")
    assert list(explorer.view.strips) == ["smollm2"]
    explorer.controls["right"].value = "wordpiece"
    assert list(explorer.view.strips) == ["smollm2", "wordpiece"]
    explorer.controls["text"].value = ""
    assert "Type at least one character" in repr(explorer)


def test_parallel_has_all_languages_with_their_sentences():
    assert list(data.parallel())[0] == "English" and {len(each) for each in data.parallel().values()} == {20}
    assert len(data.parallel()) == 21


def test_a_shared_carrier_is_downloaded_once():
    assert download_mb(("chat", "tokenizer-smollm2")) == download_mb(("chat",)) == download_mb(("tokenizer-smollm2",))
    assert download_mb(("sentiment", "encoder", "tokenizer-wordpiece")) == download_mb(("encoder",))
    assert download_mb(("encoder", "chat")) == pytest.approx(download_mb(("encoder",)) + download_mb(("chat",)), abs=1)
