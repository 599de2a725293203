"""Checkers of lesson 02, Checkpoints and auto classes."""

import math
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from labutils.check.core import Wrong, call, exercise, prediction


@prediction("2.1")
def auto_refuses(guess: str, model) -> str:
    """Compare "yes" or "no" with the fact that `model` was built."""
    answer = str(guess).strip().lower()
    if answer not in ("yes", "no"):
        raise Wrong(f'Answer "yes" or "no"; this is {guess!r}.')
    name, family = type(model).__name__, model.config.model_type
    if answer == "no":
        return f"no, as measured. The family {family!r} has a class for this task, {name}, and more was not asked."
    raise Wrong(f"You said yes, and it built {name}. Somebody once wrote a class that lets {family!r} write, so the look-up "
                "finds one. That these weights never learned to write stands in no table.")


@exercise("2.1")
def llama_parameters(function: Callable) -> str:
    """Check a function from a LlamaConfig to its parameters: tied and untied, shared key/value heads, wide heads."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    sizes = {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 80, "num_hidden_layers": 3}
    plain = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=4, tie_word_embeddings=True)
    for config, what in (
        (plain, "a small Llama, tied, 4 heads of each kind"),
        (LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=4, tie_word_embeddings=False), "the same, untied"),
        (LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True),
         "the same, tied, 2 key/value heads for 4 query heads"),
        (LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, head_dim=16, tie_word_embeddings=True),
         "the same with head_dim 16, so that 4 heads are wider than the hidden size"),
        (LlamaConfig(vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
                     num_attention_heads=32, num_key_value_heads=8), "Llama 3.1 8B"),
    ):
        with torch.device("meta"):
            wanted = AutoModelForCausalLM.from_config(config).num_parameters()
        got = call(function, config, shown=what)
        if isinstance(got, bool) or not isinstance(got, int | float) or not math.isfinite(got):
            raise Wrong(f"A number was asked for; you returned a {type(got).__name__}.")
        if got != wanted:
            raise Wrong(f"{what[0].upper()}{what[1:]}, has {wanted:,} parameters; you counted {got:,.0f}. "
                        + _why(config, int(got) - wanted, plain))
    return "Right: tied and untied, with shared key/value heads and wide ones, and Llama 3.1 8B."


def _why(config, off: int, plain) -> str:
    """Return what a count that is `off` by so many parameters has probably left out or counted twice."""
    h, layers = config.hidden_size, config.num_hidden_layers
    table = config.vocab_size * h
    key_value = 2 * layers * h * config.head_dim * (config.num_attention_heads - config.num_key_value_heads)
    square = 2 * layers * h * (config.num_attention_heads + config.num_key_value_heads)
    reasons = {
        table: "You counted the head, but here it is tied: it is the embedding once more, the same tensor.",
        -table: "You left out the head. It is not tied here, so it is a table of its own.",
        -(2 * layers + 1) * h: "You left out the norms: two in each layer, one after the last.",
        -h: "You left out the last norm, after all layers.",
        (2 * layers + 1) * h: "You gave each norm a bias. These norms have only a weight.",
        -layers * h * config.intermediate_size: "The feed-forward block has three matrices (gate, up, down), not two.",
        square * (h // config.num_attention_heads - config.head_dim): "A head is head_dim wide; that is not always "
        "hidden_size / num_attention_heads.",
    }
    if key_value:
        reasons[key_value] = "You counted query heads for key and value. They have fewer: num_key_value_heads."
    if off in reasons and off:
        return reasons[off]
    if config is plain and off > 0:
        return "You counted too much. Are there biases in it? A Llama has none."
    return f"That is {abs(off):,} too {'many' if off > 0 else 'few'}. Print the named_parameters() of one layer and compare."


@prediction("2.2")
def expert_billions(guess: float, model) -> str:
    """Compare a guess in 10**9 parameters with those of a mixture of experts; within 1 counts."""
    if isinstance(guess, bool) or not isinstance(guess, int | float):
        raise Wrong(f"A number was asked for, such as 13; this is {guess!r}.")
    measured = model.num_parameters() / 1e9
    if abs(guess - measured) <= 1:
        return f"You said {guess:g}, counted {measured:.1f}. Only the feed-forward blocks are there eight times."
    reason = "Eight feed-forward blocks, but one attention, one embedding, one head."
    if abs(guess - 56) <= 1:
        reason = "That is 8 times 7. Only the feed-forward blocks are there eight times; attention and embedding are shared."
    elif guess > 1000:
        reason = "Billions were asked for."
    elif 6 <= guess <= 14:
        reason = "For one token two experts are at work, about 13 billion parameters; but all eight have to be stored."
    raise Wrong(f"You said {guess:g}, counted {measured:.1f}. {reason}")


KINDS = ("missing", "unexpected", "mismatched")


@prediction("2.3")
def kinds_reported(guess, report: dict) -> str:
    """Compare the guessed kinds of reported keys with `report`, kind -> keys."""
    if isinstance(guess, str):
        guess = [guess]
    try:
        said = {str(kind).strip().lower().removesuffix("_keys") for kind in guess}
    except TypeError:
        raise Wrong(f'A list was asked for, such as ["mismatched"]; this is {guess!r}.') from None
    if unknown := said - set(KINDS):
        raise Wrong(f"There is no kind {sorted(unknown)[0]!r}. Choose from {', '.join(KINDS)}; the list may be empty.")
    measured = {kind for kind in KINDS if report.get(f"{kind}_keys")}
    if said == measured:
        return f"{' and '.join(sorted(said)) or 'nothing'}, as measured. The head was taken over, whatever it meant before."
    reasons = []
    if "missing" in said - measured:
        reasons.append("No key is missing: the two classes name their heads alike, so the file fills the other one.")
    if "mismatched" in said - measured:
        reasons.append("No shape differs: both heads have one row for each label.")
    if "unexpected" in measured - said:
        reasons.append("The layer before the head has no place in the other class and is left over.")
    raise Wrong(f"You said {', '.join(sorted(said)) or 'nothing'}, measured {', '.join(sorted(measured)) or 'nothing'}. "
                + " ".join(reasons))


@exercise("2.2")
def repaired_head(function: Callable, damaged: Path) -> str:
    """Check a function that renames the tensors of the folder `damaged`, by loading the result."""
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForSequenceClassification

    before = load_file(Path(damaged) / "model.safetensors")
    tensors = call(function, dict(before), shown=f"{len(before)} tensors")
    if not isinstance(tensors, dict) or not all(isinstance(each, torch.Tensor) for each in tensors.values()):
        raise Wrong(f"Return a dictionary from names to tensors; you returned a {type(tensors).__name__}.")
    head = {name.removeprefix("score."): tensor for name, tensor in before.items() if name.startswith("score.")}
    if lost := [name for name in before if name not in tensors and not name.startswith("score.")]:
        raise Wrong(f"{len(lost)} tensors lost their names, {sorted(lost)[0]} among them. Only the head is wrong.")
    for ending, tensor in head.items():
        given = tensors.get(f"classifier.{ending}")
        if given is not None and not torch.equal(given, tensor):
            raise Wrong(f"classifier.{ending} does not hold the numbers of score.{ending}. New numbers are no repair: "
                        "they have learned nothing.")
    with tempfile.TemporaryDirectory() as folder:
        shutil.copyfile(Path(damaged) / "config.json", Path(folder) / "config.json")
        # Two names may share one tensor, which the format refuses: copies.
        save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, Path(folder) / "model.safetensors")
        _, info = _quietly(lambda: AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True))
    if info["missing_keys"]:
        raise Wrong(f"The model still misses {', '.join(sorted(info['missing_keys']))}. You handed in "
                    f"{', '.join(sorted(name for name in tensors if name not in before)) or 'no new name'}.")
    if info["unexpected_keys"]:
        raise Wrong(f"{', '.join(sorted(info['unexpected_keys']))} is still there and unexpected. Rename, do not add.")
    return "Right: nothing missing, nothing unexpected, and the numbers are the old ones."


def _quietly(work: Callable):
    """Return work() with the library's log silent."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        return work()
    finally:
        logging.set_verbosity(level)


CONTRACTS = ("identity", "shape", "parameters", "input/output")
FOLDERS = {
    "A": ("input/output", "The weights are whole and load without a report. The ids of the text lie beyond the embedding: "
                          "the tokenizer belongs to another model."),
    "B": ("parameters", "The header promises more bytes than the file has: a download that broke off. The config is fine."),
    "C": ("identity", "Its config says another family, whose names and shapes happen to be the same. The weights are fine, "
                      "and so is the tokenizer; the class that reads them is not theirs."),
    "D": ("identity", "No family has that model_type, so no class was found. The file of weights was not opened."),
    "E": ("parameters", "The class is the one that its config names, the sizes are right. The head's values are not there."),
    "F": ("shape", "The file is whole and the class is right. One number in the config does not agree with the tensors."),
}


@exercise("2.3")
def broken_contracts(*answers: str) -> str:
    """Check which contract each of the six folders broke."""
    if len(answers) != len(FOLDERS):
        raise Wrong(f"Six answers were asked for; there are {len(answers)}.")
    faults = []
    for answer, (folder, (right, explained)) in zip(answers, FOLDERS.items(), strict=True):
        if answer not in CONTRACTS:
            raise Wrong(f"{folder}: answer one of {', '.join(CONTRACTS)}; this is {answer!r}.")
        if answer != right:
            faults.append(f"{folder} is not {answer}. {explained}")
    if faults:
        raise Wrong(f"{len(FOLDERS) - len(faults)} of 6. {' '.join(faults)}")
    return "Six of six. Identity, shape, parameters, input/output: in that order, every time."
