"""Checkers of lesson 05, Padding and attention masks."""

from collections.abc import Callable, Sequence

from labutils.check.core import Wrong, call, exercise, prediction


def _tensor(value, shape: Sequence[int], what: str):
    """Return `value` where it is a tensor of that shape, else raise Wrong with what it is instead."""
    import torch

    if not isinstance(value, torch.Tensor):
        raise Wrong(f"{what} should be a tensor; this is a {type(value).__name__}.")
    if list(value.shape) != list(shape):
        raise Wrong(f"{what} should have the shape {list(shape)}; yours has {list(value.shape)}.")
    return value


@exercise("5.1")
def masked_softmax(function: Callable) -> str:
    """Check softmax with a mask, [batch, length]: ordinary rows, masks in the middle, large scores, a row of padding."""
    import torch

    scores = torch.tensor([[2.1, 0.8, 1.5, 0.4, 0.4], [0.3, 5.0, 0.2, 0.1, 1.0], [1e4, 1.0, 1e4, 2.0, 0.0]])
    mask = torch.tensor([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [1, 0, 1, 1, 0]])
    before = scores.clone()
    got = _tensor(call(function, scores, mask, shown="scores, mask"), [3, 5], "The result")
    if not torch.equal(scores, before):
        raise Wrong("Your function changed the scores it was given. masked_fill, without the _, leaves them alone.")
    wanted = scores.masked_fill(mask == 0, -torch.inf).softmax(-1)
    plain = scores.softmax(-1)
    if torch.allclose(got, plain, atol=1e-4):
        raise Wrong("The mask has no effect: padding still gets weight.")
    if torch.allclose(got, plain * mask, atol=1e-4):
        raise Wrong(f"You masked after the softmax: row 0 sums to {got[0].sum():.2f}, since the pads took their share first.")
    if torch.allclose(got, (scores * mask).softmax(-1), atol=1e-4):
        raise Wrong("You multiplied the scores by the mask. A score of 0 is an ordinary score, and exp(0) is 1; use minus infinity.")
    if torch.allclose(got, scores.masked_fill(mask == 1, -torch.inf).softmax(-1).nan_to_num(), atol=1e-4):
        raise Wrong("The mask is the wrong way round: 1 means real, and your weights fall on the padding.")
    if got.isnan().any():
        raise Wrong("There is a nan in rows that have real tokens. exp() of a large score overflows; let softmax do it.")
    if torch.allclose(got, scores.masked_fill(mask == 0, -torch.inf).softmax(0).nan_to_num(), atol=1e-4):
        raise Wrong("Your softmax runs over the batch. Each row is a distribution of its own: dim=-1.")
    if not torch.allclose(got, wanted, atol=1e-4):
        raise Wrong(f"Row 0 should be {_row(wanted[0])}; yours is {_row(got[0])}.")
    empty = call(function, scores[:1], torch.zeros(1, 5, dtype=torch.long), shown="scores, a mask of zeros")
    if empty.isnan().any():
        raise Wrong("A row that is all padding gives nan, since it is a softmax over nothing. Put 0 wherever the mask is 0.")
    if empty.abs().max() > 0:
        raise Wrong(f"A row that is all padding should get weight 0 everywhere; yours is {_row(empty[0])}. "
                    "A large negative number instead of minus infinity does that.")
    return "Right: three masks, large scores, and a row of nothing but padding."


def _row(values) -> str:
    return "[" + ", ".join(f"{value:.3f}" for value in values.tolist()) + "]"


@prediction("5.1")
def mean_of_all(guess: float, alone, together) -> str:
    """Compare a guess with the cosine of the plain means of the same text; alone, together: [batch, length, size]."""
    import torch

    if not isinstance(guess, int | float):
        raise Wrong(f"A number between -1 and 1 was asked for; this is {guess!r}.")
    measured = torch.cosine_similarity(alone.mean(1)[0], together.mean(1)[0], dim=-1).item()
    if abs(guess - measured) <= 0.1:
        return f"You said {guess:g}, measured {measured:.2f}. How could it fall so low, when the mask was right?"
    hint = "The mask was right. Which positions went into the mean?" if guess > measured else "Lower than it is: some of it survives."
    raise Wrong(f"You said {guess:g}, measured {measured:.2f}. {hint}")


@exercise("5.2")
def masked_mean(function: Callable) -> str:
    """Check the mean of real positions, [batch, length, size] and [batch, length] -> [batch, size], both padding sides."""
    import torch

    hidden = torch.arange(1.0, 25.0).reshape(2, 4, 3)
    mask = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 1]])
    got = _tensor(call(function, hidden, mask, shown="hidden, mask"), [2, 3], "The result")
    wanted = torch.stack([hidden[0, :2].mean(0), hidden[1, 1:].mean(0)])
    if torch.allclose(got.float(), hidden.mean(1)):
        raise Wrong("The mask has no effect: the pads are in your mean.")
    if torch.allclose(got.float(), (hidden * mask[..., None]).mean(1)):
        raise Wrong("You divide by the length of the rectangle. Divide each row by its own number of real tokens.")
    if torch.allclose(got.float(), (hidden * mask[..., None]).sum(1)):
        raise Wrong("That is the sum of the real positions. A mean is divided by how many there are.")
    if torch.allclose(got.float(), (hidden * mask[..., None]).sum(1) / mask.sum()):
        raise Wrong("You divide by the real tokens of the whole batch, so a text's vector depends on its company again.")
    if torch.allclose(got.float(), torch.stack([hidden[0, :2].mean(0), hidden[1, :3].mean(0)])):
        raise Wrong("You took the first tokens of each row. In row 1 the padding is on the left; follow the mask.")
    if not torch.allclose(got.float(), wanted):
        raise Wrong(f"Row 0 should be {_row(wanted[0])}; yours is {_row(got[0])}.")
    half = call(function, hidden.bfloat16(), mask, shown="bfloat16 states, mask")
    if half.dtype != torch.bfloat16:
        raise Wrong(f"bfloat16 states came back as {half.dtype}. Convert the mask to the type of the states.")
    return "Right, whichever side the padding is on."


@prediction("5.2")
def survivors(guess: int, alone: Sequence[str], together: Sequence[str]) -> str:
    """Compare a guess with how many texts of `together` equal those of `alone`."""
    measured = sum(a == b for a, b in zip(alone, together, strict=True))
    if isinstance(guess, bool) or not isinstance(guess, int) or not 0 <= guess <= len(alone):
        raise Wrong(f"A number from 0 to {len(alone)} was asked for; this is {guess!r}.")
    if guess == measured:
        return f"{measured}, as measured. Which one, and why that one? Read on."
    reason = {
        len(alone): "The mask was correct, so attention never looked at a pad. What else could go wrong?",
        0: "One text had no padding at all, so nothing could go wrong with it.",
    }.get(guess, "Which rows end in a pad?")
    raise Wrong(f"You said {guess}, measured {measured}. {reason}")


@exercise("5.3")
def left_pad(function: Callable) -> str:
    """Check left padding of lists of ids: three lengths, a row that holds the pad's id as a real token, a batch of one."""
    import torch

    pad = 2
    rows = [[1, 11, 12, 2], [1, 2, 14, 15, 16, 2], [1, 17]]
    copy = [list(row) for row in rows]
    result = call(function, rows, pad, shown="three rows, pad_token_id=2")
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise Wrong("Return two tensors: input_ids, attention_mask.")
    if rows != copy:
        raise Wrong("Your function changed the rows it was given. Build new lists: [pad] * missing + row.")
    ids, mask = (_tensor(value, [3, 6], name) for value, name in zip(result, ("input_ids", "attention_mask"), strict=True))
    if ids.is_floating_point():
        raise Wrong(f"input_ids are {ids.dtype}; ids are whole numbers (torch.long).")
    wanted = torch.tensor([[2, 2, 1, 11, 12, 2], [1, 2, 14, 15, 16, 2], [2, 2, 2, 2, 1, 17]])
    wanted_mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1]])
    if torch.equal(ids, torch.tensor([[1, 11, 12, 2, 2, 2], [1, 2, 14, 15, 16, 2], [1, 17, 2, 2, 2, 2]])):
        raise Wrong("The last column must be a real token in every row; row 0 ends in a pad.")
    if not torch.equal(ids, wanted):
        at = int((ids != wanted).any(1).nonzero()[0])
        raise Wrong(f"Row {at} of input_ids should be {wanted[at].tolist()}; yours is {ids[at].tolist()}.")
    if torch.equal(mask.long(), (wanted != pad).long()):
        raise Wrong("Row 1 holds a real token with the pad's id (here pad = eos). Your mask hides it.")
    if torch.equal(mask.long(), 1 - wanted_mask):
        raise Wrong("The mask is the wrong way round: 1 means real.")
    if torch.equal(mask.long(), wanted_mask.flip(-1)):
        raise Wrong("The mask marks the padding on the right, the ids have it on the left.")
    if not torch.equal(mask.long(), wanted_mask):
        at = int((mask.long() != wanted_mask).any(1).nonzero()[0])
        raise Wrong(f"Row {at} of attention_mask should be {wanted_mask[at].tolist()}; yours is {mask[at].tolist()}.")
    one = call(function, [[1, 5]], 0, shown="one row, pad_token_id=0")
    if one[0].tolist() != [[1, 5]] or one[1].tolist() != [[1, 1]]:
        raise Wrong(f"A batch of one needs no padding: [[1, 5]] became {one[0].tolist()}.")
    return "Right. Three rows, three lengths, pad = eos included."


@exercise("5.4")
def sliding_windows(function: Callable) -> str:
    """Check overlapping windows over a list of ids: coverage, overlap, the end, short lists, an impossible overlap."""
    ids = list(range(10))
    got = call(function, ids, 4, 1, shown="10 ids, size=4, overlap=1")
    got = [list(window) for window in got]
    wanted = [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9]]
    if got == [*wanted, [9]]:
        raise Wrong("Your last window, [9], adds nothing: the one before already reached the end.")
    if any(len(window) > 4 for window in got):
        raise Wrong(f"A window is longer than size=4: {max(got, key=len)}.")
    if got == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]:
        raise Wrong("Your windows do not overlap. Each starts with the last id of the one before: step size - overlap.")
    if set().union(*got) != set(ids):
        raise Wrong(f"Some ids are in no window: {sorted(set(ids) - set().union(*got))}.")
    if got == [[start + k for k in range(4)] for start in range(7)]:
        raise Wrong("You step by one. The step is size - overlap; here 3.")
    if got != wanted:
        raise Wrong(f"10 ids with size=4 and overlap=1 should give {wanted}; yours gives {got}.")
    uneven = [list(window) for window in call(function, ids, 6, 2, shown="10 ids, size=6, overlap=2")]
    if uneven != [[0, 1, 2, 3, 4, 5], [4, 5, 6, 7, 8, 9]]:
        raise Wrong(f"10 ids with size=6 and overlap=2 should give two windows; yours gives {uneven}.")
    rest = [list(window) for window in call(function, ids, 5, 2, shown="10 ids, size=5, overlap=2")]
    if rest != [[0, 1, 2, 3, 4], [3, 4, 5, 6, 7], [6, 7, 8, 9]]:
        raise Wrong(f"The last window may be shorter: [6, 7, 8, 9] with size=5 and overlap=2; yours gives {rest}.")
    if [list(window) for window in call(function, [7, 8], 4, 2, shown="2 ids, size=4, overlap=2")] != [[7, 8]]:
        raise Wrong("A text that fits in one window gives one window, with all of it.")
    try:
        endless = function(ids, 4, 4)
    except ValueError:
        return "Right: covered to the end, no empty repeats, and an impossible overlap is refused."
    except Exception as error:
        raise Wrong(f"overlap=4 with size=4 cannot advance. Refuse it with a ValueError; yours is {type(error).__name__}.") from error
    raise Wrong(f"overlap=4 with size=4 cannot advance, yet yours returned {len(list(endless))} windows. Raise a ValueError.")
