"""The wheel carries its data, and importing labutils is light."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = "import hatchling.build, sys; hatchling.build.build_wheel(sys.argv[1])"
WHERE = "import labutils, labutils.data; print(labutils.__file__); print(labutils.data.path('course.toml'))"
TIME = "import time; start = time.perf_counter(); import labutils; print(time.perf_counter() - start)"
HEAVY = ("torch", "transformers", "huggingface_hub", "numpy")
LIGHT = f"import labutils, sys; print([name for name in {HEAVY!r} if name in sys.modules])"


def run(code: str, *arguments: str, cwd: Path, **settings: str) -> str:
    environment = {**os.environ, **settings}
    return subprocess.run([sys.executable, "-c", code, *arguments], cwd=cwd, env=environment, check=True,
                          stdout=subprocess.PIPE, text=True).stdout


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(BUILD, str(folder), cwd=ROOT)
    [wheel] = folder.glob("labutils-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_an_installed_wheel_finds_its_data(unpacked, tmp_path):
    package, course = run(WHERE, cwd=tmp_path, PYTHONPATH=str(unpacked)).splitlines()
    assert Path(package).is_relative_to(unpacked)
    assert Path(course) == unpacked / "labutils" / "_data" / "course.toml"
    assert Path(course).read_bytes() == (ROOT / "data" / "course.toml").read_bytes()


def test_the_wheel_carries_all_data_and_both_licences(unpacked):
    def files(folder: Path) -> set[Path]:
        return {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}

    listed = subprocess.run(["git", "ls-files", "data"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if listed.returncode == 0 and listed.stdout:
        committed = {Path(line).relative_to("data") for line in listed.stdout.splitlines()}
        assert committed <= files(unpacked / "labutils" / "_data")
    assert {path.name for path in unpacked.glob("*.dist-info/licenses/*")} == {"LICENSE", "LICENSE-lessons"}


def test_importing_labutils_takes_at_most_50_ms(tmp_path):
    assert min(float(run(TIME, cwd=tmp_path)) for _ in range(7)) <= 0.05


def test_importing_labutils_imports_nothing_heavy(tmp_path):
    assert run(LIGHT, cwd=tmp_path).strip() == "[]"
