"""Every checker: calls an untouched stub "not attempted", accepts the reference, rejects wrong answers with a diagnosis.

The answers stand in tests/unit/answers, one module a lesson, at least three wrong ones for each checker. The solutions in
the lessons are tested by the solved editions (tests/notebooks/test_editions.py); here stand the mistakes.
"""

import functools
import importlib
import pkgutil

import pytest

import tests.unit.answers
from labutils import check
from labutils.check import core
from tests.unit.answers import Several

LESSONS = sorted(module.name for module in pkgutil.iter_modules(tests.unit.answers.__path__))


def lesson_of(label):
    number = int(label.split()[1].split(".")[0])
    return importlib.import_module(f"tests.unit.answers.lesson{number:02}")


@functools.cache
def answers(name):
    module = importlib.import_module(f"tests.unit.answers.{name}")
    return {label: (right, wrong) for label, right, wrong in module.answers()}


def answer(label):
    return answers(lesson_of(label).__name__.rsplit(".", 1)[1])[label]


LABELS = sorted(check.load_all())


@pytest.fixture(autouse=True)
def own_progress(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_PROGRESS", str(tmp_path))


def ask(label, given):
    answers = given if isinstance(given, Several) else (given,)
    return check.load_all()[label](*answers, *lesson_of(label).CONTEXT.get(label, tuple)())


def test_every_checker_has_its_mistakes():
    assert {label for name in LESSONS for label in answers(name)} == set(LABELS)
    assert {label: len(answer(label)[1]) for label in LABELS if len(answer(label)[1]) < 3} == {}


@pytest.mark.parametrize("label", LABELS)
def test_an_untouched_stub_is_not_attempted(label):
    def stub(*arguments):
        return ...

    right, _ = answer(label)
    untouched = stub if callable(right) else Several([...] * len(right)) if isinstance(right, Several) else ...
    verdict = ask(label, untouched)
    assert verdict.state == core.NOT_ATTEMPTED and core.read_progress() == {}
    assert repr(verdict).startswith(f"○ {label}: not")


@pytest.mark.parametrize("label", LABELS)
def test_the_right_answer_is_right(label):
    verdict = ask(label, answer(label)[0])
    assert verdict.state == core.RIGHT, verdict
    assert core.read_progress()[label]["state"] == core.RIGHT


@pytest.mark.parametrize("label", LABELS)
def test_wrong_answers_hear_what_is_wrong(label):
    for number, (wrong, words) in enumerate(answer(label)[1]):
        verdict = ask(label, wrong)
        assert verdict.state == core.WRONG, f"mistake {number} was called {verdict}"
        assert words in verdict.message, f"mistake {number}: expected {words!r} in {verdict.message!r}"


def test_once_right_stays_right_and_tries_are_counted():
    ask("Prediction 1.2", 6), ask("Prediction 1.2", 3), ask("Prediction 1.2", 1)
    entry = core.read_progress()["Prediction 1.2"]
    assert (entry["state"], entry["tries"]) == (core.RIGHT, 3)


def test_a_broken_progress_file_is_set_aside_not_lost(tmp_path):
    core.progress_file().write_text("{broken", encoding="utf-8")
    assert ask("Prediction 1.2", 3).state == core.RIGHT
    assert core.read_progress()["Prediction 1.2"]["tries"] == 1
    assert core.progress_file().with_suffix(".broken").read_text(encoding="utf-8") == "{broken"


def test_where_progress_cannot_be_written_the_verdict_still_comes(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LAB_PROGRESS", str(tmp_path / "file" / "below"))
    verdict = ask("Prediction 1.2", 3)
    assert verdict.state == core.RIGHT and "LAB_PROGRESS" in verdict.note


def test_an_unknown_checker_names_the_known_ones():
    with pytest.raises(AttributeError, match="left_pad"):
        _ = check.right_pad


def test_progress_shows_every_exercise():
    ask("Prediction 1.2", 3)
    shown = repr(check.progress())
    assert shown.startswith(f"1 of {len(LABELS)} right") and all(label in shown for label in LABELS)
