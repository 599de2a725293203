"""A job on a real Ray cluster of this machine: two actors, one killed midway, and the file is the same to the byte."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

pytest.importorskip("ray", reason="Ray is not installed: python run.py engines installs it")

from labutils import jobs
from labutils.jobs.on_ray import Ray
from tests.unit.stand_ins import Broken, DiesOnce, Echo
from tests.unit.test_jobs import everything, write

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def cluster():
    """Ray on this machine for all tests of this file; starting it takes longer than any of them."""
    from labutils.jobs import on_ray

    pool = Ray(2)
    pool._connect()
    yield pool
    on_ray._ray().shutdown()


@pytest.fixture
def prompts(tmp_path) -> Path:
    return write(tmp_path / "prompts.jsonl", 200)


@pytest.fixture
def wanted(prompts, tmp_path) -> tuple[bytes, bytes]:
    jobs.run(prompts, tmp_path / "whole.jsonl", Echo(), chunk=5)
    return everything(tmp_path / "whole.jsonl")
