"""Checkers of lesson 06, Logits and hidden states."""

import math
from collections.abc import Callable, Mapping, Sequence

from labutils.check.core import Wrong, call, exercise, prediction


def _number(value, what: str) -> float:
    """Return one number as a float, be it a float or a tensor with one element; else raise Wrong."""
    import torch

    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, bool) or not isinstance(value, int | float):
        shape = f" of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else ""
        raise Wrong(f"{what} should be one number; this is a {type(value).__name__}{shape}.")
    return float(value)


@prediction("6.1")
def probability_order(guess: Sequence[str], probabilities: Mapping[str, float]) -> str:
    """Compare a guessed order of words, most probable first, with their measured probabilities."""
    if isinstance(guess, str) or not isinstance(guess, Sequence) or sorted(map(str, guess)) != sorted(probabilities):
        raise Wrong(f"A list of the words {', '.join(map(repr, probabilities))} was asked for; this is {guess!r}.")
    measured = sorted(probabilities, key=probabilities.get, reverse=True)
    shown = ", ".join(f"{word!r} {probabilities[word]:.3f}" for word in measured)
    if list(guess) == measured:
        return f"As measured: {shown}."
    if list(guess)[0] == measured[0]:
        raise Wrong(f"The first is right. Measured: {shown}. A true sentence may go on in many ways, and so may this one.")
    raise Wrong(f"Measured: {shown}. It is a language model: it ranks what texts say next.")


@exercise("6.1")
def log_probability(function: Callable) -> str:
    """Check the log-probability of ids[start:] from logits [length, vocabulary] and ids [length]."""
    import torch

    logits = torch.randn(6, 7, generator=torch.Generator().manual_seed(6)) * 2
    ids = torch.tensor([1, 4, 2, 6, 3, 3])
    each = logits[:-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]       # entry p - 1 is the guess for position p
    wanted = each[2:].sum().item()
    got = _number(call(function, logits, ids, 3, shown="logits, ids, start=3"), "The result")

    def near(value) -> bool:
        return abs(got - float(value)) < 1e-4

    if near(logits.log_softmax(-1).gather(1, ids[:, None])[3:].sum()):
        raise Wrong("You are one position too late: the logits at position p are the guess for position p + 1.")
    if near(wanted / 3):
        raise Wrong("You divided by the number of tokens. That is the mean; the whole continuation is the sum.")
    if near(math.exp(wanted)):
        raise Wrong(f"That is the probability, {got:.2g}. Leave it a logarithm: products of many shares underflow to 0.")
    if near(each.sum()):
        raise Wrong("Your sum holds the prompt too. Only the tokens from `start` on belong to the continuation.")
    if near(each[3:].sum()):
        raise Wrong("You left out the first token of the continuation. Its guess stands at position start - 1.")
    if near(logits[:-1].gather(1, ids[1:, None])[2:].sum()):
        raise Wrong("You added raw logits. They become log-probabilities by log_softmax over the vocabulary.")
    if near(-wanted):
        raise Wrong(f"The sign is wrong: the logarithm of a probability is never above 0; yours is {got:.3f}.")
    if not near(wanted):
        raise Wrong(f"Six positions, start=3: it should be {wanted:.3f}; yours is {got:.3f}.")
    one = _number(call(function, logits, ids, 5, shown="logits, ids, start=5"), "The result")
    if abs(one - each[4].item()) > 1e-4:
        raise Wrong(f"For the last token alone (start=5) it should be {each[4]:.3f}; yours is {one:.3f}.")
    return "Right: three tokens, and one."


@exercise("6.2")
def causal_lm_loss(function: Callable) -> str:
    """Check the loss of logits [batch, length, vocabulary] and labels [batch, length] with -100 where nothing is learned."""
    import torch
    from torch.nn.functional import cross_entropy

    logits = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(62)) * 2
    labels = torch.tensor([[-100, -100, 3, 6, 1], [2, 5, 5, -100, -100]])
    before = labels.clone()
    got = _number(call(function, logits, labels, shown="logits, labels"), "The loss")
    if not torch.equal(labels, before):
        raise Wrong("Your function changed the labels it was given. Work on a copy, or on labels[:, 1:].")

    def mean(guesses, targets, **options) -> float:
        return cross_entropy(guesses.reshape(-1, 7), targets.reshape(-1), **options).item()

    ahead, targets = logits[:, :-1], labels[:, 1:]
    wanted = mean(ahead, targets)
    rows = [mean(one, each) for one, each in zip(ahead, targets, strict=True)]
    if not math.isfinite(got):
        raise Wrong(f"The loss is {got}. exp() or log() left its range; cross_entropy or log_softmax take raw logits.")
    for value, diagnosis in (
        (mean(logits, labels), "You did not shift. The logits at position p belong to the label at position p + 1."),
        (mean(logits[:, 1:], labels[:, :-1]), "You shifted the wrong way: drop the last logits and the first label."),
        (mean(ahead, targets, reduction="sum"), "That is the sum of the losses. The model's loss is their mean."),
        (mean(ahead, targets, reduction="sum") / targets.numel(),
         "You divide by all positions. Those with -100 do not count: here five of the eight do."),
        (sum(rows) / 2, "You averaged row by row. Row 0 has more labels than row 1; the mean runs over all tokens at once."),
        (mean(ahead, targets.clamp(min=0)), "The -100 positions are in your loss, with id 0 as their label. Leave them out."),
        (mean(ahead.softmax(-1), targets), "You gave cross_entropy probabilities. It applies log_softmax itself: give logits."),
        (-wanted, "The sign is wrong: a loss is minus the log-probability."),
    ):
        if abs(got - value) < 1e-5:
            raise Wrong(diagnosis)
    if abs(got - wanted) > 1e-5:
        raise Wrong(f"The loss should be {wanted:.6f}; yours is {got:.6f}.")
    return "Right: shifted, and -100 left out, in a batch with uneven rows."


@prediction("6.2")
def lowest_perplexity(guess: str, perplexities: Mapping[str, float]) -> str:
    """Compare a guessed language with the one of lowest perplexity."""
    if guess not in perplexities:
        raise Wrong(f"One of {', '.join(perplexities)} was asked for; this is {guess!r}.")
    lowest = min(perplexities, key=perplexities.get)
    if guess == lowest:
        return f"{lowest}, as measured: {perplexities[lowest]:.0f}. Does that mean the model knows it best?"
    raise Wrong(f"You said {guess}, {perplexities[guess]:.0f}; the lowest is {lowest}, {perplexities[lowest]:.0f}. "
                "Perplexity counts per token. What is one token in each language?")


@exercise("6.3")
def reliability_bins(function: Callable) -> str:
    """Check reliability bins: probabilities and labels -> (count, mean probability, share of label 1), empty bins left out."""
    stated = [0.05, 0.15, 0.25, 0.6, 0.7, 0.7, 1.0, 0.9]
    labels = [0, 1, 0, 1, 1, 0, 1, 1]
    got = _bins(call(function, stated, labels, 4, shown="8 probabilities, 8 labels, bins=4"))
    wanted = [(2, 0.1, 0.5), (1, 0.25, 0.0), (3, 2 / 3, 2 / 3), (2, 0.95, 1.0)]
    if len(got) == 4 and sum(row[0] for row in got) == 7:
        raise Wrong("One sentence is missing: the probability 1.0 belongs to the last bin.")
    if len(got) == 5:
        raise Wrong("Four bins were asked for and you return five: the probability 1.0 belongs to the last, none of its own.")
    if [row[0] for row in got] == [3, 0, 3, 2] or [row[0] for row in got] == [3, 3, 2]:
        raise Wrong("0.25 is the lower edge of the second bin and belongs to it: int(p * bins).")
    if [row[0] for row in got] != [2, 1, 3, 2]:
        raise Wrong(f"The bins should hold 2, 1, 3 and 2 sentences, the lowest first; yours hold {[row[0] for row in got]}.")
    if _close(row[1] for row in got)([0.125, 0.375, 0.625, 0.875]):
        raise Wrong("You give the middle of each bin. What was stated is the mean of the probabilities in it.")
    if _close(row[2] for row in got)([0.5, 1.0, 2 / 3, 1.0]):
        raise Wrong("That is the share of right answers. For a stated probability of label 1, count how many have the label 1.")
    if _close(row[2] for row in got)([1, 0, 2, 2]):
        raise Wrong("That is the number of sentences with label 1. Divide by the size of the bin.")
    for at, (mine, yours) in enumerate(zip(wanted, got, strict=True)):
        if not _close(yours)(mine):
            raise Wrong(f"Bin {at} should be {_shown(mine)}; yours is {_shown(yours)}.")
    sparse = _bins(call(function, [0.1, 0.95], [0, 1], 10, shown="[0.1, 0.95], [0, 1], bins=10"))
    if len(sparse) != 2:
        raise Wrong(f"Two probabilities fill two of ten bins; yours returns {len(sparse)}. Leave empty bins out.")
    return "Right: edges, a probability of 1, and bins with nothing in them."


def _bins(value) -> list[tuple]:
    rows = [tuple(row) if isinstance(row, Sequence) else (row,) for row in value] if isinstance(value, Sequence) else None
    if not rows or any(len(row) != 3 for row in rows):
        raise Wrong("Return a list of (count, mean probability, share of label 1), one for each bin that holds something.")
    return [tuple(_number(each, "Each of the three") for each in row) for row in rows]


def _close(values) -> Callable:
    values = list(values)
    return lambda others: all(abs(a - b) < 1e-4 for a, b in zip(values, others, strict=True))


def _shown(row: Sequence[float]) -> str:
    return f"({row[0]:g}, {row[1]:.3f}, {row[2]:.3f})"


@exercise("6.4")
def word_cosines(function: Callable) -> str:
    """Check the cosine of two positions, layer by layer: two tuples of [1, length, size], two positions -> list."""
    import torch

    make = torch.Generator().manual_seed(64)
    first = tuple(torch.randn(1, 5, 4, generator=make) for _ in range(3))
    second = tuple(torch.randn(1, 6, 4, generator=make) for _ in range(3))
    got = call(function, first, second, 1, 4, shown="first, second, 1, 4")
    if isinstance(got, torch.Tensor):
        got = got.tolist()
    if not isinstance(got, Sequence):
        raise Wrong(f"One cosine for each layer was asked for, as a list; this is a {type(got).__name__}.")
    got = [_number(each, "Each cosine") for each in got]
    if len(got) != 3:
        raise Wrong(f"There are 3 sets of hidden states, the embeddings included; you return {len(got)} cosines.")

    def cosines(i, j):
        return [torch.cosine_similarity(a[0, i], b[0, j], dim=-1).item() for a, b in zip(first, second, strict=True)]

    if _close(got)(cosines(1, 1)):
        raise Wrong("You used the first position in both texts. The word stands at another one in the second.")
    if _close(got)([(a[0, 1] @ b[0, 4]).item() for a, b in zip(first, second, strict=True)]):
        raise Wrong("That is the dot product. A cosine is divided by both lengths.")
    if _close(got)([torch.cosine_similarity(a.mean(1)[0], b.mean(1)[0], dim=-1).item()
                    for a, b in zip(first, second, strict=True)]):
        raise Wrong("You compared the means of the two texts. One word was asked for: take its position only.")
    if _close(got)(cosines(4, 1)):
        raise Wrong("The two positions are swapped.")
    if not _close(got)(cosines(1, 4)):
        wanted = [round(each, 3) for each in cosines(1, 4)]
        raise Wrong(f"The cosines should be {wanted}; yours are {[round(each, 3) for each in got]}.")
    return "Right: one cosine for each layer, embeddings included."
