# %% [markdown]
# A model travels as a folder. You have loaded several by now and nothing went wrong. In this lesson you open the folder, read
# its weights without the library, and then load what does not fit. Most of that fails with a message that names the place.
# Some of it does not fail at all.
#
# ## 1 · What lies in the folder

# %%
import json

import torch
from transformers import (
    AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM,
    AutoModelForQuestionAnswering, AutoModelForSequenceClassification,
    AutoModelForTokenClassification, AutoTokenizer,
)

from labutils import check, contracts, faults, views, widgets
from labutils.checkpoints import checkpoint

encoder = checkpoint("encoder")
views.files(encoder)

# %% [markdown]
# Two of these files make the model, four the tokenizer; the ones about pooling and modules belong to another library. A load
# has to keep four *contracts*, in this order:
#
# | contract | the question | where the answer stands |
# |---|---|---|
# | identity | which class is this? | `model_type` in `config.json` |
# | shape | how large are its parts? | the numbers in `config.json` |
# | parameters | which values fill them? | `model.safetensors` |
# | input/output | what do ids and labels mean? | the tokenizer's files, `id2label` |
#
# When a load goes wrong, first find out which of the four was broken.
#
# ## 2 · The weights, read by hand
#
# A safetensors file begins with 8 bytes that hold one number, the length of the header. The header is JSON. All the rest is
# tensors, end to end.

# %%
name = "embeddings.LayerNorm.weight"
with (encoder / "model.safetensors").open("rb") as file:
    length = int.from_bytes(file.read(8), "little")
    header = json.loads(file.read(length))
    start, end = header[name]["data_offsets"]
    file.seek(8 + length + start)
    by_hand = torch.frombuffer(bytearray(file.read(end - start)), dtype=torch.float32)

trained = AutoModel.from_pretrained(encoder)
print(f"{length:,} bytes of header, {len(header)} entries")
print(name, header[name])
print("equal to the library's:", torch.equal(by_hand, trained.get_parameter(name)))

# %% [markdown]
# Name, type, shape, from where to where: you have just read weights without `transformers`. Such a file holds nothing but
# data. The older format, Python's *pickle*, holds instructions for building objects, and whoever loads it follows them:

# %%
import pickle


class Weights:
    def __reduce__(self):
        return print, ("This line came out of a file of weights, and it ran.",)


pickle.loads(pickle.dumps(Weights()))

# %% [markdown] instructor minutes=3
# Ask what else the header gives away before a byte of weights is read: every shape, the type, the exact size of the file. This
# is how a model's size is shown without downloading it, and how a broken download is noticed.

# %% [markdown]
# `print` was our choice. It could have been any function. A `.bin` file from a stranger is a program from a stranger.
#
# ## 3 · Identity: from config to class
#
# `model_type` names a family, and the Auto class that you call names the task. Two look-ups give one class, and the class
# decides where the model ends. Watch it on the *meta* device, where tensors have a shape and take no memory. Two texts of
# seven tokens, one body, five heads:

# %%
def skeleton(auto_class, config):
    """Build the model that `auto_class` picks for `config`: names and shapes, no values."""
    with torch.device("meta"):
        return auto_class.from_config(config)


config = AutoConfig.from_pretrained(encoder)
rows = []
for auto_class in (AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification,
                   AutoModelForTokenClassification, AutoModelForQuestionAnswering):
    model = skeleton(auto_class, config)
    output = model(input_ids=torch.zeros(2, 7, dtype=torch.long, device=model.device))
    shapes = "; ".join(f"{name} {list(tensor.shape)}" for name, tensor in output.items())
    rows.append((auto_class.__name__, type(model).__name__, shapes))
views.table(("you call", "you get", "it returns"), rows)

# %% [markdown]
# A number for every word of the vocabulary, for every label, or for every position: the shape tells you which head you have.
# No weight was looked at. The config alone decides.
#
# **Predict 2.1.** `AutoModelForCausalLM` is the class for models that write. This encoder was never trained to write. Will the
# library refuse to build it, `"yes"` or `"no"`?

# %% tags=["predict"]
### BEGIN SOLUTION
refused = "no"      # "yes" or "no"
### END SOLUTION

# %% tags=["check"]
writer = skeleton(AutoModelForCausalLM, config)
print(type(writer).__name__)
check.auto_refuses(refused, writer)

# %% [markdown]
# An Auto class answers one question: is there such a class? Whether this checkpoint belongs in it, the other contracts must
# say, or you.
#
# ## 4 · Shape: a config alone is a random network

# %%
network = AutoModel.from_config(config)
tensors = network.state_dict()
same_shapes = all(header[name]["shape"] == list(tensors[name].shape) for name in tensors)
words, learned = (model.get_input_embeddings().weight for model in (network, trained))
{"names and shapes of the file": same_shapes, "its numbers": torch.equal(words, learned)}

# %% [markdown]
# Everything is there but what was learned. Since the config fixes every shape, it also fixes the number of parameters, and you
# can count them before you download anything. A layer from *a* to *b* numbers has *a·b* weights and *b* biases; a norm, in
# this family, has two numbers for each place of the vector. The *pooler* is one more layer, on top of all others.

# %%
def bert_parameters(c):
    h, inner = c.hidden_size, c.intermediate_size
    embeddings = (c.vocab_size + c.max_position_embeddings + c.type_vocab_size) * h + 2 * h
    attention = 4 * (h * h + h) + 2 * h         # query, key, value, output; a norm
    feed_forward = (h * inner + inner) + (inner * h + h) + 2 * h
    pooler = h * h + h
    return embeddings + c.num_hidden_layers * (attention + feed_forward) + pooler


base = AutoConfig.for_model("bert")
views.table(("", "by hand", "library"), [
    ("encoder", bert_parameters(config), skeleton(AutoModel, config).num_parameters()),
    ("BERT base", bert_parameters(base), skeleton(AutoModel, base).num_parameters()),
])

# %% [markdown]
# ### Exercise 2.1 · Count a Llama &nbsp; ⏱ 8 min · ●●○
#
# Most chat models are built like Llama. No biases. Norms of `hidden_size` numbers, two in each layer and one at the end. Three
# feed-forward matrices. Fewer heads for key and value (`num_key_value_heads`) than for query (`num_attention_heads`), each
# `head_dim` wide. The head that makes logits is a second table as large as the embedding, unless `tie_word_embeddings` says
# that the two are one.

# %% exercise="2.1"
def llama_parameters(c) -> int:
    """Return the parameters of a Llama with its head. c: a LlamaConfig."""
    ### BEGIN SOLUTION
    h = c.hidden_size
    attention = 2 * h * c.head_dim * (c.num_attention_heads + c.num_key_value_heads)
    layer = attention + 3 * h * c.intermediate_size + 2 * h
    tables = 1 if c.tie_word_embeddings else 2
    return tables * c.vocab_size * h + c.num_hidden_layers * layer + h
    ### END SOLUTION


check.llama_parameters(llama_parameters)

# %% [markdown] hint="I am off by vocabulary times hidden size"
# That is the head. It counts once more only where `c.tie_word_embeddings` is false.

# %% [markdown] hint="it fits one config and not another"
# Query and output are `hidden_size` by `num_attention_heads * head_dim`; key and value have fewer heads.

# %% [markdown] hint="I am off by a few thousand"
# The norms: two in each layer, one after the last.

# %% [markdown]
# **Predict 2.2.** Mixtral 8x7B is such a Llama with eight feed-forward blocks, the *experts*, in every layer. How many
# **billion** parameters does it have?

# %% tags=["predict"]
### BEGIN SOLUTION
billions = 46.7     # your guess; within 1 counts
### END SOLUTION

# %% tags=["check"]
giants = {}
for family in ("llama", "mixtral", "deepseek_v3"):
    giants[family] = skeleton(AutoModelForCausalLM, AutoConfig.for_model(family))
    print(f"{family:12} {giants[family].num_parameters():>15,}")
check.expert_billions(billions, giants["mixtral"])

# %% [markdown]
# The defaults of these three configs are Llama 2 7B, Mixtral 8x7B and DeepSeek-V3, built in seconds on a machine that could
# hold none of them.
#
# Each has a part that the others lack. The Llama has a head of its own. The Mixtral has experts and, in every layer, a
# *router* that picks two of them for each token. DeepSeek has *latent* attention, which squeezes keys and values through a
# narrow layer. Its count is the long one below: read it once, top to bottom, as a list of matrices.

# %%
def count(family, part):
    return sum(w.numel() for name, w in giants[family].named_parameters() if part in name)


n, m, d = (giant.config for giant in giants.values())
h, rank, heads = d.hidden_size, d.kv_lora_rank, d.num_attention_heads
nope, rope, value = d.qk_nope_head_dim, d.qk_rope_head_dim, d.v_head_dim
query = d.q_lora_rank * (h + 1 + heads * (nope + rope))         # down, a norm, up
key_value = h * (rank + rope) + rank + rank * heads * (nope + value)
latent = d.num_hidden_layers * (query + key_value + heads * value * h)
each = m.num_hidden_layers * m.hidden_size
views.table(("", "by hand", "library"), [
    ("Llama, untied head", n.vocab_size * n.hidden_size, count("llama", "lm_head")),
    ("Mixtral, experts", 8 * 3 * each * m.intermediate_size, count("mixtral", "experts")),
    ("Mixtral, routers", 8 * each, count("mixtral", "mlp.gate")),
    ("DeepSeek, latent attention", latent, count("deepseek_v3", "self_attn")),
])

# %% [markdown]
# Now grow a model of your own. The explorer starts with the chat model's config. Which field is expensive in a small model,
# and which in a large one?

# %%
widgets.parameter_map(AutoConfig.from_pretrained(checkpoint("chat")))

# %% [markdown] instructor minutes=4
# Let them shrink the vocabulary to 8,192 and watch the share of the embedding; then set 32 layers and a hidden size of 4,096.
# Ask for eight experts last: only the rows of the experts grow, and a router appears.

# %% [markdown]
# ## 5 · Parameters: missing, unexpected, mismatched
#
# Now the file has to fill the shapes. Ask for more positions than it has, and read what comes from top to bottom:

# %% tags=["raises-exception", "nbval-check-output"]
import contextlib

with contextlib.chdir(encoder):
    AutoModel.from_pretrained(".", max_position_embeddings=1024)

# %% [markdown]
# The last line says little; the table above it names the tensor and both shapes. The same report can be had as a dictionary.
# We take that from here on, and keep the log quiet.

# %%
from transformers.utils import logging

logging.set_verbosity_error()


def load(auto_class, folder, **options):
    """Return the model and the report of its load: kind -> keys, empty kinds left out."""
    model, info = auto_class.from_pretrained(folder, output_loading_info=True, **options)
    return model, {kind: sorted(keys) for kind, keys in info.items() if keys}


# %%
first, report = load(AutoModelForSequenceClassification, encoder)
second, _ = load(AutoModelForSequenceClassification, encoder)
print("same head:", torch.equal(first.classifier.weight, second.classifier.weight))
report

# %% [markdown]
# *Missing*: the model wants it and the file has none, so it is filled with random numbers. There is no exception: this
# classifier answers everything, and differently after each load. *Unexpected*: the file has it, the model has no place for
# it, so it is dropped. *Mismatched*: both have it, in different shapes.
#
# **Predict 2.3.** The checkpoint "sentiment" was saved with one label for each *text*. Load it with the class that gives one
# to each *token*. Which kinds will be reported? Choose from `"missing"`, `"unexpected"`, `"mismatched"`.

# %% tags=["predict"]
### BEGIN SOLUTION
kinds = ["unexpected"]      # a list; it may be empty
### END SOLUTION

# %% tags=["check"]
_, report = load(AutoModelForTokenClassification, checkpoint("sentiment"))
print(report)
check.kinds_reported(kinds, report)

# %% [markdown]
# Nothing is missing, nothing is random, and the answers mean nothing: a head that was trained on whole texts reads single
# tokens. Its names and shapes agree. Only a layer that was left over gives it away.
#
# ### Exercise 2.2 · Repair a missing head &nbsp; ⏱ 7 min · ●●○
#
# A colleague's export script renamed a part of a classifier. The cell prints the report. Give the tensors the names that the
# model expects.

# %% exercise="2.2"
import tempfile
from pathlib import Path

room = tempfile.TemporaryDirectory()        # gone when the kernel ends
damaged = faults.renamed_head(checkpoint("sentiment"), Path(room.name))
print(load(AutoModelForSequenceClassification, damaged)[1])


def repair(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the same tensors under the names that the model expects."""
    ### BEGIN SOLUTION
    return {name.replace("score.", "classifier."): each for name, each in tensors.items()}
    ### END SOLUTION


check.repaired_head(repair, damaged)

# %% [markdown] hint="what is wrong with it?"
# Two keys are missing, two are unexpected. Compare their endings: it is one head under two names.

# %% [markdown] hint="the checker still finds something unexpected"
# Rename the tensors, do not add copies. The old names have to go.

# %% [markdown]
# ## 6 · Save, reload, and the type
#
# `save_pretrained` writes what the object holds. A model holds no tokenizer, so save both. And in which type does a model come
# back? Old tutorials say float32, always. Not any more:

# %%
half = Path(room.name) / "half"
small, _ = load(AutoModel, encoder, dtype=torch.bfloat16)
small.save_pretrained(half)
AutoTokenizer.from_pretrained(encoder).save_pretrained(half)

(plain, _), (asked, _) = load(AutoModel, half), load(AutoModel, half, dtype=torch.float32)
same = map(torch.equal, plain.state_dict().values(), small.state_dict().values())
print("equal after the round trip:", all(same))
{"nothing said": plain.dtype, "dtype=torch.float32": asked.dtype}

# %% [markdown]
# The type that the config names is taken or, without one, that of the weights. "chat" is float32 in the bundled profile and
# bfloat16 on the Hub: the same line gives two models. Say `dtype=` where it matters.
#
# ## 7 · Six folders that do not work
#
# ### Exercise 2.3 · Which contract? &nbsp; ⏱ 8 min · ●●●
#
# Six copies of that folder follow, each broken in one way. We load each with the class that its owner asked for, put one text
# through it, and compare the result with the one we know (1.00 is the same). For each, name the contract that was broken:
# `"identity"`, `"shape"`, `"parameters"` or `"input/output"`. The folders are yours: `patients[0].folder` is A's.

# %%
def mean_state(model, folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.inference_mode():
        inputs = tokenizer("Paris is the capital of France.", return_tensors="pt")
        return model.base_model(**inputs).last_hidden_state.mean(dim=1)


def examine(patient):
    """Return a folder's name, its class, the class its config names, and what was said."""
    try:
        model, report = load(globals()[patient.loader], patient.folder, dtype=torch.float32)
        same = torch.cosine_similarity(mean_state(model, patient.folder), known).item()
    except Exception as error:
        return patient.name, "", "", f"{type(error).__name__}: {str(error).split('. ')[0]}"
    name, saved_as = type(model).__name__, model.config.architectures[0]
    return patient.name, name, saved_as, f"loads; {same:.2f}; {report or 'no report'}"


# %%
known = mean_state(asked, half)
patients = faults.seed(half, checkpoint("chat"), Path(room.name))
rows = [examine(patient) for patient in patients]
views.table(("", "class", "config names", "what was said"), rows)

# %% exercise="2.3"
### BEGIN SOLUTION
a = "input/output"
b = "parameters"
c = "identity"
d = "identity"
e = "parameters"
f = "shape"
### END SOLUTION

check.broken_contracts(a, b, c, d, e, f)

# %% [markdown] hint="A raises an error deep inside torch"
# A table was asked for a row that it does not have. Who chooses the rows? Look at the ids.

# %% [markdown] hint="C has no report and no error"
# Compare its class with the one that its config names, then its `config.json` with a healthy one.

# %% [markdown] hint="F speaks of a report that I cannot see"
# We turned it off. `logging.set_verbosity_warning()` brings it back.

# %% [markdown] instructor minutes=5
# Let groups take one letter each and report in one sentence: contract, evidence, cure. C is the one to discuss: RoBERTa counts
# positions from another start, and nothing in a file of weights says from where.

# %% [markdown]
# Four raise, and two do not. What you did by eye can be automated: `contracts.match` compares a tokenizer, a model and the
# report of its load. Its findings for the three that load:

# %%
rows = []
for patient in (patients[0], patients[2], patients[4]):
    model, report = load(globals()[patient.loader], patient.folder)
    tokenizer = AutoTokenizer.from_pretrained(patient.folder)
    found = contracts.match(tokenizer, model)
    rows += [(patient.name, each.severity, each.what) for each in found]
views.table(("", "severity", "what"), rows)

# %% [markdown]
# ## 8 · Which revision?
#
# On the Hub a checkpoint is a repository, and `main` is whatever was pushed last. Here a small server on this machine plays the
# Hub. We download, its author pushes, we download again, and then ask for the first commit by its name.

# %%
from labutils.hub_standin import serve_and_download

repository, cache = Path(room.name) / "repository", Path(room.name) / "cache"
repository.mkdir(exist_ok=True)
(repository / "vocab.txt").write_text("[PAD] [UNK]")
(repository / "config.json").write_text('{"hidden_size": 8}')
first, _ = serve_and_download(repository, "main", cache)

(repository / "config.json").write_text('{"hidden_size": 16}')
second, _ = serve_and_download(repository, "main", cache)
again, server_asked = serve_and_download(repository, first, cache)

# %%
print(f"main: {first[:7]}, then {second[:7]}")
print(f"{first[:7]} by name: {again[:7]}, server asked: {server_asked}")
views.files(cache / "models--org--tiny", parts=("refs", "blobs", "snapshots"))

# %% [markdown]
# Twice `main`, two models, no message. The commit gives back what it always gave, even without asking the server. In the cache,
# `refs` remembers what a name meant last, `snapshots` has a folder for each commit, and `blobs` keeps each content once:
# both commits share the vocabulary, which did not change. `from_pretrained` takes the same `revision=`. Write the commit beside
# every result.
#
# ## 9 · A border
#
# A repository may bring Python code of its own. Safetensors made the weights harmless; `trust_remote_code=True` would run the
# stranger's program all the same, with your rights. This course never sets it. If you ever must, read the code, pin its
# commit, and run it where there is nothing to lose. It is not the cure for an unknown `model_type`: a newer `transformers` is.

# %%
try:
    with contextlib.chdir(room.name):
        AutoConfig.from_pretrained(faults.stranger(Path()), trust_remote_code=False)
except ValueError as error:
    print(str(error).split(" You can")[0])
