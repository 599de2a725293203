"""Checkers of lesson 07, Decoding."""

from collections.abc import Callable, Sequence

from labutils.check.core import Wrong, call, exercise, prediction


@prediction("7.1")
def positions(guess: int, ran: Sequence[int]) -> str:
    """Compare a guess with how many positions went through the model; `ran`: the length of each pass."""
    if isinstance(guess, bool) or not isinstance(guess, int | float):
        raise Wrong(f"A number of positions was asked for; this is {guess!r}.")
    measured, prompt, new = sum(ran), ran[0], len(ran)
    if guess == measured:
        return f"{measured}, as measured: {prompt} of the prompt and {new - 1} of the {new} new tokens."
    if guess == prompt + new:
        reason = "The last token was chosen and never read: nothing comes after it."
    elif guess == sum(range(prompt, prompt + new)):
        reason = "That is the first loop, which reads everything again at each step. generate keeps what it has computed."
    elif guess == new:
        reason = "That is the number of passes. The first one reads the whole prompt."
    elif guess == prompt:
        reason = "Each new token is read once, too, so that the next can follow."
    else:
        reason = "The prompt is read once, then one position at a time. Is the last token read?"
    raise Wrong(f"You said {guess:g}, measured {measured}. {reason}")


def _teacher(script: Sequence[int], asked: list):
    """Return a model of eight tokens that continues a prompt [5, 2, 6] with `script`, and notes what it was asked."""
    import torch

    def next_logits(ids):
        if not isinstance(ids, list):
            raise Wrong(f"next_logits takes a list of ids; it was given a {type(ids).__name__}.")
        asked.append(list(ids))
        logits = torch.full((8,), -1.0)
        logits[script[min(len(asked) - 1, len(script) - 1)]] = 3.0
        return logits

    return next_logits


@exercise("7.1")
def greedy(function: Callable) -> str:
    """Check a greedy loop (next_logits, ids, max_new_tokens, ends) -> new ids: ends, a budget, what the model is asked."""
    cases = (
        ([4, 6, 2, 7, 7, 7], 6, [0, 2], [4, 6, 2], "an end token as third"),
        ([4, 0, 7, 7, 7, 7], 6, [0, 2], [4, 0], "the other end token as second"),
        ([4, 4, 4, 4, 4, 4], 4, [0, 2], [4, 4, 4, 4], "no end within four tokens"),
        ([4, 6, 7, 2, 7, 7], 4, [2], [4, 6, 7, 2], "the end exactly at the limit"),
        ([2, 7, 7, 7], 3, [2], [2], "an end at once"),
    )
    prompt = [5, 2, 6]
    for script, limit, ends, wanted, shown in cases:
        asked: list = []
        given = list(prompt)
        got = call(function, _teacher(script, asked), given, limit, list(ends),
                   shown=f"a model with {shown}, {prompt}, {limit}, {ends}")
        if given != prompt:
            raise Wrong("Your loop changed the list of ids it was given. Build a new one: ids + new.")
        if not isinstance(got, list):
            raise Wrong(f"A list of ids was asked for; this is a {type(got).__name__}.")
        got = [int(number) for number in got]
        if any(before == after for before, after in zip(asked, asked[1:], strict=False)):
            raise Wrong("The model was asked the same thing twice. Each chosen token has to be part of the next question.")
        if asked and asked[0] != prompt:
            raise Wrong(f"The first question should be the prompt, {prompt}; yours was {asked[0]}.")
        if got == wanted:
            if len(asked) > len(wanted):
                raise Wrong(f"{len(wanted)} tokens, but {len(asked)} passes: the last one was for nothing.")
            continue
        if got[:3] == prompt:
            raise Wrong("Your list begins with the prompt. That is what generate returns; here only the new ids are asked for.")
        if got == [] and len(asked) == 0:
            raise Wrong("You wrote nothing. The prompt holds token 2, an end of an earlier turn; only new tokens may stop you.")
        if got == wanted[:-1] and wanted[-1] in ends:
            raise Wrong(f"With {shown}: the end token belongs to the result, {wanted}; yours stops before it.")
        if got[:len(wanted)] == wanted and wanted[-1] in ends:
            raise Wrong(f"With {shown} you went on: {got}. Stop at any token of `ends`, here {ends}.")
        if len(got) > limit:
            raise Wrong(f"max_new_tokens was {limit}; you wrote {len(got)}.")
        if len(got) < len(wanted):
            raise Wrong(f"With {shown} you stopped after {len(got)} of {len(wanted)} tokens. Only new tokens count against the "
                        "limit.")
        raise Wrong(f"With {shown} the result should be {wanted}; yours is {got}.")
    nothing = call(function, _teacher([4], []), list(prompt), 0, [2], shown="a model, a prompt, max_new_tokens=0, [2]")
    if nothing != []:
        raise Wrong(f"max_new_tokens=0 allows nothing; yours wrote {nothing}. Look at the budget before you ask the model.")
    return "Right: two end tokens, an end at the limit, an end at once, and an end in the prompt that stops nothing."


@prediction("7.2")
def nucleus(guess: int, logits, p: float) -> str:
    """Compare a guess with how many tokens top-p keeps of logits [1, vocabulary]; within a factor of two is right."""
    if isinstance(guess, bool) or not isinstance(guess, int | float) or guess < 1:
        raise Wrong(f"A number of tokens, 1 or more, was asked for; this is {guess!r}.")
    shares = logits[0].softmax(-1).sort(descending=True).values
    measured = int((shares.cumsum(-1) - shares < p).sum())
    if measured / 2 <= guess <= measured * 2:
        return f"You said {guess:g}, measured {measured}. A long tail: most of them have less than one in a hundred."
    reason = ("Add up the first few: the best one has about a tenth. Many small ones follow." if guess < measured
              else "The head is heavier than that.")
    raise Wrong(f"You said {guess:g}, measured {measured}. {reason}")


def _count(logits) -> int:
    return int(logits.isfinite().sum())


@exercise("7.2")
def top_p(function: Callable) -> str:
    """Check a top-p filter (logits [batch, vocabulary], p) -> logits with the tail at -inf, against the library's."""
    import torch
    from transformers import TopPLogitsWarper

    shares = torch.tensor([[0.05, 0.35, 0.02, 0.15, 0.25, 0.10, 0.05, 0.03],
                           [0.01, 0.01, 0.01, 0.93, 0.01, 0.01, 0.01, 0.01]])
    logits, before = shares.log() + 3, shares.log() + 3
    got = call(function, logits, 0.8, shown="logits of two rows, 0.8")
    if not torch.equal(logits, before):
        raise Wrong("Your function changed the logits it was given. masked_fill, without the _, leaves them alone.")
    if not isinstance(got, torch.Tensor) or got.shape != logits.shape:
        raise Wrong("Return a tensor of the shape of the logits, cut tokens at -inf.")
    wanted = TopPLogitsWarper(0.8)(None, logits)
    finite, should = got.isfinite(), wanted.isfinite()
    if got.isfinite().all() and torch.allclose(got.sum(-1), torch.ones(2), atol=1e-3):
        raise Wrong("Those are probabilities. Return the logits, with -inf where a token is cut; the softmax comes later.")
    if finite.all():
        zeros = " A logit of 0 is an ordinary score." if (got == 0).any() else ""
        raise Wrong(f"Nothing is cut: every logit is finite.{zeros} Use -torch.inf.")
    if not finite[1].any():
        raise Wrong("Row 1 has lost all its tokens: its best one alone is over p. The token that carries the sum over p stays.")
    if torch.equal(finite, should):
        if not torch.allclose(got[should], wanted[should], atol=1e-5):
            raise Wrong("The right tokens are kept, but their logits have changed. Leave them as they are.")
    elif torch.equal(finite.sum(-1), should.sum(-1)):
        raise Wrong(f"Row 0 keeps the right number of tokens but the wrong ones: {_kept(finite[0])} instead "
                    f"of {_kept(should[0])}. You decided in sorted order; go back to the order of the vocabulary.")
    elif int(finite[0].sum()) == 3:
        raise Wrong("Row 0 (0.35, 0.25, 0.15, 0.10, ...) keeps 3 tokens, with 0.75 together: short of 0.8. The token "
                    "that carries the sum over p belongs to the set.")
    elif torch.equal(finite, shares >= 0.2) or torch.equal(finite, shares >= 0.8):
        raise Wrong("You compared single probabilities with p. Top-p adds them up, from the best one down.")
    else:
        raise Wrong(f"Row 0 should keep tokens {_kept(should[0])}; yours keeps {_kept(finite[0])}.")
    torch_rng = torch.Generator().manual_seed(0)
    many = torch.randn(4, 500, generator=torch_rng) * 3
    for p in (0.1, 0.5, 0.95):
        ours, theirs = call(function, many, p, shown=f"4 rows of 500 logits, {p}"), TopPLogitsWarper(p)(None, many)
        if not torch.equal(ours.isfinite(), theirs.isfinite()):
            raise Wrong(f"On 4 rows of 500 logits with p = {p} the library keeps {_count(theirs)} tokens, you keep "
                        f"{_count(ours)}.")
    if _count(call(function, logits, 1e-6, shown="logits, 0.000001")) < 2:
        raise Wrong("With p near 0 the best token of each row has to stay: something must be drawn.")
    return "Right: the same tokens as the library, on two easy rows and on 2,000 random logits at three values of p."


def _kept(finite) -> list[int]:
    return finite.nonzero().flatten().tolist()


@exercise("7.3")
def room(function: Callable) -> str:
    """Check (window, prompt_tokens, wanted) -> new tokens to allow: enough room, too little, none, and past the window."""
    cases = (
        (8192, 7000, 4000, 1192), (8192, 7000, 500, 500), (8192, 8191, 10, 1), (4096, 100, 3996, 3996),
    )
    for window, prompt, wanted, right in cases:
        got = call(function, window, prompt, wanted)
        if isinstance(got, bool) or not isinstance(got, int):
            raise Wrong(f"A whole number was asked for; room({window}, {prompt}, {wanted}) is {got!r}.")
        if got == right:
            continue
        if got == window - prompt:
            raise Wrong(f"{window - prompt} would fit, but only {wanted} are wanted. Return the smaller.")
        if got == wanted:
            raise Wrong(f"{prompt} + {wanted} is more than {window}. The prompt counts: {right} are left.")
        if got == min(wanted, window):
            raise Wrong(f"You compared with the whole window. Prompt and answer share it: {right} are left.")
        if got == right - 1:
            raise Wrong(f"You keep one position back. Allow {right}; the last token is not even read.")
        raise Wrong(f"room({window}, {prompt}, {wanted}) should be {right}; yours is {got}.")
    for window, prompt in ((8192, 9401), (8192, 8192)):
        try:
            got = function(window, prompt, 16)
        except ValueError:
            continue
        except Exception as error:
            raise Wrong(f"A prompt of {prompt} in a window of {window}: raise a ValueError, not "
                        f"{type(error).__name__}.") from error
        raise Wrong(f"A prompt of {prompt} leaves no room in a window of {window}, yet yours returned {got!r}. Raise a "
                    "ValueError, so that nobody generates past the window by accident.")
    return "Right: never more than wanted, never more than fits, and no room is an error."
