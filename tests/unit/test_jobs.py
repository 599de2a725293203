"""A job ends with the same bytes however it was killed; what cannot be answered is named; what does not fit is refused."""

import errno
import json
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from labutils import jobs
from labutils.__main__ import main
from labutils.jobs import journal, lines
from tests.unit.stand_ins import Broken, DiesOnce, Echo

ROOT = Path(__file__).resolve().parents[2]
POSIX = pytest.mark.skipif(os.name != "posix", reason="signals, file size limits and tmpfs are POSIX")


def write(path: Path, number: int, bad: bool = True) -> Path:
    """Write prompts; with `bad`, one line in eleven is not JSON, one in thirteen blank, one too long for the engine."""
    with path.open("w", encoding="utf-8") as file:
        for at in range(number):
            line = json.dumps({"id": f"q{at}", "prompt": f"Frage {at}: wie heißt die Hauptstadt von Land {at % 97}?"})
            line = "{oops" if bad and at % 11 == 5 else "" if bad and at % 13 == 7 else line
            file.write((json.dumps({"prompt": "too long"}) if bad and at == 17 else line) + "\n")
    return path


def everything(output: Path) -> tuple[bytes, bytes]:
    rejects = output.with_name(f"{output.stem}.rejects.jsonl")
    return output.read_bytes(), rejects.read_bytes() if rejects.exists() else b""


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def prompts(tmp_path) -> Path:
    return write(tmp_path / "prompts.jsonl", 200)


@pytest.fixture
def wanted(prompts, tmp_path) -> tuple[bytes, bytes]:
    """What an undisturbed run writes."""
    jobs.run(prompts, tmp_path / "whole.jsonl", Echo(), chunk=5)
    return everything(tmp_path / "whole.jsonl")


def command(prompts: Path, output: Path, *more: object) -> list[str]:
    return [sys.executable, "-m", "tests.unit.stand_ins", str(prompts), str(output), *map(str, more)]


# --- what is written --------------------------------------------------------------------------------------------------


def test_answers_keep_order_and_id_and_have_counts(prompts, tmp_path):
    found = jobs.run(prompts, tmp_path / "out.jsonl", Echo(), chunk=7)
    answers, rejects = read(tmp_path / "out.jsonl"), read(tmp_path / "out.rejects.jsonl")
    assert [one["line"] for one in answers] == sorted(one["line"] for one in answers)
    first = "Frage 0: wie heißt die Hauptstadt von Land 0?"
    assert answers[0] == {"index": 0, "line": 1, "id": "q0", "text": first[::-1], "prompt_tokens": len(first),
                          "new_tokens": len(first), "finish": "stop"}
    assert all(one["id"] == f"q{one['line'] - 1}" for one in answers)
    blank = sum(not line for line in prompts.read_text().splitlines())
    assert (found.lines, found.answers, found.rejected) == (200, len(answers), len(rejects)) and blank == 14
    assert len(answers) + len(rejects) + blank == 200
    # The index counts prompts: what is no prompt has none, and the one that the engine refused has used one up.
    indices = [one["index"] for one in answers]
    assert sorted(set(range(indices[-1] + 1)) - set(indices)) == [sum(one["line"] < 18 for one in answers)]
    assert {"line": 6, "reason": "not JSON: Expecting property name enclosed in double quotes at character 2",
            "begins": "{oops"} in rejects
    assert {"line": 18, "reason": "the prompt has 9 tokens and the window 8"} in rejects


@pytest.mark.parametrize("chunk, workers", [(1, 1), (200, 1), (13, 2)])
def test_chunks_and_workers_change_nothing(prompts, wanted, tmp_path, chunk, workers):
    jobs.run(prompts, tmp_path / "out.jsonl", Echo(), chunk=chunk, workers=workers)
    assert everything(tmp_path / "out.jsonl") == wanted


@pytest.mark.parametrize("raw, reason", [
    (b"nonsense", "not JSON"),
    (b'{"prompt": "a"', "not JSON"),
    (b'{"prompt": "a"} {"prompt": "b"}', "not JSON: Extra data"),
    (b'{"prompt": NaN}', "NaN is no JSON"),
    (b'{"prompt": "a", "id": ' + b"9" * 5000 + b"}", "not JSON"),
    (b"[" * 200_000, "nested too deeply"),
    (b'{"prompt": "\xff"}', "not UTF-8: byte 13"),
    (b"[1]", "a JSON object is needed, not a list"),
    (b"null", "a JSON object is needed, not null"),
    (b"{}", "neither prompt nor messages"),
    (b'{"prompt": "a", "messages": []}', "both"),
    (b'{"prompt": 5}', "prompt must be text, not a number"),
    (b'{"prompt": null}', "prompt must be text, not null"),
    (b'{"messages": []}', "at least one message"),
    (b'{"messages": "hi"}', "must be a list"),
    (b'{"messages": [{"role": "user", "content": "a"}, {"content": "b"}]}', "messages[1] must be an object with a role"),
    (b'{"messages": [{"role": "user", "content": 5}]}', "messages[0] must have content"),
    (b'{"prompt": "a", "max_tokens": 0}', "whole number from 1"),
    (b'{"prompt": "a", "max_tokens": true}', "whole number from 1"),
    (b'{"prompt": "a", "max_tokens": 1.0}', "whole number from 1"),
    (b'{"prompt": "a", "id": [1]}', "id must be text or a whole number, not a list"),
    (b'{"prompt": "a", "temperature": 0.5}', "temperature holds for the whole job"),
    (b'{"prompt": "a\\ud800b"}', "half of a surrogate pair"),
    (b'{"messages": [{"role": "user", "content": [{"type": "text", "text": "\\udc00"}]}]}', "half of a surrogate pair"),
    (b'\xef\xbb\xbf{"prompt": "not the first line"}', "not JSON"),
    (b"x" * (lines.MAX_LINE + 5), "longer than 16 MiB"),
])
def test_a_bad_line_is_rejected_with_its_number_and_reason(tmp_path, raw, reason):
    (tmp_path / "in.jsonl").write_bytes(b'{"prompt": "before"}\n' + raw + b'\n{"prompt": "after"}\n')
    found = jobs.run(tmp_path / "in.jsonl", tmp_path / "out.jsonl", Echo())
    [reject] = read(tmp_path / "out.rejects.jsonl")
    assert reject["line"] == 2 and reason in reject["reason"] and len(reject["begins"]) <= 80
    assert [one["text"] for one in read(tmp_path / "out.jsonl")] == ["erofeb", "retfa"] and found.rejected == 1


def test_what_is_no_fault(tmp_path):
    """A byte order mark, carriage returns, blank lines, no last line end, emoji as escapes, keys of one's own."""
    (tmp_path / "in.jsonl").write_bytes(
        b'\xef\xbb\xbf{"prompt": "a"}\r\n\r\n \t\n{"prompt": "\\ud83d\\ude00", "id": 7, "reason": "x", "line": 99}\n'
        b'{"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}')
    found = jobs.run(tmp_path / "in.jsonl", tmp_path / "out.jsonl", Echo())
    answers = read(tmp_path / "out.jsonl")
    assert [(one["index"], one["line"], one.get("id"), one["text"]) for one in answers] == [
        (0, 1, None, "a"), (1, 4, 7, "😀"), (2, 5, None, "ol")]
    assert found.rejects is None and not (tmp_path / "out.rejects.jsonl").exists()


def test_an_empty_input_makes_an_empty_output(tmp_path):
    (tmp_path / "in.jsonl").touch()
    assert jobs.run(tmp_path / "in.jsonl", tmp_path / "out.jsonl", Echo()).lines == 0
    assert (tmp_path / "out.jsonl").read_bytes() == b""


# --- killed and gone on with ------------------------------------------------------------------------------------------


@POSIX
def test_killed_within_a_write_at_50_random_points(prompts, wanted, tmp_path):
    """The process dies in the midst of a write to the output, the rejects or the journal; the next ends with the same."""
    jobs.run(prompts, tmp_path / "all.jsonl", Echo(), chunk=5, pause=0)
    total = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file() and "all." in str(path))
    chance = random.Random(7)
    points = [chance.randint(1, total - 1) for _ in range(50)]
    folder = tmp_path / "killed"
    folder.mkdir()
    done = subprocess.run(command(prompts, folder, "--kill", *points), cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.split() == ["-9"] * 50
    torn = [path for path in folder.rglob("*.jsonl") if _torn(path)]
    assert {re.sub(r"^\d+\.", "", path.name) for path in torn} == {"jsonl", "rejects.jsonl", "journal.jsonl"}
    for number, point in enumerate(points):
        found = jobs.run(prompts, folder / f"{number}.jsonl", Echo(), chunk=5)
        assert everything(folder / f"{number}.jsonl") == wanted, f"killed after {point} of {total} bytes"
        assert found.lines == 200


def _torn(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")


@POSIX
@pytest.mark.parametrize("workers", [1, 2])
def test_killed_from_outside_again_and_again(prompts, wanted, tmp_path, workers):
    output, chance, kills = tmp_path / "out.jsonl", random.Random(11), 0
    while True:
        process = subprocess.Popen(command(prompts, output, workers, 0.01), cwd=ROOT, stdout=subprocess.DEVNULL)
        before = _commits(output)
        while process.poll() is None and _commits(output) <= before:
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.1))
        if kills < 5:
            process.kill()
        if process.wait() == 0:
            break
        kills += 1
    assert kills >= 2 and everything(output) == wanted


def _commits(output: Path) -> int:
    file = output.with_name(f"{output.name}.job") / "journal.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


@pytest.mark.parametrize("cut", [1, 40, 3000, 10**9])
@pytest.mark.parametrize("which", ["out.jsonl", "out.rejects.jsonl", "out.jsonl.job/journal.jsonl"])
def test_a_file_that_lost_its_end_is_made_whole(prompts, wanted, tmp_path, which, cut):
    output = tmp_path / "out.jsonl"
    jobs.run(prompts, output, Echo(), chunk=5, pause=0)
    path = tmp_path / which
    left = max(0, path.stat().st_size - cut)
    if "journal" in which and not left:
        left = len(path.read_bytes().splitlines(keepends=True)[0])
    os.truncate(path, left)
    found = jobs.run(prompts, output, Echo(), chunk=5)
    assert everything(output) == wanted and found.lines == 200


def test_what_was_appended_behind_the_last_commit_is_cut_off(prompts, wanted, tmp_path):
    output = tmp_path / "out.jsonl"
    jobs.run(prompts, output, Echo(), chunk=5)
    with output.open("a") as file:
        file.write('{"index": 1, "te')
    assert jobs.run(prompts, output, Echo(), chunk=5).before == 200
    assert everything(output) == wanted


def test_a_finished_job_does_not_load_the_engine_and_goes_on_when_the_input_grows(prompts, wanted, tmp_path):
    output = tmp_path / "out.jsonl"
    jobs.run(prompts, output, Echo(), chunk=5)
    found = jobs.run(prompts, output, Broken(), chunk=5)
    assert (found.before, found.lines) == (200, 200)
    with prompts.open("a") as file:
        file.write('{"prompt": "one more"}\n')
    assert jobs.run(prompts, output, Echo(), chunk=5).lines == 201
    assert everything(output)[0].startswith(wanted[0]) and read(output)[-1]["text"] == "erom eno"


# --- workers ----------------------------------------------------------------------------------------------------------


@POSIX
def test_a_killed_worker_is_noticed_and_its_chunk_is_done_again(prompts, wanted, tmp_path):
    once = "Frage 101: wie heißt die Hauptstadt von Land 4?"
    engine = DiesOnce(once=once, mark=str(tmp_path / "mark"))
    jobs.run(prompts, tmp_path / "out.jsonl", engine, chunk=5, workers=2)
    assert (tmp_path / "mark").exists() and everything(tmp_path / "out.jsonl") == wanted
    assert not multiprocessing.active_children()


@POSIX
def test_a_chunk_that_kills_every_worker_is_named(prompts, wanted, tmp_path):
    engine = Echo(deadly="Frage 101: wie heißt die Hauptstadt von Land 4?")
    with pytest.raises(jobs.JobError, match="Lines 101 to 105 cost 3 workers; the last one was killed by signal 9"):
        jobs.run(prompts, tmp_path / "out.jsonl", engine, chunk=5, workers=2)
    jobs.run(prompts, tmp_path / "out.jsonl", Echo(), chunk=5)
    assert everything(tmp_path / "out.jsonl") == wanted


@pytest.mark.parametrize("workers", [1, 2])
def test_a_fault_of_the_engine_stops_the_job(prompts, tmp_path, workers):
    with pytest.raises((jobs.JobError, RuntimeError), match="no more memory"):
        jobs.run(prompts, tmp_path / "out.jsonl", Broken(), workers=workers)
    with pytest.raises(jobs.JobError, match="answers for .* prompts"):
        jobs.run(prompts, tmp_path / "out.jsonl", Broken(fault="short"), workers=workers)
    assert not multiprocessing.active_children()


@POSIX
def test_workers_end_with_their_parent(prompts, tmp_path):
    process = subprocess.Popen(command(prompts, tmp_path / "out.jsonl", 2, 30), cwd=ROOT)
    parent, until = psutil.Process(process.pid), time.monotonic() + 20
    while len(parent.children()) < 3 and time.monotonic() < until:      # two workers and multiprocessing's tracker
        time.sleep(0.05)
    children = parent.children()
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(children, timeout=15)
    assert len(children) == 3 and not alive


# --- what is refused --------------------------------------------------------------------------------------------------


def test_other_settings_are_refused_by_name(prompts, tmp_path):
    output = tmp_path / "out.jsonl"
    jobs.run(prompts, output, Echo(), chunk=5)
    before = everything(output)
    with pytest.raises(jobs.InputError, match='engine was "echo" and is now "other"'):
        jobs.run(prompts, output, Echo(name="other"), chunk=5)
    with pytest.raises(jobs.InputError, match="chunk was 5 and is now 6"):
        jobs.run(prompts, output, Echo(), chunk=6)
    assert everything(output) == before


def test_another_input_is_refused(prompts, tmp_path):
    output = tmp_path / "out.jsonl"
    jobs.run(prompts, output, Echo(), chunk=5)
    text = prompts.read_text()
    for other in (text.replace("Frage 151", "Frage 15x"), text[:-50], text[50:], ""):
        (tmp_path / "other.jsonl").write_text(other)
        with pytest.raises(jobs.InputError, match="is not the input that .*out.jsonl was begun with"):
            jobs.run(tmp_path / "other.jsonl", output, Echo(), chunk=5)
    (tmp_path / "other.jsonl").write_text(text.rstrip("\n"))
    jobs.run(tmp_path / "other.jsonl", tmp_path / "two.jsonl", Echo(), chunk=5)
    (tmp_path / "other.jsonl").write_text(text.rstrip("\n") + " more\n")
    with pytest.raises(jobs.InputError, match="Line 200 of .* has become longer since"):
        jobs.run(tmp_path / "other.jsonl", tmp_path / "two.jsonl", Echo(), chunk=5)


def test_an_output_that_somebody_changed_is_refused(prompts, tmp_path):
    output = tmp_path / "out.jsonl"
    jobs.run(prompts, output, Echo(), chunk=5)
    output.write_bytes(output.read_bytes().replace(b'"q3"', b'"q4"'))
    with pytest.raises(jobs.InputError, match="was changed since"):
        jobs.run(prompts, output, Echo(), chunk=5)
    (tmp_path / "out.jsonl.job" / "journal.jsonl").write_bytes(b"\0" * 50)
    with pytest.raises(jobs.InputError, match="is damaged"):
        jobs.run(prompts, output, Echo(), chunk=5)


def test_a_file_of_somebody_else_is_not_touched(prompts, tmp_path):
    for name in ("out.jsonl", "out.rejects.jsonl"):
        (tmp_path / name).write_text("mine\n")
        with pytest.raises(jobs.InputError, match=f"{name} exists, and there is no out.jsonl.job"):
            jobs.run(prompts, tmp_path / "out.jsonl", Echo())
        assert (tmp_path / name).read_text() == "mine\n"
        (tmp_path / name).unlink()


def test_two_processes_on_one_output_are_refused(prompts, wanted, tmp_path):
    output = tmp_path / "out.jsonl"
    process = subprocess.Popen(command(prompts, output, 1, 0.05), cwd=ROOT, stdout=subprocess.DEVNULL)
    while not _commits(output):
        time.sleep(0.01)
    with pytest.raises(jobs.InputError, match="Another process is at work on"):
        jobs.run(prompts, output, Echo(), chunk=5)
    assert process.wait() == 0 and everything(output) == wanted


# --- the disk ---------------------------------------------------------------------------------------------------------

LIMITED = """
import resource, sys
from labutils import jobs
from tests.unit.stand_ins import Echo
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
try:
    jobs.run(sys.argv[1], sys.argv[2], Echo(), chunk=5, pause=0)
except jobs.JobError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


@POSIX
@pytest.mark.parametrize("limit", [100, 900, 10_000, 20_000])
def test_a_file_that_may_not_grow_is_an_error_and_the_job_goes_on_later(prompts, wanted, tmp_path, limit):
    output = tmp_path / "out.jsonl"
    arguments = [sys.executable, "-c", LIMITED, prompts, output, str(limit)]
    done = subprocess.run(arguments, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and done.stderr.startswith("JobError") and done.stderr.count("\n") == 1
    assert "cannot grow: files may not become larger here" in done.stderr and "same command again" in done.stderr
    assert not output.exists() or not _torn(output)       # what was half written is gone
    jobs.run(prompts, output, Echo(), chunk=5)
    assert everything(output) == wanted


@POSIX
def test_a_full_disk_is_an_error_and_the_job_goes_on_later(prompts, wanted, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", disk], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    try:
        output = disk / "out.jsonl"
        with pytest.raises(jobs.JobError, match="cannot grow: the disk is full"):
            jobs.run(prompts, output, Echo(), chunk=5, pause=0)
        assert output.stat().st_size > 0 and wanted[0].startswith(output.read_bytes())
        subprocess.run(["mount", "-o", "remount,size=1m", disk], check=True)
        assert jobs.run(prompts, output, Echo(), chunk=5).before > 0
        assert everything(output) == wanted
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize("number, words", [(errno.ENOSPC, "the disk is full"), (errno.EDQUOT, "quota"),
                                           (errno.EIO, "cannot be written: Input/output error")])
def test_every_write_may_fail_and_nothing_is_lost(prompts, wanted, tmp_path, monkeypatch, number, words):
    """Each of the first writes fails in turn, in the journal too."""
    real = os.write
    for failing in range(1, 9):
        output, count = tmp_path / f"{number}-{failing}.jsonl", 0

        def write(file, data, failing=failing):
            nonlocal count
            count += 1
            if count == failing:
                raise OSError(number, os.strerror(number))
            return real(file, data)

        monkeypatch.setattr(journal.os, "write", write)
        with pytest.raises(jobs.JobError, match=words):
            jobs.run(prompts, output, Echo(), chunk=5, pause=0)
        monkeypatch.undo()
        jobs.run(prompts, output, Echo(), chunk=5)
        assert everything(output) == wanted


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments, words", [
    (["-", "-o", "{}/o.jsonl"], "standard input cannot be read again"),
    (["{}/none.jsonl", "-o", "{}/o.jsonl"], "none.jsonl does not exist"),
    (["{}", "-o", "{}/o.jsonl"], "is no regular file"),
    (["{}/prompts.jsonl", "-o", "{}/prompts.jsonl"], "is the input as well"),
    (["{}/prompts.jsonl", "-o", "{}/none/o.jsonl"], "There is no folder"),
    (["{}/prompts.jsonl", "-o", "{}"], "is no regular file"),
    (["{}/prompts.jsonl", "-o", "/dev/full"], "is no regular file"),
    (["{}/prompts.jsonl", "-o", "{}/o.jsonl", "--chunk", "0"], "at least 1"),
    (["{}/prompts.jsonl", "-o", "{}/o.jsonl", "--workers", "0"], "at least 1"),
    (["{}/prompts.jsonl", "-o", "{}/o.jsonl", "--max-tokens", "0"], "at least 1"),
    (["{}/prompts.jsonl", "-o", "{}/o.jsonl", "--temperature", "0"], "more than 0"),
    (["{}/prompts.jsonl", "-o", "{}/o.jsonl", "--top-p", "0.9"], "no effect without a temperature"),
    (["{}/prompts.jsonl", "-o", "{}/o.jsonl", "--model", "no/such"], "neither a role"),
])
def test_what_the_command_refuses_is_said_with_exit_code_2(prompts, tmp_path, capsys, monkeypatch, arguments, words):
    if "/dev/full" in arguments and not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    monkeypatch.setenv("LAB_PROFILE", "bundled")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    given = [text.format(tmp_path) for text in arguments]
    given += [] if "--model" in given else ["--model", str(folder)]
    assert main(["generate", *given]) == 2
    output = capsys.readouterr()
    assert words in output.err and output.err.startswith("labutils: error: ") and output.err.count("\n") == 1 and not output.out
    assert not list(tmp_path.glob("o.jsonl*"))


@POSIX
def test_ctrl_c_ends_the_command_and_the_workers(prompts, wanted, tmp_path):
    """The whole group gets the signal, as from a terminal."""
    code = ("import sys; from labutils import jobs; from labutils.__main__ import main; from tests.unit.stand_ins import Echo; "
            "jobs.TransformersEngine = lambda *settings: Echo(0.02); sys.exit(main(sys.argv[1:]))")
    output = tmp_path / "out.jsonl"
    arguments = ["generate", str(prompts), "-o", str(output), "--chunk", "5", "--workers", "2"]
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], cwd=ROOT, stderr=subprocess.PIPE, text=True,
                               start_new_session=True)
    while not _commits(output) > 1:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 130
    assert said == "labutils: interrupted; the same command goes on from the last commit\n"
    done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 3 and "rejected, see" in done.stdout and everything(output) == wanted


# --- what it costs ----------------------------------------------------------------------------------------------------


def test_bookkeeping_is_fast_and_memory_does_not_grow(capsys):
    """The smaller version of benchmarks/jobs.py; the one for a million lines is held to 300 MB and 20,000 lines a second."""
    from benchmarks import jobs as benchmark

    rows = benchmark.main(30_000)
    assert "equal to the byte: yes" in capsys.readouterr().out
    _, cpu, peak = rows["without a break"]
    assert 30_000 / cpu > 20_000        # of the processor's seconds, whatever else the machine does
    assert peak < 100 and rows["two workers"][2] < 300
