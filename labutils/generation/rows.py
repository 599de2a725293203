"""The prompts in work: what each has made, how its next token is chosen, when it is done."""

from dataclasses import dataclass, field

import torch

from labutils.generation.results import Answer
from labutils.generation.rules import Rules

STOP_TAIL = 24  # tokens beyond a stop string's characters that are decoded to look for it


@dataclass
class Row:
    """One prompt in work. `read`: how many tokens of prompt + made lie in the cache."""

    index: int
    prompt: list[int]
    limit: int
    window_bound: bool
    seed: int
    made: list[int] = field(default_factory=list)
    read: int = 0
    finish: str = ""
    generator: torch.Generator | None = None
    processors: object = None

    @property
    def need(self) -> int:
        """Positions that this prompt can take at most."""
        return len(self.prompt) + self.limit

    @property
    def ids(self) -> list[int]:
        """All tokens so far."""
        return self.prompt + self.made


def choose(rows: list[Row], logits: torch.Tensor, rules: Rules) -> list[int]:
    """Return the next token of each row from its logits, [rows, vocabulary] float32."""
    if rules.row_wise:
        logits = torch.cat([_processed(row, logits[at : at + 1], rules) for at, row in enumerate(rows)])
    if not rules.do_sample:
        return logits.argmax(-1).tolist()
    probabilities = torch.softmax(rules.warpers(None, logits), -1)
    return [_drawn(row, probabilities[at : at + 1]) for at, row in enumerate(rows)]


def _processed(row: Row, scores: torch.Tensor, rules: Rules) -> torch.Tensor:
    """Apply what looks at ids to one row alone, so that it never meets a pad token."""
    if row.processors is None:
        row.processors = rules.row_processors(len(row.prompt), scores.device)
    return row.processors(torch.tensor([row.ids], device=scores.device), scores)


def _drawn(row: Row, probabilities: torch.Tensor) -> int:
    """Draw with the row's own generator: the same draws as torch.manual_seed(seed) gives the prompt alone."""
    if row.generator is None:
        row.generator = torch.Generator(device=probabilities.device).manual_seed(row.seed)
    return int(torch.multinomial(probabilities, 1, generator=row.generator))


def add(row: Row, token: int, rules: Rules, tokenizer) -> None:
    """Append a token and set `finish` when it was the last."""
    row.made.append(token)
    if token in rules.eos:
        row.finish = "eos"
    elif rules.stop and _stopped(row, rules, tokenizer):
        row.finish = "stop"
    elif len(row.made) >= row.limit:
        row.finish = "window" if row.window_bound else "length"


def _stopped(row: Row, rules: Rules, tokenizer) -> bool:
    """Does the answer hold a stop string now? Only the tail is decoded, as far as the longest string can reach."""
    tail = row.made[-(max(map(len, rules.stop)) + STOP_TAIL):]
    text = tokenizer.decode(tail)
    return any(stop in text for stop in rules.stop)


def answer(row: Row, rules: Rules, tokenizer) -> Answer:
    """Return the finished row as an Answer: without the end token, and cut before the first stop string."""
    ids = row.made[:-1] if row.finish == "eos" else list(row.made)
    text = tokenizer.decode(ids, skip_special_tokens=True)
    if row.finish == "stop":
        text = _cut(ids, text, rules.stop, tokenizer)
    return Answer(text, ids, len(row.prompt), len(row.made), row.finish)


def _cut(ids: list[int], text: str, stops: tuple[str, ...], tokenizer) -> str:
    places = [text.find(stop) for stop in stops if stop in text]
    if places:
        return text[: min(places)]
    # The string lies in special tokens, which the text leaves out: keep the tokens before it.
    count = len(ids)
    while count and any(stop in tokenizer.decode(ids[:count]) for stop in stops):
        count -= 1
    return tokenizer.decode(ids[:count], skip_special_tokens=True)
