# %% [markdown]
# A model does not write. It gives a score to every token that could come next, and stops there. Everything that you call
# "the answer" is made by a loop around it: choose one token, append it, ask again, and at some point end. That loop has more
# settings than the model. In this lesson you write it, set it knowingly, and learn which setting was really in force.
#
# ## 1 · One pass is not a text

# %%
import re
import time

import torch
from transformers import (AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GPT2Config,
                          GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM)
from transformers.generation import logits_process as library
from transformers.utils import logging as notices

from labutils import check, environment, views, widgets
from labutils.checkpoints import checkpoint

device = environment.device()
tokenizer = AutoTokenizer.from_pretrained(checkpoint("chat"))
model = AutoModelForCausalLM.from_pretrained(checkpoint("chat"), dtype=torch.float32)
model = model.to(device)


def chat(question):
    return tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True,
        return_tensors="pt", return_dict=True).to(device)


prompt = chat("What is the capital of Japan?")
with torch.inference_mode():
    logits = model(**prompt).logits

logits.shape, tokenizer.decode(logits[0, -1].argmax())

# %% [markdown]
# 37 positions, and for each a score for all 49,152 tokens: the forward pass returns no more. The last row is about the next
# token. Take its best, append it, repeat: *greedy* decoding.

# %%
ids = prompt["input_ids"]
with torch.inference_mode():
    for _ in range(20):
        best = model(ids).logits[:, -1:].argmax(-1)
        ids = torch.cat([ids, best], dim=1)
        if best == model.generation_config.eos_token_id:
            break

output = model.generate(**prompt, max_new_tokens=20, do_sample=False)
text = tokenizer.decode(output[0], skip_special_tokens=True)

{"equal": torch.equal(ids, output),
 "cut by tokens": tokenizer.decode(output[0, prompt["input_ids"].shape[1]:]),
 "cut by characters": text[len(tokenizer.decode(prompt["input_ids"][0])):]}

# %% [markdown]
# Your loop and `generate` agree on every id. And both return the prompt *and* the new tokens. Cut it off by counting tokens:
# whoever counts characters, after a decoder that left the control tokens out, cuts off the answer.
#
# **Predict 7.1.** The loop above sent the whole text through the model at every step. `generate` keeps what it has already
# computed (lesson 08). The prompt has 37 tokens and 8 were written. How many positions went through the model in all?

# %% tags=["predict"]
### BEGIN SOLUTION
positions = 44      # a number of positions
### END SOLUTION

# %%
passes = []
model.model.layers[-1].register_forward_hook(
    lambda layer, given, states: passes.append(given[0].shape[1]))


def write(inputs, **how):
    """Return the new ids of the first row, and how many positions each pass had."""
    passes.clear()
    how = {"max_new_tokens": 20, "do_sample": False, **how}
    output = model.generate(**inputs, **how)
    return output[0, inputs["input_ids"].shape[1]:].cpu(), list(passes)


new, ran = write(prompt)
ran

# %% tags=["check"]
check.positions(positions, ran)

# %% [markdown]
# One pass over the prompt gives the first token, each pass after it one more. The last token is never read. One article we
# read says that every token costs a pass, and that none can overtake another. For this loop that holds; section 6 bends it.
#
# ### Exercise 7.1 · The loop, with its stops &nbsp; ⏱ 8 min · ●●○
#
# `next_logits(ids)` takes a list of ids and returns the scores of the next token. Stop at any of several end tokens, or when
# the budget is spent. A list of ends is the normal case: many checkpoints have two.

# %% exercise="7.1"
def greedy(next_logits, ids: list[int], max_new_tokens: int, ends: list[int]) -> list[int]:
    """Return the new ids only. The end token that stopped the loop is the last of them."""
    ### BEGIN SOLUTION
    new = []
    while len(new) < max_new_tokens:
        new.append(int(next_logits(ids + new).argmax()))
        if new[-1] in ends:
            break
    return new
    ### END SOLUTION


check.greedy(greedy)

# %% [markdown] hint="it stops before it has begun"
# A chat prompt holds end tokens of earlier turns. Look at the token you have just chosen, not at the whole list.

# %% [markdown] hint="my list is one token too long"
# Compare with `max_new_tokens` before you ask the model, and count new tokens only.

# %% [markdown]
# ## 2 · Temperature
#
# Instead of the best token you may draw one, by its probability. Dividing the logits by a temperature first makes the
# distribution sharper or flatter. An article gives this example; here it is computed.

# %%
example = torch.tensor([3.0, 1.0, 0.5])
views.table(("T", "a", "b", "c"), [
    (T, *(f"{share:.3f}" for share in (example / T).softmax(-1))) for T in (0.5, 1, 2)
])

# %% [markdown]
# The article's numbers hold. The order never changes: *a* stays first at any temperature, and near 0 it takes everything.
#
# ## 3 · Cutting off the tail
#
# Thousands of unlikely tokens together are likely. So one draws only among the best. Here are two texts, one with an obvious
# next word and one without.

# %%
def next_logits(text):
    inputs = tokenizer(text, return_tensors="pt").to(device)
    with torch.inference_mode():
        return model(**inputs).logits[:, -1].float().cpu()


sure, unsure = map(next_logits, ("The capital of France is", "My favourite animal is the"))
[f"{scores.softmax(-1).max():.2f}" for scores in (sure, unsure)]

# %% [markdown]
# **Predict 7.2.** *Top-p* keeps the smallest set of tokens whose probabilities reach p. With p = 0.8, two are kept after
# "The capital of France is". How many after "My favourite animal is the"? Twice too many or too few still counts.

# %% tags=["predict"]
### BEGIN SOLUTION
nucleus = 250       # a number of tokens
### END SOLUTION

# %%
def kept(scores):
    return int(scores.isfinite().sum())


filters = {"top_k = 10": library.TopKLogitsWarper(10),
           "top_p = 0.8": library.TopPLogitsWarper(0.8),
           "min_p = 0.1": library.MinPLogitsWarper(0.1)}
views.table(("tokens kept", "sure", "unsure"), [
    (name, *(kept(cut(None, scores)) for scores in (sure, unsure)))
    for name, cut in filters.items()
])

# %% tags=["check"]
check.nucleus(nucleus, unsure, 0.8)

# %% [markdown]
# Top-k keeps ten, whatever the model thinks. Top-p follows its doubts, here rather far. *Min-p* keeps what has at least a
# tenth of the best token's probability: one token when the model is sure, eleven when it is not.
#
# ### Exercise 7.2 · Top-p &nbsp; ⏱ 8 min · ●●●
#
# Return the logits with every token outside the set at −∞. The checker lays yours beside the library's.

# %% exercise="7.2"
def top_p(logits: torch.Tensor, p: float) -> torch.Tensor:
    """Return logits [batch, vocabulary], the tail at -inf; the best token always stays."""
    ### BEGIN SOLUTION
    shares, order = logits.softmax(-1).sort(descending=True)
    before = shares.cumsum(-1) - shares         # what the better tokens have together
    tail = (before >= p).scatter(-1, order, before >= p)
    return logits.masked_fill(tail, -torch.inf)
    ### END SOLUTION


check.top_p(top_p)

# %% [markdown] hint="I keep one token too few"
# The token that carries the sum over p belongs to the set. Ask what the tokens *before* it have together.

# %% [markdown] hint="the wrong tokens are cut"
# You decided in sorted order; the logits are in the order of the vocabulary. `scatter` with the sort's indices goes back.

# %% [markdown]
# One article draws top-p with five tokens and p = 0.8, and keeps four. Add its five probabilities up: they miss a tenth.

# %%
five = torch.tensor([[0.35, 0.25, 0.15, 0.10, 0.05]])
whole = torch.cat([five, torch.full((1, 10), 0.01)], dim=1)     # the rest, in ten crumbs
cut = library.TopPLogitsWarper(0.8)

print({f"sum {each.sum():.2f}": kept(cut(None, each.log())) for each in (whole, five)})
print({f"T = {T}": kept(cut(None, unsure / T)) for T in (0.5, 1.0, 2.0)})

# %% [markdown]
# Four, if a rest exists outside the picture. For those five alone the softmax makes the sum 1, and three are enough.
#
# The second line is the same `top_p` on the favourite animal, after three temperatures: this library divides first and cuts
# afterwards. An engine that cuts first and divides last, as llama.cpp does by default, keeps the middle number every time.
# Equal settings, other texts.
#
# The others by hand, each beside the library's class, equal to the last bit. Below them you can move all of them yourself.

# %%
def top_k(logits, k):
    return logits.masked_fill(logits < logits.topk(k).values[:, -1:], -torch.inf)


def min_p(logits, share):
    shares = logits.softmax(-1)
    return logits.masked_fill(shares < share * shares.amax(-1, keepdim=True), -torch.inf)


def repetition(logits, ids, penalty):
    seen = logits.gather(1, ids)
    return logits.scatter(1, ids, torch.where(seen > 0, seen / penalty, seen * penalty))


ids = prompt["input_ids"].cpu()
penalized = library.RepetitionPenaltyLogitsProcessor(1.3)
pairs = {
    "temperature": (unsure / 0.7, library.TemperatureLogitsWarper(0.7)),
    "top-k": (top_k(unsure, 10), library.TopKLogitsWarper(10)),
    "min-p": (min_p(unsure, 0.1), library.MinPLogitsWarper(0.1)),
    "repetition": (repetition(unsure, ids, 1.3), penalized),
}
{name: torch.equal(ours, theirs(ids, unsure)) for name, (ours, theirs) in pairs.items()}

# %%
widgets.sampling(tokenizer, model, "My favourite animal is the", top_p=0.3)

# %% [markdown] instructor minutes=5
# Let the room find settings that always give the same token, in three different ways (T near 0, top_k = 1, min_p = 1). Then a
# text at which top_k = 10 is too many. Ask who would have set top_p and temperature together without this picture.

# %% [markdown]
# A *seed* fixes the whole row of draws that follows, not your call:

# %%
animal = tokenizer("My favourite animal is the", return_tensors="pt").to(device)


def sample():
    return write(animal, do_sample=True, temperature=1.5, max_new_tokens=8)[0].tolist()


torch.manual_seed(7)
first, second = sample(), sample()
torch.manual_seed(7)
[first == sample(), first == second]

# %% [markdown]
# Seed directly before the call. Another batch size, another order of calls or another engine is another text.
#
# ## 4 · Penalties
#
# The *repetition* penalty, above, divides a positive logit and multiplies a negative one.
# *Presence* and *frequency* penalties subtract. Here they are as vLLM documents them: once for a token that was written, or
# for each time. They count what was *written*; repetition counts the prompt too. In llama.cpp all three count the prompt, as
# far as it lies within the last 64 tokens. One request, two engines, two texts.

# %%
def presence_and_frequency(logits, written, presence, frequency):
    counts = torch.bincount(written, minlength=len(logits))
    return logits - presence * (counts > 0) - frequency * counts


scores = torch.tensor([2.0, 2.0, 2.0, -1.0])
prompted, written = torch.tensor([2, 3]), torch.tensor([0, 0, 0, 1])
every = torch.cat([prompted, written])
views.table(("penalty", "written 3×", "written once", "prompt only", "there, logit < 0"), [
    ("none", *scores.tolist()),
    ("presence 0.5", *presence_and_frequency(scores, written, 0.5, 0).tolist()),
    ("frequency 0.5", *presence_and_frequency(scores, written, 0, 0.5).tolist()),
    ("repetition 2", *repetition(scores[None], every[None], 2)[0].tolist()),
])

# %% [markdown]
# `generate` has no presence or frequency penalty. And see what its repetition penalty does to a chat, whose prompt holds the
# token that ends a turn:

# %%
views.table(("repetition_penalty", "reply"), [
    (str(penalty), repr(tokenizer.decode(write(prompt, repetition_penalty=penalty)[0])))
    for penalty in (1.0, 1.5)
])

# %% [markdown]
# "Tokyo" came through, being new. The end did not: `<|im_end|>` stood in the prompt and was punished for it.
#
# That was the prompt's doing. Padding can do the same to a prompt without any end in it, since many tokenizers, this one
# included, pad with the end token. Here is an answer that is complete, alone and beside a longer neighbour:

# %% margin="compared are the score of the end and whether it wins, not what comes instead"
done = "Question: What is the capital of Japan?\nAnswer: The capital of Japan is Tokyo."
alone, pair = (tokenizer(texts, padding=True, padding_side="left", return_tensors="pt").to(device)
               for texts in ([done], [done, "Once upon a time there was a girl. " * 4]))


def end_of(inputs, **how):
    """Return the score of the end token after the first row, and whether it comes next."""
    scores = model.generate(**inputs, max_new_tokens=1, do_sample=False, output_scores=True,
                            return_dict_in_generate=True, **how).scores[0][0]
    end = tokenizer.eos_token_id
    return f"{scores[end]:.1f}", bool(scores.argmax() == end)


views.table(("repetition penalty 1.3", "score of the end", "ends"), [
    ("alone", *end_of(alone, repetition_penalty=1.3)),
    ("in a batch", *end_of(pair, repetition_penalty=1.3)),
    ("in a batch, the class by hand", *end_of(pair, logits_processor=[penalized])),
])

# %% [markdown]
# `generate` reads from the mask where each row begins and leaves the padding out. The class alone sees only ids: it takes
# the padding for text, and the answer no longer ends, because of its neighbour. Serving engines have shipped that fault.
#
# ## 5 · Beams
#
# Greedy takes the best step, and the best steps need not be the best path. *Beam search* keeps several unfinished texts. A
# tree of two steps is enough to see it:

# %%
tree = {(): {"the": 0.6, "a": 0.4},
        ("the",): {"cat": 0.4, "dog": 0.35, "sea": 0.25},
        ("a",): {"storm": 0.9, "calm": 0.1}}


def beams(width, steps=2):
    alive = {(): 1.0}
    for _ in range(steps):
        grown = {(*words, word): share * chance for words, share in alive.items()
                 for word, chance in tree[words].items()}
        alive = dict(sorted(grown.items(), key=lambda each: -each[1])[:width])
    return {" ".join(words): round(share, 2) for words, share in alive.items()}


print(beams(1), beams(2), sep="\n")

# %% [markdown]
# Width 1 is greedy. Now a trap: `do_sample=False` says only that nothing is drawn. If the configuration saved with a
# checkpoint asks for beams, you get beams. The same call, without and with such a configuration:

# %%
def log_probability(new):
    ids = torch.cat([animal["input_ids"], new[None].to(device)], dim=1)
    with torch.inference_mode():
        steps = model(ids).logits[0, :-1].log_softmax(-1)
    return steps.gather(1, ids[0, 1:, None])[-len(new):].sum().item()


rows = []
for saved in (1, 4):
    model.generation_config.num_beams = saved
    new, _ = write(animal, max_new_tokens=8)
    rows.append((saved, repr(tokenizer.decode(new)), f"{log_probability(new):.1f}"))
model.generation_config.num_beams = None
views.table(("num_beams, saved", "My favourite animal is the …", "log-probability"), rows)

# %% [markdown]
# The beams found a more probable text. Not a better one, and a shorter one, since every further token costs. If you mean
# greedy, say `num_beams=1`.
#
# ## 6 · Several tokens in one pass
#
# To *check* a guess of several tokens takes one pass, as all positions are scored together. *Prompt lookup* guesses by copying
# from the prompt, *assisted decoding* asks a smaller model; here, the first 8 of its own layers. Only what greedy would have
# written is kept.

# %% margin="the small margins are the draft's; what is compared is that the texts are equal"
copying = chat("Repeat this sentence twice: The old mill by the river is now a library "
               "for the children of the town.")
ways = {"one by one": {}, "prompt lookup": {"prompt_lookup_num_tokens": 8},
        "assisted": {"assistant_early_exit": 8}}
notices.set_verbosity_error()       # assisted decoding warns about a call of its own
texts, full_passes, seconds = {}, {}, {}
for name, how in ways.items():
    began = time.perf_counter()
    new, ran = write(copying, max_new_tokens=12, **how)
    seconds[name] = time.perf_counter() - began
    texts[name], full_passes[name] = new.tolist(), len(ran)
notices.set_verbosity_warning()

print([texts["one by one"] == text for text in texts.values()])
{name: full_passes[name] for name in ("one by one", "prompt lookup")}

# %% tags=["nbval-ignore-output"] reason="seconds differ between runs; the draft's close calls between processors"
views.table(("12 tokens", "full passes", "seconds"), [
    (name, full_passes[name], f"{each:.1f}") for name, each in seconds.items()
])

# %% [markdown]
# Three equal texts; the copier needed 4 passes for 12 tokens. So one pass for each token is a fact about the plain loop, not
# about generation. Now look at the clock. Copying pays when the answer stands in the prompt. The draft did not pay on the
# machine that wrote this page: layers that were never trained to end there guess badly, and a guess thrown away costs
# its time. Measure before you switch it on.
#
# ## 7 · Stop where you mean to
#
# The end tokens are a setting, too. Token 2 is `<|im_end|>`; a base model of this family ends with token 0.

# %%
views.table(("eos_token_id", "new tokens", "reply"), [
    (str(ends), len(new), repr(tokenizer.decode(new)))
    for ends in (0, 2, [0, 2])
    for new, _ in [write(prompt, eos_token_id=ends, max_new_tokens=18)]
])

# %% [markdown]
# With the wrong end it answers, ends its turn, and plays the next one itself. If your model invents your questions, look
# here first. Two more ways to stop, and two chats in one batch:

# %%
stops = ({"stop_strings": ["Jap"], "tokenizer": tokenizer},
         {"max_length": 40, "max_new_tokens": None})
print([tokenizer.decode(write(prompt, **how)[0]) for how in stops])

chats = [tokenizer.decode(chat(question)["input_ids"][0]) for question in (
    "What is the capital of Japan?", "How many days are in a week?")]
batch = tokenizer(chats, padding=True, padding_side="left", return_tensors="pt").to(device)
output = model.generate(**batch, max_new_tokens=20, do_sample=False)
new = output[:, batch["input_ids"].shape[1]:]
ended = (new == tokenizer.eos_token_id).int().cumsum(1)

{"in the tensor": new.numel(), "written": int((ended.cumsum(1) <= 1).sum())}

# %% [markdown]
# We asked to stop at "Jap" and got "Japan": the string overhangs, for a model can only stop between tokens. And the stop
# string stays in the text, so cut it yourself. `max_length` counts the prompt, `max_new_tokens` does not: 40 left three tokens.
# In the batch, the row that was done waited for the other, filled up with padding. Do not count that as work.
#
# ## 8 · The window is shared
#
# Prompt and answer live in one window. An article: of 8,192 positions a prompt of 7,000 leaves 1,192.
#
# ### Exercise 7.3 · Remaining budget &nbsp; ⏱ 5 min · ●○○

# %% exercise="7.3"
def room(window: int, prompt_tokens: int, wanted: int) -> int:
    """Return how many new tokens to allow; ValueError where the prompt leaves no room."""
    ### BEGIN SOLUTION
    left = window - prompt_tokens
    if left <= 0:
        raise ValueError(f"{prompt_tokens} tokens of prompt leave no room in {window}.")
    return min(wanted, left)
    ### END SOLUTION


check.room(room)

# %% [markdown] hint="it returns a negative number"
# A prompt can be longer than the window. That is an error for the caller, not a number.

# %% [markdown]
# The sum is easy. But who enforces it? Two models with random weights and a window of 16, a prompt of 12:

# %% margin="random weights: only lengths and the error are shown"
window = model.config.max_position_embeddings
small = {"vocab_size": 32, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
rotary = LlamaForCausalLM(LlamaConfig(
    hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
    max_position_embeddings=16, **small))
table = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, n_positions=16, **small))


def lengths(network, wanted):
    try:
        return network.generate(torch.arange(12)[None], max_new_tokens=wanted,
                                do_sample=False).shape[1]
    except IndexError as error:
        return f"IndexError: {error}"


views.table(("new tokens", "rotary positions", "table of positions"), [
    (wanted, lengths(rotary, wanted), lengths(table, wanted)) for wanted in (4, 5, 6)
], caption=f"our chat model: {window} - 7000 = {window - 7000}")

# %% [markdown]
# At the limit both are fine. One past it, too: the last token is never read, so it needs no position. Then the model with a
# table of positions fails, and the other goes on, at distances it was never trained on. Our chat model is of that kind. The
# article says "cut off" or an error, depending on the engine. Here is a third case, the worst: nothing but a friendly
# reminder. Ask `room` first.
#
# ## 9 · Who decided?
#
# Each setting is looked up in three places: your call, then `model.generation_config` (saved with the checkpoint), then the
# library's last resort.

# %% [markdown] instructor minutes=4
# Have everyone print model.generation_config of a model they use at work. Several popular chat checkpoints ship
# do_sample=True with a temperature: their "default" answers are drawn.

# %%
places = ({"max_new_tokens": 20, "do_sample": False}, model.generation_config.to_dict(),
          GenerationConfig._get_default_generation_params())    # private: what None becomes
views.table(("setting", "your call", "checkpoint", "last resort"), [
    (name, *("" if place.get(name) is None else str(place[name]) for place in places))
    for name in "max_new_tokens max_length do_sample num_beams top_k eos_token_id".split()
])

# %% [markdown]
# Two surprises. Without a limit you get 20 tokens: answers that break off early. And whoever samples without a word about
# `top_k` samples from 50 tokens.
#
# At least the library refuses a setting it cannot honour. Names of other interfaces, a division by zero (some engines read
# T = 0 as greedy; here you say so), and methods that older tutorials show but that have left the library. Those would be
# fetched from the Hub as code and run, which this course does not do.

# %%
notices.set_verbosity_error()       # the message of each error says enough
for how in ({"max_tokens": 3}, {"do_sample": True, "temperature": 0.0},
            {"penalty_alpha": 0.6, "top_k": 4}, {"dola_layers": "high"},
            {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 1.0}):
    try:
        write(prompt, **how)
    except ValueError as error:
        print(re.split(r"[(,] | in your", str(error))[0])
