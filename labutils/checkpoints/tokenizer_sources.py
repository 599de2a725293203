"""Make the folder of a tokenizer, tokenizer.json and tokenizer_config.json, from the forms in which packages carry one.

A tiktoken file lists tokens by rank, a SentencePiece model lists pieces by score. tokenizer.json wants the merges too:
which two parts make each token. Both lists imply them. When a token comes into being, everything of a lower rank inside
it has been merged already, so merging its symbols up to its own rank leaves the two parts it is made from.
Neither tiktoken nor sentencepiece is needed.
"""

import base64
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path

from labutils.errors import CheckpointError

# Raise this when a builder changes, so that folders made by the old one are not taken for the new.
CONVERSION = 1

FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "vocab.txt")
NORMAL, UNKNOWN, CONTROL = 1, 2, 3  # the types of pieces in a SentencePiece model
BPE = 2  # the model type of a SentencePiece model


def contents(kind: str, settings: Mapping, folder: Path) -> dict[str, bytes]:
    """Return the files of a finished tokenizer folder by name.

    kind: "tokenizer" (`folder` has tokenizer.json already), "tiktoken" (it has ranks.tiktoken) or "sentencepiece" (it
    has tokenizer.model). settings: pattern, normalizer and special tokens of a tiktoken vocabulary, and `config`, what
    tokenizer_config.json says where the package has none. Raises CheckpointError for a file that is not understood.
    """
    if kind == "tokenizer":
        found = {name: (folder / name).read_bytes() for name in FILES if (folder / name).is_file()}
    else:
        made = BUILDERS[kind](folder, settings)
        found = {"tokenizer.json": json.dumps(made, ensure_ascii=False).encode() + b"\n"}
    if "tokenizer_config.json" not in found:
        config = {"clean_up_tokenization_spaces": False, **settings["config"],
                  "tokenizer_class": "PreTrainedTokenizerFast"}
        found["tokenizer_config.json"] = json.dumps(config, indent=2, ensure_ascii=False).encode() + b"\n"
    return found


def merges(ranks: Mapping) -> list[tuple]:
    """Return (left, right) for every token that merging can make, lowest rank first.

    ranks: rank of each token; a token is bytes or text, and its symbols are its single bytes or characters. A token
    that merging cannot reach is left out: tiktoken finds it only when it is a whole word.
    """
    tokens = sorted((token for token in ranks if len(token) > 1), key=ranks.__getitem__)
    parts = (_parts(token, ranks) for token in tokens)
    return [(pair[0], pair[1]) for pair in parts if len(pair) == 2]


def _parts(token, ranks: Mapping) -> list:
    """Merge the symbols of `token` as an encoder would, but only up to its own rank."""
    parts, limit = [token[at : at + 1] for at in range(len(token))], ranks[token]
    while True:
        rank, at = min((ranks.get(left + right, limit), at) for at, (left, right) in enumerate(pairwise(parts)))
        if rank >= limit:
            return parts
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def byte_letters() -> list[str]:
    """Return the character that stands for each byte in a byte-level vocabulary (GPT-2's choice).

    Printable bytes stand for themselves; the other 68 become the characters from U+0100 on, so a space is Ġ.
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def _from_tiktoken(folder: Path, settings: Mapping) -> dict:
    path = folder / "ranks.tiktoken"
    try:
        lines = [line.split() for line in path.read_bytes().splitlines() if line.strip()]
        ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in lines}
    except ValueError as error:
        raise CheckpointError(f"{path} is not a list of tokens and ranks: {error}.") from error
    letters = byte_letters()

    def text(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    vocab, special = {text(token): rank for token, rank in ranks.items()}, settings["special"]
    if list(special.values()) != list(range(len(vocab), len(vocab) + len(special))):
        vocab |= special  # tokenizers numbers added tokens from the end of the vocabulary on, unless they stand in it

    split = {"type": "Split", "pattern": {"Regex": settings["pattern"]}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return _tokenizer(
        model=_bpe(
            vocab=vocab,
            merges=[[text(left), text(right)] for left, right in merges(ranks)],
            ignore_merges=True,  # a piece that is a token as a whole is never taken apart
        ),
        special=special,
        normalizer={"type": settings["normalizer"]} if "normalizer" in settings else None,
        pre_tokenizer={"type": "Sequence", "pretokenizers": [split, level]},
        post_processor=level,
        decoder={**level, "trim_offsets": True, "use_regex": True},
    )


def _from_sentencepiece(folder: Path, settings: Mapping) -> dict:
    path = folder / "tokenizer.model"
    pieces, trainer, normalizer = _read_sentencepiece(path)
    # Fields of sentencepiece_model.proto: 3 is model_type, 35 byte_fallback; 2 precompiled_charsmap,
    # 3 add_dummy_prefix (true when absent), 4 remove_extra_whitespaces (true when absent).
    plain = not normalizer.get(2) and normalizer.get(3, 1) and not normalizer.get(4, 1)
    if trainer.get(3) != BPE or not trainer.get(35) or not plain:
        raise CheckpointError(f"{path} is not a BPE model with byte fallback and without normalization.")
    normal = [(-score, at, text) for at, (text, score, kind) in enumerate(pieces) if kind == NORMAL]
    ranks = {text: rank for rank, (_, _, text) in enumerate(sorted(normal))}
    special = {text: at for at, (text, _, kind) in enumerate(pieces) if kind in (UNKNOWN, CONTROL)}
    unknown = next(text for text, _, kind in pieces if kind == UNKNOWN)
    bos = settings["config"]["bos_token"]
    start, first, second = ({"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                            {"Sequence": {"id": "B", "type_id": 1}})
    return _tokenizer(
        model=_bpe(
            vocab={text: at for at, (text, _, _) in enumerate(pieces)},
            merges=[[left, right] for left, right in merges(ranks) if left in ranks and right in ranks],
            unk_token=unknown, fuse_unk=True, byte_fallback=True,
        ),
        special=special,
        normalizer={"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        pre_tokenizer=None,
        post_processor={"type": "TemplateProcessing", "single": [start, first], "pair": [start, first, second],
                        "special_tokens": {bos: {"id": bos, "ids": [special[bos]], "tokens": [bos]}}},
        decoder={"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    )


BUILDERS: dict[str, Callable[[Path, Mapping], dict]] = {
    "tiktoken": _from_tiktoken,
    "sentencepiece": _from_sentencepiece,
}
KINDS = ("tokenizer", *BUILDERS)


def _tokenizer(model: dict, special: Mapping[str, int], **parts) -> dict:
    added = [{"id": number, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for token, number in special.items()]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, **parts, "model": model}


def _bpe(**settings) -> dict:
    return {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, **settings}


def _read_sentencepiece(path: Path) -> tuple[list[tuple[str, float, int]], dict, dict]:
    """Return ([(piece, score, type)], trainer settings, normalizer settings) of a SentencePiece model."""
    pieces, trainer, normalizer = [], {}, {}
    try:
        for number, value in _fields(path.read_bytes()):
            if number == 1:
                piece = dict(_fields(value))
                score = struct.unpack("<f", piece[2])[0] if 2 in piece else 0.0
                pieces.append((piece[1].decode(), score, piece.get(3, NORMAL)))
            elif number == 2:
                trainer = dict(_fields(value))
            elif number == 3:
                normalizer = dict(_fields(value))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, struct.error) as error:
        raise CheckpointError(f"{path} is not a SentencePiece model: {error!r}.") from error
    return pieces, trainer, normalizer


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (field number, value) of a protocol buffer message: whole numbers, else the bytes as they stand."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, varint()
            continue
        size = {1: lambda: 8, 2: varint, 5: lambda: 4}.get(kind, lambda: -1)()
        if size < 0 or at + size > len(data):
            raise ValueError(f"field {key >> 3} has no valid length")
        at += size
        yield key >> 3, data[at - size : at]
