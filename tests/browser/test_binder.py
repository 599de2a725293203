"""What mybinder.org makes of this repository. repo2docker plans the image without Docker; only the build needs it."""

import re
import stat
import subprocess
from pathlib import Path

import pytest
from repo2docker.app import Repo2Docker

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def buildpack(monkeypatch):
    monkeypatch.chdir(ROOT)
    app = Repo2Docker()
    # As in Repo2Docker.build: the first buildpack that recognises the folder builds the image.
    for kind in app.buildpacks:
        pack = kind(app.base_image)
        pack.platform = "linux/amd64"
        if pack.detect():
            return pack
    raise AssertionError("repo2docker recognises nothing in this repository")


def commands(pack) -> str:
    return "\n".join(script for _, script in [*pack.get_preassemble_scripts(), *pack.get_assemble_scripts()])


def test_binder_takes_the_files_of_the_binder_folder(buildpack):
    """Once that folder exists, environment.yml in the root counts for nothing."""
    assert type(buildpack).__name__ == "PythonBuildPack"
    assert Path(buildpack.binder_dir) == Path("binder")
    text = commands(buildpack)
    assert re.search(r'pip"? install --no-cache-dir -r "?binder/requirements.txt', text), text
    assert "environment.yml" not in text
    assert [Path(script).name for script in buildpack.get_post_build_scripts()] == ["postBuild"]
    assert Path(buildpack.get_start_script()).name == "start"


def test_the_dockerfile_has_our_python_and_our_scripts(buildpack):
    assert buildpack.python_version == "3.12"
    dockerfile = buildpack.render(build_args={})
    assert "binder/postBuild" in dockerfile
    assert re.search(r'R2D_ENTRYPOINT\s*=?\s*"?\S*binder/start', dockerfile), dockerfile[-1500:]
    assert "environment.py-3.12-linux-64.lock" in " ".join(buildpack.get_build_script_files())


def test_binder_never_downloads_cuda():
    lines = (ROOT / "binder" / "requirements.txt").read_text().splitlines()
    wanted = [line for line in lines if line and not line.startswith("#")]
    assert wanted[0] == "--extra-index-url https://download.pytorch.org/whl/cpu"
    assert re.fullmatch(r"torch==[\d.]+\+cpu", wanted[1])
    assert not [line for line in wanted if line.startswith(("nvidia", "cuda", "triton"))]


@pytest.mark.parametrize("name", ["postBuild", "start"])
def test_the_scripts_run(name):
    script = ROOT / "binder" / name
    assert script.stat().st_mode & stat.S_IXUSR
    assert script.read_bytes().startswith(b"#!/bin/bash\n")
    subprocess.run(["bash", "-n", script], check=True)


def test_start_hands_over_to_the_command_with_two_threads():
    command = [ROOT / "binder" / "start", "bash", "-c", 'echo "$OMP_NUM_THREADS $0 $1"', "a name", "b c"]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    assert answer.stdout == "2 a name b c\n"
