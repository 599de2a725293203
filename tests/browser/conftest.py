"""A real JupyterLab in a real browser: Debian's Chromium, driven by Playwright, over a copy of the notebooks.

Needs `chromium` (apt-get install chromium, or CHROMIUM names another one) and requirements.lock beside this file;
`python run.py browser` and .ci/run install both. Screenshots go to build/browser/.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCREENSHOTS = ROOT / "build" / "browser"
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or "chromium"
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]

# The whole notebook in the page, not only what is in view; no news pop-up over a corner.
SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none"},
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


@pytest.fixture(scope="session")
def jupyter_folders(tmp_path_factory) -> dict[str, str]:
    """Return the environment of a Jupyter that reads and writes nothing of the user's."""
    home = tmp_path_factory.mktemp("jupyter")
    for name, values in SETTINGS.items():
        file = home / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values))
    names = {"JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data", "JUPYTER_RUNTIME_DIR": "run", "IPYTHONDIR": "ipython",
             "JUPYTERLAB_SETTINGS_DIR": "settings", "JUPYTERLAB_WORKSPACES_DIR": "workspaces", "LAB_PROGRESS": "progress"}
    return os.environ | {variable: str(home / folder) for variable, folder in names.items()}


def start(command: list[str], env: dict[str, str], cwd: Path, log: Path, seconds: float = 120) -> tuple[subprocess.Popen, str]:
    """Start a JupyterLab and return the process and its address with the token, once it answers."""
    process = subprocess.Popen(command, stdout=log.open("w"), stderr=subprocess.STDOUT, env=env, cwd=cwd)
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        found = re.search(r"http://127\.0\.0\.1:(\d+)/lab\S*token=(\w+)", log.read_text())
        if found:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{found[1]}/api/status?token={found[2]}", timeout=2).close()
                return process, f"http://127.0.0.1:{found[1]}/lab/tree/{{}}?token={found[2]}&reset"
            except OSError:
                pass
        time.sleep(0.3)
    process.kill()
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()[-3000:]}")


def stop(process: subprocess.Popen) -> None:
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def lab(tmp_path_factory, jupyter_folders):
    """Return the address of a running JupyterLab over a copy of the notebooks, with {} for the notebook's name."""
    home = tmp_path_factory.mktemp("lab")
    root = home / "notebooks"
    root.mkdir()
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        shutil.copy(notebook, root)
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={free_port()}",
               f"--ServerApp.root_dir={root}", "--LabApp.extension_manager=readonly"]
    process, address = start(command, jupyter_folders, root, home / "lab.log")
    yield address
    stop(process)


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, headless=True, args=QUIET)
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(60_000)
    yield page
    page.close()
