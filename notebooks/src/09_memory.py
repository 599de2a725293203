# %% [markdown]
# "Will it run on my card?" is a question for arithmetic, and you can answer it before you download anything. The answer has
# three parts: what the weights take, what grows while the model works, and where it all stands. People who skip the third
# part get a model that runs, correctly, and thirty times too slow.
#
# ## 1 · Weights, in name and in fact

# %%
import gc
import itertools
import logging
import tempfile
import time
import weakref

import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as notices

from labutils import arithmetic, check, environment, memory, views, widgets
from labutils.checkpoints import checkpoint
from labutils.trace import trace

device = environment.device()
notices.set_verbosity_error()
logging.getLogger("accelerate").setLevel(logging.ERROR)     # its warnings are measured below

llama2 = arithmetic.known("Llama-2-7B")     # what its config.json says
formats = {"float32": ("none", 4), "float16": ("none", 2), "int8": ("int8", 1), "NF4": ("nf4", 0.5)}
views.table(("format", "7 billion × width, GB", "Llama-2-7B, GB"), [
    (name, f"{7 * width:g}", f"{plan.weights.total / 1e9:.2f}")
    for name, (scheme, width) in formats.items()
    for plan in [arithmetic.plan(llama2, quantization=scheme,
                                 dtype=name if scheme == "none" else "float16")]
], caption=f"{arithmetic.parameters(llama2).total / 1e9:.2f} billion parameters")

# %% [markdown]
# The middle column is an article's: parameters times bytes. As nominal values they hold. In fact "7B" is a name, for 6.74
# billion, so two formats take less. And "4-bit" takes more: some tensors stay in 16 bits, and every block of weights brings a
# scale along. Lesson 10 counts those.
#
# Which part of a model is large depends on the model.

# %%
names = ("SmolLM2-135M", "Gemma-7B", "Llama-3.1-8B", "Qwen3-30B-A3B")
counted = {name: arithmetic.parameters(arithmetic.known(name)) for name in names}
views.table(("share of", *names), [
    (part, *(f"{each.parts.get(part, 0) / each.total:.1%}" for each in counted.values()))
    for part in ("embeddings", "attention", "feed-forward", "experts", "norms", "head")
] + [("parameters, billion", *(f"{each.total / 1e9:.2f}" for each in counted.values()))])

# %% [markdown]
# No head in two columns: there the embedding serves as head, too; the two are *tied*. The third has two tables of the same
# size. And the last is nearly all experts.
#
# **Predict 9.1.** The last one is called A3B for the 3 billion parameters that work on each token: 8 experts of 128 in every
# layer. How many **GB** must its weights take up, in bfloat16, so that it can answer?

# %% tags=["predict"]
### BEGIN SOLUTION
experts_gb = 61     # GB; within 10 % counts
### END SOLUTION

# %% tags=["check"]
experts = counted["Qwen3-30B-A3B"]
idle = experts.parts["experts"] * (1 - 8 / 128)
for name, count in (("work on one token", experts.total - idle), ("all", experts.total)):
    print(f"{name}: {count / 1e9:.2f} billion, {2 * count / 1e9:.2f} GB in bfloat16")
check.resident_experts(experts_gb, experts.total, experts.total - idle)

# %% [markdown]
# Each token, in each layer, may ask for other experts. So all of them have to be there: active parameters are about speed,
# all parameters about memory. Planners have mixed up the two, and told people that it fits.
#
# ## 2 · A skeleton without weights
#
# On the *meta* device a tensor has a shape and no memory. So the library itself can be asked, about a model that this machine
# could never hold. Here is Llama-3.1-70B, once whole and once by `AutoModel`:

# %%
# accelerate#3379: about 140 GB were expected, 64.73 were reported
config = AutoConfig.for_model(**arithmetic.known("Llama-3.1-70B"))
before = memory.resident()
with torch.device("meta"):
    whole, body = (auto_class.from_config(config, dtype=torch.bfloat16)
                   for auto_class in (AutoModelForCausalLM, AutoModel))
print("room taken here:", "under 0.1 GB" if memory.resident() - before < 1e8 else "more")

views.table(("", "parameters", "GB", "GiB", "GiB, halved"), [
    (name, count, *(f"{2 * count / unit:.2f}" for unit in (10**9, 2**30, 2**31)))
    for name, count in (
        ("skeleton, whole", whole.num_parameters()),
        ("skeleton, AutoModel", body.num_parameters()),
        ("arithmetic", arithmetic.parameters(arithmetic.known("Llama-3.1-70B")).total))
])

# %% [markdown]
# The count from the config alone is equal to the library's. Now a public wrong estimate: someone asked `accelerate
# estimate-memory` about this model in 16 bits, expected about 140 GB, and was told 64.73 (accelerate issue 3379). Find that
# number in the table.
#
# Three slips in one. The skeleton was the body: no head. It was in 16 bits already and was halved once more, which was
# repaired at once. And GiB, 2³⁰ bytes, were printed as GB, 10⁹. In this course GB is 10⁹ bytes, always.
#
# ## 3 · What grows
#
# While it works, a model also needs its cache (lesson 08), logits, and *activations*, the numbers on their way through the
# layers. No config tells the last; `trace` runs the library's code on meta tensors and adds up what is alive. Llama-3.1-8B
# reads 4,096 tokens:

# %%
config = AutoConfig.for_model(**arithmetic.known("Llama-3.1-8B"))
rows = []
for way, attention, keep in (("generate", "sdpa", 1), ("your own call", "sdpa", None),
                             ("generate, eager", "eager", 1)):
    peak = trace(config, prompt=4096, attention=attention, logits_to_keep=keep)
    rows.append((way, *(f"{size / 1e9:.3f}" for size in (
        peak.weights, peak.held, peak.logits, peak.prefill, peak.decode))))
views.table(("GB", "weights", "cache", "logits", "peak, prompt", "peak, one token"), rows)

# %% [markdown]
# The peak is in the prompt, not in the answer. Whoever calls `model(**inputs)` gets logits for every position, a GB of them,
# where `generate` keeps one row; `logits_to_keep=1` repairs it. *Eager* attention writes out all scores, and they grow with the
# square of the prompt (lesson 12).
#
# An article's rule: parameters in billions times 2, plus 20 to 30 %, so a 7B model wants 16 to 18 GB.
#
# **Predict 9.2.** Llama-2-7B, a batch of 16 with 4,096 tokens each. How many **GB** does the cache alone take?

# %% tags=["predict"]
### BEGIN SOLUTION
cache_gb = 34       # GB; within 20 % counts
### END SOLUTION

# %% tags=["check"]
busy = arithmetic.plan(llama2, batch=16, context=4096)
print(f"weights {busy.weights.total / 1e9:.2f} GB, cache {busy.cache.peak / 1e9:.2f} GB")
check.big_cache(cache_gb, busy.cache.peak, busy.weights.total)

# %%
lines = {}
for name, batch in (("Llama-2-7B", 1), ("Llama-2-7B", 16), ("Llama-3.1-8B", 1),
                    ("Llama-3.1-8B", 16), ("Qwen2.5-7B", 16), ("Llama-3.1-70B", 1)):
    known = arithmetic.known(name)
    contexts = [2**n for n in range(7, 18) if 2**n <= known["max_position_embeddings"]]
    plans = [arithmetic.plan(known, batch=batch, context=context) for context in contexts]
    need = [plan.total / (2 * plan.parameters) for plan in plans]
    lines[f"{name}, batch {batch}"] = contexts, need
views.curves(lines, "Where “plus 20 to 30 %” holds", "tokens of context",
             "need / (parameters × 2 bytes)", band=(1.2, 1.3, "the rule"), log="xy")

# %% [markdown]
# The rule is a stripe; the need is a curve that crosses it once, if at all. Left of the crossing you pay for room that you do
# not use; right of it you run out. A percentage of the weights cannot know your context or your batch.
#
# ### Exercise 9.1 · Plan for three cards &nbsp; ⏱ 8 min · ●●○
#
# Formats come as a dictionary, best first: name → bytes of weights. A sequence takes the bytes given. Take the first format
# that leaves room for at least one sequence. The checker asks for Llama-3.1-8B with 8,192 tokens on cards of 8, 24 and 80 GB.

# %% exercise="9.1"
def choose(card: int, weights: dict[str, int], per_sequence: int) -> tuple[str, int] | None:
    """Return the first format that works and how many sequences fit; None where none works."""
    ### BEGIN SOLUTION
    for name, size in weights.items():
        sequences = (card - size) // per_sequence
        if sequences >= 1:
            return name, sequences
    return None
    ### END SOLUTION


check.three_cards(choose)

# %% [markdown] hint="it chooses a format with no sequence at all"
# Weights that just fit are not enough: a model that cannot hold one sequence cannot answer.

# %% [markdown]
# Now plan with real models. For what is not counted, keep a reserve; a tenth is a habit, not a law.

# %%
print("not counted:", *busy.not_counted, sep="\n- ")
widgets.fit_planner()

# %% [markdown] instructor minutes=5
# Let each group take the card it really has. First the largest model at batch 1 and 8,192 tokens, then the largest batch of
# that model. Ask what they give up: format, context or batch. Then Llama-2-7B against Llama-3.1-8B at batch 16: the newer
# model is larger and needs less, because four query heads share one key/value head.

# %% [markdown]
# ## 4 · Two kinds of 16 bits
#
# float16 spends its bits on precision and ends at 65,504. bfloat16 has the range of float32 and a third of its digits. Does a
# small chat model ever come near that end? One question, and the largest number after each layer:

# %%
def load(**how):
    return AutoModelForCausalLM.from_pretrained(checkpoint("chat"), **how)


tokenizer = AutoTokenizer.from_pretrained(checkpoint("chat"))
model = load(dtype=torch.float32).to(device)
prompt = tokenizer.apply_chat_template(
    [{"role": "user", "content": "What is the capital of Japan?"}], add_generation_prompt=True,
    return_tensors="pt", return_dict=True).to(device)
with torch.inference_mode():
    states = model(**prompt, output_hidden_states=True).hidden_states

largest = [float(f"{state.abs().max():.2g}") for state in states]
end = torch.finfo(torch.float16).max
layers = range(len(largest))
views.curves({"largest activation": (layers, largest),
              "end of float16": (layers, [end] * len(layers)),
              "its square root": (layers, [end**0.5] * len(layers))},
             "Squares leave float16 after two layers", "layer (0: embedding)", "absolute value",
             log="y", digits=0, points=6)

# %% [markdown]
# Over a third of the way to the end, in a model of 30 layers. And every layer begins with a norm, which *squares*. Here is that
# largest vector in three types, and the mean of its squares, computed in each:

# %%
state = max(states, key=lambda each: each.abs().max())[0]
vector = state[state.abs().amax(-1).argmax()].cpu()
rows = []
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    stored = vector.to(dtype)
    square = stored.pow(2).mean()
    normed = (stored * torch.rsqrt(square)).abs().max()
    rows.append((str(dtype).split(".")[1], f"{stored.abs().max():.0f}",
                 f"{square:.2g}", f"{normed:.1f}"))
views.table(("type", "largest", "mean of squares", "largest, normed"), rows)

# %% [markdown]
# In float16 the square is `inf`, and dividing by it leaves nothing: a vector of zeros, no error. The library therefore leaves
# the type inside its norms and computes in float32. Your own code will not, unless you write it. The rounding is the other
# half: bfloat16 is 34 off where float16 is 2 off. "inf" and "nan" in a model trained in bfloat16 and run in float16 are this.
#
# How you *ask* for 16 bits matters, too. `dtype=` in `from_pretrained` (left out, it is what the config says, lesson 02), or
# `.half()` afterwards: the same thing?

# %%
model.half()        # in place
embedding, halved = model.lm_head.weight, model.model.rotary_emb.inv_freq
del model
asked = load(dtype=torch.float16).to(device)
exact = asked.model.rotary_emb.inv_freq

print("a weight of both, equal:", torch.equal(embedding, asked.lm_head.weight))
views.table(("position", "its angle is off by, radians"), [
    (position, f"{position * (exact - halved.float()).abs().max():.2f}")
    for position in (10, 1000, 8000)
], caption=f"frequencies: {exact.dtype} by dtype=, {halved.dtype} after .half()")

# %% [markdown]
# The weights agree. But `.half()` also rounds the buffers, among them the frequencies by which the model tells positions apart.
# At the start nobody notices; at the far end of the window an angle is off by 0.74, or 42 degrees. Ask with `dtype=`.
#
# ## 5 · Where it stands
#
# `device_map="auto"` fills the fastest device first, then main memory, then the disk. With room for everything there is
# nothing to split. Cap the room, and there is:

# %%
del asked, embedding
room = tempfile.TemporaryDirectory()
roomy = load(dtype=torch.float32, device_map="auto")
print("with room:", getattr(roomy, "hf_device_map", "no hf_device_map at all"))
del roomy
capped = load(dtype=torch.float32, device_map="auto", max_memory=memory.cap("200MB"),
              offload_folder=room.name)

parts = [list(run) for _, run in itertools.groupby(
    capped.hf_device_map.items(), lambda each: each[1])]
views.table(("from", "to", "modules", "device"), [
    (run[0][0], run[-1][0], len(run), str(run[0][1])) for run in parts])

# %% [markdown]
# On a machine without a GPU a model with room has no map, hence `getattr`. The capped one has put most of its layers on the
# slow side. What is left of those is a shape. Count them, then try to move the model:

# %% tags=["raises-exception", "nbval-check-output"]
away = [weight for weight in capped.parameters() if weight.is_meta]
print(f"on meta: {len(away)} of {len(list(capped.parameters()))} parameters,",
      f"{sum(weight.nbytes for weight in away) / 1e6:.0f} MB")
print(f"get_memory_footprint: {capped.get_memory_footprint() / 1e6:.0f} MB")
capped.to(device)

# %% [markdown]
# The footprint function counts shapes, so it does not notice. And what is not there cannot be moved: load again, with room.
#
# ### Exercise 9.2 · Read a device map &nbsp; ⏱ 8 min · ●●●
#
# Keys of a map are modules, and a module's device holds for everything inside it; the longest key that fits wins, and the key
# `""` is the whole model. Parameters come as name → bytes. Add up the bytes for each device.

# %% exercise="9.2"
def bytes_by_device(device_map: dict, sizes: dict[str, int]) -> dict:
    """Return device -> bytes. A parameter belongs to the longest key that contains it."""
    ### BEGIN SOLUTION
    total = {}
    for name, size in sizes.items():
        keys = [key for key in device_map if key == "" or f"{name}.".startswith(f"{key}.")]
        place = device_map[max(keys, key=len)]
        total[place] = total.get(place, 0) + size
    return total
    ### END SOLUTION


check.bytes_by_device(bytes_by_device)

# %% [markdown] hint="layer 1 takes the bytes of layer 10"
# `"model.layers.10.mlp".startswith("model.layers.1")` is true. Compare with a dot at the end of both.

# %% [markdown]
# **Predict 9.3.** The capped model will answer in 8 tokens. Before a layer runs, a *hook* fetches its weights; after it, the
# hook drops them. How many **GB** are fetched for this answer in all?

# %% tags=["predict"]
### BEGIN SOLUTION
fetched_gb = 2.9    # GB; within 20 % counts
### END SOLUTION

# %%
fetched = []


def count(module, *_):
    fetched.extend(weight.nbytes for weight in module.parameters(recurse=False) if weight.is_meta)


for module in capped.modules():
    module.register_forward_hook(count)


def write(network):
    began = time.perf_counter()
    ids = network.generate(**prompt.to(network.device), max_new_tokens=8, do_sample=False)
    return tokenizer.decode(ids[0, prompt["input_ids"].shape[1]:]), time.perf_counter() - began


# %% tags=["check"]
slow_text, slow = write(capped)
del capped, module
gc.collect()
model = load(dtype=torch.float32).to(device)
write(model)        # the first run warms up
text, quick = write(model)
print(repr(text), "| equal:", text == slow_text)
check.fetched(fetched_gb, sum(fetched), sum(weight.nbytes for weight in away))

# %% tags=["nbval-ignore-output"] reason="seconds differ between runs and machines"
print(f"{slow / quick:.1f} times slower; {sum(fetched) / (slow - quick) / 1e9:.1f} GB/s fetched")

# %% [markdown]
# The same text, by another clock. Every token fetches everything again. An article says *thirty times slower*, half of the
# model in CPU memory. The machine that wrote this page measured far less: its "disk" was a file that the system kept in
# memory, and its processor is slow, too. So thirty is not a law. But it can be explained. Writing a token means reading all
# weights once, at the speed of where they are:

# %%
links = {"big card (2000 GB/s), over the bus (25)": (2000, 25),
         "big card, from disk (5)": (2000, 5),
         "laptop card (300), over the bus (12)": (300, 12)}
shares = [share / 100 for share in range(0, 61, 2)]
lines = {name: ([100 * share for share in shares],
                [1 - share + share * fast / slow for share in shares])
         for name, (fast, slow) in links.items()}
print({name: f"{29 / (fast / slow - 1):.0%}" for name, (fast, slow) in links.items()})
views.curves(lines, "Time for a token, against all weights on the card",
             "% of the weights elsewhere", "times slower",
             band=(25, 35, "about thirty-fold"), log="y", digits=1)

# %% [markdown]
# The speeds are nominal ones; put yours in. The line above the picture gives the share at which it is thirty-fold: a third of
# the model across the bus, a mere 7 % on a disk, and never on the laptop. If throughput collapses, print `hf_device_map` before
# you blame anything else. And fetching is paid per *pass*: a batch of 32 shares it.
#
# ## 6 · Nothing falls back
#
# Another article had a pipeline in which "half of the tensors fell back to the CPU", silently. Two tensors, two devices:

# %% tags=["raises-exception", "nbval-check-output"]
torch.ones(2) + torch.ones(2, device="meta")

# %% [markdown]
# It raises. On a GPU the words are "Expected all tensors to be on the same device", and the usual cure is
# `inputs.to(model.device)`. PyTorch moves nothing on its own. What moves weights are the hooks of section 5, and those were
# asked for, by `device_map`. (The meta device stands in for a GPU in this cell only: some operations let it through.)
#
# ## 7 · Who holds my memory
#
# `del model` removes a name. The memory goes when the *last* reference goes, and a notebook keeps more than you wrote. A
# tensor's bytes are its *storage*; a weak reference to it shows whether they are still there. Three ways to fail, all common.
# First, a cell that ends with the model:

# %%
del away, model
copy = load(dtype=torch.bfloat16)
weights = weakref.ref(copy.lm_head.weight.untyped_storage())
copy.eval()

# %%
del copy
gc.collect()
print(*memory.holders(weights()), sep="\n")
memory.forget()
weights() is None

# %% [markdown]
# Every displayed result is kept. A semicolon, `copy.eval();`, would have displayed nothing. `memory.forget()` cleared what the
# notebook remembers, and nothing of yours. Second, an error: its traceback keeps the frames, the frames their variables.

# %% tags=["raises-exception", "nbval-check-output"]
copy = load(dtype=torch.bfloat16)
weights = weakref.ref(copy.lm_head.weight.untyped_storage())
copy(input_ids=None)

# %%
del copy
gc.collect()
print(*memory.holders(weights()), sep="\n")
memory.forget()
weights() is None

# %% [markdown]
# That is why the second try runs out of memory after the first one did. Third, a result that remembers how it was computed:

# %%
copy = load(dtype=torch.bfloat16).to(device)
weights = weakref.ref(copy.lm_head.weight.untyped_storage())
logits = copy(**prompt.to(copy.device)).logits
del copy
gc.collect()
print(*memory.holders(weights()), sep="\n")
del logits
weights() is None

# %% [markdown]
# Without `torch.inference_mode()` or `no_grad()`, every output carries its graph, and the graph carries the weights. A list of
# such outputs grows with every step of a loop. Does the system agree that memory came back? (On a GPU `nvidia-smi` may not:
# torch keeps freed memory for its next tensor. `memory.forget()` gives that back as well.)

# %% tags=["nbval-ignore-output"] reason="resident memory differs between systems"
copy = load(dtype=torch.bfloat16)
with_copy = memory.resident()
del copy
memory.forget()
print(f"resident: {with_copy / 1e6:.0f} MB with the copy, {memory.resident() / 1e6:.0f} MB without")

# %% [markdown]
# ### Exercise 9.3 · Who lets go? &nbsp; ⏱ 6 min · ●●○
#
# After each scene: `del net`, then `gc.collect()`. In which scenes do the weights **stay**? The checker runs them all.

# %% exercise="9.3"
scenes = {
    "a": "kept = net(x)",
    "b": "with torch.no_grad(): kept = net(x)",
    "c": "kept = net.state_dict()",
    "d": "kept = [weight.numel() for weight in net.parameters()]",
    "e": "kept = net.register_forward_hook(print)",
    "f": "kept = net.forward",
    "g": "try: net(None)\nexcept TypeError as error: kept = error",
    "h": "net.friend = net; kept = None",
}
### BEGIN SOLUTION
stay = ["a", "c", "f", "g"]
### END SOLUTION

check.who_stays(stay, scenes)

# %% [markdown] hint="a hook is attached to the network, not the other way round"
# `register_forward_hook` returns a handle that can remove the hook. It knows the network only weakly.
