"""Two clients, one model, other answers: `first_divergence` names the first stage and position where they part ways."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labutils import views
from labutils.contracts.arguments import InputError, kind

STAGES = ("rendered text", "input_ids", "attention_mask", "first-step logits")


@dataclass(frozen=True)
class Divergence:
    """The first stage at which two clients differ; false when they differ nowhere.

    stage: one of STAGES, or None. position: index into the text (characters), the row (tokens) or the vocabulary; None
    where a whole stage differs (another dtype, a mask that is not there). row: the conversation in a batch. a, b: the
    two values there. why: what that means. checks: for every stage up to this one, what was compared.
    """

    stage: str | None = None
    position: int | None = None
    a: Any = None
    b: Any = None
    why: str = ""
    row: int = 0
    checks: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        return self.stage is not None

    def _headline(self) -> str:
        if not self:
            return "no difference found"
        where = "" if self.position is None else f" at position {self.position}"
        return f"the clients differ first in their {self.stage}{where}{f' of row {self.row}' if self.row else ''}"

    def __repr__(self) -> str:
        lines = [self._headline()]
        if self:
            lines += [f"  a: {self.a}", f"  b: {self.b}", f"  {self.why}"]
        return "\n".join(lines + [f"  {stage}: {outcome}" for stage, outcome in self.checks])

    def _repr_html_(self) -> str:
        rows = [[stage, outcome, "", ""] for stage, outcome in self.checks]
        if self:
            where = "" if self.position is None else f", position {self.position}"
            rows.append([views.Cell(f"{self.stage}{where}", "#fde2d2", bold=True), f"≠ {self.why}",
                         str(self.a), str(self.b)])
        return views.table(("stage", "outcome", "a", "b"), rows, self._headline())._repr_html_()


@dataclass
class _Request:
    """What one client would send: text, [rows, length] ids and mask (lists), first-step logits [rows, vocabulary]."""

    text: str | None
    input_ids: list[list[int]] | None
    attention_mask: list[list[int]] | None
    logits: Any


def first_divergence(client_a, client_b, messages, model=None, *, tokenizer=None,
                     tolerance: float = 1e-3) -> Divergence:
    """Compare two clients stage by stage and return the first stage and position at which they differ.

    A client is a function of `messages`, or what it returned: a string (the rendered text), or a mapping or object with
    any of text, input_ids, attention_mask ([length] or [rows, length]) and logits (first step: [vocabulary], or
    [rows, length, vocabulary], of which the last position counts). model: computes the logits of a client that gives
    none, as generate() would: positions counted from the mask. tokenizer: shows tokens beside ids.
    tolerance: the largest difference of two logits that still counts as equal.

    A stage that one of the clients does not give is skipped and said so in `checks`. Raises InputError when there is no
    stage that both give, or when a client's values have no such shape.
    """
    a, b = _request(client_a, messages, "client_a"), _request(client_b, messages, "client_b")
    checks = []
    for stage, compare in zip(STAGES, (_texts, _ids, _masks, _logits), strict=True):
        found, outcome = compare(a, b, _Means(model, tokenizer, tolerance))
        if found:
            return Divergence(stage, **found, checks=tuple(checks))
        checks.append((stage, outcome))
    if not any(outcome.startswith("equal") for _, outcome in checks):
        raise InputError("The two clients have nothing in common to compare; both must give text, input_ids, "
                         "attention_mask or logits.")
    return Divergence(checks=tuple(checks))


@dataclass(frozen=True)
class _Means:
    model: Any
    tokenizer: Any
    tolerance: float

    def name(self, row: Sequence[int], at: int) -> str:
        if at >= len(row):
            return "end"
        return f"{row[at]} {self.tokenizer.convert_ids_to_tokens(row[at])!r}" if self.tokenizer else str(row[at])


_Outcome = tuple[dict | None, str]


def _texts(a: _Request, b: _Request, means: _Means) -> _Outcome:
    if a.text is None or b.text is None:
        return None, "not given by both"
    if a.text == b.text:
        return None, f"equal ({len(a.text)} characters)"
    at = _first_difference(a.text, b.text)
    return {"position": at, "a": _around(a.text, at), "b": _around(b.text, at),
            "why": f"{len(a.text)} and {len(b.text)} characters: another template, argument or white space"}, ""


def _around(text: str, at: int, width: int = 24) -> str:
    """Return the text from just before position `at`, so that both clients' excerpts start alike."""
    start, end = max(0, at - width // 2), at + width
    return ("…" if start else "") + repr(text[start:end])[1:-1] + ("…" if end < len(text) else " (end)")


def _ids(a: _Request, b: _Request, means: _Means) -> _Outcome:
    if a.input_ids is None or b.input_ids is None:
        return None, "not given by both"
    if len(a.input_ids) != len(b.input_ids):
        return {"a": f"{len(a.input_ids)} rows", "b": f"{len(b.input_ids)} rows", "position": None,
                "why": "not as many conversations"}, ""
    for row, (ours, theirs) in enumerate(zip(a.input_ids, b.input_ids, strict=True)):
        if ours != theirs:
            at = _first_difference(ours, theirs)
            return {"position": at, "row": row, "a": means.name(ours, at), "b": means.name(theirs, at),
                    "why": f"{len(ours)} and {len(theirs)} tokens{_reading(ours, theirs, at)}"}, ""
    return None, f"equal ({', '.join(str(len(row)) for row in a.input_ids)} tokens)"


def _reading(ours: list[int], theirs: list[int], at: int) -> str:
    """Name the usual causes by what the ids look like."""
    longer, shorter = (ours, theirs) if len(ours) > len(theirs) else (theirs, ours)
    extra = len(longer) - len(shorter)
    if extra and longer[extra:] == shorter and at == 0:
        return f": one starts {extra} tokens later (truncation from the left, or a special token not added?)"
    if extra and longer[at + extra :] == shorter[at:] and at < len(shorter):
        doubled = at >= 1 and extra == 1 and longer[at] == longer[at - 1]
        return (f": {longer[at]} stands twice (special tokens added to a text that already has them?)" if doubled
                else f": {extra} more in one place, the rest is equal")
    if extra and at == len(shorter):
        return f": one stops {extra} tokens earlier (truncation, or no generation prompt?)"
    return ""


def _masks(a: _Request, b: _Request, means: _Means) -> _Outcome:
    given = [request.attention_mask for request in (a, b)]
    if given == [None, None]:
        return None, "not given by both"
    if None in given:
        mask = next(mask for mask in given if mask is not None)
        hidden = sum(row.count(0) for row in mask)
        if not hidden:
            return None, "equal in effect: given by one, and it hides nothing"
        words = [f"hides {hidden} positions" if mask is not None else "not given" for mask in given]
        return {"position": None, "a": words[0], "b": words[1], "why": "without a mask, padding is read as text"}, ""
    for row, (ours, theirs) in enumerate(zip(*given, strict=False)):
        if ours != theirs:
            at = _first_difference(ours, theirs)
            values = [str(line[at]) if at < len(line) else "end" for line in (ours, theirs)]
            return {"position": at, "row": row, "a": values[0], "b": values[1],
                    "why": "1 is read, 0 is hidden: one client sees a token that the other does not"}, ""
    return None, "equal"


def _logits(a: _Request, b: _Request, means: _Means) -> _Outcome:
    ours, theirs = (_first_step(request, means.model) for request in (a, b))
    if ours is None or theirs is None:
        return None, "not given by both, and no model to compute them"
    if ours.shape != theirs.shape:
        return {"position": None, "a": list(ours.shape), "b": list(theirs.shape),
                "why": "another vocabulary or batch"}, ""
    difference = (ours.double() - theirs.double()).abs()
    largest = float(difference.max())
    row, at = divmod(int(difference.argmax()), difference.shape[1])
    choices = [int(logits[row].argmax()) for logits in (ours, theirs)]
    choice = (f"both choose {means.name([choices[0]], 0)}" if choices[0] == choices[1]
              else f"greedy choice {means.name(choices, 0)} and {means.name(choices, 1)}")
    if ours.dtype != theirs.dtype:
        return {"position": None, "row": row, "a": str(ours.dtype), "b": str(theirs.dtype),
                "why": f"another dtype; largest difference {largest:.2g}, {choice}"}, ""
    # Not "largest <= tolerance": a NaN on one side must count as a difference.
    if not largest <= means.tolerance:
        return {"position": at, "row": row, "a": f"{float(ours[row, at]):.4g}", "b": f"{float(theirs[row, at]):.4g}",
                "why": f"largest difference {largest:.2g} (position is the token id), {choice}"}, ""
    return None, f"equal (largest difference at most {means.tolerance:g}, {choice})"


def _first_step(request: _Request, model):
    """Return the logits from which a client picks its first token, [rows, vocabulary], or None."""
    import torch

    if request.logits is not None:
        logits = torch.as_tensor(request.logits).detach().cpu()
        return logits[None] if logits.ndim == 1 else logits[:, -1] if logits.ndim == 3 else logits
    if model is None or request.input_ids is None:
        return None
    if len({len(row) for row in request.input_ids}) != 1:
        raise InputError("The rows of input_ids have different lengths; pad them before their logits can be computed.")
    device = model.get_input_embeddings().weight.device
    inputs = {"input_ids": torch.tensor(request.input_ids, device=device)}
    if request.attention_mask is not None:
        mask = inputs["attention_mask"] = torch.tensor(request.attention_mask, device=device)
        if "position_ids" in inspect.signature(model.forward).parameters:
            inputs["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        return model(**inputs).logits[:, -1].cpu()


def _first_difference(ours: Sequence, theirs: Sequence) -> int:
    pairs = zip(ours, theirs, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))


def _request(client: Callable | Mapping | Any, messages, who: str) -> _Request:
    given = client(messages) if callable(client) else client
    if isinstance(given, str):
        return _Request(given, None, None, None)
    fields = {name: given.get(name) if isinstance(given, Mapping) else getattr(given, name, None)
              for name in ("text", "input_ids", "attention_mask", "logits")}
    if all(value is None for value in fields.values()):
        raise InputError(f"{who} gives {kind(given)} without text, input_ids, attention_mask or logits. Return a "
                         "string, or a dictionary with some of these.")
    if fields["text"] is not None and not isinstance(fields["text"], str):
        raise InputError(f"{who} gives {kind(fields['text'])} as text; it must be one string.")
    return _Request(fields["text"], _rows_of(fields["input_ids"], "input_ids", who),
                    _rows_of(fields["attention_mask"], "attention_mask", who), fields["logits"])


def _rows_of(values, name: str, who: str) -> list[list[int]] | None:
    """Return [length] or [rows, length] numbers as a list of rows."""
    if values is None:
        return None
    values = values.tolist() if hasattr(values, "tolist") else list(values)
    rows = [list(row) for row in values] if values and isinstance(values[0], list | tuple) else [values]
    if not all(isinstance(number, int) for row in rows for number in row):
        raise InputError(f"{who} gives {name} that are not [length] or [rows, length] integers.")
    return rows
