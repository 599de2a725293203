"""Checkers of lesson 00, Start here."""

from collections.abc import Callable
from typing import Any

from labutils.check.core import Wrong, call, exercise, prediction


@prediction("0.1")
def megabytes(guess: float, model) -> str:
    """Compare a guess in 10**6 bytes with the weights of `model`; within 5 % counts."""
    measured = sum(weight.nbytes for weight in model.parameters()) / 1e6
    if not isinstance(guess, int | float):
        raise Wrong(f"A number was asked for, such as 250; this is {guess!r}.")
    if abs(guess - measured) <= 0.05 * measured:
        return f"You said {guess:g}, measured {measured:.1f} MB: parameters times {model.dtype.itemsize} bytes."
    if abs(guess / 8 - measured) <= 0.05 * measured:
        raise Wrong(f"You said {guess:g}, measured {measured:.1f} MB. You counted bits; eight of them make a byte.")
    if abs(guess * 2 - measured) <= 0.05 * measured:
        raise Wrong(f"You said {guess:g}, measured {measured:.1f} MB. That would be 2 bytes for each; look at the dtype.")
    if abs(guess - model.num_parameters() / 1e6) <= 5:
        raise Wrong(f"You said {guess:g}, measured {measured:.1f} MB. That is how many million numbers there are; "
                    f"each takes {model.dtype.itemsize} bytes.")
    raise Wrong(f"You said {guess:g}, measured {measured:.1f} MB. Multiply the parameters by the bytes of one number.")


@exercise("0.1")
def weight_bytes(function: Callable[[Any], int]) -> str:
    """Check a function that returns the bytes of a model's weights, on three small models, one with a shared tensor."""
    import torch
    from torch import nn

    plain = nn.Linear(3, 4)
    half = nn.Linear(3, 4, dtype=torch.bfloat16)
    tied = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
    tied[1].weight = tied[0].weight

    got = call(function, plain, shown="a float32 model of 16 parameters")
    if isinstance(got, torch.Tensor):
        got = got.item()
    if got == 2:
        raise Wrong("You counted the tensors: 2. Each holds many numbers; .numel() says how many.")
    if got == 16:
        raise Wrong("You counted numbers, not bytes. Each of the 16 takes 4 bytes here: .element_size().")
    if isinstance(got, float) and got in (64 / 1e6, 64 / 2**20):
        raise Wrong("You returned megabytes. Return bytes, as a whole number: 64 for this model.")
    if got != 64:
        raise Wrong(f"16 parameters of 4 bytes are 64 bytes; you returned {got!r}.")
    if (got := call(function, half, shown="a bfloat16 model of 16 parameters")) != 32:
        raise Wrong(f"In bfloat16 the 16 parameters take 32 bytes; you returned {got!r}. "
                    "Ask each tensor for its element_size() instead of writing 4.")
    got = call(function, tied, shown="a model whose two layers share one tensor")
    if got == 120:
        raise Wrong("You counted a shared tensor twice: it has two names in state_dict(), but lies in memory once.")
    if got != 60:
        raise Wrong(f"A model whose two layers share one [5, 3] tensor weighs 60 bytes; you returned {got!r}.")
    return "Right for float32, for bfloat16, and for a model whose layers share a tensor."


@prediction("0.2")
def still_paris(guess: str, tokenizer, model) -> str:
    """Compare "yes" or "no" with what the model puts first after the text with a space at its end."""
    answer = str(guess).strip().lower()
    if answer not in ("yes", "no"):
        raise Wrong(f'Answer "yes" or "no"; this is {guess!r}.')
    first = _next(tokenizer, model, "The capital of France is ")
    measured = "yes" if "paris" in first.lower() else "no"
    seen = f"With the space the model puts {first!r} first."
    if answer == measured:
        return f"{measured}, as measured. {seen} The space belongs to the token ' Paris'; lesson 03 shows why."
    raise Wrong(f"You said {answer}, measured {measured}. {seen} The space belongs to the token ' Paris', and you have "
                "already spent it; lesson 03 shows why.")


@exercise("0.2")
def next_word(function: Callable[[str], str], tokenizer, model) -> str:
    """Check a function from text to the most probable next token, on three texts against the model itself."""
    for text in ("The capital of France is", "One, two, three,", "Once upon a"):
        wanted, got = _next(tokenizer, model, text), call(function, text)
        if hasattr(got, "item") or isinstance(got, int):
            number = int(got) if getattr(got, "numel", lambda: 1)() == 1 else None
            raise Wrong(f"You returned {'the id ' + str(number) if number is not None else 'a whole tensor'}. "
                        "Text was asked for: decode the id.")
        if not isinstance(got, str):
            raise Wrong(f"Text was asked for; you returned a {type(got).__name__}.")
        if got == wanted:
            continue
        if got.strip() == wanted.strip():
            raise Wrong(f"After {text!r} the token is {wanted!r}, with its space; you returned {got!r}. Do not strip it.")
        if got.startswith(text):
            raise Wrong("You returned the whole text. Only the next token was asked for.")
        if got == _next(tokenizer, model, text, position=0):
            raise Wrong("You read the first position. What comes after the text is decided in the last: logits[0, -1].")
        raise Wrong(f"After {text!r} the model puts {wanted!r} first; you returned {got!r}.")
    return "Right on three texts. Feed its result back in, and it writes."


def _next(tokenizer, model, text: str, position: int = -1) -> str:
    import torch

    with torch.inference_mode():
        logits = model(**tokenizer(text, return_tensors="pt").to(model.device)).logits
    return tokenizer.decode([logits[0, position].argmax().item()])
