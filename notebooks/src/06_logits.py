# %% [markdown]
# A model that writes does not write. It hands you a number for every token of its vocabulary, at every position, and leaves
# the rest to you. Those numbers are more useful than the text that is made of them: they say how likely a sentence is, what
# nearly came instead, and how far to trust a classifier. Behind them lie the hidden states, and you can read those, too.
#
# ## 1 · One row for each position

# %%
import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer, pipeline

from labutils import check, data, environment, views, widgets
from labutils.checkpoints import checkpoint

device = environment.device()
folder = checkpoint("chat")
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device)

inputs = tokenizer("The capital of France is", return_tensors="pt").to(device)
with torch.inference_mode():
    logits = model(**inputs).logits
inputs["input_ids"].shape, logits.shape

# %% [markdown]
# Five tokens in, five rows out, and in each row a number for every token of the vocabulary. Row 0 has read only the first
# token, the last row has read them all. Each is a guess at the token that comes **next**.
#
# **Predict 6.1.** Three continuations, each one token with its space. Order them, the most probable first.

# %% tags=["predict"]
### BEGIN SOLUTION
order = [" Paris", " the", " London"]   # the same three, in your order
### END SOLUTION

# %%
last = logits[0, -1].softmax(-1)
words = " London", " Paris", " the"
chances = {word: last[tokenizer(word)["input_ids"][0]].item() for word in words}
views.bars(words, chances.values(), "“The capital of France is …”", "probability", digits=3)

# %% tags=["check"]
check.probability_order(order, chances)

# %% [markdown]
# The model is not asked for the truth. It is asked how texts go on, and texts go on with "is the" more often than with
# "is London". The softmax over a whole row adds up to 1, so what one token gains another loses.
#
# ## 2 · A continuation of several tokens
#
# A longer continuation has one guess for each of its tokens. Multiply them, or rather add their logarithms: a product of
# a few hundred small numbers is too small for a float.
#
# ### Exercise 6.1 · Log-probability &nbsp; ⏱ 6 min · ●●○

# %% exercise="6.1"
def log_probability(logits: torch.Tensor, ids: torch.Tensor, start: int) -> float:
    """Return log P(ids[start:] given ids[:start]). logits: [length, vocabulary]."""
    ### BEGIN SOLUTION
    guesses = logits[start - 1:-1].log_softmax(dim=-1)
    return guesses.gather(1, ids[start:, None]).sum().item()
    ### END SOLUTION


check.log_probability(log_probability)

# %% [markdown] hint="I am off by one position"
# The guess for position p stands in row p − 1. The last row guesses a token that is not there.

# %% [markdown]
# Now the model can choose between answers that it was never asked to write:

# %%
def logits_of(text):
    inputs = tokenizer(text, return_tensors="pt").to(device)
    with torch.inference_mode():
        return model(**inputs).logits[0].float(), inputs["input_ids"][0]


def continued(prompt, ending):
    logits, ids = logits_of(prompt + ending)
    start = len(tokenizer(prompt)["input_ids"])
    guesses = logits[start - 1:-1].log_softmax(-1)
    return guesses.gather(1, ids[start:, None]).sum().item()


endings = " shines at night.", " shines at noon.", " shines the at."
[(ending, round(continued("The moon", ending), 1)) for ending in endings]

# %% [markdown]
# Zero would be certainty. Each step down by one makes the ending *e* times less likely, and a longer ending nearly always
# scores lower: compare endings of equal length, or divide by it.
#
# ## 3 · The loss is the same number
#
# Training asks for that logarithm, with a minus and averaged over tokens. Two details spoil most handmade versions. The guess
# and its label stand one position apart, and **the model does the shift itself**: hand it `labels` equal to `input_ids`. And
# a label of −100 takes a position out.
#
# ### Exercise 6.2 · Causal loss by hand &nbsp; ⏱ 7 min · ●●○

# %% exercise="6.2"
def causal_lm_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of logits [batch, length, vocabulary], labels [batch, length]."""
    ### BEGIN SOLUTION
    guesses = logits[:, :-1].log_softmax(dim=-1)
    targets = labels[:, 1:]
    counts = targets != -100
    picked = guesses.gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    return -picked[counts].mean()
    ### END SOLUTION


check.causal_lm_loss(causal_lm_loss)

# %% [markdown] hint="my loss is far too high"
# Did you shift? Row p of the logits belongs to label p + 1.

# %% [markdown] hint="an index is out of range"
# −100 is not an id. Leave those positions out before you look anything up, or use `cross_entropy`, which knows −100.

# %% [markdown]
# And the model's own? Three ways to label one text. By hand, in one line, with the library's `cross_entropy`:

# %%
from torch.nn.functional import cross_entropy

text = "Question: What is the capital of Japan? Answer: Tokyo."
ids = tokenizer(text, return_tensors="pt")["input_ids"].to(device)
answer = ids.clone()
answer[:, :-2] = -100                   # only " Tokyo" and "." are learned
ways = {"all": ids, "the answer": answer, "shifted twice": ids.roll(-1, dims=1)}
rows = []
for name, labels in ways.items():
    with torch.inference_mode():
        own = model(input_ids=ids, labels=labels)
    by_hand = cross_entropy(own.logits[0, :-1].float(), labels[0, 1:])
    rows.append((name, f"{own.loss:.3f}", abs(own.loss - by_hand).item() < 1e-6))
views.table(("labels", "the model's loss", "by hand, equal to 1e-6"), rows)

# %% [markdown]
# Shifted twice, a model learns to skip a word, and no error tells you. And a position with −100 is still **read**. Put another
# country in the question, whose labels are all −100:

# %%
def loss_of_answer(country):
    ids = tokenizer(text.replace("Japan", country), return_tensors="pt")["input_ids"]
    labels = ids.to(device).clone()
    labels[:, :-2] = -100
    with torch.inference_mode():
        return round(model(input_ids=ids.to(device), labels=labels).loss.item(), 2)


{country: loss_of_answer(country) for country in ("Japan", "Kenya")}

# %% [markdown]
# ## 4 · Perplexity, and what it hides
#
# Lesson 03 met *perplexity* from the tokenizer's side; here is the model's. It is exp of that loss: the number of equally
# likely tokens that would leave the model as unsure. Here are six sentences that say the same in several languages. The model
# was trained on English.
#
# **Predict 6.2.** Which language has the lowest perplexity: English, German, Greek, Japanese or Swahili?

# %% tags=["predict"]
### BEGIN SOLUTION
lowest = "Japanese"     # one of the five
### END SOLUTION

# %%
import math


def surprise(sentences):
    """Return the summed loss in bits, the tokens and the bytes of some sentences."""
    bits = tokens = size = 0
    for sentence in sentences:
        # What stands between two texts in training; so the first token is guessed, too.
        logits, ids = logits_of("<|endoftext|>" + sentence)
        bits += cross_entropy(logits[:-1], ids[1:], reduction="sum").item() / math.log(2)
        tokens, size = tokens + len(ids) - 1, size + len(sentence.encode())
    return bits, tokens, size


languages = "English", "German", "Greek", "Japanese", "Swahili"
found = {name: surprise(data.parallel()[name][:6]) for name in languages}
perplexity = {name: 2 ** (bits / tokens) for name, (bits, tokens, _) in found.items()}
views.table(("", "tokens", "perplexity", "bits per byte", "bits a sentence"), [
    (name, tokens, f"{perplexity[name]:.0f}", f"{bits / size:.2f}", f"{bits / 6:.0f}")
    for name, (bits, tokens, size) in found.items()
])

# %% tags=["check"]
check.lowest_perplexity(lowest, perplexity)

# %% [markdown]
# Perplexity counts **per token**, and this tokenizer cuts Japanese nearly into bytes. Once two bytes of a character are known,
# the third is easy: many tokens, little surprise each. Bits per byte does not depend on the tokenizer, and English is ahead
# again. The last column is fairest here, because the sentences say the same. Compare perplexities only between models with one
# tokenizer, on one text.

# %% [markdown] instructor minutes=4
# Take bets on 6.2 and ask for reasons. Most say English. Then ask which column a model's maker would print, and why a paper
# that changes the tokenizer and reports perplexity proves nothing.

# %% [markdown]
# ## 5 · A classifier from two logits
#
# Two logits of the next token make a classifier without any training. Ask the chat model a yes/no question in its template,
# or let it continue a review; then compare two words. A sigmoid of their difference is the softmax over just these two.

# %%
import json

recording = json.loads(data.path("traces/calibration.json").read_text(encoding="utf-8"))


def stated(way, sentence):
    """Return the probability of the positive word of the two."""
    text = recording["prompts"][way].format(sentence)
    if way == "question":
        chat = [{"role": "user", "content": text}]
        text = tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, tokenize=False)
    yes, no = (tokenizer(word)["input_ids"][0] for word in recording["words"][way])
    last = logits_of(text)[0][-1]
    return (last[yes] - last[no]).sigmoid().item()

# %%
for way, prompt in recording["prompts"].items():
    print(f"{way}: {prompt!r}, then {recording['words'][way]}")
sentences = ("I loved every minute of it.", "It stopped working after a week.",
             "The train leaves at nine.")
trained = pipeline("sentiment-analysis", model=checkpoint("sentiment"),
                   device=device, top_k=None)


def by_checkpoint(sentence):
    return {each["label"]: each["score"] for each in trained([sentence])[0]}["POSITIVE"]


views.table(("", "question", "continuation", "sentiment"), [
    (text, f"{stated('question', text):.2f}", f"{stated('continuation', text):.2f}",
     f"{by_checkpoint(text):.2f}") for text in sentences
], caption="stated probability that the sentence is positive")

# %% [markdown]
# Three sentences prove nothing. What follows is a **recording**: 600 real sentences with labels by human raters, none of them
# used in training the sentiment checkpoint, measured once by `tools/measure_calibration.py` because it takes minutes.

# %%
labels = recording["label"]
truth = torch.tensor(labels) == 1
rows, probabilities = [], {}
for way, scores in recording["score"].items():
    values = torch.tensor(scores).sigmoid()
    right = ((values > 0.5) == truth).float().mean()
    sure = values.maximum(1 - values).mean()
    called = (values > 0.5).float().mean()
    rows.append((way, f"{right:.1%}", f"{sure:.1%}", f"{called:.1%}"))
    probabilities[way] = values.tolist()
views.table(("way", "right", "stated on average", "called positive"), rows,
            caption=f"{len(labels)} sentences, {sum(labels)} of them positive")

# %%
views.reliability(labels, "Trained and too sure, untrained and too modest", **probabilities)

# %% [markdown]
# On the dashed line a score can be taken at its word; the larger a marker, the more sentences. Table and picture say:
#
# - **question**: it says no to nearly everything, so its 41.2% are the share of negative sentences, and it is sure of it.
#   Yet its line rises: the scores do know something. The threshold of 0.5 is in the wrong place.
# - **continuation**: nobody trained it for this, and it is right in 79.2%. It claims less than that: below the dashed
#   line where it says unlikely, above it where it says likely.
# - **sentiment**: right most often, and too sure. Where it states 0.01, a share of 0.16 is positive after all.
#
# One model, two prompts: the wording decided nearly everything. And a softmax always adds up to 1: that is arithmetic, not
# honesty. Only labelled examples show what a score is worth.
#
# ### Exercise 6.3 · Reliability bins &nbsp; ⏱ 7 min · ●●○
#
# Write what that picture draws. A probability on an edge belongs to the bin above it, and 1 to the last.

# %% exercise="6.3"
def reliability_bins(probabilities: list[float], labels: list[int], bins: int) -> list:
    """Return (count, mean probability, share of label 1) for each bin that is not empty."""
    ### BEGIN SOLUTION
    filled = {}
    for probability, label in zip(probabilities, labels):
        number = min(int(probability * bins), bins - 1)
        filled.setdefault(number, []).append((probability, label))
    pairs = [list(zip(*filled[number])) for number in sorted(filled)]
    return [(len(p), sum(p) / len(p), sum(y) / len(y)) for p, y in pairs]
    ### END SOLUTION


check.reliability_bins(reliability_bins)

# %% [markdown] hint="a sentence is missing, or there is one bin too many"
# `int(1.0 * bins)` is `bins`, and the last bin is number `bins - 1`.

# %% [markdown]
# ## 6 · One word, two vectors
#
# Logits are made from *hidden states*: a vector for each position after each layer. A river has a bank, and money is kept in
# one. Both start from the same row of the embedding table. Where do they part?
#
# ### Exercise 6.4 · Two banks &nbsp; ⏱ 5 min · ●●○

# %% exercise="6.4"
def word_cosines(first: tuple, second: tuple, i: int, j: int) -> list[float]:
    """Return, layer by layer, the cosine of position i in `first` and j in `second`.

    first, second: hidden states of two texts, one [1, length, size] for each layer.
    """
    ### BEGIN SOLUTION
    pairs = [(a[0, i], b[0, j]) for a, b in zip(first, second)]
    return [torch.cosine_similarity(a, b, dim=-1).item() for a, b in pairs]
    ### END SOLUTION


check.word_cosines(word_cosines)

# %% [markdown] hint="all my cosines are the same"
# `first` holds one tensor for each layer. Go through both tuples together.

# %%
folder = checkpoint("encoder")
speller = AutoTokenizer.from_pretrained(folder)
encoder = AutoModel.from_pretrained(folder, dtype=torch.float32).to(device)


def word_states(model, tokenizer, text, word="bank"):
    """Return the vector of a word after each layer, [layers + 1, size]."""
    inputs = tokenizer(text, return_tensors="pt").to(device)
    at = inputs.char_to_token(text.index(word) + 1)
    with torch.inference_mode():
        states = model(**inputs, output_hidden_states=True).hidden_states
    return torch.cat([state[:, at] for state in states])


def compare(model, tokenizer, *texts):
    one, other = (word_states(model, tokenizer, text) for text in texts)
    return torch.cosine_similarity(one, other, dim=-1).tolist()


river, lake = "We sat on the bank of the river.", "They fished from the bank of the lake."
money = "We put the money in the bank."
views.layer_lines("River and money part, layer by layer", "cosine of the two banks",
                  encoder=compare(encoder, speller, river, money),
                  chat_model=compare(model, tokenizer, river, money),
                  chat_model_river_and_lake=compare(model, tokenizer, river, lake))

# %% [markdown]
# In the chat model both banks start as one vector: 1.00, since its embedding knows the token and nothing else. (The encoder's
# includes the position, so it starts at 0.97.) From then on every layer mixes in the neighbours. In the end the banks of
# river and lake are closer, 0.85, than those of river and money, 0.74.
#
# One article we read lets the two end up completely different. They do not: all vectors of a model have much in common, and
# 0.84 in the encoder is still close. What can be shown is an order, not opposites.
#
# ## 7 · Who looks at whom
#
# What mixes the neighbours in is attention: each position hands out weights that add up to 1 (lesson 05). The usual
# implementation, `sdpa`, is fast because it fuses the steps, and has no weights to return; `eager` goes step by step and has.
# Of all heads of the encoder, here is the one in which the bank looks at the river most:

# %%
def attention(model, tokenizer, text):
    """Return the tokens and the attention weights, [layers, heads, length, length]."""
    inputs = tokenizer(text, return_tensors="pt").to(device)
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        weights = model(**inputs, output_attentions=True).attentions
    model.set_attn_implementation("sdpa")
    return tokenizer.convert_ids_to_tokens(inputs["input_ids"][0]), torch.cat(weights).cpu()

# %%
names, weights = attention(encoder, speller, river)
looks = weights[:, :, names.index("bank"), names.index("river")]    # [layers, heads]
layer, head = divmod(int(looks.argmax()), looks.shape[1])
views.attention_map(weights[layer, head], names,
                    f"Head {head + 1} of layer {layer + 1}: the bank looks at the river")

# %% [markdown]
# A fine picture, and picked from 72. Before you believe it, ask what this head does with another sentence, and where all
# heads look on average:

# %%
def most(row, names):
    return f"{names[int(row.argmax())]} {row.max():.2f}"


rows = []
for text in (river, lake, money):
    names, weights = attention(encoder, speller, text)
    row = weights[:, :, names.index("bank")]
    rows.append((text, most(row[layer, head], names), most(row.mean((0, 1)), names)))
views.table(("", "this head", f"all {looks.numel()} heads"), rows,
            caption="where the bank looks most")

# %% [markdown]
# The head finds the lake as well, but not the money. And the average goes to `[CLS]`, which is no word of the sentence. The
# chat model has no `[CLS]`. How much of its attention goes to the first token, whichever that is?

# %%
rest = " old mill by the river is now a library for the children of the town."
share = {}
for word in ("The", "Of", "<|endoftext|>"):
    names, weights = attention(model, tokenizer, word + rest)
    share[word] = weights[:, :, 1:, 0].mean((1, 2)).tolist()        # but for the first itself

# %%
even = sum(1 / seen for seen in range(2, len(names) + 1)) / (len(names) - 1)
print({word: f"{sum(each) / len(each):.2f}" for word, each in share.items()}, f"{even:.2f}")
views.layer_lines("The first token draws attention, whatever it is", "share on the first token",
                  start=1, The=share["The"], Of=share["Of"],
                  endoftext=share["<|endoftext|>"], spread_evenly=[even] * len(weights))

# %% [markdown]
# Half of it, more than three times an even spread. A softmax must spend its 1 somewhere, and a head that finds nothing parks
# it on a place that every position can see: an *attention sink*. A map shows where weight went, not what was understood.
#
# ## 8 · Reading between the layers
#
# The head that makes logits from the last hidden state accepts any vector of that size. Give it an earlier layer, and see what
# the model would say if it stopped there. That is the *logit lens*.

# %%
widgets.logit_lens(tokenizer, model, "The capital of France is")

# %% [markdown]
# The embedding names the word itself: head and table share their weights here, and a row fits itself best. For most of the
# way the model expects a full stop, a comma, a bare space. ` Paris` is among the first three only after layer 29, and
# first at the end. Slide back, and try an end that is easier: "Once upon a".
#
# Take it as a hint, not as a thought read aloud: no layer but the last was trained to be read by this head. And one trap if
# you build it yourself: the library has put the last entry of `hidden_states` through the final norm already, and only that.

# %% [markdown] instructor minutes=4
# Let each pair find a text whose answer shows earlier than "Paris" does, and say after which layer. "Once upon a" does;
# counting and rhymes often do not. Then ask what the share column may and may not be taken for.

# %% [markdown]
# ## 9 · A vector for a text
#
# Average the hidden states, and you have a vector for the text. Whether the vector is any good is another matter. Compare a
# request with one that means the same and one that looks the same:

# %%
def pooled(model, tokenizer, texts):
    vectors = []
    for text in texts:
        inputs = tokenizer(text, return_tensors="pt").to(device)
        with torch.inference_mode():
            states = model(**inputs, output_hidden_states=True).hidden_states
        vectors.append(states[-1][0].mean(0))
    return torch.nn.functional.normalize(torch.stack(vectors), dim=-1)


texts = "How do I get my money back?", "I would like a refund.", "How do I get my cat back?"
rows = []
for name, each, its in (("encoder", encoder, speller), ("chat model", model, tokenizer)):
    similar = pooled(each, its, texts) @ pooled(each, its, texts).T
    rows.append((name, *(f"{similar[0, other]:.2f}" for other in (1, 2))))
views.table(("", *texts[1:]), rows, caption=f"cosine with “{texts[0]}”")

# %% [markdown]
# The encoder was trained so that equal meanings lie close. The chat model was trained to guess the next token; its mean
# vector puts the cat beside the money, because the words are the same. With the right model, a classifier needs no examples
# at all: choose the label that lies closest.

# %%
news = ["The striker scored twice.", "Simmer the onions until soft.", "Interest rates rose."]
subjects = ["sport", "cooking", "money"]
names = pooled(encoder, speller, [f"This text is about {subject}." for subject in subjects])
closest = (pooled(encoder, speller, news) @ names.T).argmax(-1).tolist()
[(text, subjects[number]) for text, number in zip(news, closest)]

# %% [markdown]
# ## 10 · What a full row costs
#
# A vocabulary is wide, and `forward` fills a row of it for every position. One sequence of 4,096 tokens, a vocabulary of
# 32,000, two bytes a number: how much? And to write, you need one row only, the last: `logits_to_keep` says so. Compare, and
# watch the head while `generate` works:

# %% margin="only shapes and sizes are stored, not the text"
print(f"4,096 tokens: {4096 * 32000 * 2:,} bytes")
long = tokenizer(" count" * 128, return_tensors="pt").to(device)
with torch.inference_mode():
    for options in ({}, {"logits_to_keep": 1}):
        print(f"128 tokens, {options}: {model(**long, **options).logits.nbytes:,} bytes")

shapes = []
hook = model.get_output_embeddings().register_forward_hook(
    lambda module, given, result: shapes.append(list(result.shape)))
model.generate(**long, max_new_tokens=3, do_sample=False)
hook.remove()
shapes

# %% [markdown]
# A quarter of a gigabyte for one sequence, before anything is computed with it. `generate` never asked for more than one row,
# not even for the prompt. Your own `forward` does unless you tell it not to. Scores for every token of a long text you take
# in pieces.
