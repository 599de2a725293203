"""The tokenizer shelf: every role loads with AutoTokenizer, gives the ids it should, and keeps what it can keep.

The ids below come from tiktoken 0.14.0 and sentencepiece 0.2.3 on the same vocabulary files. With them, all ids of
13,202 texts in many scripts (1.5 million characters, half of them random) were compared once: cl100k and SentencePiece
agree everywhere, Qwen everywhere but for special tokens, which we cut out, and for one random text whose normal form
depends on the version of Unicode.
"""

import base64
import json
import os
import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from labutils import checkpoints, data
from labutils.checkpoints import tokenizer_sources, wheels
from labutils.errors import CheckpointError
from labutils.hub_standin import HubStandin

transformers = pytest.importorskip("transformers")
ROOT = Path(__file__).resolve().parents[2]

# role -> (model of the tokenizers library, vocabulary with its special tokens, ids of "Hello world")
SHELF = {
    "tokenizer-wordpiece": ("WordPiece", 30522, [7592, 2088]),
    "tokenizer-smollm2": ("BPE", 49152, [19556, 905]),
    "tokenizer-deepseek": ("BPE", 129280, [19923, 2058]),
    "tokenizer-qwen": ("BPE", 151646, [9707, 1879]),
    "tokenizer-sp-bpe": ("BPE", 32000, [22557, 1526]),
    "tokenizer-unigram": ("Unigram", 32000, [9086, 391]),
    "tokenizer-cl100k": ("BPE", 100261, [9906, 1917]),
}
BPES = [role for role, (model, _, _) in SHELF.items() if model == "BPE"]
LOSSY = [role for role in SHELF if role not in BPES]

MIXED = "Hello wörld! It'S 1,234.50 €…\n\n  def f(x):\treturn x**2  # 你好 नमस्ते 🌙"
MIXED_IDS = {
    "tokenizer-qwen": [
        9707, 289, 9416, 507, 0, 1084, 13272, 220, 16, 11, 17, 18, 19, 13, 20, 15, 12984, 5434, 220, 707, 282, 2075,
        1648, 853, 856, 334, 17, 220, 671, 220, 108386, 14925, 101, 87244, 78368, 30484, 97, 34370, 11162, 234, 247],
    "tokenizer-cl100k": [
        9906, 289, 9603, 509, 0, 1102, 13575, 220, 16, 11, 11727, 13, 1135, 13281, 5551, 220, 711, 282, 2120, 1680, 862,
        865, 334, 17, 220, 674, 220, 57668, 53901, 15272, 101, 88344, 79468, 31584, 97, 35470, 11410, 234, 247],
    "tokenizer-sp-bpe": [
        22557, 275, 2024, 417, 28808, 661, 28742, 28735, 28705, 28740, 28725, 28750, 28770, 28781, 28723, 28782, 28734,
        17416, 28878, 13, 13, 28705, 801, 285, 28732, 28744, 1329, 12, 807, 1318, 348, 28750, 28705, 422, 28705, 29383,
        29530, 28705, 29540, 29672, 29671, 29300, 29708, 29586, 28705, 243, 162, 143, 156],
}


def load(role: str):
    """Return the tokenizer of a role; skip the test when it is optional and nobody has asked for it."""
    if checkpoints.recipe(role).optional and checkpoints.ready(role) is None:
        pytest.skip(f"{role} is optional and not prepared; `labutils prepare --roles {role}` does it")
    return transformers.AutoTokenizer.from_pretrained(checkpoints.checkpoint(role))


@pytest.fixture(scope="module")
def tokenizer():
    loaded = {}

    def get(role: str):
        if role not in loaded:
            loaded[role] = load(role)
        return loaded[role]

    return get


def ids(tokenizer, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False, verbose=False).input_ids


def parallel() -> dict[str, str]:
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(data.path("parallel").glob("*.txt"))}


# --- the roles --------------------------------------------------------------------------------------------------------


def test_shelf_is_complete_and_says_where_it_comes_from():
    shelf = {role: recipe for role, recipe in checkpoints.recipes().items() if role.startswith("tokenizer-")}
    assert list(shelf) == list(SHELF)
    for role, recipe in shelf.items():
        assert recipe.kind in tokenizer_sources.KINDS and not recipe.has_weights
        assert recipe.base or all(len(w.sha256) == 64 and 0 < w.download_mb < 40 for w in recipe.bundled)
        assert f"{SHELF[role][1]:,} tokens" in recipe.title
        # Nothing without a stated licence is fetched unless it is asked for by name.
        assert recipe.optional == (recipe.licence == "no licence stated")
        assert recipe.optional == (role not in checkpoints.roles())


@pytest.mark.parametrize("role", SHELF)
def test_loads_with_auto_tokenizer(role, tokenizer):
    model, size, hello = SHELF[role]
    found = tokenizer(role)
    assert type(found.backend_tokenizer.model).__name__ == model
    assert len(found) == size
    assert ids(found, "Hello world") == hello
    assert checkpoints.verify(role)


def test_one_folder_whatever_the_dtype():
    assert checkpoints.checkpoint("tokenizer-smollm2", "bfloat16") == checkpoints.checkpoint("tokenizer-smollm2")


@pytest.mark.parametrize(("role", "model"), [("tokenizer-wordpiece", "encoder"), ("tokenizer-smollm2", "chat")])
def test_equals_the_tokenizer_of_its_model(role, model, tokenizer):
    whole = transformers.AutoTokenizer.from_pretrained(checkpoints.checkpoint(model))
    for text in parallel().values():
        assert ids(tokenizer(role), text) == ids(whole, text)
    assert tokenizer(role).chat_template == whole.chat_template


@pytest.mark.parametrize("role", MIXED_IDS)
def test_ids_are_those_of_the_original_library(role, tokenizer):
    assert ids(tokenizer(role), MIXED) == MIXED_IDS[role]


@pytest.mark.parametrize("role", BPES)
def test_bpe_round_trip_is_exact(role, tokenizer):
    letters = random.Random(0)
    blocks = (0x20, 0x7F), (0xA1, 0x250), (0x391, 0x3A2), (0x905, 0x93A), (0x4E00, 0x9FA6), (0x1F300, 0x1F600)
    noise = ["".join(chr(letters.randrange(*letters.choice(blocks))) for _ in range(30)) for _ in range(100)]
    for text in [*parallel().values(), *noise, "", " ", "  two  ", "\n\n\ttab\r\n", "👩‍👩‍👧 🇫🇷"]:
        found = ids(tokenizer(role), text)
        assert tokenizer(role).decode(found, clean_up_tokenization_spaces=False) == text
        assert tokenizer(role).unk_token_id not in found or role == "tokenizer-smollm2"


@pytest.mark.parametrize("role", LOSSY)
def test_wordpiece_and_unigram_lose_text(role, tokenizer):
    thai = parallel()["th"]
    found = ids(tokenizer(role), thai)
    assert found.count(tokenizer(role).unk_token_id) / len(found) > 0.25
    # So few tokens that Thai looks cheaper than English: the text is gone.
    assert len(found) < len(ids(tokenizer(role), parallel()["en"]))
    assert tokenizer(role).decode(found) != thai


@pytest.mark.parametrize("role", ["tokenizer-qwen", "tokenizer-cl100k"])
def test_special_tokens_have_their_own_ids(role, tokenizer):
    for token, number in checkpoints.recipe(role).tokenizer["special"].items():
        assert ids(tokenizer(role), token) == [number]
        assert tokenizer(role).decode([number]) == token


def test_sentencepiece_puts_bos_in_front_and_falls_back_to_bytes(tokenizer):
    shelf = tokenizer("tokenizer-sp-bpe")
    assert shelf("Hello").input_ids[0] == shelf.bos_token_id == 1
    assert shelf.convert_ids_to_tokens(ids(shelf, "🌙"))[1:] == ["<0xF0>", "<0x9F>", "<0x8C>", "<0x99>"]


def test_hub_profile_takes_the_tokenizer_without_the_weights(tmp_path):
    repo = tmp_path / "repo"
    repo.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (repo / name).write_bytes((checkpoints.checkpoint("chat") / name).read_bytes())
    (repo / "model.safetensors").write_bytes(b"half a gigabyte in real life")
    pinned = checkpoints.recipe("tokenizer-smollm2").hub
    code = ("from labutils.checkpoints import checkpoint, ready, verify; from transformers import AutoTokenizer\n"
            "folder = checkpoint('tokenizer-smollm2'); assert verify('tokenizer-smollm2') == folder\n"
            "print(AutoTokenizer.from_pretrained(folder)('Hello world').input_ids)\n"
            "print(sorted(path.name for path in folder.iterdir()), ready('chat'))")
    with HubStandin({pinned.repo: repo}, commits={pinned.repo: pinned.commit}) as hub:
        keep = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "LAB_"))}
        env = {**keep, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "NO_PROXY": "127.0.0.1,localhost",
               "LAB_PROFILE": "hub", "PYTHONPATH": str(ROOT)}
        run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [
        str(SHELF["tokenizer-smollm2"][2]), "['config.json', 'tokenizer.json', 'tokenizer_config.json'] None"]


def test_hub_profile_refuses_what_has_no_pinned_repository(monkeypatch):
    monkeypatch.setenv("LAB_PROFILE", "hub")
    for role in SHELF:
        if checkpoints.recipe(role).hub:
            assert role in checkpoints.roles()
            continue
        assert role not in checkpoints.roles()
        with pytest.raises(CheckpointError, match="no pinned repository on the Hub.* Unset LAB_PROFILE"):
            checkpoints.checkpoint(role)


def test_a_wheel_for_one_platform_is_asked_for_as_such():
    (unigram,) = checkpoints.recipe("tokenizer-unigram").bundled
    assert wheels._platform(unigram) == ["--platform=manylinux_2_17_x86_64", "--platform=manylinux2014_x86_64"]
    (qwen,) = checkpoints.recipe("tokenizer-qwen").bundled
    assert wheels._platform(qwen) == []


# --- the conversions --------------------------------------------------------------------------------------------------


def test_merges_by_hand():
    ranks = {"a": 0, "b": 1, "c": 2, "bc": 3, "ab": 4, "abc": 5, "abab": 6}
    # "abc" is a + bc, for bc comes before ab.
    assert tokenizer_sources.merges(ranks) == [("b", "c"), ("a", "b"), ("a", "bc"), ("ab", "ab")]


def test_a_token_that_merging_cannot_reach_has_no_merge():
    assert tokenizer_sources.merges({b"a": 0, b"b": 1, b"c": 2, b"abc": 3}) == []


def test_byte_letters_are_gpt2s():
    letters = tokenizer_sources.byte_letters()
    assert len(set(letters)) == 256
    assert (letters[ord("A")], letters[ord(" ")], letters[ord("\n")], letters[0xAD]) == ("A", "Ġ", "Ċ", "Ń")


def rank_file(*tokens: bytes) -> bytes:
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))


TIKTOKEN = {"pattern": r"\S+|\s+", "special": {"<end>": 300}, "config": {"eos_token": "<end>"}}


def test_tiktoken_file_becomes_a_tokenizer(tmp_path):
    singles = [bytes([byte]) for byte in range(256)]
    (tmp_path / "ranks.tiktoken").write_bytes(rank_file(*singles, b"th", b"the", b"whole"))
    for name, content in tokenizer_sources.contents("tiktoken", TIKTOKEN, tmp_path).items():
        (tmp_path / name).write_bytes(content)
    made = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert ids(made, "the whole") == [257, ord(" "), 258]  # a word that is a token is taken whole
    assert ids(made, "wholes<end>") == [*b"wholes", 300]  # merging alone does not reach it
    assert made.eos_token_id == 300


@pytest.mark.parametrize("content", [b"not base64! 1\n", b"YQ== one\n", b"YQ==\n"])
def test_damaged_rank_file_is_refused(content, tmp_path):
    (tmp_path / "ranks.tiktoken").write_bytes(content)
    with pytest.raises(CheckpointError, match="not a list of tokens and ranks"):
        tokenizer_sources.contents("tiktoken", TIKTOKEN, tmp_path)


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def message(*fields: tuple[int, bytes | int | float]) -> bytes:
    """Write a protocol buffer message."""
    parts = []
    for number, value in fields:
        if isinstance(value, float):
            parts.append(varint(number << 3 | 5) + struct.pack("<f", value))
        elif isinstance(value, int):
            parts.append(varint(number << 3) + varint(value))
        else:
            parts.append(varint(number << 3 | 2) + varint(len(value)) + value)
    return b"".join(parts)


def sentencepiece_model(model_type: int = 2) -> bytes:
    pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("▁a", -1.0, 1), ("▁", -9.0, 1), ("a", -8.0, 1)]
    encoded = [(1, message((1, text.encode()), (2, score), (3, kind))) for text, score, kind in pieces]
    return message(*encoded, (2, message((3, model_type), (35, 1))), (3, message((3, 1), (4, 0))))


SENTENCEPIECE = {"config": {"bos_token": "<s>", "unk_token": "<unk>"}}


def test_sentencepiece_model_becomes_a_tokenizer(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_model())
    made = tokenizer_sources.contents("sentencepiece", SENTENCEPIECE, tmp_path)
    model = json.loads(made["tokenizer.json"])["model"]
    assert model["vocab"] == {"<unk>": 0, "<s>": 1, "▁a": 2, "▁": 3, "a": 4}
    assert model["merges"] == [["▁", "a"]]


def test_unigram_sentencepiece_model_is_refused(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_model(model_type=1))
    with pytest.raises(CheckpointError, match="not a BPE model with byte fallback"):
        tokenizer_sources.contents("sentencepiece", SENTENCEPIECE, tmp_path)


@pytest.mark.parametrize("cut", [1, 3, 10])
def test_cut_sentencepiece_model_is_refused(cut, tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_model()[:-cut])
    with pytest.raises(CheckpointError, match="tokenizer.model is not a"):
        tokenizer_sources.contents("sentencepiece", SENTENCEPIECE, tmp_path)
