"""What a run of `generate` gives back: one Answer a prompt, in the prompts' order, and what it took."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Answer:
    """What one prompt got.

    text: the new tokens as text, without special tokens, cut before a stop string.
    ids: the new tokens, without the token that ended the answer.
    prompt_tokens: length of the prompt as the model read it, template and special tokens included.
    new_tokens: how many tokens the model made, the one that ended the answer included.
    finish: "eos" (the model ended it), "stop" (a stop string), "length" (max_new_tokens), "window" (the model's
    positions are used up) or "error" (nothing was made: see `error`, a sentence that names the prompt's index).
    """

    text: str
    ids: list[int]
    prompt_tokens: int
    new_tokens: int
    finish: str
    error: str | None = None


@dataclass
class Result:
    """All answers and how they came about. `print(result)` says it in words.

    method: "own" (packed steps, slots that are refilled), "groups" (prompts of one length at a time) or "continuous"
    (transformers' own). batch_size: the most rows that were allowed to decode together. peak_rows: the most that did.
    seconds: wall time of the work, tokenizing included. steps: forward passes. cache_bytes: keys and values set aside.
    notes: why this method, what was backed off from, what to look at. One sentence each.
    """

    answers: list[Answer]
    method: str
    batch_size: int
    peak_rows: int = 0
    steps: int = 0
    seconds: float = 0.0
    cache_bytes: int = 0
    shared_prefix: int = 0
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.answers)

    def __iter__(self):
        return iter(self.answers)

    def __getitem__(self, index):
        return self.answers[index]

    @property
    def texts(self) -> list[str]:
        """The answers' texts, in the prompts' order."""
        return [answer.text for answer in self.answers]

    @property
    def errors(self) -> list[str]:
        """The sentences of the prompts that got no answer."""
        return [answer.error for answer in self.answers if answer.error]

    @property
    def new_tokens(self) -> int:
        """Tokens that the model made, over all answers."""
        return sum(answer.new_tokens for answer in self.answers)

    @property
    def tokens_per_second(self) -> float:
        """New tokens a second of wall time."""
        return self.new_tokens / self.seconds if self.seconds else 0.0

    def finishes(self) -> dict[str, int]:
        """How many answers ended how."""
        counts: dict[str, int] = {}
        for answer in self.answers:
            counts[answer.finish] = counts.get(answer.finish, 0) + 1
        return counts

    def summary(self) -> str:
        """Return the run in words: answers, ends, speed, method, rows, cache, notes."""
        ends = ", ".join(f"{count} {finish}" for finish, count in self.finishes().items())
        lines = [
            f"{len(self.answers)} answers ({ends}), {self.new_tokens:,} new tokens in {self.seconds:.1f} s: "
            f"{self.tokens_per_second:.1f} tokens/s",
            f"method {self.method}, up to {self.peak_rows} rows at once (limit {self.batch_size}), {self.steps} steps"
            + (f", {self.cache_bytes / 10**6:,.0f} MB of cache" if self.cache_bytes else "")
            + (f", {self.shared_prefix} shared tokens read once" if self.shared_prefix else ""),
        ]
        return "\n".join(lines + [f"note: {note}" for note in self.notes] + [f"error: {each}" for each in self.errors[:5]])

    def __repr__(self) -> str:
        return f"<Result: {self.summary()}>"

    __str__ = summary
