"""Who answers the chunks: this process, or several on this machine that are noticed when they die.

A pool takes an engine and a source and yields each chunk of it with its entries, in the order of the input. It reads ahead
by a bounded number of chunks, so that memory does not grow with the input.
"""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

from labutils.errors import LabError
from labutils.jobs.answering import answer
from labutils.jobs.engines import Engine
from labutils.jobs.errors import JobError
from labutils.jobs.lines import Chunk, Source

Answered = Generator[tuple[Chunk, list[dict]], None, None]
Pool = Callable[[Engine, Source], Answered]

AHEAD = 3       # chunks per worker that are being answered or wait for their turn to be written
DEATHS = 3      # workers that one chunk may cost


def in_this_process(engine: Engine, source: Source) -> Answered:
    """Answer one chunk after the other here. The engine is loaded when there is a first one."""
    loaded = False
    for chunk in source:
        if not loaded:
            engine.load()
            loaded = True
        yield chunk, answer(engine, chunk)


def in_processes(number: int) -> Pool:
    """Return a pool of `number` processes, each with an engine of its own and its share of the processor's cores.

    A worker that dies is replaced and its chunk is answered again; JobError after DEATHS deaths at the same chunk.
    """
    return lambda engine, source: _Crew(engine, number).answered(iter(source))


@dataclass
class _Worker:
    slot: int
    process: multiprocessing.process.BaseProcess
    pipe: Connection
    chunk: Chunk | None = None


class _Crew:
    """The workers and what they are at."""

    def __init__(self, engine: Engine, number: int):
        self.engine, self.number = engine, number
        self.context = multiprocessing.get_context("spawn")     # torch's threads and CUDA do not survive a fork
        self.workers: list[_Worker] = []
        self.again: deque[Chunk] = deque()      # chunks whose worker died
        self.order: deque[Chunk] = deque()      # chunks that have been handed out and not been yielded
        self.done: dict[int, list[dict]] = {}
        self.deaths: dict[int, int] = {}

    def answered(self, chunks: Iterator[Chunk]) -> Answered:
        try:
            while True:
                self._hand_out(chunks)
                if not self.order:
                    return
                self._collect()
                while self.order and self.order[0].start in self.done:
                    chunk = self.order.popleft()
                    yield chunk, self.done.pop(chunk.start)
        finally:
            for worker in self.workers:
                worker.process.kill()       # it holds nothing: what it has answered is here or will be asked again
                worker.process.join()
                worker.pipe.close()

    def _hand_out(self, chunks: Iterator[Chunk]) -> None:
        """Give every worker something to do, as long as there is something; start workers when they are needed."""
        while (idle := [worker for worker in self.workers if worker.chunk is None]) or len(self.workers) < self.number:
            chunk = self.again.popleft() if self.again else self._next(chunks)
            if chunk is None:
                return
            worker = idle[0] if idle else self._start()
            worker.chunk = chunk
            try:
                worker.pipe.send(chunk)
            except OSError:
                self._died(worker)

    def _next(self, chunks: Iterator[Chunk]) -> Chunk | None:
        chunk = next(chunks, None) if len(self.order) < AHEAD * self.number else None
        if chunk is not None:
            self.order.append(chunk)
        return chunk

    def _collect(self) -> None:
        """Wait until a worker has answered or died."""
        ready = wait([worker.pipe for worker in self.workers])
        for worker in [worker for worker in self.workers if worker.pipe in ready]:
            try:
                entries, error = worker.pipe.recv()
            except (EOFError, OSError):
                self._died(worker)
                continue
            if error is not None:
                raise JobError(error)
            self.done[worker.chunk.start], worker.chunk = entries, None

    def _start(self) -> _Worker:
        slot = min(set(range(self.number)) - {worker.slot for worker in self.workers})
        threads = max(1, (os.cpu_count() or 1) // self.number)
        ours, theirs = self.context.Pipe()
        process = self.context.Process(target=_work, args=(theirs, self.engine, slot, threads), daemon=True)
        with _no_interrupt():
            process.start()
        theirs.close()
        self.workers.append(_Worker(slot, process, ours))
        return self.workers[-1]

    def _died(self, worker: _Worker) -> None:
        worker.process.join()
        worker.pipe.close()
        self.workers.remove(worker)
        chunk = worker.chunk
        if chunk is None:
            return
        self.again.append(chunk)
        self.deaths[chunk.start] = self.deaths.get(chunk.start, 0) + 1
        if self.deaths[chunk.start] >= DEATHS:
            status = worker.process.exitcode
            how = f"was killed by signal {-status}, perhaps for want of memory" if status < 0 else f"ended with status {status}"
            raise JobError(f"Lines {chunk.first:,} to {chunk.first + len(chunk.lines) - 1:,} cost {DEATHS} workers; the last "
                           f"one {how}. Use fewer workers or smaller batches and run the same command again.")


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Have processes that are started here ignore Ctrl-C, which is for this process to answer."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _work(pipe: Connection, engine: Engine, slot: int, threads: int) -> None:
    """Answer chunks until there are no more; runs in a process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["LAB_WORKER"] = str(slot)
    os.environ["OMP_NUM_THREADS"] = str(min(threads, int(os.environ.get("OMP_NUM_THREADS", threads))))
    try:
        engine.load()
        while True:
            chunk = pipe.recv()
            pipe.send((answer(engine, chunk), None))
    except (EOFError, BrokenPipeError):
        return
    except LabError as error:
        pipe.send((None, str(error)))
    except Exception as error:
        pipe.send((None, f"A worker stopped with {type(error).__name__}: {error}"))


def _end_with_parent() -> None:
    """End at once when the parent is gone, even in the midst of a chunk."""
    multiprocessing.parent_process().join()
    os._exit(1)
