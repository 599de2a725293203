"""Each lesson run once more: solved, where every answer must be right, and built again, where every byte must be the same."""

import pytest

from labutils import check
from labutils.check import core
from tools import build_notebooks
from tools.course import course

LESSONS = course().lessons
lessons = pytest.mark.parametrize("lesson", LESSONS, ids=[lesson.number for lesson in LESSONS])


@lessons
def test_the_solved_edition_is_all_right(lesson, tmp_path, monkeypatch):
    """Every exercise and every prediction of the solved edition is called right by its own checker."""
    notebook = build_notebooks.notebook_of(lesson, "solved")
    build_notebooks.execute(lesson, notebook, tmp_path)
    monkeypatch.setenv("LAB_PROGRESS", str(tmp_path / "progress"))
    states = {label: entry["state"] for label, entry in core.read_progress().items()}
    labels = {label for label in check.load_all() if label.split()[1].split(".")[0] == str(int(lesson.number))}
    assert states == dict.fromkeys(labels, core.RIGHT)


@lessons
def test_a_second_build_is_equal_to_the_byte(lesson):
    assert build_notebooks.build(lesson) == lesson.notebook.read_text(encoding="utf-8"), (
        f"Run: python run.py build {lesson.number}")
