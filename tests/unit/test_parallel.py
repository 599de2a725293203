"""data/parallel: the same 20 sentences in 21 languages, clean, in the right script, with the same numbers."""

import itertools
import re
import tomllib
import unicodedata
from collections import Counter

import pytest

from labutils import data

FOLDER = data.path("parallel")
LANGUAGES = tomllib.loads((FOLDER / "languages.toml").read_text(encoding="utf-8"))["language"]
CODES = [language["code"] for language in LANGUAGES]
SENTENCES = 20
SHARE = 0.95  # of the letters outside the code are in the language's script

# How the names of a script's letters begin in the Unicode database.
LETTERS = {"Han": ("CJK UNIFIED",), "Japanese": ("CJK UNIFIED", "HIRAGANA", "KATAKANA")}
# Months are words in English, numbers in these languages: line -> the month.
MONTHS, NUMBERED_MONTHS = {7: 6, 15: 10}, ("vi", "zh", "ja", "ko")
# Between two digits these group thousands or mark decimals; a plain space separates two numbers.
SEPARATOR = re.compile(r"(?<=\d)[.,\u00a0\u202f\u066b\u066c](?=\d)")


def lines(code: str) -> list[str]:
    return (FOLDER / f"{code}.txt").read_text(encoding="utf-8").split("\n")[:-1]


def without_code(text: str) -> str:
    return re.sub(r"`[^`]*`", "", text)


def numbers(line: str) -> Counter:
    joined = SEPARATOR.sub("", line)
    return Counter("".join(str(unicodedata.decimal(digit)) for digit in run) for run in re.findall(r"\d+", joined))


def test_languages_and_files_agree():
    assert len(CODES) == len(set(CODES)) == 21
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(CODES)
    for language in LANGUAGES:
        assert set(language) == {"code", "name", "own_name", "script", "direction"}
        assert language["direction"] == ("rtl" if language["script"] == "Arabic" else "ltr")


@pytest.mark.parametrize("code", CODES)
def test_one_sentence_a_line(code):
    raw = (FOLDER / f"{code}.txt").read_bytes()
    assert raw.endswith(b"\n")
    found = lines(code)
    assert len(found) == SENTENCES
    assert len(set(found)) == SENTENCES
    assert all(line == line.strip() and len(line) >= 10 for line in found)


@pytest.mark.parametrize("code", CODES)
def test_characters_are_clean(code):
    text = (FOLDER / f"{code}.txt").read_bytes().decode("utf-8")
    assert unicodedata.is_normalized("NFC", text)
    stray = {c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Co", "Cn", "Cs", "Zl", "Zp")}
    assert not stray
    assert not re.search("  |\ufffd", text)


@pytest.mark.parametrize("language", LANGUAGES, ids=CODES)
def test_expected_script_dominates(language):
    script = language["script"]
    starts = LETTERS.get(script, (script.upper(),))
    letters = [c for c in without_code("\n".join(lines(language["code"]))) if unicodedata.category(c)[0] in "LM"]
    share = sum(unicodedata.name(c).startswith(starts + ("COMBINING",)) for c in letters) / len(letters)
    # The name of the programming language and unit signs stay Latin.
    assert share >= SHARE
    if script == "Japanese":
        kana = sum(unicodedata.name(c).startswith(("HIRAGANA", "KATAKANA")) for c in letters)
        assert kana / len(letters) > 0.4


@pytest.mark.parametrize("code", CODES)
def test_numbers_agree_with_english(code):
    for number, (english, other) in enumerate(zip(lines("en"), lines(code), strict=True), start=1):
        expected = numbers(english)
        if code in NUMBERED_MONTHS and number in MONTHS:
            expected[str(MONTHS[number])] += 1
        assert numbers(other) == expected, (number, other)


@pytest.mark.parametrize("code", CODES)
def test_code_and_emoji_are_the_same_everywhere(code):
    for english, other in zip(lines("en"), lines(code), strict=True):
        assert re.findall(r"`[^`]*`", other) == re.findall(r"`[^`]*`", english)
        assert ("🌙" in other) == ("🌙" in english)


def test_no_sentence_was_left_untranslated():
    for first, second in itertools.combinations(CODES, 2):
        assert not set(lines(first)) & set(lines(second)), (first, second)


@pytest.mark.parametrize("code", CODES)
def test_lengths_are_plausible(code):
    """A sentence far longer or shorter than its neighbours in the other file is a hint that lines have slipped."""
    pairs = [(len(other), len(english)) for other, english in zip(lines(code), lines("en"), strict=True)]
    usual = sum(other for other, _ in pairs) / sum(english for _, english in pairs)
    assert all(0.5 < other / english / usual < 2.2 for other, english in pairs), [
        (number, round(other / english / usual, 2)) for number, (other, english) in enumerate(pairs, start=1)]
