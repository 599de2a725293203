# %% [markdown]
# Written one after the other, eighty answers take eighty times as long as one. Written together they take far less: to make
# one token the machine reads all weights of the model, and it can use them for eight rows as well as for one. This lesson
# measures what you gain, what your users wait for it, and what goes wrong on the way to a million prompts: padding, wrong
# order, memory that runs out, a process that is killed at night.
#
# ## 1 · One by one

# %%
import json
import subprocess
import sys
import tempfile
import time
import weakref
from pathlib import Path

import torch
from transformers import (AutoModelForCausalLM, AutoTokenizer, ContinuousBatchingConfig,
                          GenerationConfig, pipeline)

from labutils import arithmetic, check, data, environment, jobs, throughput, views, widgets
from labutils.checkpoints import checkpoint
from labutils.errors import LabError
from labutils.generation import generate
from labutils.jobs import on_ray

device = environment.device()
tokenizer = AutoTokenizer.from_pretrained(checkpoint("chat"))
model = AutoModelForCausalLM.from_pretrained(checkpoint("chat"), dtype=environment.dtype())
model = model.to(device)
END, LIMIT = tokenizer.eos_token_id, 8     # new tokens at most; raise it when you have time

lines = data.path("prompts.jsonl").read_text(encoding="utf-8").splitlines()
rows = [json.loads(line) for line in lines]
chats = [[{"role": "user", "content": row["prompt"]}] for row in rows]
ids = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
       for chat in chats]
some = range(5, len(rows), 10)      # one prompt of each kind, to keep Run All short

views.table(("prompt", "tokens"), [(rows[n]["id"], len(ids[n])) for n in some],
            f"8 of {len(ids)} prompts of {min(map(len, ids))} to {max(map(len, ids))} tokens")

# %% [markdown]
# On a CPU the model is in float32, on a graphics card in bfloat16, on an older card without it (Colab's T4) in float16:
# `environment.dtype()` decides. With `LAB_PROFILE=hub` you may give any other chat model's name instead of ours.
#
# Eight requests are there at once. `write` is the padded batch of lesson 05; the loop hands it one prompt at a time. For each
# answer we note when it was there.

# %% margin="stored are the three answers whose own margins are wide (0.12 and more)"
arrived, answers = {}, {}       # method -> seconds at which each answer was there; new ids


def write(batch):
    inputs = tokenizer.pad({"input_ids": batch}, padding_side="left", return_tensors="pt")
    inputs = inputs.to(device)
    output = model.generate(**inputs, max_new_tokens=LIMIT, do_sample=False)
    new = output[:, inputs["input_ids"].shape[1]:].tolist()
    return [row[:row.index(END) + 1] if END in row else row for row in new]


def run(method, batches):
    began, found, arrived[method] = time.perf_counter(), {}, []
    for batch in batches:
        found |= zip(batch, write([ids[n] for n in batch]))
        arrived[method] += [time.perf_counter() - began] * len(batch)
    answers[method] = [found[n] for n in some]


run("one by one", [[n] for n in some])
[tokenizer.decode(answers["one by one"][k]) for k in (4, 6, 7)]

# %% [markdown]
# ## 2 · Eight at once
#
# **Predict 11.1.** The same eight prompts, padded, in one batch of 8. The weights are read an eighth as often. How many times
# faster are all answers there, prompts included? On a CPU; on a card more. Within a factor of two counts.

# %% tags=["predict"]
### BEGIN SOLUTION
times = 2.2         # how many times the tokens per second of the loop
### END SOLUTION

# %% margin="only whether the answers are equal is stored"
run("padded, 8 at once", [list(some)])


def same(method):
    return [ours == alone for ours, alone in zip(answers[method], answers["one by one"])]


same("padded, 8 at once")

# %% tags=["check"]
check.speedup(times, arrived["one by one"], arrived["padded, 8 at once"])

# %% tags=["nbval-ignore-output"] reason="seconds of this machine"
def table():
    tokens = sum(map(len, answers["one by one"]))       # the same for all: equal answers
    return views.table(("method", "tokens/s", "first answer", "last answer"), [
        (method, f"{tokens / max(seconds):.1f}", f"{min(seconds):.1f} s", f"{max(seconds):.1f} s")
        for method, seconds in arrived.items()])


table()

# %% [markdown]
# The answers are the same, token for token: left padding, a mask, float32. (In half precision a close call may tip over;
# lesson 05, section 7.) The times are the bargain of the whole lesson. The batch is done sooner, which pleases whoever pays
# for the machine. But its first answer comes with its last: throughput is bought with latency.
#
# Why not eight times? The weights are read less often, but the prompts' positions still cost arithmetic, eight times as much
# for eight prompts.
#
# `pipeline` batches too, if it is told to. Its `batch_size` is 1 unless you set it, so a list of prompts is a loop in disguise.

# %% margin="only whether the answers are equal is stored"
writer = pipeline("text-generation", model=model, tokenizer=tokenizer)
began = time.perf_counter()
replies = writer([chats[n] for n in some], batch_size=8, max_new_tokens=LIMIT, do_sample=False,
                 return_full_text=False)
arrived["pipeline, 8 at once"] = [time.perf_counter() - began] * len(some)
texts = [reply[0]["generated_text"] for reply in replies]

[text == tokenizer.decode(alone, skip_special_tokens=True)
 for text, alone in zip(texts, answers["one by one"])], tokenizer.padding_side

# %% [markdown]
# Equal again. But look at the side: the pipeline turned *your* tokenizer to the left, for good.
#
# ## 3 · Padding is work
#
# A rectangle of eight rows is as wide as its longest prompt, and the model computes all of it.
#
# **Predict 11.2.** All 80 prompts, in the order of their file, in batches of 8. They have 40 to 386 tokens. What share of the
# positions that go through the model is padding?

# %% tags=["predict"]
### BEGIN SOLUTION
share = 0.61        # from 0 to 1; within 0.1 counts
### END SOLUTION

# %%
lengths = [len(row) for row in ids]


def cost(batches):
    """Return positions computed, and the useful ones among them."""
    return (sum(len(batch) * max(lengths[n] for n in batch) for batch in batches),
            sum(lengths[n] for batch in batches for n in batch))


def by_eights(order):
    return [order[at:at + 8] for at in range(0, len(order), 8)]


arrival = by_eights(list(range(80)))
by_length = by_eights(sorted(range(80), key=lambda n: -lengths[n]))
views.table(("batches of 8", "positions", "useful", "padding"), [
    (name, all_, useful, f"{1 - useful / all_:.0%}")
    for name, batches in (("as they arrive", arrival), ("sorted by length", by_length))
    for all_, useful in [cost(batches)]])

# %% tags=["check"]
check.padding_share(share, *cost(arrival))

# %% [markdown]
# More than half. One long prompt in a batch makes seven short ones pay. Sorted by length, neighbours are alike. But eight of
# the longest need far more memory than eight of the shortest. How much? One article says: each request needs a cache of
# its own, and memory grows with the total of all lengths. Count it.

# %%
def cache_bytes(batch):
    inputs = tokenizer.pad({"input_ids": batch}, padding_side="left", return_tensors="pt")
    with torch.inference_mode():
        logits, cache = model(**inputs.to(device), use_cache=True, logits_to_keep=1).to_tuple()
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


four = [ids[n] for n in some[:4]]
longest = max(map(len, four))
rectangle = arithmetic.kv_cache(model.config, batch=4, prompt=longest, new=1, dtype=model.dtype)
{"each alone, added up": sum(cache_bytes([row]) for row in four),
 "one padded batch": cache_bytes(four),
 f"4 rows x {longest}, from the config": rectangle.bytes}

# %% [markdown]
# The claim holds for requests kept apart. In a padded batch it is **batch × longest**: padding has keys and values, too. So
# the number to hold constant is not the rows but the positions, rows × longest.
#
# ### Exercise 11.1 · Buckets &nbsp; ⏱ 8 min · ●●○
#
# Cut prompts into batches of like length within a budget of positions. Longest first: if memory is too small you learn it in
# the first minute, not in the last. A prompt beyond the budget goes alone.

# %% exercise="11.1"
def buckets(lengths: list[int], budget: int) -> list[list[int]]:
    """Return batches of prompt numbers, longest first; rows x longest is at most `budget`."""
    ### BEGIN SOLUTION
    batches = []
    for n in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
        if not batches or (len(batches[-1]) + 1) * lengths[batches[-1][0]] > budget:
            batches.append([])
        batches[-1].append(n)
    return batches
    ### END SOLUTION


check.buckets(buckets)

# %% [markdown] hint="my batches are over the budget"
# The width of a batch is its longest prompt, which in this order is its first. Not the sum of the lengths, not the newest.

# %% [markdown] hint="the checker wants numbers, I return lengths"
# Sort `range(len(lengths))` with a key that looks the length up. Lengths repeat, numbers do not.

# %%
def reference_buckets(lengths, budget):     # so that Run All goes on before you have solved it
    order = sorted(range(len(lengths)), key=lambda n: -lengths[n])
    while order:
        rows = max(1, budget // lengths[order[0]])
        yield order[:rows]
        order = order[rows:]


by_budget = list(reference_buckets(lengths, 1200))
views.padding({name: [[lengths[n] for n in batch] for batch in batches] for name, batches in (
    ("as they arrive", arrival), ("sorted", by_length), ("budget 1,200", by_budget))},
    "The same 80 prompts in another order: less padding")

# %% [markdown] instructor minutes=4
# Ask what the picture does not show: the answers' lengths. They cannot be sorted, for nobody knows them beforehand. Section 6
# is about them. Then: what does sorting do to the person whose long prompt came first, and what to the last short one?

# %% [markdown]
# Bucketing has a price: the answers come in another order. Attach them to the wrong prompts and nothing will warn you. Several
# public reports of "nonsense answers" were this and nothing else.
#
# ### Exercise 11.2 · The old order &nbsp; ⏱ 5 min · ●○○

# %% exercise="11.2"
def restore(batches: list[list[int]], answers: list[list[str]]) -> list[str]:
    """Return the answers in the prompts' order. answers[b][i] belongs to prompt batches[b][i]."""
    ### BEGIN SOLUTION
    placed = {n: answer for batch, found in zip(batches, answers)
              for n, answer in zip(batch, found)}
    return [placed[n] for n in range(len(placed))]
    ### END SOLUTION


check.restore(restore)

# %% [markdown] hint="it is right for some orders only"
# A permutation and its inverse are equal when it only swaps pairs. Put each answer *at* its number; do not take the answer that
# stands there.

# %% margin="only whether the answers are equal is stored"
ours = [lengths[n] for n in some]
run("buckets", [[some[k] for k in batch] for batch in reference_buckets(ours, 320)])
all(same("buckets"))

# %% [markdown]
# ## 4 · Two limits
#
# How fast could a step be? It reads every weight once: bytes over *bandwidth*. And it multiplies each weight once for every
# row: operations over *rate of arithmetic*. Both rates can be measured in a second.

# %% tags=["nbval-ignore-output"] reason="rates of this machine"
matrix = torch.ones(8192, 4096, dtype=model.dtype, device=device)
vector, square = matrix[0], matrix[:1024, :1024].contiguous()


def best(action):
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        action().sum().item()       # a number that is read has been computed, on any device
        seconds.append(time.perf_counter() - began)
    return min(seconds)


read = matrix.nbytes / best(lambda: matrix @ vector)
computed = 2 * 1024**3 / best(lambda: square @ square)
del matrix
print(f"reads {read / 1e9:.1f} GB/s, computes {computed / 1e9:.0f} GFLOPS")

# %% [markdown]
# The first limit does not know the batch; the second grows with it. Where they cross, rows stop being free. That batch depends
# on no model at all, only on the two rates and the bytes of one weight. Now time some steps here, and draw a run that was
# recorded on the machine that made this page, with its date. (Yours is in the explorer below.)

# %% margin="no text is kept: steps are timed"
live = throughput.measure(model, ids, (1, 4, 8), prompt=16, new=4)
recorded, on_card = throughput.recorded("cpu"), throughput.recorded("gpu")
print("8 rows decode faster than 1:", 8 / live.point(8).step > 1 / live.point(1).step)
print(f"{recorded.name}: rows are free up to {recorded.free_rows:.1f}")
print(on_card.name if on_card else "On a GPU no run has been recorded yet, so none is shown.")
views.roofline(recorded)

# %% [markdown]
# Both axes are logarithmic. The measured line should hug the lower of the two limits. It stays below: a step is hundreds of
# small operations, each with a start of its own, and none reaches the rate of one large product. Look at the second point: a
# second row gains little, since a single one takes a faster path, made for vectors. The curve is measured for such reasons.
#
# ## 5 · Within a budget of seconds
#
# Somebody says how long an answer may take. Then the best batch is the one with the most tokens per second among those in time.
#
# ### Exercise 11.3 · The best batch &nbsp; ⏱ 6 min · ●●○

# %% exercise="11.3"
def best_batch(points: list[tuple[int, float, float]], budget: float) -> int | None:
    """Return the batch of most tokens/s with seconds <= budget, None where no batch is in time.

    points: (batch, seconds until an answer is there, tokens per second), in any order.
    """
    ### BEGIN SOLUTION
    in_time = [point for point in points if point[1] <= budget]
    return max(in_time, key=lambda point: point[2])[0] if in_time else None
    ### END SOLUTION


check.best_batch(best_batch)

# %% [markdown] hint="I took the largest batch in time"
# More rows are not always more tokens per second: a card can be full. Compare the tokens.

# %%
widgets.throughput({"recorded": recorded, "this machine, just now": live}, budget=8.0)

# %% [markdown]
# Move the budget, then the length of the answers. Long prompts and short answers gain little from a batch; the reverse gains
# much.
#
# ## 6 · Who waits for the slowest?
#
# Answers differ in length, too, and a batch is done when its longest is. Here are the lengths of 80 real answers (recorded in
# lesson 04, cut at 64 tokens), in batches of 8:

# %%
stored = json.loads((data.path("traces") / "template_rates.json").read_text(encoding="utf-8"))
made = [reply["new_tokens"] for reply in stored["replies"]["prompts"]["template"]]
steps = sum(len(batch) * max(made[n] for n in batch) for batch in arrival)
{"rows x steps": steps, "tokens": sum(made), "idle": f"{1 - sum(made) / steps:.0%}"}

# %% [markdown]
# No sorting helps against that, but *refilling* does: a finished row gives its place to the next prompt at once. Two
# implementations. The library's `generate_batch` pages its cache, which lesson 12 takes apart. Give it a size: left alone it
# takes most of the memory that it finds. `labutils.generation` keeps slots, packs prompts without padding, and restores
# the order.

# %% margin="only whether the answers are equal is stored"
batch = [ids[n] for n in some]
room = ContinuousBatchingConfig(num_blocks=32, page_size=32, max_batch_tokens=128)
greedy = GenerationConfig(max_new_tokens=LIMIT, do_sample=False, eos_token_id=END, pad_token_id=END)
began = time.perf_counter()
found = model.generate_batch(batch, generation_config=greedy, continuous_batching_config=room)
arrived["generate_batch"] = [time.perf_counter() - began] * len(batch)
answers["generate_batch"] = [found[f"req_{n}"].generated_tokens for n in range(len(batch))]

came, began = [], time.perf_counter()
result = generate(model, tokenizer, batch, max_new_tokens=LIMIT, progress=False, rearrange=False,
                  on_answer=lambda index, answer: came.append(time.perf_counter() - began))
arrived["labutils.generation"] = came
alone = [[token for token in row if token != END] for row in answers["one by one"]]
all(same("generate_batch")), [answer.ids for answer in result] == alone

# %% tags=["nbval-ignore-output"] reason="seconds of this machine"
table()

# %% [markdown]
# Six ways, one set of answers. With eight prompts of like length there is nothing to refill, so do not read a ranking out of
# this table: the benchmark of this course runs eighty with answers of many lengths.
#
# ## 7 · Out of memory
#
# The obvious defence is to catch the error and try half as many. Here is a card with room for 8 rows in all, a simulation
# with a stated limit: it counts the rows of real tensors that are still alive. A job needs two tensors, so 4 rows fit, and 8
# do not.

# %%
ROOM, given = 8, []


def allocate(rows):
    alive = sum(len(tensor) for tensor in (held() for held in given) if tensor is not None)
    if alive + rows > ROOM:
        raise torch.OutOfMemoryError(f"{rows} rows wanted, {alive} of {ROOM} taken")
    tensor = torch.zeros(rows, 64)
    given.append(weakref.ref(tensor))       # a weak reference does not keep it alive
    return tensor


def work(batch):
    keys = allocate(len(batch))
    values = allocate(len(batch))           # 8 rows: fails here, while `keys` is alive
    return [prompt.upper() for prompt in batch]


def naive(batch):
    try:
        return work(batch)
    except torch.OutOfMemoryError as error:
        print(error)
        return naive(batch[:len(batch) // 2]) if len(batch) > 1 else "gave up"


naive(list("abcdefgh"))

# %% [markdown]
# Four rows fit, yet they failed, and so did two and one. While a handler runs, the error holds its traceback, the
# traceback holds the frame of `work`, and the frame holds `keys`. The retry happens *inside* the handler, beside the wreck of
# the first try. On a real card this is the common report "even batch 1 does not fit".
#
# ### Exercise 11.4 · Back off &nbsp; ⏱ 8 min · ●●●
#
# Answer all prompts in order. Where a batch does not fit, halve, and try again after the handler has ended. Keep what is done.

# %% exercise="11.4"
def answer_all(work, prompts: list[str], size: int) -> list[str]:
    """Return work's answers to all prompts; MemoryError where one does not fit even alone."""
    ### BEGIN SOLUTION
    answers = []
    while len(answers) < len(prompts):
        batch = prompts[len(answers):len(answers) + size]
        try:
            answers += work(batch)
            continue
        except torch.OutOfMemoryError:
            pass        # the handler ends here, and with it traceback, frame and tensors
        if len(batch) == 1:
            raise MemoryError(f"Prompt {len(answers)} does not fit even alone.")
        size = len(batch) // 2
    return answers
    ### END SOLUTION


check.answer_all(answer_all)

# %% [markdown] hint="it still collapses to one row"
# Nothing may keep the error: no `last = error`, no call inside `except`. Let a loop come around instead.

# %% [markdown] hint="it swallows other faults"
# `torch.OutOfMemoryError` is a `RuntimeError`. Catch the first, not the second: a wrong shape will not fit at half the size
# either.

# %% [markdown]
# `labutils.generation` does the same, with rows and with the positions of a step. We make the real model run out on purpose,
# whenever a step has more than 64 positions; every retreat is in the notes:

# %% margin="only whether the answers are equal is stored"
def narrow(layer, given, named):
    hidden = given[0] if given else named["hidden_states"]
    if hidden.shape[0] * hidden.shape[1] > 64:
        raise torch.OutOfMemoryError("out of memory (simulated)")


hook = model.model.layers[0].register_forward_pre_hook(narrow, with_kwargs=True)
result = generate(model, tokenizer, four[:2], max_new_tokens=4, progress=False, rearrange=False)
hook.remove()
[answer.ids == row[:4] for answer, row in zip(result, alone)], result.notes

# %% [markdown]
# ## 8 · Killed at night
#
# A million prompts take days, and something will end the process: a preempted machine, a full disk. A job that keeps its
# answers in a list loses all of them. `labutils.jobs` reads and writes JSON Lines, commits after every chunk, and goes on
# after its last commit. On a terminal: `labutils generate prompts.jsonl -o answers.jsonl`, and the same line after a kill.
#
# An engine is three methods. This one goes around the model that is loaded here:

# %%
desk = tempfile.TemporaryDirectory()        # goes when the kernel does
folder = Path(desk.name)
(folder / "prompts.jsonl").write_text("\n".join(lines[:50:10]), encoding="utf-8")
command_engine = jobs.TransformersEngine(dtype=str(model.dtype)[6:], max_tokens=4)


class Here:
    """The kernel's model, under the command's settings: one can go on for the other."""

    def settings(self):
        return command_engine.settings()

    def load(self):
        pass

    def answer(self, rows):
        found = generate(model, tokenizer, [row["prompt"] for row in rows], chat=True,
                         max_new_tokens=4, progress=False, rearrange=False)
        wanted = ("text", "prompt_tokens", "new_tokens", "finish")
        return [{name: getattr(each, name) for name in wanted} for each in found]

# %% [markdown]
# First an undisturbed run. Then the command, as a process of its own, killed without warning (`kill -9`) as soon as the first
# answers are on disk. Then the rest, here:

# %% margin="only whether the files are equal is stored"
whole = jobs.run(folder / "prompts.jsonl", folder / "whole.jsonl", Here())
process = subprocess.Popen(
    [sys.executable, "-m", "labutils", "generate", "prompts.jsonl", "-o", "answers.jsonl",
     "--max-tokens", "4", "--dtype", command_engine.dtype, "--chunk", "1", "--quiet"], cwd=folder)
output = folder / "answers.jsonl"
while process.poll() is None and not (output.exists() and output.stat().st_size):
    time.sleep(0.02)
process.kill(), process.wait()
left_over = output.read_bytes().count(b"\n")
print("some answers, not all:", 0 < left_over < whole.answers)

resumed = jobs.run(folder / "prompts.jsonl", output, Here(), chunk=1)
print("answered before the kill, not again:", 0 < resumed.before <= left_over)
print("the same bytes:", output.read_bytes() == whole.output.read_bytes())

# %% [markdown]
# Nothing lost, nothing twice. That rests on two things: answers that do not depend on their batch, and a journal that says how
# far the file is to be believed, since a kill may leave half a line.
#
# ## 9 · Two processes, two cards
#
# One process keeps one card busy. For more, start one process a card, and let each take its share. accelerate's
# `split_between_processes` cuts the list; `gather_object` brings the results back, in order. Each process has a model of its
# own. So the script takes a small one, the sentiment checkpoint, and this kernel gives its own back first: on Binder all share
# 2 GB. (To go back to an earlier section, run the first cell again.)

# %%
del model, writer
(folder / "two.py").write_text('''
import json
import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from labutils.checkpoints import checkpoint

cards = torch.accelerator.device_count()
state = PartialState(cpu=cards < 2)         # two processes cannot share one card
tokenizer = AutoTokenizer.from_pretrained(checkpoint("sentiment"))
model = AutoModelForSequenceClassification.from_pretrained(checkpoint("sentiment"))
model = model.to(state.device)

rows = [json.loads(line) for line in open("prompts.jsonl", encoding="utf-8")]
found = []
with state.split_between_processes(rows) as mine, torch.inference_mode():
    for row in mine:
        inputs = tokenizer(row["prompt"], return_tensors="pt").to(state.device)
        label = model.config.id2label[model(**inputs).logits.argmax().item()]
        found.append((row["id"], state.process_index, label))
found = gather_object(found)
if state.is_main_process:
    print(json.dumps({"processes": state.num_processes, "found": found}))
state.destroy_process_group()
''', encoding="utf-8")


def launch(*command):
    """Run a launcher in the folder; return what the script printed, line by line."""
    done = subprocess.run([sys.executable, "-m", *command], cwd=folder, text=True,
                          capture_output=True)
    return done.stdout.splitlines() or done.stderr.splitlines()[-1:]


split = json.loads(launch("torch.distributed.run", "--standalone", "--nproc_per_node", "2",
                          "two.py")[-1])
views.table(("prompt", "process", "label"), split["found"], f"{split['processes']} processes")

# %%
(folder / "who.py").write_text(
    "import os; print('process', os.environ.get('RANK'), 'of', os.environ.get('WORLD_SIZE'))",
    encoding="utf-8")
launch("accelerate.commands.launch", "--cpu", "--num_processes", "2", "--num_machines", "1",
       "who.py")

# %% [markdown]
# `torchrun` (that is the first module) started two processes and told each by environment variables who it is. The second
# launcher is the one that most pages name, here with a script that only says what it was told.
#
# You asked for two and got one, and nobody said a word: on a CPU this launcher starts a single process unless more is
# configured. The job would be right, and take twice as long. Print the number of processes; believe that.
#
# ## 10 · A cluster
#
# Across machines somebody has to hand out work, and hand it out again when a machine is lost. Ray Data does; the job is the
# same as before, with another pool of workers:

# %% tags=["nbval-ignore-output"] reason="depends on whether Ray is installed"
try:
    done = jobs.run(folder / "prompts.jsonl", folder / "cluster.jsonl", command_engine, chunk=4,
                    pool=on_ray.Ray(workers=2))     # address="auto" joins a cluster
    same_bytes = (folder / "cluster.jsonl").read_bytes() == output.read_bytes()
    print(f"{done.answers} answers by Ray's workers, the same bytes: {same_bytes}")
except LabError as error:
    print(error)

# %% [markdown] instructor minutes=4
# Have the room name what is still missing after section 9: a process that dies takes all with it, shares are fixed at the
# start, one long share lets all others wait. Those are the three reasons for a scheduler, and Ray is one.

# %% [markdown]
# The kernel that made this page has no Ray, and says so. With it, two actors load the model once each and answer block after
# block. On a terminal: `labutils generate prompts.jsonl -o answers.jsonl --workers 8 --ray auto`.
#
# **Quiz.** Your service answers one user at a time within 2 seconds. Now 30 come at once. What do you do first?
#
# <details><summary>A larger card</summary>
#
# It makes each step shorter, but still one row at a time: most of it would idle, as section 4 shows.
#
# </details>
# <details><summary>Batch them, at most as many as the latency budget allows</summary>
#
# Yes. Section 5 says how many; the rest queue, and refilling keeps the queue short.
#
# </details>
# <details><summary>Thirty copies of the model</summary>
#
# Thirty times the weights in memory, each read for one row. A second copy pays when the first is full.
#
# </details>
