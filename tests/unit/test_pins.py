"""One set of versions: what pyproject.toml pins, the locks, environment.yml and binder/ agree."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PINS = PROJECT["tool"]["labutils"]["pins"]
EXTRAS = PROJECT["project"]["optional-dependencies"]
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
BINDER = {"python_full_version": "3.12.1", "python_version": "3.12", "sys_platform": "linux", "os_name": "posix",
          "platform_system": "Linux", "platform_machine": "x86_64"}


def requirements(path: str) -> list[Requirement]:
    lines = (ROOT / path).read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith(("#", "-"))]


def names(lines: list[Requirement]) -> set[str]:
    return {canonicalize_name(one.name) for one in lines}


LOCK = requirements("requirements.lock")


def test_every_line_of_the_lock_is_one_exact_version():
    assert all(re.fullmatch(r"==[\w.]+", str(one.specifier)) for one in LOCK)
    assert "never" not in (ROOT / "requirements.lock").read_text()


@pytest.mark.parametrize("python", ["3.11.0", "3.12.1", "3.13.1", "3.14.1"])
@pytest.mark.parametrize("system", ["linux posix Linux", "win32 nt Windows", "darwin posix Darwin"])
def test_no_machine_is_given_two_versions_of_a_package(python, system):
    environment = {**BINDER, "python_full_version": python, "python_version": python.rpartition(".")[0],
                   **dict(zip(("sys_platform", "os_name", "platform_system"), system.split(), strict=True))}
    chosen = [canonicalize_name(one.name) for one in LOCK if one.marker is None or one.marker.evaluate(environment)]
    assert len(chosen) == len(set(chosen))


def test_the_lock_satisfies_pyproject():
    wanted = [*PROJECT["project"]["dependencies"], *EXTRAS["models"], *EXTRAS["lab"], *EXTRAS["test"]]
    for requirement in map(Requirement, wanted):
        if requirement.name == "torch":
            assert requirement.specifier.contains(PINS["torch"])
            continue
        locked = [one for one in LOCK if canonicalize_name(one.name) == canonicalize_name(requirement.name)]
        assert locked, requirement.name
        assert all(requirement.specifier.contains(str(one.specifier)[2:]) for one in locked), requirement.name


def test_the_pins_are_in_the_lock_and_torch_is_not():
    for name, version in PINS.items():
        found = [str(one.specifier) for one in LOCK if canonicalize_name(one.name) == name]
        assert found == ([] if name == "torch" else [f"=={version}"])


def test_what_torch_needs_is_pinned_and_cuda_is_not():
    needed = {"filelock", "fsspec", "jinja2", "mpmath", "networkx", "setuptools", "sympy", "typing-extensions"}
    assert needed <= names(LOCK)
    assert not [name for name in names(LOCK) if name.startswith(("nvidia", "cuda", "triton"))]


def test_what_builds_labutils_is_pinned_alike():
    built_with = set(PROJECT["build-system"]["requires"])
    assert built_with <= set(EXTRAS["test"])
    assert built_with <= {str(one) for one in LOCK}


def test_torch_and_transformers_are_no_dependencies():
    """Colab has both and must keep its own."""
    base = names([Requirement(line) for line in PROJECT["project"]["dependencies"]])
    assert not base & {"torch", "transformers", "accelerate", "huggingface-hub", "jupyterlab"}


def test_every_dependency_states_the_oldest_version_that_is_supported():
    for line in [*PROJECT["project"]["dependencies"], *EXTRAS["models"], *EXTRAS["lab"], *EXTRAS["ray"]]:
        assert any(one.operator == ">=" for one in Requirement(line).specifier), line


def test_environment_yml_has_the_same_pins():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    *conda, from_pip = environment["dependencies"]
    assert conda == ["python=3.12", "pip"]
    # A path after -r is relative to environment.yml: both stand in the root.
    torch = [f"--extra-index-url {CPU_INDEX}", f"torch=={PINS['torch']}"]
    assert from_pip == {"pip": [*torch, "-r requirements.lock", "-e ."]}


def test_binder_has_the_same_pins_and_keeps_its_own_jupyterlab():
    text = (ROOT / "binder" / "requirements.txt").read_text()
    assert f"\n--extra-index-url {CPU_INDEX}\ntorch=={PINS['torch']}+cpu\n" in text
    binder = [one for one in requirements("binder/requirements.txt") if one.name != "torch"]
    here = {(canonicalize_name(one.name), str(one.specifier)) for one in LOCK
            if one.marker is None or one.marker.evaluate(BINDER)}
    assert {(canonicalize_name(one.name), str(one.specifier)) for one in binder} <= here
    needed = [*PROJECT["project"]["dependencies"], *EXTRAS["models"]]
    assert names([Requirement(line) for line in needed]) - {"torch"} <= names(binder)
    assert not names(binder) & {"jupyterlab", "jupyter-server", "notebook"}
    assert (ROOT / "binder" / "runtime.txt").read_text() == "python-3.12\n"


@pytest.mark.parametrize("tier, needed", [("browser", {"playwright", "jupyter-repo2docker"}), ("engines", {"ray", "pyarrow"})])
def test_the_lock_of_a_tier_adds_to_the_lock_and_contradicts_nothing(tier, needed):
    more = requirements(f"tests/{tier}/requirements.lock")
    assert needed <= names(more)
    assert not names(more) & names(LOCK)


def test_the_lock_says_what_is_downloaded():
    head = (ROOT / "requirements.lock").read_text()
    for what in ("MB to download, packages: linux", "MB to download, torch: linux", "MB of disk: cpu"):
        assert f"# {what} " in head
