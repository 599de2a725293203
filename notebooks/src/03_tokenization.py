# %% [markdown]
# A model never sees your text. It sees the numbers that a tokenizer made of it, and what the tokenizer lost is lost. It also
# decides what a text costs: you will measure a sentence of 14 tokens in English that takes nine times as many in Tamil. And
# when a tokenizer meets the wrong model nothing breaks, except the answers. In this lesson you build one, take real ones
# apart, and learn to catch the wrong one.
#
# ## 1 · Words, letters, or something between
#
# What should one number stand for? Here is a real text: 20 sentences, written for this course in English and put into 20 other
# languages. Read the English and count how many different words and characters you have met, and how much of the rest you
# could not read with them.

# %%
import json
import math
from collections import Counter

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer

from labutils import check, contracts, data, environment, views, widgets
from labutils.checkpoints import checkpoint, roles

parallel = data.parallel()
english = parallel["English"]
english[:3]

# %%
cut = pre_tokenizers.Whitespace()       # words and punctuation, apart


def words_of(sentences):
    return [word for sentence in sentences for word, _ in cut.pre_tokenize_str(sentence)]


def met(split, n):
    known, new = set(split(english[:n])), split(english[n:])
    return len(known), f"{sum(unit not in known for unit in new) / len(new):.0%}"


views.table(("sentences read", "words", "unknown later", "characters", "unknown later"), [
    (n, *met(words_of, n), *met("".join, n)) for n in (5, 10, 15)
])

# %% [markdown]
# Words never stop coming, and a vocabulary has to stop somewhere. What is outside becomes *unknown*, one token for everything
# that nobody expected. Characters soon nearly suffice. They have another price:

# %%
lengths = {"words": len(words_of(english)), "characters": len("".join(english))}
lengths |= {"20 tokens": 20, "100 tokens": 100}
views.table(("", "length", "length²"), [(name, n, n ** 2) for name, n in lengths.items()])

# %% [markdown]
# Each position looks at each, so attention grows with the square: the last two rows say that five times longer is 25 times
# more. We want few pieces per text, a vocabulary with an end, and nothing unknown.
#
# ## 2 · Merge by hand
#
# *Byte pair encoding*, BPE, finds such pieces. Cut every word into letters. Find the two neighbours that occur together most
# often, make them one symbol, and repeat. The order of these merges *is* the tokenizer.
#
# ### Exercise 3.1 · Count pairs &nbsp; ⏱ 6 min · ●●○
#
# `words` tells how often each word was read, such as `{("t", "o"): 7, ("d", "o", "w", "n"): 1}`. Count how often each pair of
# neighbours occurs in all of them.

# %% exercise="3.1"
def count_pairs(words: dict[tuple[str, ...], int]) -> dict[tuple[str, str], int]:
    """Return how often each pair of neighbouring symbols occurs."""
    ### BEGIN SOLUTION
    pairs = Counter()
    for word, count in words.items():
        for pair in zip(word, word[1:]):
            pairs[pair] += count
    return pairs
    ### END SOLUTION


check.count_pairs(count_pairs)

# %% [markdown] hint="my counts are too small"
# A word that was read three times gives each of its pairs three times: add `count`, not 1.

# %% [markdown] hint="how do I walk over neighbours?"
# `zip(word, word[1:])` gives the first with the second, the second with the third, and so on.

# %% [markdown]
# ### Exercise 3.2 · One merge &nbsp; ⏱ 8 min · ●●●
#
# Now join one pair into one symbol wherever it stands, from left to right. Mind that a symbol may be longer than a letter.

# %% exercise="3.2"
def merge(words: dict[tuple[str, ...], int], pair: tuple[str, str]) -> dict:
    """Return the words with each occurrence of `pair` joined into one symbol."""
    ### BEGIN SOLUTION
    merged = {}
    for word, count in words.items():
        symbols, at = [], 0
        while at < len(word):
            step = 2 if word[at:at + 2] == pair else 1
            symbols.append("".join(word[at:at + step]))
            at += step
        merged[tuple(symbols)] = count
    return merged
    ### END SOLUTION


check.merge(merge)

# %% [markdown] hint="the checker speaks of she"
# You joined the word to one text and replaced in it. Then `sh`, `e` looks like `h`, `e`. Walk over the symbols.

# %% [markdown] hint="a letter stands there twice"
# After a merge go on two symbols further, not one.

# %% [markdown] instructor minutes=4
# Do the first two merges on the board before the room writes code: h + e, then t + he. Ask what the third merge of a text in
# your own language would be. Then ask why no merge crosses a space (the words were cut apart before counting).

# %% [markdown]
# ## 3 · Three trainers, one text
#
# The library does the same, faster. It knows two relatives as well: *WordPiece* marks the inside of a word with `##`;
# *Unigram* starts with too many pieces and drops those that the text can best do without. First BPE's merges, then how all
# three cut words that the text does not have, one of them with a new letter.

# %%
def train(model, trainer, **settings):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = cut
    settings |= {"vocab_size": 200, "special_tokens": ["[UNK]"], "show_progress": False}
    tokenizer.train_from_iterator(english, trainer(**settings))
    return tokenizer


trained = {
    "BPE": train(models.BPE(unk_token="[UNK]"), trainers.BpeTrainer),
    "WordPiece": train(models.WordPiece(unk_token="[UNK]"), trainers.WordPieceTrainer),
    "Unigram": train(models.Unigram(), trainers.UnigramTrainer, unk_token="[UNK]"),
}
merges = json.loads(trained["BPE"].to_str())["model"]["merges"]
print(*("+".join(pair) for pair in merges[:12]))
print(sum(len(trained["BPE"].encode(sentence).ids) for sentence in english), "pieces")

# %%
unseen = ["unseen", "harbours", "waterways", "Hände"]
views.table(("", *unseen), [
    (name, *(" ".join(map(each.id_to_token, each.encode(word).ids)) for word in unseen))
    for name, each in trained.items()
])

# %% [markdown]
# `he`, `the`, `an`, `in`, `and`: English, found by counting. The text is 691 pieces long now, with a vocabulary of 200.
# Nothing spelled with known letters is unknown any more. The last column shows what remains: `ä` was never seen, and WordPiece
# gives up the whole word for it. Most models of today start from the 256 bytes instead, and nothing is unknown to them.

# %% [markdown] instructor minutes=3
# The library's WordPiece trainer merges by count, as BPE does, and breaks ties in an order that changes from run to run: train
# it twice on one small text and compare. The words in the table were chosen because they come out alike.

# %% [markdown]
# ## 4 · Five stages of a real one
#
# Here is a shelf of real tokenizers, trained on far more text. (With `LAB_PROFILE=hub` it holds those that have a pinned
# repository there.) Below it, one text on its way through two of them: four stages in, one out.

# %%
shelf = {role.removeprefix("tokenizer-"): AutoTokenizer.from_pretrained(checkpoint(role))
         for role in roles() if role.startswith("tokenizer-")}
views.table(("tokenizer", "tokens", "kind", "special tokens"), [
    (name, len(each), type(each.backend_tokenizer.model).__name__, each.all_special_tokens)
    for name, each in shelf.items()
])

# %%
def stages(tokenizer, text):
    inside = tokenizer.backend_tokenizer
    clean = inside.normalizer.normalize_str(text) if inside.normalizer else text
    pieces = [piece for piece, _ in inside.pre_tokenizer.pre_tokenize_str(clean)]
    tokens = [token.value for piece in pieces for token in inside.model.tokenize(piece)]
    ids = tokenizer(text)["input_ids"]
    lists = pieces, tokens, tokenizer.convert_ids_to_tokens(ids)
    shown = (" | ".join(map(views.visible, each)) for each in lists)
    return clean, *shown, tokenizer.decode(ids)


steps = ("normalizer", "pre-tokenizer", "model", "post-processor", "decoder")
two = (stages(shelf[name], "Two Cafés, 42 €") for name in ("wordpiece", "smollm2"))
views.table(("stage", "wordpiece", "smollm2"), list(zip(steps, *two)))

# %% [markdown]
# The left one lowers letters and drops accents before it starts, so its decoder cannot bring them back. The right one changes
# nothing and works on bytes: `é` and `€` show as the letters that stand for their bytes. Each stage belongs to the tokenizer.
# Change one and the ids change, while the vocabulary stays the same.
#
# Ids are rows of one table, and mean nothing beside another. That makes an id in print easy to check. One article prints ids
# for `bank`, `I love transformers` and `Transformers are great`:

# %%
bert = shelf["wordpiece"]
claims = {"bank": [2924], "I love transformers": [1045, 2293, 10938, 2545],
          "Transformers are great": [13809, 2545, 2024, 2307]}
views.table(("text", "ids in the article", "they mean", "right ids"), [
    (text, ids, bert.convert_ids_to_tokens(ids), bert.encode(text)[1:-1])
    for text, ids in claims.items()
])

# %% [markdown]
# One of three is right. The second splits a word that is one token here; the third mixes two vocabularies, and `porto` is
# what the model would have read. Never copy ids; make them.
#
# ## 5 · There and back
#
# To mark an answer in a text you need the way back: which characters is a token made of? *Offsets* say it.

# %%
text = "Marta saw the harbourmaster."
encoding = bert(text, return_offsets_mapping=True)
offsets = encoding["offset_mapping"]
views.table(("position", "token", "offsets", "text"), [
    (n, token, offsets[n], text[slice(*offsets[n])])
    for n, token in enumerate(encoding.tokens())
])

# %% [markdown]
# `[CLS]` and `[SEP]` are *special tokens*: added by the post-processor, part of no text, offsets (0, 0). They do not start at
# character 0. They start nowhere.
#
# ### Exercise 3.3 · Tokens of a span &nbsp; ⏱ 7 min · ●●○
#
# `harbourmaster` is `text[14:27]`. Which tokens are that? Return a pair, so that `tokens[first:last]` covers the span.

# %% exercise="3.3"
def token_span(offsets: list[tuple[int, int]], start: int, end: int) -> tuple[int, int]:
    """Return (first, last), last excluded, of the tokens that cover text[start:end]."""
    ### BEGIN SOLUTION
    inside = [n for n, (begin, stop) in enumerate(offsets) if begin < end and stop > start]
    return inside[0], inside[-1] + 1
    ### END SOLUTION


check.token_span(token_span)

# %% [markdown] hint="a special token gets in"
# (0, 0) covers no character. Two stretches share one when each begins before the other stops: `<` and `>`, not `<=`.

# %% [markdown] hint="ValueError: 15 is not in list"
# A span need not begin where a token begins. Do not look for equal numbers; compare.

# %% [markdown]
# Decoding is more than joining. Watch a word and a moon, token by token and as a whole. Then see it live: every box is a
# token. Write in your own language, add an emoji, choose any two of the shelf.

# %%
smollm2 = shelf["smollm2"]
ids = smollm2("<|im_start|>naïve 🌙")["input_ids"]
print([smollm2.decode([number]) for number in ids])
print(smollm2.decode(ids), smollm2.decode(ids, skip_special_tokens=True), sep="   ")

# %%
widgets.playground(shelf, "The harbour's naïve cat 🌙", left="wordpiece", right="smollm2")

# %% [markdown]
# `�` means "no valid character": a third of a moon is none. A program that shows text while it is generated has to hold
# tokens back until a character is whole. The special token, typed as plain text, became one; you decide whether it comes back.
#
# ## 6 · What a sentence costs
#
# You pay by the token, and a window is counted in tokens. These three sentences say the same:
#
# - Every morning Marta walks down to the river and counts the boats.
# - Каждое утро Марта спускается к реке и считает лодки.
# - ஒவ்வொரு காலையும் மார்த்தா ஆற்றங்கரைக்கு நடந்து சென்று படகுகளை எண்ணுகிறாள்.
#
# **Predict 3.1.** How many tokens has each under `smollm2`, the tokenizer of our chat model? Within a third counts.
#
# **Predict 3.2.** Which tokenizer of the shelf needs the **fewest** tokens for the Thai text?

# %% tags=["predict"]
### BEGIN SOLUTION
in_english = 14     # a number
in_russian = 43
in_tamil = 129
cheapest = "wordpiece"      # a name of the shelf
### END SOLUTION

# %% tags=["check"]
languages = ("English", "Russian", "Tamil")
counts = {name: len(smollm2.encode(parallel[name][0])) for name in languages}
print(counts)
check.three_languages(in_english, in_russian, in_tamil, counts)

# %%
def cost(tokenizer, sentences):
    """Return how many tokens there are, and the share of characters that became unknown."""
    tokens = lost = 0
    for sentence in sentences:
        made = tokenizer(sentence, add_special_tokens=False, return_offsets_mapping=True)
        tokens += len(made["input_ids"])
        for number, (start, stop) in zip(made["input_ids"], made["offset_mapping"]):
            lost += stop - start if number == tokenizer.unk_token_id else 0
    return tokens, lost / len("".join(sentences))


costs = {language: {name: cost(each, sentences) for name, each in shelf.items()}
         for language, sentences in parallel.items()}
check.fewest_tokens(cheapest, costs["Thai"])

# %%
views.token_costs(costs)

# %% [markdown]
# Without the ✗ WordPiece would be the bargain for Thai. It is cheap because the text is gone: unknown tokens are all that the
# model gets. A count means nothing without the share lost, and even that leaves out the accents that a normalizer dropped.
# Among those that lose nothing, look along the Tamil row: one text, very different prices.
#
# ## 7 · Bits, not perplexity
#
# *Perplexity* is how many tokens a model hesitates between, on average. It is the usual measure of a language model, and it
# counts per token. Change the tokens, and you have changed the unit. The first three sentences, in three languages:

# %%
device = environment.device()
chat = checkpoint("chat")
model = AutoModelForCausalLM.from_pretrained(chat, dtype=torch.float32).to(device)


def surprise(tokenizer, text):
    """Return how surprised the model is by a text, in nats, and over how many tokens."""
    ids = tokenizer(text, return_tensors="pt")["input_ids"].to(device)
    with torch.inference_mode():
        mean = model(input_ids=ids, labels=ids).loss.item()
    judged = ids.shape[1] - 1       # all but the first
    return mean * judged, judged


# %%
rows = []
for name in languages:
    three = parallel[name][:3]
    results = [surprise(smollm2, "<|endoftext|>" + sentence) for sentence in three]
    nats, tokens = map(sum, zip(*results))
    bits, size = nats / math.log(2), len("".join(three).encode())
    figures = math.exp(nats / tokens), bits / size, bits
    rows.append((name, tokens, *(f"{figure:.3g}" for figure in figures)))
views.table(("", "tokens", "perplexity", "bits per byte", "bits for all three"), rows)

# %% [markdown]
# By perplexity this English model is best at Tamil. Of course it is: most Tamil tokens are a part of a letter, and the rest of
# a letter is easy to guess. Bits add up whatever the tokens are, so *bits per byte* compares tokenizers and models on one
# text. Between languages even that misleads, since a Tamil letter takes three bytes. There, compare whole translations: the
# last column.
#
# ## 8 · The vocabulary is part of the architecture
#
# Each token of the vocabulary is a row of the embedding table. What would our chat model weigh with the others' vocabulary?

# %%
body = model.num_parameters() - model.get_input_embeddings().weight.numel()
sizes = {name: len(each) * model.config.hidden_size for name, each in shelf.items()}
print(f"32,000 rows of 4,096 numbers: {32_000 * 4_096:,}")
views.table(("vocabulary of", "rows", "numbers in the table", "share of the model"), [
    (name, len(shelf[name]), size, f"{size / (size + body):.0%}")
    for name, size in sizes.items()
])

# %% [markdown]
# A larger vocabulary makes texts shorter and the table longer, and a small model feels it most. The first line is an article's
# example, about 131 million, and right. The choice is made before training; afterwards every new row has to be learned.
#
# ## 9 · Another model's ids
#
# So what if someone pairs the chat model with the WordPiece tokenizer? All of its ids exist in the larger table.

# %%
sentence = "The children walked to school in the morning and came home in the afternoon."
print(smollm2.decode(bert.encode(sentence)))
for name in ("smollm2", "wordpiece"):
    nats, tokens = surprise(shelf[name], sentence)
    print(f"{name}: {nats / tokens:.1f} nats a token")
print(f"a blind guess: {math.log(model.config.vocab_size):.1f}")

# %% [markdown]
# The first line is what the model was asked to read. No error, no warning: shapes fit, types fit, ids exist. But the model
# knows. It is more surprised than someone who guesses blindly, because it is sure, and wrong.
#
# ### Exercise 3.4 · Does it fit? &nbsp; ⏱ 8 min · ●●●
#
# Write the test. It gets a tokenizer, a model and an ordinary English sentence. Equal sizes prove nothing; different sizes
# prove nothing either, since many models keep spare rows.

# %% exercise="3.4"
def fits(tokenizer, model, text: str) -> bool:
    """Say whether the model knows the ids that this tokenizer makes of an ordinary text."""
    ### BEGIN SOLUTION
    ids = tokenizer(text, return_tensors="pt")["input_ids"].to(model.device)
    rows = model.get_input_embeddings().num_embeddings
    if ids.max() >= rows:
        return False
    with torch.inference_mode():
        nats = model(input_ids=ids, labels=ids).loss.item()
    return nats < math.log(rows) / 2
    ### END SOLUTION


check.fits(fits, smollm2, model)

# %% [markdown] hint="IndexError: index out of range in self"
# An id has no row. Compare `ids.max()` with `model.get_input_embeddings().num_embeddings` before you run the model.

# %% [markdown] hint="it accepts a tokenizer of the same size"
# Nothing in the tokenizer can tell you. Run the model with `labels=ids` and compare its loss with a blind guess,
# `math.log(rows)`.

# %% [markdown] instructor minutes=4
# Ask where such pairs come from: a fine-tune saved without its tokenizer, a vocabulary extended on one side, a server with a
# default. In each case the shapes were right.

# %% [markdown]
# For your own work there is a tool that asks the weights, the files and the configuration, and tells you why. When an answer
# is strange or a bill is high, look at the tokens first, then ask it.

# %%
print("its own tokenizer fits:", contracts.match(smollm2, model).ok)
contracts.match(bert, model)
