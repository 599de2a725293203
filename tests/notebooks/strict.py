"""nbval, made strict and made to measure: `pytest -p tests.notebooks.strict --nbval ...`.

nbval compares every output of a committed notebook with a fresh run. This plugin adds what the course promises on top:
an output that is not compared carries its reason, at least MIN_COMPARED of the cells with output are compared, and each
lesson's Run All stays inside the seconds and the resident memory that data/course.toml states. The figures are printed.
"""

import os
import time

import nbval.kernel
import nbval.plugin
import pytest

from tools.course import course

MIN_COMPARED = 0.85
IGNORED = {"nbval-ignore-output", "nbval-skip"}
MEASURE = (
    "import resource as _r, sys as _s; "
    "print(_r.getrusage(_r.RUSAGE_SELF).ru_maxrss * (1 if _s.platform == 'darwin' else 1024))"
)

measured: dict[str, dict] = {}      # notebook -> {"seconds", "resident_mb", "cells", "compared"}


# nbval offers no hooks, so the plugin puts its own methods in place of a few of nbval's.

NotebookFile = nbval.plugin.IPyNbFile
nbval_setup, nbval_teardown, nbval_collect = NotebookFile.setup, NotebookFile.teardown, NotebookFile.collect


def execute_cell_input(kernel, cell_input, allow_stdin=None):
    """Run a cell as a notebook does. nbval turns the history off, and then a trailing ; does not silence a cell."""
    return kernel.kc.execute(cell_input, store_history=True, allow_stdin=allow_stdin, stop_on_error=False)


def setup(notebook):
    nbval_setup(notebook)
    notebook.began = time.perf_counter()


def teardown(notebook):
    if notebook.kernel is not None and notebook.kernel.is_alive():
        cells = [cell for cell in notebook.nb.cells if cell.cell_type == "code" and cell.outputs]
        ignored = [cell for cell in cells if IGNORED & set(cell.metadata.get("tags", ()))]
        seconds = time.perf_counter() - notebook.began
        peak = peak_bytes(notebook.kernel)
        measured[notebook.path.stem] = {
            "seconds": seconds, "resident_mb": None if peak is None else peak / 1e6,
            "cells": len(cells), "compared": len(cells) - len(ignored),
        }
    nbval_teardown(notebook)


def collect(notebook):
    yield from nbval_collect(notebook)
    yield Kept.from_parent(notebook, name="promises")


nbval.kernel.RunningKernel.execute_cell_input = execute_cell_input
NotebookFile.setup, NotebookFile.teardown, NotebookFile.collect = setup, teardown, collect


def peak_bytes(kernel) -> int | None:
    """Return the most memory that the kernel's process has had resident, or None where the system does not tell."""
    if os.name == "nt":
        return None
    said: list[str] = []
    kernel.kc.execute_interactive(
        MEASURE, store_history=False, allow_stdin=False, timeout=30,
        output_hook=lambda message: said.append(message["content"].get("text", "")))
    text = "".join(said).strip()
    return int(text) if text.isdigit() else None


class Kept(pytest.Item):
    """The last item of each notebook: its promises, checked on what was measured while its cells ran."""

    def runtest(self):
        name = self.parent.path.stem
        lesson = next((each for each in course().lessons if each.stem == name), None)
        for cell in self.parent.nb.cells:
            if IGNORED & set(cell.metadata.get("tags", ())) and not cell.metadata.get("reason"):
                raise AssertionError(f"{name}: a cell's output is not compared and no reason is given:\n{cell.source}")
        self.parent.teardown()      # stops the kernel and takes the measures
        figures = measured.get(name)
        if lesson is None or figures is None:
            return
        share = figures["compared"] / figures["cells"]
        assert share >= MIN_COMPARED, f"{name}: only {share:.0%} of the cells with output are compared."
        assert figures["seconds"] <= lesson.seconds <= course().seconds, (
            f"{name}: Run All took {figures['seconds']:.0f} s, data/course.toml allows {lesson.seconds} s.")
        peak = figures["resident_mb"]
        assert peak is None or peak <= lesson.peak_mb <= course().resident_mb, (
            f"{name}: {peak:.0f} MB resident at the peak, data/course.toml states {lesson.peak_mb} MB.")
        assert peak is None or peak >= 0.75 * lesson.peak_mb, (
            f"{name}: the card says {lesson.peak_mb} MB, but the peak is only {peak:.0f} MB. Correct data/course.toml.")

    def reportinfo(self):
        return self.parent.path, 0, f"{self.parent.path.name}: reasons, share compared, seconds, memory"

    def repr_failure(self, excinfo):
        return str(excinfo.value)


def pytest_terminal_summary(terminalreporter):
    if not measured:
        return
    terminalreporter.section("lessons: measured against data/course.toml")
    for name, figures in sorted(measured.items()):
        peak = "not measured" if figures["resident_mb"] is None else f"{figures['resident_mb']:.0f} MB"
        terminalreporter.write_line(
            f"{name}: {figures['seconds']:.1f} s, {peak} resident, "
            f"{figures['compared']} of {figures['cells']} cells with output compared")
    cells, compared = (sum(each[key] for each in measured.values()) for key in ("cells", "compared"))
    terminalreporter.write_line(f"compared: {compared} of {cells} cells with output ({compared / cells:.0%})")
