"""transformers' own continuous batching, with a cap on its cache: left alone it takes most of the memory there is.

It decodes greedily here. It knows neither stop strings nor a seed for each prompt, so prompts with those go another way.
"""

from collections.abc import Callable

from labutils.generation.results import Answer
from labutils.generation.rows import Row, add, answer
from labutils.generation.rules import Rules
from labutils.generation.slots import NotPlain

PAGE = 32  # tokens a page
STEP_TOKENS = 512


def obstacle(model, rules: Rules) -> str:
    """Return why continuous batching cannot give these answers, "" when it can."""
    if rules.do_sample:
        return "sampling needs a seed for each prompt, which continuous batching has not"
    if rules.stop:
        return "continuous batching knows no stop strings"
    if rules.row_wise:
        return "a penalty or a suppressed token is set, which continuous batching does not apply row by row"
    if not hasattr(model, "init_continuous_batching"):
        return "this transformers has no continuous batching"
    return ""


class Continuous:
    """One run over `rows` by `init_continuous_batching`, with at most cache_bytes of keys and values."""

    def __init__(self, model, tokenizer, rules: Rules, rows: list[Row], *, cache_bytes: int, token_bytes: int,
                 done: Callable[[int, Answer], None]):
        self.model, self.tokenizer, self.rules, self.rows, self.done = model, tokenizer, rules, rows, done
        longest = max(row.need for row in rows)
        self.blocks = max(cache_bytes // (PAGE * token_bytes), -(-longest // PAGE) + 1)
        self.peak_bytes = self.blocks * PAGE * token_bytes
        self.peak_rows = self.steps = self.shared = 0
        self.limit = len(rows)

    def run(self) -> None:
        """Hand in every row, take the answers as they come, and stop the manager whatever happens."""
        from transformers import ContinuousBatchingConfig, GenerationConfig

        longest = max(row.limit for row in self.rows)
        config = GenerationConfig(max_new_tokens=longest, do_sample=False, eos_token_id=sorted(self.rules.eos) or -1,
                                  pad_token_id=0)
        paging = ContinuousBatchingConfig(num_blocks=self.blocks, page_size=PAGE, max_batch_tokens=STEP_TOKENS)
        manager = self.model.init_continuous_batching(generation_config=config, continuous_batching_config=paging)
        manager.start()
        try:
            waiting = {manager.add_request(row.prompt, max_new_tokens=row.limit): row for row in self.rows}
            while waiting:
                found = manager.get_result(timeout=5)
                if found is None:
                    if not manager.is_running():
                        raise NotPlain(f"continuous batching ended with {len(waiting)} answers missing")
                elif found.is_finished() or found.error:
                    self._take(waiting.pop(found.request_id), found)
        finally:
            manager.stop(block=True)

    def _take(self, row: Row, found) -> None:
        if found.error:
            sentence = f"Prompt {row.index}: continuous batching gave it up ({str(found.error)[:120]})."
            self.done(row.index, Answer("", [], len(row.prompt), 0, "error", sentence))
            return
        for token in found.generated_tokens:
            if not row.finish:
                add(row, token, self.rules, self.tokenizer)
        row.finish = row.finish or "length"
        self.done(row.index, answer(row, self.rules, self.tokenizer))
