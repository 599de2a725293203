"""Lesson 01, Inside pipeline()."""

import functools

from labutils.checkpoints import checkpoint
from tests.unit.answers import Several


@functools.cache
def classifier():
    from transformers import pipeline

    return pipeline("sentiment-analysis", model=checkpoint("sentiment"), device="cpu")


def logits(texts):
    import torch

    pipe = classifier()
    with torch.inference_mode():
        return pipe.model(**pipe.tokenizer(texts, padding=True, truncation=True, return_tensors="pt")).logits


def named(shares):
    names = classifier().model.config.id2label
    return [{"label": names[int(row.argmax())], "score": row.max().item()} for row in shares]


CONTEXT = {
    "Prediction 1.1": lambda: (logits(["one", "two", "three"]),),
    "Prediction 1.2": lambda: (logits(["one", "two", "three"]).softmax(-1),),
    "Exercise 1.1": lambda: (classifier(),),
    "Exercise 1.3": lambda: (classifier().tokenizer,),
}


def answers():
    tokenizer = classifier().tokenizer
    yield "Prediction 1.1", (3, 2), [
        ((2, 3), "batch always comes first"), ((3, 9, 2), "hidden states"), ((2,), "two dimensions"), (6, "A shape")]
    yield "Prediction 1.2", 3, [(1, "single row"), (6, "adds up to 1"), ("three", "A number")]
    yield "Exercise 1.1", lambda texts: named(logits(texts).softmax(-1)), [
        (lambda texts: named(logits(texts)), "no probability"),
        (lambda texts: named(logits(texts).softmax(0)), "over the batch"),
        (lambda texts: named(logits(texts).softmax(-1))[0], "list with one dictionary"),
        (lambda texts: named(logits(texts).softmax(-1))[:1] * 9, "results came out"),
        (lambda texts: [{**each, "label": 1} for each in named(logits(texts).softmax(-1))], "should be a name"),
        (lambda texts: [{**each, "label": "POSITIVE"} for each in named(logits(texts).softmax(-1))], "Where do your labels"),
        (lambda texts: [{**each, "score": round(each["score"], 4)} for each in named(logits(texts).softmax(-1))], "for you"),
        (lambda texts: [each["label"] for each in named(logits(texts).softmax(-1))], "is a dictionary"),
    ]
    yield "Exercise 1.2", lambda p, config: config.id2label[int(p.argmax())], [
        (lambda p, config: ["NEGATIVE", "POSITIVE"][int(p.argmax())], "does not come from the config"),
        (lambda p, config: int(p.argmax()), "a number"),
        (lambda p, config: config.id2label[int(p[1] > 0.5)], "three labels"),
        (lambda p, config: config.id2label[int(p.argmin())], "you said"),
    ]
    yield "Exercise 1.3", lambda text: max(0, len(tokenizer(text)["input_ids"]) - 512), [
        (lambda text: len(tokenizer(text)["input_ids"]) - 512, "nothing is lost"),
        (lambda text: max(0, len(tokenizer(text, add_special_tokens=False)["input_ids"]) - 512), "[CLS] and [SEP]"),
        (lambda text: max(0, len(text.split()) - 512), "words or letters"),
        (lambda text: max(0, len(tokenizer(text, truncation=True)["input_ids"]) - 512), "already cut"),
        (lambda text: len(tokenizer(text)["input_ids"]), "whole length"),
    ]
    right = Several(("tokenizer", "model", "post-processing", "model", "tokenizer"))
    yield "Exercise 1.4", right, [
        (Several(("model", *right[1:])), "4 of 5. capitals"),
        (Several(("tokenizer", "tokenizer", "model", "post-processing", "model")), "1 of 5."),
        (Several((*right[:4], "the laptop")), 'answer "tokenizer"'),
    ]
