"""Checkers of lesson 11, Batched generation on GPU."""

import gc
import weakref
from collections.abc import Callable, Sequence

from labutils.check.core import Wrong, call, exercise, prediction


def _number(guess, what: str) -> float:
    if isinstance(guess, bool) or not isinstance(guess, int | float):
        raise Wrong(f"{what} was asked for; this is {guess!r}.")
    return guess


@prediction("11.1")
def speedup(guess: float, one_by_one: Sequence[float], together: Sequence[float]) -> str:
    """Compare a guessed speed-up with the measured one, within a factor of two; the lists: seconds at which answers came."""
    guess = _number(guess, "How many times faster, a number,")
    if len(one_by_one) != len(together):
        raise Wrong(f"{len(one_by_one)} answers one by one and {len(together)} together differ. Run the cells above.")
    measured = max(one_by_one) / max(together)
    said = f"You said {guess:g}, measured here {measured:.1f}."
    if measured / 2 <= guess <= measured * 2:
        return f"{said} The first answer, though, came after {min(together):.1f} s instead of {min(one_by_one):.1f} s."
    if guess <= 1:
        raise Wrong(f"{said} Above 1: the weights are read once for all rows, instead of once for each.")
    if guess >= len(together):
        raise Wrong(f"{said} {len(together)} rows would be {len(together)} times as fast if only the reading of weights took "
                    "time. Each row also costs arithmetic, its whole prompt most of all.")
    reason = "More work is shared than that." if guess < measured else "Part of the work is not shared: each row's arithmetic."
    raise Wrong(f"{said} {reason}")


@prediction("11.2")
def padding_share(guess: float, computed: int, useful: int) -> str:
    """Compare a guessed share of padding with the counted one: positions computed, and the useful ones among them."""
    guess = _number(guess, "A share from 0 to 1")
    measured = 1 - useful / computed
    said = f"You said {guess:g}, counted {measured:.2f}"
    if 1 < guess <= 100:
        raise Wrong(f"{said}. A share is from 0 to 1; did you mean {guess / 100:g}?")
    if not 0 <= guess <= 1:
        raise Wrong(f"{said}. A share is from 0 to 1.")
    if abs(guess - measured) <= 0.1:
        return f"{said}: {computed - useful:,} of {computed:,} positions are padding."
    if abs(guess - useful / computed) <= 0.02:
        raise Wrong(f"{said}. Yours is the useful share; the padding is the rest.")
    raise Wrong(f"{said}. " + ("One long prompt is enough to widen all eight rows, and nearly every batch has one."
                               if guess < measured else "Prompts are not that unlike."))


LENGTHS = [45, 212, 43, 45, 386, 40, 91, 263, 52, 45, 70, 120]
BUDGET = 400


def _by_budget(lengths: Sequence[int], budget: int) -> list[list[int]]:
    order, batches = sorted(range(len(lengths)), key=lambda n: -lengths[n]), []
    while order:
        rows = max(1, budget // lengths[order[0]])
        batches.append(order[:rows])
        order = order[rows:]
    return batches


@exercise("11.1")
def buckets(function: Callable) -> str:
    """Check (lengths, budget) -> batches of numbers, longest first, rows x longest within the budget."""
    for lengths, budget in ((LENGTHS, BUDGET), ([30] * 7, 90), ([50, 600, 40], 200), ([5], 10)):
        given = list(lengths)
        got = call(function, given, budget)
        if given != lengths:
            raise Wrong("Your function changed the list of lengths that it was given. sorted() makes a new list.")
        if not isinstance(got, list) or not all(isinstance(batch, list) for batch in got):
            raise Wrong("A list of lists of prompt numbers was asked for.")
        if any(not batch for batch in got):
            raise Wrong("One of your batches is empty. Open a batch only when there is a prompt for it.")
        numbers = [n for batch in got for n in batch]
        if sorted(numbers) != list(range(len(lengths))):
            if sorted(numbers) == sorted(lengths):
                raise Wrong("Those are lengths. Return prompt numbers, 0 to "
                            f"{len(lengths) - 1}: two prompts may have the same length.")
            missing, double = set(range(len(lengths))) - set(numbers), {n for n in numbers if numbers.count(n) > 1}
            raise Wrong(f"Every prompt once: missing {sorted(missing)}, twice {sorted(double)}. Is the last batch kept?")
        for batch in got:
            longest = max(lengths[n] for n in batch)
            if len(batch) * longest > budget and len(batch) > 1:
                hint = (" Their sum fits, but padding counts: the width is the longest."
                        if sum(lengths[n] for n in batch) <= budget else "")
                raise Wrong(f"With a budget of {budget}, a batch of {len(batch)} rows up to {longest} tokens is "
                            f"{len(batch) * longest} positions.{hint}")
        tops = [max(lengths[n] for n in batch) for batch in got]
        if tops != sorted(tops, reverse=True):
            raise Wrong(f"Your batches' longest prompts are {tops}. Longest first: then memory runs out at once or never.")
        wanted = _by_budget(lengths, budget)
        if len(got) > len(wanted):
            raise Wrong(f"{len(got)} batches for lengths {lengths} and a budget of {budget}; {len(wanted)} are enough. "
                        "Fill a batch before you open the next.")
        wide = sum(len(batch) * max(lengths[n] for n in batch) for batch in got)
        least = sum(len(batch) * max(lengths[n] for n in batch) for batch in wanted)
        if wide > least:
            raise Wrong(f"{wide} positions where {least} are enough: unlike prompts stand together. Sort by length first.")
    return "Right: each prompt once, longest first, within the budget, and one that is beyond it goes alone."


@exercise("11.2")
def restore(function: Callable) -> str:
    """Check (batches, answers) -> answers in the order of the prompts: a three-cycle, equal answers, one batch."""
    cases = (
        ([[2, 0], [3, 1]], [["c", "a"], ["d", "b"]], ["a", "b", "c", "d"]),
        ([[4, 1, 3], [0, 2]], [["no", "yes", "no"], ["yes", "no"]], ["yes", "yes", "no", "no", "no"]),
        ([[1, 2, 0]], [["x", "b", "z"]], ["z", "x", "b"]),
        ([[0]], [["one"]], ["one"]),
    )
    for batches, answers, wanted in cases:
        got = call(function, batches, answers)
        if not isinstance(got, list | tuple):
            raise Wrong(f"A list of answers was asked for; this is a {type(got).__name__}.")
        got = list(got)
        if got == wanted:
            continue
        flat = [answer for found in answers for answer in found]
        if any(isinstance(each, list) for each in got):
            raise Wrong("Your list still holds batches. One flat list, an answer for each prompt.")
        if len(got) != len(wanted):
            raise Wrong(f"{len(wanted)} prompts, {len(got)} answers. Two prompts may get the same answer: key by the number, "
                        "not by the text.")
        if got == flat:
            raise Wrong(f"Answers {flat} are still in the order of the batches {batches}. Put each at its prompt's number.")
        order = [n for batch in batches for n in batch]
        if got == [flat[n] for n in order]:
            raise Wrong(f"For {batches} you took the answer that stands *at* each number. Put answer k at place order[k]; your "
                        "permutation is the inverse of the one that is needed.")
        if got == sorted(flat):
            raise Wrong("You sorted the texts. The order is in the batches' numbers, not in the answers.")
        raise Wrong(f"For batches {batches} and answers {answers} the result should be {wanted}; yours is {got}.")
    return "Right: every answer is back with its prompt, equal texts included."


@exercise("11.3")
def best_batch(function: Callable) -> str:
    """Check (points, budget) -> batch: a dip, a curve that turns down, the budget met exactly, none in time."""
    dip = [(16, 9.4, 54.0), (1, 3.8, 8.5), (8, 6.8, 38.0), (2, 5.6, 11.0), (4, 5.5, 23.0)]
    full = [(8, 2.0, 128.0), (16, 3.0, 170.0), (32, 6.5, 157.0)]
    cases = ((dip, 7.0, 8), (dip, 5.5, 4), (dip, 100.0, 16), (full, 7.0, 16), (dip, 3.0, None))
    for points, budget, wanted in cases:
        got = call(_given_none(function), list(points), budget, shown=f"{points}, {budget}")
        got = None if got == "none" else got
        if got == wanted:
            continue
        named = f"With a budget of {budget} s"
        if wanted is None:
            raise Wrong(f"{named} no batch is in time: the fastest takes {min(point[1] for point in points)} s. Return None; "
                        f"yours is {got!r}.")
        if isinstance(got, tuple):
            raise Wrong("Return the batch alone, the first number of the point.")
        if got is None:
            raise Wrong(f"{named} batch {wanted} is in time, yet yours is None. A budget met exactly is met.")
        in_time = [point for point in points if point[1] <= budget]
        if got not in [point[0] for point in in_time]:
            raise Wrong(f"{named} yours is {got!r}, and that batch is too late or was not measured.")
        if got == max(in_time)[0]:
            raise Wrong(f"{named} you took the largest batch in time, {got}. Batch {wanted} makes more tokens per second.")
        if got == min(in_time, key=lambda point: point[1])[0]:
            raise Wrong(f"{named} you took the quickest answer. Batch {wanted} is in time, too, and makes more tokens/s.")
        raise Wrong(f"{named} the best batch of {points} is {wanted}; yours is {got}.")
    return "Right: most tokens per second among those in time, a dip and a full card included, and None where none is."


def _given_none(function: Callable) -> Callable:
    """Let None be an answer: `call` takes it for a forgotten return."""
    if not callable(function):
        return function

    def asked(points, budget):
        got = function(points, budget)
        return "none" if got is None else got

    asked.__name__ = getattr(function, "__name__", "best_batch")
    return asked


class _Card:
    """Room for so many rows of tensors that are alive at once; a job on `n` prompts needs two tensors of `n` rows."""

    def __init__(self, room: int, broken: str = ""):
        self.room, self.broken, self.given, self.sizes, self.failed, self.done = room, broken, [], [], [], []

    def allocate(self, rows: int):
        import torch

        alive = sum(len(tensor) for tensor in (held() for held in self.given) if tensor is not None)
        if alive + rows > self.room:
            raise torch.OutOfMemoryError(f"{rows} rows wanted, {alive} of {self.room} taken")
        tensor = torch.zeros(rows, 4)
        self.given.append(weakref.ref(tensor))
        return tensor

    def work(self, batch):
        if not isinstance(batch, list | tuple) or not batch:
            raise Wrong(f"work takes a list of prompts, at least one; it was given {batch!r}.")
        self.sizes.append(len(batch))
        if len(self.sizes) > 60:
            raise Wrong(f"Your loop goes around for ever; the last batches had {self.sizes[-4:]} rows.")
        if self.broken and self.broken in batch:
            raise RuntimeError("shapes do not fit")
        self.failed.append(len(batch))      # taken back below, when both tensors are there
        keys = self.allocate(len(batch))
        values = self.allocate(len(batch))
        self.failed.pop()
        self.done += batch
        return [prompt.upper() for prompt in batch] if len(keys) == len(values) else []


def _backed_off(function: Callable, room: int, size: int, wanted_sizes: Sequence[int]) -> None:
    """Let the learner's function work on a card of that room; raise Wrong with what went wrong."""
    prompts, card = list("abcdefghijk"), _Card(room)
    shown = f"a card with room for {room} rows, 11 prompts, {size}"
    try:
        got = call(function, card.work, list(prompts), size, shown=shown)
    except Wrong:
        _collapsed(card, room, size)
        raise
    _collapsed(card, room, size)
    if len(card.done) > len(set(card.done)):
        twice = sorted({prompt for prompt in card.done if card.done.count(prompt) > 1})
        raise Wrong(f"Prompts {twice} were answered twice: keep what is done.")
    if got != [prompt.upper() for prompt in prompts]:
        raise Wrong(f"All 11 answers in order were expected; yours are {got!r}. A batch that failed still has to be answered.")
    if card.sizes != list(wanted_sizes):
        if card.failed and max(card.sizes[card.sizes.index(card.failed[0]) + 1:], default=0) > card.failed[0] // 2:
            raise Wrong(f"You asked for {card.sizes} rows: more than {card.failed[0] // 2} again, after {card.failed[0]} had "
                        "failed. Keep the smaller size.")
        raise Wrong(f"You asked for {card.sizes} rows; halving a batch that failed gives {list(wanted_sizes)}.")


def _collapsed(card: _Card, room: int, size: int) -> None:
    """Raise Wrong where a batch failed that would have fitted, had the wreck of an earlier one been gone."""
    tried = [n for n in card.failed if n <= room // 2]
    if tried:
        raise Wrong(f"{size} rows do not fit, {tried[0]} do, yet {tried[0]} failed too: the first try's tensors were "
                    "still alive. The error holds its traceback, the traceback the tensors. Try again after the handler "
                    "has ended, and keep no error in a variable.")


@exercise("11.4")
def answer_all(function: Callable) -> str:
    """Check (work, prompts, size) -> answers: backs off outside the handler, keeps what is done, hides no other fault."""
    gc.collect()
    _backed_off(function, room=100, size=4, wanted_sizes=[4, 4, 3])
    _backed_off(function, room=8, size=8, wanted_sizes=[8, 4, 4, 3])
    _backed_off(function, room=4, size=8, wanted_sizes=[8, 4, 2, 2, 2, 2, 2, 1])
    tiny = _Card(room=1)
    try:
        got = function(tiny.work, ["a", "b"], 2)
    except MemoryError:
        pass
    except Wrong:
        raise
    except Exception as error:
        raise Wrong(f"One prompt that does not fit even alone: raise a MemoryError, not {type(error).__name__}.") from error
    else:
        raise Wrong(f"One prompt does not fit even alone, yet yours returned {got!r}. Raise a MemoryError.")
    faulty = _Card(room=100, broken="c")
    try:
        got = function(faulty.work, list("abcd"), 4)
    except RuntimeError as error:
        if "shapes" not in str(error):
            raise Wrong(f"work failed with another fault, and yours reported it as: {error}. Let it through.") from error
        if len(faulty.sizes) > 1:
            raise Wrong("work failed with another fault, and yours tried again, with fewer rows. Halve for "
                        "torch.OutOfMemoryError alone.") from error
    except Wrong:
        raise
    except Exception as error:
        raise Wrong("work failed with another fault, a RuntimeError about shapes, and yours made "
                    f"{type(error).__name__} of it. Catch torch.OutOfMemoryError alone.") from error
    else:
        raise Wrong(f"work failed with another fault, and yours returned {got!r} as if nothing were. Catch "
                    "torch.OutOfMemoryError alone.")
    return "Right: 8, 4, 4, 3 rows on a card with room for 4, nothing answered twice, and other faults come through."
