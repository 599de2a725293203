"""Settings that do not exist are refused with what they can be; the doctor names what is wrong and the cure."""

import os
import subprocess
import sys

import pytest
import torch

from labutils import environment
from labutils.errors import SettingError


@pytest.mark.parametrize("variable, read, known", [
    ("LAB_PROFILE", environment.profile, "bundled or hub"), ("LAB_DEVICE", environment.device, "auto, cpu, cuda or mps")])
def test_an_unknown_setting_is_refused_with_the_known_ones(variable, read, known, monkeypatch):
    monkeypatch.setenv(variable, "cloud")
    with pytest.raises(SettingError, match=f"{variable} is 'cloud'; it can be {known}. .*restart the kernel"):
        read()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the device that the test calls missing")
def test_a_device_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setenv("LAB_DEVICE", "cuda")
    with pytest.raises(SettingError, match="finds only .*cpu here. Set LAB_DEVICE=auto"):
        environment.device()


def test_settings_are_read_without_regard_to_case_and_an_empty_one_is_the_default(monkeypatch):
    monkeypatch.setenv("LAB_PROFILE", " Hub ")
    assert environment.profile() == "hub"
    monkeypatch.setenv("LAB_PROFILE", "")
    assert environment.profile() == "bundled"


@pytest.mark.parametrize("profile, offline", [("bundled", "1"), ("hub", ""), ("cloud", "1")])
def test_importing_labutils_settles_whether_the_hub_client_is_offline(profile, offline):
    env = {key: value for key, value in os.environ.items() if not key.startswith("HF_")} | {"LAB_PROFILE": profile}
    code = "import labutils, os; print(os.environ.get('HF_HUB_OFFLINE', ''), os.environ['HF_HUB_DISABLE_TELEMETRY'])"
    said = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    assert said.rstrip("\n") == f"{offline} 1"


def test_a_value_that_the_user_set_is_left_alone():
    env = os.environ | {"LAB_PROFILE": "bundled", "HF_HUB_OFFLINE": "0"}
    code = "import labutils, os; print(os.environ['HF_HUB_OFFLINE'])"
    assert subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True).stdout == "0\n"


def test_the_doctor_says_what_is_wrong_and_the_cure(tmp_path):
    env = os.environ | {"LAB_PROFILE": "cloud", "LAB_CACHE": str(tmp_path)}
    run = subprocess.run([sys.executable, "-m", "labutils", "doctor"], env=env, capture_output=True, text=True)
    assert run.returncode == 1 and run.stderr == ""
    assert "OK    Python 3." in run.stdout and "FAIL  LAB_PROFILE\n      LAB_PROFILE is 'cloud'" in run.stdout
    env["LAB_PROFILE"] = "bundled"
    run = subprocess.run([sys.executable, "-m", "labutils", "doctor"], env=env, capture_output=True, text=True)
    assert run.returncode == 1 and "FAIL  checkpoint chat\n" in run.stdout and "labutils prepare --roles chat" in run.stdout


def test_memory_and_versions_are_told():
    total, available = environment.memory()
    assert 0 < available <= total
    assert environment.versions()["torch"] == torch.__version__ and "python" in environment.versions()
    assert environment.describe()["device"].startswith(environment.device())
