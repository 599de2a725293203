"""Engines without a model, for tests of what stands around an engine, and a command that runs a job with one.

    python -m tests.unit.stand_ins prompts.jsonl answers.jsonl [workers] [seconds per chunk]
    python -m tests.unit.stand_ins prompts.jsonl folder --kill bytes bytes ...

The second runs one job per number in a process of its own, which kills itself with SIGKILL once it has written so many
bytes, in the midst of a write; the outputs are folder/0.jsonl, folder/1.jsonl and so on.
"""

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Echo:
    """Answers a prompt with itself, backwards. `seconds` is what a chunk takes; `deadly` the prompt that kills it."""

    seconds: float = 0.0
    deadly: str = ""
    name: str = "echo"

    def settings(self) -> dict:
        return {"engine": self.name}

    def load(self) -> None:
        self.loaded = True

    def answer(self, rows: list[dict]) -> list[dict]:
        assert self.loaded
        if self.seconds:
            time.sleep(self.seconds)
        return [self._one(row) for row in rows]

    def _one(self, row: dict) -> dict:
        prompt = row["prompt"] if "prompt" in row else row["messages"][-1]["content"]
        if prompt == "too long":
            return {"error": "the prompt has 9 tokens and the window 8"}
        if self.deadly and prompt == self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        text = prompt[::-1][: row.get("max_tokens", 10**6)]
        return {"text": text, "prompt_tokens": len(prompt), "new_tokens": len(text), "finish": "stop"}


@dataclass
class DiesOnce(Echo):
    """Kills its process at the prompt `once`; the file `mark` remembers that it has."""

    once: str = ""
    mark: str = ""

    def _one(self, row: dict) -> dict:
        if row.get("prompt") == self.once and not os.path.exists(self.mark):
            Path(self.mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._one(row)


@dataclass
class Broken(Echo):
    """Raises, or returns an answer too few."""

    fault: str = "raise"

    def answer(self, rows: list[dict]) -> list[dict]:
        if self.fault == "raise":
            raise RuntimeError("no more memory")
        return super().answer(rows)[1:]


def kill_after(total: int) -> None:
    """Have this process killed when it has written `total` bytes to files, within the write that reaches them."""
    real, written = os.write, 0

    def write(file: int, data: bytes) -> int:
        nonlocal written
        if file > 2 and written + len(data) >= total:
            real(file, bytes(data)[: total - written])
            os.kill(os.getpid(), signal.SIGKILL)
        written += len(data) if file > 2 else 0
        return real(file, data)

    os.write = write


def main(source: str, target: str, *more: str) -> None:
    from labutils import jobs
    from tests.unit.stand_ins import Echo  # not this module under another name: workers unpickle it

    if more[:1] != ("--kill",):
        workers, seconds = [*more, *["1", "0"][len(more):]]
        jobs.run(source, target, Echo(float(seconds)), chunk=5, workers=int(workers), pause=0)
        return
    for number, total in enumerate(map(int, more[1:])):
        child = os.fork()       # nothing but this thread is running, and it spares an interpreter's start
        if not child:
            kill_after(total)
            jobs.run(source, f"{target}/{number}.jsonl", Echo(), chunk=5, pause=0)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main(*sys.argv[1:])
