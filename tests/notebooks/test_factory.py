"""The factory: sources and notebooks in step, lessons complete and in style, nothing private or remote in what is committed.

Nothing is executed here. The outputs are compared by nbval (strict.py beside this file), the solved editions and the second
build run in tests/editions.
"""

import re
import statistics
import subprocess
import sys

import jupytext
import nbformat
import pytest

from labutils import check
from tools import build_notebooks, build_readme
from tools.course import ROOT, course

LESSONS = course().lessons
# Numbers of prose that are settings of ours, not measurements, with the file that holds them.
STATED: dict[str, tuple[str, ...]] = {}
lessons = pytest.mark.parametrize("lesson", LESSONS, ids=[lesson.number for lesson in LESSONS])


def committed(lesson):
    return nbformat.read(lesson.notebook, as_version=4)


def source(lesson):
    return jupytext.read(lesson.source, fmt="py:percent").cells


def test_every_source_is_a_lesson_and_every_notebook_is_built():
    stems = [lesson.stem for lesson in LESSONS]
    assert sorted(path.stem for path in (ROOT / "notebooks" / "src").glob("*.py")) == stems
    assert sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb")) == stems


@lessons
def test_source_and_notebook_are_in_step(lesson):
    def facts(cells):
        return [(cell.id, cell.cell_type, cell.source, dict(cell.metadata)) for cell in cells]

    assert facts(committed(lesson).cells) == facts(build_notebooks.cells_of(lesson, "learner")), (
        f"Run: python run.py build {lesson.number}")


@lessons
def test_nothing_private_or_remote_is_committed(lesson):
    text = lesson.notebook.read_text(encoding="utf-8")
    assert "application/vnd.jupyter.widget" not in text
    assert not re.search(r'["\s(=:](/(root|home|tmp|work|Users|private)/|[A-Z]:\\\\)', text), "an absolute path"
    assert not re.search(r'!\[[^]]*\]\(https?:|<img[^>]+src=\\?"https?:', text), "a remote image"
    notebook = committed(lesson)
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1)), "not one clean run from top to bottom"


@lessons
def test_ignored_outputs_carry_a_reason(lesson):
    for cell in source(lesson):
        if build_notebooks.IGNORED & set(cell.metadata.get("tags", ())):
            assert len(cell.metadata.get("reason", "")) > 10, cell.source


@lessons
def test_the_lesson_keeps_to_the_style(lesson):
    cells = build_notebooks.cells_of(lesson, "learner")
    code = [sum(bool(line.strip()) for line in cell.source.splitlines()) for cell in cells if cell.cell_type == "code"][1:]
    words = sum(len(re.sub(r"<details>.*?</details>", "", cell.source, flags=re.DOTALL).split())
                for cell in cells if cell.cell_type == "markdown")
    assert 25 <= len(cells) <= 58, f"{len(cells)} cells"
    assert 700 <= words <= 1900, f"{words} words"
    assert max(len(line) for cell in cells if cell.cell_type == "code" for line in cell.source.splitlines()) <= 100
    assert max(code) <= 40 and statistics.median(code) <= 6 and sum(n <= 15 for n in code) >= 0.9 * len(code), sorted(code)
    for cell in cells:
        if cell.cell_type == "code" and "bootstrap" not in cell.metadata.get("tags", ()):
            assert "cuda" not in cell.source and "trust_remote_code=True" not in cell.source, cell.source


@lessons
def test_a_number_in_prose_is_one_that_a_cell_holds(lesson):
    """Numbers of three digits and more, and those with a decimal point, stand in a cell's code or output too."""
    cells = committed(lesson).cells
    held = " ".join(
        cell.source + " " + " ".join(
            output.get("text", "") + output.get("evalue", "") + str(output.get("data", {}).get("text/plain", ""))
            for output in cell.outputs)
        for cell in cells if cell.cell_type == "code").replace(",", "")
    prose = " ".join(re.sub(r"<details>.*?</details>|`[^`]*`", "", cell.source, flags=re.DOTALL)
                     for cell in cells[1:-1] if cell.cell_type == "markdown")
    prose = re.sub(r"(Predict|Exercise) \d+\.\d+", "", prose)
    numbers = {number.rstrip(".").replace(",", "") for number in re.findall(r"\d[\d,.]*\d", prose)}
    loose = {number for number in numbers if (len(number) >= 3 or "." in number) and number not in held}
    assert loose <= set(STATED.get(lesson.number, ())), f"no cell holds {loose - set(STATED.get(lesson.number, ()))}"


@lessons
def test_exercises_are_complete(lesson):
    """Each exercise has a card with its number, a checker of the same number, a hint; each prediction is asked for."""
    cells = source(lesson)
    text = "\n".join(cell.source for cell in cells)
    numbers = [cell.metadata["exercise"] for cell in cells if "exercise" in cell.metadata]
    assert len(numbers) >= 2 and sum("predict" in cell.metadata.get("tags", ()) for cell in cells) >= 1
    checkers = {label for label in check.load_all() if label.split()[1].split(".")[0] == str(int(lesson.number))}
    asked = {f"Exercise {number}" for number in re.findall(r"### Exercise (\d+\.\d+) ·", text)}
    asked |= {f"Prediction {number}" for number in re.findall(r"\*\*Predict (\d+\.\d+)\.\*\*", text)}
    assert asked == checkers
    for number in numbers:
        at = next(index for index, cell in enumerate(cells) if cell.metadata.get("exercise") == number)
        assert "hint" in cells[at + 1].metadata, f"exercise {number} has no hint"
    for name in re.findall(r"^check\.(\w+)\(", text, flags=re.MULTILINE):
        assert name == "progress" or callable(getattr(check, name))


@lessons
def test_the_instructor_edition_has_notes_timings_and_slides(lesson):
    cells = build_notebooks.cells_of(lesson, "instructor")
    notes = [cell for cell in cells if cell.metadata["slideshow"]["slide_type"] == "notes"]
    assert notes and all(re.search(r"\*\*\d+ min · for the instructor\*\*", cell.source) for cell in notes)
    assert not any("### BEGIN SOLUTION" in cell.source or "your code here" in cell.source for cell in cells)
    assert cells[0].metadata["slideshow"]["slide_type"] == "slide"


@pytest.mark.parametrize("changed", (False, True), ids=("as committed", "changed"))
def test_a_changed_output_makes_nbval_fail(changed, tmp_path):
    """Guards against a comparison that skips everything: the first cells of lesson 00, with one digit changed."""
    notebook = committed(LESSONS[0])
    notebook.cells = notebook.cells[:6]
    table = notebook.cells[-1].outputs[0].data
    assert "28.00" in table["text/plain"]
    if changed:
        table["text/plain"] = table["text/plain"].replace("28.00", "28.01")
    nbformat.write(notebook, tmp_path / "copy.ipynb")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.notebooks.strict", "-p", "no:cacheprovider", "--nbval",
               "--nbval-current-env", str(tmp_path / "copy.ipynb")]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == int(changed), run.stdout
    assert ("Cell outputs differ" in run.stdout) == changed


def test_stubs_show_no_solution():
    code = 'def f(x: int) -> int:\n    """Say."""\n    ### BEGIN SOLUTION\n    y = x\n    return y\n    ### END SOLUTION\n\n\ncheck.f(f)'
    assert build_notebooks.stub(code) == 'def f(x: int) -> int:\n    """Say."""\n    return ...  # your code here\n\n\ncheck.f(f)'
    assert build_notebooks.solved(code) == 'def f(x: int) -> int:\n    """Say."""\n    y = x\n    return y\n\n\ncheck.f(f)'
    assert build_notebooks.stub("### BEGIN SOLUTION\nkept = 1    # 0 to 4\n### END SOLUTION") == "kept = ...    # 0 to 4"


def test_kept_outputs_go_by_source_and_order(tmp_path):
    def cell(source, said=None):
        outputs = [nbformat.v4.new_output("stream", text=said)] if said else []
        return nbformat.v4.new_code_cell(source, outputs=outputs)

    stored = tmp_path / "stored.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[cell("look()", "first"), cell("other()"), cell("look()", "second")]), stored)
    wanted = nbformat.v4.new_notebook(cells=[cell("look()"), cell("other()"), cell("look()")])
    build_notebooks.keep_outputs(wanted, stored)
    assert [[output.text for output in each.outputs] for each in wanted.cells] == [["first"], [], ["second"]]
    wanted.cells.append(cell("new()"))
    with pytest.raises(SystemExit, match="cell 3 is new or changed"):
        build_notebooks.keep_outputs(wanted, stored)


def test_readme_is_what_the_course_says():
    assert build_readme.README.read_text(encoding="utf-8") == build_readme.readme(course())


def test_badges_lead_to_the_owner_or_are_not_there():
    whole = course()
    with_owner = build_readme.readme(type(whole)(**{**vars(whole), "repository": type(whole.repository)("ada", "open", "v1")}))
    for lesson in LESSONS:
        assert f"https://colab.research.google.com/github/ada/open/blob/v1/notebooks/{lesson.notebook.name}" in with_owner
        assert f"https://mybinder.org/v2/gh/ada/open/v1?urlpath=lab/tree/notebooks/{lesson.notebook.name}" in with_owner
    if not whole.repository.owner:
        assert "mybinder.org" not in build_readme.readme(whole) and "Set `owner`" in build_readme.readme(whole)


def test_the_first_cell_installs_labutils_but_never_torch():
    whole = course()
    owned = type(whole)(**{**vars(whole), "repository": type(whole.repository)("ada", "open", "v1")})
    assert '%pip install -q "labutils[models] @ git+https://github.com/ada/open@v1"' in build_notebooks.bootstrap(owned)
    assert "torch" not in re.sub("#.*", "", build_notebooks.bootstrap(owned))
    import tomllib
    facts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert not [each for each in facts["project"]["dependencies"] if re.match("torch|transformers|accelerate", each)]
