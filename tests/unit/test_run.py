"""run.py sets up a project from nothing, repairs what was cut off, and says in a sentence what is in the way.

The project here is tiny (its torch is an empty wheel), so that a whole set-up takes seconds and needs no network.
"""

import ast
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("course_run", ROOT / "run.py")
course_run = importlib.util.module_from_spec(spec)
spec.loader.exec_module(course_run)

PYPROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "labutils"
version = "0.1"

[tool.labutils.pins]
torch = "9.9"
"""
# Builds the editable wheel of the tiny project. As long as there is a file named `wait`, it does not get done.
BACKEND = """\
import pathlib, time, zipfile

def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    pathlib.Path("building").touch()
    while pathlib.Path("wait").exists():
        time.sleep(0.1)
    name = "labutils-0.1-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(wheel_directory, name), "w") as wheel:
        wheel.writestr("labutils.pth", str(pathlib.Path.cwd()))
        wheel.writestr("labutils-0.1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: labutils\\nVersion: 0.1\\n")
        wheel.writestr("labutils-0.1.dist-info/WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any\\n")
        wheel.writestr("labutils-0.1.dist-info/RECORD", "")
    return name
"""
DOCTOR = "import sys, tiny\nprint('labutils got', sys.argv[1:])\n"


def write_wheel(folder: Path, name: str, version: str, module: bytes = b"") -> None:
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(f"{name}.py", module)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


class Project:
    """A tiny project with its own run.py, and the wheels that it may install."""

    def __init__(self, folder: Path, wheels: Path, torch: bytes = b""):
        self.folder = folder
        for one in (folder / "labutils", wheels):
            one.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "run.py", folder)
        (folder / "pyproject.toml").write_text(PYPROJECT)
        (folder / "backend.py").write_text(BACKEND)
        (folder / "labutils" / "__init__.py").write_text("")
        (folder / "labutils" / "__main__.py").write_text(DOCTOR)
        (folder / "requirements.lock").write_text("# MB of disk: cpu 1\ntiny==1.0\n")
        write_wheel(wheels, "torch", "9.9+cpu" if sys.platform.startswith("linux") else "9.9", torch)
        write_wheel(wheels, "tiny", "1.0")
        hidden = {name for name in os.environ if name.startswith(("PIP_", "UV_", "LAB_"))}
        self.environment = {name: value for name, value in os.environ.items() if name not in hidden}
        # PATH has no uv: what is installed on a developer's machine must not decide what is tested.
        self.environment.update(PATH=os.defpath, LAB_TORCH="cpu", PIP_CONFIG_FILE=os.devnull, PIP_NO_INDEX="1",
                                PIP_FIND_LINKS=str(wheels))

    def start(self, *arguments: str, **settings: str) -> subprocess.Popen:
        return subprocess.Popen([sys.executable, "run.py", *(arguments or ["doctor"])], cwd=self.folder, text=True,
                                env={**self.environment, **settings}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run(self, *arguments: str, **settings: str) -> tuple[int, str, str]:
        process = self.start(*arguments, **settings)
        output, errors = process.communicate(timeout=120)
        return process.returncode, output, errors

    @property
    def finished(self) -> Path:
        return self.folder / ".venv" / "finished.txt"

    def wait_for(self, name: str) -> None:
        deadline = time.monotonic() + 60
        while not (self.folder / name).exists():
            assert time.monotonic() < deadline, f"there is no {name}"
            time.sleep(0.1)


@pytest.fixture(scope="module")
def ready(tmp_path_factory) -> Project:
    """A project whose first command has run."""
    project = Project(tmp_path_factory.mktemp("ready"), tmp_path_factory.mktemp("wheels"))
    status, output, errors = project.run()
    assert status == 0, output + errors
    assert "labutils got ['doctor']" in output
    return project


@pytest.fixture
def project(tmp_path) -> Project:
    return Project(tmp_path / "project", tmp_path / "wheels")


def assert_one_sentence(errors: str) -> None:
    assert errors.startswith("run.py: ") and errors.count("\n") == 1, errors


# --- the Python it runs on


def test_the_file_parses_on_python_3_6():
    ast.parse((ROOT / "run.py").read_text(), feature_version=(3, 6))


@pytest.mark.parametrize("version", [(3, 6, 15), (3, 10, 0), (3, 15, 0)])
def test_a_python_without_packages_is_refused_with_what_is_needed(version):
    with pytest.raises(course_run.Problem) as problem:
        course_run.check_python(version)
    text = str(problem.value)
    assert f"this is Python {version[0]}.{version[1]}" in text and "needs Python 3.11 to 3.14" in text
    assert "https://www.python.org" in text


# --- a set-up, and the next command


def test_a_finished_set_up_is_not_touched_again(ready):
    stamp = ready.finished.stat().st_mtime_ns
    log = (ready.folder / "build" / "setup.log").stat().st_mtime_ns
    started = time.monotonic()
    # Nothing can be installed here any more, so whoever tries fails.
    status, output, errors = ready.run(PIP_FIND_LINKS="", TMPDIR="/nonexistent")
    assert (status, errors) == (0, "") and output == "labutils got ['doctor']\n"
    assert time.monotonic() - started < 2
    assert ready.finished.stat().st_mtime_ns == stamp
    assert (ready.folder / "build" / "setup.log").stat().st_mtime_ns == log


def test_the_first_act_of_jupyterlab_is_not_a_question(ready):
    settings = ready.folder / ".venv" / "share" / "jupyter" / "lab" / "settings" / "overrides.json"
    assert '"fetchNews": "false"' in settings.read_text()


def test_a_changed_lock_or_torch_makes_the_set_up_unfinished(ready, monkeypatch):
    monkeypatch.setattr(course_run, "FINISHED", ready.finished)
    monkeypatch.setattr(course_run, "PYTHON", ready.folder / ".venv" / course_run.PYTHON.relative_to(course_run.VENV))
    monkeypatch.setattr(course_run, "LOCK", ready.folder / "requirements.lock")
    monkeypatch.setattr(course_run, "ROOT", ready.folder)
    monkeypatch.delenv("LAB_TORCH", raising=False)
    assert course_run.is_finished()
    monkeypatch.setenv("LAB_TORCH", "cuda")
    assert not course_run.is_finished()
    monkeypatch.delenv("LAB_TORCH")
    other = ready.folder / "other.lock"
    other.write_text("tiny==1.1\n")
    monkeypatch.setattr(course_run, "LOCK", other)
    assert not course_run.is_finished()


def test_an_unknown_command_lists_the_commands(project):
    status, output, _ = project.run("labb")
    assert status == 2
    assert all(name in output for name in ("lab", "test", "build", "doctor", "browser", "bench"))
    assert not (project.folder / ".venv").exists()


# --- what gets in the way


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL, and locks that an orphan inherits")
def test_a_killed_set_up_is_repaired_by_the_command_that_waited_for_it(project):
    (project.folder / "wait").touch()
    first = project.start()
    project.wait_for("building")
    half_made = project.folder / ".venv" / "half_made.txt"
    half_made.touch()
    second = project.start()
    assert "waiting" in second.stdout.readline()
    first.send_signal(signal.SIGKILL)
    first.communicate()
    # The pip that the first one started lives on and would still write into .venv, so the second has to go on waiting.
    time.sleep(1)
    assert half_made.exists()
    assert not project.finished.exists()
    (project.folder / "wait").unlink()
    output, errors = second.communicate(timeout=120)
    assert second.returncode == 0, output + errors
    assert "labutils got ['doctor']" in output
    assert not half_made.exists()
    assert project.finished.exists()


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_without_a_network_it_says_so_and_leaves_nothing_that_counts(project, tmp_path, installer):
    settings = {"PIP_FIND_LINKS": ""}
    if installer == "uv":
        if not shutil.which("uv"):
            pytest.skip("uv is not on PATH")
        settings.update(PATH=os.pathsep.join([str(Path(shutil.which("uv")).parent), os.defpath]), UV_OFFLINE="1",
                        UV_CACHE_DIR=str(tmp_path / "cache"))
    status, _, errors = project.run(**settings)
    assert status == 1
    assert_one_sentence(errors)
    assert "Connect to the network" in errors and "torch==9.9" in errors
    assert not project.finished.exists()


def test_too_little_disk_is_said_before_anything_is_downloaded(project):
    (project.folder / "requirements.lock").write_text("# MB of disk: cpu 999999999\ntiny==1.0\n")
    status, output, errors = project.run()
    assert (status, output) == (1, "")
    assert_one_sentence(errors)
    assert "MB free and the set-up needs about 999,999,999 MB" in errors
    assert not (project.folder / ".venv").exists()


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if not (shutil.which("mount") and sys.platform.startswith("linux") and os.geteuid() == 0):
        pytest.skip("only root on Linux can mount a small disk")
    mount = ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", disk]
    if subprocess.run(mount, stderr=subprocess.DEVNULL).returncode:
        pytest.skip("this machine does not let root mount a tmpfs")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_a_disk_that_fills_up_is_said(small_disk, tmp_path):
    project = Project(small_disk / "project", tmp_path / "wheels", torch=bytes(80_000_000))
    status, _, errors = project.run()
    assert status == 1
    assert_one_sentence(errors)
    assert "The disk is full. Free some space" in errors
    assert not project.finished.exists()


def test_a_folder_that_cannot_be_written_is_said(small_disk, tmp_path):
    project = Project(small_disk / "project", tmp_path / "wheels")
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    status, _, errors = project.run()
    assert status == 1
    assert_one_sentence(errors)
    assert "cannot be written" in errors and "copy the course to a folder of your own" in errors


def test_a_venv_that_somebody_else_made_is_left_alone(project):
    own = project.folder / ".venv" / "pyvenv.cfg"
    own.parent.mkdir()
    own.write_text("mine")
    status, _, errors = project.run()
    assert status == 1
    assert_one_sentence(errors)
    assert "rename or delete that folder" in errors
    assert own.read_text() == "mine"


@pytest.mark.parametrize(("said", "output"), [
    ("The disk is full", "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"),
    ("The disk is full", "error: failed to write to file\n  cause: No space left on device (os error 28)"),
    ("The disk is full", "OSError: [WinError 112] There is not enough space on the disk"),
    ("apt install python3", "The virtual environment was not created successfully because ensurepip is not available."),
    ("apt install python3", "/usr/bin/python3: No module named venv"),
    ("too long for Windows", "HINT: This error might have occurred since this system does not have Windows Long Path "
                             "support enabled."),
    ("PIP_CERT", "SSLError(SSLCertVerificationError('[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed'))"),
    ("Close JupyterLab", "ERROR: Could not install packages due to an OSError: [WinError 5] Access is denied: 'c.pyd'"),
    ("to the package index (pypi.org)", "Retrying: NewConnectionError(\"HTTPSConnection(host='pypi.org', port=443)\")\n"
                                        "ERROR: No matching distribution found for torch==2.13.0"),
    ("to the package index (pypi.org)", "cause: Failed to fetch: `https://pypi.org/simple/torch/`\ncause: dns error"),
    ("offers torch==2.13.0+cpu for Python", "ERROR: No matching distribution found for torch==2.13.0+cpu"),
    ("stopped at the step 'a step': something new", "something new\n\n"),
])
def test_what_the_installers_print_becomes_one_sentence(said, output):
    text = course_run.explain("a step", output, 1)
    assert said in text and "\n" not in text
