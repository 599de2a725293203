"""How fast can a model write, and what does each token wait for? Steps timed by batch, beside what the machine allows.

A decode step reads every weight once, whatever the batch, and multiplies it once for each row. So there are two limits:
bytes over bandwidth, and operations over the rate of arithmetic. A `Curve` holds both beside the measured steps; `measure`
makes one here and now, `recorded` reads one that tools/measure_throughput.py has stored.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

GPU, CPU = "gpu", "cpu"


@dataclass(frozen=True)
class Point:
    """One batch size, measured: seconds of the first pass (prefill) and of each pass after it (one token a row)."""

    batch: int
    prefill: float
    step: float

    def latency(self, new: int) -> float:
        """Return the seconds from the start of a batch to the last of `new` tokens of its rows."""
        return self.prefill + (new - 1) * self.step

    def throughput(self, new: int) -> float:
        """Return new tokens per second of all rows together."""
        return self.batch * new / self.latency(new)


@dataclass(frozen=True)
class Curve:
    """Measured steps of one model on one machine, and that machine's two limits.

    weight_bytes: bytes that a decode step reads of the model. row_bytes: bytes that it reads of the cache for one row.
    bandwidth: bytes per second. flops: multiplications and additions per second, in the same dtype. prompt: tokens a row.
    """

    name: str
    points: tuple[Point, ...]
    parameters: int
    weight_bytes: int
    row_bytes: int
    bandwidth: float
    flops: float
    prompt: int

    def memory_seconds(self, batch: int) -> float:
        """Return the least seconds of a decode step that the memory allows: everything it reads, once."""
        return (self.weight_bytes + batch * self.row_bytes) / self.bandwidth

    def compute_seconds(self, batch: int) -> float:
        """Return the least seconds of a decode step that the arithmetic allows: 2 operations a parameter and row."""
        return 2 * self.parameters * batch / self.flops

    @property
    def free_rows(self) -> float:
        """The batch at which a step's arithmetic takes as long as reading the weights: up to here rows are free."""
        return self.weight_bytes / self.bandwidth / self.compute_seconds(1)

    def point(self, batch: int) -> Point:
        """Return the point of one batch size. Raises ValueError for a size that was not measured."""
        for point in self.points:
            if point.batch == batch:
                return point
        raise ValueError(f"Batch {batch} was not measured; {[point.batch for point in self.points]} were.")


# --- measuring, here and now -------------------------------------------------------------------------------------------


def _best(action, repeat: int) -> float:
    """Return the fewest seconds of `repeat` runs; `action` returns a tensor, and reading one number of it waits for it."""
    seconds = []
    for _ in range(repeat):
        began = time.perf_counter()
        action().flatten()[0].item()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def bandwidth(dtype, device: str, megabytes: int = 128, repeat: int = 7) -> float:
    """Return bytes per second at which a matrix is read, by multiplying it with a vector: what a decode step of one row does.

    The matrix has `megabytes` (10**6 bytes), too many for the caches of a processor. The best of `repeat` runs counts.
    """
    import torch

    columns = 4096
    matrix = torch.ones(megabytes * 10**6 // (columns * dtype.itemsize), columns, dtype=dtype, device=device)
    vector = torch.ones(columns, dtype=dtype, device=device)
    return matrix.nbytes / _best(lambda: matrix @ vector, repeat)


def flops(dtype, device: str, size: int = 1024, repeat: int = 7) -> float:
    """Return multiplications and additions per second of a product of two square matrices: the best of `repeat` runs."""
    import torch

    matrix = torch.ones(size, size, dtype=dtype, device=device)
    return 2 * size**3 / _best(lambda: matrix @ matrix, repeat)


def rows_of(ids: Sequence[Sequence[int]], length: int) -> list[list[int]]:
    """Return rows of exactly `length` ids, cut from all the prompts one after the other; what is left over is dropped."""
    stream = [number for row in ids for number in row]
    return [stream[at:at + length] for at in range(0, len(stream) - length + 1, length)]


def steps(model, rows: Sequence[Sequence[int]], new: int) -> list[float]:
    """Return the seconds of each of `new` passes of `generate` over `rows` (equal lengths), the prefill first.

    The end token is held back, so that every row writes `new` tokens.
    """
    import torch
    from transformers import LogitsProcessor

    class Clock(LogitsProcessor):
        def __init__(self) -> None:
            self.stamps = []

        def __call__(self, input_ids, scores):
            scores[0, 0].item()     # waits for the device, whatever it is
            self.stamps.append(time.perf_counter())
            return scores

    ids, clock = torch.tensor(rows, device=model.device), Clock()
    began = time.perf_counter()
    model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new,
                   do_sample=False, logits_processor=[clock])
    stamps = [began, *clock.stamps]
    return [after - before for before, after in zip(stamps, stamps[1:], strict=False)]


def measure(model, ids: Sequence[Sequence[int]], batches: Sequence[int], *, prompt: int = 48, new: int = 8,
            repeat: int = 1, name: str = "this machine") -> Curve:
    """Return the curve of `model` here and now: for each batch size the least prefill and the least decode step of `repeat`
    runs, because a busy neighbour can only add to them.

    `ids`: tokenized prompts, enough of them for the largest batch at `prompt` tokens a row.
    Raises ValueError where they are too few.
    """
    from labutils import arithmetic

    rows = rows_of(ids, prompt)
    if max(batches) > len(rows):
        raise ValueError(f"{len(rows)} rows of {prompt} tokens are in these prompts; a batch of {max(batches)} needs more.")
    weights, dtype, device = list(model.parameters()), model.dtype, str(model.device)
    best: dict[int, Point] = {}
    rates = []
    for _ in range(repeat):     # around and around, not each size at once: a slow minute falls on all sizes
        rates.append((bandwidth(dtype, device), flops(dtype, device)))
        for batch in batches:
            first, *rest = steps(model, rows[:batch], new)
            point = Point(batch, first, min(rest))
            old = best.get(batch, point)
            best[batch] = Point(batch, min(old.prefill, point.prefill), min(old.step, point.step))
    cache = arithmetic.kv_cache(model.config, batch=1, prompt=prompt, new=1, dtype=dtype)
    return Curve(
        name, tuple(best[batch] for batch in batches), sum(weight.numel() for weight in weights),
        sum(weight.nbytes for weight in weights), cache.bytes, *map(max, zip(*rates, strict=True)), prompt)


# --- recordings --------------------------------------------------------------------------------------------------------


def as_json(curve: Curve) -> dict:
    """Return a curve as a recording keeps it."""
    return asdict(curve)


def recorded(kind: str) -> Curve | None:
    """Return the stored curve of a "cpu" or a "gpu", named by machine and date; None where none has been recorded.

    Raises ValueError for another kind.
    """
    if kind not in (CPU, GPU):
        raise ValueError(f"Recordings are of kind {CPU!r} or {GPU!r}, not {kind!r}.")
    from labutils import data

    file = data.path("traces") / f"batch_curve_{kind}.json"
    if not file.exists():
        return None
    kept = json.loads(file.read_text(encoding="utf-8"))["curve"]
    return Curve(**kept | {"points": tuple(Point(**point) for point in kept["points"])})
