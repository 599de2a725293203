# %% [markdown]
# To write one more token, a decoder looks back at every token before it. It could compute all of them again, each time. It
# keeps two vectors per layer and token instead, the key and the value, and that is the whole idea. The price is memory: at
# long contexts the cache is larger than anything else that you can influence. In this lesson you count it to the byte, find
# it in memory, and learn when an old cache is worth gold and when it is poison.
#
# ## 1 · What may be kept

# %%
import copy
import inspect
import time

import torch
from transformers import (AutoConfig, AutoModelForCausalLM, AutoTokenizer, DynamicCache,
                          QuantizedCache, StaticCache)
from transformers.utils import logging as notices

from labutils import arithmetic, check, environment, trace, views, widgets
from labutils.arithmetic import examples, truth
from labutils.checkpoints import checkpoint

device = environment.device()
tokenizer = AutoTokenizer.from_pretrained(checkpoint("chat"))
model = AutoModelForCausalLM.from_pretrained(checkpoint("chat"), dtype=torch.float32)
model = model.to(device)
# The argument is called `cache`; older versions of the library say `past_key_values`.
CACHE = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def ids_of(text):
    return tokenizer(text, return_tensors="pt")["input_ids"].to(device)


def read(model, ids, cache=None):
    """Return the logits of ids [batch, length]; a cache takes in their keys and values."""
    with torch.inference_mode():
        return model(ids, use_cache=cache is not None, **{CACHE: cache}).logits


def best(logits):
    share, token = logits[0, -1].softmax(-1).max(-1)
    return f"{tokenizer.decode(token)} {share:.2f}"


france = ids_of("The capital of France is")
cache = DynamicCache(config=model.config)
logits = read(model, france, cache)

len(cache.layers), cache.layers[0].keys.shape

# %% [markdown]
# 30 layers, each with keys of the shape `[batch, num_key_value_heads, positions, head_dim]`, and values like them. Now change
# one word, and look which positions notice.

# %%
def changed(text):
    """Return, position by position, the largest change in any key or value of any layer."""
    other = DynamicCache(config=model.config)
    read(model, ids_of(text), other)
    pairs = [(ours, theirs) for a, b in zip(cache.layers, other.layers)
             for ours, theirs in ((a.keys, b.keys), (a.values, b.values))]
    return torch.stack([(x - y).abs().amax((0, 1, 3)) for x, y in pairs]).amax(0)


views.table(("changed by", *map(tokenizer.decode, france[0])), [
    (text, *(f"{each:.1f}" for each in changed(text)))
    for text in ("The capital of France was", "The capital of Japan is", "Our capital of France is")
])

# %% [markdown]
# A position notices what stands before it, never what comes after: the causal mask at work. So keys and values, once
# computed, stay right for as long as only something is *appended*. The query is used once, by its own token, and thrown away.
# And read the table from the other side: change the first word and nothing that was kept is right any more. Section 6 is
# about that.
#
# If so, the logits must agree: all five tokens at once, or four kept and one read. And so must a text, written with
# and without a cache.

# %%
cache = DynamicCache(config=model.config)
read(model, france[:, :-1], cache)
last = read(model, france[:, -1:], cache)

prompt = tokenizer.apply_chat_template(
    [{"role": "user", "content": "What is the capital of Japan?"}], add_generation_prompt=True,
    return_tensors="pt", return_dict=True).to(device)
texts, seconds = {}, {}
for use_cache in (False, True):
    began = time.perf_counter()
    output = model.generate(**prompt, max_new_tokens=8, do_sample=False, use_cache=use_cache)
    seconds[use_cache] = time.perf_counter() - began
    texts[use_cache] = tokenizer.decode(output[0, prompt["input_ids"].shape[1]:])

print("logits equal to 0.001:", torch.allclose(last, logits[:, -1:], atol=1e-3))
print("logits equal to the bit:", torch.equal(last, logits[:, -1:]))
print("texts equal:", texts[False] == texts[True], repr(texts[True]))

# %% [markdown]
# Equal in float32 to a tolerance of 0.001, not to the bit: other shapes, other order of the additions. That is enough for
# equal text, as long as no two tokens are nearly tied.
#
# ## 2 · What it saves
#
# An article states it as O(n³) against O(n²) of attention work. Do not take a letter's word for it: count. An attention
# *cell* is one query meeting one key. This is a random Llama of two layers, small enough to write hundreds of tokens, with
# *eager* attention, which shows its matrix.

# %% margin="random weights: only the shapes are counted"
fields = examples.small()
notices.set_verbosity_error()       # two of the models below would like faster kernels


def small(name):
    """Return a model with random weights, the same ones each time."""
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**fields[name]), dtype=torch.float32,
        attn_implementation="eager").eval().to(device)


lab, cells = small("grouped (GQA)"), []
watch = lab.model.layers[0].self_attn.register_forward_hook(
    lambda layer, given, made: cells.append(made[1].shape[-2] * made[1].shape[-1]))


def count(n, use_cache):
    cells.clear()
    lab.generate(torch.ones(1, 1, dtype=torch.long, device=device), max_new_tokens=n,
                 do_sample=False, use_cache=use_cache)
    return sum(cells)


lengths = [16, 32, 64, 128]
without, kept = ([count(n, use_cache) for n in lengths] for use_cache in (False, True))

print(without == [n * (n + 1) * (2 * n + 1) // 6 for n in lengths],
      kept == [n * (n + 1) // 2 for n in lengths])
views.curves({"without cache": (lengths, without), "with cache": (lengths, kept)},
             "Twice the text: 8 times the work, or 4 times", "tokens written",
             "attention cells of one head and layer", log="xy", digits=0)

# %% [markdown]
# Both sums are exact, so the letters hold: n(n+1)(2n+1)/6 grows with the cube, n(n+1)/2 with the square. Note what the cache
# does not do: the square remains. Every new token still meets every old key.
#
# The passes have changed in kind. The first, *prefill*, reads the whole prompt at once and fills the cache. All
# later ones, *decode*, read one token. An article calls later tokens cheap. Time them apart, by hand: the
# time to the first token, then the time for each further one.

# %% tags=["nbval-ignore-output"] reason="seconds of this machine"
def timed(length, steps=4):
    """Return the time to first token and the mean inter-token latency, in seconds."""
    ids = torch.full((1, length), 500, device=device)
    cache, marks = DynamicCache(config=model.config), [time.perf_counter()]
    for _ in range(steps + 1):
        ids = read(model, ids, cache)[:, -1:].argmax(-1)
        ids.tolist()                # waits for a GPU that runs ahead
        marks.append(time.perf_counter())
    return marks[1] - marks[0], (marks[-1] - marks[1]) / steps


print(f"8 tokens: {seconds[False]:.1f} s without a cache, {seconds[True]:.1f} s with one")
views.table(("prompt", "time to first token", "per later token", "prefill", "decode"), [
    (n, f"{first:.2f} s", f"{later:.3f} s", f"{n / first:.0f} tokens/s",
     f"{1 / later:.0f} tokens/s")
    for n in (32, 96, 192) for first, later in [timed(n)]
])

# %% [markdown]
# The claim holds. A later token costs far less than the prompt, and hardly more after a long one. But compare the last two
# columns: *per token*, decode is the slow one. It reads all the weights to do the work of one position. That is why servers
# decode many requests in one pass, and why they run out of memory first.
#
# ## 3 · Count it
#
# For each token, each layer keeps one key and one value for each KV head: 2 × `num_key_value_heads` × `head_dim` numbers.
#
# **Predict 8.1.** How many bytes does one token cost, in all layers together? By hand, from these five configs. One article
# answers the first: 16,384.

# %%
names = ("model_type", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
         "hidden_size", "vocab_size")
configs = examples.public("article", "Llama-2-7B", "Llama-3.1-8B", "Qwen3-4B")
configs["our chat model"] = {"dtype": "float32"} | {
    name: getattr(model.config, name) for name in names}

views.table(("", *configs), [
    (name, *(str(config.get(name, "—")) for config in configs.values()))
    for name in configs["Qwen3-4B"] if name not in ("model_type", "vocab_size")
])

# %% tags=["predict"]
### BEGIN SOLUTION
per_token = [16_384, 524_288, 131_072, 147_456, 46_080]     # bytes, in the order of the table
### END SOLUTION

# %% tags=["check"]
check.bytes_per_token(per_token, configs)

# %% [markdown]
# ### Exercise 8.1 · The formula, with its defaults &nbsp; ⏱ 6 min · ●●○
#
# A config.json need not say everything: no `num_key_value_heads` means as many as there are heads, no `head_dim` (or null)
# means that the hidden size is divided among the heads.

# %% exercise="8.1"
def kv_bytes(config: dict, batch: int, tokens: int, number_bytes: int) -> int:
    """Return the bytes of the cache when every layer keeps every token."""
    ### BEGIN SOLUTION
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    per_layer = 2 * batch * tokens * kv_heads * head_dim * number_bytes
    return config["num_hidden_layers"] * per_layer
    ### END SOLUTION


check.kv_bytes(kv_bytes)

# %% [markdown] hint="one of the five is wrong"
# Three or four times too high: the cache stores key/value heads, and several query heads share one. Too low for Qwen3: its
# config says `head_dim`, and what is said wins over what could be divided.

# %% [markdown]
# `labutils.arithmetic` knows this formula and many others. It needs no weights and no torch. What the articles say:

# %%
asked = {"article": [(1, 512), (1, 4096)], "Llama-2-7B": [(1, 4096), (16, 4096)],
         "Llama-3.1-8B": [(1, 4096), (1, 4000), (1, 32000)]}
views.table(("", "batch", "tokens", "bytes", "GB", "GiB"), [
    (name, *each, found, f"{found / 10**9:.2f}", f"{found / 2**30:.3f}")
    for name, pairs in asked.items() for each in pairs
    for found in [arithmetic.kv_cache(configs[name], *each).bytes]])

# %% [markdown]
# All hold, if you say the unit. The first two are 8 and 64 MiB. The article with "2.1 GB, and 34 GB at batch 16" means 2 and
# 32 GiB. And 8 KV heads instead of 32 cost exactly a quarter, line five against line three.
#
# So much for the sum. Is it *there*? Add up the tensors of the cache. A tensor may also be a window onto something larger,
# so `trace.held` counts what lies behind it, too: its *storage*.

# %%
cache = DynamicCache(config=model.config)
model.generate(**prompt, max_new_tokens=8, do_sample=False, **{CACHE: cache})
tokens = prompt["input_ids"].shape[1]
computed = arithmetic.kv_cache(model.config, prompt=tokens, new=8, dtype="float32")
added = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)

{"prompt": tokens, "new": 8, "positions": cache.get_seq_length(),
 "added up": added, "held": trace.held(cache), "computed": computed.bytes}

# %% [markdown]
# Equal to the byte. 37 and 8 make 44: the last token was chosen, but nothing came after it, so it never went through the
# model. If you continue from this cache, feed that token first.
#
# An article says that each request of a batch needs its own cache, and that memory grows with the total of all lengths. So it
# does in an engine that packs requests. Here is a padded batch:

# %%
questions = ["Why?", "What is the capital of Japan?", "Name three rivers in Europe, and the "
             "countries that they flow through, from the longest to the shortest."]
batch = tokenizer(questions, padding=True, padding_side="left", return_tensors="pt").to(device)
lengths = batch["attention_mask"].sum(1).tolist()
cache = DynamicCache(config=model.config)
with torch.inference_mode():
    model(**batch, use_cache=True, **{CACHE: cache})
each = arithmetic.kv_cache(model.config, dtype="float32").bytes     # of one token

{"lengths": lengths, "total of the lengths": sum(lengths) * each,
 "batch × longest": len(lengths) * max(lengths) * each, "measured": trace.held(cache)[0]}

# %% [markdown]
# Batch times longest: padding is cached like text. Lesson 11 sorts by length for this reason.
#
# Now the whole life of a request. Move the sliders until it no longer fits your machine, then give it fewer KV heads.

# %% tags=["nbval-ignore-output"] reason="it shows the memory of this machine"
widgets.cache_timeline(configs["Llama-3.1-8B"], prompt=4096, new=1024, batch=16)

# %% [markdown] instructor minutes=5
# Ask for the longest context that a 24 GB card could hold beside 16 GB of weights, for Llama-2-7B and Llama-3.1-8B, before
# anyone moves a slider. Then let the room find it. The factor of four is worth more than any faster kernel.

# %% [markdown]
# ## 4 · Where the formula ends
#
# The formula assumes that every layer keeps every token. Nine small models, random weights, a prompt of 40 tokens:

# %%
def after_prompt(network):
    ids = torch.arange(40, device=device)[None]
    with torch.inference_mode():
        output = network(ids, use_cache=True)
    return trace.held([output[name] for name in output if name != "logits"])


def quoted(config):
    try:
        return f"{arithmetic.naive_kv_bytes(config, 1, 40, 'float32'):,}"
    except arithmetic.ConfigError:
        return "no heads in it"


shapes, rows = {name: small(name) for name in fields}, []
for name, network in shapes.items():
    exact = arithmetic.kv_cache(network.config, prompt=40, new=0, dtype="float32")
    rows.append((name, quoted(network.config), exact.bytes, *after_prompt(network)))
views.table(("", "the formula", "arithmetic", "tensors", "storages"), rows)

# %% [markdown]
# Arithmetic and tensors agree in every row; the formula is right in the first three only. A *sliding* layer keeps a window
# of its last tokens. *Latent* attention keeps one small vector for all heads, from which keys and values are made again. A
# *state space* layer keeps a state of fixed size, whatever the length. A *shared* layer keeps nothing and reads another's.
#
# ### Exercise 8.2 · Layer by layer &nbsp; ⏱ 7 min · ●●○
#
# How many positions does each layer keep, while decoding? A full layer keeps all. A sliding layer keeps `sliding_window` − 1:
# the new token brings its own. A linear layer keeps a state, no positions. The last `num_kv_shared_layers` layers keep none.

# %% exercise="8.2"
def positions_kept(config: dict, tokens: int) -> list[int]:
    """Return one number for each of config["layer_types"], after `tokens` tokens."""
    ### BEGIN SOLUTION
    keeps = {"full_attention": tokens, "linear_attention": 0,
             "sliding_attention": min(tokens, (config.get("sliding_window") or 1) - 1)}
    layers = [keeps[kind] for kind in config["layer_types"]]
    owners = len(layers) - config.get("num_kv_shared_layers", 0)
    return layers[:owners] + [0] * (len(layers) - owners)
    ### END SOLUTION


check.positions_kept(positions_kept)

# %% [markdown] hint="my last layers are not 0"
# Shared layers stand at the end of `layer_types`, whatever kind is written there.

# %% [markdown]
# In the table, one column stands out: in the sliding models the storages are larger than the tensors.
#
# **Predict 8.2.** Window 8, prompt of 40 tokens. The tensor of a sliding layer shows 7 positions. The bytes of how
# many positions are still in memory?

# %% tags=["predict"]
### BEGIN SOLUTION
still_there = 40        # a number of positions
### END SOLUTION

# %%
mistral = shapes["sliding window (Mistral)"]
cache, rows = DynamicCache(config=mistral.config), []
for step, length in (("after the prompt", 40), ("after one more token", 1)):
    read(mistral, torch.arange(length, device=device)[None], cache)
    keys = cache.layers[0].keys
    one = keys[:, :, :1].numel() * keys.element_size()
    rows.append((step, keys.shape[2], keys.untyped_storage().nbytes() // one))
large = arithmetic.kv_cache(examples.public()["Mistral-7B"], prompt=16_384, new=2)
print(f"Mistral-7B, 16,384 tokens: {large.held_after_prefill / 2**30:.2f} GiB after the prompt, "
      f"{large.held / 2**30:.2f} GiB one token later")
views.table(("", "positions in the tensor", "positions in memory"), rows)

# %% tags=["check"]
check.still_there(still_there, rows[0][2])

# %% [markdown]
# The tensor is a *view* of the last 7 rows of the full prompt. A view keeps its whole storage alive until the next token
# makes a new one. So the saving begins with the second token, and the peak comes before it: for Mistral-7B with 16,384
# tokens four times as much. If a sliding model runs out of memory on its prompt although the planner said that it fits, this
# is why.
#
# How often is the formula wrong? The course has a table of every text model type in the library, each built, run and summed.

# %%
counted = [row for row in truth.table() if row.naive_bytes and row.exact_bytes]
off = {row.type: (row.kinds, row.naive_bytes / row.exact_bytes) for row in counted}
shares = [share for _, share in off.values()]
print({"types": len(off), "formula exact": shares.count(1.0),
       "too high": sum(each > 1 for each in shares), "too low": sum(each < 1 for each in shares)})
views.ratios(off)

# %% [markdown]
# Half of the types. Calculators that people use are built on it, and their users noticed. Some public reports,
# beside what the configs give:

# %%
public, rows = examples.public(), []
for each in examples.reports():
    found = arithmetic.kv_cache(public[each["model"]], prompt=each["tokens"])
    layers = ", ".join(f"{number} {kind}" for kind, number in found.kinds().items())
    exact = round(found.bytes / examples.UNITS[each["unit"]], 2 if each["unit"] == "GiB" else None)
    rows.append((each["where"], each["model"], layers, each["tokens"],
                 f"{each['said']:,} {each['unit']}", f"{exact:,} {each['unit']}"))

up_to = [arithmetic.kv_cache(public["gpt-oss-120b"], prompt=n).bytes for n in (1, 127, 128, 129)]
print(f"gpt-oss: the first token {up_to[0]:,} bytes, the 129th {up_to[3] - up_to[2]:,}")
views.table(("report", "model", "layers", "tokens", "the tool", "exact"), rows)

# %% [markdown]
# Head size divided out although the config says it; sliding layers forgotten; sliding layers counted as full; a latent
# taken for something else. The second is instructive, for both numbers are right: the first token of gpt-oss costs 73,728
# bytes in its 36 layers, but once the windows are full, only half of the layers grow. "Bytes per token" is no constant
# of a model. Ask for a length.
#
# ## 5 · Other ways to keep it
#
# A `DynamicCache` grows by one position at a time. A `StaticCache` takes its whole capacity at once, so that shapes stay
# fixed for compilation. The small model, 5 tokens, a capacity of 16, then twice the KV heads:

# %%
def filled(network, cache, ids):
    read(network, ids[:, :-1], cache)
    return read(network, ids[:, -1:], cache), trace.held(cache)[0]


five = torch.tensor([[1, 7, 9, 4, 2]], device=device)
rows = []
for network in (lab, shapes["KV heads = heads (MHA)"]):
    caches = (DynamicCache(config=network.config),
              StaticCache(config=network.config, max_cache_len=16))
    found = [filled(network, cache, five) for cache in caches]
    agree = [torch.allclose(tail, read(network, five)[:, -1:], atol=1e-6) for tail, _ in found]
    rows.append((network.config.num_key_value_heads, *(size for _, size in found), all(agree)))
views.table(("KV heads", "dynamic", "static, 16", "logits as without a cache"), rows)

# %% [markdown]
# An article's figures, to the byte. Now the chat model. `QuantizedCache` with fp8 keeps a byte for each number and a scale
# for each layer. *Offloading* keeps all layers but one in the host's memory: it needs a GPU to take them from, so its line is
# there only where there is one.

# %%
ways = {"dynamic": lambda: DynamicCache(config=model.config),
        "static, 64": lambda: StaticCache(config=model.config, max_cache_len=64),
        "fp8": lambda: QuantizedCache(backend="fp8", config=model.config)}
if environment.device_memory():     # a GPU
    ways["offloaded"] = lambda: DynamicCache(config=model.config, offloading=True)

rows, full = [], read(model, prompt["input_ids"])[:, -1:]
for name, make in ways.items():
    tail, _ = filled(model, cache := make(), prompt["input_ids"])
    here = sum(each.nbytes for each in trace.tensors(cache) if each.device == model.device)
    moved = f"{(tail - full).abs().max():.0f}"
    rows.append((name, here, moved, tokenizer.decode(tail.argmax())))
views.table(("37 tokens", "bytes with the model", "a logit moved by", "next"), rows)

# %% [markdown]
# A quarter of the bytes, and still the same next token. But the logits have moved: fp8 is another model, if a close one, and
# belongs in the receipt.
#
# ## 6 · When an old cache is right
#
# A prefix that many requests share need be read only once. That is the most profitable use of a cache, and the most dangerous.
#
# **Predict 8.3.** We keep a cache of "The capital of France" and feed the last token of "The capital of Japan is". Both
# prefixes have four tokens. What comes? **a** an error, as the cache belongs to another text; **b** "Tokyo"; **c** "Paris";
# **d** noise

# %% tags=["predict"]
### BEGIN SOLUTION
comes = "c"     # "a", "b", "c" or "d"
### END SOLUTION

# %%
japan = ids_of("The capital of Japan is")
stale = DynamicCache(config=model.config)
read(model, france[:, :-1], stale)
mixed = read(model, japan[:, -1:], copy.deepcopy(stale))
{"stale cache": best(mixed), "no cache": best(read(model, japan))}

# %% tags=["check"]
check.stale(comes, best(mixed))

# %% [markdown]
# Fluent, confident, wrong. Nothing in shapes or lengths gives it away. A cache is right for one thing only: the same ids
# from the first position on, read by the same weights, at the same positions and under the same mask. Compare
# the ids before you reuse anything.
#
# ### Exercise 8.3 · How much may stay &nbsp; ⏱ 6 min · ●●○
#
# Return how many cached positions may be kept for a new text. At least one token must be left to read, or there are no logits.

# %% exercise="8.3"
def reusable(cached_ids: list[int], new_ids: list[int]) -> int:
    """Return the number of leading positions whose keys and values are right for new_ids."""
    ### BEGIN SOLUTION
    same = 0
    for kept, wanted in zip(cached_ids, new_ids):
        if kept != wanted:
            break
        same += 1
    return min(same, len(new_ids) - 1)
    ### END SOLUTION


check.reusable(reusable)

# %% [markdown] hint="it keeps a position after a difference"
# Count from the left and stop at the first difference. A token that is equal further on has other tokens before it.

# %% [markdown]
# `crop` throws away what no longer fits; a negative number says how many. Three positions of the French cache are right for
# the Japanese question.

# %%
fits = int((france == japan).int().cumprod(1).sum())
stale.crop(fits - stale.get_seq_length())
tail = read(model, japan[:, fits:], stale)
{"kept": fits, "next": best(tail),
 "as without cache": torch.allclose(tail[:, -1], read(model, japan)[:, -1], atol=1e-3)}

# %% [markdown]
# The second danger: a cache is changed by reading. Two questions with the same beginning, from one cache:

# %%
prefix = DynamicCache(config=model.config)
read(model, france[:, :3], prefix)      # "The capital of", read once

pairs = {"a copy for each": (copy.deepcopy(prefix), copy.deepcopy(prefix)),
         "one for both": (prefix, prefix)}
views.table(("", "… France is", "… Japan is", "positions"), [
    (name, best(read(model, france[:, 3:], one)), best(read(model, japan[:, 3:], two)),
     two.get_seq_length()) for name, (one, two) in pairs.items()
])

# %% [markdown]
# The second question was asked after the first: "The capital of France is Japan is". `copy.deepcopy` gives each continuation
# its own, at the price of its bytes. Engines share the blocks of a prefix instead (lesson 12).
#
# Last, a leak that users report as "memory grows with every step, although the cache is small". Call the model yourself, with
# gradients on as they are by default, and count what torch keeps for a backward pass that never comes. Every output that you
# collect, and every cache, holds on to it. `generate` switches gradients off; your own loop needs `torch.inference_mode()`.

# %%
noted = []
with torch.autograd.graph.saved_tensors_hooks(
        lambda each: noted.append(each.nbytes) or each, lambda each: each):
    leaking = lab(five, use_cache=True)[CACHE]

{"cache": trace.held(leaking)[0], "kept for a backward pass": sum(noted),
 "keys drag it along": leaking.layers[0].keys.requires_grad}
