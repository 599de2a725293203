# %% [markdown]
# A model that answers one text at a time leaves most of the machine idle. So texts go through together, in a *batch*, and
# with the batch comes the most common silent fault of this field: an answer that changes because of the company it keeps.
# The cause is nearly always padding. In this lesson you will cause the fault, see it, and make it impossible.
#
# ## 1 · A tensor is a rectangle
#
# Three texts, three lengths.

# %%
import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

from labutils import check, environment, views, widgets
from labutils.checkpoints import checkpoint

device = environment.device()
tokenizer = AutoTokenizer.from_pretrained(checkpoint("encoder"))
texts = ["A cat.", "The dog sleeps on the old sofa.", "Rain again."]
rows = tokenizer(texts)["input_ids"]
[len(row) for row in rows]

# %% tags=["raises-exception", "nbval-check-output"]
torch.tensor(rows)

# %% [markdown]
# A tensor cannot have ragged edges. `padding=True` fills the short rows up with the tokenizer's pad token, and the
# `attention_mask` remembers what is real: 1 for a token, 0 for padding. The grey cells carry no meaning; they only give the
# tensor its shape.

# %%
batch = tokenizer(texts, padding=True, return_tensors="pt")
print(batch["attention_mask"])
views.batch(tokenizer, batch)

# %% [markdown]
# Forget the batch itself and you get an error rather than a wrong answer. One text is a batch of one: `[1, length]`.
#
# ## 2 · The mask, by hand
#
# Attention turns scores into weights with a softmax, and every weight takes its share from the same whole. A pad that gets a
# weight takes it from a real token. The cure is one addition *before* the softmax: minus infinity for every pad, because
# exp(−∞) is 0.

# %%
scores = torch.tensor([2.1, 0.8, 1.5, 0.4, 0.4])
mask = torch.tensor([1, 1, 1, 0, 0])

ways = {
    "softmax of the scores": scores.softmax(-1),
    "multiplied by the mask afterwards": scores.softmax(-1) * mask,
    "−∞ before the softmax": scores.masked_fill(mask == 0, -torch.inf).softmax(-1),
}
views.table(("", *"abcde", "sum"), [
    (way, *(f"{weight:.3f}" for weight in weights), f"{weights.sum():.2f}")
    for way, weights in ways.items()
])

# %% [markdown]
# The second row looks masked, yet it no longer adds up to 1: the pads have already taken their share. Only the third row is
# what the model would compute without them.
#
# ### Exercise 5.1 · Masked softmax &nbsp; ⏱ 6 min · ●●○
#
# Write it for a whole batch. `scores` is `[batch, length]`, `mask` has the same shape with 1 for real. A row may be all
# padding: its weights are 0, not `nan`.

# %% exercise="5.1"
def masked_softmax(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return weights [batch, length]: 0 on padding, rows with a real token sum to 1."""
    ### BEGIN SOLUTION
    weights = scores.masked_fill(mask == 0, -torch.inf).softmax(dim=-1)
    return weights.masked_fill(mask == 0, 0.0)
    ### END SOLUTION


check.masked_softmax(masked_softmax)

# %% [markdown] hint="my rows do not add up to 1"
# Mask the scores, not the weights. After the softmax it is too late.

# %% [markdown] hint="I get nan"
# A softmax over nothing but −∞ is 0/0. Let it happen, then put 0 wherever the mask is 0.

# %% [markdown]
# ## 3 · The mask, inside a model
#
# Does a real model do this? Its attention weights can be had when it is loaded with the *eager* implementation, which keeps
# them. Each row of the picture is a token that looks; each column, a token that is looked at. Hatched columns are padding.

# %%
folder = checkpoint("encoder")
encoder = AutoModel.from_pretrained(folder, attn_implementation="eager").to(device)

widgets.attention(tokenizer, encoder, texts, head=4)

# %% [markdown]
# The hatched columns are exactly 0. Now uncheck the box: the model no longer gets its mask, and the padding fills with light.
#
# Look at the rows at the bottom, too. Pads *look*: a row cannot be left out of a rectangle. They look, they get a hidden
# state, and it is not zero. Remember that; it is the next trap.

# %% [markdown] instructor minutes=4
# Let the room uncheck the box together, then switch heads: some heads dump most of their weight on the pads when they may.
# Ask what that weight was doing before (mostly resting on [CLS] and [SEP]; lesson 06 measures it).

# %% [markdown]
# ## 4 · Same sentence, other company
#
# One vector for a whole text is usually the mean of its hidden states. Take "A cat." alone, then beside a long sentence.

# %%
def hidden_states(texts, side="right", with_mask=True):
    """Return the encoder's hidden states [batch, length, 384] and the mask [batch, length]."""
    batch = tokenizer(texts, padding=True, padding_side=side, return_tensors="pt").to(device)
    mask = batch["attention_mask"]
    batch["attention_mask"] = mask if with_mask else torch.ones_like(mask)
    with torch.inference_mode():
        return encoder(**batch).last_hidden_state, mask


company = "The committee decided, after a long and rather tiring debate, to wait until spring."
by_itself, _ = hidden_states(["A cat."])
in_company, mask = hidden_states(["A cat.", company])
by_itself.shape, in_company.shape

# %% [markdown]
# **Predict 5.1.** The model got the right mask. Take the mean over the length in both cases. How similar are the two vectors
# of "A cat."? The cosine is 1 when nothing changed, near 0 when they have nothing in common.

# %% tags=["predict"]
### BEGIN SOLUTION
cosine = 0.58       # your guess; within 0.1 counts
### END SOLUTION

# %%
def similarity(a, b):
    return torch.cosine_similarity(a, b, dim=-1).item()


round(similarity(by_itself.mean(dim=1)[0], in_company.mean(dim=1)[0]), 2)

# %% tags=["check"]
check.mean_of_all(cosine, by_itself, in_company)

# %% [markdown]
# The model did its part: no real token saw a pad. Then `mean(dim=1)` averaged over *all* positions, and most of them are pads
# with hidden states of their own. A mask has to be used everywhere that positions are mixed, and the mean is such a place.
#
# ### Exercise 5.2 · Masked mean &nbsp; ⏱ 6 min · ●●○

# %% exercise="5.2"
def masked_mean(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the mean of the real positions, [batch, size].

    hidden: [batch, length, size], mask: [batch, length], 1 for real.
    """
    ### BEGIN SOLUTION
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1)
    ### END SOLUTION


check.masked_mean(masked_mean)

# %% [markdown] hint="my vectors come out too short"
# You divided by the length of the rectangle. Divide by the number of real tokens in each row.

# %% [markdown] hint="the shapes do not fit"
# `hidden` has one dimension more than `mask`. `mask.unsqueeze(-1)` makes it `[batch, length, 1]`, which stretches.

# %% [markdown]
# Now every way to get it right or wrong, side by side. The last row pads on the **left**, with the right mask and the masked
# mean; before you run the cell, say what you expect of it.

# %%
def mean_of_real(hidden, mask):
    return torch.stack([row[real.bool()].mean(dim=0) for row, real in zip(hidden, mask)])


def like_alone(side, with_mask):
    vectors = mean_of_real(*hidden_states(["A cat.", company], side, with_mask))
    return f"{similarity(by_itself.mean(dim=1)[0], vectors[0]):.2f}"


views.table(("masked mean of a batch", "cosine with “A cat.” alone"), [
    ("padded right, with the mask", like_alone("right", with_mask=True)),
    ("padded right, without the mask", like_alone("right", with_mask=False)),
    ("padded left, with the mask", like_alone("left", with_mask=True)),
])

# %% [markdown]
# Surprised by the last row? This encoder learned a vector for each *position*, counted from the left edge. The mask hides the
# pads, but it does not move "A cat." back to the start. Encoders like this one are padded on the right. Chat models, next,
# are not.
#
# ## 5 · Four questions, one batch
#
# Four chats go through a model that writes. Its tokenizer pads on the right unless told otherwise. Does that matter? First,
# each question alone. These are the answers to keep.

# %%
folder = checkpoint("chat")
writer = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device)
speller = AutoTokenizer.from_pretrained(folder)


def render(question):
    chat = [{"role": "user", "content": question}]
    return speller.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)


def answer(inputs):
    output = writer.generate(**inputs, max_new_tokens=12, do_sample=False)
    new = output[:, inputs["input_ids"].shape[1]:]
    return speller.batch_decode(new, skip_special_tokens=True)


def batch_of(chats, side):
    return speller(chats, padding=True, padding_side=side, return_tensors="pt").to(device)


# %%
questions = [
    "What is the capital of Japan?",
    "How many days are in a week?",
    "Name a famous scientist and what they discovered.",
    "I am planning a week in a small town by the sea with two children and an old dog. "
    "What should I pack?",
]
chats = [render(question) for question in questions]
alone = [answer(batch_of([chat], "right"))[0] for chat in chats]
views.table(("tokens", "answer"), [
    (len(speller(chat)["input_ids"]), repr(text)) for chat, text in zip(chats, alone)
])

# %% [markdown]
# **Predict 5.2.** The same four in one batch, padded on the right, with a correct attention mask: how many keep their answer?

# %% tags=["predict"]
### BEGIN SOLUTION
kept = 1        # 0, 1, 2, 3 or 4
### END SOLUTION

# %%
right = answer(batch_of(chats, "right"))
views.side_by_side(questions, alone=alone, padded_right=right)

# %% tags=["check"]
check.survivors(kept, alone, right)

# %% [markdown]
# The mask did its work: no token attended to padding. But `generate` continues from the **last position**, and in three rows
# the last position is a pad. The longest row has no padding, so it alone is asked the question that we meant. One article we
# read blames *left* padding for this picture; it is the other way round.
#
# The library saw it too. Scroll up: its warning names the cure.

# %%
left = answer(batch_of(chats, "left"))
[a == b for a, b in zip(alone, left)]

# %% [markdown]
# And the positions, which spoiled left padding for the encoder? `generate` counts them along the mask, so that the first real
# token is number 0; and this model encodes only the *distance* between two tokens, which padding does not change.
#
# ### Exercise 5.3 · Pad on the left &nbsp; ⏱ 6 min · ●●○
#
# Write the padding that a decoder needs. Rows come as lists of ids; return both tensors.

# %% exercise="5.3"
def left_pad(rows: list[list[int]], pad_token_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return input_ids and attention_mask, [batch, longest], real tokens on the right."""
    ### BEGIN SOLUTION
    longest = max(map(len, rows))
    ids = [[pad_token_id] * (longest - len(row)) + row for row in rows]
    mask = [[0] * (longest - len(row)) + [1] * len(row) for row in rows]
    return torch.tensor(ids), torch.tensor(mask)
    ### END SOLUTION


check.left_pad(left_pad)

# %% [markdown] hint="my mask has a hole in the middle"
# Build the mask from the lengths, not from the ids: a pad id may also be a real token.

# %% [markdown] hint="the checker says that my row ends in a pad"
# Padding comes first, then the row: `[pad] * missing + row`.

# %% [markdown] instructor minutes=4
# Ask for hands before the reveal of 5.2. Most say four: they trust the mask. Ask where in the code of a
# generation loop the word "last" would stand (lesson 07 writes it as `[:, -1]`).

# %% [markdown]
# ## 6 · When the pad is a real token
#
# Many chat models have no pad token of their own and borrow the token that ends a turn. This one does. Then nobody can tell
# padding from the ids alone, and a call without the mask treats every pad as an ended turn:

# %% margin="only whether the texts are equal is stored"
without_mask = answer({"input_ids": batch_of(chats, "left")["input_ids"]})

speller.pad_token == speller.eos_token, [a == b for a, b in zip(alone, without_mask)]

# %% [markdown]
# Left side, right texts, three wrong answers: the mask is not optional. The same goes for training, where a second mask
# exists. Label −100 takes a position out of the loss. If pads keep their id as label, the loss is an average over padding too:

# %%
def loss(inputs, labels):
    with torch.inference_mode():
        return writer(**inputs, labels=labels).loss.item()


singles = [batch_of([chat], "right") for chat in chats]
guesses = [one["input_ids"].shape[1] - 1 for one in singles]    # nobody guesses the first
losses = [loss(one, one["input_ids"]) for one in singles]
batch = batch_of(chats, "right")
ids, padding = batch["input_ids"], batch["attention_mask"] == 0

views.table(("labels", "loss"), [
    ("each text alone, then the mean over all tokens",
     f"{sum(n * each for n, each in zip(guesses, losses)) / sum(guesses):.2f}"),
    ("a batch, −100 where the mask is 0",
     f"{loss(batch, ids.masked_fill(padding, -100)):.2f}"),
    ("a batch, pads as labels", f"{loss(batch, ids):.2f}"),
    ("a batch, −100 wherever the id is the pad's",
     f"{loss(batch, ids.masked_fill(ids == speller.pad_token_id, -100)):.2f}"),
])

# %% [markdown]
# Only the second row agrees with the first. The last one also erased the real ends of turns, because they share the pad's id: a
# model trained that way never learns to stop. (Training may pad on the
# right: nothing is read from the last position there.)
#
# ## 7 · Noise or fault?
#
# Batched and single results are almost never equal to the last bit: other shapes, other order of additions. How large may
# the difference be before it is a fault? Measure each kind once, on the logits of the next token.

# %% tags=["nbval-ignore-output"] reason="rounding differs between processors; the next cell compares"
def next_logits(chats, side):
    with torch.inference_mode():
        return writer(**batch_of(chats, side), logits_to_keep=1).logits[:, 0].float()


def drift(side):
    single = torch.cat([next_logits([chat], side) for chat in chats])
    return (next_logits(chats, side) - single).abs().max().item()


drifts = {"float32, padded left": drift("left"), "float32, padded right": drift("right")}
writer = writer.to(torch.bfloat16)
drifts["bfloat16, padded left"] = drift("left")

views.table(("batch against alone", "largest difference of a logit"),
            [(how, f"{size:.1g}") for how, size in drifts.items()])

# %%
noise, fault, noise_half = drifts.values()
noise < 1e-3 < noise_half < 2 < fault

# %% [markdown]
# In float32 noise stays below a thousandth and a fault is thousands of times larger, so one comparison tells them apart. In
# bfloat16 the noise alone reaches tenths of a logit, enough to flip a close call. Look for padding faults in float32.
#
# ## 8 · Too long
#
# A model has a window, this encoder 512 positions. `truncation=True` cuts without a word, and cuts the *end* unless told
# otherwise. Here is a record whose only decision stands in its last sentence.

# %%
things = ["bridge", "market", "fountain", "school", "harbour", "clock", "bus", "garden"] * 7
record = "".join(f"The council spoke about the {thing} and put it off. " for thing in things)
record += "At last they decided that the old mill becomes a library."

for side in ("left", "right"):
    tokenizer.truncation_side = side
    cut = tokenizer(record, truncation=True, max_length=512)["input_ids"]
    print(f"cut on the {side}: {len(cut)} tokens, mill: {'mill' in tokenizer.decode(cut)}")

# %% [markdown]
# Nothing warned us. Cutting on the left keeps the end and loses the beginning. To keep everything, cut into *windows* that
# overlap, so that a sentence cut in one window stands whole in the next.
#
# ### Exercise 5.4 · Sliding windows &nbsp; ⏱ 8 min · ●●●

# %% exercise="5.4"
def sliding_windows(ids: list[int], size: int, overlap: int) -> list[list[int]]:
    """Return windows of at most `size` ids, each starting with the last `overlap` before it."""
    ### BEGIN SOLUTION
    if not 0 <= overlap < size:
        raise ValueError(f"The overlap must be from 0 to {size - 1}, it is {overlap}.")
    starts = range(0, max(len(ids) - overlap, 1), size - overlap)
    return [ids[start:start + size] for start in starts]
    ### END SOLUTION


check.sliding_windows(sliding_windows)

# %% [markdown] hint="my last window adds nothing new"
# The window before it already reached the end. Stop as soon as one does.

# %% [markdown] hint="it never ends"
# Each window must start later than the one before. With `overlap >= size` it does not: refuse that with a `ValueError`.

# %% [markdown]
# The tokenizer does the same with `return_overflowing_tokens` and `stride`, special tokens included. Which window answers the
# question? The one whose vector, by the masked mean, is closest to the question's.

# %%
windows = tokenizer(record, truncation=True, max_length=128, stride=32, padding=True,
                    return_overflowing_tokens=True, return_tensors="pt")
ids, mask = windows["input_ids"].to(device), windows["attention_mask"].to(device)
with torch.inference_mode():
    hidden = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
vectors = mean_of_real(hidden, mask)
question = mean_of_real(*hidden_states(["What will become of the old mill?"]))
closest = torch.cosine_similarity(vectors, question)

views.bars([f"window {n}" for n in range(len(closest))], closest.tolist(),
           "The decision is in the last window", "cosine with the question")

# %% [markdown]
# A text cut to 512 tokens never had a chance. Write down, with every result, which side was cut, at what length, and with
# what overlap: it belongs on the receipt.
