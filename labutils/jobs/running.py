"""The job from its input to its output."""

import json
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from labutils.jobs.engines import Engine
from labutils.jobs.errors import InputError
from labutils.jobs.journal import Commit, Files
from labutils.jobs.lines import Source
from labutils.jobs.workers import Pool, in_processes, in_this_process

ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


@dataclass(frozen=True)
class Summary:
    """Where a job stands: lines, answers and rejected over all its runs, new_tokens and seconds of this one.

    lines: done of the input; answers and rejected: lines of the output and of the rejects file (a blank line is in
    neither); before: lines that earlier runs had done; rejects: the rejects file, or None when nothing was rejected.
    """

    lines: int
    answers: int
    rejected: int
    before: int
    new_tokens: int
    seconds: float
    output: Path
    rejects: Path | None


def run(
    prompts: str | Path,
    output: str | Path,
    engine: Engine,
    *,
    chunk: int = 128,
    workers: int = 1,
    pool: Pool | None = None,
    pause: float = 0.2,
    progress: Callable[[Summary], None] | None = None,
) -> Summary:
    """Answer every line of `prompts` and write the answers to `output`, in the order of the input; go on where it stopped.

    Each line of the output is a JSON object: `index` (of the prompt, from 0, without blank and rejected lines), `line`
    (of the input, from 1), `id` where the line has one, `text`, `prompt_tokens`, `new_tokens`, `finish`. A line that cannot
    be answered goes to `output` with `.rejects` in its name, with `line`, `reason` and how it begins.

    engine: answers lists of rows, see `Engine`. chunk: lines that are handed to the engine at once; what a kill can cost.
    workers: processes on this machine. pool: another way to have chunks answered, e.g. `on_ray.Ray(...)`.
    pause: seconds between two commits at least. progress: called after every chunk.
    Raises InputError where the files or settings do not belong together, JobError where the job cannot go on; it can be
    run again after both.
    """
    prompts, output = Path(prompts), Path(output)
    if not prompts.is_file():
        there = "is no regular file, and only such a one can be read again" if prompts.exists() else "does not exist"
        raise InputError(f"The input {prompts} {there}.")
    if output.exists() and output.samefile(prompts):
        raise InputError(f"{output} is the input as well. Name another output.")
    if chunk < 1 or workers < 1:
        raise InputError(f"chunk is {chunk} and workers is {workers}; both have to be at least 1.")
    pool = pool or (in_this_process if workers == 1 else in_processes(workers))
    with Files(output, {"chunk": chunk, **engine.settings()}, pause) as files:
        digest, begun, started = files.compare_input(prompts), files.last, time.monotonic()

        def summary() -> Summary:
            now = files.now
            return Summary(now.lines, now.answers, now.rejected, begun.lines, now.new_tokens - begun.new_tokens,
                           time.monotonic() - started, output, files.rejects.path if now.rejected else None)

        todo = Source(prompts, chunk, begun.offset, begun.lines + 1, digest)
        with closing(pool(engine, todo)) as answered:
            for done, entries in answered:
                now = replace(files.now, offset=done.end, lines=done.first + len(done.lines) - 1, input_digest=done.digest)
                files.add(*_encoded(entries, now))
                if progress:
                    progress(summary())
        files.commit()
        return summary()


def _encoded(entries: list[dict], now: Commit) -> tuple[bytes, bytes, Commit]:
    """Return the lines for the output and for the rejects file, and how far the job is with them."""
    answers, rejects, tokens, index = [], [], 0, now.prompts
    for entry in entries:
        if "reason" in entry:
            rejects.append(ENCODE(entry))
        else:
            answers.append(ENCODE({"index": index, **entry}))
            tokens += entry["new_tokens"]
        index += "begins" not in entry      # an engine saw it
    now = replace(now, prompts=index, answers=now.answers + len(answers), rejected=now.rejected + len(rejects),
                  new_tokens=now.new_tokens + tokens)
    return _bytes(answers), _bytes(rejects), now


def _bytes(lines: list[str]) -> bytes:
    # A lone surrogate cannot be written as UTF-8; its escape is what JSON has for it.
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace")
