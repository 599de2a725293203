# %% [markdown]
# Three lines give you a working classifier. They are a good way to start and a bad place to stop: when the answer is wrong,
# slow or different on Tuesday, you need to know what happened between the text and the score. There are only three stages.
# In this lesson you take them apart and build them again.
#
# ## 1 · Three lines that work

# %%
from transformers import pipeline

from labutils import check, environment, views, widgets
from labutils.checkpoints import checkpoint

device = environment.device()
classifier = pipeline("sentiment-analysis", model=checkpoint("sentiment"), device=device)
classifier("I really like this course!")

# %% [markdown]
# The name of the task chose a pipeline class, and the checkpoint had to fit it. Leave the checkpoint out and the library
# picks one for you, which may be another one next year. Name it, always.
#
# Tasks come and go, too. Much of what you find on the web was written before version 5, and this is what happens:

# %% tags=["raises-exception", "nbval-check-output"]
pipeline("question-answering")

# %% [markdown]
# Three well-known tasks went the same way. What remains for text:

# %%
from transformers.pipelines import SUPPORTED_TASKS

once = ("question-answering", "summarization", "translation")
print("gone:", [task for task in once if task not in SUPPORTED_TASKS])
sorted(task for task in SUPPORTED_TASKS if SUPPORTED_TASKS[task]["type"] == "text")

# %% [markdown]
# ## 2 · Stage one: from text to numbers
#
# A model takes tensors, not strings. The tokenizer of the same checkpoint makes them.

# %%
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

folder = checkpoint("sentiment")
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForSequenceClassification.from_pretrained(folder).to(device)

inputs = tokenizer("I really like this course!", return_tensors="pt").to(device)
views.tokens(tokenizer, inputs)

# %% [markdown]
# Each token is a piece of text; its **id** is the number of a row in the model's embedding table and means nothing else:
# `course` is not larger than `like`. `[CLS]` and `[SEP]` were added because this model was trained with them. The mask says
# which positions are real, and lesson 05 is about the day when not all of them are.
#
# Two spellings can be one text to the model. Compare the ids:

# %%
loud, quiet = tokenizer("I REALLY LIKE THIS COURSE!"), tokenizer("i really like this course!")
loud["input_ids"] == quiet["input_ids"]

# %% [markdown]
# This tokenizer lowers every letter. Whatever capital letters meant is gone before the model starts.
#
# ## 3 · Stage two: from numbers to logits
#
# **Predict 1.1.** Three texts go through the model together. It has two labels. What shape do its *logits*, the raw scores,
# have?

# %% tags=["predict"]
### BEGIN SOLUTION
shape = (3, 2)      # a tuple of whole numbers
### END SOLUTION

# %%
texts = ["I really like this course!", "The battery died after two days.", "It was okay."]
inputs = tokenizer(texts, padding=True, return_tensors="pt").to(device)
with torch.inference_mode():
    output = model(**inputs, output_hidden_states=True)

views.table(("stage", "shape"), [
    ("input_ids", list(inputs["input_ids"].shape)),
    ("embeddings", list(output.hidden_states[0].shape)),
    ("hidden states after the last layer", list(output.hidden_states[-1].shape)),
    ("logits", list(output.logits.shape)),
])

# %% tags=["check"]
check.logits_shape(shape, output.logits)

# %% [markdown]
# The body of the model gives every position a vector; the *head* turns one of them into two numbers. `AutoModel` would have
# stopped at the hidden states. The class that you load decides where the model ends.

# %% [markdown] instructor minutes=4
# Draw the rectangle [3, length, 384] and cut out the first column: that is all the head ever sees. Ask what happens to the
# information in the other columns (attention has already mixed it into the first).

# %% [markdown]
# ## 4 · Stage three: from logits to an answer
#
# Logits may be negative and add up to anything. The *softmax* makes them shares of a whole: exp of each, divided by the sum.

# %%
import math


def by_hand(logits):
    powers = [math.exp(logit) for logit in logits]
    return [round(power / sum(powers), 3) for power in powers]


pairs = [-1.7, 2.3], [0.0, 0.0], [98.3, 102.3]
views.table(("logits", "by hand", "torch"), [
    (pair, by_hand(pair), [round(share.item(), 3) for share in torch.tensor(pair).softmax(-1)])
    for pair in pairs
])

# %% [markdown]
# Only differences count: the first and the last row are 4 apart, and they give the same shares.
#
# **Predict 1.2.** The softmax of all three texts is a tensor of six numbers. What is the sum of all six?

# %% tags=["predict"]
### BEGIN SOLUTION
total = 3           # a number
### END SOLUTION

# %%
probabilities = output.logits.softmax(dim=-1)
print(f"{probabilities.sum().item():.4f}")
probabilities.round(decimals=3)

# %% tags=["check"]
check.softmax_sum(total, probabilities)

# %% [markdown]
# One text, every stage. Type your own; try a name, an insult, an emoji, a word that does not exist.

# %%
widgets.stages(tokenizer, model, "The battery died after two days.")

# %% [markdown]
# ### Exercise 1.1 · Rebuild the pipeline &nbsp; ⏱ 8 min · ●●○
#
# You have all three stages. Write `classify` so that it returns what the pipeline returns: for each text a dictionary with
# the `label` and its `score`. The checker compares it with the pipeline to 1e-6.

# %% exercise="1.1"
def classify(texts: list[str]) -> list[dict]:
    """Return [{"label": ..., "score": ...}, ...], one for each text."""
    ### BEGIN SOLUTION
    inputs = tokenizer(texts, padding=True, truncation=True, return_tensors="pt").to(device)
    with torch.inference_mode():
        probabilities = model(**inputs).logits.softmax(dim=-1)
    scores, numbers = probabilities.max(dim=-1)
    labels = [model.config.id2label[number] for number in numbers.tolist()]
    return [{"label": label, "score": score} for label, score in zip(labels, scores.tolist())]
    ### END SOLUTION


check.classify(classify, classifier)

# %% [markdown] hint="my scores are larger than 1, or negative"
# Those are logits. The softmax comes after the model, over the last dimension.

# %% [markdown] hint="it works for one text and not for several"
# Texts of different length need `padding=True` to become one tensor.

# %% [markdown] hint="the labels are numbers"
# `model.config.id2label` knows their names.

# %% [markdown]
# ## 5 · The order of the labels is a contract
#
# Column 0 or column 1: which one is "positive"? Only the checkpoint knows. Suppose someone remembers it the other way round.

# %%
remembered = ["POSITIVE", "NEGATIVE"]
best = probabilities.argmax(dim=-1).tolist()

views.table(("text", "from a remembered list", "from id2label"), [
    (text, remembered[number], model.config.id2label[number])
    for text, number in zip(texts, best)
])

# %% [markdown]
# No error, no warning, every answer wrong. This fault survives code review, because the list looks right.
#
# ### Exercise 1.2 · Which label? &nbsp; ⏱ 4 min · ●○○

# %% exercise="1.2"
def label_of(probabilities: torch.Tensor, config) -> str:
    """Return the name of the most probable label. probabilities: [labels]."""
    ### BEGIN SOLUTION
    return config.id2label[probabilities.argmax().item()]
    ### END SOLUTION


check.label_of(label_of)

# %% [markdown] hint="the checker speaks of a model with three labels"
# Do not compare with 0.5. `argmax` finds the largest of any number of labels.

# %% [markdown] hint="KeyError: tensor(1)"
# `argmax()` is a tensor; `.item()` makes it a number.

# %% [markdown]
# ## 6 · Two switches that are not the same
#
# `model.eval()` turns off dropout, which removes random parts of the signal during training. `from_pretrained` has called it
# for you. Turn it back on, and ask the same question five times. How many different answers?

# %%
def different_answers():
    """Ask the same question five times and count the different logits."""
    inputs = tokenizer("It was okay.", return_tensors="pt").to(device)
    return len({model(**inputs).logits[0, 1].item() for _ in range(5)})


model.train()
training = different_answers()
model.eval()
{"train()": training, "eval()": different_answers()}

# %% [markdown]
# `no_grad()` and `inference_mode()` do not touch the result at all. What they save is memory: without them, PyTorch keeps
# what a backward pass would need. Count those bytes, tensor by tensor:

# %%
from contextlib import nullcontext


def kept_for_backward(context):
    """Return the logits and the bytes that autograd holds on to, parameters not counted."""
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with context, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = model(**inputs).logits
    return logits.detach(), sum(kept.values())


inputs = tokenizer(texts * 10, padding=True, return_tensors="pt").to(device)
contexts = {"plain": nullcontext, "no_grad": torch.no_grad, "inference": torch.inference_mode}
runs = {name: kept_for_backward(context()) for name, context in contexts.items()}
views.table(("", "MB kept", "same logits"), [
    (name, f"{size / 1e6:.1f}", torch.equal(logits, runs["plain"][0]))
    for name, (logits, size) in runs.items()
])

# %% tags=["nbval-ignore-output"] reason="milliseconds depend on the machine"
import timeit

for name, context in contexts.items():
    with context():
        seconds = min(timeit.repeat(lambda: model(**inputs), number=1, repeat=3))
    print(f"{name:10} {seconds * 1000:.0f} ms")

# %% [markdown]
# So: `eval()` changes **results**; `no_grad()` and `inference_mode()` change **memory**. Whether they save time, your own three
# lines say; here it is little. You want both, and a pipeline does both.
#
# ## 7 · More texts, more labels
#
# A pipeline takes a list. `batch_size` says how many go through the model together, and should change nothing but time. To see
# every label ask for `top_k=None`. The older name for that is still accepted, and ignored:

# %%
one, other = classifier(texts, batch_size=1), classifier(texts, batch_size=3)
print("same answers:", all(abs(a["score"] - b["score"]) < 1e-6 for a, b in zip(one, other)))
for option in ({"top_k": None}, {"return_all_scores": True}):
    print(option, "gives", len(classifier("It was okay.", **option)), "label(s)")

# %% [markdown]
# ## 8 · Sure, and wrong
#
# A score near 1 looks like certainty. Two compliments, one joke, and a sentence without an opinion:

# %%
sentences = [
    "The teacher explains everything clearly.",
    "I can't recommend it enough.",
    "The only good thing about it is the ending: it ends.",
    "The train leaves at nine.",
]
views.table(("text", "label", "score"), [
    (text, answer["label"], f"{answer['score']:.2f}")
    for text, answer in zip(sentences, classifier(sentences))
])

# %% [markdown]
# The score is the model's share for its own two labels, learned from short reviews. It does not know "neither", it does not
# know irony, and nothing in it measures how far your text is from what it was trained on. How often it is right was measured
# on 2,000 sentences that it had never seen:

# %%
import json

from labutils import data

report = json.loads(data.path("sentiment/report.json").read_text())
measured = report["seeds"][0]
views.table(("held-out sentences", "share"), [
    *((f"right, {source}", f"{part:.1%}") for source, part in measured["accuracy"].items()),
    ("number of sentences", f"{report['settings']['held_out']:,}"),
    ("mean score of its answers", f"{measured['mean_confidence']:.1%}"),
])

# %% [markdown]
# It is right less often than its scores say. Lesson 06 draws the diagram that compares the two, score by score.
#
# ## 9 · Too long
#
# Six hundred words, one short sentence at a time:

# %% tags=["raises-exception", "nbval-check-output"]
long_text = "I liked it. " * 200
classifier(long_text)

# %% [markdown]
# The error comes from the model, which has 512 positions. The cause sits in stage one: nobody told the tokenizer to stop.
# With `truncation=True` it does, silently, and what follows the cut has no say in the answer:

# %%
ending = "No, I lied. It was awful, boring and too expensive, the worst film I have ever seen."

[classifier(text, truncation=True)[0]["label"] for text in (long_text + ending, ending)]

# %% [markdown]
# ### Exercise 1.3 · What would be lost? &nbsp; ⏱ 5 min · ●●○
#
# Before you cut, count. How many tokens of a text would `truncation=True` drop?

# %% exercise="1.3"
def lost_tokens(text: str) -> int:
    """Return how many tokens of `text` lie beyond tokenizer.model_max_length."""
    ### BEGIN SOLUTION
    whole = len(tokenizer(text)["input_ids"])
    return max(0, whole - tokenizer.model_max_length)
    ### END SOLUTION


check.lost_tokens(lost_tokens, tokenizer)

# %% [markdown] hint="I am off by two"
# `[CLS]` and `[SEP]` take two of the places. Count the ids that the tokenizer really makes.

# %% [markdown] hint="my result is negative"
# A short text loses nothing: 0.

# %% [markdown]
# ## 10 · Which stage was it?
#
# ### Exercise 1.4 · Five surprises &nbsp; ⏱ 5 min · ●●○
#
# You have met five surprises. For each, name the stage where its cause lies: `"tokenizer"`, `"model"` or `"post-processing"`.

# %% exercise="1.4"
### BEGIN SOLUTION
capitals_make_no_difference = "tokenizer"
sure_and_wrong = "model"
all_labels_swapped = "post-processing"
another_score_on_each_call = "model"
a_long_text_stops_with_an_error = "tokenizer"
### END SOLUTION

check.stages(capitals_make_no_difference, sure_and_wrong, all_labels_swapped,
             another_score_on_each_call, a_long_text_stops_with_an_error)

# %% [markdown] hint="the error of the long text came from the model"
# That is where it was noticed. Ask where it could have been prevented.

# %% [markdown]
# When an answer surprises you, look at the ids first, then at the logits, then at the labels. Three looks, in that order,
# find nearly everything. The rest of this course is about what each look shows.
