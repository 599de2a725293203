"""Build the notebooks from notebooks/src: the learner edition (executed, committed), the solved and the instructor one.

    python -m tools.build_notebooks                  all learner editions, executed, into notebooks/
    python -m tools.build_notebooks 05               one lesson
    python -m tools.build_notebooks --keep-outputs   no run: stored outputs stay where the cell did not change
    python -m tools.build_notebooks --edition instructor    into build/instructor/
    python -m tools.build_notebooks --check          build aside and say which committed notebook differs, if any

A second build of the same source is equal to the first, byte for byte. CONTRIBUTING.md explains the markup.
"""

import argparse
import hashlib
import json
import os
import re
import sys
import tempfile
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tools.course import CHAIN, ROOT, Course, Lesson, course, download_mb

EDITIONS = ("learner", "solved", "instructor")
MIN_MARGIN = 0.1    # logits; see tools/greedy_margin.py
IGNORED = {"nbval-ignore-output", "nbval-skip"}
WIDGET = "application/vnd.jupyter.widget-view+json"
REGION = re.compile(r"^([ \t]*)### BEGIN SOLUTION\n(.*?)^[ \t]*### END SOLUTION[ \t]*\n?", re.DOTALL | re.MULTILINE)
ASSIGNMENT = re.compile(r"^(\w+)( *(?::[^=]+)?= *)([^#\n]+?)( *#.*)?$")


# --- from source cells to the cells of an edition -------------------------------------------------------------------


def stub(code: str) -> str:
    """Return `code` with each solution region replaced by what a learner finds there: `...`."""

    def replace(match: re.Match) -> str:
        indent, body = match.groups()
        if indent:
            return f"{indent}return ...  # your code here\n"
        lines = (ASSIGNMENT.match(line) for line in body.splitlines())
        return "".join(f"{m[1]}{m[2]}...{m[4] or ''}\n" for m in lines if m)

    return REGION.sub(replace, code + "\n").rstrip("\n")


def solved(code: str) -> str:
    """Return `code` with the solution regions kept and their markers gone."""
    return REGION.sub(lambda match: match[2], code + "\n").rstrip("\n")


def folded(summary: str, text: str) -> str:
    return f"<details><summary>{summary}</summary>\n\n{text}\n\n</details>"


def solution_of(code: str) -> str:
    """Return what the folded solution shows: the cell without its calls to the checker."""
    return re.split(r"^check\.", solved(code), flags=re.MULTILINE)[0].strip("\n")


def card(whole: Course, lesson: Lesson) -> str:
    """Return the title card: place in the course, badges, facts, the chain and three promises."""
    lit = " → ".join(f"**{part}**" if part in lesson.chain else part for part in CHAIN)
    repository = whole.repository
    badges = ""
    if repository.owner:
        badges = f"[Open in Colab]({repository.colab(lesson)}) · [Launch on Binder]({repository.binder(lesson)})\n\n"
    promises = "\n".join(f"{n}. {promise}" for n, promise in enumerate(lesson.promises, 1))
    return (
        f"# {lesson.number} · {lesson.title}\n\n{navigation(whole, lesson)}\n\n{badges}"
        f"| ⏱ time | peak memory | checkpoints | downloaded once |\n|---|---|---|---|\n"
        f"| {lesson.minutes} min | {lesson.peak_mb / 1000:.1f} GB | {lesson.needs} | {download_mb(lesson.roles)} MB |\n\n"
        f"{lit}\n\n**After this lesson you can**\n\n{promises}"
    )


def navigation(whole: Course, lesson: Lesson) -> str:
    before, after = whole.neighbours(lesson)
    links = [f"[← {before.number} {before.title}]({before.notebook.name})" if before else "",
             f"*{whole.title}*",
             f"[{after.number} {after.title} →]({after.notebook.name})" if after else ""]
    return " · ".join(link for link in links if link)


def recap(whole: Course, lesson: Lesson) -> str:
    promises = "\n".join(f"{n}. {promise}" for n, promise in enumerate(lesson.promises, 1))
    return (
        f"## Recap\n\n**You can now**\n\n{promises}\n\n"
        f"**On the receipt** (what a later reader needs to reproduce this): {lesson.receipt}\n\n{navigation(whole, lesson)}"
    )


def bootstrap(whole: Course) -> str:
    """Return the first code cell: nothing where labutils is installed, one install on Colab, never torch."""
    repository = whole.repository
    if repository.owner:
        cure = (
            "    # A notebook that came alone, as on Colab: fetch what is missing; its torch stays.\n"
            f'    %pip install -q "labutils[models] @ git+https://github.com/{repository.slug}@{repository.ref}"\n'
            "    import labutils"
        )
    else:
        cure = (
            "    raise SystemExit(\n"
            '        "labutils is not installed in this kernel. In the course folder run: python run.py lab"\n'
            "    ) from None"
        )
    return f"try:\n    import labutils\nexcept ModuleNotFoundError:\n{cure}"


def cells_of(lesson: Lesson, edition: str) -> list:
    """Return the cells of one edition of a lesson, without outputs."""
    whole = course()
    cells = [new_markdown_cell(card(whole, lesson)),
             new_code_cell(bootstrap(whole), metadata={"tags": ["bootstrap"], "jupyter": {"source_hidden": True}})]
    folds: list[str] = []       # hints and solution of the exercise that is open
    solution: str | None = None

    def close_exercise() -> None:
        nonlocal solution
        if edition == "learner":
            if solution:
                folds.append(folded("Solution", f"```python\n{solution}\n```"))
            if folds:
                cells.append(new_markdown_cell("\n\n".join(folds)))
        folds.clear()
        solution = None

    for cell in jupytext.read(lesson.source, fmt="py:percent").cells:
        meta = dict(cell.metadata)
        if "hint" in meta:
            folds.append(folded(f"Hint: {meta['hint']}", cell.source))
            continue
        close_exercise()
        if meta.get("title") == "instructor":
            if edition == "instructor":
                cells.append(new_markdown_cell(
                    f"> ⏱ **{meta['minutes']} min · for the instructor**\n>\n> " + cell.source.replace("\n", "\n> "),
                    metadata={"slideshow": {"slide_type": "notes"}}))
            continue
        kept = {key: meta[key] for key in ("tags", "exercise", "reason", "margin") if key in meta}
        if cell.cell_type == "markdown":
            cells.append(new_markdown_cell(cell.source, metadata=kept))
            continue
        cells.append(new_code_cell(stub(cell.source) if edition == "learner" else solved(cell.source), metadata=kept))
        if "exercise" in meta:
            solution = solution_of(cell.source)
    close_exercise()
    cells.append(new_markdown_cell(recap(whole, lesson)))
    if edition == "instructor":
        mark_slides(cells)
    number_cells(lesson, cells)
    return cells


def mark_slides(cells: list) -> None:
    """Give each cell without a mark its place in a slide show: a heading opens a slide, the rest follows it."""
    for cell in cells:
        if "slideshow" not in cell.metadata:
            opens = cell.cell_type == "markdown" and re.match(r"#{1,3} ", cell.source)
            cell.metadata["slideshow"] = {"slide_type": "slide" if opens else "fragment"}


def number_cells(lesson: Lesson, cells: list) -> None:
    """Give each cell an id that depends only on the lesson and the cell's own text."""
    seen: dict[str, int] = {}
    for cell in cells:
        digest = hashlib.sha256(f"{lesson.number}:{cell.cell_type}:{cell.source}".encode()).hexdigest()[:8]
        seen[digest] = seen.get(digest, 0) + 1
        cell["id"] = digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"


def notebook_of(lesson: Lesson, edition: str):
    """Return the notebook of one edition of a lesson, without outputs."""
    return new_notebook(
        cells=cells_of(lesson, edition),
        metadata={
            "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
    )


# --- outputs --------------------------------------------------------------------------------------------------------


class Kernel(NotebookClient):
    """Runs a notebook's cells in order and keeps, for each cell, the smallest margin of its greedy generations."""

    def __init__(self, notebook, log: Path, **kwargs) -> None:
        super().__init__(notebook, record_timing=False, kernel_name="python3", timeout=300,
                         on_cell_executed=self.read_margin, **kwargs)
        self.margin_log, self.lines_read, self.margins = log, 0, {}

    async def async_start_new_kernel_client(self):
        client = await super().async_start_new_kernel_client()
        watch = (f"import sys; sys.path.insert(0, {str(ROOT)!r}); import labutils; from tools import greedy_margin; "
                 f"greedy_margin.install({str(self.margin_log)!r}); del sys.path[0], sys, labutils, greedy_margin")
        client.execute(watch, silent=True, store_history=False)
        return client

    def read_margin(self, cell, cell_index, execute_reply) -> None:
        lines = self.margin_log.read_text(encoding="utf-8").splitlines() if self.margin_log.exists() else []
        fresh = [json.loads(line)["margin"] for line in lines[self.lines_read:]]
        self.lines_read = len(lines)
        if fresh:
            self.margins[cell_index] = min(fresh)


def environment(scratch: Path) -> dict[str, str]:
    """Return the environment of a build's kernel: bundled profile, CPU, own progress file, quiet set-up."""
    return os.environ | {
        "LAB_PROFILE": "bundled", "LAB_DEVICE": "cpu", "LAB_PROGRESS": str(scratch / "progress"),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2"), "OMP_WAIT_POLICY": "PASSIVE",
        "IPYTHONDIR": str(scratch / "ipython"), "PYTHONHASHSEED": "0",
    }


def execute(lesson: Lesson, notebook, scratch: Path) -> None:
    """Run the notebook in a fresh kernel, store normalised outputs in it. Raises SystemExit on an unsafe greedy text."""
    client = Kernel(notebook, scratch / "margins.jsonl", resources={"metadata": {"path": str(lesson.notebook.parent)}})
    client.execute(env=environment(scratch))
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            normalise(cell)
    unsafe = [
        f"cell {index} ({notebook.cells[index].source.splitlines()[0]!r}): {margin:.3f}"
        for index, margin in client.margins.items()
        if margin < MIN_MARGIN and not IGNORED & set(notebook.cells[index].metadata.get("tags", ()))
        and "margin" not in notebook.cells[index].metadata
    ]
    if unsafe:
        raise SystemExit(
            f"{lesson.stem}: the greedy text of these cells hangs on a margin under {MIN_MARGIN} logits and may differ on "
            "another processor. Choose another prompt, or say in the cell's margin=\"...\" why it does not matter:\n  "
            + "\n  ".join(unsafe)
        )


def normalise(cell) -> None:
    """Drop from a cell's outputs what differs between two runs of the same code, join what was printed in pieces."""
    joined = []
    for output in cell.outputs:
        if joined and output.output_type == joined[-1].output_type == "stream" and output.name == joined[-1].name:
            joined[-1].text += output.text
        else:
            joined.append(output)
    cell.outputs = joined
    for output in cell.outputs:
        if output.output_type == "error":
            output.traceback = [f"{output.ename}: {output.evalue}"]     # frames hold paths of this machine
        if "data" in output:
            output.data.pop(WIDGET, None)
            for kind, text in output.data.items():
                if isinstance(text, str) and kind != "image/png":
                    output.data[kind] = re.sub(r"0x[0-9a-f]{6,}", "0x…", text)


def keep_outputs(notebook, stored: Path, only_ignored: bool = False) -> None:
    """Copy the outputs of the stored notebook to each cell of `notebook` whose source is unchanged.

    Cells with the same source are told apart by their order. `only_ignored`: only those that nbval does not compare, such
    as seconds, so that a rebuild changes nothing without need. Otherwise a cell that is new or changed is an error.
    """
    if not stored.exists():
        return
    old: dict[str, list] = {}
    for cell in nbformat.read(stored, as_version=4).cells:
        if cell.cell_type == "code":
            old.setdefault(cell.source, []).append(cell.outputs)
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type != "code":
            continue
        kept = old[cell.source].pop(0) if old.get(cell.source) else None
        if kept is not None and (not only_ignored or IGNORED & set(cell.metadata.get("tags", ()))):
            cell.outputs = kept
        elif kept is None and not only_ignored:
            raise SystemExit(f"{stored.name}: cell {number} is new or changed, so no output can be kept. Build without "
                             f"--keep-outputs. It begins:\n{cell.source[:200]}")


def number_runs(notebook) -> None:
    """Number the code cells as one clean run from top to bottom does."""
    for count, cell in enumerate((cell for cell in notebook.cells if cell.cell_type == "code"), 1):
        cell.execution_count = count
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = count


# --- command line ---------------------------------------------------------------------------------------------------


def build(lesson: Lesson, edition: str = "learner", run: bool = True, fresh: bool = False) -> str:
    """Return the text of one edition of a lesson as .ipynb. `fresh`: also renew the outputs that nbval does not compare."""
    notebook = notebook_of(lesson, edition)
    if run:
        with tempfile.TemporaryDirectory() as scratch:
            execute(lesson, notebook, Path(scratch))
        if edition == "learner" and not fresh:
            keep_outputs(notebook, lesson.notebook, only_ignored=True)
    elif edition == "learner":
        keep_outputs(notebook, lesson.notebook)
    if run or edition == "learner":
        number_runs(notebook)
    nbformat.validate(notebook)
    return nbformat.writes(notebook) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lessons", nargs="*", help="numbers or names; all when none is given")
    parser.add_argument("--edition", choices=EDITIONS, default="learner")
    parser.add_argument("--keep-outputs", action="store_true", help="do not run; keep stored outputs of unchanged cells")
    parser.add_argument("--fresh", action="store_true", help="renew outputs that are not compared, such as seconds, too")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where the committed notebook differs")
    wanted = parser.parse_args()
    lessons = [course().lesson(name) for name in wanted.lessons] or course().lessons
    differing = []
    for lesson in lessons:
        print(f"{lesson.stem} ({wanted.edition}) ...", end=" ", flush=True)
        text = build(lesson, wanted.edition, run=not wanted.keep_outputs, fresh=wanted.fresh)
        folder = lesson.notebook.parent if wanted.edition == "learner" else ROOT / "build" / wanted.edition
        target = folder / lesson.notebook.name
        if wanted.check:
            same = target.exists() and target.read_text(encoding="utf-8") == text
            differing += [] if same else [lesson.stem]
            print("same" if same else "DIFFERS")
        else:
            folder.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8", newline="\n")
            print(f"{len(text) / 1000:.0f} kB")
    if differing:
        sys.exit(f"Not as built from source: {', '.join(differing)}. Run: python run.py build {' '.join(differing)}")


if __name__ == "__main__":
    main()
