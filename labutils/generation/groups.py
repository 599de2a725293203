"""The safe schedule: prompts of equal length together, by the model's own `generate`. No pad token, so no mask to trust.

For models whose cache no slot can hold: state space, chunks, encoders' relatives, positions that depend on the length.
"""

import gc
from collections.abc import Callable
from contextlib import contextmanager

import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from labutils.generation.own import is_out_of_memory
from labutils.generation.results import Answer
from labutils.generation.rows import Row, add, answer, choose
from labutils.generation.rules import Rules


class _Chooser(LogitsProcessor):
    """Chooses each row's next token by our rules and forces it."""

    def __init__(self, rows: list[Row], rules: Rules, tokenizer):
        self.rows, self.rules, self.tokenizer, self.steps = rows, rules, tokenizer, 0

    def __call__(self, input_ids, scores):
        open_rows = [at for at, row in enumerate(self.rows) if not row.finish]
        chosen = choose([self.rows[at] for at in open_rows], scores[open_rows].float(), self.rules)
        forced = torch.full_like(scores, float("-inf"))
        forced[:, 0] = 0.0
        for at, token in zip(open_rows, chosen, strict=True):
            add(self.rows[at], token, self.rules, self.tokenizer)
            forced[at, 0] = float("-inf")
            forced[at, token] = 0.0
        self.steps += 1
        return forced


class _Done(StoppingCriteria):
    """Ends when every row is done."""

    def __init__(self, rows: list[Row]):
        self.rows = rows

    def __call__(self, input_ids, scores, **kwargs):
        return torch.tensor([bool(row.finish) for row in self.rows], device=input_ids.device)


@contextmanager
def _bare_config(model):
    """Take away the model's own settings: the chooser has applied them already."""
    kept = model.generation_config
    model.generation_config = GenerationConfig(pad_token_id=0, do_sample=False)
    try:
        yield
    finally:
        model.generation_config = kept


class Groups:
    """One run over `rows`, in groups of equal length of at most batch_size rows."""

    def __init__(self, model, tokenizer, rules: Rules, rows: list[Row], *, batch_size: int,
                 done: Callable[[int, Answer], None], notes: list[str]):
        self.model, self.tokenizer, self.rules, self.done, self.notes = model, tokenizer, rules, done, notes
        self.limit, self.rows = batch_size, sorted(rows, key=lambda row: (-len(row.prompt), -row.limit))
        self.peak_rows = self.steps = self.peak_bytes = self.shared = 0

    def run(self) -> None:
        """Work off the groups, the longest prompts first."""
        waiting = list(self.rows)
        with _bare_config(self.model):
            while waiting:
                group = [row for row in waiting if len(row.ids) == len(waiting[0].ids)][: self.limit]
                failure = self._try(group)
                if failure:
                    self._back_off(group, failure)
                waiting = [row for row in waiting if not row.finish]

    def _try(self, group: list[Row]) -> str:
        try:
            self._generate(group)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return str(error).partition("\n")[0] or type(error).__name__
        finally:
            for row in group:
                if row.finish:
                    self.done(row.index, answer(row, self.rules, self.tokenizer))
        return ""

    def _generate(self, group: list[Row]) -> None:
        ids = torch.tensor([row.ids for row in group], device=self.model.device)
        chooser = _Chooser(group, self.rules, self.tokenizer)
        self.model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=max(row.limit - len(row.made) for row in group),
            logits_processor=LogitsProcessorList([chooser]), stopping_criteria=StoppingCriteriaList([_Done(group)]))
        self.steps += chooser.steps
        self.peak_rows = max(self.peak_rows, len(group))

    def _back_off(self, group: list[Row], failure: str) -> None:
        gc.collect()
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()
        if len(group) > 1:
            self.limit = len(group) // 2
            self.notes.append(f"memory ran out with {len(group)} rows ({failure[:80]}): went on with {self.limit}")
            return
        row = group[0]
        row.finish = "error"
        sentence = f"Prompt {row.index}: memory ran out even alone, with {len(row.prompt)} tokens ({failure[:80]}). Shorten it."
        self.done(row.index, Answer("", [], len(row.prompt), 0, "error", sentence))
