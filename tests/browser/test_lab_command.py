"""`python run.py lab`: opens the first lesson, on this machine only, behind a token."""

import sys
import urllib.error
import urllib.request

import pytest

from tests.browser.conftest import ROOT, free_port, start, stop


def test_lab_serves_the_first_lesson_behind_a_token_on_loopback(tmp_path, jupyter_folders):
    command = [sys.executable, "run.py", "lab", "--no-browser", f"--port={free_port()}"]
    process, address = start(command, jupyter_folders, ROOT, tmp_path / "lab.log")
    try:
        log = (tmp_path / "lab.log").read_text()
        assert "00_start_here.ipynb" in log
        api = address.split("/lab")[0] + "/api/contents"
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(api, timeout=10)
        assert refused.value.code == 403
        token = address.split("token=")[1].split("&")[0]
        assert urllib.request.urlopen(f"{api}?token={token}", timeout=10).status == 200
        assert "0.0.0.0" not in log
    finally:
        stop(process)
