"""Answers for many prompts: `generate(model, tokenizer, prompts)` gives each what it would get alone, only sooner.

    result = generate(model, tokenizer, ["Once upon a time", "The capital of France is"], max_new_tokens=32)
    result.texts       # in the prompts' order
    print(result)      # how many, how fast, by which method, what was backed off from

Three methods. "own": prompts are read in packed steps without a pad token and decode in slots that are refilled at once
(`own`, `slots`). "groups": prompts of equal length by the model's own generate, for caches that no slot can hold
(`groups`). "continuous": transformers' continuous batching with a capped cache (`continuous`). "auto" takes "own" on a CPU
where the packed step gives the model's own logits (tried once a model, `proof`), "groups" where it does not; on other
devices it lets "own" and "continuous" answer a sample each and goes on with the faster. `result.notes` says what was taken
and why.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager, nullcontext

import psutil
import torch
from tqdm.auto import tqdm

from labutils.errors import SettingError
from labutils.generation import fastlinear
from labutils.generation.continuous import Continuous, obstacle
from labutils.generation.groups import Groups
from labutils.generation.own import Schedule
from labutils.generation.prompts import Encoded, PromptError, encode_all
from labutils.generation.proof import trust
from labutils.generation.results import Answer, Result
from labutils.generation.rows import Row
from labutils.generation.rules import Rules, settle, unknown

__all__ = ["Answer", "PromptError", "Result", "generate"]

METHODS = ("auto", "own", "groups", "continuous")
ROWS = {"cpu": 64, "mps": 64}  # that decode side by side at most, where batch_size is not given
STEP_TOKENS = {"cpu": 512, "mps": 512}  # of prompts that one step reads
SAMPLE = 32  # prompts that each method answers where the faster one is measured
WORTH_REARRANGING = 256  # tokens to work on, below which rearranging the weights costs more than it saves


def generate(model, tokenizer, prompts: Iterable, *, max_new_tokens: int | Sequence[int] = 256, batch_size: int | None = None,
             stop: str | Sequence[str] | None = None, eos: int | Sequence[int] | None | str = "model",
             do_sample: bool | None = None, temperature: float | None = None, top_k: int | None = None,
             top_p: float | None = None, min_p: float | None = None, repetition_penalty: float | None = None,
             no_repeat_ngram_size: int | None = None, min_new_tokens: int | None = None, seed: int | Sequence[int] = 0,
             chat: bool = False, method: str = "auto", cache_bytes: int | None = None, rearrange: bool | None = None,
             progress: bool = True, on_answer: Callable[[int, Answer], None] | None = None, **other) -> Result:
    """Return the answers to all prompts, in their order. In fp32 each is, token for token, what the prompt gets alone.

    prompts: texts, conversations (lists of messages, put through the chat template) or lists of ids, mixed as you like.
        A text is continued as it is; with chat=True it is a user's turn, unless it is rendered already.
    max_new_tokens: for all, or one for each prompt. A prompt that comes near the end of the model's positions gets fewer
        (finish "window"). batch_size: rows that decode together at most (default 64 on a CPU, 256 on CUDA).
    stop: texts that end an answer and are cut off. eos: ids that end it; default those of model.generation_config, None
        for no end.
    do_sample, temperature, top_k, top_p, min_p, repetition_penalty, no_repeat_ngram_size, min_new_tokens: as for
        model.generate; what is not given comes from model.generation_config.
    seed: prompt n draws with seed + n, or with its own of a list, whatever else is in the batch: the draws of
        torch.manual_seed(that seed) before model.generate alone.
    method: "auto", "own", "groups" or "continuous", see the module. cache_bytes: keys and values at most (default: a
        quarter of the free memory, 1 GiB at most on a CPU). rearrange: fp32 weights in oneDNN's order during the call,
        which takes their size again; default: where it is measured to be faster. on_answer: called with each index and
        Answer when it is there. progress: a bar with tokens per second.

    The model, its generation_config, its mode and the tokenizer are as they were afterwards. A prompt that cannot be
    answered gets finish "error" and a sentence with its index; the others are answered. Raises SettingError for
    arguments or a generation_config that this function cannot follow, LabError subclasses only for such.
    """
    started = time.perf_counter()
    if other:
        raise unknown(other)
    if method not in METHODS:
        raise SettingError(f"method is {method!r}; it can be {', '.join(METHODS)}.")
    if model.config.is_encoder_decoder:
        raise SettingError(f"{type(model).__name__} has an encoder; this function is for decoders. Use model.generate.")
    if batch_size is not None and not (isinstance(batch_size, int) and batch_size > 0):
        raise SettingError(f"batch_size is {batch_size!r}; give a whole number from 1, or None.")
    followed = settle(model, tokenizer, stop=stop, eos=eos, do_sample=do_sample, temperature=temperature, top_k=top_k,
                     top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty,
                     no_repeat_ngram_size=no_repeat_ngram_size, min_new_tokens=min_new_tokens)
    window = _window(model)
    encoded = encode_all(tokenizer, prompts, vocabulary=_vocabulary(model), window=window, chat=chat)
    limits = _per_prompt("max_new_tokens", max_new_tokens, len(encoded), lowest=1)
    seeds = _per_prompt("seed", seed, len(encoded), lowest=0)
    if isinstance(seed, int):
        seeds = [seed + at for at in range(len(encoded))]
    rows = [_row(one, limits[one.index], seeds[one.index], window) for one in encoded if not one.error]
    run = _Run(model, tokenizer, followed, rows, batch_size, cache_bytes, rearrange, on_answer)
    with _bar(len(encoded), progress) as bar:
        run.bar = bar
        for one in encoded:
            if one.error:
                run.done(one.index, Answer("", [], 0, 0, "error", one.error))
        if rows:
            with torch.inference_mode(), _evaluating(model):
                run.work(method)
    answers = [run.answers[one.index] for one in encoded]
    return Result(answers, run.method or method, run.batch_size, run.peak_rows, run.steps, time.perf_counter() - started,
                  run.peak_bytes, run.shared, followed.notes + run.notes)


class _Run:
    """One call of generate: what is chosen, what is done, what there is to say."""

    def __init__(self, model, tokenizer, followed: Rules, rows: list[Row], batch_size, cache_bytes, rearrange, on_answer):
        self.model, self.tokenizer, self.rules, self.rows = model, tokenizer, followed, rows
        self.kind = model.device.type
        self.batch_size = batch_size or ROWS.get(self.kind, 256)
        self.cache_bytes = cache_bytes or _cache_share(model.device)
        self.rearrange, self.on_answer = rearrange, on_answer
        self.answers: dict[int, Answer] = {}
        self.notes: list[str] = []
        self.method, self.peak_rows, self.steps, self.peak_bytes, self.shared = "", 0, 0, 0, 0
        self.bar, self.tokens, self.started = None, 0, time.perf_counter()

    def done(self, index: int, answer: Answer) -> None:
        """Keep an answer, pass it on, move the bar."""
        self.answers[index] = answer
        self.tokens += answer.new_tokens
        if self.on_answer:
            self.on_answer(index, answer)
        self.bar.set_postfix_str(f"{self.tokens / (time.perf_counter() - self.started):.0f} tokens/s", refresh=False)
        self.bar.update()

    def work(self, method: str) -> None:
        """Choose the method and answer all rows."""
        known = trust(self.model)
        if method == "own" and known.reason:
            raise SettingError(f"method='own' does not fit: {known.reason}. Use method='auto'.")
        no_paging = obstacle(self.model, self.rules) or (known.reason and f"unknown cache: {known.reason}")
        if method == "continuous" and no_paging:
            raise SettingError(f"method='continuous' does not fit: {no_paging}. Use method='auto'.")
        if method == "auto":
            method = "groups" if known.reason else "own"
            if known.reason:
                self.notes.append(f"groups of equal length, because slots do not fit: {known.reason}")
            elif self.kind == "cuda" and not no_paging and len(self.rows) >= 4 * SAMPLE:
                method = self.faster(known.token_bytes)
        self.use(method, self.rows, known.token_bytes)

    def faster(self, token_bytes: int) -> str:
        """Let both methods answer a sample and return the faster one's name; the sample's answers are kept."""
        took = {}
        for method in ("own", "continuous"):
            sample, self.rows = self.rows[:SAMPLE], self.rows[SAMPLE:]
            start = time.perf_counter()
            self.use(method, sample, token_bytes)
            took[method] = sum(len(row.made) for row in sample) / (time.perf_counter() - start)
        best = max(took, key=took.get)
        self.notes.append(f"{best}, because on {SAMPLE} prompts each own made {took['own']:.0f} tokens/s and continuous "
                          f"{took['continuous']:.0f}")
        return best

    def use(self, method: str, rows: list[Row], token_bytes: int) -> None:
        """Answer these rows by this method."""
        self.method = method
        common = {"done": self.done}
        if method == "own":
            work = Schedule(self.model, self.tokenizer, self.rules, rows, batch_size=self.batch_size, notes=self.notes,
                            step_tokens=STEP_TOKENS.get(self.kind, 2048), cache_bytes=self.cache_bytes,
                            token_bytes=token_bytes, **common)
        elif method == "continuous":
            work = Continuous(self.model, self.tokenizer, self.rules, rows, cache_bytes=self.cache_bytes,
                              token_bytes=token_bytes, **common)
        else:
            work = Groups(self.model, self.tokenizer, self.rules, rows, batch_size=self.batch_size, notes=self.notes,
                          **common)
        with self.products(rows) if method != "continuous" else nullcontext():
            work.run()
        self.peak_rows, self.peak_bytes = max(self.peak_rows, work.peak_rows), max(self.peak_bytes, work.peak_bytes)
        self.steps, self.shared = self.steps + work.steps, max(self.shared, work.shared)

    @contextmanager
    def products(self, rows: list[Row]):
        """Exchange the matrix products where that pays, and say so."""
        tokens = sum(len(row.prompt) for row in rows) + sum(row.limit for row in rows)
        width = min(32, len(rows), self.batch_size)
        wanted = self.rearrange
        if wanted is None:
            wanted = len(rows) > 1 and tokens >= WORTH_REARRANGING and fastlinear.is_faster(self.model, width)
        if not wanted or self.kind != "cpu":
            yield
            return
        with fastlinear.rearranged(self.model, width) as taken:
            self.notes.append(f"weights rearranged for oneDNN during the run: {taken / 10**6:,.0f} MB")
            yield


def _row(one: Encoded, limit: int, seed: int, window: int | None) -> Row:
    room = limit if window is None else min(limit, window - len(one.ids))
    return Row(one.index, one.ids, room, window_bound=room < limit, seed=seed)


def _per_prompt(name: str, value, count: int, lowest: int) -> list[int]:
    """Return one whole number for each prompt."""
    found = [value] * count if isinstance(value, int) else list(value)
    if len(found) != count:
        raise SettingError(f"{name} has {len(found)} numbers for {count} prompts. Give one for all, or one for each.")
    fits = [isinstance(one, int) and not isinstance(one, bool) and one >= lowest for one in found]
    wrong = next((at for at, fit in enumerate(fits) if not fit), None)
    if wrong is not None:
        raise SettingError(f"{name} of prompt {wrong} is {found[wrong]!r}; it has to be a whole number from {lowest}.")
    return found


def _vocabulary(model) -> int:
    return model.get_input_embeddings().weight.shape[0]


def _window(model) -> int | None:
    """Return how many positions the model has, None where it sets no limit."""
    config = model.config.get_text_config(decoder=True)
    found = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    return found if isinstance(found, int) and found > 0 else None


def _cache_share(device: torch.device) -> int:
    """Return the bytes of keys and values that a run may set aside where the caller names none."""
    if device.type == "cuda":
        return int(0.6 * torch.cuda.mem_get_info(device)[0])
    return min(2**30, psutil.virtual_memory().available // 4)


@contextmanager
def _evaluating(model):
    """Switch training mode off, module by module, and back."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def _bar(total: int, progress: bool):
    with tqdm(total=total, unit="answer", disable=not progress) as bar:
        yield bar
