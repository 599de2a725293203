"""A job on a real Ray cluster of this machine: two actors, one killed midway, and the file is the same to the byte."""

import threading
import time
from pathlib import Path

import psutil
import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed: python run.py engines installs it")

from labutils import jobs  # noqa: E402
from labutils.jobs.on_ray import Ray  # noqa: E402
from tests.unit.stand_ins import Broken, Echo  # noqa: E402
from tests.unit.test_jobs import everything, write  # noqa: E402


@pytest.fixture(scope="module")
def pool():
    """Two workers in a Ray that is started for all tests of this file: that takes longer than any of them."""
    pool = Ray(workers=2)
    assert pool.connect()
    yield pool
    ray.shutdown()


@pytest.fixture
def prompts(tmp_path) -> Path:
    return write(tmp_path / "prompts.jsonl", 200)


@pytest.fixture
def wanted(prompts, tmp_path) -> tuple[bytes, bytes]:
    """What one process writes."""
    jobs.run(prompts, tmp_path / "whole.jsonl", Echo(), chunk=10)
    return everything(tmp_path / "whole.jsonl")


def actors() -> list[psutil.Process]:
    ours = psutil.Process().children(recursive=True)
    return [process for process in ours if "MapBatches(_Actor)" in " ".join(process.cmdline())]


def test_a_killed_actor_changes_nothing(pool, prompts, wanted, tmp_path):
    output, killed = tmp_path / "out.jsonl", []

    def kill() -> None:
        journal = tmp_path / "out.jsonl.job" / "journal.jsonl"
        while not (journal.exists() and journal.read_bytes().count(b"\n") > 3):
            time.sleep(0.05)
        working = actors()
        working[0].kill()
        killed.extend([working[0].pid, len(working)])

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    jobs.run(prompts, output, Echo(seconds=0.3), chunk=10, pool=pool, pause=0)
    thread.join(1)
    assert len(killed) == 2 and killed[1] == 2, "no actor was killed among two"
    assert everything(output) == wanted


def test_a_job_begun_elsewhere_is_finished_on_ray(pool, prompts, wanted, tmp_path):
    output, lines = tmp_path / "out.jsonl", prompts.read_bytes().splitlines(keepends=True)
    prompts.write_bytes(b"".join(lines[:70]))
    jobs.run(prompts, output, Echo(), chunk=10)
    prompts.write_bytes(b"".join(lines))
    assert jobs.run(prompts, output, Echo(), chunk=10, pool=pool).before == 70
    assert everything(output) == wanted


def test_a_chunk_that_kills_every_actor_ends_the_job_and_the_rest_is_kept(pool, prompts, wanted, tmp_path):
    output = tmp_path / "out.jsonl"
    with pytest.raises(jobs.JobError, match="Ray gave the job up"):
        jobs.run(prompts, output, Echo(deadly="Frage 101: wie heißt die Hauptstadt von Land 4?"), chunk=10, pool=pool, pause=0)
    assert wanted[0].startswith(output.read_bytes())
    jobs.run(prompts, output, Echo(), chunk=10)
    assert everything(output) == wanted


def test_a_fault_of_the_engine_is_said_in_a_sentence(pool, prompts, tmp_path):
    with pytest.raises(jobs.JobError, match="^A worker stopped with RuntimeError: no more memory$"):
        jobs.run(prompts, tmp_path / "out.jsonl", Broken(), chunk=10, pool=pool)


def test_a_cluster_that_is_too_small_is_refused(pool, prompts, tmp_path):
    """Ray Data would wait for ever: no processor is left to read with."""
    with pytest.raises(jobs.InputError, match="3 workers of 1 CPU need a Ray cluster of 4 CPU, .* has 3"):
        jobs.run(prompts, tmp_path / "out.jsonl", Echo(), pool=Ray(workers=3))
