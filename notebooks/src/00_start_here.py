# %% [markdown]
# Three lines of code can run a language model. This course is about what those lines hide: text that becomes numbers,
# numbers that become text, and the memory and time in between. Everything here runs on a real model, on the machine in
# front of you, and every number you will read was measured by the cell above it.
#
# This first lesson is short. You meet the machine, get an answer from a model, and learn how a lesson works.
#
# ## 1 · This machine
#
# Run each cell with **Shift + Enter**, from top to bottom. The first one looks around.

# %% tags=["nbval-ignore-output"] reason="describes the machine it runs on"
from labutils import environment, views

views.table(("", "here"), environment.describe().items())

# %% [markdown]
# Two rows decide most of what follows. **Device** is where the arithmetic happens: `cuda` is an NVIDIA card, `mps` an
# Apple chip, `cpu` everything else, and all of this course runs on the last. **Memory** decides which models fit at all.
#
# A model is mostly a heap of numbers, its *weights*. The first estimate is one multiplication: how many numbers, times
# how many bytes for each.

# %%
billions = {"ours": 0.135, "small": 0.5, "medium": 3, "large": 7, "very large": 70}
bytes_each = {"float32": 4, "bfloat16": 2, "8 bit": 1, "4 bit": 0.5}

views.table(
    ("model", "billion numbers", *(f"GB in {name}" for name in bytes_each)),
    [(model, str(count), *(f"{count * size:.2f}" for size in bytes_each.values()))
     for model, count in billions.items()],
)

# %% [markdown]
# Find your memory in the table above this one, then the rows that stay below it. That is a floor, not the bill: lesson 09
# adds what else a model needs while it runs, and lesson 10 shows why "4 bit" is never quite half a byte.

# %% [markdown] instructor minutes=3
# Ask for a show of hands: who has 8 GB, who 16, who a GPU? Write the largest model of each group on the board. Return to
# that list in lesson 09, when the cache has been added.

# %% [markdown]
# ## 2 · A first answer
#
# A trained model is kept as a folder of files, a *checkpoint*. Here is the first one, with what lies in it.

# %%
from labutils.checkpoints import checkpoint

folder = checkpoint("chat")
files = [file for file in sorted(folder.iterdir()) if file.name != "manifest.json"]
views.table(("file", "MB"), [(file.name, f"{file.stat().st_size / 1e6:.3f}") for file in files])

# %% [markdown]
# Nearly all of it is weights; the rest says how to use them, and lesson 02 reads every file. `checkpoint("chat")` only
# finds the folder. Everything after it is the `transformers` library as you would use it anywhere: one class loads what
# turns text into numbers, another loads the model.

# %%
from transformers import AutoModelForCausalLM, AutoTokenizer

device = environment.device()
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder).to(device)

# %% [markdown]
# Now ask. The question is put into the form that this model was trained on, becomes numbers, goes through the model, and
# the new numbers become text again.

# %%
chat = [{"role": "user", "content": "What is the capital of Japan?"}]
inputs = tokenizer.apply_chat_template(
    chat, add_generation_prompt=True, return_dict=True, return_tensors="pt"
).to(device)
output = model.generate(**inputs, max_new_tokens=20, do_sample=False)

tokenizer.decode(output[0, inputs["input_ids"].shape[1]:], skip_special_tokens=True)

# %% [markdown]
# Change the question and run the cell again. Try a few. You will soon meet an answer that is fluent, sure of itself and
# wrong: this model is one of the smallest that can hold a conversation. We chose it because it is small enough to be
# taken apart on a laptop, and because its mistakes are the same in kind as those of its large relatives.
#
# How long did an answer take?

# %% tags=["nbval-ignore-output"] reason="seconds depend on the machine"
import time

start = time.perf_counter()
output = model.generate(**inputs, max_new_tokens=20, do_sample=False)
seconds = time.perf_counter() - start
new_tokens = output.shape[1] - inputs["input_ids"].shape[1]

print(f"{new_tokens} tokens in {seconds:.2f} s: {new_tokens / seconds:.1f} a second on {device}")

# %% [markdown]
# ## 3 · Two settings, one text
#
# Nothing in the cells above named a device or a place to download from. Two environment variables decide, before the
# notebook starts:
#
# | variable | values | what it changes |
# |---|---|---|
# | `LAB_DEVICE` | `auto`, `cpu`, `cuda`, `mps` | where the model runs; `auto` takes the best there is |
# | `LAB_PROFILE` | `bundled`, `hub` | `bundled`: small checkpoints, fetched once, then no network at all; `hub`: the same roles from the Hugging Face Hub |
#
# A setting that does not exist is refused at once, with what it can be. Errors in this course are written to be read:

# %% tags=["raises-exception", "nbval-check-output"]
import os

os.environ["LAB_PROFILE"] = "cloud"
try:
    environment.profile()
finally:
    del os.environ["LAB_PROFILE"]

# %% [markdown]
# Read the last line first. In this course, as in Python, it says what was wrong; ours also says what to do.
#
# ## 4 · How a lesson works: predict, run, check
#
# Before a number appears you are asked for it. A guess that turns out wrong is worth more than a number that you merely
# read: you will remember the surprise.
#
# **Predict 0.1.** Here are the type in which this model was loaded and the count of its numbers. How many **megabytes**
# (10⁶ bytes) do the weights take? Put a number in place of the dots.

# %%
model.dtype, model.num_parameters()

# %% tags=["predict"]
### BEGIN SOLUTION
megabytes = 538     # your guess; within 5 % counts
### END SOLUTION

# %% tags=["check"]
from labutils import check

check.megabytes(megabytes, model)

# %% [markdown]
# "Not made yet" is not "wrong": **Run All** always works, on an untouched notebook too, and nothing is held against you.
#
# ### Exercise 0.1 · Weigh a model &nbsp; ⏱ 4 min · ●○○
#
# Now compute it. `model.parameters()` goes through all weight tensors; a tensor knows how many numbers it holds
# (`.numel()`) and how many bytes each one takes (`.element_size()`). Write the function, run the cell, read what the
# checker says. If it stays wrong, open a hint; the solution is folded below the hints.

# %% exercise="0.1"
def weight_bytes(model) -> int:
    """Return how many bytes the model's weights take."""
    ### BEGIN SOLUTION
    return sum(weight.numel() * weight.element_size() for weight in model.parameters())
    ### END SOLUTION


check.weight_bytes(weight_bytes)

# %% [markdown] hint="the checker says that I counted numbers, not bytes"
# A float32 takes 4 bytes, a bfloat16 takes 2. Do not write the 4 yourself: ask each tensor for its `.element_size()`.

# %% [markdown] hint="my result is too large for one of its models"
# `state_dict()` lists a tensor once for every name it has. Two layers may share one tensor, and it lies in memory once.
# `parameters()` knows that.

# %% [markdown] instructor minutes=5
# Let them hand in something wrong on purpose and read the diagnosis aloud. The habit to build is "the checker tells me
# what I did", not "the checker says no".

# %% [markdown]
# ## 5 · One step at a time
#
# A language model does one thing: for the text so far, it gives every token in its vocabulary a score. The scores, called
# *logits*, of the last position tell what comes next.

# %%
inputs = tokenizer("The capital of France is", return_tensors="pt").to(device)
logits = model(**inputs).logits

inputs["input_ids"].shape, logits.shape

# %% [markdown]
# Five tokens went in, and each position got a score for each of the 49,152 tokens that this model knows. The highest score
# in the last row names the next token.

# %%
best = logits[0, -1].argmax()

best.item(), tokenizer.decode([best.item()])

# %% [markdown]
# Below, the same step as an explorer. Type a text of your own and watch the model change its mind with every letter. (On
# GitHub you see its starting picture; it comes alive when you run the cell.)

# %%
from labutils import widgets

widgets.next_token(tokenizer, model, text="The capital of France is")

# %% [markdown]
# **Predict 0.2.** Add one space to the end of that text, so that it ends in `is` and a space. Will the model still put
# `Paris`, in any spelling, first? Answer `"yes"` or `"no"`, then try it in the explorer.

# %% tags=["predict"]
### BEGIN SOLUTION
still_paris = "no"      # "yes" or "no"
### END SOLUTION

# %% tags=["check"]
check.still_paris(still_paris, tokenizer, model)

# %% [markdown]
# ### Exercise 0.2 · The next word &nbsp; ⏱ 5 min · ●○○
#
# Put the step above into a function. It gets a text and returns the most probable next token **as text**.

# %% exercise="0.2"
def next_word(text: str) -> str:
    """Return the token that the model finds most probable after `text`."""
    ### BEGIN SOLUTION
    inputs = tokenizer(text, return_tensors="pt").to(device)
    logits = model(**inputs).logits
    return tokenizer.decode([logits[0, -1].argmax().item()])
    ### END SOLUTION


check.next_word(next_word, tokenizer, model)

# %% [markdown] hint="I get a number, or a tensor"
# `argmax` gives the id of a token. `tokenizer.decode([id])` gives its text.

# %% [markdown] hint="I always get the same wrong token"
# `logits` has the shape [batch, length, vocabulary]. The next token is decided in the **last** position: `logits[0, -1]`.

# %% [markdown]
# Call it again on its own result, and again, and you have written text generation. Lesson 07 does that with care.
#
# ## 6 · What you have done so far
#
# Progress is kept in one file of yours on this machine; nothing is sent anywhere.

# %%
check.progress("00")
