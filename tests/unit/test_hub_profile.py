"""The hub profile against a server that speaks the Hub's protocol, with the real Hub client, each in a fresh process.

The client reads HF_ENDPOINT, HF_HOME and HF_HUB_OFFLINE once, when it is imported: hence the processes.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from labutils.hub_standin import HubStandin

pytest.importorskip("huggingface_hub")
safetensors = pytest.importorskip("safetensors.numpy")

ROOT = Path(__file__).resolve().parents[2]
REPO = "course/tiny"
MB = 10**6


class Site:
    """A repository folder, a checkpoints.toml that pins it, and an empty Hub cache."""

    def __init__(self, tmp: Path):
        self.tmp, self.home, self.repo = tmp, tmp / "hf", tmp / "repo"
        (self.repo / "onnx").mkdir(parents=True)
        (self.repo / "config.json").write_text(json.dumps({"model_type": "bert"}))
        (self.repo / "tokenizer_config.json").write_text("{}")
        (self.repo / "README.md").write_text("not needed")
        (self.repo / "onnx" / "model.safetensors").write_bytes(b"not needed either")
        weights = {"weight": np.random.default_rng(0).standard_normal(6 * MB).astype(np.float32)}
        safetensors.save_file(weights, self.repo / "model.safetensors")

    def pin(self, commit: str, repo: str = REPO) -> None:
        (self.tmp / "checkpoints.toml").write_text(
            f'[tiny]\ntitle = "Tiny"\nlicence = "none"\nkind = "files"\ndisk_mb = {{ float32 = 1, bfloat16 = 1 }}\n'
            f'[tiny.hub]\nrepo = "{repo}"\ncommit = "{commit}"\ndownload_mb = 24\n'
            'files = ["config.json", "model.safetensors", "tokenizer_config.json", "tokenizer.json"]\n')

    def run(self, url: str, code: str = "print(checkpoint('tiny'))", **more: str) -> subprocess.CompletedProcess:
        keep = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "LAB_"))}
        env = {**keep, "HF_ENDPOINT": url, "HF_HOME": str(self.home), "NO_PROXY": "127.0.0.1,localhost",
               "LAB_PROFILE": "hub", "LAB_CHECKPOINTS": str(self.tmp / "checkpoints.toml"), "PYTHONPATH": str(ROOT),
               **more}
        code = f"from labutils.checkpoints import checkpoint, ready, verify\n{code}"
        return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def test_downloads_what_is_needed_then_works_without_a_network_and_verify_finds_damage(site):
    with HubStandin({REPO: site.repo}) as hub:
        commit, url = hub.repos[REPO].commit, hub.url
        site.pin(commit)
        assert site.run(url, "print(ready('tiny'))").stdout.strip() == "None"
        assert hub.requests == []  # asking whether it is there needs no network
        first = site.run(url)
        assert first.returncode == 0, first.stderr
        assert "downloading up to 24 MB" in first.stderr
    folder = Path(first.stdout.strip())
    assert folder == site.home / "hub" / "models--course--tiny" / "snapshots" / commit
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
    assert names == ["config.json", "model.safetensors", "tokenizer_config.json"]
    assert (folder / "model.safetensors").read_bytes() == (site.repo / "model.safetensors").read_bytes()
    again = site.run(url, "print(checkpoint('tiny')); verify('tiny')")  # the server is gone
    assert (again.returncode, again.stdout) == (0, first.stdout), again.stderr
    assert again.stderr == ""
    blob = (folder / "model.safetensors").resolve()
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    damaged = site.run(url, "verify('tiny')").stderr.splitlines()[-1]
    assert "model.safetensors has other content than its name says" in damaged
    assert f"Delete {folder.parents[1]} and" in damaged


def test_a_dropped_connection_is_resumed(site):
    with HubStandin({REPO: site.repo}) as hub:
        site.pin(hub.repos[REPO].commit)
        hub.drops = [15 * MB]
        result = site.run(hub.url)
        assert result.returncode == 0, result.stderr
        assert [asked for _, _, asked in hub.requests if asked], "nothing was resumed"
    folder = Path(result.stdout.strip())
    assert (folder / "model.safetensors").read_bytes() == (site.repo / "model.safetensors").read_bytes()


def test_a_connection_that_stays_dead_is_explained_and_taken_up_later(site):
    with HubStandin({REPO: site.repo}) as hub:
        site.pin(hub.repos[REPO].commit)
        hub.drops = [15 * MB] + [0] * 50
        result = site.run(hub.url)
        assert result.returncode == 1
        assert "CheckpointError: course/tiny could not be downloaded from" in result.stderr
        assert "run it again when the network is back" in result.stderr
        hub.drops.clear()
        assert site.run(hub.url, "assert ready('tiny') is None; checkpoint('tiny')").returncode == 0


def test_an_unknown_commit_and_an_unknown_repository_are_named(site):
    with HubStandin({REPO: site.repo}) as hub:
        site.pin("0" * 40)
        wrong = site.run(hub.url)
        site.pin("0" * 40, repo="course/other")
        strange = site.run(hub.url)
    assert f"has course/tiny, but not its commit {'0' * 40}" in wrong.stderr.splitlines()[-1]
    assert "has no repository course/other, or it needs a login" in strange.stderr.splitlines()[-1]


def test_no_network_and_offline_are_told_apart(site):
    site.pin("0" * 40)
    dead = site.run("http://127.0.0.1:9")
    assert "could not be downloaded from http://127.0.0.1:9" in dead.stderr.splitlines()[-1]
    offline = site.run("http://127.0.0.1:9", HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE is set" in offline.stderr.splitlines()[-1]
