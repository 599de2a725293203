"""What the bookkeeping of `labutils.jobs` costs: lines a second and peak memory, with an engine that only echoes.

    python -m benchmarks.jobs [lines]       default: one million; run in the folder that holds benchmarks/

Prints a table: a run without a break, the same run killed at three places and gone on with, two workers, and a run that
finds everything done. Each is a process of its own, so that each peak is its own; the peak counts its workers. The
outputs are compared byte by byte.
"""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Echo:
    """Answers every prompt with itself."""

    def settings(self) -> dict:
        return {"engine": "echo"}

    def load(self) -> None:
        pass

    def answer(self, rows: list[dict]) -> list[dict]:
        return [{"text": row["prompt"], "prompt_tokens": 12, "new_tokens": 12, "finish": "stop"} for row in rows]


def write_prompts(path: Path, lines: int) -> None:
    """Write prompts of some hundred bytes; one line in a thousand is bad."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(lines):
            if number % 1000 == 999:
                file.write('{"prompt": 5}\n')
            else:
                prompt = f"Question {number:,}: what is the capital of country {number % 197}, and since when?"
                file.write(json.dumps({"id": f"q{number}", "prompt": prompt}) + "\n")


def start(source: Path, output: Path, workers: int) -> subprocess.Popen:
    command = [sys.executable, "-m", "benchmarks.jobs", "--one", str(source), str(output), str(workers)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def measure(source: Path, output: Path, workers: int = 1) -> tuple[float, float, float]:
    """Return the seconds of the job, as it measures itself, those of its processors, and its peak in MB."""
    found, _ = start(source, output, workers).communicate()
    seconds, cpu, peak = map(float, found.split())
    return seconds, cpu, peak


def one(source: str, output: str, workers: str) -> None:
    from benchmarks.jobs import Echo  # not this module under another name: workers unpickle it
    from labutils import jobs

    started = time.perf_counter()
    jobs.run(source, output, Echo(), chunk=1000, workers=int(workers))
    seconds = time.perf_counter() - started
    cpu = sum(os.times()[:4])
    print(seconds, cpu, own_peak() + (largest_child() * int(workers) if int(workers) > 1 else 0))


def own_peak() -> float:
    """Return the peak of this process in MB."""
    if sys.platform == "linux":     # getrusage counts what the process was before it became this program
        return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024 / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def largest_child() -> float:
    """Return the peak of the largest process that this one has started, in MB."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1024 if sys.platform == "linux" else 1) / 1e6


def main(lines: int = 1_000_000) -> dict[str, tuple[float, float, float]]:
    """Print the table and return its rows by name: seconds, seconds of all processors, peak in MB."""
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        source, whole, pieces, two = (Path(folder, f"{name}.jsonl") for name in ("in", "whole", "pieces", "two"))
        write_prompts(source, lines)
        size, python = source.stat().st_size / 1e6, sys.version.split()[0]
        print(f"{lines:,} lines, {size:,.0f} MB, {os.cpu_count()} cores, Python {python}")
        print(f"{'run':<34}{'seconds':>9}{'lines/s':>11}{'CPU s':>8}{'peak MB':>9}")

        def show(name: str, seconds: float, cpu: float, peak: float) -> None:
            rows[name] = seconds, cpu, peak
            print(f"{name:<34}{seconds:>9.2f}{lines / seconds:>11,.0f}{cpu:>8.2f}{peak:>9.0f}", flush=True)

        show("without a break", *measure(source, whole))
        begun, before = time.perf_counter(), sum(os.times()[2:4])
        for _ in range(3):
            process = start(source, pieces, 1)
            time.sleep(rows["without a break"][0] / 4 + 0.3)
            process.send_signal(signal.SIGKILL)
            process.communicate()
        _, _, peak = measure(source, pieces)
        show("killed three times, gone on with", time.perf_counter() - begun, sum(os.times()[2:4]) - before, peak)
        show("two workers", *measure(source, two, 2))
        show("everything done already", *measure(source, whole))
        same = whole.read_bytes() == pieces.read_bytes() == two.read_bytes()
        print(f"outputs equal to the byte: {'yes' if same else 'NO'}")
        if not same:
            raise SystemExit(1)
    return rows


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(*sys.argv[2:])
    else:
        main(*map(int, sys.argv[1:]))
