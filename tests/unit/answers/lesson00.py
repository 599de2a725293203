"""Lesson 00, Start here."""

import functools

from labutils.checkpoints import checkpoint


@functools.cache
def chat():
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoTokenizer.from_pretrained(checkpoint("chat")), AutoModelForCausalLM.from_pretrained(checkpoint("chat"))


def next_token(text, position=-1, dimension=-1):
    tokenizer, model = chat()
    scores = model(**tokenizer(text, return_tensors="pt")).logits
    return scores[0, position].argmax(dimension)


CONTEXT = {
    "Prediction 0.1": lambda: (chat()[1],),
    "Prediction 0.2": lambda: chat(),
    "Exercise 0.2": lambda: chat(),
}


def answers():
    from torch import nn

    def forgets(model):
        sum(weight.numel() for weight in model.parameters())

    def crashes(model):
        return sum(weight.numel() for weight in model.weights())

    tokenizer, _ = chat()
    yield "Prediction 0.1", 538, [
        (135, "million numbers"), (269, "2 bytes"), (4304, "eight of them"), (1000, "Multiply"), ("538", "A number")]
    yield "Exercise 0.1", lambda m: sum(w.nbytes for w in m.parameters()), [
        (lambda m: sum(w.numel() for w in m.parameters()), "numbers, not bytes"),
        (lambda m: len(list(m.parameters())), "counted the tensors"),
        (lambda m: 4 * sum(w.numel() for w in m.parameters()), "element_size()"),
        (lambda m: sum(w.nbytes for w in m.state_dict().values()), "counted a shared tensor twice"),
        (lambda m: sum(w.nbytes for w in m.parameters()) / 1e6, "megabytes"),
        (forgets, "returned None"), (crashes, "in its line 2 with AttributeError"), (12, "the function itself"),
        (lambda m: 64 if isinstance(m, nn.Linear) else 1, "32 bytes"),
    ]
    yield "Prediction 0.2", "no", [("yes", "measured no"), ("perhaps", 'Answer "yes"'), (True, 'Answer "yes"')]
    yield "Exercise 0.2", lambda text: tokenizer.decode([next_token(text).item()]), [
        (lambda text: next_token(text).item(), "decode the id"),
        (lambda text: next_token(text), "decode the id"),
        (lambda text: tokenizer.decode([next_token(text, position=0).item()]), "first position"),
        (lambda text: tokenizer.decode([next_token(text).item()]).strip(), "Do not strip"),
        (lambda text: text + tokenizer.decode([next_token(text).item()]), "the whole text"),
        (lambda text: " banana", "puts"), (lambda text: [" Paris"], "a list"),
    ]
