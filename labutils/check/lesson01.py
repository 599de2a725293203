"""Checkers of lesson 01, Inside pipeline()."""

from collections.abc import Callable

from labutils.check.core import Wrong, call, exercise, prediction


@prediction("1.1")
def logits_shape(guess: tuple, logits) -> str:
    """Compare a guessed shape with that of the logits, [batch, labels]."""
    measured = tuple(logits.shape)
    try:
        said = tuple(guess)
    except TypeError:
        raise Wrong(f"A shape was asked for, such as (4, 7); this is {guess!r}.") from None
    if said == measured:
        return f"{said}, as measured: one row for each text, one column for each label."
    reason = "One row for each text, one column for each label; the length of the texts is gone."
    if said == measured[::-1]:
        reason = "The batch always comes first."
    elif len(said) == 3:
        reason = "Three dimensions are the hidden states, one vector for each position. The head keeps one row for each text."
    elif len(said) == 1:
        reason = "Each text has a score for each label, so there are two dimensions."
    raise Wrong(f"You said {said}, measured {measured}. {reason}")


@prediction("1.2")
def softmax_sum(guess: float, probabilities) -> str:
    """Compare a guess with the sum of all probabilities of a batch, [batch, labels]."""
    if not isinstance(guess, int | float):
        raise Wrong(f"A number was asked for; this is {guess!r}.")
    measured = probabilities.sum().item()
    if abs(guess - measured) < 1e-3:
        return f"{guess:g}, as measured. Each text is a whole of its own: one for each row."
    reason = "One is the sum of a single row; there is one for each text." if guess == 1 else "Each row adds up to 1."
    raise Wrong(f"You said {guess:g}, measured {measured:.4f}. {reason}")


OVER_BATCH = " Your softmax runs over the batch; each text is a whole of its own."


@exercise("1.1")
def classify(function: Callable, classifier) -> str:
    """Check a function from texts to labels and scores against the pipeline `classifier`, to 1e-6."""
    for texts in (["I really like this course!"], ["What a waste of time!", "Not bad at all.", "Well, " * 700 + "good."]):
        shown = f"{len(texts)} texts" if len(texts) > 1 else repr(texts)
        wanted = classifier(texts, truncation=True)
        got = call(function, texts, shown=shown)
        if isinstance(got, dict) or not hasattr(got, "__len__"):
            raise Wrong("Return a list with one dictionary for each text, for a single text too.")
        if len(got) != len(texts):
            raise Wrong(f"{len(texts)} texts went in, {len(got)} results came out.")
        for text, right, mine in zip(texts, wanted, got, strict=True):
            named = repr(text if len(text) < 40 else text[:39] + "…")
            if not isinstance(mine, dict) or set(mine) != {"label", "score"}:
                raise Wrong(f'Each result is a dictionary with "label" and "score"; for {named} you returned {mine!r}.')
            try:
                score = float(mine["score"])
            except (TypeError, ValueError):
                raise Wrong(f"The score of {named} should be one number; yours is {mine['score']!r}.") from None
            if not isinstance(mine["label"], str):
                raise Wrong(f"The label of {named} should be a name such as {right['label']!r}; yours is {mine['label']!r}. "
                            "config.id2label translates.")
            if not 0 <= score <= 1:
                raise Wrong(f"The score of {named} is {score:.2f}, which is no probability. The softmax is missing.")
            if mine["label"] != right["label"]:
                reason = OVER_BATCH if _over_batch(classifier, texts, score) else " Where do your labels come from?"
                raise Wrong(f"{named} is {right['label']} for the pipeline and {mine['label']} for you.{reason}")
            if abs(score - right["score"]) > 1e-6:
                reason = OVER_BATCH if _over_batch(classifier, texts, score) else ""
                raise Wrong(f"The score of {named} is {right['score']:.7f} for the pipeline and {score:.7f} for you.{reason}")
    return "Right: labels and scores equal to the pipeline's to 1e-6, several lengths and a text beyond the window included."


def _over_batch(classifier, texts: list[str], score: float) -> bool:
    import torch

    inputs = classifier.tokenizer(texts, padding=True, truncation=True, return_tensors="pt").to(classifier.model.device)
    with torch.inference_mode():
        shares = classifier.model(**inputs).logits.softmax(dim=0)
    return bool((shares - score).abs().min() < 1e-6)


@exercise("1.2")
def label_of(function: Callable) -> str:
    """Check a function from probabilities [labels] and a config to the label's name, with three label orders."""
    import torch
    from transformers import PretrainedConfig

    two = PretrainedConfig(id2label={0: "NEGATIVE", 1: "POSITIVE"})
    swapped = PretrainedConfig(id2label={0: "POSITIVE", 1: "NEGATIVE"})
    three = PretrainedConfig(id2label={0: "bad", 1: "so-so", 2: "good"})
    for shares, config, wanted in (([0.2, 0.8], two, "POSITIVE"), ([0.7, 0.3], swapped, "POSITIVE"),
                                   ([0.3, 0.4, 0.3], three, "so-so"), ([0.1, 0.2, 0.7], three, "good")):
        got = call(function, torch.tensor(shares), config, shown=f"{shares}, {config.id2label}")
        if isinstance(got, torch.Tensor | int):
            raise Wrong(f"You returned {got!r}, a number. The name stands in config.id2label.")
        if got == wanted:
            continue
        if config is swapped:
            raise Wrong(f"This config calls column 0 'POSITIVE'. You said {got!r}: your order does not come from the config.")
        if config is three:
            raise Wrong(f"A model with three labels gave {shares}; that is {wanted!r}, you said {got!r}. "
                        "Take the largest, whatever its size.")
        raise Wrong(f"{shares} with {config.id2label} is {wanted!r}; you said {got!r}.")
    return "Right, in either order and with three labels."


@exercise("1.3")
def lost_tokens(function: Callable, tokenizer) -> str:
    """Check a function from a text to how many tokens truncation would drop."""
    window = tokenizer.model_max_length
    for text in ("Short.", "good " * (window - 2), "antidisestablishmentarianism " * (window + 88), "good " * (window + 40)):
        whole = len(tokenizer(text, truncation=False, verbose=False)["input_ids"])
        wanted = max(0, whole - window)
        got = call(function, text, shown=f"a text of {whole} tokens")
        if got == wanted:
            continue
        if isinstance(got, int | float) and got < 0:
            raise Wrong(f"A text of {whole} tokens fits into {window} places: nothing is lost, 0. You returned {got}.")
        if wanted and got == wanted - 2:
            raise Wrong(f"You forgot that [CLS] and [SEP] take two of the {window} places: {wanted} are lost, not {got}.")
        if got == whole:
            raise Wrong("That is the whole length. Only what lies beyond the window is lost.")
        if got == max(0, len(text.split()) - window) or got == max(0, len(text) - window):
            raise Wrong(f"You counted words or letters. The window holds tokens; this text has {whole}.")
        if got == 0:
            raise Wrong(f"A text of {whole} tokens does not fit into {window} places, yet you returned 0. "
                        "Was it already cut when you counted it?")
        raise Wrong(f"A text of {whole} tokens loses {wanted} in a window of {window}; you returned {got!r}.")
    return "Right, special tokens included."


SURPRISES = {
    "capitals_make_no_difference": ("tokenizer", {
        "model": "The model never saw the capitals: their ids were already the same.",
        "post-processing": "The ids were already the same, long before there was a score.",
    }),
    "sure_and_wrong": ("model", {
        "tokenizer": "The tokens were fine, no word was lost. What the weights make of them is the model's.",
        "post-processing": "The softmax kept the order: the wrong logit was already the larger one.",
    }),
    "all_labels_swapped": ("post-processing", {
        "tokenizer": "The tokens were fine, and so were the logits. Only their names were wrong.",
        "model": "The logits were right; the remembered list gave them the wrong names.",
    }),
    "another_score_on_each_call": ("model", {
        "tokenizer": "The ids are the same on each call.",
        "post-processing": "A softmax of the same logits is always the same. The logits changed: dropout was on.",
    }),
    "a_long_text_stops_with_an_error": ("tokenizer", {
        "model": "The model noticed it, rightly. What was missing is truncation=True, in stage one.",
        "post-processing": "It never got that far.",
    }),
}


@exercise("1.4")
def stages(*answers: str) -> str:
    """Check which stage ("tokenizer", "model", "post-processing") each of the five surprises comes from."""
    if len(answers) != len(SURPRISES):
        raise Wrong(f"Five answers were asked for; there are {len(answers)}.")
    faults = []
    for answer, (surprise, (right, explained)) in zip(answers, SURPRISES.items(), strict=True):
        if answer == right:
            continue
        if answer not in explained:
            raise Wrong(f'{surprise}: answer "tokenizer", "model" or "post-processing"; this is {answer!r}.')
        faults.append(f"{surprise}: {explained[answer]}")
    if faults:
        raise Wrong(f"{5 - len(faults)} of 5. {' '.join(faults)}")
    return "Five of five. Look at the ids, then at the logits, then at the labels."
