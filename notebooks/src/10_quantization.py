# %% [markdown]
# A weight is a number, and most of its 16 bits say little. Quantization stores fewer and keeps a *scale* that turns small whole
# numbers back into weights. What is saved can be computed to the byte before you load anything. What is lost must be measured.
# In this lesson you do both, by hand first and then with two libraries that people use.
#
# ## 1 · Eight bits by hand

# %%
import inspect
import logging
import os
import struct
import time

# On a CPU bitsandbytes says for each layer and pass that inputs are cast. Once is enough.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
# For a lower peak: load one weight after the other, and give freed memory back at once.
os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"

import bitsandbytes
import gguf
import numpy
import torch
from transformers import (AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, DynamicCache,
                          QuantizedCache)

from labutils import arithmetic, check, data, environment, memory, views, widgets
from labutils.checkpoints import checkpoint

memory.lean()
device = environment.device()
tokenizer = AutoTokenizer.from_pretrained(checkpoint("chat"))
model = AutoModelForCausalLM.from_pretrained(checkpoint("chat"), dtype=torch.float32)
model = model.to(device)
layer = model.model.layers[10].mlp.up_proj
weight = layer.weight.data.cpu().clone()     # a copy: a view would keep the whole file in memory

weight.shape, f"largest {weight.abs().max():.2f}, standard deviation {weight.std():.3f}"

# %% [markdown]
# One layer of the chat model: 884,736 weights, nearly all of them near zero, one sixteen times as far out as is usual.
# *Absmax* quantization divides by the largest, so that everything fits between −127 and 127, and rounds.

# %%
print(weight.numel())
scale = weight.abs().max() / 127
codes = (weight / scale).round().to(torch.int8)
restored = codes * scale


def error(new, old):
    """Return the relative error: the length of the difference over that of the original."""
    return ((new - old).norm() / old.norm()).item()


print(codes[0, :8].tolist())
f"{weight.nbytes:,} bytes became {codes.nbytes + 4:,}, error {error(restored, weight):.1%}"

# %% [markdown]
# **Predict 10.1.** The same with 4 bits: whole numbers from −7 to 7, one scale. What share of the weights becomes exactly 0?

# %% tags=["predict"]
### BEGIN SOLUTION
zeros = 0.80        # a share, from 0 to 1
### END SOLUTION

# %%
scale = weight.abs().max() / 7
codes = (weight / scale).round()
share = (codes == 0).float().mean().item()
f"{share:.0%} zeros, error {error(codes * scale, weight):.0%}"

# %% tags=["check"]
check.zeros(zeros, share)

# %% [markdown]
# One weight decided for all. Scales are cheap, so spend more of them: one for each row (an output *channel*), or for each
# *group* of neighbours within a row.
#
# ### Exercise 10.1 · Absmax in groups &nbsp; ⏱ 8 min · ●●○
#
# A weight has rows and columns; every `group` columns of a row share a scale. Return whole numbers and scales.

# %% exercise="10.1"
def quantize_absmax(weight: torch.Tensor, bits: int, group: int) -> tuple:
    """Return codes, int8 [rows, columns], and scales [rows, columns / group]."""
    ### BEGIN SOLUTION
    rows, columns = weight.shape
    parts = weight.reshape(rows, columns // group, group)
    top = 2 ** (bits - 1) - 1
    scales = parts.abs().amax(-1) / top
    scales = torch.where(scales == 0, 1.0, scales)      # a group of zeros
    codes = (parts / scales[..., None]).round().to(torch.int8)
    return codes.reshape(rows, columns), scales
    ### END SOLUTION


check.quantize_absmax(quantize_absmax)

# %% [markdown] hint="my codes reach −8"
# With 4 bits there are 16 codes, −8 to 7. Absmax uses the symmetric part, so that 0 stays 0 and a sign costs nothing: the
# largest is 2 ** (bits − 1) − 1.

# %% [markdown] hint="the groups are mixed up"
# A group lies within one row. `weight.reshape(rows, columns // group, group)` puts it on the last axis.

# %% [markdown] hint="nan"
# A group may hold zeros only. Any scale but 0 restores it.

# %% [markdown]
# ## 2 · What a scale costs
#
# A scale in 16 bits shared by 64 weights adds a quarter of a bit to each. So the honest size of a format is its bits per weight
# *with* scales, and the honest picture has that below and the error on the left.

# %%
def squeeze(weight, bits, group):
    """Quantize and restore; return the bits per weight, 16-bit scales included, and the error."""
    parts = weight.reshape(-1, group)
    scales = parts.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
    new = (parts / scales).round() * scales
    return bits + 16 / group, error(new, parts)


groups = {"whole tensor": weight.numel(), "row": weight.shape[1],
          "64 weights": 64, "32 weights": 32}
lines = {f"one scale per {name}":
         tuple(zip(*[squeeze(weight, bits, group) for bits in range(3, 9)]))
         for name, group in groups.items()}
views.curves(lines, "Many scales beat one, and cost a fraction of a bit",
             "bits per weight, with scales", "relative error", log="y", digits=3)

# %% [markdown]
# Each bit halves the error, along every line. Eight bits under one scale for the tensor are worth less than six in groups of
# 64. And groups of 32 lie above those of 64: here the finer scales cost more than they gain.
#
# *Zero-point* quantization also moves the range: smallest to largest instead of −largest to largest. That is for numbers that
# lie on one side, such as what comes out of an activation function:

# %%
seen = {}
model.model.layers[10].mlp.act_fn.register_forward_hook(
    lambda module, given, out: seen.update(activation=out[0].detach().float().cpu()))
sentences = data.parallel()["English"]
model(**tokenizer(sentences[0], return_tensors="pt").to(device))


def absmax(x, bits):
    scale = x.abs().max() / (2 ** (bits - 1) - 1)
    return (x / scale).round() * scale


def zero_point(x, bits):
    low, step = x.min(), (x.max() - x.min()) / (2**bits - 1)
    return ((x - low) / step).round() * step + low


views.table(("8 bits, one scale", "absmax", "zero-point"), [
    (name, *(f"{error(way(x, 8), x):.1%}" for way in (absmax, zero_point)))
    for name, x in (("activation", seen["activation"]), ("weight", weight))
])

# %% [markdown]
# Half the error where the numbers are lopsided, hardly any gain for weights. So far all is as in the books. Now zero-point with
# 4 bits and groups of 32, on several layers, and groups of 64 beside it:

# %%
def zero_point_groups(weight, bits, group):
    parts = weight.reshape(-1, group)
    low = parts.amin(1, keepdim=True)
    step = (parts.amax(1, keepdim=True) - low) / (2**bits - 1)
    return error(((parts - low) / step).round() * step + low, parts)


names = ("layers.0.self_attn.q_proj", "layers.15.mlp.down_proj", "layers.29.self_attn.o_proj")
views.table(("4 bits, zero-point", "groups of 32", "groups of 64"), [
    (name, *(f"{zero_point_groups(model.model.get_submodule(name).weight.data, 4, group):.4f}"
             for group in (32, 64)))
    for name in names
])

# %% [markdown]
# If your left column is 0.0000, do not publish. Four bits cannot hold a float exactly, unless the float came out of four bits.
# The bundled checkpoint was made from a file with just this format: blocks of 32, a scale and a minimum (section 5). Groups of
# 64 straddle two of its blocks and lose again. Remember it in section 6: our "full precision" baseline was squeezed once
# before. With the checkpoint from the Hub the column holds an ordinary error.

# %% [markdown]
# ## 3 · Two in a byte
#
# The smallest number that a tensor can hold takes a byte. Four-bit codes have to be packed in pairs.
#
# ### Exercise 10.2 · Pack and unpack &nbsp; ⏱ 6 min · ●●○
#
# Codes run from 0 to 15. The first of a pair goes into the upper half of the byte, as bitsandbytes does it.

# %% exercise="10.2"
def pack_int4(codes: torch.Tensor) -> torch.Tensor:
    """Return uint8 [n / 2] for codes uint8 [n], each 0 to 15; n is even."""
    ### BEGIN SOLUTION
    return codes[0::2] * 16 + codes[1::2]
    ### END SOLUTION


check.pack_int4(pack_int4)

# %% [markdown] hint="the halves are swapped"
# Upper half: times 16, or shifted left by 4. It is the *first* of the two that goes there.

# %% [markdown] hint="only some numbers are right"
# Neighbours belong together: `codes[0::2]` with `codes[1::2]`, not the first half of the tensor with the second.

# %% [markdown]
# ## 4 · bitsandbytes, for real
#
# Weights follow a bell curve, so equal steps waste codes on its tails. *NF4* takes 16 values that a bell curve would use
# about equally often, and a scale for every 64 weights. Here it is by hand, beside the library:

# %%
packed, state = bitsandbytes.functional.quantize_4bit(weight, quant_type="nf4", blocksize=64)
print([round(value, 2) for value in state.code.tolist()])

parts = weight.reshape(-1, 64)
scales = parts.abs().amax(1, keepdim=True)
nearest = (parts / scales)[..., None].sub(state.code).abs().argmin(-1).to(torch.uint8)
ours = (state.code[nearest.long()] * scales).reshape(weight.shape)
theirs = bitsandbytes.functional.dequantize_4bit(packed, state)
pairs = nearest.flatten()

print({"same bytes": torch.equal(pairs[0::2] * 16 + pairs[1::2], packed.flatten()),
       "same weights": torch.equal(ours, theirs), "error": f"{error(theirs, weight):.3f}",
       "absmax, same size": f"{squeeze(weight, 4, 32)[1]:.3f}"})
try:
    bitsandbytes.functional.quantize_4bit(weight, quant_type="q4_k_m")
except ValueError as refused:
    print(refused)

# %% [markdown]
# The same bytes. NF4 with 32-bit scales costs 4.5 bits per weight, just like absmax in groups of 32, and errs less.
#
# The last line answers an article that wants *Q4_K_M* "through bitsandbytes". It has LLM.int8, FP4 and NF4. The Q names belong
# to another family of files (next section).
#
# **Predict 10.2.** In bfloat16 this model takes 269 MB. How many MB does it take as NF4, everything else left in bfloat16?
# Within 3 counts.

# %% tags=["predict"]
### BEGIN SOLUTION
nf4_megabytes = 116
### END SOLUTION

# %% [markdown]
# The next cells are the experiment of this lesson. Each format is loaded, its storages counted, a text read, eight tokens
# written; then it is freed before the next. The text is ours, so nobody can have calibrated on it.

# %%
def four_bits(kind, double=False):
    settings = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type=kind,
                                  bnb_4bit_use_double_quant=double,
                                  bnb_4bit_compute_dtype=torch.bfloat16)
    return {"dtype": torch.bfloat16, "quantization_config": settings}


int8 = BitsAndBytesConfig(load_in_8bit=True)
FORMATS = {     # name: scheme of labutils.arithmetic, arguments of from_pretrained
    "float32": ("none", {"dtype": torch.float32}),
    "bfloat16": ("none", {"dtype": torch.bfloat16}),
    "LLM.int8": ("int8", {"dtype": torch.float16, "quantization_config": int8}),
    "FP4": ("fp4", four_bits("fp4")),
    "NF4": ("nf4", four_bits("nf4")),
    "NF4, double": ("nf4-double", four_bits("nf4", double=True)),
}

# %%
def held(model):
    """Return the bytes of every storage: weights, scales, code books, each counted once."""
    found, queue = {}, [*model.parameters(), *model.buffers()]
    while queue:
        each = queue.pop()
        if isinstance(each, torch.Tensor):
            storage = each.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        queue += [part for part in vars(each).values()
                  if isinstance(part, torch.Tensor | bitsandbytes.functional.QuantState)]
    return sum(found.values())


ids = tokenizer(" ".join(sentences), return_tensors="pt").input_ids[:, :256]

# %%
def read(model):
    """Return the log-probabilities of every next token of the text, in float32."""
    with torch.inference_mode():
        return model(ids.to(device)).logits[0].float().cpu().log_softmax(-1)


def repacking(model, on):
    """Switch a shortcut of some processors (section 6) on or off."""
    for each in model.modules():
        if isinstance(each, bitsandbytes.nn.Linear4bit):
            each.support_avx512bf16_for_cpu = on and bitsandbytes.functional.has_avx512bf16()


def quality(shares, baseline):
    loss = -shares[:-1].gather(1, ids[0, 1:, None]).mean()
    same = (shares.argmax(-1) == baseline.argmax(-1)).float().mean()
    kl = (baseline.exp() * (baseline - shares)).sum(-1).mean()
    return {"perplexity": loss.exp().item(), "agreement": same.item(), "KL": kl.item()}

# %% tags=["check"] margin="eight tokens are only timed; their text is never shown"
del model, layer
rows, seconds, baseline = {}, {}, None
for name, (scheme, how) in FORMATS.items():
    memory.forget()
    model = AutoModelForCausalLM.from_pretrained(checkpoint("chat"), device_map=device, **how)
    rows[name] = {"held": held(model), "footprint": model.get_memory_footprint()}
    repacking(model, False)
    shares = read(model)
    baseline = shares if baseline is None else baseline
    rows[name] |= quality(shares, baseline)
    began = time.perf_counter()
    model.generate(ids[:, :32].to(device), max_new_tokens=8, min_new_tokens=8, do_sample=False)
    seconds[name] = (time.perf_counter() - began) / 8
    repacking(model, True)
    model.generate(ids[:, :8].to(device), max_new_tokens=1)
    rows[name]["after"] = held(model)
    del model

check.nf4_size(nf4_megabytes, rows["NF4"]["held"])

# %% [markdown]
# Now what the config alone predicts, against the storages that were counted:

# %%
found = arithmetic.parameters(checkpoint("chat"))
linear = sum(tensor.total for tensor in found.tensors if tensor.linear)
predicted = {name: arithmetic.weight_bytes(found, how["dtype"], scheme)
             for name, (scheme, how) in FORMATS.items()}

# %%
views.table(
    ("format", "bytes held", "predicted − held", "bits per quantized weight", "footprint − held"),
    [(name, rows[name]["held"], each.total - rows[name]["held"],
      f"{(each.quantized + each.scales) * 8 / linear:.3f}" if each.quantized else "",
      rows[name]["footprint"] - rows[name]["held"]) for name, each in predicted.items()])

# %% [markdown]
# Nothing left over in any row. And look at the last column: `get_memory_footprint()` knows nothing of scales and code books.
# For NF4 it is over 6 MB short, and so *double quantization*, which squeezes the scales, shows no saving in it at all. Count
# storages.
#
# Why is 4-bit not a quarter of 16-bit? Because not everything is quantized:

# %%
print({part: f"{count / found.total:.1%}" for part, count in found.parts.items()})

LLAMA_8B = arithmetic.known("Llama-3.1-8B")
sizes = {name: [arithmetic.plan(config, dtype="bfloat16", quantization=scheme).weights.total / 1e9
                for scheme in ("none", "int8", "nf4", "nf4-double")]
         for name, config in (("chat model", checkpoint("chat")), ("Llama 3.1 8B", LLAMA_8B))}
views.table(("GB", "bfloat16", "LLM.int8", "NF4", "NF4, double", "bfloat16 ÷ NF4"), [
    (name, *(f"{size:.3f}" for size in row), f"{row[0] / row[2]:.2f}")
    for name, row in sizes.items()])

# %% [markdown]
# Embeddings, head and norms stay in 16 bit, here a fifth of the model. An article says that INT4 instead of fp16 "roughly
# halves" the memory. That is int8. Four bits quarter the codes, 4.5 with scales, and a whole model lands between: 2.31 and 2.66
# times smaller in these two.
#
# ## 5 · A GGUF file, byte by byte
#
# llama.cpp's files keep quantized blocks as they are, together with tokenizer and metadata. This is the very file that the
# bundled chat checkpoint was expanded from. No library is needed for its header:

# %%
path = checkpoint("chat-gguf") / "model.gguf"
with path.open("rb") as file:
    magic, version, tensors, values = struct.unpack("<4sIQQ", file.read(24))
    length, = struct.unpack("<Q", file.read(8))
    print(magic, "version", version, "·", tensors, "tensors ·", values, "values · first:",
          file.read(length).decode())

header = arithmetic.read_gguf(path)
print({name: value for name, value in header.metadata.items()
       if name.endswith(("architecture", "block_count", "embedding_length", "ggml.tokens"))})
views.table(("type", "tensors", "weights", "bytes", "bits per weight"), [
    (kind, count, weights, size, f"{size * 8 / weights:g}")
    for kind, (count, weights, size) in header.types().items()
] + [("all", len(header.tensors), header.parameters, header.tensor_bytes,
      f"{header.bits_per_weight:.3f}")], caption=f"{path.stat().st_size:,} bytes in the file")

# %% [markdown]
# A file called Q4_1, and 5.744 bits per weight. One article says that Q4, Q5 and Q8 name the average number of bits. They
# name the *codes*. A Q4_1 block holds 32 of them, plus a scale and a minimum in 16 bits each; and token embeddings are usually
# kept in a better type than the rest.
#
# ### Exercise 10.3 · Bits per weight &nbsp; ⏱ 5 min · ●○○
#
# A file has tensors of several types. From (weights, weights in a block, bytes of a block) for each, return the bits per
# weight of the whole file.

# %% exercise="10.3"
def bits_per_weight(tensors: list[tuple[int, int, int]]) -> float:
    """Return the bits that a weight takes on average, scales included."""
    ### BEGIN SOLUTION
    size = sum(weights // block * block_bytes for weights, block, block_bytes in tensors)
    return size * 8 / sum(weights for weights, *_ in tensors)
    ### END SOLUTION


check.bits_per_weight(bits_per_weight)

# %% [markdown] hint="I get the mean of the types"
# A type with a hundred times the weights counts a hundred times. Add up bytes, add up weights, divide once.

# %%
bits = {each.name: round(each.bits_per_weight, 4) for each in arithmetic.format_table()}
print({name: bits[name] for name in (
    "Q2_K", "IQ4_XS", "NF4, double", "Q4_0", "Q4_K", "NF4", "Q4_1", "Q6_K", "LLM.int8", "Q8_0")})

# %%
big = arithmetic.parameters(LLAMA_8B)
better = sum(tensor.total / (1 if "lm_head" in tensor.name else 2) for tensor in big.tensors
             if any(part in tensor.name for part in ("lm_head", "v_proj", "down_proj")))
mixed = (bits["Q4_K"] * (big.total - better) + bits["Q6_K"] * better) / big.total
f"Q4_K_M, {big.total:,} weights: {mixed:.2f} bits"

# %% [markdown]
# *Q4_K_M* is a recipe, not a type: Q4_K, but Q6_K for the head and for half of the value and down projections. The M is for
# medium.
#
# Last, the blocks themselves. A Q8_0 block is one 16-bit float and 32 signed bytes:

# %%
embedding = next(each for each in header.tensors if each.name == "token_embd.weight")
with path.open("rb") as file:
    file.seek(embedding.offset)
    block = file.read(34)
scale, *codes = struct.unpack("<e32b", block)
ours = torch.tensor(codes) * scale
theirs = gguf.dequantize(numpy.frombuffer(block, numpy.uint8), gguf.GGMLQuantizationType.Q8_0)

print(torch.equal(ours, torch.from_numpy(theirs)), [round(value, 3) for value in ours[:4].tolist()])

# %% [markdown]
# ### Exercise 10.4 · A Q4_1 block &nbsp; ⏱ 8 min · ●●●
#
# 20 bytes: a scale and a minimum (16-bit floats), then 16 bytes with two codes each. Beware: the *lower* halves are weights 0
# to 15, the *upper* halves 16 to 31. A weight is code × scale + minimum.

# %% exercise="10.4"
def dequantize_q4_1(block: bytes) -> list[float]:
    """Return the 32 weights of a block of 20 bytes."""
    ### BEGIN SOLUTION
    scale, minimum, *pairs = struct.unpack("<ee16B", block)
    codes = [pair & 15 for pair in pairs] + [pair >> 4 for pair in pairs]
    return [code * scale + minimum for code in codes]
    ### END SOLUTION


check.dequantize_q4_1(dequantize_q4_1)

# %% [markdown] hint="every second weight is right"
# bitsandbytes puts neighbours into one byte. Here the first byte holds weights 0 and 16.

# %% [markdown] hint="the first number is huge"
# `struct.unpack("<e", ...)` reads a 16-bit float; "<H" reads the same bytes as a whole number.

# %% [markdown]
# transformers reads such files as well (`gguf_file=`), but it expands them: 98 MB on disk become 538 MB of float32 in memory.
# `labutils plan model.gguf` on the command line says both.
#
# ## 6 · What did it cost?
#
# Three questions to each format, on the same 256 tokens. *Perplexity*: how surprised is it by the text (lesson 06)?
# *Agreement*: how often is its best next token that of float32? *KL*: how far are the two distributions apart, in nats?

# %%
views.table(("format", "bytes", "bits per weight", "perplexity", "KL"), [
    (name, row["held"], f"{row['held'] * 8 / found.total:.2f}", f"{row['perplexity']:.0f}",
     f"{row['KL']:.1g}") for name, row in rows.items()
], caption="perplexity and KL rounded as far as processors agree")

# %% [markdown]
# FP4 and NF4 cost the same bytes and not the same quality. Do not carry these losses over to your model. It is tiny, and it was
# Q4_1 before: this was the second squeeze. Large models lose far less. The method carries over: your text, your questions,
# float32 or bfloat16 as the baseline.
#
# What differs from machine to machine, agreement by a token or two, stands apart:

# %% tags=["nbval-ignore-output"] reason="processors differ in speed, in close calls between tokens, and in what they repack"
views.table(("format", "same best token", "tokens per second", "bytes loaded", "after a pass"), [
    (name, f"{row['agreement']:.1%}", f"{1 / seconds[name]:.1f}", row["held"],
     row["after"] if "4" in name else "") for name, row in rows.items()])

# %% [markdown]
# Perplexity alone would flatter: LLM.int8 reads this text as well as float32, yet about one best token in ten is another.
#
# No speed is promised. Codes have to be turned back into floats before they are multiplied, and on a CPU that can cost more
# than the bytes save. On a GPU that waits for its memory it may pay (lesson 11). Measure yours.
#
# And compare the last two columns of the 4-bit rows. On processors with bfloat16 instructions (`AVX512-BF16`) bitsandbytes
# repacks each 4-bit layer at its first pass: scales in 16 bit, double quantization undone. Faster, and not what you counted.
# Above it was switched off for the reading, so that this page says the same everywhere.
#
# ### Quiz
#
# You have a card with 8 GB and a model with 8 B weights. Which plan is sound?
#
# <details><summary>A · int4, so 4 GB</summary>No. 4-bit codes carry scales, and embeddings and head stay in 16 bit: the table
# in section 4 says what such a model takes. And the cache comes on top.</details>
#
# <details><summary>B · LLM.int8, so 8 GB</summary>No. Weights alone are over 8 GB then.</details>
#
# <details><summary>C · NF4, the size predicted, cache and logits added, then quality measured on own texts</summary>Yes. In
# this order: what cannot fit need not be measured.</details>
#
# <details><summary>D · Whatever get_memory_footprint() says after loading</summary>No. It is too low by all the scales, and
# after loading is late.</details>
#
# ## 7 · The cache in 8 bits
#
# Weights are not all that grows. `QuantizedCache` keeps keys and values as 8-bit floats, one scale for each tensor:

# %%
model = AutoModelForCausalLM.from_pretrained(checkpoint("chat"), dtype=torch.float32,
                                             device_map=device)
# The argument is called `cache`; older versions of the library say `past_key_values`.
CACHE = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
caches = {"dynamic": DynamicCache(config=model.config), "fp8": QuantizedCache("fp8", model.config)}
best = {}
for name, cache in caches.items():
    with torch.inference_mode():
        model(ids[:, :192].to(device), **{CACHE: cache})
        best[name] = model(ids[:, 192:].to(device), **{CACHE: cache}).logits[0].argmax(-1)

same = (best["fp8"] == best["dynamic"]).float().mean().item()
config, tokens = checkpoint("chat"), ids.shape[1]
{"float32": arithmetic.kv_cache(config, 1, tokens, dtype="float32").bytes,
 "fp8": arithmetic.fp8_bytes(config, 1, tokens),
 "same best token": f"{round(same * 20) * 5} %"}

# %% [markdown]
# A quarter of float32, half of bfloat16: here the simple division holds, for a cache has no embeddings and its scales are few.
# The tests of this course hold the sizes against real caches.
#
# ## 8 · Find the edge
#
# Move bits and groups yourself. The text is written by the whole model with all its linear layers squeezed by absmax.

# %%
widgets.quantization(tokenizer, model, "The capital of France is")

# %% [markdown] instructor minutes=5
# Let the room bid: the smallest size at which the text still makes sense. Someone will find that 3 bits in groups of 32 cost
# 3.5. Ask what else lives in the size that does not shrink (the embeddings).
#
# Close with the three numbers a colleague should get with any quantized model: bytes held, bits per weight with scales,
# agreement with the unquantized one on your own text. Ask which of them the last model card they read contained.
