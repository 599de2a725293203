"""Our schedule: prompts wait, are read in packed pieces, decode side by side, and leave their slot to the next at once.

The longest come first, so that the last steps are not left to one long row. A beginning that all prompts share (a system
message) is read once. When memory runs out the slots are given back, the rows keep the tokens that they made, and half as
many go on.
"""

import gc
from collections import deque
from collections.abc import Callable

import torch

from labutils.generation.results import Answer
from labutils.generation.rows import Row, add, answer, choose
from labutils.generation.rules import Rules
from labutils.generation.slots import Piece, Slots, exchanged_attention, names_of, step

SHARED_FROM = 8  # a shared beginning of fewer tokens is not worth its copies,
SAVED_FROM = 64  # nor one that saves fewer tokens over all prompts: the first is read alone for it
SMALLEST_STEP = 16  # tokens; a single row that does not fit in such a step is given up
MEMORY_SIGNS = ("out of memory", "can't allocate memory", "not enough memory", "Unable to allocate")


def is_out_of_memory(error: BaseException) -> bool:
    """Is this what torch, numpy or a device says when memory runs out?"""
    known = isinstance(error, (torch.OutOfMemoryError, MemoryError))
    return known or (isinstance(error, RuntimeError) and any(sign in str(error) for sign in MEMORY_SIGNS))


def shared_beginning(prompts: list[list[int]]) -> int:
    """Return how many first tokens all prompts have in common, 0 when too few. One token of each is always left over."""
    if len(prompts) < 2:
        return 0
    first, last = min(prompts), max(prompts)  # what these two share, all share
    most = min(min(map(len, prompts)) - 1, len(first), len(last))
    count = next((at for at in range(most) if first[at] != last[at]), most)
    return count if count >= SHARED_FROM and count * (len(prompts) - 1) >= SAVED_FROM else 0


class Schedule:
    """One run over `rows`. `done` is called with each row's index and Answer as soon as it is there."""

    def __init__(self, model, tokenizer, rules: Rules, rows: list[Row], *, batch_size: int, step_tokens: int,
                 cache_bytes: int, token_bytes: int, done: Callable[[int, Answer], None], notes: list[str]):
        self.model, self.tokenizer, self.rules, self.done, self.notes = model, tokenizer, rules, done, notes
        self.limit, self.step_tokens = batch_size, step_tokens
        self.proven = (1, step_tokens)  # rows that a step has held, and the step to go back to once a row is given up
        self.cache_bytes, self.token_bytes = cache_bytes, token_bytes
        self.waiting = deque(sorted(rows, key=lambda row: -row.need))
        self.active: list[Row] = []  # the row in slot n is active[n]
        self.shared = shared_beginning([row.prompt for row in rows])
        self.warm: set[int] = set()  # slots that hold the shared beginning, whoever left it there
        self.slots: Slots | None = None
        self.names = names_of(model)
        self.peak_rows = self.steps = self.peak_bytes = 0

    def run(self) -> None:
        """Work until no row waits and none is active."""
        with exchanged_attention(self.model):
            while self.waiting or self.active:
                self._admit()
                failure = self._try_step()
                if failure:  # outside the handler: its traceback would keep the step's tensors alive
                    self._back_off(failure)

    def _admit(self) -> None:
        """Give free slots to waiting rows, as far as this step can read them."""
        self._make_slots()
        unread = sum(len(row.ids) - row.read for row in self.active)
        while self.waiting and len(self.active) < self.slots.rows and unread < self.step_tokens + len(self.active):
            if self.shared and not self.warm and self.active:
                return  # the first row reads the beginning for all
            row, slot = self.waiting.popleft(), len(self.active)
            row.read = self._warm_up(slot)
            self.active.append(row)
            unread += len(row.ids) - row.read

    def _make_slots(self) -> None:
        """Set aside slots, or cut them anew when those in use are far longer than what is still to come."""
        rows = [*self.active, *self.waiting]
        need = max(row.need for row in rows)
        if self.slots is None:
            self.slots = Slots(self.model, self._fit(need, len(rows)), need)
        elif self.waiting and need <= 0.6 * self.slots.positions and self.slots.rows < min(self.limit, len(rows)):
            self.slots.resize(self._fit(need, len(rows)), need)

    def _fit(self, positions: int, rows: int) -> int:
        """Return how many slots of that size the cache's share of memory holds, at least one."""
        return max(1, min(self.limit, rows, self.cache_bytes // max(1, positions * self.token_bytes)))

    def _warm_up(self, slot: int) -> int:
        """Copy the shared beginning into a slot that lacks it; return how many tokens are read thereby."""
        if not self.shared or not self.warm:
            return 0
        if slot not in self.warm:
            self.slots.move(next(iter(self.warm)), slot, self.shared)
            self.warm.add(slot)
        return self.shared

    def _try_step(self) -> str:
        """Run one step. Return "", or what was said when memory ran out."""
        try:
            self._step()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return str(error).partition("\n")[0] or type(error).__name__
        return ""

    def _step(self) -> None:
        tokens, positions, keep, who, lengths, pieces, read = [], [], [], [], [], [], []
        room = self.step_tokens
        for slot, row in enumerate(self.active):
            ids = row.ids
            if not pieces and row.read == len(ids) - 1:
                lengths.append(row.read)
                count = 1
            else:
                count = min(len(ids) - row.read, room)
                if not count:
                    continue
                pieces.append(Piece(slot, row.read, count))
                room -= count
            tokens += ids[row.read : row.read + count]
            positions += range(row.read, row.read + count)
            read.append((row, slot, count))
            if row.read + count == len(ids):
                keep.append(len(tokens) - 1)
                who.append(row)
        self.slots.plan(lengths, pieces, self.model.device)
        logits = step(self.model, self.slots, tokens, positions, keep or [len(tokens) - 1], self.names)
        chosen = choose(who, logits, self.rules) if who else []
        self.steps += 1
        self.peak_rows = max(self.peak_rows, len(self.active))
        self.proven = (max(self.proven[0], len(self.active)), self.proven[1])
        self.peak_bytes = max(self.peak_bytes, self.slots.bytes())
        for row, slot, count in read:
            row.read += count
            if row.read >= self.shared:
                self.warm.add(slot)
        for row, token in zip(who, chosen, strict=True):
            add(row, token, self.rules, self.tokenizer)
        self._leave()

    def _leave(self) -> None:
        """Hand over finished rows; the last rows move into their slots, so that the active ones stay side by side."""
        slot = 0
        while slot < len(self.active):
            row = self.active[slot]
            if not row.finish:
                slot += 1
                continue
            self.done(row.index, answer(row, self.rules, self.tokenizer))
            last = self.active.pop()
            if last is not row:
                self.slots.move(len(self.active), slot, last.read)
                self.active[slot] = last

    def _back_off(self, failure: str) -> None:
        """Give the slots back and go on with half the rows, or give up the only row when nothing is left to halve."""
        rows, self.active, self.slots, self.warm = self.active, [], None, set()
        gc.collect()
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()
        if len(rows) == 1 and self.step_tokens <= SMALLEST_STEP:
            self._give_up(rows[0], failure)
            self.limit, self.step_tokens = self.proven  # it was this prompt, not the number of rows
            return
        self.limit = max(1, len(rows) // 2)
        self.step_tokens = max(SMALLEST_STEP, self.step_tokens // 2)
        self.notes.append(f"memory ran out with {len(rows)} rows ({failure[:80]}): went on with {self.limit}, steps of up to "
                          f"{self.step_tokens} tokens, and kept the tokens that were made")
        for row in reversed(rows):
            row.read = 0
            self.waiting.appendleft(row)

    def _give_up(self, row: Row, failure: str) -> None:
        sentence = (f"Prompt {row.index}: memory ran out even alone, with {len(row.prompt)} tokens and up to {row.limit} new "
                    f"({failure[:80]}). Shorten it, lower max_new_tokens or use a smaller dtype.")
        self.done(row.index, Answer("", [], len(row.prompt), 0, "error", sentence))
