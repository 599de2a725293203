"""Write the locks from pyproject.toml: requirements.lock, those of tests/browser and tests/engines, binder/requirements.txt.

    python -m tools.build_lock      needs uv on PATH, the `packaging` module and the network

requirements.lock pins every package but torch for Linux, Windows and macOS and each Python in PYTHONS. torch stays out
because which build is right (CPU, CUDA, macOS) depends on the machine: run.py chooses. What torch itself needs is in,
so that no step resolves anything by itself.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from packaging.markers import Marker
from packaging.tags import Tag, compatible_tags, cpython_tags, mac_platforms
from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = [(3, 11), (3, 12), (3, 13), (3, 14)]
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# The CPU index tells no sizes; this is torch-2.13.0+cpu for Linux x86_64. Look it up again when the pin moves.
LINUX_CPU_TORCH_MB = {"2.13.0": 192}
# What .venv took after `run.py` had made it with pip, rounded up, with room for pip's temporary files.
DISK_MB = {"cpu": 2500, "cuda": 9000}
MACHINES = {
    "linux": {
        "marker": {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix",
                   "platform_machine": "x86_64"},
        "platforms": [*(f"manylinux_2_{minor}_x86_64" for minor in range(28, 4, -1)), "manylinux2014_x86_64",
                      "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"],
    },
    "windows": {
        "marker": {"sys_platform": "win32", "platform_system": "Windows", "os_name": "nt",
                   "platform_machine": "AMD64"},
        "platforms": ["win_amd64"],
    },
    "macos": {
        "marker": {"sys_platform": "darwin", "platform_system": "Darwin", "os_name": "posix",
                   "platform_machine": "arm64"},
        "platforms": list(mac_platforms((14, 0), "arm64")),
    },
}


def compile_pins(requirements: list[str], *options: str, overrides: list[str] = ()) -> str:
    """Return what `uv pip compile` makes of the requirements, without comments."""
    with tempfile.TemporaryDirectory() as folder:
        wanted, override = Path(folder, "wanted.in"), Path(folder, "override.in")
        wanted.write_text("\n".join(requirements) + "\n")
        override.write_text("\n".join(overrides) + "\n")
        command = ["uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", str(wanted), "--override",
                   str(override), *options]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=folder).stdout


def name_of(requirement: str) -> str:
    return re.match(r"[A-Za-z0-9._-]+", requirement)[0].lower().replace("_", "-")


def strip_never(lock: str) -> str:
    """Drop torch, and unmark what only torch needs: uv marked it with torch's own `never`."""
    lines = []
    for line in lock.splitlines():
        if name_of(line) != "torch":
            line = re.sub(r" and sys_platform == 'never'$| ; sys_platform == 'never'$", "", line)
            lines.append(line)
    if any("never" in line for line in lines):
        raise SystemExit("uv wrote a marker with 'never' in a form that strip_never does not know.")
    return "\n".join(lines) + "\n"


def applies(marker: str | None, machine: str, python: tuple[int, int]) -> bool:
    version = ".".join(map(str, python))
    environment = {**MACHINES[machine]["marker"], "python_version": version, "python_full_version": f"{version}.1",
                   "implementation_name": "cpython", "platform_python_implementation": "CPython"}
    return marker is None or Marker(marker).evaluate(environment)


def size(package: dict, machine: str, python: tuple[int, int]) -> int:
    """Return the bytes of the wheel that this machine and Python would download; 0 when it needs none."""
    if not applies(package.get("marker"), machine, python):
        return 0
    version = ".".join(map(str, python))
    platforms, interpreter = MACHINES[machine]["platforms"], f"cp{version.replace('.', '')}"
    tags: list[Tag] = [*cpython_tags(python, platforms=platforms, abis=[interpreter]),
                       *compatible_tags(python, interpreter, platforms)]
    sizes = {}
    for wheel in package.get("wheels", []):
        for tag in parse_wheel_filename(wheel["url"].rsplit("/", 1)[1])[3]:
            sizes[tag] = wheel["size"]
    best = next((tag for tag in tags if tag in sizes), None)
    if best is None:
        # A learner's machine has no compiler, so say it when the pin moves, not when they install.
        name = f"{package['name']} {package['version']}"
        print(f"warning: {name} has no wheel for {machine}, Python {version}", file=sys.stderr)
        return package.get("sdist", {}).get("size", 0)
    return sizes[best]


def megabytes(pylock: str, machine: str, pythons: list[tuple[int, int]] = PYTHONS) -> int:
    """Return the download of the lock on a machine in MB (10**6 bytes): that of the Python for which it is largest."""
    packages = tomllib.loads(pylock)["packages"]
    return round(max(sum(size(package, machine, python) for package in packages) for python in pythons) / 1e6)


def main() -> None:
    if not shutil.which("uv"):
        raise SystemExit("This needs uv on PATH: https://docs.astral.sh/uv/")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pins, extras = project["tool"]["labutils"]["pins"], project["project"]["optional-dependencies"]
    torch = f"torch=={pins['torch']}"

    def pinned(requirements: list[str]) -> list[str]:
        return [f"{name_of(one)}=={pins[name_of(one)]}" if name_of(one) in pins else one for one in requirements]

    run_time = pinned(project["project"]["dependencies"] + extras["models"])
    everything = run_time + pinned(extras["lab"] + extras["test"])
    universal = ["--universal", "--python-version", ".".join(map(str, PYTHONS[0]))]
    never = [f"{torch} ; sys_platform == 'never'"]
    lock = strip_never(compile_pins(everything, *universal, overrides=never))
    pylock = compile_pins(lock.splitlines(), *universal, "--no-deps", "--format", "pylock.toml")
    # torch alone is one wheel. With CUDA, which the package index has for Linux only, come a few GB of libraries.
    torch_alone = compile_pins([torch], *universal, "--no-deps", "--format", "pylock.toml")
    linux = ["--python-platform", "linux", "--python-version", "3.12"]
    torch_cuda = compile_pins([torch], *linux, "--format", "pylock.toml")
    torch_mb = {machine: megabytes(torch_alone, machine) for machine in MACHINES}
    torch_mb |= {"linux": LINUX_CPU_TORCH_MB[pins["torch"]], "cuda": megabytes(torch_cuda, "linux", [(3, 12)])}

    def table(values: dict[str, int]) -> str:
        return ", ".join(f"{name} {value}" for name, value in values.items())

    packages_mb = {machine: megabytes(pylock, machine) for machine in MACHINES}
    first, last = (".".join(map(str, python)) for python in (PYTHONS[0], PYTHONS[-1]))
    (ROOT / "requirements.lock").write_text(f"""\
# Every package of the course but torch, at the versions that the lessons were built and tested with, for Linux, Windows
# and macOS, Python {first} to {last}. Made by tools/build_lock.py from pyproject.toml; not edited by hand.
# torch {pins["torch"]} is installed before, in the build for the machine: see run.py, which reads the next three lines.
# MB to download, packages: {table(packages_mb)}
# MB to download, torch: {table(torch_mb)}
# MB of disk: {table(DISK_MB)}
""" + lock)

    constrained = ["--constraint", str(ROOT / "requirements.lock")]
    ours = {line.partition(" ; ")[0] for line in lock.splitlines()}
    for tier, extra in (("browser", "browser"), ("engines", "ray")):
        wanted = compile_pins(extras[extra], *universal, *constrained).splitlines()
        more = [line for line in wanted if line.partition(" ; ")[0] not in ours]
        (ROOT / "tests" / tier / "requirements.lock").write_text(
            "# What the tests in this folder need on top of ../../requirements.lock. Made by tools/build_lock.py from the\n"
            f"# extra `{extra}`; not edited by hand.\n" + "\n".join(more) + "\n")

    binder = []
    for line in strip_never(compile_pins(run_time, *universal, *constrained, overrides=never)).splitlines():
        pin, _, marker = line.partition(" ; ")
        if applies(marker or None, "linux", (3, 12)):
            binder.append(pin)
    (ROOT / "binder" / "requirements.txt").write_text(
        "# What mybinder.org installs: the pins of requirements.lock for Linux and Python 3.12, without JupyterLab,\n"
        "# which Binder's own image brings. Made by tools/build_lock.py; not edited by hand.\n"
        f"--extra-index-url {CPU_INDEX}\n{torch}+cpu\n" + "\n".join(binder) + "\n")


if __name__ == "__main__":
    main()
