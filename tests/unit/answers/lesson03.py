"""Lesson 03, Tokenization."""

import functools
import math
from collections import Counter
from itertools import combinations, pairwise

from labutils.checkpoints import checkpoint
from tests.unit.answers import Several

COUNTS = {"English": 14, "Russian": 43, "Tamil": 129}
COSTS = {"wordpiece": (143, 0.82), "deepseek": (607, 0.0), "smollm2": (2294, 0.0)}


@functools.cache
def chat():
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = checkpoint("chat")
    return AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)


CONTEXT = {
    "Prediction 3.1": lambda: (COUNTS,),
    "Prediction 3.2": lambda: (COSTS,),
    "Exercise 3.4": chat,
}


def counted(pairs_of):
    def count(words):
        pairs = Counter()
        for word, number in words.items():
            for pair, weight in pairs_of(word, number):
                pairs[pair] += weight
        return pairs

    return count


def one_by_one(words):
    """The mistake of a list of all symbols, one word after the other."""
    return dict(Counter(pairwise([symbol for word, count in words.items() for symbol in word * count])))


def merged(words, pair, skip=2, first_only=False):
    result = {}
    for word, count in words.items():
        symbols, at, done = [], 0, False
        while at < len(word):
            if word[at:at + 2] == pair and not (done and first_only):
                symbols.append(word[at] + word[at + 1])
                at, done = at + skip, True
            else:
                symbols.append(word[at])
                at += 1
        result[tuple(symbols)] = count
    return result


def by_text(words, pair):
    """The classic shortcut: join with spaces and replace."""
    return {tuple(" ".join(word).replace(" ".join(pair), "".join(pair)).split()): count for word, count in words.items()}


def in_place(words, pair):
    new = merged(words, pair)
    words.clear()
    words.update(new)
    return words


def span(offsets, start, end, touches=lambda a, b, start, end: a < end and b > start):
    inside = [n for n, (a, b) in enumerate(offsets) if touches(a, b, start, end)]
    return inside[0], inside[-1] + 1


def surprise(tokenizer, model, text):
    import torch

    ids = tokenizer(text, return_tensors="pt")["input_ids"].to(model.device)
    if ids.max() >= model.get_input_embeddings().weight.shape[0]:
        return math.inf
    with torch.inference_mode():
        return model(input_ids=ids, labels=ids).loss.item()


def careless(tokenizer, model, text):
    ids = tokenizer(text, return_tensors="pt")["input_ids"].to(model.device)
    return model(input_ids=ids, labels=ids).loss.item() < 5


def answers():
    def rows(model):
        return model.get_input_embeddings().weight.shape[0]

    yield "Exercise 3.1", counted(lambda w, n: [(p, n) for p in pairwise(w)]), [
        (counted(lambda w, n: [(p, 1) for p in pairwise(w)]), "every word once"),
        (counted(lambda w, n: [(p, n) for p in set(pairwise(w))]), "twice in toto"),
        (counted(lambda w, n: [(p, n) for p in combinations(w, 2)]), "Only neighbours"),
        (one_by_one, "border of a word"),
        (counted(lambda w, n: [("".join(p), n) for p in pairwise(w)]), "keys are strings"),
        (counted(lambda w, n: [(tuple(sorted(p)), n) for p in pairwise(w)]), "The order within a pair"),
        (counted(lambda w, n: [(p, n) for p in pairwise("".join(w))]), "not through letters"),
        (lambda words: list(words), "A dictionary"),
    ]
    yield "Exercise 3.2", merged, [
        (by_text, "Compare symbols, not text"),
        (lambda w, p: merged(w, p, first_only=True), "Merge every place"),
        (lambda w, p: merged(w, p, skip=1), "go on behind both"),
        (lambda w, p: {word: 1 for word in merged(w, p)}, "their counts are not"),
        (in_place, "changed the words"),
        (lambda w, p: {"".join(word): n for word, n in w.items()}, "tuples of symbols"),
        (lambda w, p: dict(w), "is missing"),
        (lambda w, p: merged(merged(w, p), p[::-1]), "another pair than"),
    ]
    yield "Exercise 3.3", span, [
        (lambda o, s, e: (span(o, s, e)[0], span(o, s, e)[1] - 1), "leaves out its end"),
        (lambda o, s, e: span(o, s, e, lambda a, b, s, e: a < e and b >= s), "special token"),
        (lambda o, s, e: span(o, s, e, lambda a, b, s, e: a <= e and b > s), "takes a neighbour"),
        (lambda o, s, e: ([a for a, _ in o].index(s), [b for _, b in o].index(e) + 1), "special token"),
        (lambda o, s, e: span(o, s, e, lambda a, b, s, e: s <= a < b <= e), "a part of a token"),
        (lambda o, s, e: (span(o, s, e)[0], span(o, s, e)[0] + 1), "leaves out its end"),
        (lambda o, s, e: span(o, s, e)[0], "two whole numbers"),
        (lambda o, s, e: (s, e), "you returned"),
    ]
    yield "Prediction 3.1", Several((12, 40, 140)), [
        (Several((14, 14, 14)), "learned from English"),
        (Several((14, 25, 40)), "It rises more"),
        (Several((14, 80, 400)), "never less than one byte"),
        (Several((14, 43, "many")), "Three numbers"),
    ]
    yield "Prediction 3.2", "wordpiece", [
        ("deepseek", "You said deepseek (607 tokens)"), ("smollm2", "a text that is lost"), ("gpt", "Name one of")]
    yield "Exercise 3.4", lambda t, m, text: surprise(t, m, text) < math.log(rows(m)) / 2, [
        (lambda t, m, text: len(t) == rows(m), "same size"),
        (lambda t, m, text: max(t.get_vocab().values()) < rows(m), "same size"),
        (lambda t, m, text: t.decode(t(text)["input_ids"]) == text, "same size"),
        (lambda t, m, text: surprise(t, m, text) < 5 and len(t) == rows(m), "Spare rows are legal"),
        (lambda t, m, text: surprise(t, m, text) < 1, "refused the model's own"),
        (careless, "IndexError"),
        (surprise, "True or False"),
    ]
