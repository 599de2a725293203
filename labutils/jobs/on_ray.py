"""The same job on a Ray cluster, through Ray Data: `jobs.run(..., pool=on_ray.Ray(workers=2))`. Needs `labutils[ray]`.

The driver reads the input once to find where chunks begin. Each chunk is then one block: read on the driver's node (so no
other node has to see the file), answered by one of `workers` actors, each with an engine of its own, and handed back in
the order of the input. A killed actor is started again and its block is answered again. Nodes need labutils and what the
engine needs.
"""

import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from labutils.jobs.answering import answer
from labutils.jobs.engines import Engine
from labutils.jobs.errors import InputError, JobError
from labutils.jobs.lines import Chunk, Source, chunks
from labutils.jobs.workers import DEATHS, Answered

# Ray reads these when it starts: nothing sent to its makers, no page of log lines. What the user has set stays.
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal"}

STORE = 256 * 2**20     # bytes of chunks on their way in a Ray that is started here; beyond them Ray waits or spills to disk
STARTS = 3      # Ray gives its processes some seconds to start, which a busy machine may not have


@dataclass(frozen=True)
class Ray:
    """A pool of `workers` actors, each with `cpus` of the cluster's processors and a GPU where there are enough.

    address: of a running cluster ("auto" finds the one of this machine), or None to start Ray here, for this job.
    Where this process has joined a cluster already, that one is used. Raises InputError without Ray, or where the
    cluster is too small: actors that take every processor leave none for reading, and Ray Data would wait for ever.
    """

    workers: int = 2
    address: str | None = None
    cpus: int = 1

    def __call__(self, engine: Engine, source: Source) -> Answered:
        spans = [(chunk.first, chunk.start, chunk.end, chunk.digest, len(chunk.lines)) for chunk in source]
        if not spans:
            return
        ours = self.connect()
        try:
            yield from self._answered(engine, source, spans)
        finally:
            if ours:
                _ray().shutdown()

    def connect(self) -> bool:
        """Join or start a cluster, unless this process is in one; return whether it was not. Raises as the class says."""
        ray = _ray()
        ours = not ray.is_initialized()
        if ours:
            self._join(ray)
        has = ray.cluster_resources().get("CPU", 0)
        if has < self._needed():
            if ours:
                ray.shutdown()
            raise InputError(f"{self.workers} workers of {self.cpus} CPU need a Ray cluster of {self._needed()} CPU, one of "
                             f"them to read, and this one has {has:g}. Use fewer workers.")
        return ours

    def _join(self, ray) -> None:
        here = {} if self.address else {"num_cpus": self._needed(), "object_store_memory": STORE, "include_dashboard": False}
        for left in reversed(range(1 if self.address else STARTS)):
            try:
                ray.init(address=self.address or "local", log_to_driver=False, logging_level="ERROR", **here)
                return
            except Exception as error:      # what Ray raises when its own processes start too slowly is a plain Exception
                ray.shutdown()
                if not left:
                    what = f"cannot join the Ray cluster {self.address!r}" if self.address else "cannot start Ray here"
                    raise JobError(f"This process {what}: {' '.join(str(error).split())[:300]}") from error

    def _needed(self) -> int:
        return self.workers * self.cpus + 1

    def _answered(self, engine: Engine, source: Source, spans: list[tuple]) -> Answered:
        ray = _ray()
        try:
            for number, text in enumerate(self._texts(engine, source, spans)):
                found = json.loads(text)
                if isinstance(found, str):
                    raise JobError(found)
                first, start, end, digest, lines = spans[number]
                yield Chunk(first, start, end, digest, [b""] * lines), found
        except ray.exceptions.RayError as error:
            said = " ".join(str(error).split())
            raise JobError(f"Ray gave the job up: {said[-400:]} The same command goes on with what is left.") from error

    def _texts(self, engine: Engine, source: Source, spans: list[tuple]) -> Iterator[str]:
        """Yield what the actors made of each chunk, in order: JSON of its entries, or of a sentence on what went wrong."""
        number = 0
        for row in self._dataset(engine, source, spans).iter_rows():
            if row["number"] != number:
                raise JobError(f"Ray Data handed back chunk {row['number']} where chunk {number} was due.")
            number += 1
            yield row["text"]
        if number != len(spans):
            raise JobError(f"Ray Data handed back {number} of {len(spans)} chunks.")

    def _dataset(self, engine: Engine, source: Source, spans: list[tuple]):
        ray = _ray()
        context = ray.data.DataContext.get_current().copy()
        context.execution_options.preserve_order = True
        context.enable_progress_bars = False
        with ray.data.DataContext.current(context):     # a dataset keeps the context that it was made in
            here = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}
            blocks = ray.data.read_datasource(_datasource(source.path, source.size, spans),
                                              override_num_blocks=len(spans), label_selector=here)
            gpus = {"num_gpus": 1} if ray.cluster_resources().get("GPU", 0) >= self.workers else {}
            return blocks.map_batches(
                _Actor, fn_constructor_args=(engine, self.cpus), batch_size=None, batch_format="pyarrow",
                compute=ray.data.ActorPoolStrategy(size=self.workers), num_cpus=self.cpus, **gpus,
                ray_remote_args_fn=partial(dict, max_task_retries=DEATHS - 1))     # left alone, Ray tries for ever


class _Actor:
    """One engine in one actor: from a block with one chunk to a block with the JSON of its entries."""

    def __init__(self, engine: Engine, cpus: int):
        os.environ["OMP_NUM_THREADS"] = str(cpus)
        self.engine, self.loaded = engine, False

    def __call__(self, table):
        import pyarrow

        texts = []
        for row in table.to_pylist():
            try:
                if not self.loaded:
                    self.engine.load()
                    self.loaded = True
                found = answer(self.engine, Chunk(row["first"], 0, 0, "", row["lines"]))
            except Exception as error:      # Ray would wrap it in a page of text
                found = f"A worker stopped with {type(error).__name__}: {error}"
            texts.append(json.dumps(found))
        return pyarrow.table({"number": table["number"], "text": texts})


def _datasource(path: Path, size: int, spans: list[tuple]):
    """Return a source of one block per chunk, which is read from the file when its turn comes."""
    import pyarrow
    from ray.data.block import BlockMetadata
    from ray.data.datasource import Datasource, ReadTask

    lines_type = pyarrow.list_(pyarrow.large_binary())

    def read(number: int, first: int, start: int) -> list:
        chunk = next(chunks(path, size, start, first))
        return [pyarrow.table({"number": [number], "first": [first], "lines": pyarrow.array([chunk.lines], lines_type)})]

    class Chunks(Datasource):
        def estimate_inmemory_data_size(self) -> int:
            return spans[-1][2] - spans[0][1]

        def get_read_tasks(self, parallelism: int, *options, **more) -> list:
            return [
                ReadTask(partial(read, number, first, start),
                         BlockMetadata(num_rows=1, size_bytes=end - start, input_files=None, exec_stats=None))
                for number, (first, start, end, *_) in enumerate(spans)
            ]

    return Chunks()


def _ray():
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
        import ray.data
    except ImportError:
        raise InputError('Ray is not installed. Install it with: pip install "labutils[ray]"') from None
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    return ray
