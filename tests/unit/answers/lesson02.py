"""Lesson 02, Checkpoints and auto classes."""

import atexit
import functools
import tempfile
from pathlib import Path

from tests.unit.answers import Several


@functools.cache
def skeleton(model_type):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type))


@functools.cache
def damaged():
    """A tiny classifier whose head was renamed by the course's own function."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    from labutils import faults

    room = tempfile.TemporaryDirectory()
    atexit.register(room.cleanup)
    torch.manual_seed(0)
    config = BertConfig(vocab_size=50, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    BertForSequenceClassification(config).save_pretrained(room.name)
    return faults.renamed_head(Path(room.name), Path(room.name))


CONTEXT = {
    "Prediction 2.1": lambda: (skeleton("bert"),),
    "Prediction 2.2": lambda: (skeleton("mixtral"),),
    "Prediction 2.3": lambda: ({"unexpected_keys": ["bert.pooler.dense.bias"]},),
    "Exercise 2.2": lambda: (damaged(),),
}


def llama(c, heads=None, norms=None, tables=None, matrices=3, biases=0, width=None):
    """Count a Llama, with one thing wrong if asked."""
    h = c.hidden_size
    key_value = c.num_key_value_heads if heads is None else heads
    attention = 2 * h * (width or c.head_dim) * (c.num_attention_heads + key_value) + biases
    norms = (2 * c.num_hidden_layers + 1) * h if norms is None else norms
    tables = tables or (1 if c.tie_word_embeddings else 2)
    return tables * c.vocab_size * h + c.num_hidden_layers * (attention + matrices * h * c.intermediate_size) + norms


def answers():
    import torch

    yield "Prediction 2.1", "no", [("yes", "Somebody once wrote a class"), ("maybe", 'Answer "yes"'), (True, 'Answer "yes"')]
    yield "Exercise 2.1", llama, [
        (lambda c: llama(c, tables=2), "here it is tied"),
        (lambda c: llama(c, tables=1), "It is not tied here"),
        (lambda c: llama(c, norms=0), "You left out the norms"),
        (lambda c: llama(c, norms=2 * c.num_hidden_layers * c.hidden_size), "the last norm"),
        (lambda c: llama(c, norms=2 * (2 * c.num_hidden_layers + 1) * c.hidden_size), "gave each norm a bias"),
        (lambda c: llama(c, matrices=2), "three matrices"),
        (lambda c: llama(c, heads=c.num_attention_heads), "counted query heads"),
        (lambda c: llama(c, width=c.hidden_size // c.num_attention_heads), "A head is head_dim wide"),
        (lambda c: llama(c, biases=4 * c.hidden_size), "A Llama has none"),
        (lambda c: llama(c) - 7, "7 too few"),
        (lambda c: f"{llama(c):,}", "A number was asked for"),
    ]
    yield "Prediction 2.2", 47, [(56, "8 times 7"), (13, "all eight have to be stored"), (46.7e9, "Billions"),
                                 (30, "one attention"), ("many", "A number")]
    yield "Prediction 2.3", ["unexpected"], [
        (["missing", "unexpected"], "the two classes name their heads alike"), ([], "left over"),
        (["mismatched"], "one row for each label"), ("missing", "No key is missing"), (["lost"], "There is no kind"),
        (3, "A list was asked for"),
    ]

    def renamed(tensors, old="score.", new="classifier."):
        return {name.replace(old, new): tensor for name, tensor in tensors.items()}

    yield "Exercise 2.2", renamed, [
        (lambda tensors: tensors, "still misses"),
        (lambda tensors: {**tensors, **renamed(tensors)}, "Rename, do not add"),
        (lambda tensors: renamed(tensors, new="head."), "You handed in head.bias"),
        (lambda tensors: {name.replace("bert.", ""): each for name, each in renamed(tensors).items()}, "lost their names"),
        (lambda tensors: {name: torch.zeros_like(each) if name.startswith("classifier") else each
                          for name, each in renamed(tensors).items()}, "New numbers are no repair"),
        (lambda tensors: list(renamed(tensors)), "Return a dictionary"),
    ]
    right = Several(("input/output", "parameters", "identity", "identity", "parameters", "shape"))
    yield "Exercise 2.3", right, [
        (Several(("parameters", *right[1:])), "5 of 6. A is not parameters"),
        (Several((*right[:2], "parameters", "shape", *right[4:])), "4 of 6."),
        (Several((*right[:5], "parameters")), "One number in the config"),
        (Several((*right[:5], "the weather")), "F: answer one of"),
    ]
