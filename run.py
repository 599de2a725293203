#!/usr/bin/env python3
"""The commands of the course: `python run.py lab`, `python run.py test` and more. Each needs nothing but Python: what
is missing is set up first, in .venv.

Standard library only. The whole file has to parse and import on Python 3.6, so that an old Python gets a sentence and
not a SyntaxError.
"""

import contextlib
import errno
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

OLDEST, NEWEST = (3, 11), (3, 14)  # the Pythons that requirements.lock and the pinned torch have wheels for
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CUDA_INDEX = "https://download.pytorch.org/whl/cu130"

ROOT = Path(__file__).resolve().parent
LOCK = ROOT / "requirements.lock"
BUILD = ROOT / "build"
LOG = BUILD / "setup.log"
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
OURS = VENV / "made_by_run_py.txt"  # written first: without it .venv is somebody's own and is left alone
FINISHED = VENV / "finished.txt"  # written last: without it .venv is half-made and is made again

# What a failed step printed, and what to say about it. The first that is found counts.
SIGNS = [
    (r"No space left on device|Errno 28|os error 28|not enough space on the disk|os error 112|Disk quota exceeded",
     "The disk is full. Free some space"),
    (r"ensurepip is not available|No module named '?ensurepip|No module named '?venv",
     "This Python ({python}) lacks its module venv or ensurepip. On Debian and Ubuntu install it with "
     "`sudo apt install python{version}-venv`, elsewhere install Python from https://www.python.org"),
    (r"Windows Long Path support",
     "The path of this folder is too long for Windows. Move the course to a short one, such as C:\\course"),
    (r"(?i)certificate.?verify.?failed|invalid peer certificate",
     "The package index could not be trusted: a proxy or virus scanner on this network puts its own certificate in "
     "between. Point PIP_CERT and SSL_CERT_FILE to the certificate file of your network, or use another network"),
    (r"(?i)Read-only file system|Permission denied|PermissionError|Access is denied",
     "A file could not be written. Close JupyterLab, editors and terminals that use .venv, and keep the course in a "
     "folder of your own"),
    (r"(?i)NameResolution|NewConnection|ConnectTimeout|Read timed out|Max retries|ConnectionError|ProxyError|"
     r"Connection (?:refused|reset|aborted|broken)|Network is unreachable|dns error|error sending request|client error",
     "No connection to the package index{hosts}. Check the network (behind a proxy set HTTPS_PROXY)"),
    (r"No matching distribution|Could not find a version|network was disabled|Network connectivity is disabled|"
     r"not found in the (?:package registry|cache|provided)|has no wheels|there is no version of|no versions? of",
     "No package index that may be used here offers {missing} for Python {version} on {system}. Connect to the network "
     "and lift what keeps pip or uv offline (PIP_NO_INDEX, UV_OFFLINE, pip.conf)"),
]


class Problem(Exception):
    """What went wrong and what cures it, in one sentence."""


# ---------------------------------------------------------------------------------------------------------- the set-up


def check_python(version=sys.version_info):
    """Refuse a Python for which there are no packages."""
    if not OLDEST <= tuple(version[:2]) <= NEWEST:
        raise Problem(
            "The course needs Python {}.{} to {}.{}, and this is Python {}.{}: get one from https://www.python.org and "
            "run this file with it, for example as python{}.{} run.py.".format(*OLDEST, *NEWEST, *version[:2], *NEWEST)
        )


def pins() -> dict:
    """Return what the lock pins on purpose, from pyproject.toml."""
    import tomllib  # not in the Pythons that check_python has to refuse

    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["labutils"]["pins"]


def megabytes(what: str) -> dict:
    """Return the figures of one `# MB ...` line at the head of requirements.lock."""
    line = re.search(rf"^# MB {what}: (.*)$", LOCK.read_text(encoding="utf-8"), re.MULTILINE)
    return {name: int(value) for name, value in (one.split() for one in line[1].split(","))} if line else {}


def torch_build() -> str:
    """Return which torch this machine gets: "cpu", "cuda" or the address of an index that has it. LAB_TORCH decides."""
    wanted = os.environ.get("LAB_TORCH", "").strip()
    if wanted:
        if wanted not in ("cpu", "cuda") and "://" not in wanted:
            raise Problem(f"LAB_TORCH is {wanted!r}; it can be cpu, cuda or the address of a package index.")
        return wanted
    if sys.platform == "darwin":
        return "cpu"
    try:
        answer = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return "cpu"
    return "cuda" if answer.returncode == 0 and b"GPU " in answer.stdout else "cpu"


def torch_arguments(build: str) -> list:
    """Return what pip or uv has to be asked for to get that build of torch."""
    version, linux = pins()["torch"], sys.platform.startswith("linux")
    if build == "cpu" and linux:
        # The package index has CUDA builds for Linux, of several GB. "+cpu" can never mean one of them.
        return [f"torch=={version}+cpu", "--no-deps", "--extra-index-url", CPU_INDEX]
    if build == "cpu":
        return [f"torch=={version}", "--no-deps"]
    index = build if "://" in build else CUDA_INDEX if os.name == "nt" else None
    # Libraries that such a build brings along are not in the lock; what it shares with the lock comes from there.
    return [f"torch=={version}", "--constraint", str(LOCK), *(["--extra-index-url", index] if index else [])]


def stamp(build: str) -> str:
    """Return what FINISHED holds when .venv is what this checkout asks for."""
    wanted = [LOCK.read_text(encoding="utf-8"), sorted(pins().items()), sys.version_info[:2], str(ROOT)]
    return f"{hashlib.sha256(repr(wanted).encode()).hexdigest()}\n{build}\n"


def is_finished() -> bool:
    """Is .venv whole and up to date? Takes milliseconds: it is asked at every command."""
    try:
        found = FINISHED.read_text(encoding="utf-8")
    except OSError:
        return False
    # Looking for a GPU takes seconds on some machines, so what was found once holds until .venv is deleted.
    build = os.environ.get("LAB_TORCH", "").strip() or found.strip().rpartition("\n")[2]
    return found == stamp(build) and PYTHON.exists()


@contextlib.contextmanager
def one_at_a_time():
    """Hold a lock on the set-up of this folder; wait while another process holds it."""
    BUILD.mkdir(exist_ok=True)
    with (BUILD / "setup.lock").open("w") as file:
        if os.name == "nt":
            import msvcrt

            def is_taken():
                try:
                    msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
                except OSError:
                    return True
        else:
            import fcntl

            # An installer that outlives a killed run.py keeps the lock until it, too, is done: it inherits the file.
            os.set_inheritable(file.fileno(), True)

            def is_taken():
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return True
                except OSError:  # a network drive without locks: better unlocked than not at all
                    return False

        if is_taken():
            print("Another run.py, or an installer that it left behind, sets up this folder: waiting for it to end.",
                  flush=True)
            while is_taken():
                time.sleep(0.3)
        yield


def clean_environment(**settings) -> dict:
    """Return the environment of the processes that run.py starts, without what would mix other Pythons into .venv."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return {**kept, "VIRTUAL_ENV": str(VENV), **settings}


def uv_environment() -> dict:
    """Return settings that make uv look where pip is told to look: uv does not read pip's."""
    found = {}
    listed = subprocess.run([str(PYTHON), "-m", "pip", "config", "list"], stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL, text=True)
    for name, uv_name, separator in (("find-links", "UV_FIND_LINKS", ","), ("index-url", "UV_DEFAULT_INDEX", " ")):
        value = re.search(rf"^(?:global|install|:env:)\.{name}='(.*)'$", listed.stdout, re.MULTILINE)
        if value and uv_name not in os.environ:
            found[uv_name] = separator.join(value[1].replace("\\n", " ").split())
    return found


def show(text: str) -> None:
    """Rewrite the last line of a terminal."""
    width = shutil.get_terminal_size().columns - 1
    sys.stdout.write("\r" + text[:width].ljust(width))
    sys.stdout.flush()


def run_logged(command: list, title: str, environment: dict) -> None:
    """Run a command with its output in the log and, on a terminal, its last line on show. Raise when it failed."""
    started, lines, now = time.monotonic(), [], [""]
    process = subprocess.Popen(
        [str(part) for part in command], cwd=str(ROOT), env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, close_fds=False,
    )

    def read():
        with LOG.open("a", encoding="utf-8", buffering=1) as log:
            log.write("\n$ " + " ".join(map(str, command)) + "\n")
            for raw in process.stdout:
                line = raw.decode("utf-8", "replace").strip()
                # `--progress-bar raw` of pip counts bytes, many times a second: shown, not logged.
                progress = re.match(r"Progress (\d+) of (\d+)$", line)
                if progress:
                    now[0] = "{:.0f} of {:.0f} MB".format(*(int(count) / 1e6 for count in progress.groups()))
                else:
                    # A warning is nothing to worry about while the step goes on: an index that did not answer at once.
                    now[0] = now[0] if line.startswith("WARNING") else line
                    lines.append(line)
                    log.write(line + "\n")

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        while reader.is_alive():
            reader.join(0.2)
            if sys.stdout.isatty():
                show(f"{title}: {time.monotonic() - started:.0f} s  {now[0]}")
        process.wait()
    except BaseException:
        process.kill()
        process.wait()
        raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, "\n".join(lines))


def step(title: str, *ways, environment: dict) -> None:
    """Do one step of the set-up in the first of the ways (commands) that works, or say why none did."""
    started = time.monotonic()
    if not sys.stdout.isatty():
        print(title, end=": ", flush=True)
    for way in ways:
        try:
            run_logged(way, title, environment)
            break
        except subprocess.CalledProcessError as failure:
            failed = failure
    else:
        print(flush=True)
        raise Problem(explain(title, failed.output, failed.returncode))
    seconds = f"{time.monotonic() - started:.0f} s"
    if sys.stdout.isatty():
        show(f"{title}: {seconds}")
        print(flush=True)
    else:
        print(seconds, flush=True)


def explain(title: str, output: str, status: int) -> str:
    """Return one sentence on why a step failed, with the cure."""
    hosts = sorted(set(re.findall(r"(?:host='|fetch: `https?://)([\w.-]+)", output)))
    missing = re.search(r"(?:satisfies the requirement|distribution found for|version of) ([\w.+=-]+)", output)
    known = {
        "hosts": " ({})".format(", ".join(hosts)) if hosts else "",
        "missing": missing[1] if missing else "a package of the course",
        "python": sys.executable, "version": "{}.{}".format(*sys.version_info[:2]),
        "system": f"{platform.system()} {platform.machine()}",
    }
    for pattern, sentence in SIGNS:
        if re.search(pattern, output):
            return f"{sentence.format(**known)}; then run the same command again. (Step: {title}. Log: {LOG})"
    last = next((line for line in reversed(output.splitlines()) if line.strip()), "it printed nothing")
    if status in (-9, 137):
        last = "it was killed, perhaps for want of memory"
    return f"The set-up stopped at the step {title!r}: {last.strip()[:300]}; the whole output is in {LOG}."


def installers(arguments: list) -> list:
    """Return the commands that install these arguments into .venv: uv's, where there is one, then pip's."""
    # Older Pythons bring a pip without "raw": then the live line shows pip's last message only.
    bar = "raw" if sys.version_info >= (3, 12, 5) and sys.stdout.isatty() else "off"
    pip = [PYTHON, "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--progress-bar", bar]
    uv = shutil.which("uv")
    return ([[uv, "pip", "install", "--python", PYTHON, *arguments]] if uv else []) + [[*pip, *arguments]]


def make_venv() -> None:
    """Make .venv from nothing. Whatever was left by a run that did not finish is deleted first."""
    if VENV.exists() and not OURS.exists() and any(VENV.iterdir()):
        raise Problem(f"{VENV} was not made by run.py, which therefore leaves it alone: rename or delete that folder, "
                      "then run the same command again.")
    LOG.write_text("", encoding="utf-8")
    old = BUILD / "old-venv"
    shutil.rmtree(str(old), ignore_errors=True)
    if VENV.exists():
        VENV.rename(old)  # at one stroke: a deletion that is killed half-way must not leave a .venv that looks foreign
        shutil.rmtree(str(old), ignore_errors=True)

    build = torch_build()
    here = "windows" if os.name == "nt" else "macos" if sys.platform == "darwin" else "linux"
    packages_mb = megabytes("to download, packages").get(here, 0)
    torch_mb = megabytes("to download, torch").get(here if build == "cpu" else "cuda", 0)
    disk_mb = megabytes("of disk").get("cpu" if build == "cpu" else "cuda", 0)
    free_mb = shutil.disk_usage(str(ROOT)).free / 1e6
    if free_mb < disk_mb:
        raise Problem(f"The disk of {ROOT} has {free_mb:,.0f} MB free and the set-up needs about {disk_mb:,} MB: free "
                      "some space, then run the same command again.")
    print(f"Setting up {VENV}, once. To download: up to {torch_mb + packages_mb:,} MB (torch {torch_mb:,}, other "
          f"packages {packages_mb:,}). What the installers print is kept in {LOG}", flush=True)

    VENV.mkdir()
    OURS.write_text("run.py made this folder and deletes it when it has to be made again.\n", encoding="utf-8")
    # From inside .venv itself, sys.executable is the file that is about to be replaced.
    python = getattr(sys, "_base_executable", None) or sys.executable
    uv = shutil.which("uv")
    environment = clean_environment(PIP_USER="0", PIP_RETRIES="2", UV_HTTP_RETRIES="2", NO_COLOR="1", PYTHONUTF8="1")
    step("1/4 Python environment", [python, "-m", "venv", VENV],
         *([[uv, "venv", "--allow-existing", "--python", python, VENV]] if uv else []), environment=environment)
    if uv:
        environment.update(uv_environment())
    step(f"2/4 torch {pins()['torch']} ({build})", *installers(torch_arguments(build)), environment=environment)
    step("3/4 JupyterLab, transformers and the other packages", *installers(["-r", LOCK]), environment=environment)
    # Its build tools came with the lock, so that this needs no network.
    step("4/4 labutils", *installers(["--no-deps", "--no-build-isolation", "-e", ROOT]), environment=environment)
    settings = VENV / "share" / "jupyter" / "lab" / "settings"
    settings.mkdir(parents=True, exist_ok=True)
    # Without this JupyterLab's first act is to ask whether it may fetch news.
    quiet = {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}}
    (settings / "overrides.json").write_text(json.dumps(quiet, indent=2) + "\n", encoding="utf-8")
    FINISHED.write_text(stamp(build), encoding="utf-8")


def set_up() -> None:
    """Make sure that .venv is whole and up to date."""
    if is_finished():
        return
    with one_at_a_time():
        if not is_finished():
            make_venv()


# ------------------------------------------------------------------------------------------------------------ the jobs


def start(command: list, stdout=None, **settings) -> subprocess.Popen:
    """Start a command of .venv's Python in the project's folder."""
    # With its own file for what it says, errors stand between the other lines.
    stderr = subprocess.STDOUT if hasattr(stdout, "write") else None
    return subprocess.Popen([str(PYTHON), *map(str, command)], cwd=str(ROOT), env=clean_environment(**settings),
                            stdout=stdout, stderr=stderr)


def wait(*processes: subprocess.Popen) -> int:
    """Wait for all of them to end; return the first exit status that is not 0."""
    # Ctrl-C reaches both: what it means is for the command to say (JupyterLab asks), and run.py waits for it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: [process.terminate() for process in processes])
    statuses = [process.wait() for process in processes]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return next((status if status > 0 else 128 - status for status in statuses if status), 0)


def call(command: list, stdout=None, **settings) -> int:
    """Run a command of .venv's Python in the project's folder until it ends; return its exit status."""
    return wait(start(command, stdout, **settings))


def prepare(**settings) -> None:
    """Fetch and convert the checkpoints of the lessons; quick when that is done. It says itself how much it fetches."""
    status = call(["-m", "labutils", "prepare"], stdout=subprocess.DEVNULL, **settings)  # stdout lists folders
    if status:
        raise SystemExit(status)


def pinned_settings(progress: str, threads: str = "2") -> dict:
    """Return the settings under which outputs are stored and compared, whatever the learner has set."""
    return {
        "LAB_PROFILE": "bundled", "LAB_DEVICE": "cpu", "LAB_PROGRESS": progress,
        "OMP_NUM_THREADS": os.environ.get("LAB_THREADS", threads), "OMP_WAIT_POLICY": "PASSIVE",
    }


# The paths of each tier of tests. Every output of the notebooks is compared with the stored one.
TIERS = {
    "unit": ["tests/unit", "tests/notebooks"], "notebooks": ["notebooks"], "editions": ["tests/editions"],
    "browser": ["tests/browser"], "engines": ["tests/engines"],
}
NBVAL = ["-p", "tests.notebooks.strict", "--nbval", "--nbval-current-env", "--nbval-cell-timeout=180",
         "--nbval-sanitize-with=tests/notebooks/sanitize.cfg"]


def pytest_command(tier: str, arguments: list) -> list:
    """Return the command of a tier; arguments that name files or tests replace its paths."""
    named = any("/" in one and (ROOT / one.partition("::")[0]).exists() for one in arguments)
    compare = NBVAL if tier == "notebooks" or any(".ipynb" in one for one in arguments) else []
    return ["-m", "pytest", *compare, *([] if named else TIERS[tier]), *arguments]


def pytest(tier: str, arguments: list, **settings) -> int:
    """Run a tier with the learner's progress out of reach."""
    with tempfile.TemporaryDirectory() as progress:
        settings = {**pinned_settings(progress), **settings}
        prepare(**settings)
        return call(pytest_command(tier, arguments), **settings)


def lab(arguments: list) -> int:
    """open the lessons in JupyterLab; what follows goes to it (--no-browser, --port=9999)"""
    prepare()
    root = ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    return call(["-m", "jupyterlab", "--ip=127.0.0.1", f"--ServerApp.root_dir={ROOT}",
                 "--LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb", *root, *arguments])


def test(arguments: list) -> int:
    """run all tests; what follows goes to pytest (--capped: the notebooks only, as on an older processor)"""
    if "--capped" in arguments:
        capped = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
        return pytest("notebooks", [one for one in arguments if one != "--capped"], **capped)
    if arguments:
        return pytest("unit", arguments)
    # Two halves, a core each: the notebooks compare their outputs while the unit tests run.
    said = ROOT / "build" / "notebooks.log"
    said.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other, said.open("w") as log:
        prepare(**pinned_settings(one))
        halves = [start(pytest_command("notebooks", []), log, **pinned_settings(one, threads="1")),
                  start(pytest_command("unit", []), **pinned_settings(other, threads="1"))]
        status = wait(*halves)
    print(said.read_text(encoding="utf-8", errors="replace"), flush=True)
    return status


def editions(arguments: list) -> int:
    """run the solved editions, whose every answer must be right, and build each notebook again, equal to the byte"""
    return pytest("editions", arguments)


def build(arguments: list) -> int:
    """write the notebooks and README.md from their sources; what follows names lessons (build 03)"""
    with tempfile.TemporaryDirectory() as progress:
        settings = pinned_settings(progress)
        prepare(**settings)
        return (call(["-m", "tools.build_notebooks", *arguments], **settings)
                or call(["-m", "tools.build_readme"], **settings))


def doctor(arguments: list) -> int:
    """say what this machine is and whether the course is set up well"""
    return call(["-m", "labutils", "doctor", *arguments])


def with_packages(tier: str, arguments: list) -> int:
    """Run a tier that needs the packages of its own lock on top of the others."""
    more = ROOT / "tests" / tier / "requirements.lock"
    stamp_file, wanted = VENV / f"{tier}.txt", hashlib.sha256(more.read_bytes()).hexdigest()
    if not (stamp_file.exists() and stamp_file.read_text() == wanted):
        with one_at_a_time():
            environment = clean_environment(PIP_USER="0")
            step(f"packages for the {tier} tests", *installers(["-r", more, "-c", LOCK]), environment=environment)
            stamp_file.write_text(wanted)
    return pytest(tier, arguments)


def browser(arguments: list) -> int:
    """run the tests that need Chromium, which has to be installed already; what follows goes to pytest"""
    return with_packages("browser", arguments)


def engines(arguments: list) -> int:
    """run the tests that need engines and clusters, such as Ray; what follows goes to pytest"""
    return with_packages("engines", arguments)


def bench(arguments: list) -> int:
    """run a benchmark of benchmarks/ (bench throughput); what follows goes to it (--quick: a small one)"""
    known = sorted(one.stem for one in (ROOT / "benchmarks").glob("*.py") if "__main__" in one.read_text(encoding="utf-8"))
    if not arguments or arguments[0] not in known:
        raise Problem(f"name a benchmark: {', '.join(known)}. See benchmarks/README.md.")
    prepare()
    return call(["-m", f"benchmarks.{arguments[0]}", *arguments[1:]], OMP_WAIT_POLICY="PASSIVE")


JOBS = {job.__name__: job for job in (lab, test, build, doctor, editions, browser, engines, bench)}


def main(arguments: list) -> int:
    check_python()
    if not arguments or arguments[0] not in JOBS:
        print("python run.py COMMAND, where COMMAND is one of\n")
        for name, job in JOBS.items():
            print(f"  {name:9}{job.__doc__}")
        return 0 if arguments[:1] in (["-h"], ["--help"], ["help"]) else 2
    set_up()
    return JOBS[arguments[0]](arguments[1:])


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Problem as problem:
        sys.exit(f"run.py: {problem}")
    except KeyboardInterrupt:
        print("\nrun.py: stopped. The same command starts again where that is safe.", file=sys.stderr)
        sys.exit(130)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            sys.exit(f"run.py: The disk of {ROOT} is full. Free some space; then run the same command again.")
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            sys.exit(f"run.py: {error.filename or ROOT} cannot be written ({error.strerror}). Close what uses it, or "
                     "copy the course to a folder of your own; then run the same command again.")
        raise
